// Rotary embedding of a tensor by itself: the operators of python/flashwave/rotary_operator.py on fw_rotary.
#include "operators.h"

namespace flashwave_torch {
namespace {

constexpr int64_t kMostDim = 512;  // of the library

// What a tensor is turned by, in the order of the operators' arguments after x.
struct Turn {
  Tensor cos, sin;
  MaybeTensor cos_k, sin_k;  // of the second span, if not the same
  MaybeTensor offsets, cu_seqlens;
  int64_t offset = 0;
  std::optional<int64_t> max_seqlen;
  bool interleaved = false, conjugate = false;
  // Of the heads that are turned, or of q, k and v in a tensor of rank 5; a second span where count_k > 0.
  int64_t first = 0, count = 0, first_k = 0, count_k = 0;
};
constexpr uint64_t kTurnArguments = 14;

void take(Arguments& arguments, Turn* turn) {
  arguments.into(turn->cos, turn->sin, turn->cos_k, turn->sin_k, turn->offsets, turn->cu_seqlens, turn->offset,
                 turn->max_seqlen, turn->interleaved, turn->conjugate, turn->first, turn->count, turn->first_k,
                 turn->count_k);
}

// Heads that turn alike. Of a tensor of rank 5 only neighbours that are evenly spaced.
struct Span {
  int64_t first, count;
  bool other_angles;
};

// fw_rotary_embedding of a call, but for the tensor, of which each span is one. Not ok: Python must say what is wrong
// with the arguments, or make copies that the library can read.
class Rotation {
 public:
  Rotation(const Tensor& tensor, const Turn& turn) : x(tensor), turn_(turn) {
    library.rotary_init(&r, sizeof r);
    ok = fill() && find_spans();
  }

  void put(const Span& span, const View& in, const View& out) {
    if (span.other_angles && turn_.cos_k && turn_.sin_k) put_angles(*turn_.cos_k, *turn_.sin_k);
    r.x = part(in, span.first), r.out = part(out, span.first);
    r.heads = x.rank < 5 ? span.count : span.count * x.sizes[3];
  }
  // Whether all of x turns, in one span.
  bool whole() const { return x.rank < 5 && turn_.count_k == 0 && turn_.first == 0 && turn_.count == x.size(2); }
  bool all_rows_used() const {
    if (!turn_.cu_seqlens) return true;
    return x.on_cpu() && r.cu_seqlens[r.batch] == r.total;
  }

  View x;
  fw_rotary_embedding r{};
  std::array<Span, 2> spans{};
  size_t span_count = 1;
  bool ok = false;

 private:
  bool fill() {
    const bool packed = turn_.cu_seqlens.has_value();
    const bool has_rank = packed ? x.rank == 3 : x.rank == 4 || x.rank == 5;
    if (!has_rank || library_dtype(x.dtype) == FW_DTYPE_NONE || !x.has_elements() || !x.rows_are_dense()) return false;
    r.flags = (turn_.interleaved ? uint32_t{FW_ROTARY_INTERLEAVED} : 0u) |
              (turn_.conjugate ? uint32_t{FW_ROTARY_CONJUGATE} : 0u);
    r.dim = x.size(1), r.seqlen_offset = turn_.offset;
    if (r.dim > kMostDim) return false;
    if (packed) {
      const View rows(*turn_.cu_seqlens);
      if (rows.rank != 1 || rows.sizes[0] < 1 || !is_int32(turn_.cu_seqlens, x, rows.sizes[0])) return false;
      r.batch = rows.sizes[0] - 1, r.total = x.sizes[0], r.seqlen = turn_.max_seqlen.value_or(r.total);
      r.cu_seqlens = static_cast<const int32_t*>(rows.data);
    } else {
      r.batch = x.sizes[0], r.seqlen = x.sizes[1];
    }
    if (!is_int32(turn_.offsets, x, r.batch)) return false;
    if (turn_.offsets) r.seqlen_offsets = static_cast<const int32_t*>(View(*turn_.offsets).data);
    if (turn_.cos_k.has_value() != turn_.sin_k.has_value()) return false;
    if (turn_.cos_k && (!put_angles(*turn_.cos_k, *turn_.sin_k) || !as_wide(*turn_.cos_k, turn_.cos))) return false;
    const int64_t positions = packed ? turn_.max_seqlen.value_or(0) : r.seqlen;
    return put_angles(turn_.cos, turn_.sin) && turn_.offset >= 0 && turn_.offset + positions <= r.rotary_seqlen;
  }
  static bool as_wide(const Tensor& table, const Tensor& other) {
    const View a(table), b(other);
    return b.rank == 2 && a.sizes[1] == b.sizes[1] && a.dtype == b.dtype;
  }
  bool put_angles(const Tensor& of_cos, const Tensor& of_sin) {
    const View cos(of_cos), sin(of_sin);
    if (cos.rank != 2 || sin.rank != 2 || cos.sizes[0] != sin.sizes[0] || cos.sizes[1] != sin.sizes[1]) return false;
    r.rotary_seqlen = cos.sizes[0], r.rotary_dim = 2 * cos.sizes[1];
    return put_table(cos, x, &r.cos) && put_table(sin, x, &r.sin) && r.rotary_dim <= r.dim;
  }
  bool find_spans() {
    const int64_t there = x.rank < 5 ? x.size(2) : x.sizes[2];
    const bool evenly_spaced = x.rank < 5 || x.strides[2] == x.sizes[3] * x.strides[3];
    spans = {Span{turn_.first, turn_.count, false}, Span{turn_.first_k, turn_.count_k, turn_.cos_k.has_value()}};
    if (turn_.count_k > 0) {
      span_count = 2;
      if (!turn_.cos_k && turn_.first + turn_.count == turn_.first_k && evenly_spaced) {
        spans[0].count += turn_.count_k;
        span_count = 1;
      }
    }
    for (size_t i = 0; i < span_count; ++i) {
      const Span& span = spans[i];
      if (span.first < 0 || span.count < 1 || span.count > there - span.first) return false;
      if (span.count > 1 && !evenly_spaced) return false;
    }
    return true;
  }
  // The rows of the spans from `first` on, of x or a tensor of its shape.
  static fw_tensor part(const View& view, int64_t first) {
    const int64_t *s = view.strides, rank = view.rank, dtype = library_dtype(view.dtype);
    const int64_t skipped = first * s[rank == 5 ? 2 : rank - 2] * (dtype == FW_F32 ? 4 : 2);
    return {.data = static_cast<char*>(view.data) + skipped,
            .stride = {rank == 3 ? 0 : s[0], s[rank == 3 ? 0 : 1], s[rank - 2], s[rank - 1]},
            .dtype = static_cast<int32_t>(dtype),
            .reserved = 0};
  }

  const Turn& turn_;
};

Tensor turned_elsewhere(Tensor x, Turn turn, bool in_place) {
  StableIValue stack[kTurnArguments + 2];
  give(stack, std::move(x), std::move(turn.cos), std::move(turn.sin), std::move(turn.cos_k), std::move(turn.sin_k),
       std::move(turn.offsets), std::move(turn.cu_seqlens), turn.offset, turn.max_seqlen, turn.interleaved,
       turn.conjugate, turn.first, turn.count, turn.first_k, turn.count_k, in_place);
  torch_check(aoti_torch_call_dispatcher("flashwave::_rotary_elsewhere", "", stack));
  return result_of(Box<Tensor>::take(stack[0]));
}

// x turned into new memory, or where it lies: then the result is not to be used.
Tensor turned(Tensor x, Turn turn, bool in_place) {
  Rotation rotation(x, turn);
  if (!rotation.ok) return turned_elsewhere(std::move(x), std::move(turn), in_place);
  const Run run(rotation.x, true);
  if (run.device() == nullptr) return turned_elsewhere(std::move(x), std::move(turn), in_place);
  Tensor out;
  const bool whole = rotation.whole();
  if (!in_place) {
    out = like(x, rotation.x);
    // What does not turn; rows of no sequence are not written by the library.
    if (!whole || !rotation.all_rows_used()) torch_check(aoti_torch_copy_(out.get(), x.get(), 0));
  }
  const View to = in_place ? rotation.x : View(out);
  for (size_t i = 0; i < rotation.span_count; ++i) {
    rotation.put(rotation.spans[i], whole ? rotation.x : to, to);
    const fw_status status = library.rotary(run.device(), &rotation.r, run.exec());
    if (status == FW_UNSUPPORTED && i == 0) return turned_elsewhere(std::move(x), std::move(turn), in_place);
    if (status != FW_OK) fail(status, library.last_error());
  }
  return out;
}

template <bool kInPlace>
void rotary(StableIValue* stack, uint64_t count, uint64_t) {
  expect(count, kTurnArguments + 1);
  Arguments arguments(stack);
  Tensor x;
  Turn turn;
  arguments.into(x);
  take(arguments, &turn);
  Tensor out = turned(std::move(x), std::move(turn), kInPlace);
  if constexpr (!kInPlace) give(stack, std::move(out));
}

}  // namespace

const std::array<std::pair<const char*, StableKernel>, 2> kRotaryOperators{
    {{"_rotary", rotary<false>}, {"_rotary_", rotary<true>}}};

}  // namespace flashwave_torch

// combine: merges the parts of the keys that rows attended to apart (kernels/abi/partials.h), in order, and writes O
// and LSE. merge: the same of two results as callers have them, O with its LSE.
//
// Any element type, any head dimension. Task t takes rows t * kCombineRows and on of the call, 64 lanes
// each; combine_tasks() is their number. Sinks are counted here, once.
//
// The time is that of a few reads one after the other: m, l and O of the first parts and columns at once, then O of
// kAtOnce parts for kColumnsAtOnce columns at a time. kAtOnce: with few parts, places for more cost instructions.
#include "kernels/abi/partials.h"
#include "kernels/common/accurate.h"
#include "kernels/common/elements.h"
#include "kernels/common/gpu.h"
#include "kernels/common/row_end.h"
#include "kernels/common/sequence.h"

namespace flashwave {

constexpr int kLanesPerRow = abi::kCombineThreads / abi::kCombineRows;
constexpr int kMaxParts = 256;
constexpr int kMostAtOnce = 8, kColumnsAtOnce = 2;

struct PartsOfRow {  // past the last part m is -infinity, the others 0
  float m[kMaxParts + kMostAtOnce], l[kMaxParts + kMostAtOnce], weight[kMaxParts + kMostAtOnce];
};

// O of a row in its parts: those from `s` on, columns from `first` on.
template <int kAtOnce>
struct RowParts {
  using Floats = const __attribute__((address_space(1))) float*;
  Floats o;  // of part 0
  int64_t part_stride;
  int32_t splits;
  int dim;
  float x[kAtOnce][kColumnsAtOnce];

  // Every part's O is read, those of weight 0 too: without keys it is 0.
  FW_METHOD void load(int32_t s, int first) {
    Floats part = o + s * part_stride;
    FW_UNROLL for (int i = 0; i < kAtOnce; ++i, part += part_stride) {
      FW_UNROLL for (int c = 0; c < kColumnsAtOnce; ++c) {
        const int d = first + c * kLanesPerRow;
        x[i][c] = s + i < splits && d < dim ? part[d] : 0.f;
      }
    }
  }
};

// The first parts of the first columns are there.
template <class T, int kAtOnce>
FW_DEVICE void write_row(const PartsOfRow& row, RowParts<kAtOnce>& parts, int lane, float scale, T* out) {
  for (int first = lane; first < parts.dim; first += kColumnsAtOnce * kLanesPerRow) {
    float sum[kColumnsAtOnce] = {};
    for (int32_t s = 0; s < parts.splits; s += kAtOnce) {
      if (s > 0 || first > lane) parts.load(s, first);
      FW_UNROLL for (int i = 0; i < kAtOnce; ++i) {
        const float weight = row.weight[s + i];
        FW_UNROLL for (int c = 0; c < kColumnsAtOnce; ++c) sum[c] += weight * parts.x[i][c];
      }
    }
    FW_UNROLL for (int c = 0; c < kColumnsAtOnce; ++c) {
      const int d = first + c * kLanesPerRow;
      if (d < parts.dim) out[d] = from_float<T>(sum[c] * scale);
    }
  }
}

template <int kAtOnce>
FW_DEVICE void combine(const GpuArguments& args, PartsOfRow* lds) {
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const int32_t group = p.heads_q / p.heads_k, splits = args.schedule.splits;
  const int64_t rows_max = int64_t{p.seqlen_q} * group;
  const abi::PartialResults parts(args.shared, int64_t{p.batch} * p.heads_k * rows_max, splits, p.dim_v);
  const int64_t index = task * abi::kCombineRows + thread_index() / kLanesPerRow;
  const int lane = thread_index() % kLanesPerRow;

  PartsOfRow& row = lds[thread_index() / kLanesPerRow];
  // Rows past the end of a sequence have no parts: what they hold is not used. The rows of all parts are in memory, so
  // that 32 bits hold their number.
  const uint32_t head_of_call = uint32_t(index) / uint32_t(rows_max);
  const uint32_t row_of_head = uint32_t(index) - head_of_call * uint32_t(rows_max);
  const uint32_t query = row_of_head / uint32_t(group);
  bool exists = index < parts.rows;
  Sequence seq{};
  if (exists) {
    seq = sequence_of(p, int32_t(head_of_call / uint32_t(p.heads_k)));
    exists = query < seq.queries;
  }
  RowParts<kAtOnce> o{(typename RowParts<kAtOnce>::Floats)(parts.o + index * p.dim_v),
                      parts.rows * p.dim_v,
                      splits,
                      exists ? p.dim_v : 0,
                      {}};
  o.load(0, lane);
  for (int s = lane; s < splits + kAtOnce; s += kLanesPerRow) {
    const bool read = exists && s < splits;
    row.m[s] = read ? parts.m[s * parts.rows + index] : -kInf;
    row.l[s] = read ? parts.l[s * parts.rows + index] : 0.f;
  }
  workgroup_barrier();
  float top = -kInf;
  for (int32_t s = 0; s < splits; s += kAtOnce) {
    FW_UNROLL for (int i = 0; i < kAtOnce; ++i) top = __builtin_fmaxf(top, row.m[s + i]);
  }
  const float reference = reference_of(top);
  for (int s = lane; s < splits + kAtOnce; s += kLanesPerRow) row.weight[s] = exp2_fast(row.m[s] - reference);
  workgroup_barrier();
  if (!exists) return;

  float l = 0.f;
  for (int32_t s = 0; s < splits; s += kAtOnce) {
    FW_UNROLL for (int i = 0; i < kAtOnce; ++i) l += row.weight[s + i] * row.l[s + i];
  }
  const int32_t head = int32_t(head_of_call % uint32_t(p.heads_k) * uint32_t(group) + row_of_head % uint32_t(group));
  const RowEnd end = finish_row(p, head, top, l);
  const int64_t out = query_offset(p.o, seq, query, head);
  switch (p.o.dtype) {
    case abi::kF16:
      write_row(row, o, lane, end.scale, static_cast<Half*>(p.o.data) + out);
      break;
    case abi::kBF16:
      write_row(row, o, lane, end.scale, static_cast<BFloat16*>(p.o.data) + out);
      break;
    default:
      write_row(row, o, lane, end.scale, static_cast<float*>(p.o.data) + out);
  }
  if (p.lse.data && lane == 0) {
    static_cast<float*>(p.lse.data)[query_offset(p.lse, seq, query, head)] = end.lse;
  }
}

FW_KERNEL(abi::kCombineThreads) FW_NAME(combine)(FW_ARGUMENTS(args)) {
  static FW_SHARED PartsOfRow lds[abi::kCombineRows];
  if (args.schedule.splits <= kMostAtOnce / 2) {
    combine<kMostAtOnce / 2>(args, lds);
  } else {
    combine<kMostAtOnce>(args, lds);
  }
}

FW_DEVICE float number_at(const abi::Tensor& t, int64_t offset) {
  switch (t.dtype) {
    case abi::kF16:
      return load(elements<const _Float16>(t) + offset);
    case abi::kBF16:
      return load(elements<const BFloat16>(t) + offset);
    default:
      return load(elements<const float>(t) + offset);
  }
}
FW_DEVICE void put_number(const abi::Tensor& t, int64_t offset, float x) {
  switch (t.dtype) {
    case abi::kF16:
      return store(elements<_Float16>(t) + offset, x);
    case abi::kBF16:
      return store(elements<BFloat16>(t) + offset, x);
    default:
      return store(elements<float>(t) + offset, x);
  }
}

// (o, lse) takes in (d_o, d_lse). Rows are (sequence, head, query).
FW_KERNEL(abi::kCombineThreads) FW_NAME(merge)(FW_ARGUMENTS(args)) {
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const int64_t index = task * abi::kCombineRows + thread_index() / kLanesPerRow;
  const int64_t head_of_call = index / p.seqlen_q, query = index - head_of_call * p.seqlen_q;
  bool exists = head_of_call < int64_t{p.batch} * p.heads_q;
  Sequence seq{};
  if (exists) {
    seq = sequence_of(p, int32_t(head_of_call / p.heads_q));
    exists = query < seq.queries;
  }
  const int32_t head = int32_t(head_of_call % p.heads_q);
  float old = -kInf, part = -kInf;
  if (exists) {
    old = elements<const float>(p.lse)[query_offset(p.lse, seq, query, head)];
    part = elements<const float>(p.d_lse)[query_offset(p.d_lse, seq, query, head)];
  }
  workgroup_barrier();  // all have read what one of them writes
  if (!exists) return;
  const MergedRow row = merged(old, part);
  const int64_t out = query_offset(p.o, seq, query, head), in = query_offset(p.d_o, seq, query, head);
  for (int d = thread_index() % kLanesPerRow; d < p.dim_v; d += kLanesPerRow) {
    const float kept = row.keep != 0.f ? row.keep * number_at(p.o, out + d) : 0.f;
    put_number(p.o, out + d, row.add != 0.f ? __builtin_fmaf(row.add, number_at(p.d_o, in + d), kept) : kept);
  }
  if (thread_index() % kLanesPerRow == 0) elements<float>(p.lse)[query_offset(p.lse, seq, query, head)] = row.lse;
}

}  // namespace flashwave

#include "make_call.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <vector>

namespace fuzz {
namespace {

class Maker {
 public:
  Maker(Bytes& bytes, Arena& arena, Call* call)
      : bytes_(bytes), arena_(arena), call_(*call), a_(call->attention.value), g_(call->gradients.value) {}

  void make() {
    fw_attention_init(&a_, sizeof a_);
    fw_gradients_init(&g_, sizeof g_);
    call_.backward = bytes_.flip();
    sizes();
    scores();
    keys();
    queries();
    if (call_.backward) gradients();
    call_.threads = static_cast<int32_t>(bytes_.below(4));
    call_.own_executor = bytes_.rarely();
    call_.own_workspace = bytes_.flip();
    const int64_t breaks = bytes_.flip() ? bytes_.below(4) : 0;
    for (int64_t i = 0; i < breaks; ++i) break_something();
  }

 private:
  void sizes() {
    a_.batch = bytes_.rarely() ? 0 : bytes_.between(1, 3);
    a_.seqlen_q = bytes_.rarely() ? 0 : bytes_.rarely() ? bytes_.between(17, 70) : bytes_.between(1, 10);
    a_.seqlen_k = bytes_.rarely() ? bytes_.between(90, 130) : bytes_.below(24);
    a_.heads_k = bytes_.between(1, 3);
    a_.heads_q = a_.heads_k * bytes_.between(1, 3);
    a_.dim_qk = bytes_.rarely() ? bytes_.between(60, 70) : bytes_.between(1, 20);
    a_.dim_v = bytes_.flip() ? a_.dim_qk : bytes_.between(1, 20);
    dtype_ = static_cast<fw_dtype>(bytes_.between(FW_F16, FW_F32));
  }

  void scores() {
    a_.flags = static_cast<uint32_t>(bytes_.below(8));
    if (bytes_.rarely()) a_.flags |= FW_FILL_UNUSED;
    if (bytes_.flip()) a_.window_left = bytes_.below(12) - 1;
    if (bytes_.flip()) a_.window_right = bytes_.below(12) - 1;
    if (bytes_.flip()) a_.softmax_scale = static_cast<float>(bytes_.below(32)) / 8 - 2;
    if (bytes_.rarely()) a_.softcap = static_cast<float>(bytes_.between(1, 32));
    if (bytes_.rarely()) a_.dropout_p = static_cast<float>(bytes_.below(16)) / 16;
    a_.num_splits = bytes_.rarely() ? static_cast<int32_t>(bytes_.below(8)) : 0;
    if (bytes_.rarely()) {
      a_.flags |= FW_POSITIONS;
      a_.position_q = bytes_.below(200), a_.position_k = bytes_.below(200);
    }
    if (bytes_.rarely()) a_.dropout_first = bytes_.below(20), a_.dropout_heads = a_.heads_q + bytes_.below(5);
    a_.dropout_seed = bytes_.byte();
    a_.dropout_offset = bytes_.byte();
    if (bytes_.rarely()) a_.dropout_state = reinterpret_cast<const uint64_t*>(arena_.take(16));
    if (bytes_.rarely()) {
      a_.alibi_batch_stride = bytes_.flip() ? a_.heads_q : 0;
      a_.alibi_slopes = floats(a_.batch * a_.heads_q + 1);
    }
    if (bytes_.rarely()) a_.sinks = floats(a_.heads_q);
    if (bytes_.rarely()) a_.bias = score_tensor(bytes_.flip() ? FW_F32 : dtype_, true);
    if (!call_.backward && bytes_.rarely()) a_.probs = score_tensor(FW_F32, false);
  }

  void keys() {
    enum { kDense, kPacked, kCache, kPaged };
    const int64_t kind = bytes_.below(call_.backward ? 2 : 4);
    int64_t first = a_.batch, rows = a_.seqlen_k;
    std::vector<int32_t> room(static_cast<size_t>(a_.batch), static_cast<int32_t>(a_.seqlen_k));
    if (kind == kPacked) {
      a_.cu_seqlens_k = offsets(a_.seqlen_k, &a_.total_k, &room);
      first = 1, rows = a_.total_k;
    } else if (kind == kCache) {
      a_.batch_k = first = a_.batch + bytes_.below(3);
      a_.cache_batch_idx = shuffled(a_.batch, a_.batch_k);
    } else if (kind == kPaged) {
      a_.page_size = rows = bytes_.between(1, 9);
      const int64_t blocks = (a_.seqlen_k + a_.page_size - 1) / a_.page_size;
      a_.batch_k = first = a_.batch * blocks + 1;
      a_.block_table = shuffled(a_.batch * blocks, a_.batch_k);
      a_.block_table_stride = blocks;
    }
    if (!call_.backward && kind != kPacked && a_.batch > 0 && bytes_.below(4) == 3) append();
    if (a_.seqlen_new > 0 || bytes_.flip()) {
      for (int32_t& r : room) r = static_cast<int32_t>(bytes_.below(r - a_.seqlen_new + 1));
      a_.seqused_k = indices(room);
    }
    if (bytes_.rarely()) {
      for (int32_t& r : room) r = static_cast<int32_t>(bytes_.below(r + 1));
      a_.leftpad_k = indices(room);
    }
    a_.k = tensor(first, rows, a_.heads_k, a_.dim_qk);
    a_.v = tensor(first, rows, a_.heads_k, a_.dim_v);
  }

  void append() {
    a_.seqlen_new = bytes_.below(std::min<int64_t>(a_.seqlen_k, 5) + 1);
    if (a_.seqlen_new == 0) return;
    a_.k_new = tensor(a_.batch, a_.seqlen_new, a_.heads_k, a_.dim_qk);
    a_.v_new = tensor(a_.batch, a_.seqlen_new, a_.heads_k, a_.dim_v);
    if (a_.dim_qk < 2 || !bytes_.flip()) return;
    a_.rotary_dim = 2 * bytes_.between(1, a_.dim_qk / 2);
    a_.rotary_seqlen = a_.seqlen_k + std::max(a_.seqlen_q, a_.seqlen_new);
    for (fw_tensor* t : {&a_.rotary_cos, &a_.rotary_sin}) {
      *t = tensor(a_.rotary_seqlen, a_.rotary_dim / 2, 1, 1);
      t->stride[0] = a_.rotary_dim / 2, t->stride[1] = 1;
    }
  }

  void queries() {
    first_q_ = a_.batch, rows_q_ = a_.seqlen_q;
    if (bytes_.flip()) {
      std::vector<int32_t> lengths(static_cast<size_t>(a_.batch));
      a_.cu_seqlens_q = offsets(a_.seqlen_q, &a_.total_q, &lengths);
      first_q_ = 1, rows_q_ = a_.total_q;
    }
    a_.q = tensor(first_q_, rows_q_, a_.heads_q, a_.dim_qk);
    const bool accumulates = !call_.backward && bytes_.rarely(), wide = accumulates || bytes_.rarely();
    a_.o = tensor(first_q_, rows_q_, a_.heads_q, a_.dim_v, wide ? FW_F32 : dtype_);
    if (accumulates) a_.flags |= FW_ACCUMULATE;
    if (accumulates || call_.backward || bytes_.flip()) a_.lse = tensor(first_q_, rows_q_, a_.heads_q, 1, FW_F32);
  }

  void gradients() {
    g_.d_o = tensor(first_q_, rows_q_, a_.heads_q, a_.dim_v);
    if (bytes_.rarely()) g_.d_lse = tensor(first_q_, rows_q_, a_.heads_q, 1, FW_F32);
    const bool packed_k = a_.cu_seqlens_k != nullptr;
    const int64_t first = packed_k ? 1 : a_.batch, rows = packed_k ? a_.total_k : a_.seqlen_k;
    const fw_dtype dtype = bytes_.rarely() ? FW_F32 : dtype_;
    if (dtype == FW_F32 && bytes_.rarely()) a_.flags |= FW_ACCUMULATE;
    if (!bytes_.rarely()) g_.dq = tensor(first_q_, rows_q_, a_.heads_q, a_.dim_qk, dtype);
    if (!bytes_.rarely()) g_.dk = tensor(first, rows, a_.heads_k, a_.dim_qk, dtype);
    if (!bytes_.rarely()) g_.dv = tensor(first, rows, a_.heads_k, a_.dim_v, dtype);
    if (a_.sinks != nullptr && bytes_.flip()) g_.d_sinks = floats(a_.heads_q);
    if (a_.alibi_slopes != nullptr && bytes_.flip()) g_.d_slopes = floats(a_.batch * a_.heads_q + 1);
    if (a_.bias.data != nullptr && bytes_.flip()) {
      g_.d_bias = a_.bias;
      g_.d_bias.data = arena_.take(score_bytes());
    }
  }

  // Contiguous in one of several orders, sometimes with room between the rows.
  fw_tensor tensor(int64_t e0, int64_t e1, int64_t e2, int64_t e3, fw_dtype dtype = FW_DTYPE_NONE) {
    fw_tensor t{};
    t.dtype = dtype == FW_DTYPE_NONE ? dtype_ : dtype;
    const int64_t row = e3 + (bytes_.rarely() ? bytes_.below(8) : 0);
    const bool heads_first = bytes_.flip();
    t.stride[3] = 1;
    t.stride[2] = heads_first ? row * e1 : row;
    t.stride[1] = heads_first ? row : row * e2;
    t.stride[0] = row * e1 * e2;
    t.data = arena_.take(static_cast<size_t>(e0 * e1 * e2 * row * (t.dtype == FW_F32 ? 4 : 2)));
    return t;
  }

  size_t score_bytes() const { return static_cast<size_t>(a_.batch * a_.heads_q * a_.seqlen_q * a_.seqlen_k * 4); }

  fw_tensor score_tensor(fw_dtype dtype, bool may_broadcast) {
    fw_tensor t{};
    t.dtype = dtype;
    const int64_t extent[4] = {a_.batch, a_.heads_q, a_.seqlen_q, a_.seqlen_k};
    int64_t stride = 1;
    for (int i = 3; i >= 0; --i) {
      if (may_broadcast && bytes_.below(4) == 3) continue;
      t.stride[i] = stride;
      stride *= extent[i];
    }
    t.data = arena_.take(score_bytes());
    return t;
  }

  float* floats(int64_t count) { return reinterpret_cast<float*>(arena_.take(static_cast<size_t>(count) * 4)); }

  int32_t* indices(const std::vector<int32_t>& values) {
    int32_t* array = arena_.take_indices(values.size());
    if (array != nullptr) std::copy(values.begin(), values.end(), array);
    if (array != nullptr && !values.empty() && bytes_.rarely()) {
      array[bytes_.below(static_cast<int64_t>(values.size()))] += static_cast<int32_t>(bytes_.between(-3, 3));
    }
    return array;
  }

  int32_t* offsets(int64_t longest, int64_t* total, std::vector<int32_t>* lengths) {
    std::vector<int32_t> rising(1, 0);
    for (int32_t& length : *lengths) {
      length = static_cast<int32_t>(bytes_.below(longest + 1));
      rising.push_back(rising.back() + length);
    }
    *total = rising.back() + (bytes_.rarely() ? bytes_.below(4) : 0);
    return indices(rising);
  }

  // count different numbers below limit.
  int32_t* shuffled(int64_t count, int64_t limit) {
    std::vector<int32_t> values(static_cast<size_t>(limit));
    std::iota(values.begin(), values.end(), 0);
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      std::swap(values[i], values[i + static_cast<size_t>(bytes_.below(static_cast<int64_t>(values.size() - i)))]);
    }
    values.resize(static_cast<size_t>(count));
    return indices(values);
  }

  void break_something() {
    const bool in_gradients = call_.backward && bytes_.below(4) == 3;
    char* base = in_gradients ? call_.gradients.bytes : call_.attention.bytes;
    const size_t words = (in_gradients ? sizeof(fw_gradients) : sizeof(fw_attention)) / 4;
    size_t word = (static_cast<size_t>(bytes_.byte()) << 8 | bytes_.byte()) % words;
    const bool wide = bytes_.flip();
    if (wide) word &= ~size_t{1};
    int64_t old = 0;
    std::memcpy(&old, base + 4 * word, wide ? 8 : 4);
    const auto random = static_cast<int64_t>(bytes_.word());
    constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
    const auto plus = [&](int64_t step) {
      return static_cast<int64_t>(static_cast<uint64_t>(old) + static_cast<uint64_t>(step));
    };
    const std::array<int64_t, 16> values = {0,         1,        -1,         2,     7,      16,
                                            plus(1),   plus(-1), plus(2),    kMost, kLeast, int64_t{1} << 31,
                                            plus(old), plus(-4), 0x7FC00000, random};
    const int64_t value = values[static_cast<size_t>(bytes_.below(16))];
    std::memcpy(base + 4 * word, &value, wide ? 8 : 4);
  }

  Bytes& bytes_;
  Arena& arena_;
  Call& call_;
  fw_attention& a_;
  fw_gradients& g_;
  fw_dtype dtype_ = FW_F32;
  int64_t first_q_ = 0, rows_q_ = 0;
};

}  // namespace

Arena::Arena() : memory_(static_cast<char*>(std::aligned_alloc(64, kBytes))) {
  if (memory_ == nullptr) std::abort();
}

void Arena::reset() {
  std::memset(memory_.get(), 0, kIndexBytes);
  std::memset(memory_.get() + kIndexBytes, 0x3F, kBytes - kIndexBytes);  // about 0.75 in F32 and BF16, 1.8 in F16
  indices_used_ = 0;
  used_ = kIndexBytes;
}

int32_t* Arena::take_indices(size_t count) {
  if ((indices_used_ + count) * 4 > kIndexBytes) return nullptr;
  auto* array = reinterpret_cast<int32_t*>(begin()) + indices_used_;
  indices_used_ += count;
  return array;
}

char* Arena::take(size_t bytes) {
  bytes = (bytes + 15) / 16 * 16;
  if (bytes > kBytes - used_) return nullptr;
  char* taken = begin() + used_;
  used_ += bytes;
  return taken;
}

void make_call(Bytes& bytes, Arena& arena, Call* call) {
  static constexpr const char* kKernels[] = {"naive_fwd",          "naive_bwd", "reference_fwd", "reference_bwd",
                                             "portable_fwd_m8n96", "append_kv", "nonsense"};
  Maker(bytes, arena, call).make();
  if (bytes.rarely()) call->kernel = kKernels[static_cast<size_t>(bytes.below(7))];
}

}  // namespace fuzz

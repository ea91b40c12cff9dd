// Forward attention over at most 16 keys: a pure stream, no matrix instructions, no LDS. A few lanes own one (sequence,
// key head), 16 bytes each of a row; every load is issued before the first use, and every byte is moved once. K and V
// stay in registers while the queries of the sequence and of the head's group pass by. (kernels/amd/NOTES.md)
#include "kernels/abi/features.h"
#include "kernels/abi/tiny_schedule.h"
#include "kernels/common/elements.h"
#include "kernels/common/part.h"
#include "kernels/common/row_end.h"
#include "kernels/common/window.h"

namespace flashwave {

inline constexpr int kThreads = 256;
inline constexpr int kElements = 8;  // of a row in one lane: 16 bytes

FW_DEVICE void unpack(_Float16, U32x4 x, float (&out)[kElements]) {
  FW_UNROLL for (int e = 0; e < 4; ++e) {
    const F16x2 two = __builtin_bit_cast(F16x2, uint32_t(x[e]));
    out[2 * e] = float(two.x), out[2 * e + 1] = float(two.y);
  }
}
FW_DEVICE void unpack(BFloat16, U32x4 x, float (&out)[kElements]) {
  FW_UNROLL for (int e = 0; e < 4; ++e) out[2 * e] = float_of(x[e] << 16),
                                                out[2 * e + 1] = float_of(x[e] & 0xFFFF0000u);
}
FW_DEVICE uint32_t pack(_Float16, float low, float high) {
  return __builtin_bit_cast(uint32_t, F16x2{_Float16(low), _Float16(high)});
}
FW_DEVICE uint32_t pack(BFloat16, float low, float high) {
  return from_float<BFloat16>(low).bits | uint32_t{from_float<BFloat16>(high).bits} << 16;
}

// Over the 8, 16 or 32 lanes of a stream.
template <int kLanes>
FW_DEVICE float stream_sum(float x) {
  x += dpp<0xB1>(x);                               // quad_perm [1,0,3,2]
  x += dpp<0x4E>(x);                               // quad_perm [2,3,0,1]
  x += dpp<0x141>(x);                              // row_half_mirror
  if constexpr (kLanes >= 16) x += dpp<0x140>(x);  // row_mirror
  if constexpr (kLanes == 32) x += sixteen_lanes_away(x);
  return x;
}

// Stream `index` counts key heads first, then blocks of queries, then sequences: neighbours in memory.
struct Stream {
  int32_t b, h_k;
  int64_t first_query;

  // All lanes of a workgroup start from one division of 64 bits, in scalar registers.
  FW_METHOD Stream(const Params& p, int64_t first_of_group, uint32_t index) {
    const int64_t blocks = abi::tiny_blocks(p.seqlen_q), first_block = first_of_group / p.heads_k;
    const uint32_t head = uint32_t(first_of_group - first_block * p.heads_k) + index, heads = uint32_t(p.heads_k);
    uint32_t carry = head / heads;
    h_k = int32_t(head - carry * heads);
    b = int32_t(first_block / blocks);
    first_query = 0;
    if (blocks > 1) {
      const uint32_t block = uint32_t(first_block - b * blocks) + carry;
      carry = block / uint32_t(blocks);
      first_query = (block - carry * uint32_t(blocks)) * abi::kTinyQueries;
    }
    b += int32_t(carry);
  }
};

template <class T, int kLanes, int kKeys>
FW_DEVICE void tiny(const GpuArguments& args) {
  constexpr int kStreams = kThreads / kLanes;
  const Params& p = args.params;
  __builtin_assume(p.block_table == nullptr);
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const Stream stream(p, task * kStreams, uint32_t(thread_index()) / kLanes);
  if (stream.b >= p.batch) return;
  const Sequence seq = sequence_of(p, stream.b);
  const int64_t first_query = stream.first_query;
  int64_t end_query = first_query + abi::kTinyQueries;
  if (end_query > seq.queries) end_query = seq.queries;
  if (first_query >= end_query) return;

  const int lane = thread_index() % kLanes, d = lane * kElements;
  const bool in_qk = d < p.dim_qk, in_v = d < p.dim_v;
  const int32_t group = p.heads_q / p.heads_k, first_head = stream.h_k * group;
  // Both ends of what a query sees rise with the query.
  const Edges edges = near_edges(p, int32_t(seq.keys - seq.queries));
  const int32_t keys = int32_t(seq.keys), key_begin = edges.first(int32_t(first_query));
  const int32_t key_end = edges.end(int32_t(end_query - 1), keys);

  const T* q_row_at = elements<const T>(p.q) + query_offset(p.q, seq, first_query, first_head) + d;
  T* o_row_at = elements<T>(p.o) + query_offset(p.o, seq, first_query, first_head) + d;
  float* lse_at = elements<float>(p.lse) + query_offset(p.lse, seq, first_query, first_head);
  const T* k = elements<const T>(p.k) + key_offset(p, p.k, seq, 0, stream.h_k) + d;
  const T* v = elements<const T>(p.v) + key_offset(p, p.v, seq, 0, stream.h_k) + d;
  U32x4 q_row = 0, k_row[kKeys], v_row[kKeys];
  if (in_qk) q_row = load_once(q_row_at);
  FW_UNROLL for (int j = 0; j < kKeys; ++j) {
    k_row[j] = 0;
    if (in_qk && j >= key_begin && j < key_end) k_row[j] = load_once(k + j * p.k.stride[1]);
  }
  FW_UNROLL for (int j = 0; j < kKeys; ++j) {
    v_row[j] = 0;
    if (in_v && j >= key_begin && j < key_end) v_row[j] = load_once(v + j * p.v.stride[1]);
  }

  const float scale = p.softmax_scale * kLog2e;
  for (int64_t i = first_query; i < end_query; ++i) {
    int32_t first = edges.first(int32_t(i)), seen = edges.end(int32_t(i), keys) - first;
    if (seen < 0) seen = 0;
    for (int32_t g = 0; g < group; ++g) {
      // The row after this one is on its way while this one is worked on.
      const bool group_ends = g + 1 == group;
      q_row_at += group_ends ? p.q.stride[1] - g * p.q.stride[2] : p.q.stride[2];
      U32x4 q_coming = 0;
      if (in_qk && (!group_ends || i + 1 < end_query)) q_coming = load_once(q_row_at);
      hold(first);  // rather than one mask for each key
      float q[kElements], score[kKeys];
      unpack(T{}, q_row, q);
      const float sink = sink_of(p, first_head + g);
      float top = sink;
      FW_UNROLL for (int j = 0; j < kKeys; ++j) {
        float x[kElements], dot = 0.f;
        hold(k_row[j]);  // unpacked before the loop, K and V would take twice the registers
        unpack(T{}, k_row[j], x);
        FW_UNROLL for (int e = 0; e < kElements; ++e) dot = __builtin_fmaf(q[e], x[e], dot);
        dot = stream_sum<kLanes>(dot) * scale;
        score[j] = uint32_t(j - first) < uint32_t(seen) ? dot : -kInf;
        top = __builtin_fmaxf(top, score[j]);
      }
      const float base = reference_of(top);
      float sum = exp2_fast(sink - base), o[kElements] = {};
      FW_UNROLL for (int j = 0; j < kKeys; ++j) {
        const float weight = exp2_fast(score[j] - base);
        sum += weight;
        float x[kElements];
        hold(v_row[j]);
        unpack(T{}, v_row[j], x);
        FW_UNROLL for (int e = 0; e < kElements; ++e) o[e] = __builtin_fmaf(weight, x[e], o[e]);
      }
      const RowEnd end = end_of_row<false>(base, sum);
      U32x4 packed;
      FW_UNROLL for (int e = 0; e < 4; ++e) packed[e] = pack(T{}, o[2 * e] * end.scale, o[2 * e + 1] * end.scale);
      if (in_v) store_once(o_row_at, packed);
      if (p.lse.data && lane == 0) *lse_at = end.lse;
      o_row_at += group_ends ? p.o.stride[1] - g * p.o.stride[2] : p.o.stride[2];
      lse_at += group_ends ? p.lse.stride[1] - g * p.lse.stride[2] : p.lse.stride[2];
      q_row = q_coming;
    }
  }
}

// The head dim gives the lanes of a stream.
#define FW_TINY_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, features, \
                      needs, work)                                                                                 \
  FW_KERNEL(threads) name(GpuArguments args) {                                                                     \
    static_assert(threads == kThreads && tile_q == kThreads * kElements / dim_qk && dim_qk == dim_v);              \
    if constexpr (dtypes == kRowF16) {                                                                             \
      tiny<_Float16, dim_qk / kElements, seqlen_k>(args);                                                          \
    } else {                                                                                                       \
      tiny<BFloat16, dim_qk / kElements, seqlen_k>(args);                                                          \
    }                                                                                                              \
  }
#define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_TINY_ENTRY)(__VA_ARGS__)
#include "kernels/amd/kernels.def"
#undef FW_AMD_KERNEL

}  // namespace flashwave

// What every kernel receives, on every device: plain data, fixed widths, no pointer to a host object.
// The host fills it in src/plan/run.cpp from a validated problem; kernels never check arguments.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashwave::abi {

enum DType : int32_t { kNone = 0, kF16 = 1, kBF16 = 2, kF32 = 3 };

// Same layout and stride orders as fw_tensor in flashwave.h, where the last field is 0.
struct Tensor {
  void* data;
  int64_t stride[4];
  int32_t dtype;
  // The most that numbers in a device's memory may say of this tensor (at_most). q, k, v: the rows of a packed tensor,
  // else the last row of a cache or its last page; rotary_cos: the last position. 0 in all others.
  int32_t most;
};

// "No limit" for a window side. Far from overflow when a position is added to it.
inline constexpr int64_t kNoWindow = int64_t{1} << 40;

// A number from a device's memory, where nobody has looked at it: one below 0 or beyond `most` counts as that. One
// comparison, of unsigned numbers.
__attribute__((always_inline)) constexpr int32_t at_most(int32_t x, int32_t most) {
  return uint32_t(x) < uint32_t(most) ? x : most;
}

struct Params {
  Tensor q, k, v, o, lse;
  Tensor bias, probs;
  // Backward only. Merging: o and lse take in d_o and d_lse, the results of other keys.
  Tensor d_o, d_lse, dq, dk, dv, d_bias;
  float* d_sinks;
  float* d_slopes;

  const int32_t* cu_seqlens_q;
  const int32_t* cu_seqlens_k;
  const int32_t* seqused_k;
  const int32_t* leftpad_k;
  const int32_t* cache_batch_idx;
  const int32_t* block_table;
  const float* alibi_slopes;
  const float* sinks;

  int64_t block_table_stride;
  int64_t alibi_batch_stride;
  int64_t page_size;
  int64_t seqlen_new;                 // keys appended by the pre-pass: a sequence has seqused_k + seqlen_new keys
  int64_t window_left, window_right;  // causal already folded in; kNoWindow = no limit

  // Append pre-pass, and rotary embedding by itself: there q is x, q_rotated is out (possibly the same memory) and
  // seqused_k, which may be absent, the offset of each sequence.
  Tensor k_new, v_new, rotary_cos, rotary_sin;
  Tensor q_rotated;  // where the rotated queries go; the kernel that follows the pre-pass gets it as q
  int64_t rotary_dim;
  int64_t rotary_offset;  // added to every position; 0 when appending
  int32_t rotary_interleaved;
  // 1: query i is rotated by position seqused_k + i; 0: all by seqused_k (no causal, no window)
  int32_t rotary_per_row;

  int32_t batch, heads_q, heads_k;
  int32_t seqlen_q, seqlen_k;
  int32_t dim_qk, dim_v;
  int32_t rotary_conjugate;  // 1: turn the other way

  float softmax_scale, softcap;
  float dropout_p;
  uint32_t dropout_threshold;  // an element is dropped iff its 16 random bits are below this
  uint64_t dropout_seed, dropout_offset;
  // GPUs: seed and offset in the device's memory, in place of the two above; null: none (kernels/common/score.h).
  const uint64_t* dropout_state;

  // Kernels that honour kPositions: the diagonal is i + position_shift where `positions` is set, else bottom right; and
  // what dropout counts. Other kernels get problems where all of this is at its default.
  int64_t position_shift;
  int32_t positions;
  int32_t accumulate;  // CPUs: o and lse hold the results of other keys, and take these in
  uint32_t position_q, position_k;
  uint32_t dropout_first, dropout_heads;  // head h of sequence b counts as dropout_first + b * dropout_heads + h
};

static_assert(sizeof(Tensor) == 48);
static_assert(offsetof(Params, bias) == 5 * 48);
static_assert(offsetof(Params, d_o) == 7 * 48);
static_assert(offsetof(Params, d_sinks) == 13 * 48);
static_assert(offsetof(Params, cu_seqlens_q) == 13 * 48 + 16);
static_assert(offsetof(Params, block_table_stride) == 13 * 48 + 80);
static_assert(offsetof(Params, k_new) == 13 * 48 + 128);
static_assert(offsetof(Params, batch) == 18 * 48 + 152);
static_assert(offsetof(Params, softmax_scale) == 18 * 48 + 184);
static_assert(offsetof(Params, position_shift) == 18 * 48 + 224);
static_assert(sizeof(Params) == 18 * 48 + 256);

// How the work is cut up. Decided by src/plan/schedule.cpp from the problem and the device alone, never from the
// number of threads, so that results do not depend on it.
struct Schedule {
  int32_t splits;           // parts of the keys that are attended apart and combined (1 = none)
  int32_t rows_per_task;    // query rows of one task, GQA group packed: row = query * group + head_in_group
  int64_t keys_per_split;   // keys of one part (the last may be shorter); backward by Work::kKeySums: of a workgroup
  int64_t tasks;            // independent tasks
  int32_t heads_per_task;   // decode: key heads of one task, read side by side
  int32_t zeroed_bytes;     // GPU: of the workspace, so many are 0 when the kernel starts
  int64_t scratch_bytes;    // per worker
  int64_t workspace_bytes;  // once per call: partial results
  int32_t in_order;         // backward: sums of several workgroups are made in a fixed order, always the same bits
  int16_t dq_columns;       // backward: of the sums of dQ in a block (kernels/abi/backward_blocks.h); 0: there are none
  int16_t lse_by_scale;     // and: in a block, LSE is divided by softmax_scale, not in units of log2
};
static_assert(sizeof(Schedule) == 56);

}  // namespace flashwave::abi

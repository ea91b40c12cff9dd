// The arguments of an attention, as Python's `Problem` has them, and fw_attention of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "call.h"

namespace flashwave_torch {

using MaybeScale = std::optional<double>;
using Sizes = std::array<int64_t, 4>;

// In the order of the operators' arguments.
struct Inputs {
  Tensor q, k, v;
  MaybeTensor cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, cache_batch_idx, block_table;
  MaybeTensor alibi_slopes, bias, sinks, rng_state;
  int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  MaybeScale softmax_scale;
  bool causal = false;
  int64_t window_left = -1, window_right = -1;
  double softcap = 0, dropout_p = 0;
  int64_t num_splits = 0;
  bool deterministic = false;
  MaybeTensor k_new, v_new, rotary_cos, rotary_sin;
  bool rotary_interleaved = false;

  bool lengths_given = true;  // max_seqlen_q and max_seqlen_k; else they are the extents of q, and of k or its pages
};
inline constexpr uint64_t kForwardArguments = 23;  // up to deterministic
inline constexpr uint64_t kAppendArguments = 28;

// Puts the first `count` of the arguments onto a stack.
StableIValue* give(StableIValue* stack, Inputs inputs, uint64_t count);

// fw_attention of them. Not ok: Python must say what is wrong with them, or make copies that the library can read.
struct Problem {
  View q, k, v;
  fw_attention a{};
  bool ok = false;

  explicit Problem(const Inputs& inputs);
  void put_out(const View& out);
  void put_lse(const View& lse);
  Tensor new_out() const;
  Tensor new_lse() const;
  Tensor new_probs() const;
};

// Whether the tensor, if there is one, is an array of so many int32 beside q.
bool is_int32(const MaybeTensor& tensor, const View& q, int64_t count);
// A table of cos or sin, if the library can read it.
bool put_table(const View& table, const View& q, fw_tensor* to);

// (batch, seq, head, dim); a packed tensor has no batch.
fw_tensor rows(const View& view);
// The same of a tensor that empty_like(like) has made.
fw_tensor new_rows(const Tensor& made, const View& like);
// Of (batch, head, query, key), where an extent of 1 broadcasts.
fw_tensor pairs(const View& view);

}  // namespace flashwave_torch

// One attention problem: the caller's structs copied whole (fields an older caller does not know at their defaults).
// Plain data; everything below the API works on this and nothing else.
#pragma once

#include <cstdint>
#include <string>

#include "flashwave/flashwave.h"

namespace flashwave {

struct Problem {
  fw_attention a{};
  fw_gradients g{};  // all zero for a forward
  bool backward = false;
  bool bf16_products = false;  // of fp16 tensors, where kernels can

  bool varlen_q() const { return a.cu_seqlens_q != nullptr; }
  bool varlen_k() const { return a.cu_seqlens_k != nullptr; }
  bool paged() const { return a.block_table != nullptr; }
  bool deterministic() const { return (a.flags & FW_DETERMINISTIC) != 0; }
  bool causal() const { return (a.flags & FW_CAUSAL) != 0; }
  bool fast_rounding() const { return (a.flags & FW_FAST_ROUNDING) != 0; }
  bool accumulate() const { return (a.flags & FW_ACCUMULATE) != 0; }
  bool placed() const { return (a.flags & FW_POSITIONS) != 0; }
  // FW_FILL_UNUSED, and a result that is packed.
  bool fills_rows() const {
    if ((a.flags & FW_FILL_UNUSED) == 0) return false;
    if (!backward) return varlen_q();
    return (varlen_q() && g.dq.data != nullptr) || (varlen_k() && (g.dk.data != nullptr || g.dv.data != nullptr));
  }
  int64_t position_shift() const { return a.position_q - a.position_k; }
  // Whether dropout counts heads in another way than this problem alone would.
  bool counts_elsewhere() const {
    return a.dropout_first != 0 || (a.dropout_heads != 0 && a.dropout_heads != a.heads_q);
  }
  bool float_out() const { return a.o.dtype == FW_F32 && a.q.dtype != FW_F32; }
  bool float_gradients() const;  // some of dq, dk and dv in fp32, q in 16 bits
  int64_t group() const { return a.heads_k > 0 ? a.heads_q / a.heads_k : 0; }
  bool append() const { return a.seqlen_new > 0; }
  bool no_queries() const { return a.batch == 0 || a.seqlen_q == 0 || (varlen_q() && a.total_q == 0); }
  // Nothing to attend and nothing to append: no kernel runs (a backward still sets its other outputs to 0).
  bool empty() const { return no_queries() && (a.batch == 0 || !append()); }
  float scale() const;  // softmax_scale with FW_SCALE_AUTO resolved

  // Expresses positions by the window alone where that is possible.
  void fold_positions();
};

// Clears what a valid problem leaves open: absent tensors and strides that multiply only the index 0 become 0, those
// of tensors without elements 0 or 1, so that the layers below may compute with any of them. Positions are expressed by
// the window where they can be.
void normalize(Problem& problem);

const char* dtype_word(int32_t dtype);  // "bf16"

// "b=2 sq=128 sk=128 hq=8 hk=8 d=64 dtype=bf16 causal=1 ...", the words the command line reads.
std::string describe(const Problem& problem);

}  // namespace flashwave

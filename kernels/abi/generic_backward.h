// The passes of the generic GPU backward (kernels/generic/bwd.h), in the order they are launched, and the memory
// they share. Each is a launch of its own with the same arguments but for `tasks`; one that has no tasks is left out.
#pragma once

#include <cstdint>

#include "kernels/abi/params.h"

namespace flashwave::abi {

enum class GenericPass : int32_t {
  kDelta,  // rowsum(d_o * o) - d_lse
  kDq,     // dq, and the parts of d_slopes
  kDkDv,   // dk and dv
  kDBias,  // d_bias
  kSums,   // d_sinks and d_slopes
};
inline constexpr int kGenericPasses = 5;

inline constexpr int64_t kGenericRows = 16;  // queries, or keys, of one task
constexpr int64_t generic_blocks(int64_t rows) { return (rows + kGenericRows - 1) / kGenericRows; }

// How many different entries d_bias has along each axis; a block of queries counts as one.
constexpr int64_t d_bias_batches(const Params& p) { return p.d_bias.stride[0] ? p.batch : 1; }
constexpr int64_t d_bias_heads(const Params& p) { return p.d_bias.stride[1] ? p.heads_q : 1; }
constexpr int64_t d_bias_blocks(const Params& p) { return p.d_bias.stride[2] ? generic_blocks(p.seqlen_q) : 1; }

constexpr int64_t generic_backward_tasks(GenericPass pass, const Params& p) {
  const int64_t query_tasks = generic_blocks(p.seqlen_q) * p.heads_q * p.batch;
  switch (pass) {
    case GenericPass::kDelta:
      return query_tasks;
    case GenericPass::kDq:
      return p.dq.data || p.d_slopes ? query_tasks : 0;
    case GenericPass::kDkDv:
      return p.dk.data || p.dv.data ? generic_blocks(p.seqlen_k) * p.heads_k * p.batch : 0;
    case GenericPass::kDBias:
      return p.d_bias.data ? d_bias_blocks(p) * d_bias_heads(p) * d_bias_batches(p) : 0;
    case GenericPass::kSums:
      return p.d_sinks || p.d_slopes ? p.heads_q : 0;
  }
  return 0;
}

// GpuArguments::shared, in floats: delta[batch][heads_q][seqlen_q], then the parts of d_slopes
// [batch][heads_q][block of queries].
constexpr int64_t generic_delta_floats(const Params& p) { return int64_t{p.batch} * p.heads_q * p.seqlen_q; }
constexpr int64_t generic_backward_bytes(const Params& p) {
  const int64_t slopes = p.d_slopes ? generic_blocks(p.seqlen_q) * p.heads_q * p.batch : 0;
  return (generic_delta_floats(p) + slopes) * 4;
}

}  // namespace flashwave::abi

// The passes of AMD GPUs behind the main kernel of a backward that compute the gradients of bias and of ALiBi slopes
// (kernels/amd/bwd_scores.hip). A wave has a tile of queries and keys, or all tiles whose sum is one entry; a task has
// the waves of a workgroup.
#pragma once

#include <cstdint>

#include "kernels/abi/generic_backward.h"
#include "kernels/abi/params.h"

namespace flashwave::abi {

inline constexpr int64_t kScoreTile = 32;  // queries, and keys
inline constexpr int64_t kScoreWaves = 4;  // of a workgroup

constexpr int64_t score_tiles(int64_t rows) { return (rows + kScoreTile - 1) / kScoreTile; }
constexpr int64_t score_tasks(int64_t waves) { return (waves + kScoreWaves - 1) / kScoreWaves; }

// Tiles of d_bias along the queries and the keys: an axis of stride 0 has one entry, also where it has no rows.
constexpr int64_t d_bias_query_tiles(const Params& p) { return p.d_bias.stride[2] ? score_tiles(p.seqlen_q) : 1; }
constexpr int64_t d_bias_key_tiles(const Params& p) { return p.d_bias.stride[3] ? score_tiles(p.seqlen_k) : 1; }
constexpr int64_t d_bias_waves(const Params& p) {
  return d_bias_batches(p) * d_bias_heads(p) * d_bias_query_tiles(p) * d_bias_key_tiles(p);
}

// Parts of d_slopes, [batch][heads_q][tile of queries], are the last floats of the memory that the kernels share.
constexpr int64_t slope_parts(const Params& p) { return int64_t{p.batch} * p.heads_q * score_tiles(p.seqlen_q); }

}  // namespace flashwave::abi

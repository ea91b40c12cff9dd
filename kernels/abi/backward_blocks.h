// The memory that the kernels of a backward share, by blocks of tile_q queries of one head: what the pass before the
// main kernel computes of each query, and the fp32 sums of dQ, which the pass after it rounds. Nothing in it depends on
// how many rows a ragged batch has in total, so kernels find a block without a table.
//
//   header   128 bytes, 0 when the main kernel starts: what its workgroups count
//   block    lse     tile_q floats: LSE in units of log2, +inf where a row sees no key or does not exist
//            delta   tile_q floats: rowsum(d_o * o) - d_lse
//            turn    128 bytes, of which the first int counts the tiles of keys that have added to dQ, and the second
//                    (Hopper) those that have begun to
//            dq      tile_q * dim floats, in the order of the main kernel's registers (AMD GPUs: as rows, and, where
//                    workgroups have sums of their own, Schedule::splits times a part of the dim)
//
// Inside 16 rows, lse and delta are in the order in which a thread of a transposed fragment of scores meets them
// (Hopper), or in that of the rows (all others). A kernel that computes dQ by itself has blocks without sums: dim = 0.
#pragma once

#include <cstdint>

#include "kernels/abi/params.h"

namespace flashwave::abi {

inline constexpr int64_t kBackwardHeaderBytes = 128, kBackwardTurnBytes = 128;

constexpr int64_t backward_block_bytes(int64_t tile_q, int64_t dim) {
  return tile_q * 2 * 4 + kBackwardTurnBytes + tile_q * dim * 4;
}
constexpr int64_t backward_delta_at(int64_t tile_q) { return tile_q * 4; }
constexpr int64_t backward_turn_at(int64_t tile_q) { return tile_q * 8; }
constexpr int64_t backward_begun_at(int64_t tile_q) { return tile_q * 8 + 4; }
constexpr int64_t backward_dq_at(int64_t tile_q) { return tile_q * 8 + kBackwardTurnBytes; }

// Where the order of sums is fixed, waves that have the same columns of dQ add to sums of their own (AMD's data centre
// GPUs: 64 threads with 32 columns each).
constexpr int32_t backward_sums_of_tile(int32_t threads, int32_t dim) {
  return threads / 64 * 32 / (dim <= 64 ? 64 : 128);
}

// Sequence b begins with this block of queries; a block number times heads_q plus the head is the block's place.
// Sequences of a ragged batch begin at the next whole block, and each has at least one.
constexpr int64_t backward_first_block(const Params& p, int32_t b, int64_t tile_q) {
  if (p.cu_seqlens_q) return at_most(p.cu_seqlens_q[b], p.q.most) / tile_q + b;
  const int64_t blocks = (p.seqlen_q + tile_q - 1) / tile_q;
  return b * (blocks > 0 ? blocks : 1);
}
// rows: of q, in total where the batch is ragged, else of a sequence.
constexpr int64_t backward_bytes(int64_t batch, int64_t heads_q, int64_t rows, bool ragged, int64_t tile_q,
                                 int64_t dim) {
  const int64_t each = (rows + tile_q - 1) / tile_q;
  const int64_t blocks = ragged ? rows / tile_q + batch : batch * (each > 0 ? each : 1);
  return kBackwardHeaderBytes + blocks * heads_q * backward_block_bytes(tile_q, dim);
}

// Gradients of ALiBi slopes, in floats at the end of the workspace, [batch][heads_q][tile of keys][part]: a workgroup
// has up to kSlopeParts waves, and each its own sum.
inline constexpr int64_t kSlopeParts = 8;
constexpr int64_t backward_slope_floats(const Params& p, int64_t tile_k) {
  return p.batch * int64_t{p.heads_q} * ((p.seqlen_k + tile_k - 1) / tile_k) * kSlopeParts;
}

// Gradients of a bias: a workgroup has the entries of one (sequence, head, block of queries, tile of keys), where these
// are told apart, and sums over those that are not.
struct BiasBlocks {
  int64_t batches, heads, blocks, tiles;
};
constexpr BiasBlocks backward_bias_blocks(const Params& p, int64_t tile_q, int64_t tile_k) {
  const Tensor& t = p.d_bias;
  return {t.stride[0] ? p.batch : 1, t.stride[1] ? p.heads_q : 1, t.stride[2] ? (p.seqlen_q + tile_q - 1) / tile_q : 1,
          t.stride[3] ? (p.seqlen_k + tile_k - 1) / tile_k : 1};
}

// Where row r of a block has its lse and delta.
constexpr int32_t backward_row_place(int32_t r) { return (r & ~15) | (r >> 1 & 3) << 2 | (r >> 3 & 1) << 1 | (r & 1); }

}  // namespace flashwave::abi

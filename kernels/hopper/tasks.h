// Which block of queries comes next, and which keys it needs.
#pragma once

#include "kernels/common/window.h"
#include "kernels/hopper/config.h"

namespace flashwave {

// A block of queries of one head, as the producer hands it to the consumers.
struct ForwardTask {
  int32_t query, head, batch, q_row;  // query: the first, in its sequence; < 0: no task is left. q_row: of query 0
  int32_t queries, keys;              // of the sequence
  int32_t first_block, last_block;    // of keys that some query of the block sees; at least one
};
static_assert(sizeof(ForwardTask) == 32);

FW_DEVICE void store_task(uint32_t at, const ForwardTask& t) {
  store_shared4(at, make_int4(t.query, t.head, t.batch, t.q_row));
  store_shared4(at + 16, make_int4(t.queries, t.keys, t.first_block, t.last_block));
}
FW_DEVICE ForwardTask load_task(uint32_t at) {
  const int4 a = load_shared4(at), b = load_shared4(at + 16);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// The blocks of keys of one of so many parts. A part that has none takes one block past the end, of which no row sees
// any: every task has scores and an output.
FW_DEVICE void take_part(ForwardTask& t, int32_t part, int32_t parts, int32_t tile_k) {
  const int32_t blocks = t.last_block - t.first_block + 1, each = (blocks + parts - 1) / parts, end = t.last_block;
  t.first_block += part * each;
  t.last_block = min(t.first_block + each - 1, end);
  if (t.first_block > end) t.first_block = t.last_block = (t.keys + tile_k - 1) / tile_k;
}

// Row `query` of the bias of a sequence, in its map.
FW_DEVICE MapPlace bias_place(const Params& p, int32_t batch, int32_t query) {
  MapPlace at = abi::map_place(p.bias, 0, 0, batch * p.bias.stride[0]);  // it does not end with the sequence
  at.row = query;
  return at;
}

// What the rows of a task from `query` on see, `rows` or fewer.
FW_DEVICE Edges edges_of(const Params& p, const ForwardTask& t, int32_t query, int32_t rows) {
  return edges_of_block(p, int64_t{query} + t.keys - t.queries, t.keys, rows);
}

// The tiles of a ragged batch, sequence by sequence and head by head: where the one of a number is, for a warp.
struct RaggedTile {
  uint32_t tile, tiles;  // of one head of the sequence
  int32_t head, batch;   // batch < 0: there is none of this number
};
FW_DEVICE RaggedTile ragged_tile(const int32_t* cu_seqlens, int32_t total, int32_t longest, int32_t batch,
                                 int32_t heads, uint32_t rows, uint32_t index) {
  const int lane = lane_index();
  for (int first = 0; first < batch; first += kWave) {  // 32 sequences at a time, one to a lane
    const int b = first + lane;
    uint32_t mine = 0;
    if (b < batch) mine = (uint32_t(packed_rows(cu_seqlens, b, total, longest).count) + rows - 1) / rows;
    const uint32_t end = prefix_sum(mine * uint32_t(heads));
    const uint32_t here = lanes_where(index < end);
    if (here) {
      const int owner = lowest_bit(here);
      const uint32_t n = from_lane(mine, owner), last = from_lane(end, owner);
      const uint32_t rest = index - (last - n * heads), head = rest / n;
      return {rest - head * n, n, int32_t(head), first + owner};
    }
    index -= from_lane(end, kWave - 1);
  }
  return {0, 1, 0, -1};
}

// The order of the blocks of queries, for a warp. With a mask the longest go first, which evens out the ends of the
// CTAs; the heads that are gone through side by side are as many as fit the L2 cache with their keys and values.
// Sequences of different lengths come one after another, head by head.
struct TaskOrder {
  const Params& p;
  const uint32_t tile_q, heads_of_tile;
  uint32_t blocks, columns, together;  // columns: pairs of sequence and head, or heads of a tile

  FW_METHOD TaskOrder(const Params& params, int tile_queries, int tile_heads)
      : p(params), tile_q(tile_queries), heads_of_tile(tile_heads) {
    blocks = (uint32_t(p.seqlen_q) + tile_q - 1) / tile_q;
    columns = heads() * uint32_t(p.batch);
    together = 1;
    if (p.window_right < abi::kNoWindow || p.window_left < abi::kNoWindow) {
      constexpr uint64_t kBytesOfL2 = 32 << 20;
      const uint64_t row_bytes = uint64_t(p.dim_qk + p.dim_v) * 2 * p.heads_k;
      const uint64_t fit = kBytesOfL2 * p.heads_q / (row_bytes * (uint32_t(p.seqlen_k) + 1));
      while (together < columns && 2 * together <= fit) together *= 2;
    }
  }

  struct Place {
    uint32_t block;
    int32_t head, batch;  // batch < 0: there is none of this number
  };
  FW_METHOD Place at(uint32_t index) const {
    if (p.cu_seqlens_q) return at_varlen(index);
    if (index >= blocks * columns) return {0, 0, -1};
    const uint32_t group = index / (together * blocks), in_group = index - group * together * blocks;
    const uint32_t first = group * together, width = columns - first < together ? columns - first : together;
    const uint32_t step = in_group / width, column = first + in_group - step * width;
    const uint32_t batch = column / heads();
    return {blocks - 1 - step, int32_t((column - batch * heads()) * heads_of_tile), int32_t(batch)};
  }

 private:
  FW_METHOD uint32_t heads() const { return uint32_t(p.heads_q) / heads_of_tile; }
  FW_METHOD Place at_varlen(uint32_t index) const {
    const RaggedTile t = ragged_tile(p.cu_seqlens_q, p.q.most, p.seqlen_q, p.batch, heads(), tile_q, index);
    return {t.tiles - 1 - t.tile, int32_t(t.head * heads_of_tile), t.batch};
  }
};

}  // namespace flashwave

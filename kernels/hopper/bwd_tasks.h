// Which tile of keys comes next, and which blocks of queries see it.
#pragma once

#include "kernels/common/key_tiles.h"
#include "kernels/hopper/bwd_config.h"
#include "kernels/hopper/tasks.h"

namespace flashwave {

// A tile of keys of one head (of both CTAs, in a pair), as the producer hands it to the others. Query i sees the keys i
// + left_edge .. i + right_edge. Keys from `keys` on, and up to `rows`, are rows of k and v that no query sees.
struct BackwardTask {
  int32_t key, head, batch, rows;                        // key: the first, in its sequence; < 0: no task is left
  int32_t keys, first_query_block, blocks, first_block;  // blocks: of each head of the group; first_block: of the batch
  int32_t left_edge, right_edge, queries, reserved;      // entry (kernels/abi/backward_blocks.h)
};
static_assert(sizeof(BackwardTask) == 48);

FW_DEVICE BackwardTask load_backward_task(uint32_t at) {
  const int4 a = load_shared4(at), b = load_shared4(at + 16), c = load_shared4(at + 32);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
}

// Blocks of queries as a key warpgroup needs them at every step, kept beside the task: those of which all queries see
// all of its 64 keys, and those of the task.
struct BlockRange {
  int32_t all_first, all_last, first, end;
};
template <class C>
FW_DEVICE BlockRange block_range(const BackwardTask& t, int first_key) {
  const int32_t last = first_key - t.left_edge - (C::kTileQ - 1);
  return {max(first_key + 63 - t.right_edge + C::kTileQ - 1, 0) / C::kTileQ,
          first_key + 64 > t.keys || last < 0 ? -1 : last / C::kTileQ, t.first_query_block,
          t.first_query_block + t.blocks};
}

// The tile that begins with `key`. The blocks of queries that see some key of it are those that a query block's own
// keys say (turn_of): both follow from the same two edges.
template <class C>
FW_DEVICE BackwardTask backward_task(const Params& p, int32_t key, int32_t head, int32_t batch) {
  const Sequence seq = sequence_of(p, batch);
  const int64_t shift = seq.keys - seq.queries;
  BackwardTask t;
  t.key = key, t.head = head, t.batch = batch, t.rows = stored_rows(p, batch) - left_pad(p, batch);
  t.keys = int32_t(seq.keys), t.queries = int32_t(seq.queries);
  t.left_edge = edge(shift - p.window_left), t.right_edge = edge(shift + p.window_right);
  t.first_block = int32_t(abi::backward_first_block(p, batch, C::kTileQ));
  const int32_t last_key = min(key + C::kPairKeys, t.keys) - 1;
  const int32_t first = max(key - t.right_edge, 0) / C::kTileQ;
  const int32_t last_query = min(int64_t{last_key} - t.left_edge, int64_t{t.queries - 1});
  t.first_query_block = first;
  t.blocks = last_key < key || last_query < 0 ? 0 : max(last_query / C::kTileQ + 1 - first, 0);
  t.reserved = 0;
  return t;
}

// The order of the tiles, for a warp. Where keys are hidden from the queries before them, the first tiles are the
// longest and go first; the heads that are gone through side by side are as many as fit the L2 cache with their
// queries. But when sums are made in order, the last tile goes first, since it is the first to add to each block of
// queries it shares with others (turn_of): a tile then only waits for tiles that were begun before it.
struct KeyTileOrder {
  const Params& p;
  const uint32_t tile_keys;
  const bool backwards;
  uint32_t tiles, columns, together;  // columns: pairs of sequence and head

  FW_METHOD KeyTileOrder(const Params& params, int keys, bool in_order)
      : p(params), tile_keys(keys), backwards(in_order && params.window_right < abi::kNoWindow) {
    tiles = (uint32_t(p.seqlen_k) + tile_keys - 1) / tile_keys;
    columns = uint32_t(p.heads_k) * uint32_t(p.batch);
    together = 1;
    if (p.window_right < abi::kNoWindow) {
      constexpr uint64_t kBytesOfL2 = 40 << 20;
      const uint64_t bytes = uint64_t(p.dim_qk * 6 + p.dim_v * 2) * uint32_t(p.seqlen_q) * (p.heads_q / p.heads_k);
      while (together < columns && 2 * together * bytes <= kBytesOfL2) together *= 2;
    }
  }

  struct Place {
    int32_t key, head, batch;  // batch < 0: there is none of this number
  };
  FW_METHOD Place at(uint32_t index) const {
    if (p.cu_seqlens_k) return at_varlen(index);
    if (index >= tiles * columns) return {0, 0, -1};
    const uint32_t group = index / (together * tiles), in_group = index - group * together * tiles;
    const uint32_t first = group * together, width = min(columns - first, together);
    const uint32_t step = in_group / width, column = first + in_group - step * width;
    const uint32_t batch = column / uint32_t(p.heads_k);
    return place(step, tiles, int32_t(column - batch * p.heads_k), int32_t(batch));
  }

 private:
  FW_METHOD Place place(uint32_t step, uint32_t of, int32_t head, int32_t batch) const {
    return {int32_t((backwards ? of - 1 - step : step) * tile_keys), head, batch};
  }
  FW_METHOD Place at_varlen(uint32_t index) const {
    const RaggedTile t = ragged_tile(p.cu_seqlens_k, p.k.most, p.seqlen_k, p.batch, p.heads_k, tile_keys, index);
    return place(t.tile, t.tiles, t.head, t.batch);
  }
};

// How many tiles of keys add to a block of queries before this one, when they do so in order.
template <class C>
FW_DEVICE int turn_of(const Params& p, const BackwardTask& t, int query_block) {
  const int tile = t.key / C::kPairKeys, query = query_block * C::kTileQ;
  if (p.window_right < abi::kNoWindow) {
    const int last_key = min(int64_t{query} + C::kTileQ - 1 + t.right_edge, int64_t{t.keys - 1});
    return last_key / C::kPairKeys - tile;
  }
  return tile - max(query + t.left_edge, 0) / C::kPairKeys;
}

}  // namespace flashwave

// A block of queries and a tile of keys of one head, as every kernel of the backward meets them: on their way to shared
// memory, and there from products to weights and the gradients of scores.
#pragma once

#include "kernels/ampere/bwd_config.h"
#include "kernels/ampere/bwd_modify.h"
#include "kernels/ampere/bwd_tile.h"
#include "kernels/common/key_tiles.h"

namespace flashwave {

// T: element type; C: BackwardConfig; kModified: with score modifiers and dropout, and tensors at any address.
template <class T, class C, bool kModified>
struct BackwardBlock {
  using Layout = typename C::Layout;
  using ScoreGrid = typename C::ScoreGrid;
  static constexpr int64_t kBlockBytes = abi::backward_block_bytes(C::kTileQ, C::kDim);

  const Params& p;
  char* const workspace;
  const uint32_t shared;
  const int thread, lane, warp;

  int batch, head_k, first_key;
  int queries, keys;    // of the sequence
  QueryTiles range;     // that see the tile
  const char *q, *d_o;  // query 0 of head 0
  int first_block;      // of the sequence, in the workspace
  bool vectors;         // everything is at multiples of 16 bytes

  FW_METHOD BackwardBlock(const GpuArguments& args, uint32_t shared_memory)
      : p(args.params),
        workspace(args.shared),
        shared(shared_memory),
        thread(thread_index()),
        lane(thread_index() % kWave),
        warp(thread_index() / kWave) {
    if constexpr (kModified)
      vectors = has_vectors(p.q, p.dim_qk) && has_vectors(p.k, p.dim_qk) && has_vectors(p.v, p.dim_v) &&
                has_vectors(p.d_o, p.dim_v) && has_vectors(p.dk, p.dim_qk) && has_vectors(p.dv, p.dim_v);
  }

  FW_METHOD void start(const Sequence& seq) {
    queries = int(seq.queries), keys = int(seq.keys);
    q = static_cast<const char*>(p.q.data) + query_offset(p.q, seq, 0, 0) * 2;
    d_o = static_cast<const char*>(p.d_o.data) + query_offset(p.d_o, seq, 0, 0) * 2;
    first_block = int(abi::backward_first_block(p, batch, C::kTileQ));
  }
  // Asked for where it is needed: registers are scarce.
  FW_METHOD Edges edges() const { return edges_of(p, {batch, 0, 0, 0, 0, queries, keys}); }
  FW_METHOD void choose_queries() {
    const int end = first_key + C::kTileK < keys ? first_key + C::kTileK : keys;
    range = query_tiles(edges(), queries, first_key, end, C::kTileQ);
    if (end < first_key + C::kTileK) range.all_end = range.all_first;  // rows that are no keys are always masked
  }

  // As key_offset where no block_table is: without the division, which is a call.
  FW_METHOD int64_t row_offset(const abi::Tensor& t, const Sequence& seq, int row) const {
    return seq.k_batch * t.stride[0] + (seq.k_row + row) * t.stride[1] + head_k * t.stride[2];
  }

  // -------------------------------------------------------------------------------------------------- to shared memory
  using Share = RowShare<C::kThreads, C::kDim>;
  FW_METHOD void load_keys(const abi::Tensor& t, const Sequence& seq, int dim, int to) {
    const Share mine(thread);
    const char* const from =
        static_cast<const char*>(t.data) + row_offset(t, seq, first_key + mine.row) * 2 + mine.chunk * 16;
    const int64_t step = Share::kRows * t.stride[1] * 2;
    load_rows<C::kTileK, kModified>(mine, shared + to, keys - first_key, dim, vectors,
                                    [&](int i) { return from + i * step; });
  }
  FW_METHOD void load_queries(const abi::Tensor& t, const char* from, int dim, int block, int head, uint32_t to) {
    const Share mine(thread);
    const int first = block * C::kTileQ;
    from += ((first + mine.row) * t.stride[1] + head * t.stride[2]) * 2 + mine.chunk * 16;
    const int64_t step = Share::kRows * t.stride[1] * 2;
    load_rows<C::kTileQ, kModified>(mine, to, queries - first, dim, vectors, [&](int i) { return from + i * step; });
  }
  FW_METHOD char* block_data(int block, int head) const {
    return workspace + abi::kBackwardHeaderBytes + (int64_t{first_block + block} * p.heads_q + head) * kBlockBytes;
  }
  // Q, dO and the numbers of a block.
  FW_METHOD void load_block(int block, int head) {
    load_queries(p.q, q, p.dim_qk, block, head, shared + C::kQ);
    load_queries(p.d_o, d_o, p.dim_v, block, head, shared + C::kDo);
    if (thread < C::kNumberBytes / 16) {
      const char* const from = block_data(block, head) + thread * 16;
      if constexpr (kAsyncCopies) {
        copy_async(shared + C::kNumbers + thread * 16, from, true);
      } else {
        store_shared(shared + C::kNumbers + thread * 16, *reinterpret_cast<const uint4*>(from));
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------------ scores
  // This warp's part of P, of which dropped weights are 0, and of the gradients of products. use(ds, place, r): takes
  // the gradients of scores.
  template <class Use>
  FW_METHOD void weights_and_gradients(int block, int head, typename ScoreGrid::Sums& s, typename ScoreGrid::Sums& dp,
                                       const Use& use) {
    const int first_row = ScoreGrid::first_row(warp), first_column = ScoreGrid::first_column(warp);
    Weights<ScoreGrid::kColumnTiles, kModified> weights[ScoreGrid::kRowTiles];
    clear(s);
    multiply<T, C::kDim>(s, FirstByRows<Layout>(shared + C::kQ, first_row, lane),
                         SecondByRows<Layout>(shared + C::kK, first_column, lane));
    const bool masked = block < range.all_first || block >= range.all_end;
    const auto place_of = [&](int r) {
      return TilePlace{
          batch,   head, block * C::kTileQ + first_row + r * 16 + lane / 4, first_key + first_column + (lane & 3) * 2,
          queries, keys};
    };
    RowNumbers row[ScoreGrid::kRowTiles];
    FW_UNROLL for (int r = 0; r < ScoreGrid::kRowTiles; ++r) {
      const uint32_t numbers = shared + C::kNumbers + (first_row + r * 16 + lane / 4) * 4;
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        row[r].lse[h] = load_shared_float(numbers + h * 32);
        row[r].delta[h] = load_shared_float(numbers + C::kTileQ * 4 + h * 32);
      }
      const TilePlace at = place_of(r);
      weights[r].weigh(s[r], p, at, row[r], [&](auto& tile) {
        if (!masked) return;
        const Edges seen = edges();
        const int shift = at.query - at.key;
        mask_scores(tile, shift + seen.left, shift + seen.right + 1, keys - at.key);
      });
    }
    clear(dp);
    multiply<T, C::kDim>(dp, FirstByRows<Layout>(shared + C::kDo, first_row, lane),
                         SecondByRows<Layout>(shared + C::kV, first_column, lane));
    FW_UNROLL for (int r = 0; r < ScoreGrid::kRowTiles; ++r) {
      weights[r].differentiate(dp[r], s[r], p, row[r]);
      use(dp[r], place_of(r), r);
      weights[r].through_cap(dp[r], p);
      weights[r].drop(s[r]);
    }
  }
};

}  // namespace flashwave

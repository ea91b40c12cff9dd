// Attention's gradients by mma.sync. A CTA owns a tile of keys of one key head and goes along the blocks of queries that
// see it, head by head of its group:
//
//   S = Q K^T    P = 2^(S c - lse)    dV += P^T dO
//   dP = dO V^T  dS = P (dP - delta)  dK += dS^T Q    dQ += dS K
//
// All warps share each product (bwd_config.h): dK and dV stay in their registers, P and dS go through shared memory,
// where the products that sum over queries or keys find them, and dQ is added to fp32 sums in the L2 cache.
//
// Sums in order (Schedule::in_order): each block of queries has a counter of the tiles that have added to it, and a
// tile waits for its turn; the same bits whatever the order of the CTAs. A CTA takes its tile by number when it starts,
// and the numbers go in the order of the turns: whom it waits for has started.
//
// Small kernels frame this one (bwd_frame.h).
#pragma once

#include "kernels/ampere/bwd_config.h"
#include "kernels/ampere/bwd_modify.h"
#include "kernels/ampere/bwd_tile.h"
#include "kernels/common/key_tiles.h"

namespace flashwave {

// T: element type; C: BackwardConfig; kGeneral: with score modifiers and dropout, tensors at any address, gradients in
// fp32.
template <class T, class C, bool kGeneral>
struct Backward {
  using Layout = typename C::Layout;
  using ScoreLayout = typename C::ScoreLayout;
  using ScoreGrid = typename C::ScoreGrid;
  using KeyGrid = typename C::KeyGrid;
  using QueryGrid = typename C::QueryGrid;
  static constexpr int64_t kBlockBytes = abi::backward_block_bytes(C::kTileQ, C::kDim);

  const Params& p;
  char* const workspace;
  const bool in_order;
  const uint32_t shared;
  const int thread, lane, warp;

  int batch, head_k, first_key;
  int queries, keys;  // of the sequence
  Edges edges;
  QueryTiles range;          // that see the tile
  const char *q, *d_o;       // query 0 of head 0
  int64_t first_block;       // of the sequence, in the workspace
  bool vectors;              // everything is at multiples of 16 bytes
  int block, head;           // of queries: that which is computed
  int next_block, next_head; // and loaded
  int stage = 0;

  typename KeyGrid::Sums dk, dv;

  FW_METHOD Backward(const GpuArguments& args, uint32_t shared_memory)
      : p(args.params),
        workspace(args.shared),
        in_order(args.schedule.in_order != 0),
        shared(shared_memory),
        thread(thread_index()),
        lane(thread_index() % kWave),
        warp(thread_index() / kWave) {}

  // ------------------------------------------------------------------------------------------------------------ tasks
  // Where keys are hidden from the queries before them, the first tiles are the longest and go first. But in order, the
  // last one goes first, since it is the first to add to each block of queries that it shares with others.
  FW_METHOD bool backwards() const { return in_order && p.window_right < abi::kNoWindow; }
  FW_METHOD uint32_t take_number() {
    if (!in_order) return uint32_t(task_index());
    if (thread == 0) store_shared(shared, uint32_t(atomicAdd(reinterpret_cast<unsigned*>(workspace), 1u)));
    workgroup_barrier();
    const uint32_t number = load_shared(shared).x;
    workgroup_barrier();
    return number;
  }
  FW_METHOD void run(const Schedule& schedule) {
    if (task_index() >= schedule.tasks) return;
    const uint32_t task = take_number(), tiles = uint32_t(p.seqlen_k + C::kTileK - 1) / C::kTileK;
    const uint32_t of_head = tiles > 0 ? task / tiles : p.batch * p.heads_k;
    batch = int(of_head / uint32_t(p.heads_k)), head_k = int(of_head - uint32_t(batch) * uint32_t(p.heads_k));
    if (batch >= p.batch) return;
    const uint32_t tile = task - of_head * tiles;
    first_key = int(backwards() ? tiles - 1 - tile : tile) * C::kTileK;
    const Sequence seq = sequence_of(p, batch);
    queries = int(seq.queries), keys = int(seq.keys);
    edges = edges_of(p, seq);
    const int last_key = first_key + C::kTileK < keys ? first_key + C::kTileK : keys;
    range = query_tiles(edges, queries, first_key, last_key, C::kTileQ);
    if (last_key < first_key + C::kTileK) range.all_end = range.all_first;  // rows that are no keys are always masked
    if constexpr (kGeneral)
      vectors = has_vectors(p.q, p.dim_qk) && has_vectors(p.k, p.dim_qk) && has_vectors(p.v, p.dim_v) &&
                has_vectors(p.d_o, p.dim_v) && has_vectors(p.dk, p.dim_qk) && has_vectors(p.dv, p.dim_v);
    clear(dk);
    clear(dv);
    if (range.first < range.end) walk(seq);
    store(seq);
  }

  FW_METHOD void walk(const Sequence& seq) {
    const int group = p.heads_q / p.heads_k;
    q = static_cast<const char*>(p.q.data) + query_offset(p.q, seq, 0, 0) * 2;
    d_o = static_cast<const char*>(p.d_o.data) + query_offset(p.d_o, seq, 0, 0) * 2;
    first_block = abi::backward_first_block(p, batch, C::kTileQ);
    load_keys(p.k, seq, p.dim_qk, C::kK);
    load_keys(p.v, seq, p.dim_v, C::kV);
    next_block = range.first, next_head = head_k * group;
    load_next();
    FW_NO_UNROLL for (int left = (range.end - range.first) * group; left > 0; --left) {
      step(left > 1);
    }
  }

  // -------------------------------------------------------------------------------------------------- to shared memory
  using Share = RowShare<C::kThreads, C::kDim>;
  FW_METHOD void load_keys(const abi::Tensor& t, const Sequence& seq, int dim, int to) {
    const Share mine(thread);
    const char* const from = static_cast<const char*>(t.data) +
                             key_offset(p, t, seq, first_key + mine.row, head_k) * 2 + mine.chunk * 16;
    const int64_t step = Share::kRows * t.stride[1] * 2;
    load_rows<C::kTileK, kGeneral>(mine, shared + to, keys - first_key, dim, vectors,
                                   [&](int i) { return from + i * step; });
  }
  FW_METHOD void load_queries(const abi::Tensor& t, const char* from, int dim, uint32_t to) {
    const Share mine(thread);
    const int first = next_block * C::kTileQ;
    from += ((first + mine.row) * t.stride[1] + next_head * t.stride[2]) * 2 + mine.chunk * 16;
    const int64_t step = Share::kRows * t.stride[1] * 2;
    load_rows<C::kTileQ, kGeneral>(mine, to, queries - first, dim, vectors, [&](int i) { return from + i * step; });
  }
  FW_METHOD char* block_data(int which, int of_head) const {
    return workspace + abi::kBackwardHeaderBytes + ((first_block + which) * p.heads_q + of_head) * kBlockBytes;
  }
  // The next block to its stage; with one stage alone, that which is computed.
  FW_METHOD void load_next() {
    const uint32_t to = shared + C::kStage + (C::kStages == 1 ? 0 : stage) * C::kStageBytes;
    load_queries(p.q, q, p.dim_qk, to + C::kQ);
    load_queries(p.d_o, d_o, p.dim_v, to + C::kDo);
    if (thread < C::kNumberBytes / 16) {
      const char* const from = block_data(next_block, next_head) + thread * 16;
      if constexpr (kAsyncCopies) {
        copy_async(to + C::kNumbers + thread * 16, from, true);
      } else {
        store_shared(to + C::kNumbers + thread * 16, *reinterpret_cast<const uint4*>(from));
      }
    }
    commit_copies();
  }
  FW_METHOD void advance() {
    block = next_block, head = next_head;
    if (++next_block == range.end) next_block = range.first, ++next_head;
  }

  // -------------------------------------------------------------------------------------------------- a block of queries
  FW_METHOD void step(bool more) {
    const uint32_t here = shared + C::kStage + (C::kStages == 1 ? 0 : stage) * C::kStageBytes;
    advance();
    wait_copies<0>();
    workgroup_barrier();  // the block is there, and nobody needs what was there before
    if constexpr (C::kStages == 2) {
      stage ^= 1;
      if (more) load_next();
    }
    weights_and_gradients(here);
    workgroup_barrier();
    multiply<T, C::kTileQ>(dv, FirstByColumns<ScoreLayout>(shared + C::kP, KeyGrid::first_row(warp), lane),
                           SecondByColumns<Layout>(here + C::kDo, KeyGrid::first_column(warp), lane));
    multiply<T, C::kTileQ>(dk, FirstByColumns<ScoreLayout>(shared + C::kDs, KeyGrid::first_row(warp), lane),
                           SecondByColumns<Layout>(here + C::kQ, KeyGrid::first_column(warp), lane));
    if constexpr (C::kStages == 1) {
      workgroup_barrier();
      if (more) load_next();
    }
    if (p.dq.data) add_query_gradients();
  }

  // P and dS to shared memory.
  FW_METHOD void weights_and_gradients(uint32_t here) {
    const int first_row = ScoreGrid::first_row(warp), first_column = ScoreGrid::first_column(warp);
    typename ScoreGrid::Sums s, dp;
    Weights<ScoreGrid::kColumnTiles, kGeneral> weights[ScoreGrid::kRowTiles];
    clear(s);
    multiply<T, C::kDim>(s, FirstByRows<Layout>(here + C::kQ, first_row, lane),
                         SecondByRows<Layout>(shared + C::kK, first_column, lane));
    const bool masked = block < range.all_first || block >= range.all_end;
    RowNumbers row[ScoreGrid::kRowTiles];
    FW_UNROLL for (int r = 0; r < ScoreGrid::kRowTiles; ++r) {
      const uint32_t numbers = here + C::kNumbers + (first_row + r * 16 + lane / 4) * 4;
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        row[r].lse[h] = load_shared_float(numbers + h * 32);
        row[r].delta[h] = load_shared_float(numbers + C::kTileQ * 4 + h * 32);
      }
      const TilePlace at = {batch,
                            head,
                            block * C::kTileQ + first_row + r * 16 + lane / 4,
                            first_key + first_column + (lane & 3) * 2,
                            queries,
                            keys};
      weights[r].weigh(s[r], p, at, row[r], [&](auto& tile) {
        if (!masked) return;
        const int shift = at.query - at.key;
        mask_scores(tile, shift + edges.left, shift + edges.right + 1, keys - at.key);
      });
    }
    clear(dp);
    multiply<T, C::kDim>(dp, FirstByRows<Layout>(here + C::kDo, first_row, lane),
                         SecondByRows<Layout>(shared + C::kV, first_column, lane));
    FW_UNROLL for (int r = 0; r < ScoreGrid::kRowTiles; ++r) {
      weights[r].differentiate(dp[r], s[r], p, row[r]);
      weights[r].drop(s[r]);
    }
    store_tile<T, ScoreLayout>(s, shared + C::kP, first_row, first_column, lane);
    store_tile<T, ScoreLayout>(dp, shared + C::kDs, first_row, first_column, lane);
  }

  // How many tiles of keys add to the block before this one, when they do so in order.
  FW_METHOD int turn() const {
    const int tile = first_key / C::kTileK, query = block * C::kTileQ;
    if (backwards()) {
      const int64_t last = int64_t{query} + C::kTileQ - 1 + edges.right;
      return int(last < keys - 1 ? last : keys - 1) / C::kTileK - tile;
    }
    return tile - (query + edges.left > 0 ? query + edges.left : 0) / C::kTileK;
  }

  // A sum is in the place of its accumulator: by 16 x 8 matrices, then registers, then lanes.
  FW_METHOD void add_query_gradients() {
    const int first_row = QueryGrid::first_row(warp), first_column = QueryGrid::first_column(warp);
    typename QueryGrid::Sums dq;
    clear(dq);
    multiply<T, C::kTileK>(dq, FirstByRows<ScoreLayout>(shared + C::kDs, first_row, lane),
                           SecondByColumns<Layout>(shared + C::kK, first_column, lane));
    char* const data = block_data(block, head);
    int* const counter = reinterpret_cast<int*>(data + abi::backward_turn_at(C::kTileQ));
    if (in_order) {
      if (thread == 0) wait_until_equal(counter, turn());
      workgroup_barrier();
    }
    constexpr int kAcross = C::kDim / 8;
    float* const to = reinterpret_cast<float*>(data + abi::backward_dq_at(C::kTileQ)) +
                      (first_row / 16 * kAcross + first_column / 8) * (4 * kWave) + lane;
    static_assert(QueryGrid::kBusy == C::kWarps, "each adds its own");
    FW_UNROLL for (int r = 0; r < QueryGrid::kRowTiles; ++r) {
      FW_UNROLL for (int n = 0; n < QueryGrid::kColumnTiles; ++n) {
        FW_UNROLL for (int i = 0; i < 4; ++i) add_to_memory(to + ((r * kAcross + n) * 4 + i) * kWave, dq[r][n][i]);
      }
    }
    if (in_order) {
      __threadfence();
      workgroup_barrier();
      if (thread == 0) raise(counter);
    }
  }

  // ----------------------------------------------------------------------------------------------------------- the end
  // Rows of k and v that are no keys have gradients of 0; those of the left pad come with the first tile.
  FW_METHOD void store(const Sequence& seq) {
    const int rows = stored_rows(p, batch) - left_pad(p, batch) - first_key;
    if (p.leftpad_k && first_key == 0) {
      const int pad = left_pad(p, batch), count = pad + (rows < 0 ? rows : 0);
      clear_rows(p.dk, seq, -pad, count, p.dim_qk);
      clear_rows(p.dv, seq, -pad, count, p.dim_v);
    }
    const float scale = kGeneral ? 1.f / (1.f - p.dropout_p) : 1.f;
    store_rows(p.dk, seq, dk, rows, p.dim_qk, C::kK, p.softmax_scale);
    store_rows(p.dv, seq, dv, rows, p.dim_v, C::kV, scale);
  }

  FW_METHOD void clear_rows(const abi::Tensor& t, const Sequence& seq, int first, int count, int dim) const {
    if (!t.data) return;
    FW_NO_UNROLL for (int i = thread; i < count * dim; i += C::kThreads) {
      const int64_t at = key_offset(p, t, seq, first + i / dim, head_k) + i % dim;
      if (t.dtype == abi::kF32) {
        static_cast<float*>(t.data)[at] = 0.f;
      } else {
        static_cast<uint16_t*>(t.data)[at] = 0;
      }
    }
  }

  // Through the tile at `stage_at`, which nobody needs any more, so that a thread stores 16 bytes.
  FW_METHOD void store_rows(const abi::Tensor& t, const Sequence& seq, const typename KeyGrid::Sums& sums, int rows,
                            int dim, int stage_at, float factor) const {
    if (!t.data) return;
    const int first_row = KeyGrid::first_row(warp), first_column = KeyGrid::first_column(warp);
    if (kGeneral && t.dtype == abi::kF32) {
      FW_UNROLL for (int r = 0; r < KeyGrid::kRowTiles; ++r) {
        FW_UNROLL for (int h = 0; h < 2; ++h) {
          const int row = first_row + r * 16 + h * 8 + lane / 4;
          float* const to = static_cast<float*>(t.data) + key_offset(p, t, seq, first_key + row, head_k);
          FW_UNROLL for (int n = 0; n < KeyGrid::kColumnTiles; ++n) {
            FW_UNROLL for (int e = 0; e < 2; ++e) {
              const int column = first_column + n * 8 + (lane & 3) * 2 + e;
              if (row < rows && column < dim) to[column] = sums[r][n][2 * h + e] * factor;
            }
          }
        }
      }
      return;
    }
    workgroup_barrier();
    store_tile<T, Layout>(sums, shared + stage_at, first_row, first_column, lane, factor);
    workgroup_barrier();
    FW_NO_UNROLL for (int i = thread; i < C::kTileK * (C::kDim / 8); i += C::kThreads) {
      const int row = i / (C::kDim / 8), chunk = i % (C::kDim / 8), column = chunk * 8;
      if (row >= rows || column >= dim) continue;
      const uint4 x = load_shared(shared + stage_at + Layout::offset(row, chunk));
      uint16_t* const to = static_cast<uint16_t*>(t.data) + key_offset(p, t, seq, first_key + row, head_k) + column;
      if (!kGeneral || vectors) {
        *reinterpret_cast<uint4*>(to) = x;
      } else {
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
        FW_UNROLL for (int e = 0; e < 8; ++e) {
          if (column + e < dim) to[e] = uint16_t(words[e / 2] >> e % 2 * 16);
        }
      }
    }
  }
};

}  // namespace flashwave

// Attention's gradients by mma.sync. A CTA owns a tile of keys of one key head and goes along the blocks of queries
// that see it, head by head of its group:
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

#include "kernels/ampere/bwd_block.h"

namespace flashwave {

template <class T, class C, bool kModified>
struct Backward : BackwardBlock<T, C, kModified> {
  using Base = BackwardBlock<T, C, kModified>;
  using Base::batch, Base::block_data, Base::first_key, Base::head_k, Base::keys, Base::lane, Base::p, Base::range,
      Base::shared, Base::thread, Base::vectors, Base::warp, Base::workspace;
  using Layout = typename C::Layout;
  using ScoreLayout = typename C::ScoreLayout;
  using ScoreGrid = typename C::ScoreGrid;
  using KeyGrid = typename C::KeyGrid;
  using QueryGrid = typename C::QueryGrid;

  const Schedule& schedule;
  int block, head;            // of queries: that which is computed
  int next_block, next_head;  // and loaded
  float d_slope = 0.f;
  typename KeyGrid::Sums dk, dv;

  FW_METHOD Backward(const GpuArguments& args, uint32_t shared_memory)
      : Base(args, shared_memory), schedule(args.schedule) {}

  // ------------------------------------------------------------------------------------------------------------ tasks
  // Where keys are hidden from the queries before them, the first tiles are the longest and go first. But in order, the
  // last one goes first, since it is the first to add to each block of queries that it shares with others.
  FW_METHOD bool in_order() const { return schedule.in_order != 0; }
  FW_METHOD bool backwards() const { return in_order() && p.window_right < abi::kNoWindow; }
  FW_METHOD uint32_t take_number() {
    if (!in_order()) return uint32_t(task_index());
    if (thread == 0) store_shared(shared, fetch_add(reinterpret_cast<uint32_t*>(workspace), 1));
    workgroup_barrier();
    const uint32_t number = load_shared(shared).x;
    workgroup_barrier();
    return number;
  }
  FW_METHOD void run() {
    if (task_index() >= schedule.tasks || p.seqlen_k == 0) return;
    const uint32_t task = take_number(), tiles = uint32_t(p.seqlen_k + C::kTileK - 1) / C::kTileK;
    const uint32_t column = task / tiles, tile = task - column * tiles;
    batch = int(column / uint32_t(p.heads_k)), head_k = int(column - uint32_t(batch) * uint32_t(p.heads_k));
    first_key = int(backwards() ? tiles - 1 - tile : tile) * C::kTileK;
    const Sequence seq = sequence_of(p, batch);
    this->start(seq);
    this->choose_queries();
    clear(dk);
    clear(dv);
    const int group = p.heads_q / p.heads_k;
    next_block = range.first, next_head = head = head_k * group;
    if (range.first < range.end) {
      this->load_keys(p.k, seq, p.dim_qk, C::kK);
      this->load_keys(p.v, seq, p.dim_v, C::kV);
      load_next();
      FW_NO_UNROLL for (int left = (range.end - range.first) * group; left > 0; --left) step(left > 1);
    } else if (kModified && p.d_slopes) {
      for (; head < head_k * group + group; ++head) store_slope();
    }
    store();
  }

  FW_METHOD void load_next() {
    this->load_block(next_block, next_head);
    commit_copies();
  }

  // ----------------------------------------------------------------------------------------------- a block of queries
  FW_METHOD void step(bool more) {
    block = next_block, head = next_head;
    if (++next_block == range.end) next_block = range.first, ++next_head;
    wait_copies<0>();
    workgroup_barrier();  // the block is there, and nobody needs the P and dS of the one before
    share_weights();
    workgroup_barrier();
    multiply<T, C::kTileQ>(dv, FirstByColumns<ScoreLayout>(shared + C::kP, KeyGrid::first_row(warp), lane),
                           SecondByColumns<Layout>(shared + C::kDo, KeyGrid::first_column(warp), lane));
    multiply<T, C::kTileQ>(dk, FirstByColumns<ScoreLayout>(shared + C::kDs, KeyGrid::first_row(warp), lane),
                           SecondByColumns<Layout>(shared + C::kQ, KeyGrid::first_column(warp), lane));
    workgroup_barrier();
    if (more) load_next();  // arrives under the last product
    if (p.dq.data) add_query_gradients();
  }

  // P and dS to shared memory.
  FW_METHOD void share_weights() {
    typename ScoreGrid::Sums s, dp;
    this->weights_and_gradients(block, head, s, dp, [&](const auto& ds, const TilePlace& at, int) {
      if (kModified && p.d_slopes) d_slope += slope_gradient(ds, at);
    });
    if (kModified && p.d_slopes && next_block == range.first) store_slope();  // the last of its head
    const int first_row = ScoreGrid::first_row(warp), first_column = ScoreGrid::first_column(warp);
    store_tile<T, ScoreLayout>(s, shared + C::kP, first_row, first_column, lane);
    store_tile<T, ScoreLayout>(dp, shared + C::kDs, first_row, first_column, lane);
  }

  // What the tile gives to the gradient of a head's slope, one number for each warp.
  FW_METHOD void store_slope() {
    const float sum = wave_reduce(d_slope, [](float a, float b) { return a + b; });
    d_slope = 0.f;
    const int64_t tiles = (p.seqlen_k + C::kTileK - 1) / C::kTileK;
    float* const parts = reinterpret_cast<float*>(workspace + schedule.workspace_bytes) -
                         abi::backward_slope_floats(p, C::kTileK) +
                         ((int64_t{batch} * p.heads_q + head) * tiles + first_key / C::kTileK) * abi::kSlopeParts;
    static_assert(C::kWarps <= abi::kSlopeParts);
    if (lane == 0) parts[warp] = warp < ScoreGrid::kBusy ? sum : 0.f;
    for (int part = C::kWarps + thread; part < abi::kSlopeParts; part += C::kThreads) parts[part] = 0.f;
  }

  // How many tiles of keys add to the block before this one, when they do so in order.
  FW_METHOD int turn() const {
    const int tile = first_key / C::kTileK, query = block * C::kTileQ;
    if (backwards()) {
      const int64_t last = int64_t{query} + C::kTileQ - 1 + this->edges().right;
      return int(last < keys - 1 ? last : keys - 1) / C::kTileK - tile;
    }
    const int first = query + this->edges().left;
    return tile - (first > 0 ? first : 0) / C::kTileK;
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
    if (in_order()) {
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
    if (in_order()) {
      memory_fence();
      workgroup_barrier();
      if (thread == 0) raise(counter);
    }
  }

  // ----------------------------------------------------------------------------------------------------------- the end
  // Rows of k and v that are no keys have gradients of 0; those of the left pad come with the first tile.
  FW_METHOD void store() {
    const Sequence seq = sequence_of(p, here(batch));  // cheaper than registers that hold it through the loop
    const int rows = stored_rows(p, batch) - left_pad(p, batch) - first_key;
    if (p.leftpad_k && first_key == 0) {
      const int pad = left_pad(p, batch), count = pad + (rows < 0 ? rows : 0);
      clear_rows(p.dk, seq, -pad, count, p.dim_qk);
      clear_rows(p.dv, seq, -pad, count, p.dim_v);
    }
    const float scale = kModified ? 1.f / (1.f - p.dropout_p) : 1.f;
    store_rows(p.dk, seq, dk, rows, p.dim_qk, C::kK, p.softmax_scale);
    store_rows(p.dv, seq, dv, rows, p.dim_v, C::kV, scale);
  }

  FW_METHOD void clear_rows(const abi::Tensor& t, const Sequence& seq, int first, int count, int dim) const {
    if (!t.data) return;
    FW_NO_UNROLL for (int i = thread; i < count * dim; i += C::kThreads) {
      const int64_t at = this->row_offset(t, seq, first + i / dim) + i % dim;
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
    if (t.dtype == abi::kF32) {
      FW_UNROLL for (int r = 0; r < KeyGrid::kRowTiles; ++r) {
        FW_UNROLL for (int h = 0; h < 2; ++h) {
          const int row = first_row + r * 16 + h * 8 + lane / 4;
          float* const to = static_cast<float*>(t.data) + this->row_offset(t, seq, first_key + row);
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
      uint16_t* const to = static_cast<uint16_t*>(t.data) + this->row_offset(t, seq, first_key + row) + column;
      if (!kModified || vectors) {
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

// The gradient of a bias, by a kernel of its own after that of the others. A CTA has the entries of one (sequence,
// head, block of queries, tile of keys), where these are told apart, computes the gradients of their scores again, and
// sums over what shares an entry: no atomics, always the same bits.
#pragma once

#include "kernels/ampere/bwd_block.h"

namespace flashwave {

template <class T, class C>
struct BiasGradient : BackwardBlock<T, C, true> {
  using Base = BackwardBlock<T, C, true>;
  using Base::batch, Base::first_key, Base::head_k, Base::lane, Base::p, Base::range, Base::shared, Base::thread,
      Base::warp;
  using ScoreGrid = typename C::ScoreGrid;
  static constexpr int kPitch = C::kTileK + 1;  // of the sums in shared memory, in floats
  static_assert(C::kTileQ * kPitch * 4 <= C::kNumbers);

  typename ScoreGrid::Sums sum;

  FW_METHOD BiasGradient(const GpuArguments& args, uint32_t shared_memory) : Base(args, shared_memory) {}

  // The entries `first` .. `end` - 1 of an axis that share one of d_bias: one if it tells them apart.
  struct Span {
    int first, end;
    FW_METHOD Span(int64_t number, bool apart, int64_t all) : first(int(number)), end(int(apart ? number + 1 : all)) {}
  };

  FW_METHOD void run() {
    const abi::Tensor& t = p.d_bias;
    const abi::BiasBlocks n = abi::backward_bias_blocks(p, C::kTileQ, C::kTileK);
    const int64_t task = task_index(), of_tile = task / n.tiles, of_block = of_tile / n.blocks;
    const Span tiles(task - of_tile * n.tiles, t.stride[3] != 0, (p.seqlen_k + C::kTileK - 1) / C::kTileK);
    const Span blocks(of_tile - of_block * n.blocks, t.stride[2] != 0, (p.seqlen_q + C::kTileQ - 1) / C::kTileQ);
    const Span heads(of_block % n.heads, t.stride[1] != 0, p.heads_q);
    const Span batches(of_block / n.heads, t.stride[0] != 0, p.batch);
    clear(sum);
    FW_NO_UNROLL for (int tile = tiles.first; tile < tiles.end; ++tile) {
      first_key = tile * C::kTileK;
      FW_NO_UNROLL for (batch = batches.first; batch < batches.end; ++batch) {
        const Sequence seq = sequence_of(p, batch);
        this->start(seq);
        this->choose_queries();
        const int from = blocks.first > range.first ? blocks.first : range.first;
        const int to = blocks.end < range.end ? blocks.end : range.end;
        if (from >= to) continue;
        FW_NO_UNROLL for (int head = heads.first; head < heads.end; ++head) add_head(seq, head, from, to);
      }
    }
    const int64_t first_row = t.stride[2] ? int64_t{blocks.first} * C::kTileQ : 0;
    const int64_t first_column = t.stride[3] ? int64_t{tiles.first} * C::kTileK : 0;
    store(
        batches.first * t.stride[0] + heads.first * t.stride[1] + first_row * t.stride[2] + first_column * t.stride[3],
        t.stride[2] ? p.seqlen_q - first_row : 1, t.stride[3] ? p.seqlen_k - first_column : 1);
  }

 private:
  FW_METHOD void add_head(const Sequence& seq, int head, int from, int to) {
    head_k = head / (p.heads_q / p.heads_k);
    FW_NO_UNROLL for (int block = from; block < to; ++block) {
      workgroup_barrier();  // nobody needs what was there before
      if (block == from) {
        this->load_keys(p.k, seq, p.dim_qk, C::kK);
        this->load_keys(p.v, seq, p.dim_v, C::kV);
      }
      this->load_block(block, head);
      commit_copies();
      wait_copies<0>();
      workgroup_barrier();
      typename ScoreGrid::Sums s, dp;
      this->weights_and_gradients(block, head, s, dp, [&](const auto& ds, const TilePlace&, int r) {
        FW_UNROLL for (int n = 0; n < ScoreGrid::kColumnTiles; ++n) {
          FW_UNROLL for (int i = 0; i < 4; ++i) sum[r][n][i] += ds[n][i];
        }
      });
    }
  }

  FW_METHOD uint32_t place(int row, int column) const { return shared + (row * kPitch + column) * 4; }

  // rows, columns: of d_bias from `at` on.
  FW_METHOD void store(int64_t at, int64_t rows, int64_t columns) {
    const abi::Tensor& t = p.d_bias;
    workgroup_barrier();
    FW_UNROLL for (int r = 0; r < ScoreGrid::kRowTiles; ++r) {
      FW_UNROLL for (int n = 0; n < ScoreGrid::kColumnTiles; ++n) {
        FW_UNROLL for (int i = 0; i < 4; ++i) {
          const int row = ScoreGrid::first_row(warp) + r * 16 + i / 2 * 8 + lane / 4;
          const int column = ScoreGrid::first_column(warp) + n * 8 + (lane & 3) * 2 + i % 2;
          store_shared(place(row, column), bits_of(sum[r][n][i]));
        }
      }
    }
    workgroup_barrier();
    if (!t.stride[2]) {
      if (thread < C::kTileK) add_up(C::kTileQ, [&](int i) { return place(i, thread); });
      workgroup_barrier();
    }
    if (!t.stride[3]) {
      if (thread < (t.stride[2] ? C::kTileQ : 1)) add_up(C::kTileK, [&](int i) { return place(thread, i); });
      workgroup_barrier();
    }
    const int wide = int(columns < C::kTileK ? columns : C::kTileK), high = int(rows < C::kTileQ ? rows : C::kTileQ);
    FW_NO_UNROLL for (int i = thread; i < high * wide; i += C::kThreads) {
      const int row = i / wide, column = i - row * wide;
      const float x = load_shared_float(place(row, column));
      const int64_t to = at + row * t.stride[2] + column * t.stride[3];
      if (t.dtype == abi::kF32) {
        static_cast<float*>(t.data)[to] = x;
      } else {
        static_cast<uint16_t*>(t.data)[to] = uint16_t(T::pack(x, 0.f));
      }
    }
  }
  // The sum of `count` numbers to the place of the first.
  template <class Place>
  FW_METHOD static void add_up(int count, const Place& place) {
    float x = 0.f;
    FW_NO_UNROLL for (int i = 0; i < count; ++i) x += load_shared_float(place(i));
    store_shared(place(0), bits_of(x));
  }
};

}  // namespace flashwave

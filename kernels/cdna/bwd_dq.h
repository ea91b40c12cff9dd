// The kernel of dQ by itself: no sums of several workgroups, the same bits in every run. A workgroup has waves of 32
// queries and goes along their keys in tiles of 32.
//
// S^T = K Q^T, dP^T = V dO^T and dQ^T += K^T dS^T: a lane owns one query, and key is the row of the accumulators, so
// dS^T stays in registers. -delta is the initial value of dP^T where nothing is dropped. Step t of the loop: S(t),
// dP(t), dQ(t - 1), while the rows of t + 1 and the columns of t go from registers to LDS and t + 2 is loaded; one
// barrier.
#pragma once

#include "kernels/cdna/bwd_dq_lds.h"
#include "kernels/cdna/bwd_modify.h"
#include "kernels/cdna/score.h"
#include "kernels/common/key_tiles.h"

namespace flashwave {

template <class C>
struct BackwardDq {
  using E = typename C::Element;
  static constexpr int kStaged = C::kStaged, kAhead = C::kAhead;
  template <bool kMasked>
  static constexpr typename DqPlan<C, kMasked>::Schedule schedule = DqPlan<C, kMasked>::find();

  const Params& p;
  const Sequence seq;
  const int head, lane, half, wave;
  const int first_query;  // of the wave

  U32x4 q[C::kQkFragments], d_o[C::kVFragments], ahead[kAhead];
  F32x16 dq[C::kBlocks];
  DqLds<C> tiles_in_lds;
  uint32_t ds[8];  // of the tile before
  uint32_t cap_gradients[C::kModified ? 8 : 1], keep;
  float scale, lse, negative_delta, weight_scale;
  F32x16 dp_start;  // kKeepsStart

  const char *k, *v;  // of the next tile to load
  int left;           // keys from there on
  DqSource k_source, v_source;
  Edges edges;
  QueryTiles tiles;              // of keys
  int clear_first, clear_tiles;  // of those, the ones that all queries of the wave see all of
  int tile, loop_of_next;

  FW_METHOD BackwardDq(const Params& params, const Sequence& sequence, int h, int query)
      : p(params),
        seq(sequence),
        head(h),
        lane(lane_index()),
        half(lane_index() >> 5),
        wave(wave_index()),
        first_query(query + kDqQueries * wave_index()) {}

  // ---- from memory to LDS ----

  template <int kStep>
  FW_METHOD void advance() {
    const int rows = left < kDqTile ? left : kDqTile;
    const auto bytes = [&](const DqSource& s) { return rows > 0 ? uint32_t(rows - 1) * s.stride + s.row_bytes : 0; };
    if constexpr (kStep == 0) {
      k_source.tile = make_buffer(k, bytes(k_source));
      k += int64_t{kDqTile} * k_source.stride;
    } else {
      v_source.tile = make_buffer(v, bytes(v_source));
      v += int64_t{kDqTile} * v_source.stride;
      left -= left < kDqTile ? left : kDqTile;
    }
  }
  FW_METHOD U32x4 fragment(int f) const {
    if (f < C::kFirstDp) return tiles_in_lds.row_fragment(0, f);
    if (f < C::kFirstDq) return tiles_in_lds.row_fragment(1, f - C::kFirstDp);
    const int i = f - C::kFirstDq;
    return tiles_in_lds.column_fragment(i / C::kBlocks, i % C::kBlocks);
  }

  // ---- one tile ----

  struct Tile {
    U32x4 fragment[C::kFragments + kAhead];
    F32x16 s, dp;
    float x[16];
    uint32_t ds[8];
    float right, left;  // bounds of the mask for the tile's first key
  };

  FW_METHOD void modify(Tile& z) {
    const TilePlace at = {seq.b, head, first_query, tile * kDqTile, int(seq.queries), int(seq.keys)};
    Scores scores;
    scores.s = z.s;
    Modifier{parameters_again(), at}.apply(scores, cap_gradients);
    z.s = scores.s, keep = scores.keep;
  }
  FW_METHOD void exponent(Tile& z, int r) const {
    z.x[r] = C::kModified ? z.s[r] - lse : __builtin_fmaf(z.s[r], scale, -lse);
  }
  FW_METHOD void exponent_pair(Tile& z, int i) const {
    if constexpr (C::kPacked) {
      const F32x2 x = __builtin_elementwise_fma(pair_of(z.s, i), F32x2(scale), F32x2(-lse));
      z.x[2 * i] = x.x, z.x[2 * i + 1] = x.y;
    } else {
      exponent(z, 2 * i), exponent(z, 2 * i + 1);
    }
  }
  FW_METHOD static void mask(Tile& z, int r) {
    const float i = kHuge * float(key_of_register(r));
    z.x[r] = __builtin_fminf(__builtin_fminf(z.x[r], z.right - i), z.left + i);
  }
  FW_METHOD void weight(Tile& z, int r) const {
    // Next to a large bias lse is coarse, and an exponent may come out above 0, by numbers that exp2 turns into inf.
    z.x[r] = exp2_fast(C::kModified && p.bias.data ? __builtin_fminf(z.x[r], 0.f) : z.x[r]);
  }
  FW_METHOD float gradient(const Tile& z, int r) const {
    if constexpr (C::kPacked) return z.x[r];  // multiplied before
    if constexpr (!C::kModified) return z.x[r] * z.dp[r];
    const uint32_t mask = uint32_t(int32_t(keep << (31 - r)) >> 31);
    const float dp = __builtin_fmaf(float_of(bits_of(z.dp[r]) & mask), weight_scale, negative_delta);
    return z.x[r] * dp * float(__builtin_bit_cast(F16x2, cap_gradients[r / 2])[r % 2]);
  }

  FW_METHOD static void multiply_pair(Tile& z, int i) {
    const F32x2 x = pair_of(z.x, i) * pair_of(z.dp, i);
    z.x[2 * i] = x.x, z.x[2 * i + 1] = x.y;
  }

  template <int kItem, bool kMasked>
  FW_METHOD void item(Tile& z) {
    constexpr int op = schedule<kMasked>.item[kItem].op, i = schedule<kMasked>.item[kItem].index;
    if constexpr (op == kDqModify) modify(z);
    if constexpr (op == kDqExponent) exponent_pair(z, i);
    if constexpr (op == kDqMask) mask(z, 2 * i), mask(z, 2 * i + 1);
    if constexpr (op == kDqExpEven) weight(z, 2 * i);
    if constexpr (op == kDqExpOdd) weight(z, 2 * i + 1);
    if constexpr (op == kDqMultiply) multiply_pair(z, i);
    if constexpr (op == kDqGradient) {
      z.ds[i] = Near<E>::pack(Near<E>::round(gradient(z, 2 * i)), Near<E>::round(gradient(z, 2 * i + 1)));
    }
    if constexpr (op == kDqCarryRow) tiles_in_lds.carry_row(i);
    if constexpr (op == kDqSwapColumns) tiles_in_lds.swap_columns(i);
    if constexpr (op == kDqCarryColumns) tiles_in_lds.carry_columns(i);
    if constexpr (op == kDqLoad) tiles_in_lds.load(i, k_source, v_source);
    if constexpr (op == kDqAdvance) advance<i>();
    if constexpr (op == kDqChooseLoop) ++tile, choose_loop();  // nobody needs this tile's number any more
  }
  template <int kFirst, bool kMasked, int... kItem>
  FW_METHOD void items(Tile& z, Indices<int, kItem...>) {
    (item<kFirst + kItem, kMasked>(z), ...);
  }

  FW_METHOD static U32x4 four(const uint32_t* x) { return (U32x4){x[0], x[1], x[2], x[3]}; }

  template <int kGap, bool kMasked>
  FW_METHOD void step(Tile& z) {
    using S = DqPlan<C, kMasked>;
    constexpr auto& plan = schedule<kMasked>;
    constexpr int f = kGap / S::kSteps, part = kGap % S::kSteps;
    if constexpr (C::kRowBuffers == 1 && part == 0 && f == S::kRowsBarrier) {
      workgroup_barrier();
      schedule_fence();
    }
    if constexpr (part == 0 && f == S::kBarrier) {
      workgroup_barrier();
      schedule_fence();
      tiles_in_lds.change_buffers();
    }
    if constexpr (part == 0) {
      constexpr int kNext = f + kAhead;
      z.fragment[kNext] = fragment(kNext < C::kFragments ? kNext : kNext - C::kFragments);
    }
    const U32x4 a = z.fragment[f];
    if constexpr (f < C::kFirstDp) {
      z.s = E::template multiply<part>(a, q[f], z.s);
    } else if constexpr (f < C::kFirstDq) {
      z.dp = E::template multiply<part>(a, d_o[f - C::kFirstDp], z.dp);
    } else {
      constexpr int i = f - C::kFirstDq, b = i % C::kBlocks;
      dq[b] = E::template multiply<part>(a, four(ds + i / C::kBlocks * 4), dq[b]);
    }
    schedule_fence();
    constexpr int first = plan.first(kGap), end = plan.first(kGap + 1);
    items<first, kMasked>(z, Count<end - first>());
    schedule_fence();
  }
  template <bool kMasked, int... kGap>
  FW_METHOD void steps(Tile& z, Indices<int, kGap...>) {
    (step<kGap, kMasked>(z), ...);
  }

  template <bool kMasked>
  FW_METHOD void body() {
    Tile z;
    FW_UNROLL for (int i = 0; i < kAhead; ++i) z.fragment[i] = ahead[i];
    z.s = 0.f;
    if constexpr (C::kKeepsStart) {
      z.dp = dp_start;
    } else {
      float start = C::kModified ? 0.f : negative_delta;
      if constexpr (!C::kModified) hold(start);  // not sixteen registers through the loop
      z.dp = start;
    }
    if constexpr (kMasked) {
      const int lane_again = lane_index_again(), query = first_query + (lane_again & 31);
      const int key = tile * kDqTile + 4 * (lane_again >> 5), last = int(seq.keys) - 1;
      const int to = __builtin_elementwise_add_sat(query, edges.right);
      z.right = room(to < last ? to : last, key), z.left = room(key, __builtin_elementwise_add_sat(query, edges.left));
    }
    tiles_in_lds.hold_sources();
    schedule_fence();
    steps<kMasked>(z, Count<DqPlan<C, kMasked>::kGaps>());
    FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = z.fragment[C::kFragments + i];
    FW_UNROLL for (int i = 0; i < 8; ++i) ds[i] = z.ds[i];
  }
  // Which loop has the next tile: whether all queries of the wave see all of its keys. kAlone: in a gap of the loops.
  enum Loop { kEnd, kWithMask, kWithoutMask };
  FW_METHOD bool is_clear() const { return uint32_t(tile - clear_first) < uint32_t(clear_tiles); }
  FW_METHOD void choose_loop() {
    tile = here(tile);
    loop_of_next = here(tile < tiles.end ? (is_clear() ? int{kWithoutMask} : int{kWithMask}) : int{kEnd});
  }
  FW_METHOD void all_tiles() {
    tile = tiles.first;
    if constexpr (C::kAlone) {
      choose_loop();
      while (loop_of_next != kEnd) {
        while (loop_of_next == kWithMask) body<true>();
        while (loop_of_next == kWithoutMask) body<false>();
      }
    } else {
      while (tile < tiles.end) {
        while (tile < tiles.end && !is_clear()) body<true>(), ++tile;
        while (tile < tiles.end && is_clear()) body<false>(), ++tile;
      }
    }
  }

  // ---- the whole ----

  FW_METHOD Buffer rows_of(const abi::Tensor& t, int rows, int dim) const {
    const int64_t at = query_offset(t, seq, first_query, head) * 2;
    return make_buffer(static_cast<const char*>(t.data) + uniform(at),
                       rows > 0 ? uint32_t(uniform(rows) - 1) * uint32_t(t.stride[1]) * 2 + uint32_t(dim) * 2 : 0);
  }
  FW_METHOD void load_queries(const GpuArguments& args, int rows) {
    const Buffer q_rows = rows_of(p.q, rows, p.dim_qk), d_o_rows = rows_of(p.d_o, rows, p.dim_v);
    const uint32_t q_stride = uint32_t(p.q.stride[1]) * 2, d_o_stride = uint32_t(p.d_o.stride[1]) * 2;
    const int row = lane & 31;
    FW_UNROLL for (int i = 0; i < C::kQkFragments; ++i) {
      const int column = 16 * i + 8 * half;
      q[i] = buffer_load16(q_rows, ((row < rows) & (column < p.dim_qk)) ? row * q_stride + column * 2 : kNowhere);
    }
    FW_UNROLL for (int i = 0; i < C::kVFragments; ++i) {
      const int column = 16 * i + 8 * half;
      d_o[i] = buffer_load16(d_o_rows, ((row < rows) & (column < p.dim_v)) ? row * d_o_stride + column * 2 : kNowhere);
    }
    const int64_t block = abi::backward_first_block(p, seq.b, kQueryTile) + first_query / kQueryTile;
    const Buffer numbers =
        make_buffer(args.shared + abi::kBackwardHeaderBytes +
                        uniform((block * p.heads_q + head) * abi::backward_block_bytes(kQueryTile, 0)),
                    rows > 0 ? 2 * kQueryTile * 4 : 0);
    lse = float_of(buffer_load4(numbers, row * 4));
    if (rows <= 0) lse = kInf;
    const float delta = float_of(buffer_load4(numbers, row * 4 + uint32_t(abi::backward_delta_at(kQueryTile))));
    negative_delta = -delta;
  }
  FW_METHOD void set_tiles(int first, int last) {
    edges = edges_of(p, seq);
    edges.left = uniform(edges.left), edges.right = uniform(edges.right);
    tiles = key_tiles(edges, int(seq.keys), first, last + 1, kDqTile);
    tiles.first = uniform(tiles.first), tiles.end = uniform(tiles.end);
    const QueryTiles own = key_tiles(edges, int(seq.keys), first_query, first_query + kDqQueries, kDqTile);
    clear_first = uniform(own.all_first);
    clear_tiles = uniform(own.all_end - own.all_first);
  }

  // first: of the workgroup.
  FW_METHOD void run(const GpuArguments& args, uint32_t lds, int first) {
    const int queries = int(seq.queries), rows = uniform(queries - first_query);
    const int last = first + C::kTileQ < queries ? first + C::kTileQ - 1 : queries - 1;
    scale = p.softmax_scale * kLog2e;
    weight_scale = C::kModified ? 1.f / (1.f - p.dropout_p) : 1.f;
    FW_UNROLL for (int i = 0; i < C::kBlocks; ++i) dq[i] = 0.f;
    set_tiles(first, last);
    if (tiles.first < tiles.end) {
      load_queries(args, rows);
      const int kv_head = uint32_t(head) * uint32_t(p.heads_k) / uint32_t(p.heads_q), key = tiles.first * kDqTile;
      k_source.stride = uint32_t(p.k.stride[1]) * 2, v_source.stride = uint32_t(p.v.stride[1]) * 2;
      k_source.row_bytes = uint32_t(p.dim_qk) * 2, v_source.row_bytes = uint32_t(p.dim_v) * 2;
      k = static_cast<const char*>(p.k.data) + uniform(stored_offset(p.k, seq, key, kv_head) * 2);
      v = static_cast<const char*>(p.v.data) + uniform(stored_offset(p.v, seq, key, kv_head) * 2);
      left = uniform(int(seq.keys) - key);
      tiles_in_lds.set_addresses(lds, lane, wave, k_source, v_source);
      loop();
    }
    store(rows);
  }

  FW_METHOD void loop() {
    advance<0>(), advance<1>();
    FW_UNROLL for (int i = 0; i < 2 * kStaged; ++i) tiles_in_lds.load(i, k_source, v_source);
    tiles_in_lds.begin();
    FW_UNROLL for (int i = 0; i < 8; ++i) ds[i] = 0;  // of the tile before the first
    advance<0>(), advance<1>();
    FW_UNROLL for (int i = 0; i < 2 * kStaged; ++i) tiles_in_lds.load(i, k_source, v_source);
    workgroup_barrier();
    FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = fragment(i);
    if constexpr (C::kKeepsStart) {
      dp_start = negative_delta;
      hold(dp_start);
    }
    all_tiles();
    FW_UNROLL for (int i = 0; i < 2 * C::kBlocks; ++i) {  // of the last tile
      const int b = i % C::kBlocks;
      dq[b] = multiply_all<E>(fragment(C::kFirstDq + i), four(ds + i / C::kBlocks * 4), dq[b], Count<E::kSteps>());
    }
  }

  FW_METHOD void store(int rows) const {
    const Buffer out = rows_of(p.dq, rows, p.dim_qk);
    const int lane_again = lane_index_again();  // no register holds it through the loop
    const uint32_t stride = uint32_t(p.dq.stride[1]) * 2, row = lane_again & 31;
    FW_UNROLL for (int b = 0; b < C::kBlocks; ++b) {
      FW_UNROLL for (int g = 0; g < 2; ++g) {
        U32x4 x;
        FW_UNROLL for (int e = 0; e < 4; ++e) {
          x[e] = E::pack(dq[b][8 * g + 2 * e] * p.softmax_scale, dq[b][8 * g + 2 * e + 1] * p.softmax_scale);
        }
        const int column = 32 * b + 16 * g + 8 * (lane_again >> 5);
        const uint32_t at = ((column < p.dim_qk) & (int(row) < rows)) ? row * stride + column * 2 : kNowhere;
        buffer_store16(out, at, x);
      }
    }
  }
};

}  // namespace flashwave

// The forward pass. A workgroup has kWaves waves of 32 queries; K and V come in tiles of kTileK keys, two LDS buffers
// each.
//
// S^T = K Q^T and O^T = V^T P^T: a lane owns one query (lane & 31), and the halves h = lane >> 5 share its keys.
// Register r of S^T is key 8(r >> 2) + 4h + (r & 3), which is the order of the B operand of the second product: P stays
// in registers.
//
// Softmax with an optimistic reference: P = exp2(S * scale - m) with the m of earlier keys. The row sum, needed anyway,
// tells when a value has outgrown what the type holds (Element::kLimit); only then, and for the first keys, a slow path
// takes the maximum, rescales and computes P again. m = -infinity (no key seen yet) is kept as negative_m = +infinity,
// which makes every sum infinite or NaN.
//
// Pipeline over sub-tiles of 32 keys, step j: S(j + 1) = K Q^T, P(j) = exp2(S(j)), O += V^T P(j - 1). The vector work,
// LDS writes and loads are spread over the gaps behind the matrix instructions (gaps.h). LDS reads run kAhead fragments
// ahead, across steps and across the workgroup barrier, which sits where the reads, not the products, change tiles: one
// barrier a tile. Window w of the workgroup is the time between two barriers in which K(w + kLead) and V(w) are read,
// K(w + kLead + 1) and V(w + 1) go to LDS and, before gfx950, V(w + 2) to registers.
#pragma once

#include "kernels/cdna/fwd_tiles.h"
#include "kernels/cdna/score.h"
#include "kernels/common/row_end.h"
#include "kernels/common/window.h"

namespace flashwave {

template <class C>
struct Forward {
  using E = typename C::Element;
  template <StepKind kKind, int kSub>
  using Plan = ForwardPlan<C, kKind, kSub>;
  template <StepKind kKind, int kSub>
  static constexpr typename Plan<kKind, kSub>::Schedule schedule = Plan<kKind, kSub>::find();
  static constexpr int kTileK = C::kTileK, kSubs = C::kSubs, kLead = C::kLead, kAhead = C::kAhead;

  const Params& p;
  const Sequence seq;
  const int batch, head, kv_head, lane, half, wave;
  const int first_query;  // of this wave, in its sequence

  ForwardTiles<C> tiles;
  U32x4 q[C::kQkFragments];
  F32x16 o[C::kBlocks];
  float scale;          // plain: softmax_scale * log2(e)
  float sum;            // this lane's part of the row sum
  float m, negative_m;  // the reference

  int keys;                  // of the sequence
  int diagonal;              // key that the wave's first query is aligned with
  int inner_from, inner_to;  // keys that all queries of the wave see

  FW_METHOD Forward(const Params& params, const Sequence& sequence, int h, int query, uint32_t lds)
      : p(params),
        seq(sequence),
        batch(sequence.b),
        head(h),
        kv_head(uint32_t(h) * uint32_t(params.heads_k) / uint32_t(params.heads_q)),
        lane(lane_index()),
        half(lane_index() >> 5),
        wave(wave_index()),
        first_query(query + kRowsPerWave * wave_index()),
        tiles(lds) {}

  // ---- one step ----

  struct Work {  // values of one step
    U32x4 fragment[C::kFragments + kAhead];
    float x[16];
    F32x2 sums;  // without packed instructions only .x
    uint32_t rounded[2];
  };

  template <int kParity, StepKind kKind, int kSub, int kItem>
  FW_METHOD void do_item(Work& z, const Scores& s, uint32_t* weights) {
    constexpr GapItem item = schedule<kKind, kSub>.item[kItem];
    constexpr int op = item.op, i = item.index;
    float &low = z.x[2 * (i & 7)], &high = z.x[2 * (i & 7) + 1];
    if constexpr (op == kScale) {
      const F32x2 x = exponents((F32x2){s.s[2 * i], s.s[2 * i + 1]}, negative_m);
      low = x.x, high = x.y;
    }
    if constexpr (op == kExpLow) low = exp2_fast(low);
    if constexpr (op == kExpHigh) high = exp2_fast(high);
    if constexpr (op == kSum) {
      if constexpr (C::kPacked) {
        z.sums = i ? z.sums + (F32x2){low, high} : (F32x2){low, high};
      } else {
        z.sums.x = i ? z.sums.x + low : low;
        z.sums.x += high;
      }
    }
    if constexpr (op == kDrop) low = kept(s, 2 * i, low), high = kept(s, 2 * i + 1, high);
    if constexpr (op == kRoundFirst) E::round_first(z.rounded, low, high);
    if constexpr (op == kRoundSecond) E::round_second(z.rounded, low, high);
    if constexpr (op == kPack) weights[i] = E::pack_rounded(z.rounded, low, high);
    if constexpr (op == kIssueK) tiles.issue_k(i, (kParity + kLead + 1) % 2 * C::kKBytes);
    if constexpr (op == kSwap) tiles.swap_v(i);
    if constexpr (op == kStoreV) tiles.store_v(i, (kParity ^ 1) * C::kVBytes);
    if constexpr (op == kLoadV) tiles.load_v(i, (kParity ^ 1) * C::kVBytes);
  }
  template <int kParity, StepKind kKind, int kSub, int kFirst, int... kIndex>
  FW_METHOD void do_items(Work& z, const Scores& s, uint32_t* weights, Indices<int, kIndex...>) {
    (do_item<kParity, kKind, kSub, kFirst + kIndex>(z, s, weights), ...);
  }

  // Matrix instruction k of a step, the fragment read that goes with it, and its gap. buffer: of V, without a first
  // product.
  template <int kParity, StepKind kKind, int kSub, int k>
  FW_METHOD void do_gap(Work& z, F32x16& next, const Scores& s, const uint32_t* old, uint32_t* weights,
                        uint32_t buffer) {
    using P = Plan<kKind, kSub>;
    constexpr int f = k / P::kSteps, ahead_f = f + kAhead;
    if constexpr (k % P::kSteps == 0) {
      if constexpr (kKind != kFull) {
        if constexpr (ahead_f < P::kFragments) z.fragment[ahead_f] = tiles.v_fragment(ahead_f, kSub, buffer);
      } else if constexpr (!P::kLastSub || ahead_f < P::kFragments || ahead_f > P::kFragments + 1) {
        z.fragment[ahead_f] = tiles.template fragment_of_full<kParity, kSub, ahead_f>();
      } else if constexpr (ahead_f == P::kFragments + 1) {
        // Everything of this window has been read, and what it moves is on its way or younger than that.
        wait_for_memory<kIsGfx950 ? 0 : schedule<kKind, kSub>.count(kLoadV, P::kBarrier)>();
        workgroup_barrier();
        schedule_fence();
        z.fragment[ahead_f - 1] = tiles.template fragment_of_full<kParity, kSub, ahead_f - 1>();
        z.fragment[ahead_f] = tiles.template fragment_of_full<kParity, kSub, ahead_f>();
      }
    }
    if constexpr (f < P::kFirst) {
      next = E::template multiply<k % P::kSteps>(z.fragment[f], q[f], next);
    } else {
      constexpr int g = f - P::kFirst, step = g / C::kBlocks, block = g % C::kBlocks;
      const U32x4 b = {old[4 * step], old[4 * step + 1], old[4 * step + 2], old[4 * step + 3]};
      o[block] = E::template multiply<k % P::kSteps>(z.fragment[f], b, o[block]);
    }
    constexpr int kFrom = schedule<kKind, kSub>.first(k), kTo = schedule<kKind, kSub>.first(k + 1);
    do_items<kParity, kKind, kSub, kFrom>(z, s, weights, Count<kTo - kFrom>());
    schedule_fence();
  }
  template <int kParity, StepKind kKind, int kSub, int... k>
  FW_METHOD void do_gaps(Work& z, F32x16& next, const Scores& s, const uint32_t* old, uint32_t* weights,
                         uint32_t buffer, Indices<int, k...>) {
    (do_gap<kParity, kKind, kSub, k>(z, next, s, old, weights, buffer), ...);
  }

  // next = K Q^T, weights = exp2(s), o += V^T old
  template <int kParity, StepKind kKind, int kSub>
  FW_METHOD void step(F32x16& next, const Scores& s, const uint32_t* old, uint32_t* weights, uint32_t buffer = 0) {
    using P = Plan<kKind, kSub>;
    Work z;
    FW_UNROLL for (int f = 0; f < kAhead; ++f) z.fragment[f] =
        kKind == kFull ? tiles.ahead[f] : tiles.v_fragment(f, kSub, buffer);
    next = F32x16(0.f);
    schedule_fence();
    do_gaps<kParity, kKind, kSub>(z, next, s, old, weights, buffer, Count<P::kGaps>());
    if constexpr (kKind == kFull) hold(next);
    if constexpr (kKind == kFull)
      FW_UNROLL for (int f = 0; f < kAhead; ++f) tiles.ahead[f] = z.fragment[P::kFragments + f];
    if constexpr (P::kSoftmax) {
      const float before = sum;
      const float added = C::kPacked ? z.sums.x + z.sums.y : z.sums.x;
      sum += added;
      if (__builtin_expect(any_lane(!(added <= E::kLimit)), 0)) rescue(s, weights, before);
    }
  }
  template <int kParity>
  FW_METHOD void window(int w, Scores& s1, uint32_t* weights0) {  // s1 = S(2w + 1), weights0 = P(2w), in sub-tiles of w
    if (C::kModified) tiles.origin = here(tiles.origin);
    if (C::kModified && kIsGfx908) tiles.direct_k = here(tiles.direct_k);
    tiles.k_tile = tiles.k_stream.template next<kTileK>();
    tiles.v_tile = tiles.v_stream.template next<kTileK>();
    if constexpr (kSubs == 2) {
      Scores s0;
      uint32_t weights1[8];
      step<kParity, kFull, 0>(s0.s, s1, weights0, weights1);
      finish_scores(s0, tiles.origin + (w + 1) * kTileK);
      step<kParity, kFull, 1>(s1.s, s0, weights1, weights0);
      finish_scores(s1, tiles.origin + (w + 1) * kTileK + kSubTile);
    } else {
      Scores s2;
      uint32_t weights1[8];
      step<kParity, kFull, 0>(s2.s, s1, weights0, weights1);
      finish_scores(s2, tiles.origin + (w + 2) * kTileK);
      s1 = s2;
      FW_UNROLL for (int i = 0; i < 8; ++i) weights0[i] = weights1[i];
    }
  }

  // ---- softmax ----

  FW_METHOD F32x2 exponents(F32x2 s, float offset) const {
    if constexpr (C::kModified) return s + offset;
    if constexpr (C::kPacked) return __builtin_elementwise_fma(s, F32x2(scale), F32x2(offset));
    return (F32x2){__builtin_fmaf(s.x, scale, offset), __builtin_fmaf(s.y, scale, offset)};
  }
  FW_METHOD static float kept(const Scores& s, int r, float x) {
    return float_of(bits_of(x) & uint32_t(int32_t(s.keep << (31 - r)) >> 31));
  }

  // The sums of s were too large, or there is no reference yet.
  FW_METHOD void rescue(const Scores& s, uint32_t* weights, float sum_before) {
    float top = s.s[0];
    FW_UNROLL for (int r = 1; r < 16; ++r) top = __builtin_fmaxf(top, s.s[r]);
    top = __builtin_fmaxf(top, other_half(top));
    if constexpr (!C::kModified) top *= scale;
    const float raised = __builtin_fmaxf(m, top);
    const bool nothing = raised == -kInf;
    const float factor = nothing ? 1.f : exp2_fast(m - raised);
    m = raised;
    negative_m = nothing ? kInf : E::kBias + E::kShift - raised;
    FW_UNROLL for (int i = 0; i < C::kBlocks; ++i) o[i] *= factor;
    const float offset = nothing ? 0.f : negative_m;
    F32x2 sums = {0.f, 0.f};
    FW_UNROLL for (int r = 0; r < 16; r += 2) {
      F32x2 x = exponents((F32x2){s.s[r], s.s[r + 1]}, offset);
      x.x = exp2_fast(x.x), x.y = exp2_fast(x.y);
      sums += x;
      if constexpr (C::kModified) x.x = kept(s, r, x.x), x.y = kept(s, r + 1, x.y);
      uint32_t rounded[2];
      E::round_first(rounded, x.x, x.y);
      E::round_second(rounded, x.x, x.y);
      weights[r / 2] = E::pack_rounded(rounded, x.x, x.y);
    }
    sum = sum_before * factor + (sums.x + sums.y);
  }

  // From products to scores: modifiers, and the mask where the sub-tile from `key` on crosses an edge of it.
  FW_METHOD void finish_scores(Scores& s, int key) {
    key = here(key);
    if constexpr (C::kModified) {
      Modifier{parameters_again(), {batch, head, first_query, key, keys - diagonal + first_query, keys}}.apply(s);
    }
    if (__builtin_expect(key < inner_from || key + kSubTile > inner_to, 0)) {
      const int i = lane_index_again(), row = min_of(i & 31, rows() - 1);
      // From the parameters: registers are scarce.
      const Edges edges = edges_of_block(parameters_again(), here(diagonal), here(keys), kRowsPerWave);
      const int to = edges.end(row, keys), from = edges.first(row);
      int first = key + 4 * (i >> 5) - from;
      hold(first);  // added to numbers that need no register
      const uint32_t count = max_of(to - from, 0);
      FW_UNROLL for (int r = 0; r < 16; ++r) s.s[r] = uint32_t(first + key_of_register(r)) < count ? s.s[r] : -kInf;
    }
  }

  // ---- the whole ----

  int end_tile;          // of the workgroup
  int my_first, my_end;  // of this wave

  FW_METHOD void find_keys(int workgroup_query) {
    const int queries = int(seq.queries);
    keys = uniform(int(seq.keys));
    diagonal = uniform(first_query + keys - queries);
    const int rows = this->rows();
    // Of the workgroup's queries and of the wave's; both ends of what a query sees rise with the query.
    const Edges all = edges_of_block(p, int64_t{workgroup_query} + keys - queries, keys, C::kTileQ);
    const Edges mine = all.from(first_query - workgroup_query);
    const int from = all.first(0), behind = all.end(min_of(C::kTileQ, queries - workgroup_query) - 1, keys);
    const int my_from = mine.first(0), my_behind = mine.end(rows - 1, keys);
    inner_from = mine.first(rows - 1), inner_to = mine.end(0, keys);
    tiles.origin = p.block_table ? -int(uint32_t(seq.k_row) % kTileK) : 0;
    tiles.origin = uniform(tiles.origin + (from - tiles.origin) / kTileK * kTileK);
    end_tile = behind > from ? (behind - tiles.origin + kTileK - 1) / kTileK : 0;
    my_first = (my_from - tiles.origin) / kTileK;
    my_end = (my_behind - tiles.origin + kTileK - 1) / kTileK;
    if (rows == 0 || my_behind <= my_from) my_first = my_end = end_tile;
    if constexpr (kSubs == 1) {  // the pipeline starts with two sub-tiles
      if (end_tile == 1) ++end_tile;
      if (my_end == my_first + 1) my_first > 0 ? --my_first : ++my_end;
    }
    if (my_first < my_end) my_first -= my_first & 1;  // the loop begins with the first buffers
    int to = tiles.origin + end_tile * kTileK;
    if (to > keys) to = keys;
    tiles.k_stream.start(p, seq, kv_head, tiles.origin, to);
    tiles.v_stream.start(p, seq, kv_head, tiles.origin, to);
  }
  // Queries of this wave.
  FW_METHOD int rows() const { return max_of(min_of(kRowsPerWave, here(keys) - diagonal), 0); }
  FW_METHOD static int min_of(int a, int b) { return a < b ? a : b; }
  FW_METHOD static int max_of(int a, int b) { return a > b ? a : b; }

  FW_METHOD Buffer wave_buffer(const abi::Tensor& t, const Sequence& seq, int dim, int bytes = 2) const {
    const int rows = this->rows();
    return make_buffer(static_cast<const char*>(t.data) + uniform(query_offset(t, seq, first_query, head)) * bytes,
                       rows > 0 ? (rows - 1) * uint32_t(t.stride[1] * bytes) + dim * bytes : 0);
  }
  FW_METHOD void load_q() {
    const Buffer in = wave_buffer(p.q, seq, p.dim_qk);
    const uint32_t row = (lane & 31) * uint32_t(p.q.stride[1] * 2) + 16 * half;
    if (p.dim_qk == C::kDimQk) {
      FW_UNROLL for (int f = 0; f < C::kQkFragments; ++f) { q[f] = buffer_load16(in, row + 32 * f); }
      return;
    }
    FW_UNROLL for (int f = 0; f < C::kQkFragments; ++f) {
      const int column = 16 * f + 8 * half;
      q[f] = buffer_load16(in, column < p.dim_qk ? row + 32 * f : kNowhere);
      FW_UNROLL for (int i = 0; i < 4; ++i) q[f][i] = column + 2 * i < p.dim_qk ? q[f][i] : 0;
    }
  }

  FW_METHOD void attend() {
    int w = -kLead;
    Scores s1;
    uint32_t weights0[8];
    tiles.bring_first();
    load_q();
    wait_for_memory<0>();
    workgroup_barrier();
    for (; w + kLead < my_first; ++w) {  // another wave's queries see these keys
      tiles.open_window(w);
      tiles.close_window();
    }
    if (my_first < my_end) {
      Scores s0;
      FW_UNROLL for (int sub = 0; sub < 2; ++sub) {
        if (sub % kSubs == 0) tiles.open_window(w);
        F32x16 s = F32x16(0.f);
        FW_UNROLL for (int f = 0; f < C::kQkFragments; ++f) {
          const U32x4 a = tiles.k_fragment(f, sub % kSubs, tiles.k_buffer(w + kLead));
          s = multiply_all<E>(a, q[f], s, Count<E::kSteps>());
        }
        Scores& scores = sub == 0 ? s0 : s1;
        scores.s = s;
        if (sub % kSubs == kSubs - 1) {
          tiles.close_window();
          ++w;
        }
      }
      finish_scores(s0, tiles.origin + my_first * kTileK);
      finish_scores(s1, tiles.origin + my_first * kTileK + kSubTile);
      rescue(s0, weights0, 0.f);
      tiles.read_ahead(w);
      for (; w + kLead + 1 < my_end; w += 2) {
        window<0>(w, s1, weights0);
        window<1>(w + 1, s1, weights0);
      }
      if (w + kLead < my_end) {
        window<0>(w, s1, weights0);
        ++w;
      }
      uint32_t weights1[8];
      F32x16 unused;
      if constexpr (kSubs == 1) tiles.open_window(w);
      step<0, kLastWeights, 0>(unused, s1, weights0, weights1, tiles.v_buffer(w));
      if constexpr (kSubs == 1) {
        tiles.close_window();
        ++w;
      }
      step<0, kLastProduct, kSubs - 1>(unused, s1, weights1, weights0, tiles.v_buffer(w));
    }
    for (; w + 1 < end_tile; ++w) {
      tiles.open_window(w);
      tiles.close_window();
    }
  }
  FW_METHOD void run(int workgroup_query) {
    scale = p.softmax_scale * kLog2e;
    sum = 0.f, m = -kInf, negative_m = kInf;
    FW_UNROLL for (int i = 0; i < C::kBlocks; ++i) o[i] = F32x16(0.f);
    find_keys(workgroup_query);
    tiles.find_addresses(lane, wave);
    attend();
    store();
  }

  FW_METHOD void store() {
    const Params& p = parameters_again();
    const Sequence seq = sequence_of(p, batch);
    const int i = lane_index_again(), query = i & 31, half = i >> 5;
    const int rows = this->rows();
    const RowEnd end = finish_row<C::kModified>(p, head, m - E::kBias - E::kShift, sum + other_half(sum));
    float inverse = end.scale;
    if constexpr (E::kBias != 0.f) inverse *= exp2_fast(E::kBias);  // truncation took it out of the weights
    if (p.lse.data && half == 0 && query < rows)
      static_cast<float*>(p.lse.data)[query_offset(p.lse, seq, first_query + query, head)] = end.lse;
    if (p.o.dtype == abi::kF32) return store_floats(p, seq, inverse, query < rows);
    const Buffer out = wave_buffer(p.o, seq, p.dim_v);
    // Lanes past the last query would write over it where there is one alone, whose stride may be 0.
    const uint32_t row = query < rows ? query * uint32_t(p.o.stride[1] * 2) + 16 * half : kNowhere;
    FW_UNROLL for (int g = 0; g < 2 * C::kBlocks; ++g) {
      const int column = 16 * g + 8 * half;
      U32x4 x;
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        const int r = 8 * (g % 2) + 2 * e;
        const F32x2 pair = F32x2{o[g / 2][r], o[g / 2][r + 1]} * inverse;
        x[e] = E::pack(pair.x, pair.y);
      }
      if (p.dim_v == C::kDimV) {
        buffer_store16(out, row + 32 * g, x);
      } else {
        FW_UNROLL for (int e = 0; e < 4; ++e) {
          const bool exists = column + 2 * e < p.dim_v;
          buffer_store4(out, exists ? row + 32 * g + 4 * e : kNowhere, x[e]);
        }
      }
    }
  }

  // O in fp32, times `inverse`.
  FW_METHOD void store_floats(const Params& p, const Sequence& seq, float inverse, bool exists) {
    const Buffer out = wave_buffer(p.o, seq, p.dim_v, 4);
    const int i = lane_index_again(), half = i >> 5;
    const uint32_t row = exists ? uint32_t(i & 31) * uint32_t(p.o.stride[1] * 4) + 32 * half : kNowhere;
    FW_UNROLL for (int g = 0; g < 2 * C::kBlocks; ++g) {
      FW_UNROLL for (int e = 0; e < 8; e += 4) {
        const int column = 16 * g + 8 * half + e;
        U32x4 x;
        FW_UNROLL for (int j = 0; j < 4; ++j) x[j] = bits_of(o[g / 2][8 * (g % 2) + e + j] * inverse);
        if (p.dim_v == C::kDimV) {
          buffer_store16(out, row + 64 * g + 4 * e, x);
        } else {
          FW_UNROLL for (int j = 0; j < 4; ++j) {
            const uint32_t to = column + j < p.dim_v ? row + 64 * g + 4 * (e + j) : kNowhere;
            buffer_store4(out, to, x[j]);
          }
        }
      }
    }
  }
};

}  // namespace flashwave

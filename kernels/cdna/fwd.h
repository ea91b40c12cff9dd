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

#include "kernels/cdna/config.h"
#include "kernels/cdna/gaps.h"
#include "kernels/cdna/score.h"
#include "kernels/cdna/tile.h"

namespace flashwave {

// A step of the pipeline: the full one, and the last two of a wave, which have no first product.
enum StepKind { kFull, kLastWeights, kLastProduct };

enum ForwardOp {
  kScale,
  kExpLow,
  kExpHigh,
  kSum,
  kDrop,
  kRoundFirst,
  kRoundSecond,
  kPack,
  kSwap,
  kStoreV,
  kIssueK,
  kLoadV
};

template <class C, StepKind kKind, int kSub>
struct ForwardPlan {
  using E = typename C::Element;
  static constexpr int kSteps = E::kSteps;  // matrix instructions of a fragment
  static constexpr int kFirst = kKind == kFull ? C::kQkFragments : 0;
  static constexpr int kFragments = kFirst + 2 * C::kBlocks, kGaps = kFragments * kSteps;
  static constexpr bool kSoftmax = kKind != kLastProduct;
  static constexpr bool kLastSub = kSub == C::kSubs - 1;
  // The barrier stands before this instruction: all reads of the window have been issued, those of the next one are
  // late by one fragment.
  static constexpr int kBarrier = kSteps * (kFragments + 1 - C::kAhead);
  static constexpr int kChunksK = C::kKBytes / (kWave * C::kDirectBytes * C::kWaves);
#if defined(__gfx950__)
  static constexpr int kChunksV = C::kVBytes / (kWave * C::kDirectBytes * C::kWaves);
  static constexpr int kRounds = 0, kRowsV = 0;
#else
  static constexpr int kRounds = 8 / C::kWaves, kRowsV = kRounds * VTile<C::kTileK, C::kVColumns>::kRows;
  static constexpr int kChunksV = kRowsV;
#endif
  static constexpr int kPair = C::kPacked ? 1 : 2;  // instructions for two f32 operations
  using Schedule = Gaps<kGaps>;

  static constexpr Schedule with_room(int slots) {
    Schedule s(slots, slots < 7 ? 7 : slots, kSteps);
    if (kKind == kFull && kSub == 0) {
      // Spread over the first half: the memory unit takes one at a time. On gfx950 clang 22 waits for all direct loads
      // before the next transposing read of V: behind the last of this step, the next is half a step away.
      constexpr int kDirect = kChunksK + (kIsGfx950 ? kChunksV : 0), kBefore = kLastSub ? kBarrier : kGaps;
      for (int i = 0; i < kDirect; ++i) {
        const bool of_v = i >= kChunksK;
        const int from = kIsGfx950 ? (kLastSub ? 0 : kGaps - C::kAhead * kSteps) : i * kGaps / (2 * kDirect);
        s.add(kMemoryQueue, of_v ? kLoadV : kIssueK, of_v ? i - kChunksK : i, 0, 2, from, kBefore);
      }
    }
    if (kSoftmax)
      for (int pair = 0; pair <= 8; ++pair) {  // a pair's rounding overlaps the next pair's exponentials
        if (pair < 8) s.add(kVectorQueue, kScale, pair, kPair, kPair);
        if (pair > 0) s.add(kVectorQueue, kSum, pair - 1, kPair, kPair);
        if (pair > 0 && C::kGeneral) s.add(kVectorQueue, kDrop, pair - 1, 4, 4);
        if (pair < 8) s.add(kVectorQueue, kExpLow, pair, 4, 1);
        if (pair > 0 && E::kRoundSlots) s.add(kVectorQueue, kRoundFirst, pair - 1, E::kRoundSlots, E::kRoundSlots);
        if (pair > 0 && E::kRoundSlots) s.add(kVectorQueue, kRoundSecond, pair - 1, E::kRoundSlots, E::kRoundSlots);
        if (pair < 8) s.add(kVectorQueue, kExpHigh, pair, 4, 1);
        if (pair > 0) s.add(kVectorQueue, kPack, pair - 1, E::kPackSlots, E::kPackSlots);
        if (pair == 3 && kKind == kFull && kLastSub && !kIsGfx950) move_v(s);
      }
    s.sort();
    return s;
  }
  static constexpr void move_v(Schedule& s) {
    for (int i = 0; i < kRowsV / 2; ++i) s.add(kVectorQueue, kSwap, i, 2, 2, 0, kBarrier);
    for (int i = 0; i < kRounds; ++i) s.add(kMemoryQueue, kStoreV, i, 0, 2, s.position[kVectorQueue], kBarrier);
    for (int i = 0; i < kChunksV; ++i) s.add(kMemoryQueue, kLoadV, i, 0, 1);
  }
  static constexpr Schedule find() {
    for (int slots = 4;; ++slots) {
      const Schedule s = with_room(slots);
      if (s.fits) return s;
    }
  }
};

template <class C>
struct Forward {
  using E = typename C::Element;
  template <StepKind kKind, int kSub>
  using Plan = ForwardPlan<C, kKind, kSub>;
  template <StepKind kKind, int kSub>
  static constexpr typename Plan<kKind, kSub>::Schedule schedule = Plan<kKind, kSub>::find();
  using KTile = RowTile<C::kKRowBytes>;
  using VTileOf = VTile<C::kTileK, C::kVColumns>;
  static constexpr int kTileK = C::kTileK, kSubs = C::kSubs, kLead = C::kLead, kAhead = C::kAhead;
  static constexpr int kChunksK = Plan<kFull, 0>::kChunksK, kChunksV = Plan<kFull, 0>::kChunksV;
  static constexpr int kRowsV = Plan<kFull, 0>::kRowsV, kRounds = Plan<kFull, 0>::kRounds;

  const Params& p;
  const Sequence seq;
  const int batch, head, kv_head, lane, half, wave;
  const int first_query;  // of this wave, in its sequence

  uint32_t lds_k, lds_v;        // addresses of the buffers
  uint32_t direct_k, direct_v;  // where this wave's direct loads go
  TileStream<false> k_stream;
  TileStream<true> v_stream;
  Buffer k_tile, v_tile;
  uint32_t k_source[kChunksK], v_source[kChunksV];  // offsets in a tile of what this lane loads
  uint32_t k_read[KTile::kAddresses], v_read[VTileOf::kAddresses];
  uint32_t v_write[kRounds > 0 ? kRounds : 1];
  uint32_t staged[kRowsV > 0 ? kRowsV : 1], even[kRowsV > 0 ? kRowsV / 2 : 1], odd[kRowsV > 0 ? kRowsV / 2 : 1];
  U32x4 ahead[kAhead];  // the first fragments of the next step
  U32x4 q[C::kQkFragments];
  F32x16 o[C::kBlocks];
  float scale;          // plain: softmax_scale * log2(e)
  float sum;            // this lane's part of the row sum
  float m, negative_m;  // the reference

  int origin;                // key of row 0 of the workgroup's first tile, which is tile 0 (negative: paged, left pad)
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
        lds_k(lds),
        lds_v(lds + 2 * C::kKBytes),
        direct_k(lds + wave_index() * (kWave * C::kDirectBytes)),
        direct_v(direct_k + 2 * C::kKBytes) {}

  // ---- K and V on their way to LDS ----

  FW_METHOD void issue_k(int i, uint32_t buffer, uint32_t skip = 0) {
    // Not kept for each i in general kernels. On gfx908 clang 22 takes the assembly for an instruction between reading
    // an accumulator and the load, which leaves one wait state too few: `window` sees to it.
    constexpr bool kHere = C::kGeneral && !kIsGfx908;
    load_to_lds<C::kDirectBytes>(
        k_tile, (kHere ? here(direct_k) : direct_k) + buffer + i * (C::kWaves * kWave * C::kDirectBytes),
        k_source[i] - skip);
  }
#if defined(__gfx950__)
  FW_METHOD void load_v(int i, uint32_t buffer, uint32_t skip = 0) {
    load_to_lds<C::kDirectBytes>(v_tile, here(direct_v) + buffer + i * (C::kWaves * kWave * C::kDirectBytes),
                                 v_source[i] - skip);
  }
  FW_METHOD void swap_v(int) {}
  FW_METHOD void store_v(int, uint32_t) {}
#else
  FW_METHOD void load_v(int i, uint32_t, uint32_t skip = 0) {
    staged[i] = __builtin_amdgcn_raw_buffer_load_b32(v_tile, v_source[i] - skip, 0, 0);
  }
  FW_METHOD void swap_v(int i) {  // two rows of two columns -> two key pairs
    even[i] = permute_bytes(staged[2 * i + 1], staged[2 * i], 0x05040100);
    odd[i] = permute_bytes(staged[2 * i + 1], staged[2 * i], 0x07060302);
  }
  FW_METHOD void store_v(int round, uint32_t buffer) {
    constexpr int kPairs = VTileOf::kRows / 2;
    VTileOf::write(v_write[round] + buffer, even + kPairs * round, odd + kPairs * round);
  }
#endif
  FW_METHOD uint32_t k_buffer(int tile) const { return (tile & 1) * C::kKBytes; }
  FW_METHOD uint32_t v_buffer(int tile) const { return (tile & 1) * C::kVBytes; }

  // Rows at the start of a tile that are before the first key: only of the first tile of a sequence in pages.
  FW_METHOD int rows_before(int tile) const {
    const int first_key = origin + tile * kTileK;
    return first_key < 0 ? -first_key : 0;
  }
  template <bool kMayBeFirst>
  FW_METHOD void bring_k(int tile) {
    const int skip = kMayBeFirst ? rows_before(tile) : 0;
    k_tile = k_stream.template next<kTileK>(skip);
    if (skip == 0) {
      FW_UNROLL for (int i = 0; i < kChunksK; ++i) issue_k(i, k_buffer(tile));
    } else {
      FW_UNROLL for (int i = 0; i < kChunksK; ++i) issue_k(i, k_buffer(tile), skip * k_stream.stride);
    }
  }
  template <bool kMayBeFirst>
  FW_METHOD void bring_v(int tile) {
    const int skip = kMayBeFirst ? rows_before(tile) : 0;
    v_tile = v_stream.template next<kTileK>(skip);
    if (skip == 0) {
      FW_UNROLL for (int i = 0; i < kChunksV; ++i) load_v(i, v_buffer(tile));
    } else {
      FW_UNROLL for (int i = 0; i < kChunksV; ++i) load_v(i, v_buffer(tile), skip * v_stream.stride);
    }
  }
  // What window w moves, at once.
  FW_METHOD void open_window(int w) {
    bring_k<false>(w + kLead + 1);
    if constexpr (kIsGfx950) {
      if (kSubs == 2 || w + 1 >= 0) bring_v<true>(w + 1);
    } else {
      FW_UNROLL for (int i = 0; i < kRowsV / 2; ++i) swap_v(i);
      FW_UNROLL for (int i = 0; i < kRounds; ++i) store_v(i, v_buffer(w + 1));
      bring_v<kSubs == 1>(w + 2);
    }
  }
  FW_METHOD void close_window() {
    wait_for_memory<kIsGfx950 ? 0 : kChunksV>();  // before gfx950, V's loads go to registers
    workgroup_barrier();
  }

  // ---- one step ----

  FW_METHOD U32x4 k_fragment(int f, int sub, uint32_t buffer) const {
    return lds_read16(lds_k + k_read[f % KTile::kAddresses] + buffer + KTile::fragment_offset(f) +
                      sub * kSubTile * C::kKRowBytes);
  }
  FW_METHOD U32x4 v_fragment(int f, int sub, uint32_t buffer) const {  // step outer, block inner
    return VTileOf::fragment(v_read, lds_v + buffer, sub, f / C::kBlocks, f % C::kBlocks);
  }

  struct Work {  // values of one step
    U32x4 fragment[C::kFragments + kAhead];
    float x[16];
    F32x2 sums;  // without packed instructions only .x
    uint32_t rounded[2];
  };

  // Fragment f of a full step in a window of parity kParity; past the last: those of the next step.
  template <int kParity, int kSub, int f>
  FW_METHOD U32x4 fragment_of_full() const {
    constexpr int kK = (kParity + kLead) % 2;
    if constexpr (f < C::kQkFragments)
      return k_fragment(f, kSub, kK * C::kKBytes);
    else if constexpr (f < C::kFragments)
      return v_fragment(f - C::kQkFragments, kSub, kParity * C::kVBytes);
    else if constexpr (kSub + 1 < kSubs)
      return fragment_of_full<kParity, kSub + 1, f - C::kFragments>();
    else
      return fragment_of_full<kParity ^ 1, 0, f - C::kFragments>();
  }

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
    if constexpr (op == kIssueK) issue_k(i, (kParity + kLead + 1) % 2 * C::kKBytes);
    if constexpr (op == kSwap) swap_v(i);
    if constexpr (op == kStoreV) store_v(i, (kParity ^ 1) * C::kVBytes);
    if constexpr (op == kLoadV) load_v(i, (kParity ^ 1) * C::kVBytes);
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
        if constexpr (ahead_f < P::kFragments) z.fragment[ahead_f] = v_fragment(ahead_f, kSub, buffer);
      } else if constexpr (!P::kLastSub || ahead_f < P::kFragments || ahead_f > P::kFragments + 1) {
        z.fragment[ahead_f] = fragment_of_full<kParity, kSub, ahead_f>();
      } else if constexpr (ahead_f == P::kFragments + 1) {
        // Everything of this window has been read, and what it moves is on its way or younger than that.
        wait_for_memory<kIsGfx950 ? 0 : schedule<kKind, kSub>.count(kLoadV, P::kBarrier)>();
        workgroup_barrier();
        schedule_fence();
        z.fragment[ahead_f - 1] = fragment_of_full<kParity, kSub, ahead_f - 1>();
        z.fragment[ahead_f] = fragment_of_full<kParity, kSub, ahead_f>();
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
    FW_UNROLL for (int f = 0; f < kAhead; ++f) z.fragment[f] = kKind == kFull ? ahead[f] : v_fragment(f, kSub, buffer);
    next = F32x16(0.f);
    schedule_fence();
    do_gaps<kParity, kKind, kSub>(z, next, s, old, weights, buffer, Count<P::kGaps>());
    if constexpr (kKind == kFull) made_here(next);
    if constexpr (kKind == kFull) FW_UNROLL for (int f = 0; f < kAhead; ++f) ahead[f] = z.fragment[P::kFragments + f];
    if constexpr (P::kSoftmax) {
      const float before = sum;
      const float added = C::kPacked ? z.sums.x + z.sums.y : z.sums.x;
      sum += added;
      if (__builtin_expect(any_lane(!(added <= E::kLimit)), 0)) rescue(s, weights, before);
    }
  }
  template <int kParity>
  FW_METHOD void window(int w, Scores& s1, uint32_t* weights0) {  // s1 = S(2w + 1), weights0 = P(2w), in sub-tiles of w
    if (C::kGeneral) origin = here(origin);
    if (C::kGeneral && kIsGfx908) direct_k = here(direct_k);
    k_tile = k_stream.template next<kTileK>();
    v_tile = v_stream.template next<kTileK>();
    if constexpr (kSubs == 2) {
      Scores s0;
      uint32_t weights1[8];
      step<kParity, kFull, 0>(s0.s, s1, weights0, weights1);
      finish_scores(s0, origin + (w + 1) * kTileK);
      step<kParity, kFull, 1>(s1.s, s0, weights1, weights0);
      finish_scores(s1, origin + (w + 1) * kTileK + kSubTile);
    } else {
      Scores s2;
      uint32_t weights1[8];
      step<kParity, kFull, 0>(s2.s, s1, weights0, weights1);
      finish_scores(s2, origin + (w + 2) * kTileK);
      s1 = s2;
      FW_UNROLL for (int i = 0; i < 8; ++i) weights0[i] = weights1[i];
    }
  }

  // ---- softmax ----

  FW_METHOD F32x2 exponents(F32x2 s, float offset) const {
    if constexpr (C::kGeneral) return s + offset;
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
    if constexpr (!C::kGeneral) top *= scale;
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
      if constexpr (C::kGeneral) x.x = kept(s, r, x.x), x.y = kept(s, r + 1, x.y);
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
    if constexpr (C::kGeneral) {
      Modifier{params_again(), batch, head, first_query, rows(), keys, diagonal}.apply(s, key);
    }
    if (__builtin_expect(key < inner_from || key + kSubTile > inner_to, 0)) {
      const int i = lane_index_again(), row = min_of(i & 31, rows() - 1);
      // As visible_keys. The mask's edges for the wave's first query, from the parameters: registers are scarce.
      const Params& p = params_again();
      const int64_t aligned = here(diagonal);
      const int edge_from = int(clamped(aligned - p.window_left)), edge_to = int(clamped(aligned + p.window_right + 1));
      const int to = min_of(edge_to + row, keys), from = max_of(edge_from + row, 0);
      const int first = here_in_lanes(key + 4 * (i >> 5) - from);  // added to numbers that need no register
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
    const int workgroup_last = min_of(workgroup_query + C::kTileQ, queries) - 1;
    const int last_query = min_of(first_query + kRowsPerWave, queries) - 1;
    const KeyRange top = visible_keys(p, seq, workgroup_query), bottom = visible_keys(p, seq, workgroup_last);
    const KeyRange first = visible_keys(p, seq, first_query), last = visible_keys(p, seq, last_query);
    diagonal = uniform(first_query + keys - queries);
    const int rows = this->rows();
    inner_from = int(last.first), inner_to = int(first.last);
    origin = p.block_table ? -int(uint32_t(seq.k_row) % kTileK) : 0;
    origin = uniform(origin + (int(top.first) - origin) / kTileK * kTileK);
    end_tile = (int(bottom.last) - origin + kTileK - 1) / kTileK;
    if (int(bottom.last) <= int(top.first)) end_tile = 0;
    my_first = (int(first.first) - origin) / kTileK;
    my_end = (int(last.last) - origin + kTileK - 1) / kTileK;
    if (rows == 0 || int(last.last) <= int(first.first)) my_first = my_end = end_tile;
    if constexpr (kSubs == 1) {  // the pipeline starts with two sub-tiles
      if (end_tile == 1) ++end_tile;
      if (my_end == my_first + 1) my_first > 0 ? --my_first : ++my_end;
    }
    if (my_first < my_end) my_first -= my_first & 1;  // the loop begins with the first buffers
    int to = origin + end_tile * kTileK;
    if (to > keys) to = keys;
    k_stream.start(p, seq, kv_head, origin, to);
    v_stream.start(p, seq, kv_head, origin, to);
  }
  // Queries of this wave.
  FW_METHOD int rows() const { return max_of(min_of(kRowsPerWave, here(keys) - diagonal), 0); }
  FW_METHOD static int min_of(int a, int b) { return a < b ? a : b; }
  FW_METHOD static int max_of(int a, int b) { return a > b ? a : b; }
  FW_METHOD static int64_t clamped(int64_t x) {  // so that 32 may be added
    constexpr int64_t kMost = 0x7FFFFF00;
    return x < -kMost ? -kMost : x > kMost ? kMost : x;
  }

  FW_METHOD void find_addresses() {
    direct_sources<KTile, C::kDirectBytes, C::kWaves, kChunksK>(k_source, lane, wave, k_stream.stride, k_stream.row);
    FW_UNROLL for (int i = 0; i < KTile::kAddresses; ++i) k_read[i] = KTile::read_address(lane, i);
    FW_UNROLL for (int i = 0; i < VTileOf::kAddresses; ++i) v_read[i] = VTileOf::read_address(lane, i);
#if defined(__gfx950__)
    direct_sources<VTileOf, C::kDirectBytes, C::kWaves, kChunksV>(v_source, lane, wave, v_stream.stride, v_stream.row);
#else
    FW_UNROLL for (int i = 0; i < kRounds; ++i) {
      const int unit = wave + C::kWaves * i;
      VTileOf::sources(v_source + VTileOf::kRows * i, lane, unit, v_stream.stride, v_stream.row);
      v_write[i] = lds_v + VTileOf::write_address(lane, unit);
    }
#endif
  }

  FW_METHOD Buffer wave_buffer(const abi::Tensor& t, const Sequence& seq, int dim, int bytes = 2) const {
    const int rows = this->rows();
    return make_buffer(static_cast<const char*>(t.data) + uniform(query_offset(t, seq, first_query, head)) * bytes,
                       rows > 0 ? (rows - 1) * uint32_t(t.stride[1] * bytes) + dim * bytes : 0);
  }
  FW_METHOD void load_q() {
    const Buffer in = wave_buffer(p.q, seq, p.dim_qk);
    const uint32_t row = (lane & 31) * uint32_t(p.q.stride[1] * 2) + 16 * half;
    if (p.dim_qk == C::kDimQk) {
      FW_UNROLL for (int f = 0; f < C::kQkFragments; ++f) {
        q[f] = __builtin_amdgcn_raw_buffer_load_b128(in, row + 32 * f, 0, 0);
      }
      return;
    }
    FW_UNROLL for (int f = 0; f < C::kQkFragments; ++f) {
      const int column = 16 * f + 8 * half;
      q[f] = __builtin_amdgcn_raw_buffer_load_b128(in, column < p.dim_qk ? row + 32 * f : kNowhere, 0, 0);
      FW_UNROLL for (int i = 0; i < 4; ++i) q[f][i] = column + 2 * i < p.dim_qk ? q[f][i] : 0;
    }
  }

  FW_METHOD void attend() {
    int w = -kLead;
    Scores s1;
    uint32_t weights0[8];
    bring_k<true>(0);
    if constexpr (!kIsGfx950) {
      if constexpr (kSubs == 2) {
        bring_v<true>(0);
      } else {
        v_tile = make_buffer(v_stream.base, 0);
        FW_UNROLL for (int i = 0; i < kChunksV; ++i) load_v(i, 0);
      }
    }
    load_q();
    wait_for_memory<0>();
    workgroup_barrier();
    for (; w + kLead < my_first; ++w) {  // another wave's queries see these keys
      open_window(w);
      close_window();
    }
    if (my_first < my_end) {
      Scores s0;
      FW_UNROLL for (int sub = 0; sub < 2; ++sub) {
        if (sub % kSubs == 0) open_window(w);
        F32x16 s = F32x16(0.f);
        FW_UNROLL for (int f = 0; f < C::kQkFragments; ++f) {
          const U32x4 a = k_fragment(f, sub % kSubs, k_buffer(w + kLead));
          multiply_all(a, q[f], s, Count<E::kSteps>());
        }
        Scores& scores = sub == 0 ? s0 : s1;
        scores.s = s;
        if (sub % kSubs == kSubs - 1) {
          close_window();
          ++w;
        }
      }
      finish_scores(s0, origin + my_first * kTileK);
      finish_scores(s1, origin + my_first * kTileK + kSubTile);
      rescue(s0, weights0, 0.f);
      read_ahead(w);
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
      if constexpr (kSubs == 1) open_window(w);
      step<0, kLastWeights, 0>(unused, s1, weights0, weights1, v_buffer(w));
      if constexpr (kSubs == 1) {
        close_window();
        ++w;
      }
      step<0, kLastProduct, kSubs - 1>(unused, s1, weights1, weights0, v_buffer(w));
    }
    for (; w + 1 < end_tile; ++w) {
      open_window(w);
      close_window();
    }
  }
  template <int... k>
  FW_METHOD void multiply_all(U32x4 a, U32x4 b, F32x16& c, Indices<int, k...>) {
    ((c = E::template multiply<k>(a, b, c)), ...);
  }
  FW_METHOD void read_ahead(int w) {
    FW_UNROLL for (int f = 0; f < kAhead; ++f) ahead[f] = k_fragment(f, 0, k_buffer(w + kLead));
  }

  FW_METHOD void run(int workgroup_query) {
    scale = p.softmax_scale * kLog2e;
    sum = 0.f, m = -kInf, negative_m = kInf;
    FW_UNROLL for (int i = 0; i < C::kBlocks; ++i) o[i] = F32x16(0.f);
    find_keys(workgroup_query);
    find_addresses();
    attend();
    store();
  }

  FW_METHOD void store() {
    const Params& p = params_again();
    const Sequence seq = sequence_of(p, batch);
    const int i = lane_index_again(), query = i & 31, half = i >> 5;
    const int rows = this->rows();
    float total = sum + other_half(sum);
    if (p.sinks) {  // one more weight, of no value
      const float sink = p.sinks[head] * kLog2e, raised = __builtin_fmaxf(m, sink);
      if (raised > -kInf) {
        const float factor = exp2_fast(m - raised);
        total = total * factor + exp2_fast(sink - raised + E::kShift + E::kBias);
        m = raised;
        FW_UNROLL for (int i = 0; i < C::kBlocks; ++i) o[i] *= factor;
      }
    }
    float inverse = total == 0.f ? 0.f : rcp_fast(total);
    if constexpr (E::kBias != 0.f) inverse *= exp2_fast(E::kBias);  // truncation took it out of the weights
    if constexpr (C::kGeneral) inverse *= p.dropout_threshold ? 1.f / (1.f - p.dropout_p) : 1.f;
    if (p.lse.data && half == 0 && query < rows)
      static_cast<float*>(p.lse.data)[query_offset(p.lse, seq, first_query + query, head)] =
          total == 0.f ? -kInf : from_log2<C::kGeneral>(m - E::kBias - E::kShift + log2_fast(total));
    if (p.o.dtype == abi::kF32) return store_floats(p, seq, inverse, query < rows);
    const Buffer out = wave_buffer(p.o, seq, p.dim_v);
    const uint32_t row = query * uint32_t(p.o.stride[1] * 2) + 16 * half;
    FW_UNROLL for (int g = 0; g < 2 * C::kBlocks; ++g) {
      const int column = 16 * g + 8 * half;
      U32x4 x;
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        const int r = 8 * (g % 2) + 2 * e;
        const F32x2 pair = F32x2{o[g / 2][r], o[g / 2][r + 1]} * inverse;
        x[e] = E::pack(pair.x, pair.y);
      }
      if (p.dim_v == C::kDimV) {
        __builtin_amdgcn_raw_buffer_store_b128(x, out, row + 32 * g, 0, 0);
      } else {
        FW_UNROLL for (int e = 0; e < 4; ++e) {
          const bool exists = column + 2 * e < p.dim_v;
          __builtin_amdgcn_raw_buffer_store_b32(x[e], out, exists ? row + 32 * g + 4 * e : kNowhere, 0, 0);
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
          __builtin_amdgcn_raw_buffer_store_b128(x, out, row + 64 * g + 4 * e, 0, 0);
        } else {
          FW_UNROLL for (int j = 0; j < 4; ++j) {
            const uint32_t to = column + j < p.dim_v ? row + 64 * g + 4 * (e + j) : kNowhere;
            __builtin_amdgcn_raw_buffer_store_b32(x[j], out, to, 0, 0);
          }
        }
      }
    }
  }
};

}  // namespace flashwave

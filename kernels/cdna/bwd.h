// The kernel of dK and dV, and of dQ by sums in memory. A workgroup has 4 waves of 32 keys and goes along the queries
// that see them in tiles of 32.
//
//   product                          A, by lanes               B
//   S = Q K^T, dP = dO V^T           query: rows in LDS        key: registers, for the whole kernel
//   dV^T += dO^T P, dK^T += Q^T dS   column: columns in LDS    key: P and dS as they come out of S and dP
//   dQ = dS K                        query: rows of dS in LDS  column: registers
//
// Query is the row of the accumulators of S and dP, so four registers in a row are a B operand that is summed over
// queries: P and dS stay where they are. Only dQ is summed over keys, which are spread over lanes and waves: dS crosses
// LDS once, and each wave makes 32 columns of dQ from the keys of all.
//
// lse and delta come from the pass before (bwd_numbers.h). Masks are minima with bounds of +-2^64 (kHuge), not
// comparisons, which would need wait states.
//
// Step t of the loop: S(t), dP(t), dQ(t - 1), dV(t), dK(t). P(t) is made behind dP and dQ, dS(t) behind dV. The rows
// and columns of t + 1 go from registers to LDS, and the tile kSets behind it is loaded. Two barriers (bwd_plan.h).
//
// Registers hold 128 columns of dK and dV: with head dims above that the walk is done twice, for half of the columns
// each.
#pragma once

#include "kernels/cdna/bwd_lds.h"
#include "kernels/cdna/bwd_modify.h"
#include "kernels/cdna/bwd_numbers.h"
#include "kernels/cdna/bwd_plan.h"

namespace flashwave {

template <class C>
struct Backward {
  using E = typename C::Element;
  static constexpr int kStaged = C::kStaged, kAhead = C::kAhead, kSets = C::kSets;
  static_assert(kSets == 2);
  template <bool kMasked, int kBuffer>
  using Plan = BackwardPlan<C, kMasked, C::kPairs ? kBuffer : 0>;
  template <bool kMasked, int kBuffer>
  static constexpr typename Plan<kMasked, kBuffer>::Schedule schedule = Plan<kMasked, kBuffer>::find();

  const Params& p;
  const Sequence seq;
  const int head, lane, half, wave;
  const int first_key;  // of the workgroup; negative where its first rows are left pad

  BackwardStream<C> stream;
  BackwardLds<C> lds;
  BackwardModifier<C> modifier;
  BackwardNumbers<C> numbers;
  U32x4 k[C::kQkFragments], v[C::kVFragments], k_columns[C::kFused ? C::kDqColumns : 1][C::kDqUses];
  F32x16 dk[C::kQkBlocks], dv[C::kVBlocks];
  U32x4 ahead[kAhead];                                                // the first fragments of the next tile
  float key_bias;                                                     // of exponents: -infinity for lanes without a key
  static constexpr int kDqTargets = C::kDimQk % 64 ? C::kDqUses : 1;  // blocks side by side need one
  uint32_t dq_target[kDqTargets];
  F32x16 dq[C::kDqUses];  // kPairs: of a tile from step to step

  QueryTiles range;              // that see the workgroup's keys
  int clear_first, clear_pairs;  // of those, the ones that see all keys of the wave, and so does the next one
  int tile, done, in_group;      // tile of the head, tiles of all heads so far, head of the group
  int loop_of_next;
  Edges edges;

  FW_METHOD Backward(const Params& params, const Sequence& sequence, int key_head, int key)
      : p(params),
        seq(sequence),
        head(key_head),
        lane(lane_index()),
        half(lane_index() >> 5),
        wave(wave_index()),
        first_key(key),
        modifier(params) {}

  // Fragment f of a tile in kBuffer.
  template <int kBuffer>
  FW_METHOD U32x4 fragment(int f) const {
    if (f < C::kFirstDp) return lds.template row_fragment<kBuffer>(0, f);
    if (f < C::kFirstDq) return lds.template row_fragment<kBuffer>(1, f - C::kFirstDp);
    if (f < C::kFirstDv) return lds.template ds_fragment<kBuffer>(f - C::kFirstDq);
    const int matrix = f < C::kFirstDk ? 1 : 0, blocks = matrix ? C::kVBlocks : C::kQkBlocks;
    const int i = f - (matrix ? C::kFirstDv : C::kFirstDk);
    return lds.template column_fragment<kBuffer>(matrix, i / blocks, i % blocks);
  }

  // ---- one tile ----

  struct Tile {
    U32x4 fragment[C::kFragments + kAhead];
    F32x16 s, dp;
    float x[16];  // exponents, P, dS
    uint32_t rounded[2], probs[8], ds[8];
    float right, left;  // bounds of the mask for query 0 of the tile
  };

  FW_METHOD static void set_pair(Tile& z, int i, F32x2 x) { z.x[2 * i] = x.x, z.x[2 * i + 1] = x.y; }
  FW_METHOD static constexpr int query_of_register(int r) { return 8 * (r >> 2) + (r & 3); }
  FW_METHOD void scale(Tile& z, int r) const { z.x[r] = numbers.scaled(z.s[r], key_bias); }
  FW_METHOD void scale_pair(Tile& z, int i) const {
    if constexpr (C::kPacked) {
      set_pair(z, i, numbers.scaled(pair_of(z.s, i), key_bias));
    } else {
      scale(z, 2 * i), scale(z, 2 * i + 1);
    }
  }
  template <int kRegister>
  FW_METHOD void exponent(Tile& z) const {
    z.x[kRegister] = numbers.template exponent<kRegister>(z.x[kRegister]);
  }
  FW_METHOD static void mask(Tile& z, int r) {
    const float i = kHuge * float(query_of_register(r));
    z.x[r] = __builtin_fminf(__builtin_fminf(z.x[r], z.right + i), z.left - i);
  }
  FW_METHOD void weight(Tile& z, int r) const { z.x[r] = exp2_fast(modifier.bounded(z.x[r])); }
  template <int kRegister>
  FW_METHOD void gradient(Tile& z) const {
    z.x[kRegister] *= numbers.template difference<kRegister>(modifier.kept(z.dp[kRegister], kRegister));
    z.x[kRegister] = modifier.through_cap(z.x[kRegister], kRegister);
  }
  template <int kPair>
  FW_METHOD void gradient_pair(Tile& z) const {
    if constexpr (C::kPacked) {
      set_pair(z, kPair, pair_of(z.x, kPair) * pair_of(z.dp, kPair));
    } else {
      gradient<2 * kPair>(z), gradient<2 * kPair + 1>(z);
    }
  }
  FW_METHOD void add_dq(int i, float x) {  // register i % 16 of block i / 16
    constexpr int kNear = 4096;            // what an instruction can add by itself
    const int at = query_of_register(i % 16) * C::kDimQk * 4;
    const int target = i / 16 % kDqTargets, beside = (i / 16 - target) * 32 * 4;
    add_to_memory(stream.sums_tile, dq_target[target] + at % kNear + beside, at / kNear * kNear, x);
  }

  template <int kItem, int kBuffer, bool kMasked>
  FW_METHOD void item(Tile& z) {
    constexpr int op = schedule<kMasked, kBuffer>.item[kItem].op, i = schedule<kMasked, kBuffer>.item[kItem].index;
    constexpr int kSet = (kBuffer + 1) % kSets;  // of the next tile, then of the one kSets behind it
    if constexpr (op == kModifyScores) modifier.apply(z.s, tile_place());
    if constexpr (op == kScaleScore) scale_pair(z, i);
    if constexpr (op == kExponent) exponent<2 * i>(z), exponent<2 * i + 1>(z);
    if constexpr (op == kMaskScore) mask(z, 2 * i), mask(z, 2 * i + 1);
    if constexpr (op == kExpEven) weight(z, 2 * i);
    if constexpr (op == kExpOdd) weight(z, 2 * i + 1);
    if constexpr (op == kRoundP) round_weights(z, i);
    if constexpr (op == kPackP) pack_weights(z, i);
    if constexpr (op == kGradient) gradient_pair<i>(z);
    if constexpr (op == kPackDs) z.ds[i] = Near<E>::pack(Near<E>::round(z.x[2 * i]), Near<E>::round(z.x[2 * i + 1]));
    if constexpr (op == kShareDs) lds.template share_ds<kBuffer>(i, z.ds);
    if constexpr (op == kCarryRow) lds.template carry_row<kSet, kBuffer ^ 1>(i);
    if constexpr (op == kSwapColumns) lds.template swap_columns<kSet>(i);
    if constexpr (op == kCarryColumns) lds.template carry_columns<kBuffer ^ 1>(i);
    if constexpr (op == kLoadRow) lds.template load<kSet>(stream, i);
    if constexpr (op == kLoadNumbers) numbers.template load<kSet>(stream.numbers_tile);
    if constexpr (op == kAdvance && !(C::kPairs && kBuffer == 0 && i == BackwardStream<C>::kDescribeSums))
      stream.template advance<i>();
    if constexpr (op == kAddDq) add_dq(i, dq[i / 16][i % 16]);
    if constexpr (op == kStartDp) numbers.start_dp(z.dp, i);
    if constexpr (op == kShareNumber) numbers.share();
    if constexpr (op == kStartNextS) numbers.start_next_s(i);
    if constexpr (op == kCountTile) count_tile();
    if constexpr (op == kChangeDs) lds.change_ds();
    if constexpr (op == kChooseLoop && kBuffer == 1) choose_loop();
  }
  FW_METHOD void round_weights(Tile& z, int i) const {
    z.rounded[0] = Near<E>::round(z.x[2 * i]), z.rounded[1] = Near<E>::round(z.x[2 * i + 1]);
  }
  FW_METHOD void pack_weights(Tile& z, int i) const {
    if constexpr (Near<E>::kRoundSlots == 0) round_weights(z, i);
    z.probs[i] = modifier.kept_pair(Near<E>::pack(z.rounded[0], z.rounded[1]), i);
  }
  template <int kFirst, int kBuffer, bool kMasked, int... kItem>
  FW_METHOD void items(Tile& z, Indices<int, kItem...>) {
    (item<kFirst + kItem, kBuffer, kMasked>(z), ...);
  }

  FW_METHOD static U32x4 four(const uint32_t* x) { return (U32x4){x[0], x[1], x[2], x[3]}; }

  template <int kFragment, int kBuffer>
  FW_METHOD void fetch(Tile& z) const {
    constexpr bool kNext = kFragment >= C::kFragments;
    z.fragment[kFragment] = fragment<kNext ? kBuffer ^ 1 : kBuffer>(kNext ? kFragment - C::kFragments : kFragment);
  }

  // Matrix instruction kGap, the fragment read that goes with it, and the work of its gap.
  template <int kGap, int kBuffer, bool kMasked>
  FW_METHOD void step(Tile& z) {
    using S = Plan<kMasked, kBuffer>;
    constexpr auto& plan = schedule<kMasked, kBuffer>;
    constexpr int f = C::fragment_of_product(kGap / S::kSteps), use = kGap / S::kSteps - C::products_before(f),
                  part = kGap % S::kSteps;
    constexpr auto is_barrier = [](int at) {
      return (!S::kOneBarrier && at == S::kFirstBarrier) || at == S::kSecondBarrier;
    };
    constexpr bool kBegins = part == 0 && use == 0, kBarrier = kBegins && is_barrier(f), kLate = is_barrier(f + 1);
    if constexpr (kBarrier) {
      workgroup_barrier();
      schedule_fence();
      fetch<f + kAhead - 1, kBuffer>(z);
    }
    const U32x4 a = z.fragment[f];
    if constexpr (f < C::kFirstDp) {
      z.s = E::template multiply<part>(a, k[f], z.s);
    } else if constexpr (f < C::kFirstDq) {
      z.dp = E::template multiply<part>(a, v[f - C::kFirstDp], z.dp);
    } else if constexpr (f < C::kFirstDv) {
      constexpr int kFirst = C::kPairs ? kBuffer * C::kDqFragments : 0, i = f - C::kFirstDq;
      constexpr bool kStart = part == 0 && kFirst + i == 0;
      const F32x16 sum = kStart ? F32x16(0.f) : dq[use];
      dq[use] = E::template multiply<part>(a, k_columns[kFirst + i][use], sum);
    } else {
      constexpr bool kOfV = f < C::kFirstDk;
      constexpr int blocks = kOfV ? C::kVBlocks : C::kQkBlocks, i = f - (kOfV ? C::kFirstDv : C::kFirstDk);
      constexpr int b = i % blocks, pairs = i / blocks * 4;
      if constexpr (kOfV) {
        dv[b] = E::template multiply<part>(a, four(z.probs + pairs), dv[b]);
      } else {
        dk[b] = E::template multiply<part>(a, four(z.ds + pairs), dk[b]);
      }
    }
    schedule_fence();
    constexpr int first = plan.first(kGap), end = plan.first(kGap + 1), op = end > first ? plan.item[first].op : -1;
    constexpr int kFirst = end > first && !(C::kPacked && (op == kScaleScore || op == kGradient));
    if constexpr (kFirst) {
      item<first, kBuffer, kMasked>(z);
      if (op == kExpEven || op == kExpOdd) schedule_fence();
    }
    if constexpr (kBegins && !kLate) fetch<f + kAhead, kBuffer>(z);  // hides behind an exponential
    if constexpr (end > first + kFirst) items<first + kFirst, kBuffer, kMasked>(z, Count<end - first - kFirst>());
    schedule_fence();
  }
  template <int kBuffer, bool kMasked, int... kGap>
  FW_METHOD void steps(Tile& z, Indices<int, kGap...>) {
    (step<kGap, kBuffer, kMasked>(z), ...);
  }

  template <int kBuffer, bool kMasked>
  FW_METHOD void body() {
    Tile z;
    FW_UNROLL for (int i = 0; i < kAhead; ++i) z.fragment[i] = ahead[i];
    z.s = z.dp = 0.f;
    if constexpr (C::kStarts) z.s = numbers.next_s;
    if constexpr (kMasked) {
      const int lane_again = lane_index_again(), query = tile * kQueryTile + 4 * (lane_again >> 5);
      const int apart = first_key + wave * kWaveKeys + (lane_again & 31) - query;
      z.right = room(edges.right, apart), z.left = room(apart, edges.left);
    }
    // Sums with these stay in the loop, where many are part of the instructions.
    if constexpr (C::kFused) {
      FW_UNROLL for (int i = 0; i < kDqTargets; ++i) hold(dq_target[i]);
    }
    lds.hold_sources();
    schedule_fence();
    steps<kBuffer, kMasked>(z, Count<Plan<kMasked, kBuffer>::kGaps>());
    // clang may end the loop with copies of what an earlier tile loads, and forgets to wait where more than 63 younger
    // operations follow. A tile has two loads more than dwords are staged.
    if constexpr (kBuffer == 1 && C::kWalks > 1 && !C::kTransposing) {
      wait_for_loads<2 * kStaged + 2>();
      schedule_fence();
    }
    FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = z.fragment[C::kFragments + i];
    numbers.next(kBuffer, done < stream.total);
  }
  // Which loop has the next two tiles, of which both see all keys of the wave, or not. Scalar, in gaps of the loops.
  enum Loop { kEnd, kWithMask, kWithoutMask };
  FW_METHOD void count_tile() {
    ++done;
    const bool wraps = ++tile == range.end;
    tile = here(wraps ? range.first : tile);
    if constexpr (C::kModified) in_group += wraps ? 1 : 0;
  }
  FW_METHOD void choose_loop() {
    const bool clear = uint32_t(tile - clear_first) < uint32_t(clear_pairs);
    loop_of_next = here(done < stream.total ? (clear ? int{kWithoutMask} : int{kWithMask}) : int{kEnd});
  }
  FW_METHOD TilePlace tile_place() const {
    const int group = p.heads_q / p.heads_k;  // a tile too many counts as one of the last head
    return {seq.b,
            head * group + (in_group < group ? in_group : group - 1),
            tile * kQueryTile,
            first_key + wave * kWaveKeys,
            int(seq.queries),
            int(seq.keys)};
  }

  // ---- the whole ----

  FW_METHOD void set_addresses(uint32_t shared, int walk, bool in_order) {
    const int block = wave % C::kDqBlocks;
    lds.set_addresses(stream, shared, lane, wave, walk, wave / C::kDqBlocks * C::kDqKeys);
    numbers.set_addresses(shared, lane, wave);
    FW_UNROLL for (int i = 0; i < kDqTargets; ++i) {
      const int column = 32 * (block * C::kDqUses % C::kDqBlocks + i), at = 4 * half * C::kDimQk + column + (lane & 31);
      dq_target[i] = column < C::kDimQk ? abi::backward_dq_at(kQueryTile) + at * 4 : kNowhere;
      if (C::kSumsOfTile > 1 && in_order) dq_target[i] += wave / C::kDqBlocks * C::kSumBytes;
    }
  }

  FW_METHOD bool is_key(int key) const { return (key >= 0) & (key < int(seq.keys)); }
  FW_METHOD Buffer rows_of(const abi::Tensor& t, int rows, int dim) const {
    const char* const first =
        static_cast<const char*>(t.data) + uniform(stored_offset(t, seq, here(uniform(first_key)), head) * 2);
    const bool exists = t.data && rows > 0;
    return make_buffer(first, exists ? uint32_t(uniform(rows) - 1) * uint32_t(t.stride[1]) * 2 + uint32_t(dim) * 2 : 0);
  }
  FW_METHOD void load_keys(int rows) {
    const Buffer k_rows = rows_of(p.k, rows, p.dim_qk), v_rows = rows_of(p.v, rows, p.dim_v);
    const uint32_t k_stride = uint32_t(p.k.stride[1]) * 2, v_stride = uint32_t(p.v.stride[1]) * 2;
    const int row = wave * kWaveKeys + (lane & 31);
    const bool exists = is_key(first_key + row);
    key_bias = exists ? E::kBias : -kInf;
    FW_UNROLL for (int i = 0; i < C::kQkFragments; ++i) {
      const int column = 16 * i + 8 * half;
      k[i] = buffer_load16(k_rows, (exists & (column < p.dim_qk)) ? row * k_stride + column * 2 : kNowhere);
    }
    FW_UNROLL for (int i = 0; i < C::kVFragments; ++i) {
      const int column = 16 * i + 8 * half;
      v[i] = buffer_load16(v_rows, (exists & (column < p.dim_v)) ? row * v_stride + column * 2 : kNowhere);
    }
    if constexpr (C::kFused) load_columns(rows, k_stride);
  }
  FW_METHOD void load_columns(int rows, uint32_t stride) {
    const int block = wave * C::kDqUses % C::kDqBlocks, first = wave / C::kDqBlocks * C::kDqKeys + 8 * half;
    const int keys = int(seq.keys) - first_key;
    const Buffer k_rows = rows_of(p.k, rows < keys ? rows : keys, p.dim_qk);
    uint32_t source[C::kDqUses];
    FW_UNROLL for (int use = 0; use < C::kDqUses; ++use) {
      const int column = 32 * (block + use) + (lane & 31);
      source[use] = column < p.dim_qk ? first * stride + column * 2 : kNowhere;
    }
    FW_UNROLL for (int i = 0; i < C::kDqColumns; ++i) {
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        const uint32_t key = 16 * i + 2 * e;
        FW_UNROLL for (int use = 0; use < C::kDqUses; ++use) {
          const uint32_t low = buffer_load2(k_rows, source[use], key * stride),
                         high = buffer_load2(k_rows, source[use], (key + 1) * stride);
          k_columns[i][use][e] = low | high << 16;
        }
      }
    }
    if (first_key >= 0) return;
    FW_UNROLL for (int i = 0; i < C::kDqColumns; ++i) {  // left pad
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        const int key = first_key + first + 16 * i + 2 * e;
        const uint32_t mask = (key < 0 ? 0 : 0xFFFFu) | (key + 1 < 0 ? 0 : 0xFFFF0000u);
        FW_UNROLL for (int use = 0; use < C::kDqUses; ++use) k_columns[i][use][e] &= mask;
      }
    }
  }

  FW_METHOD void set_mask() {
    edges = edges_of(p, seq);
    edges.left = uniform(edges.left), edges.right = uniform(edges.right);
    const int from = first_key + wave * kWaveKeys, last = int(seq.keys);
    const int begin = from < 0 ? 0 : from, end = from + kWaveKeys < last ? from + kWaveKeys : last;
    // A wave without keys has no mask: its weights are 0.
    const QueryTiles own = query_tiles(edges, int(seq.queries), begin, end, kQueryTile);
    int first = begin < end ? own.all_first : 0, behind = begin < end ? own.all_end : 1 << 30;
    const bool all = first <= range.first && behind >= range.end;  // the first tile of a head comes behind the last
    behind = behind < range.end ? behind : range.end;
    const int pairs = all ? 1 << 30 : behind - 1 > first ? behind - 1 - first : 0;
    clear_first = uniform(all ? 0 : first), clear_pairs = uniform(pairs);
  }

  // chain: which of the sums of dQ are the workgroup's, where their order is fixed.
  FW_METHOD void run(const GpuArguments& args, uint32_t shared, int rows, int chain) {
    const int begin = first_key < 0 ? 0 : first_key;
    const int end = first_key + C::kTileK < int(seq.keys) ? first_key + C::kTileK : int(seq.keys);
    range = query_tiles(edges_of(p, seq), int(seq.queries), begin, end, kQueryTile);
    range.first = uniform(range.first), range.end = uniform(range.end);
    numbers.set_scale(p.softmax_scale);
    if (range.first < range.end) load_keys(rows), set_mask();
    FW_NO_UNROLL for (int walk = 0; walk < C::kWalks; ++walk) {
      if (range.first < range.end) {
        stream.start(args, seq, head, range, chain);
        set_addresses(shared, walk, args.schedule.in_order != 0);
        loop();
      } else {
        clear();
      }
      store_walk<true>(rows, walk);
      if (uniform(int(all_are_keys(rows))) == 0) store_walk<false>(rows, walk);
      if constexpr (C::kWalks > 1) workgroup_barrier();  // the last reads of LDS, before the next walk writes there
    }
  }

  FW_METHOD void clear() {
    FW_UNROLL for (int i = 0; i < C::kQkBlocks; ++i) dk[i] = 0.f;
    FW_UNROLL for (int i = 0; i < C::kVBlocks; ++i) dv[i] = 0.f;
  }
  FW_METHOD void loop() {
    const auto load = [&]<int kSet>(Indices<int, kSet>) {
      FW_UNROLL for (int i = 0; i < 2 * kStaged; ++i) lds.template load<kSet>(stream, i);
    };
    stream.next_tile();
    load(Indices<int, 0>());
    stream.next_tile();
    numbers.template load<1>(stream.numbers_tile);
    numbers.begin();
    FW_UNROLL for (int i = 0; i < 2 * kStaged; ++i) lds.template carry_row<0, 0>(i);
    if constexpr (!C::kTransposing) {
      FW_UNROLL for (int i = 0; i < kStaged / C::kWalks; ++i) lds.template swap_columns<0>(i);
      lds.template carry_columns<0>(0), lds.template carry_columns<0>(1);
    }
    if constexpr (C::kFused) {  // of the tile before the first, or the two before
      constexpr uint32_t kZeros[8] = {};
      if constexpr (C::kPairs) {
        lds.change_ds();
        FW_UNROLL for (int i = 0; i < 8; ++i) lds.template share_ds<0>(i, kZeros);
      }
      FW_UNROLL for (int i = 0; i < 8; ++i) lds.template share_ds<1>(i, kZeros);
      if constexpr (C::kPairs) lds.change_ds();
    }
    load(Indices<int, 1>());
    stream.next_tile();
    if constexpr (C::kStarts) numbers.template load<0>(stream.numbers_tile);
    load(Indices<int, 0>());
    if constexpr (C::kFused) {
      // Dropped; but as many memory operations are younger than the loads as in the loop, and the waits are the same.
      stream.go_behind(C::kPairs ? 3 - wave / 2 : 1);
      FW_UNROLL for (int i = 0; i < C::kDqUses; ++i) dq[i] = 0.f;
      FW_UNROLL for (int i = 0; i < 16; ++i) add_dq(i, 0.f);
    }
    if constexpr (!C::kStarts) numbers.template load<0>(stream.numbers_tile);
    workgroup_barrier();
    FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = fragment<0>(i);
    // Head dim 64 has vector registers enough.
    if constexpr (C::kPadded > 64) {
      FW_UNROLL for (int i = 0; i < C::kQkFragments; ++i) keep_in_accumulators(k[i]);
      FW_UNROLL for (int i = 0; i < C::kVFragments; ++i) keep_in_accumulators(v[i]);
      if constexpr (C::kFused) {
        FW_UNROLL for (int i = 0; i < C::kDqColumns * C::kDqUses; ++i) {
          keep_in_accumulators(k_columns[i / C::kDqUses][i % C::kDqUses]);
        }
      }
    }
    clear();
    tile = here(range.first), done = in_group = 0;  // what follows is not to move to where there are no tiles
    choose_loop();
    // There are tiles (run()), so clang needs no way past the loop, with waits for what is loaded before it. The other
    // kernels have few, and gfx950 a register or some scalars too many.
    if constexpr (C::kFused && !C::kTransposing) __builtin_assume(loop_of_next != kEnd);
    while (loop_of_next != kEnd) {  // a tile more where their number is odd
      while (loop_of_next == kWithMask) body<0, true>(), body<1, true>();
      while (loop_of_next == kWithoutMask) body<0, false>(), body<1, false>();
    }
    if constexpr (C::kFused) last_dq();
  }
  FW_METHOD void last_dq() {
    if constexpr (C::kPairs) {  // the second block of the last but two tiles
      FW_UNROLL for (int i = 16; i < 32; ++i) add_dq(i, dq[1][i % 16]);
      stream.template advance<BackwardStream<C>::kDescribeSums + 1>();
      stream.template advance<BackwardStream<C>::kDescribeSums + 2>();
    }
    stream.describe_sums();
    FW_UNROLL for (int i = 0; i < C::kDqUses; ++i) dq[i] = 0.f;
    FW_UNROLL for (int i = 0; i < C::kDqColumns; ++i) {
      const U32x4 a =
          i < C::kDqFragments ? fragment<0>(C::kFirstDq + i) : fragment<1>(C::kFirstDq + i - C::kDqFragments);
      FW_UNROLL for (int use = 0; use < C::kDqUses; ++use) {
        dq[use] = multiply_all<E>(a, k_columns[i][use], dq[use], Count<E::kSteps>());
      }
    }
    // What the last step has loaded nobody needs; but clang 22 uses its registers again and forgets to wait where more
    // than 63 younger operations follow.
    if constexpr (C::kPairs) wait_for_loads<16>();
    FW_UNROLL for (int i = 0; i < 16 * C::kDqUses; ++i) add_dq(i, dq[i / 16][i % 16]);
  }

  // Rows that are keys (kKeys), or 0 for those that are not.
  template <int kBlocks, bool kKeys>
  FW_METHOD void store(const F32x16* sums, const abi::Tensor& t, int rows, int dim, int first, float factor) const {
    const Buffer out = rows_of(t, rows, dim);
    const int lane_again = lane_index_again();  // no register holds it through the loop
    const int row = wave * kWaveKeys + (lane_again & 31);
    const bool mine = (row < rows) & (is_key(first_key + row) == kKeys);
    const uint32_t stride = uint32_t(t.stride[1]) * 2;
    FW_UNROLL for (int b = 0; b < kBlocks; ++b) {
      FW_UNROLL for (int g = 0; g < 2; ++g) {
        U32x4 x = {0, 0, 0, 0};
        FW_UNROLL for (int e = 0; e < 4 && kKeys; ++e) {
          x[e] = E::pack(sums[b][8 * g + 2 * e] * factor, sums[b][8 * g + 2 * e + 1] * factor);
        }
        const int column = first + 32 * b + 16 * g + 8 * (lane_again >> 5);
        // A single row may have any stride, also 0.
        buffer_store16(out, (mine & (column < dim)) ? row * stride + column * 2 : kNowhere, x);
      }
    }
  }
  template <bool kKeys>
  FW_METHOD void store_walk(int rows, int walk) const {
    store<C::kVBlocks, kKeys>(dv, p.dv, rows, p.dim_v, walk * C::kColumnsV, modifier.weight_scale());
    store<C::kQkBlocks, kKeys>(dk, p.dk, rows, p.dim_qk, walk * C::kColumnsQk, p.softmax_scale);
  }
  FW_METHOD bool all_are_keys(int rows) const { return first_key >= 0 && first_key + rows <= int(seq.keys); }
};

}  // namespace flashwave

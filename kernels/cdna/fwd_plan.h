// What a step of the forward pass does besides matrix instructions, and in which gap behind one of them (gaps.h).
#pragma once

#include "kernels/cdna/config.h"
#include "kernels/cdna/gaps.h"
#include "kernels/cdna/tile.h"

namespace flashwave {

// A step of the pipeline: the full one, and the last two of a wave, which have no first product.
enum StepKind { kFull, kLastWeights, kLastProduct };

// Operands are pairs of scores, rows or pieces of a tile, by their number.
enum ForwardOp {
  kScale,   // score -> exponent of P
  kExpLow,  // of the first of a pair, of the second
  kExpHigh,
  kSum,  // to the row sum
  kDrop,
  kRoundFirst,
  kRoundSecond,
  kPack,    // P to 16 bits
  kSwap,    // two rows of V in registers to pairs of keys
  kStoreV,  // to LDS
  kIssueK,  // a piece of a later tile from memory to LDS
  kLoadV,   // to registers, on gfx950 to LDS
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
        if (pair > 0 && C::kModified) s.add(kVectorQueue, kDrop, pair - 1, 4, 4);
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

}  // namespace flashwave

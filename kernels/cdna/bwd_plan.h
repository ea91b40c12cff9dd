// What the kernel of dK and dV does besides matrix instructions, and in which gap behind one of them (gaps.h).
#pragma once

#include "kernels/cdna/bwd_stream.h"
#include "kernels/cdna/gaps.h"

namespace flashwave {

enum BackwardOp {
  kModifyScores,  // _modified kernels: everything that may happen to them
  kScaleScore,
  kExponent,  // of P: less lse
  kMaskScore,
  kExpEven,
  kExpOdd,
  kRoundP,
  kPackP,
  kGradient,  // dS = P (dP - delta)
  kPackDs,
  kShareDs,       // to LDS
  kCarryRow,      // a dword of a tile in registers to the rows in LDS
  kSwapColumns,   // two dwords of it to pairs of the same column
  kCarryColumns,  // to the transposed tile
  kLoadRow,       // a dword of a tile into registers
  kLoadNumbers,   // lse and delta
  kAdvance,       // a step of the walk along the queries (BackwardStream)
  kAddDq,
  kStartDp,      // four registers of what dP begins with
  kShareNumber,  // lse and delta of the next tile to LDS
  kStartNextS,
  kCountTile,
  kChooseLoop,
  kChangeDs,  // the other buffers of dS
};

// kBuffer: which of the two tiles that the loops go on by.
template <class C, bool kMasked, int kBuffer>
struct BackwardPlan {
  using E = typename C::Element;
  static constexpr int kSteps = E::kSteps;  // matrix instructions of a fragment
  static constexpr int gap_of(int fragment) { return C::products_before(fragment) * kSteps; }
  static constexpr int kGaps = gap_of(C::kFragments);
  static constexpr int kDp = gap_of(C::kFirstDp), kDq = gap_of(C::kFirstDq), kDv = gap_of(C::kFirstDv),
                       kDk = gap_of(C::kFirstDk);
  // The barriers stand before these fragments. First, where there are not two buffers of everything: all have read the
  // rows of this tile and dS of the one before, and both get overwritten. Second: the rows of the next tile, its
  // columns and dS of this one are complete. The reads behind a barrier are late by one fragment.
  static constexpr bool kOneBarrier = C::kTransposing;
  static constexpr int kFirstBarrier = C::kFirstDv - C::kAhead + 1, kSecondBarrier = C::kFragments - C::kAhead + 1;
  static constexpr int kFrom = kOneBarrier ? 0 : gap_of(kFirstBarrier), kUntil = gap_of(kSecondBarrier);
  static constexpr int kSlack = kSteps;  // gaps between the end of a product and the use of its result
  static constexpr int kRound = Near<E>::kRoundSlots, kPack = E::kPackSlots;
  static constexpr int kAdvances = BackwardStream<C>::kSteps;
  static constexpr int kLoadCount = C::kTransposing ? 1 : 2;  // with the row's offset, by a scalar instruction
  using Schedule = Gaps<kGaps, 192>;

  // The matrix instruction, of those of dV or dK, that first uses pair `pair` of P or dS.
  static constexpr int first_use(int pair, int blocks) { return pair / 4 * blocks * kSteps + pair % 4 * kSteps / 4; }

  static constexpr Schedule with_room(int slots, int instructions) {
    Schedule s(slots, instructions, kSteps);
    // A fragment's read stands behind the first of its matrix instructions, the wait for the next one's behind the
    // last.
    for (int g = 0; g < kGaps; ++g) s.instructions_used[g] = kSteps == 1 ? 2 : 1;
    if (C::kStarts) {
      for (int i = 0; i < 4; ++i) s.add(kStartQueue, kStartDp, i, 0, 1, i + 1, kDp);
      s.add(kStartQueue, kShareNumber, 0, 1, 2, kDv);
      // Long before the barrier, which waits for the read.
      for (int i = 0; i < 4; ++i) s.add(kStartQueue, kStartNextS, i, 0, 1, kUntil - 16 + i);
    }
    // Of the two blocks of columns of dQ, the first is added behind the products, the second with the next tile.
    if (C::kPairs && kBuffer == 0)
      for (int i = 0; i < 16; ++i) s.add(kStartQueue, kAddDq, 16 + i, 0, 1, i / 2 + 2, kDq + 1);
    s.add(kStartQueue, kCountTile, 0, 0, 4, kDv);
    s.add(kStartQueue, kChooseLoop, 0, 0, 5);
    if (C::kModified) s.add(kVectorQueue, kModifyScores, 0, 0, 0, kDp + kSlack);
    // A pair's rounding overlaps the next pair's exponentials, and so does what its exponents are subtracted from.
    constexpr int kScaledAhead = C::kStarts ? 0 : 1, kScaled = C::kPacked ? kDp + kSlack + 1 : 0;
    for (int pair = -kScaledAhead; pair <= 8; ++pair) {
      const int scaled = pair + kScaledAhead;
      if (scaled < 8 && !C::kPacked) s.add(kVectorQueue, kScaleScore, scaled, 2, 2, kDp + kSlack);
      if (pair < 0) continue;
      if (pair < 8 && !C::kStarts) s.add(kVectorQueue, kExponent, pair, 2, 2);
      if (pair > 0 && kRound)
        s.add(kVectorQueue, kRoundP, pair - 1, kRound, kRound, 0, kDv + first_use(pair - 1, C::kVBlocks));
      if (pair < 8 && kMasked) s.add(kVectorQueue, kMaskScore, pair, 6, 6, kScaled);
      if (pair < 8) s.add(kVectorQueue, kExpEven, pair, 4, 1, kScaled);
      if (pair > 0) s.add(kVectorQueue, kPackP, pair - 1, kPack, kPack, 0, kDv + first_use(pair - 1, C::kVBlocks));
      if (pair < 8) s.add(kVectorQueue, kExpOdd, pair, 4, 1);
    }
    const int weights = s.position[kVectorQueue], multiplied = (weights > kDq + kSlack ? weights : kDq + kSlack) + 1;
    for (int pair = 0; pair < 8; ++pair) {
      constexpr int kDifference = C::kStarts ? 2 : 4;  // dS, and of dP and delta
      const int until = kDk + first_use(pair, C::kQkBlocks), from = C::kPacked ? multiplied : 0;
      if (!C::kPacked) s.add(kVectorQueue, kGradient, pair, kDifference, kDifference, kDq + kSlack, until);
      s.add(kVectorQueue, kPackDs, pair, kRound + kPack, kRound + kPack, from, until);
      if (C::kFused) s.add(kVectorQueue, kShareDs, pair, 0, 2, kFrom, kUntil);
    }
    if (C::kPairs && kBuffer == 1) s.add(kVectorQueue, kChangeDs, 0, 6, 6, kUntil);
    constexpr int kPairs = C::kStaged / C::kWalks / 2;          // of the columns of this walk
    for (int i = 0; i < 2 * kPairs && !C::kTransposing; ++i) {  // the next tile to its columns, as late as possible
      s.add(kVectorQueue, kSwapColumns, i, 2, 2, kFrom, kUntil);
      if (i % kPairs == kPairs - 1) s.add(kVectorQueue, kCarryColumns, i / kPairs, 0, 2, 0, kUntil);
    }
    // Youngest load first: one wait for all. Between the barriers; or at once where there is room for the rows.
    const auto carry_rows = [&](int apart) {
      for (int i = 2 * C::kStaged - 1, from = kFrom; i >= 0; --i, from += apart)
        s.add(kMemoryQueue, kCarryRow, i, 0, 1, from, kUntil);
    };
    if (kOneBarrier) carry_rows(2);
    for (int i = 0; i < kAdvances; ++i) s.add(kMemoryQueue, kAdvance, i, 0, 5, i + 1);
    if (!kOneBarrier) carry_rows(0);
    const int free = s.position[kVectorQueue] + 1;  // late: registers
    if (C::kStarts) s.add(kMemoryQueue, kLoadNumbers, 0, 0, 1, free);
    for (int i = 0; i < 2 * C::kStaged; ++i) s.add(kMemoryQueue, kLoadRow, i, 0, kLoadCount, free);
    // After the loads: waiting for those does not wait for sums in memory.
    if (C::kFused && !(C::kPairs && kBuffer == 0))
      for (int i = 0; i < 16; ++i) s.add(kMemoryQueue, kAddDq, i, 0, 1, kDv + kSlack);
    // Last of all: fewer operations than a wait can count are younger when they are used.
    if (!C::kStarts) s.add(kMemoryQueue, kLoadNumbers, 0, 0, 2);
    // Packed instructions wait for the matrix instruction of their gap: behind all else, and their results are for the
    // next gap.
    for (int pair = 0; pair < 8 && C::kPacked; ++pair) {
      s.add_last(kScaleScore, pair, s.gap_of(kMasked ? kMaskScore : kExpEven, pair) - 1);
      s.add_last(kGradient, pair, s.gap_of(kPackDs, pair) - 1);
    }
    s.sort();
    return s;
  }
  static constexpr Schedule find() {
    for (int room = 6;; ++room) {
      const Schedule s = with_room(room, room);
      if (s.fits) return s;
    }
  }
};

}  // namespace flashwave

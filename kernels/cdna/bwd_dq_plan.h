// What the kernel of dQ does besides matrix instructions, and in which gap behind one of them (gaps.h); and the sizes
// that follow from its row.
#pragma once

#include "kernels/cdna/bwd_config.h"
#include "kernels/cdna/gaps.h"

namespace flashwave {

inline constexpr int kDqQueries = 32;  // of a wave, one to a lane (twice: the halves of a wave split the keys)
inline constexpr int kDqTile = 32;     // keys of one step

template <class ElementType, int kDimQk_, int kDimV_, int kTileQ_, int kThreads_, bool kModified_>
struct DqConfig {
  using Element = ElementType;
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_, kTileQ = kTileQ_, kThreads = kThreads_;
  static constexpr bool kModified = kModified_;
  static constexpr bool kPacked =  // as in BackwardConfig
      !kModified && kDimQk <= 64 && kIsGfx942 && Near<Element>::kRoundSlots > 0;
  static constexpr bool kKeepsStart = !kModified && kDimQk <= 64;  // what dP begins with has registers of its own
  static constexpr int kWaves = kThreads / kWave;
  static constexpr bool kAlone = kWaves == 4;  // on its SIMD: nobody works while a wave goes from tile to tile
  static_assert(kTileQ == kWaves * kDqQueries && kDimQk % 32 == 0 && kDimV % 32 == 0 && kDimQk >= kDimV);

  // LDS: two buffers of rows of K and V, or one with a second barrier; two of K transposed. kTransposing: four buffers
  // of rows (bwd_dq_lds.h).
  static constexpr bool kTransposing = kIsGfx950;
  static constexpr int kPadded = padded_columns(kDimQk), kRowBytes = 2 * kPadded, kMatrixBytes = kDqTile * kRowBytes;
  static constexpr int kRowBuffers = kTransposing ? 4 : kPadded > 128 ? 1 : 2;
  static constexpr uint32_t kRowsBytes = 2 * kMatrixBytes, kTransposed = kRowBuffers * kRowsBytes;
  static constexpr int kLdsBytes = (2 * kRowBuffers + (kTransposing ? 0 : 2)) * kMatrixBytes;

  // Fragments in the order of their products: S^T = K Q^T, dP^T = V dO^T, and of the tile before dQ^T += K^T dS^T.
  static constexpr int kQkFragments = kDimQk / 16, kVFragments = kDimV / 16, kBlocks = kDimQk / 32;
  static constexpr int kFirstDp = kQkFragments, kFirstDq = kFirstDp + kVFragments, kFragments = kFirstDq + 2 * kBlocks;
  static constexpr int kAhead = 4;  // fragments read ahead of their use
  // Dwords (kTransposing: units) of K, and as many of V, that a lane carries from memory to LDS for each tile.
  static constexpr int kStaged = kMatrixBytes / (kTransposing ? 16 : 4) / kThreads;
  static constexpr int kGroups = kPadded > 128 ? kPadded / 128 : 1;  // 128 columns apart
};

enum DqOp {
  kDqModify,
  kDqExponent,
  kDqMask,
  kDqExpEven,
  kDqExpOdd,
  kDqMultiply,  // packed: P dP
  kDqGradient,
  kDqCarryRow,
  kDqSwapColumns,
  kDqCarryColumns,
  kDqLoad,
  kDqAdvance,
  kDqChooseLoop,
};

template <class C, bool kMasked>
struct DqPlan {
  using E = typename C::Element;
  static constexpr int kSteps = E::kSteps, kGaps = C::kFragments * kSteps;
  static constexpr int kDp = C::kFirstDp * kSteps, kDq = C::kFirstDq * kSteps;
  // The barrier stands before this fragment: all reads of this tile have been issued. With one buffer of rows another
  // stands where all have read those of this tile.
  static constexpr int kBarrier = C::kFragments - C::kAhead, kRowsBarrier = C::kFirstDq - C::kAhead;
  static constexpr int kRowsFree = C::kRowBuffers == 1 ? kRowsBarrier * kSteps : kSteps;
  static constexpr int kRound = Near<E>::kRoundSlots + E::kPackSlots;
  static constexpr int kLoadSlots = C::kTransposing || C::kGroups == 1 ? 0 : 1;  // the row's offset, if not by a scalar
  using Schedule = Gaps<kGaps, 128>;

  static constexpr Schedule with_room(int room) {
    constexpr int kUntil = kBarrier * kSteps, kExponents = C::kPacked ? kDp + kSteps + 1 : 0;
    Schedule s(room, room, kSteps);
    for (int i = 2 * C::kStaged - 1; i >= 0; --i)  // the next tile; youngest load first: one wait for all
      s.add(kMemoryQueue, kDqCarryRow, i, 0, 1, kRowsFree, kUntil);
    constexpr int kPairs = C::kStaged / 2;
    for (int i = 0; i < C::kGroups && !C::kTransposing; ++i)  // of this tile, swapped one step ago
      s.add(kMemoryQueue, kDqCarryColumns, i, 0, 2, 0, kUntil);
    for (int i = 0; i < kPairs && !C::kTransposing; ++i)
      s.add(kVectorQueue, kDqSwapColumns, i, 2, 2, s.position[kMemoryQueue] + 1, kUntil);
    for (int i = 0; i < 2; ++i) s.add(kMemoryQueue, kDqAdvance, i, 0, 5);
    for (int i = 0; i < 2 * C::kStaged; ++i)
      s.add(kMemoryQueue, kDqLoad, i, kLoadSlots, 2, s.position[kVectorQueue] + 1);
    if (C::kModified) s.add(kVectorQueue, kDqModify, 0, 0, 0, kDp + kSteps);
    for (int pair = 0; pair < 8; ++pair) {
      if (!C::kPacked) s.add(kVectorQueue, kDqExponent, pair, 2, 2, kDp + kSteps);
      if (kMasked) s.add(kVectorQueue, kDqMask, pair, 6, 6, kExponents);
      s.add(kVectorQueue, kDqExpEven, pair, 4, 1, kExponents);
      s.add(kVectorQueue, kDqExpOdd, pair, 4, 1);
    }
    const int weights = s.position[kVectorQueue], multiplied = (weights > kDq + kSteps ? weights : kDq + kSteps) + 1;
    for (int pair = 0; pair < 8; ++pair) {
      constexpr int kCount = (C::kPacked ? 0 : 2) + kRound;
      s.add(kVectorQueue, kDqGradient, pair, kCount, kCount, C::kPacked ? multiplied : kDq + kSteps);
    }
    // It counts the tile, whose number modifiers need.
    if (C::kAlone) s.add(kStartQueue, kDqChooseLoop, 0, 0, 6, C::kModified ? s.gap_of(kDqModify, 0) + 1 : 1);
    for (int pair = 0; pair < 8 && C::kPacked; ++pair) {  // as in BackwardPlan
      s.add_last(kDqExponent, pair, s.gap_of(kMasked ? kDqMask : kDqExpEven, pair) - 1);
      s.add_last(kDqMultiply, pair, s.gap_of(kDqGradient, pair) - 1);
    }
    s.sort();
    return s;
  }
  static constexpr Schedule find() {
    for (int room = 7;; ++room) {
      const Schedule s = with_room(room);
      if (s.fits) return s;
    }
  }
};

}  // namespace flashwave

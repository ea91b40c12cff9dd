// What follows from a row of kernels.def: sizes of tiles, LDS buffers and fragments.
#pragma once

#include "kernels/cdna/isa.h"

namespace flashwave {

inline constexpr int kRowsPerWave =
    32;                              // queries of a wave, one to a lane (twice: the halves of a wave split the keys)
inline constexpr int kSubTile = 32;  // keys of one step of the pipeline

constexpr int power_of_two_from(int x) { return x <= 64 ? 64 : x <= 128 ? 128 : 256; }

template <class ElementType, int kDimQk_, int kDimV_, int kTileQ_, int kTileK_, int kThreads_, bool kModified_>
struct ForwardConfig {
  using Element = ElementType;
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_;  // of the products: smaller head dims are padded with zeros
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_, kThreads = kThreads_;
  static constexpr bool kModified = kModified_;  // scores may be modified, weights dropped
  static constexpr int kWaves = kThreads / kWave;
  static_assert(kTileQ == kWaves * kRowsPerWave && kThreads % kWave == 0);

  static constexpr int kSubs = kTileK / kSubTile;
  static_assert(kSubs == 1 || kSubs == 2);
  // The second product runs two sub-tiles behind the first: so many tiles.
  static constexpr int kLead = 2 / kSubs;

  // K in LDS: rows of keys. V: transposed (gfx950: rows, transposed by the read).
  static constexpr int kKRowBytes = 2 * power_of_two_from(kDimQk), kVColumns = power_of_two_from(kDimV);
  static constexpr int kKBytes = kTileK * kKRowBytes, kVBytes = kTileK * kVColumns * 2;
  static constexpr int kLdsBytes = 2 * (kKBytes + kVBytes);

  // Fragments (16 bytes of a lane, an MFMA operand) of a sub-tile: those of K, then 2 for each block of 32 columns of
  // V.
  static constexpr int kQkFragments = kDimQk / 16, kBlocks = kDimV / 32, kFragments = kQkFragments + 2 * kBlocks;
  static constexpr int kAhead = kQkFragments < 6 ? 3 : 4;  // fragments read ahead of their use

  // Packed f32 arithmetic in the gaps: where vector instructions, not matrix ones, are the limit, it pays anyway.
  static constexpr bool kPacked = kPackedBesideMatrix || kDimQk <= 64;

  // Bytes of a lane in a load straight to LDS. 16-byte loads need whole groups of 8 columns (kNeeds16Bytes).
  static constexpr int kDirectBytes = kIsGfx950 && !kModified ? 16 : 4;
};

}  // namespace flashwave

// What follows from a row of kernels.def: who does what in a workgroup, and where things lie in LDS.
#pragma once

#include "kernels/rdna/isa.h"

namespace flashwave {

template <int kDimQk_, int kDimV_, int kTileQ, int kTileK, int kThreads_>
struct Config {
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_, kThreads = kThreads_, kWaves = kThreads / 32;
  static constexpr int kTileRows = kTileQ, kKeys = kTileK;
  static constexpr int kQueryTiles = kTileQ / (16 * kWaves);  // of 16 queries, of a wave
  static constexpr int kWaveRows = 16 * kQueryTiles;
  // A chunk of keys goes through the softmax at once: two tiles of 16 if there is one of queries and registers suffice.
  static constexpr int kKeyTiles = kQueryTiles == 1 && kDimQk <= 128 ? 2 : 1;
  static constexpr int kChunk = 16 * kKeyTiles, kChunks = kKeys / kChunk;
  static constexpr int kStepsQk = kDimQk / 16, kStepsV = kDimV / 16;  // fragments across a head dim
  static constexpr int kFragmentsK = kKeyTiles * kStepsQk, kFragmentsV = kKeyTiles * kStepsV;  // of a chunk
  static constexpr int kAhead = kDimQk <= 128 ? 3
                                : kRdna4 || kDimQk <= 192
                                    ? 2
                                    : 1;  // fragments that are read from LDS before they are needed
  // Fragments of Q that wait in LDS where registers do not hold them all beside O: the last ones.
  static constexpr int kQueryFragmentsInLds = kRdna4         ? (kDimQk > 192 ? 8 : 0)
                                              : kDimQk > 192 ? 14
                                              : kDimQk > 128 ? 3
                                                             : 0;
  static constexpr int kQueryFragments = kStepsQk - kQueryFragmentsInLds;

  // Global loads of a wave. K, and V on RDNA4: whole fragments, all of the same 16 keys. V on RDNA3: 8 rows x 64
  // columns, 2 columns to a lane.
  static constexpr int kLoadsK = kKeys / 16 * kStepsQk / kWaves;
  static constexpr int kBlocksV = (kDimV + 63) / 64,
                       kLoadsV = kRdna4 ? kKeys / 16 * kStepsV / kWaves : kKeys / 8 * kBlocksV / kWaves;

  // K and V of the next tile take turns in one set of registers if there are several chunks to a tile, or many loads.
  static constexpr bool kTakeTurns = kChunks > 1 || kLoadsK * 4 + kLoadsV*(kRdna4 ? 4 : 8) > 16;

  // LDS: two buffers, each K then V, at addresses that differ in one bit; on RDNA3 also P of each wave, in the gap that
  // the power of two leaves if it fits.
  static constexpr int kBytesK = kKeys * kDimQk * 2, kBytesV = kKeys * kDimV * 2, kBytesKV = kBytesK + kBytesV;
  static constexpr int kBuffer = kBytesKV <= 16384 ? 16384 : 32768;
  static constexpr int kBytesP = kRdna4 ? 0 : kQueryTiles * kKeyTiles * kFragmentBytes;
  static constexpr bool kGapHoldsP = kBytesKV + kWaves * kBytesP <= kBuffer;
  static constexpr int kOffsetP = kGapHoldsP ? kBytesKV : kBuffer + kBytesKV;
  static constexpr int kOffsetQ = kBuffer + kBytesKV + (kGapHoldsP ? 0 : kWaves * kBytesP);
  static constexpr int kBytesQ = kQueryTiles * kQueryFragmentsInLds * kFragmentBytes;
  static constexpr int kLdsBytes = kOffsetQ + kWaves * kBytesQ;

  // Half a workgroup's waves run on each SIMD of its compute unit.
  static constexpr int kWavesPerSimd = kWaves / 2;

  static_assert(kTileQ == kWaves * kWaveRows && kKeys == kChunks * kChunk);
  static_assert(kLoadsK * kWaves == kKeys / 16 * kStepsQk && kStepsQk % kLoadsK == 0);
  static_assert(kRdna4 ? kLoadsV * kWaves == kKeys / 16 * kStepsV && kStepsV % kLoadsV == 0
                       : kLoadsV * kWaves == kKeys / 8 * kBlocksV && kBlocksV % kLoadsV == 0);
  static_assert(kQueryFragmentsInLds == 0 || (kQueryTiles == 1 && kKeyTiles == 1 && kQueryFragments >= kAhead));
  static_assert(kBytesKV <= kBuffer && kLdsBytes <= 65536);
};

}  // namespace flashwave

// What follows from a row of the backward in kernels.def: who does what in a workgroup, and where things lie in LDS.
#pragma once

#include "kernels/rdna/isa.h"

namespace flashwave {

// What a kernel computes: dK, dV and, by atomics, dQ; dK and dV; dQ.
enum class Gradients { kAll, kOfKeys, kOfQueries };

// A workgroup keeps kKept rows of two tensors, X and Y, and tiles of 32 rows of two others, A and G, pass by:
//   gradients of keys: X = K, Y = V, A = Q, G = dO. Gradient of queries alone: X = Q, Y = dO, A = K, G = V.
// S = A X^T and dP = G Y^T, dX = dS^T A, dY = P^T G, and (kAll) dA = dS X.
template <Gradients kGradients, int kDim_, int kKept_, int kThreads_, bool kGeneral_>
struct BackwardConfig {
  static constexpr bool kFused = kGradients == Gradients::kAll, kKeepsKeys = kGradients != Gradients::kOfQueries;
  static constexpr bool kGeneral = kGeneral_;
  static constexpr int kDim = kDim_, kKept = kKept_, kStreamed = 32, kThreads = kThreads_, kWaves = kThreads / 32;
  static constexpr int kStreamTiles = kStreamed / 16, kKeptTiles = kKept / 16, kSteps = kDim / 16;

  // Shares of a wave, in tiles of 16 x 16: of S and dP, all of the same kept rows; of dA, all of the same columns; of
  // dX and of dY, two by kSumTiles (32 rows x 16 kSumTiles columns: one fragment is read for each product).
  static constexpr int kScoreTiles = kStreamTiles * kKeptTiles / kWaves;
  static constexpr int kDaTiles = kStreamTiles * kSteps / kWaves;
  static constexpr int kSumTiles = kKeptTiles * kSteps / kWaves / 2, kSumFragments = 2 + kSumTiles;
  static_assert(kScoreTiles * kWaves == kStreamTiles * kKeptTiles && kScoreTiles <= kStreamTiles);
  static_assert(kDaTiles * kWaves == kStreamTiles * kSteps && kDaTiles <= kStreamTiles);
  static_assert(kSumTiles * kWaves * 2 == kKeptTiles * kSteps);

  // RDNA3's operands take twice the registers: there Y (128) or, for dA, X^T (64) waits in LDS.
  static constexpr bool kYInLds = !kRdna4 && kDim == 128, kXtInLds = !kRdna4 && kDim == 64 && kFused;
  // Fragments that are read from LDS before they are needed.
  static constexpr int kAhead = kRdna4 ? 4 : kYInLds && kFused ? (kGeneral ? 1 : 2) : 3;
  // No registers to spare: addresses are computed where they are used, one addition each.
  static constexpr bool kTight = !kRdna4;
  // -delta is asked for when S starts, not half a tile before.
  static constexpr bool kLateDelta = kYInLds && kFused && !kGeneral;

  // Global loads of a wave for a tile: fragments of rows; transposes, of A and G together. RDNA4: whole fragments.
  // RDNA3: 8 rows x 64 columns, 2 columns to a lane.
  static constexpr int kRowLoads = kStreamTiles * kSteps / kWaves;
  static constexpr int kTransposes =
      kRdna4 ? 2 * kStreamTiles * kSteps / kWaves : 2 * kStreamTiles * 2 * kDim / 64 / kWaves;
  static constexpr bool kBothTransposes = kTransposes > 1;  // of both tensors; else half of the waves have each

  // LDS in fragments of 512 bytes: rows of A and G, their transposes, dS and P, dS^T twice, Y, X^T.
  static constexpr int kRowBytes = kStreamTiles * kSteps * kFragmentBytes;
  static constexpr int kScoreBytes = kStreamTiles * kKeptTiles * kFragmentBytes;
  static constexpr int kKeptBytes = kKeptTiles * kSteps * kFragmentBytes;
  static constexpr int kA = 0, kG = kRowBytes, kAt = 2 * kRowBytes, kGt = 3 * kRowBytes;
  static constexpr int kDs = kGt + (kKeepsKeys ? kRowBytes : 0), kP = kDs + kScoreBytes;
  static constexpr int kDsT = kP + (kKeepsKeys ? kScoreBytes : 0), kY = kDsT + (kFused ? 2 * kScoreBytes : 0);
  static constexpr int kXt = kY + (kYInLds ? kKeptBytes : 0), kLdsBytes = kXt + (kXtInLds ? kKeptBytes : 0);
  static_assert(kLdsBytes <= 65536);

  // The fragments that a wave reads for a tile, in the order of use. Ends: of S; of dP; of dA of the tile before; of
  // dY; of dX.
  static constexpr int kEndS = kScoreTiles * kSteps, kPerStep = kScoreTiles + kYInLds;
  static constexpr int kEndDp = kEndS + kSteps * kPerStep, kPerKept = kDaTiles + kXtInLds;
  static constexpr int kEndDa = kEndDp + (kFused ? kKeptTiles * kPerKept : 0);
  static constexpr int kEndDy = kEndDa + (kKeepsKeys ? kStreamTiles * kSumFragments : 0);
  static constexpr int kEnd = kEndDy + kStreamTiles * kSumFragments;
  // Where the transposes of this tile are stored: without dA and dY their loads are young.
  static constexpr int kStoreTransposes = kKeepsKeys ? 1 : kEndS + 2;

  // Which tiles are a wave's: of S, the kept rows 16 score_x and on and, of its tile w, the streamed rows 16 score_a;
  // of dA, the columns 16 da_column and the rows 16 da_row; of the sums, the kept rows 32 sum_x and the columns from 16
  // kSumTiles sum_column on.
  FW_METHOD static int score_x(int wave) { return kScoreTiles == 1 ? wave >> 1 : wave; }
  FW_METHOD static int score_a(int wave, int w) { return kScoreTiles == 1 ? wave & 1 : w; }
  FW_METHOD static int da_column(int wave) { return kDaTiles == 1 ? wave >> 1 : wave; }
  FW_METHOD static int da_row(int wave, int n) { return kDaTiles == 1 ? wave & 1 : n; }
  FW_METHOD static int sum_x(int wave) { return wave % (kKeptTiles / 2); }
  FW_METHOD static int sum_column(int wave) { return wave / (kKeptTiles / 2); }

  // Half a workgroup's waves run on each SIMD of its compute unit.
  static constexpr int kWavesPerSimd = kWaves / 2;
};

// Head dims up to 256: tiles of 16 rows pass by 32 kept ones, and four waves share a tile of S and dP, each with a
// quarter of the columns; they exchange their parts of it through LDS, and each finishes two of the accumulator's
// registers.
template <Gradients kGradients, int kDim_, int kKept_, int kThreads_, bool kGeneral_>
struct WideConfig {
  static constexpr bool kFused = kGradients == Gradients::kAll, kKeepsKeys = kGradients != Gradients::kOfQueries;
  static constexpr bool kGeneral = kGeneral_, kTight = !kRdna4;
  static constexpr int kDim = kDim_, kKept = kKept_, kStreamed = 16, kThreads = kThreads_, kWaves = kThreads / 32;
  static constexpr int kStreamTiles = 1, kKeptTiles = kKept / 16, kSteps = kDim / 16;
  static constexpr int kSharing = kWaves / kKeptTiles, kOwnSteps = kSteps / kSharing, kOwnRegisters = 8 / kSharing;
  static constexpr int kSumTiles = kSteps / kWaves, kDaTiles = kSteps / kWaves;
  static_assert(kKeptTiles == 2 && kSharing == 4 && kOwnRegisters == 2);

  static constexpr int kRowLoads = kSteps / kWaves;
  static constexpr int kTransposes = kRdna4 ? 2 * kSteps / kWaves : 2 * 2 * kDim / 64 / kWaves;
  static constexpr bool kBothTransposes = true;
  static_assert(kTransposes > 1);

  // LDS: rows of A and G, their transposes, dS and P, dS^T; then parts of S and dP, each 16 x 16 in fp32.
  static constexpr int kRowBytes = kSteps * kFragmentBytes, kScoreBytes = kKeptTiles * kFragmentBytes;
  static constexpr int kPartBytes = 1024;
  static constexpr int kA = 0, kG = kRowBytes, kAt = 2 * kRowBytes, kGt = 3 * kRowBytes;
  static constexpr int kDs = 4 * kRowBytes, kP = kDs + kScoreBytes, kDsT = kP + kScoreBytes;
  static constexpr int kParts = kDsT + kScoreBytes, kLdsBytes = kParts + 2 * kWaves * kPartBytes;
  static_assert(kLdsBytes <= 65536);

  // As above.
  FW_METHOD static int score_x(int wave) { return wave / kSharing; }
  FW_METHOD static int score_a(int, int) { return 0; }
  FW_METHOD static int sum_x(int) { return 0; }
  FW_METHOD static int sum_column(int wave) { return wave; }
};

}  // namespace flashwave

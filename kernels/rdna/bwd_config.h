// What follows from a row of the backward in kernels.def: who does what in a workgroup, and where things lie in LDS.
#pragma once

#include "kernels/rdna/isa.h"

namespace flashwave {

// What a kernel computes: dK, dV and, by atomics, dQ; dK and dV; dQ; all of a head, one block of keys after the other.
enum class Gradients { kAll, kOfKeys, kOfQueries, kOfHead };

// A workgroup keeps kKept rows of two tensors, X and Y, and tiles of 16 rows of two others, A and G, pass by:
//   gradients of keys: X = K, Y = V, A = Q, G = dO. Gradient of queries alone: X = Q, Y = dO, A = K, G = V.
// S = A X^T and dP = G Y^T, dX = dS^T A, dY = P^T G, and (kAll, kOfHead) dA = dS X.
//
// Waves have roles, so that each holds in registers what its products share, and reads little else from LDS:
//   score waves  X and Y of 16 kScoreTiles rows. S, dP -> P, dS.
//   sum waves    64 rows x 16 kSumTiles columns of dX or dY. They also bring A and G.
//   dA waves     kDaTiles columns of X^T (kAll, kOfHead).
template <Gradients kGradients, int kDim_, int kKept_, int kThreads_, bool kModified_>
struct BackwardConfig {
  static constexpr bool kHead = kGradients == Gradients::kOfHead, kFused = kHead || kGradients == Gradients::kAll;
  static constexpr bool kKeepsKeys = kGradients != Gradients::kOfQueries, kModified = kModified_;
  static constexpr int kDim = kDim_, kKept = kKept_, kStreamed = 16, kThreads = kThreads_, kWaves = kThreads / 32;
  static constexpr int kKeptTiles = kKept / 16, kSteps = kDim / 16;

  static constexpr int kScoreWaves = 4, kLoadWaves = 4, kDaWaves = kFused ? 2 : 0;
  static_assert(kWaves == kScoreWaves + kLoadWaves + kDaWaves);
  static constexpr int kScoreTiles = kKeptTiles / kScoreWaves, kDaTiles = kSteps / 2;
  static constexpr int kSums = kKeepsKeys ? 2 : 1, kWavesPerSum = kLoadWaves / kSums;
  static constexpr int kSumRows = 4, kSumTiles = kKeptTiles * kSteps / kSumRows / kWavesPerSum;
  static_assert(kScoreTiles * kScoreWaves == kKeptTiles && kKeptTiles % kSumRows == 0);
  static_assert(kSumRows * kSumTiles * kWavesPerSum == kKeptTiles * kSteps && kSteps % kSumTiles == 0);

  // Fragments that are read from LDS before they are needed.
  static constexpr int kAhead = !kRdna4 ? 3 : kFused ? 6 : 4;
  // Registers to spare: addresses are kept.
  static constexpr bool kTight = false;
  // And loops have both halves of LDS, so that which one it is is part of an immediate.
  static constexpr bool kBothHalves = kRdna4;

  // Global loads of a wave for a tile: fragments of rows; transposes. RDNA4: whole fragments. RDNA3: 8 rows x 64
  // columns, 2 columns to a lane.
  static constexpr int kRowLoads = 2 * kSteps / kLoadWaves;
  static constexpr int kTransposes = kRdna4 ? kRowLoads : 4 * kDim / 64 / kLoadWaves;

  // LDS in fragments of 512 bytes, twice, for two tiles: rows of A and G, their transposes, dS, P, dS^T.
  static constexpr int kRowBytes = kSteps * kFragmentBytes, kScoreBytes = kKeptTiles * kFragmentBytes;
  static constexpr int kA = 0, kG = kRowBytes, kAt = 2 * kRowBytes, kGt = 3 * kRowBytes;
  static constexpr int kDs = kGt + (kKeepsKeys ? kRowBytes : 0), kP = kDs + kScoreBytes;
  static constexpr int kDsT = kP + (kKeepsKeys ? kScoreBytes : 0), kBufferBytes = kDsT + (kFused ? kScoreBytes : 0);
  static constexpr int kLdsBytes = 2 * kBufferBytes;
  // RDNA3 takes X^T through LDS before the first tile.
  static constexpr int kXt = kAt;
  static_assert(kLdsBytes <= 65536 && (!kFused || kXt + kKeptTiles * kRowBytes <= kLdsBytes));

  // Which tiles are a wave's: of S, the kept rows 16 score_x and on; of the sums, the rows from 16 kSumRows sum_x and
  // the columns from 16 kSumTiles sum_column on.
  FW_METHOD static int score_x(int wave, int w) { return wave * kScoreTiles + w; }
  FW_METHOD static int load_wave(int wave) { return wave - kScoreWaves; }
  FW_METHOD static bool sums_x(int wave) { return load_wave(wave) >= kLoadWaves - kWavesPerSum; }
  FW_METHOD static int sum_x(int wave) { return load_wave(wave) % kWavesPerSum % (kKeptTiles / kSumRows); }
  FW_METHOD static int sum_column(int wave) { return load_wave(wave) % kWavesPerSum / (kKeptTiles / kSumRows); }
  FW_METHOD static int da_wave(int wave) { return wave - kScoreWaves - kLoadWaves; }
};

// Head dims up to 256: tiles of 16 rows pass by 32 kept ones, and four waves share a tile of S and dP, each with a
// quarter of the columns; they exchange their parts of it through LDS, and each finishes two of the accumulator's
// registers.
template <Gradients kGradients, int kDim_, int kKept_, int kThreads_, bool kModified_>
struct WideConfig {
  static constexpr bool kFused = kGradients == Gradients::kAll, kKeepsKeys = kGradients != Gradients::kOfQueries;
  static constexpr bool kHead = false, kModified = kModified_, kTight = !kRdna4;
  static constexpr int kDim = kDim_, kKept = kKept_, kStreamed = 16, kThreads = kThreads_, kWaves = kThreads / 32;
  static constexpr int kKeptTiles = kKept / 16, kSteps = kDim / 16, kLoadWaves = kWaves;
  static constexpr int kSharing = kWaves / kKeptTiles, kOwnSteps = kSteps / kSharing, kOwnRegisters = 8 / kSharing;
  static constexpr int kSumRows = 2, kSumTiles = kSteps / kWaves, kDaTiles = kSteps / kWaves;
  static_assert(kKeptTiles == 2 && kSharing == 4 && kOwnRegisters == 2);

  static constexpr int kRowLoads = 2 * kSteps / kLoadWaves;
  static constexpr int kTransposes = kRdna4 ? kRowLoads : 4 * kDim / 64 / kLoadWaves;

  // LDS: rows of A and G, their transposes, dS and P, dS^T; then parts of S and dP, each 16 x 16 in fp32.
  static constexpr int kRowBytes = kSteps * kFragmentBytes, kScoreBytes = kKeptTiles * kFragmentBytes;
  static constexpr int kPartBytes = 1024;
  static constexpr int kA = 0, kG = kRowBytes, kAt = 2 * kRowBytes, kGt = 3 * kRowBytes;
  static constexpr int kDs = 4 * kRowBytes, kP = kDs + kScoreBytes, kDsT = kP + kScoreBytes;
  static constexpr int kParts = kDsT + kScoreBytes, kLdsBytes = kParts + 2 * kWaves * kPartBytes;
  static_assert(kLdsBytes <= 65536);

  // As above.
  FW_METHOD static int score_x(int wave, int) { return wave / kSharing; }
  FW_METHOD static int load_wave(int wave) { return wave; }
  FW_METHOD static int sum_x(int) { return 0; }
  FW_METHOD static int sum_column(int wave) { return wave; }
};

}  // namespace flashwave

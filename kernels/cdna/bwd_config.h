// What follows from a row of the backward's kernels: sizes of tiles, LDS buffers and fragments.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/cdna/isa.h"

namespace flashwave {

inline constexpr int kQueryTile = 32;  // queries of one step of a backward
inline constexpr int kWaveKeys = 32;   // keys of a wave, one to a lane (twice: the halves of a wave split the queries)

// The kernel of dK and dV; kFused: also of dQ, by sums in memory.
template <class ElementType, int kDim_, int kTileK_, int kThreads_, bool kFused_, bool kGeneral_>
struct BackwardConfig {
  using Element = ElementType;
  static constexpr int kDim = kDim_;  // of the products: smaller head dims are padded with zeros
  static constexpr int kTileK = kTileK_, kThreads = kThreads_;
  static constexpr bool kFused = kFused_;
  static constexpr bool kGeneral = kGeneral_;  // scores may be modified, weights dropped
  static constexpr int kWaves = kThreads / kWave;
  static_assert(kWaves == 4 && kTileK == kWaves * kWaveKeys && (kDim == 64 || kDim == 128 || kDim == 256));

  // Columns of dK and dV that are in registers at a time: more take several walks along the queries.
  static constexpr int kColumns = kDim < 128 ? kDim : 128, kWalks = kDim / kColumns;
  static_assert(!kFused || kWalks == 1);

  static constexpr int kRowBytes = 2 * kDim, kMatrixBytes = kQueryTile * kRowBytes;
  // LDS: two buffers of the transposed tiles of Q and dO, rows of Q and dO, dS.
  static constexpr uint32_t kColumnBytes = kColumns * kQueryTile * 2, kTransposedBytes = 2 * kColumnBytes;
  static constexpr uint32_t kRows = 2 * kTransposedBytes, kDs = kRows + 2 * kMatrixBytes;
  static constexpr int kDsRowBytes = 2 * kTileK;
  static constexpr int kLdsBytes = kDs + (kFused ? kQueryTile * kDsRowBytes : 0);

  // Fragments (16 bytes of a lane, an MFMA operand), in the order of their products: S = Q K^T, dP = dO V^T,
  // dQ = dS K, dV^T += dO^T P, dK^T += Q^T dS.
  static constexpr int kRowFragments = kDim / 16, kBlocks = kColumns / 32;
  // A wave has 32 columns of dQ: with head dim 64 from half of the keys.
  static constexpr int kDqKeys = kTileK * kBlocks / kWaves, kDqFragments = kFused ? kDqKeys / 16 : 0;
  static constexpr int kFirstDp = kRowFragments, kFirstDq = 2 * kRowFragments, kFirstDv = kFirstDq + kDqFragments,
                       kFirstDk = kFirstDv + 2 * kBlocks, kFragments = kFirstDk + 2 * kBlocks;
  static constexpr int kAhead = 4;  // fragments read ahead of their use

  // Dwords of Q, and as many of dO, that a lane carries from memory to LDS for each tile.
  static constexpr int kStaged = kQueryTile * kDim / 2 / kThreads;
  static constexpr int kSets = 2;  // tiles in registers on their way to LDS

  static constexpr int64_t kBlockBytes = abi::backward_block_bytes(kQueryTile, kFused ? kDim : 0);
};

}  // namespace flashwave

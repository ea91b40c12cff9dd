// What follows from a row of the backward's kernels: sizes of tiles, LDS buffers and fragments.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/amd/bwd_rows.h"
#include "kernels/cdna/isa.h"

namespace flashwave {

inline constexpr int kQueryTile = 32;  // queries of one step of a backward
inline constexpr int kWaveKeys = 32;   // keys of a wave, one to a lane (twice: the halves of a wave split the queries)

#if !defined(__gfx950__)
// Cut off: the mean error is made good in the exponent of P, of which dS is a multiple.
template <>
struct Near<BF16<Rounding::kTruncate>> {
  static constexpr int kRoundSlots = 0;
  FW_METHOD static uint32_t round(float x) { return bits_of(x); }
  FW_METHOD static uint32_t pack(uint32_t low, uint32_t high) { return permute_bytes(high, low, 0x07060302); }
};
#endif

// Two registers of a tile, as one operand.
template <class T>
FW_DEVICE F32x2 pair_of(const T& x, int i) {
  return (F32x2){x[2 * i], x[2 * i + 1]};
}

// Columns of a row of a tile in LDS, of which a head dim may leave some unused.
FW_DEVICE constexpr int padded_columns(int dim) { return dim > 128 ? 256 : dim > 64 ? 128 : 64; }

// The kernel of dK and dV; kFused: also of dQ, by sums in memory.
template <class ElementType, int kDimQk_, int kDimV_, int kTileK_, int kThreads_, bool kFused_, bool kModified_>
struct BackwardConfig {
  using Element = ElementType;
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_;  // of the products: smaller head dims are padded with zeros
  static constexpr int kTileK = kTileK_, kThreads = kThreads_;
  static constexpr bool kFused = kFused_;
  static constexpr bool kModified = kModified_;  // scores may be modified, weights dropped
  static constexpr int kWaves = kThreads / kWave;
  static_assert(kWaves == 4 && kTileK == kWaves * kWaveKeys && kDimQk >= kDimV);

  // Columns of dK and dV that are in registers at a time: more take several walks along the queries.
  static constexpr int kPadded = padded_columns(kDimQk);
  static constexpr int kColumns = kPadded < 128 ? kPadded : 128, kWalks = kPadded / kColumns;
  static constexpr int kColumnsQk = kDimQk / kWalks, kColumnsV = kDimV / kWalks;  // in use
  static_assert(kColumnsQk % 32 == 0 && kColumnsV % 32 == 0);
  static_assert(!kFused || kWalks == 1);

  static constexpr int kRowBytes = 2 * kPadded, kMatrixBytes = kQueryTile * kRowBytes;
  // LDS: two buffers of the transposed tiles of Q and dO, rows of Q and dO, the columns of a walk at multiples of
  // kColumns, dS. kTransposing: two buffers of rows of Q and dO, two of dS (bwd_lds.h).
  static constexpr bool kTransposing = kIsGfx950;
  static constexpr uint32_t kColumnBytes = kColumns * kQueryTile * 2, kTransposedBytes = 2 * kColumnBytes;
  static constexpr uint32_t kRows = kTransposing ? 0 : 2 * kTransposedBytes;
  static constexpr uint32_t kDs = kRows + (kTransposing ? 4 : 2) * kMatrixBytes;
  static constexpr int kDsRowBytes = 2 * kTileK, kDsBytes = kQueryTile * kDsRowBytes;
  static constexpr int kDsBuffers = !kTransposing ? 1 : kColumns == 128 ? 4 : 2;
  // Where S and dP start with -lse and -delta, each wave has those of a tile (bwd_numbers.h). Head dims above 128 leave
  // no room; on gfx950 LDS is what limits.
  static constexpr bool kStarts = !kModified && kWalks == 1 && !kIsGfx950;
  // Head dim 64 where a matrix instruction takes 32 clocks: vector instructions limit. On gfx90a it takes 64.
  // kPacked: two scores by one instruction. It does not issue beside a matrix instruction, so the plan has it at the
  // end of a gap. For fp16, what rounds dS multiplies too (v_fma_mix).
  static constexpr bool kSmall = kStarts && kPadded <= 64 && kIsGfx942;
  static constexpr bool kPacked = kSmall && Near<Element>::kRoundSlots > 0;
  static constexpr uint32_t kNumbers = kDs + (kFused ? kDsBuffers * kDsBytes : 0);
  static constexpr uint32_t kWaveNumbers = 2 * kQueryTile * 4;
  static constexpr int kLdsBytes = kNumbers + (kStarts ? kWaves * kWaveNumbers : 0);

  // Fragments (16 bytes of a lane, an MFMA operand), in the order of their products: S = Q K^T, dP = dO V^T,
  // dQ = dS K, dV^T += dO^T P, dK^T += Q^T dS.
  static constexpr int kQkFragments = kDimQk / 16, kVFragments = kDimV / 16;
  static constexpr int kQkBlocks = kColumnsQk / 32, kVBlocks = kColumnsV / 32;
  // A wave has 32 columns of dQ: with head dim 64 from half of the keys, with 96 the last wave has none. kPairs: it has
  // 64 columns of every second tile, in two steps, so that a fragment of dS is read for two products.
  static constexpr bool kPairs = kTransposing && kFused && kColumns == 128;
  static constexpr int kDqUses = kPairs ? 2 : 1;  // of a fragment, each with a block of 32 columns
  static constexpr int kDqBlocks = kColumns / 32;
  static constexpr int kDqKeys = kTileK * kDqBlocks / kWaves;  // that the wave's columns are summed over
  static constexpr int kDqColumns = kFused ? kDqKeys / 16 : 0, kDqFragments = kDqColumns / kDqUses;
  static constexpr int kFirstDp = kQkFragments, kFirstDq = kFirstDp + kVFragments, kFirstDv = kFirstDq + kDqFragments,
                       kFirstDk = kFirstDv + 2 * kVBlocks, kFragments = kFirstDk + 2 * kQkBlocks;
  static constexpr int kAhead = kSmall ? 3 : 4;  // fragments read ahead of their use; less, and barriers wait less
  // The products of the fragments before this one.
  static constexpr int products_before(int fragment) {
    const int of_dq = fragment < kFirstDq ? 0 : fragment < kFirstDv ? fragment - kFirstDq : kDqFragments;
    return fragment + of_dq * (kDqUses - 1);
  }
  static constexpr int fragment_of_product(int product) {
    int f = 0;
    while (products_before(f + 1) <= product) ++f;
    return f;
  }

  // Dwords (kTransposing: units) of Q, and as many of dO, that a lane carries from memory to LDS for each tile.
  static constexpr int kStaged = kMatrixBytes / (kTransposing ? 16 : 4) / kThreads;
  static constexpr int kSets = 2;  // tiles in registers on their way to LDS

  // Waves with the same columns of dQ add to the same sums, in any order; or, where the order is fixed, each to its
  // own.
  static constexpr int kSumsOfTile = kFused ? abi::backward_sums_of_tile(kThreads, kDimQk) : 1;
  static_assert(!kFused || kSumsOfTile == kWaves / kDqBlocks);
  static constexpr int kSumBytes = kQueryTile * kDimQk * 4;
  // Of a block, up to the end of the first workgroup's sums.
  static constexpr uint32_t kBlockBytes =
      uint32_t(abi::backward_block_bytes(kQueryTile, kFused ? kDimQk* kSumsOfTile : 0));
};

}  // namespace flashwave

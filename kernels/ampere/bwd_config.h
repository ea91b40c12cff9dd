// What follows from a row of the backward's kernels: who does what in a CTA, and where things lie in shared memory.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/ampere/config.h"

namespace flashwave {

// How warps share a product of rows x columns, as groups of rows: as square as they can be, since a warp reads its rows
// of one factor and its columns of the other; fewer rows where that makes no difference, since a warp holds those in
// registers. 0: so many warps cannot share it.
constexpr int row_groups(int rows, int columns, int warps) {
  int best = 0, least = rows + columns + 1;
  for (int groups = 1; groups <= warps; groups *= 2) {
    const int others = warps / groups;
    if (rows % (16 * groups) != 0 || columns % (16 * others) != 0) continue;
    if (rows / groups + columns / others > least) continue;
    best = groups, least = rows / groups + columns / others;
  }
  return best;
}

// The share of a warp. Where there are more warps than 16 x 16 pieces, several compute the same.
template <int kAllRows, int kAllColumns, int kWarps>
struct WarpGrid {
  static constexpr int busy_warps() {
    int warps = kWarps;
    while (row_groups(kAllRows, kAllColumns, warps) == 0) warps /= 2;
    return warps;
  }
  static constexpr int kBusy = busy_warps(), kRowGroups = row_groups(kAllRows, kAllColumns, kBusy),
                       kColumnGroups = kBusy / kRowGroups;
  static constexpr int kRows = kAllRows / kRowGroups, kColumns = kAllColumns / kColumnGroups;
  static constexpr int kRowTiles = kRows / 16, kColumnTiles = kColumns / 8;
  using Sums = float[kRowTiles][kColumnTiles][4];

  FW_METHOD static int first_row(int warp) { return warp % kRowGroups * kRows; }
  FW_METHOD static int first_column(int warp) { return warp / kRowGroups % kColumnGroups * kColumns; }
};

template <int kDim_, int kTileQ_, int kTileK_, int kThreads_, int kSharedBytes>
struct BackwardConfig {
  static constexpr int kDim = kDim_, kTileQ = kTileQ_, kTileK = kTileK_, kThreads = kThreads_, kWarps = kThreads / 32;
  using ScoreGrid = WarpGrid<kTileQ, kTileK, kWarps>;  // S, dP
  using KeyGrid = WarpGrid<kTileK, kDim, kWarps>;      // dK, dV
  using QueryGrid = WarpGrid<kTileQ, kDim, kWarps>;    // dQ
  // CTAs of a multiprocessor that the registers are to suffice for: 255 of a thread for two of 4 warps.
  static constexpr int kCtas = kAsyncCopies && kWarps <= 4 ? 2 : 1;

  using Layout = TileLayout<kDim>;
  using ScoreLayout = TileLayout<kTileK>;
  static constexpr int kKeyBytes = kTileK * Layout::kPitch, kQueryBytes = kTileQ * Layout::kPitch;
  static constexpr int kScoreBytes = kTileQ * ScoreLayout::kPitch;
  static constexpr int kNumberBytes = kTileQ * 8;  // lse and delta

  static constexpr int kK = 0, kV = kKeyBytes, kQ = 2 * kKeyBytes, kDo = kQ + kQueryBytes, kP = kDo + kQueryBytes,
                       kDs = kP + kScoreBytes, kNumbers = kDs + kScoreBytes;
  static_assert(kSharedBytes == kNumbers + kNumberBytes);
};

}  // namespace flashwave

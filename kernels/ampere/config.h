// What follows from a row of kernels.def: who does what in a CTA, and where things lie in shared memory.
#pragma once

#include "kernels/nvidia/isa.h"

// What is compiled only if the target has the instructions of a row.
#define FW_FOR_kIsaSm75(...) __VA_ARGS__
#if FW_SM80
#define FW_FOR_kIsaSm80(...) __VA_ARGS__
#else
#define FW_FOR_kIsaSm80(...)
#endif

namespace flashwave {

// Aligned to the period of the swizzle.
extern __shared__ __align__(1024) char dynamic_shared[];

// A tile of 16-bit rows in shared memory, in chunks of 16 bytes. The 8 rows of an 8x8 matrix must lie in 8 different
// groups of banks: chunk c of row r is at c ^ (r & 7), or where rows are no multiple of 128 bytes, they are an odd
// number of chunks apart.
template <int kDim>
struct TileLayout {
  static constexpr int kChunks = kDim / 8;
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kPitch = (kSwizzled ? kChunks : kChunks | 1) * 16;  // bytes of a row

  FW_METHOD static uint32_t offset(int row, int chunk) {
    return uint32_t(row * kPitch + (kSwizzled ? chunk ^ (row & 7) : chunk) * 16);
  }
  // From the address of chunk c (0 or 1) of a row to that of chunk c + 2 * step.
  FW_METHOD static uint32_t advance(uint32_t at, int step) {
    return kSwizzled ? (at ^ uint32_t(step % 4 * 32)) + uint32_t(step / 4 * 128) : at + uint32_t(step * 32);
  }
  // From the address of a chunk to that of the n-th after it. The first is a multiple of a power of two above n.
  FW_METHOD static uint32_t along(uint32_t at, int n) {
    return kSwizzled ? (at ^ uint32_t(n % 8 * 16)) + uint32_t(n / 8 * 128) : at + uint32_t(n * 16);
  }
};

template <int kDimQk_, int kDimV_, int kTileQ, int kTileK, int kThreads_, int kSharedBytes>
struct Config {
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_, kThreads = kThreads_, kWarps = kThreads / 32;
  static constexpr int kTileRows = kTileQ, kKeys = kTileK;
  // A warp has at most 256 columns of O in its registers: two warps share the rows of a longer one, and each computes
  // the scores by itself.
  static constexpr int kColumnParts = kDimV > 256 ? 2 : 1, kColumns = kDimV / kColumnParts;
  static constexpr int kRowGroups = kWarps / kColumnParts, kWarpRows = kTileQ / kRowGroups;
  static constexpr int kRowTiles = kWarpRows / 16, kKeyTiles = kTileK / 8, kColumnTiles = kColumns / 8;
  static constexpr int kStepsQk = kDimQk / 16;

  // O and S take 192 registers of the 255.
  static constexpr bool kFewRegisters = kRowTiles * (kColumnTiles + kKeyTiles) * 4 >= 192;
  // CTAs of a multiprocessor that the registers are to suffice for: 255 of a thread for two of 4 warps, 168 for three
  // where O and S are small. sm_75 has shared memory for one or two.
  static constexpr int kCtas = !kAsyncCopies || kWarps > 4 ? 1 : kRowTiles == 1 && kColumns <= 128 ? 3 : 2;

  using LayoutQk = TileLayout<kDimQk>;
  using LayoutV = TileLayout<kDimV>;
  static constexpr int kBytesQ = kTileQ * LayoutQk::kPitch, kBytesK = kTileK * LayoutQk::kPitch,
                       kBytesV = kTileK * LayoutV::kPitch;
  // The row says by its shared memory whether K and V have one buffer each, or two.
  static constexpr int kStages = kSharedBytes == kBytesQ + kBytesK + kBytesV ? 1 : 2;
  static constexpr int kOffsetK = kBytesQ, kOffsetV = kBytesQ + kStages * kBytesK;
  static_assert(kSharedBytes == kOffsetV + kStages * kBytesV);

  static_assert(kTileQ == kRowGroups * kWarpRows && kWarpRows % 16 == 0 && kTileK % 16 == 0);
  static_assert(kDimV <= kDimQk, "O leaves through the memory of Q");
  static_assert(kColumnParts == 1 || kStages == 1, "a warp may overwrite Q that its partner still reads");
};

}  // namespace flashwave

// Rows of global memory -> tiles in shared memory, and back.
#pragma once

#include "kernels/ampere/config.h"
#include "kernels/common/window.h"

namespace flashwave {

// How the threads of a CTA share a tile of rows: 8 neighbours (4 if rows are no multiple of 128 bytes) take a row's
// chunks in turn, and every kRows-th row.
template <int kThreads, int kDim>
struct RowShare {
  using Layout = TileLayout<kDim>;
  static constexpr int kLanes = Layout::kSwizzled ? 8 : 4, kRows = kThreads / kLanes, kTurns = Layout::kChunks / kLanes;
  static_assert(kTurns * kLanes == Layout::kChunks && kRows % 8 == 0);

  const int row, chunk;  // of this thread: the first of each
  FW_METHOD explicit RowShare(int thread) : row(thread / kLanes), chunk(thread % kLanes) {}
};

// The 16 bytes at `from`, of which `count` elements are there, at any address; the others are 0.
FW_DEVICE uint4 gather(const char* from, int count) {
  uint32_t x[4] = {};
  FW_UNROLL for (int e = 0; e < 8; ++e) {
    if (e < count) x[e / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(from)[e]} << e % 2 * 16;
  }
  return {x[0], x[1], x[2], x[3]};
}

// Copies kCount rows to the tile at `to`, of which the first `count` exist; the others become 0, and so do columns past
// the head dim. address(i): this thread's first chunk of its i-th row, valid if the row exists. vectors: everything is
// at multiples of 16 bytes.
template <int kCount, bool kAnyAlignment, class Share, class Address>
FW_DEVICE void load_rows(const Share& share, uint32_t to, int count, int dim, bool vectors, const Address& address) {
  const int first = share.row, column0 = share.chunk * 8;
  to += Share::Layout::offset(first, share.chunk);
  constexpr int kPasses = (kCount + Share::kRows - 1) / Share::kRows, kTurn = Share::kLanes * 16;
  constexpr int kPass = Share::kRows * Share::Layout::kPitch;  // bytes, as kTurn
  if (kAnyAlignment && !vectors) {
    FW_NO_UNROLL for (int i = 0; i < kPasses; ++i) {
      const int row = first + i * Share::kRows;
      if (kCount % Share::kRows != 0 && row >= kCount) break;
      const char* const from = address(i);
      FW_NO_UNROLL for (int j = 0; j < Share::kTurns; ++j) {
        store_shared(to + uint32_t(i * kPass + j * kTurn),
                     gather(from + j * kTurn, row < count ? dim - column0 - j * (kTurn / 2) : 0));
      }
    }
    return;
  }
  FW_UNROLL for (int i = 0; i < kPasses; ++i) {
    const int row = first + i * Share::kRows;
    if (kCount % Share::kRows != 0 && row >= kCount) break;
    const char* const from = address(i);
    if constexpr (kAsyncCopies) {
      FW_UNROLL for (int j = 0; j < Share::kTurns; ++j) {
        copy_async(to + uint32_t(i * kPass + j * kTurn), from + j * kTurn,
                   row < count && column0 + j * (kTurn / 2) < dim);
      }
    } else {
      uint4 staged[Share::kTurns];
      FW_UNROLL for (int j = 0; j < Share::kTurns; ++j) {
        staged[j] = {};
        if (row < count && column0 + j * (kTurn / 2) < dim)
          staged[j] = *reinterpret_cast<const uint4*>(from + j * kTurn);
      }
      FW_UNROLL for (int j = 0; j < Share::kTurns; ++j) store_shared(to + uint32_t(i * kPass + j * kTurn), staged[j]);
    }
  }
}

// Whether every row of a tensor starts at a multiple of 16 bytes. Strides of dimensions of one entry count as well.
FW_DEVICE bool has_vectors(const abi::Tensor& t, int dim) {
  const int64_t strides = t.stride[0] | t.stride[1] | t.stride[2] | dim;
  return (strides & 7) == 0 && (reinterpret_cast<uint64_t>(t.data) & 15) == 0;
}

}  // namespace flashwave

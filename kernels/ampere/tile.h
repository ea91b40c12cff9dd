// Rows of global memory -> tiles in shared memory, and back.
#pragma once

#include "kernels/ampere/config.h"
#include "kernels/common/sequence.h"

namespace flashwave {

// How the threads of a CTA share a tile of rows: 8 neighbours (4 if rows are no multiple of 128 bytes) take a row's
// chunks in turn, and every kRows-th row.
template <int kThreads, int kDim>
struct RowShare {
  using Layout = TileLayout<kDim>;
  static constexpr int kLanes = Layout::kSwizzled ? 8 : 4, kRows = kThreads / kLanes, kTurns = Layout::kChunks / kLanes;
  static_assert(kTurns * kLanes == Layout::kChunks && kRows % 8 == 0);

  FW_METHOD static int row() { return thread_index() / kLanes; }
  FW_METHOD static int chunk() { return thread_index() % kLanes; }
};

// 16 bytes of a row from element `column` on whose address may be any; 0 past the head dim.
FW_DEVICE uint4 gather(const char* row, int column, int dim) {
  uint32_t x[4] = {};
  FW_UNROLL for (int e = 0; e < 8; ++e) {
    if (column + e < dim) x[e / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(row)[column + e]} << e % 2 * 16;
  }
  return {x[0], x[1], x[2], x[3]};
}

// Copies kCount rows to the tile at `to`. address(row) is where a row starts, called for rows that valid(row) says
// exist; the others become 0, and so do columns past the head dim. vectors: everything at multiples of 16 bytes.
template <int kThreads, int kDim, int kCount, bool kAnyAlignment, class Address, class Valid>
FW_DEVICE void load_rows(uint32_t to, int dim, bool vectors, const Address& address, const Valid& valid) {
  using Share = RowShare<kThreads, kDim>;
  const int first = Share::row(), chunk = Share::chunk();
  to += Share::Layout::offset(first, chunk);
  FW_UNROLL for (int i = 0; i < (kCount + Share::kRows - 1) / Share::kRows; ++i) {
    const int row = first + i * Share::kRows;
    if (kCount % Share::kRows != 0 && row >= kCount) break;
    const bool exists = valid(row);
    const char* const from = address(exists ? row : 0);
    const uint32_t at = to + uint32_t(i * Share::kRows * Share::Layout::kPitch);
    if (kAnyAlignment && !vectors) {
      FW_NO_UNROLL for (int j = 0; j < Share::kTurns; ++j) {
        const int column = (chunk + j * Share::kLanes) * 8;
        store_shared(at + uint32_t(j * Share::kLanes * 16), gather(from, column, exists ? dim : 0));
      }
    } else if constexpr (kAsyncCopies) {
      FW_UNROLL for (int j = 0; j < Share::kTurns; ++j) {
        const int column = (chunk + j * Share::kLanes) * 8;
        copy_async(at + uint32_t(j * Share::kLanes * 16), from + column * 2, exists && column < dim);
      }
    } else {
      uint4 staged[Share::kTurns];
      FW_UNROLL for (int j = 0; j < Share::kTurns; ++j) {
        const int column = (chunk + j * Share::kLanes) * 8;
        staged[j] = {};
        if (exists && column < dim) staged[j] = *reinterpret_cast<const uint4*>(from + column * 2);
      }
      FW_UNROLL for (int j = 0; j < Share::kTurns; ++j) {
        store_shared(at + uint32_t(j * Share::kLanes * 16), staged[j]);
      }
    }
  }
}

// Where the keys of one head of a sequence lie in k or v.
struct KeyRows {
  const char* base;  // dense: key 0; paged: row 0 of page 0

  FW_METHOD KeyRows(const Params& p, const abi::Tensor& t, const Sequence& seq, int head_k) {
    base = static_cast<const char*>(t.data) + head_k * t.stride[2] * 2;
    if (!p.block_table) base += (seq.k_batch * t.stride[0] + seq.k_row * t.stride[1]) * 2;
  }
  FW_METHOD const char* dense(const abi::Tensor& t, int key) const { return base + key * t.stride[1] * 2; }
  // table: the sequence's row of the block table; row: left pad included.
  FW_METHOD const char* paged(const Params& p, const abi::Tensor& t, const int32_t* table, uint32_t row) const {
    const uint32_t size = uint32_t(p.page_size), page = row / size;
    return base + (table[page] * t.stride[0] + int64_t(row - page * size) * t.stride[1]) * 2;
  }
};

// Whether every row of a tensor starts at a multiple of 16 bytes. Strides of dimensions of one entry count as well.
FW_DEVICE bool has_vectors(const abi::Tensor& t, int dim) {
  const int64_t strides = t.stride[0] | t.stride[1] | t.stride[2] | dim;
  return (strides & 7) == 0 && (reinterpret_cast<uint64_t>(t.data) & 15) == 0;
}

}  // namespace flashwave

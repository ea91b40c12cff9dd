// Products of tiles in shared memory by mma.sync. A lane finds its place in a tile once; steps and pieces from there
// are constants.
#pragma once

#include "kernels/ampere/isa.h"
#include "kernels/ampere/tile.h"

namespace flashwave {

// The first factor, 16 rows x 16 deep at a time, from a tile that has its rows as rows, or as columns. The second, 16
// deep x 16 columns, from a tile that has its columns as rows, or as columns. A warp's columns of a swizzled tile begin
// at a multiple of their number, a power of two, so that a step in it changes bits that are 0.
template <class Layout>
struct ByRows {
  uint32_t at;
  FW_METHOD void load(uint32_t (&x)[4], int piece, int step) const {
    load_matrices(x, Layout::advance(at, step) + piece * 16 * Layout::kPitch);
  }
};
template <class Layout>
struct ByColumns {
  uint32_t at;
  FW_METHOD void load(uint32_t (&x)[4], int piece, int step) const {
    load_matrices_transposed(x, Layout::advance(at, piece) + step * 16 * Layout::kPitch);
  }
};
template <class Layout>
struct FirstByRows : ByRows<Layout> {
  FW_METHOD FirstByRows(uint32_t tile, int first, int lane)
      : ByRows<Layout>{tile + Layout::offset(first + (lane & 15), lane >> 4)} {}
};
template <class Layout>
struct FirstByColumns : ByColumns<Layout> {
  FW_METHOD FirstByColumns(uint32_t tile, int first, int lane)
      : ByColumns<Layout>{tile + Layout::offset((lane & 7) + (lane >> 4) * 8, first / 8 + (lane >> 3 & 1))} {}
};
template <class Layout>
struct SecondByRows : ByRows<Layout> {
  FW_METHOD SecondByRows(uint32_t tile, int first, int lane)
      : ByRows<Layout>{tile + Layout::offset(first + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1)} {}
};
template <class Layout>
struct SecondByColumns : ByColumns<Layout> {
  FW_METHOD SecondByColumns(uint32_t tile, int first, int lane)
      : ByColumns<Layout>{tile + Layout::offset(lane & 15, first / 8 + (lane >> 4))} {}
};

template <int kRowTiles, int kColumnTiles>
FW_DEVICE void clear(float (&d)[kRowTiles][kColumnTiles][4]) {
  FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
    FW_UNROLL for (int n = 0; n < kColumnTiles; ++n) { FW_UNROLL for (int i = 0; i < 4; ++i) d[r][n][i] = 0.f; }
  }
}

// d += a b, over kDepth.
template <class T, int kDepth, int kRowTiles, int kColumnTiles, class First, class Second>
FW_DEVICE void multiply(float (&d)[kRowTiles][kColumnTiles][4], const First& a, const Second& b) {
  FW_UNROLL for (int step = 0; step < kDepth / 16; ++step) {
    uint32_t x[kRowTiles][4];
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) a.load(x[r], r, step);
    FW_UNROLL for (int n = 0; n < kColumnTiles; n += 2) {
      uint32_t y[4];
      b.load(y, n / 2, step);
      FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
        T::mma(d[r][n], x[r], y[0], y[1]);
        T::mma(d[r][n + 1], x[r], y[2], y[3]);
      }
    }
  }
}

// Accumulators, rounded, to a tile.
template <class T, class Layout, int kRowTiles, int kColumnTiles>
FW_DEVICE void store_tile(const float (&d)[kRowTiles][kColumnTiles][4], uint32_t tile, int first_row, int first_column,
                          int lane, float factor = 1.f) {
  const uint32_t at = tile + Layout::offset(first_row + lane / 4, first_column / 8) + (lane & 3) * 4;
  FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
    FW_UNROLL for (int h = 0; h < 2; ++h) {
      FW_UNROLL for (int n = 0; n < kColumnTiles; ++n) {
        store_shared(Layout::along(at, n) + (r * 16 + h * 8) * Layout::kPitch,
                     T::pack(d[r][n][2 * h] * factor, d[r][n][2 * h + 1] * factor));
      }
    }
  }
}

}  // namespace flashwave

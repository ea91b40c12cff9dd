// The two products everything in fwd.h and bwd.h is made of, without matrix instructions:
//
//   row_dots:    S[r][c] = A_r . B_c            the columns c in the lanes
//   accumulate:  acc[r][d] += sum_c W[r][c] B_c[d]     the elements d in the lanes
//
// A tile is 16 rows (queries, or keys for dK and dV) by one wave's width of columns (the other). Each wave has its own
// rows; the columns are staged in LDS as fp32, 64 elements of the head dimension at a time, so a workgroup needs 27 KiB
// whatever the head dimension. Rows lie anywhere: a table of element offsets per tile says where.
#pragma once

#include "kernels/common/accurate.h"
#include "kernels/common/elements.h"
#include "kernels/common/gpu.h"
#include "kernels/common/sequence.h"

namespace flashwave {

inline constexpr int kThreads = 256, kWaves = kThreads / kWave;
inline constexpr int kRows = 16, kRowsPerWave = kRows / kWaves;
inline constexpr int kColumns = kWave;
inline constexpr int kChunk = 64, kMaxChunks = 512 / kChunk;
inline constexpr int kPerLane = kChunk / kWave;  // elements of a chunk in one lane
inline constexpr int kPitch = kChunk + 4;        // rows start in different banks, 16-byte aligned
inline constexpr int64_t kAbsent = INT64_MIN;    // offset of a row that is not there: zeros

using PerLane = Vec<float, kPerLane>;
using Accumulator = PerLane[kRowsPerWave][kMaxChunks];

// A matrix of the tile: written by row_dots, changed in place row by row, read by accumulate. Each wave has its rows.
using Matrix = float[kRows][kColumns + 4];

struct TileMemory {
  alignas(16) float rows[kRows][kPitch];
  alignas(16) float columns[kColumns][kPitch];
  alignas(16) Matrix first, second;
  int64_t row_offset[2][kRows], column_offset[2][kColumns];    // of two tensors: q and d_o, k and v
  float top[kRows], sum[kRows], total[kRows], rescale[kRows];  // forward: state of the online softmax
};

FW_DEVICE int own_row(int r) { return wave_index() * kRowsPerWave + r; }

// Elements d0 .. d0+63 of `count` rows to LDS; zeros beyond `dim`.
template <class T>
FW_DEVICE void stage(float (*out)[kPitch], const T* data, const int64_t* offset, int count, int d0, int dim) {
  constexpr int kThreadsPerRow = kChunk / 4;
  const int column = thread_index() % kThreadsPerRow * 4;
  for (int row = thread_index() / kThreadsPerRow; row < count; row += kThreads / kThreadsPerRow) {
    const int64_t at = offset[row];
    const F32x4 x = at == kAbsent ? F32x4(0.f) : load_four(data + at + d0 + column, dim - d0 - column);
    *reinterpret_cast<F32x4*>(&out[row][column]) = x;
  }
}

// Where the rows and columns of a tile lie. Threads 0.. write the first table, the next ones the second.
template <int kCount, class First, class Second>
FW_DEVICE void set_offsets(int64_t (&table)[2][kCount], int64_t count, First first, Second second) {
  const int t = thread_index(), at = t % kCount;
  if (t < kCount) table[0][at] = at < count ? first(at) : kAbsent;
  if (t >= kCount && t < 2 * kCount) table[1][at] = at < count ? second(at) : kAbsent;
}

// out = the dots of this wave's rows with the column of each lane (from `count` on: with some other column). Four
// partial sums each. `working`: this wave has rows.
template <class T>
FW_DEVICE void row_dots(TileMemory& memory, const T* a, const int64_t* a_offset, const T* b, const int64_t* b_offset,
                        int count, int dim, bool working, Matrix& out) {
  F32x4 sum[kRowsPerWave] = {};
  const int column = lane_index() < count ? lane_index() : count - 1, first_row = own_row(0);
  FW_NO_UNROLL for (int d0 = 0; d0 < dim; d0 += kChunk) {
    workgroup_barrier();
    stage(memory.rows, a, a_offset, kRows, d0, dim);
    stage(memory.columns, b, b_offset, count, d0, dim);
    workgroup_barrier();
    if (!working) continue;
    const int end = dim - d0 < kChunk ? dim - d0 : kChunk;
    _Pragma("unroll 4") for (int d = 0; d < end; d += 4) {
      const F32x4 x = *reinterpret_cast<const F32x4*>(&memory.columns[column][d]);
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
        sum[r] = __builtin_elementwise_fma(*reinterpret_cast<const F32x4*>(&memory.rows[first_row + r][d]), x, sum[r]);
      }
    }
  }
  FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
    out[first_row + r][lane_index()] = (sum[r].x + sum[r].z) + (sum[r].y + sum[r].w);
  }
}

// acc += weights (this wave's rows of it) times the columns.
template <class T>
FW_DEVICE void accumulate(TileMemory& memory, const Matrix& weights, const T* b, const int64_t* b_offset, int count,
                          int dim, bool working, Accumulator& acc) {
  const int lane = lane_index(), first_row = own_row(0), padded = (count + 3) & ~3;
  FW_UNROLL for (int c = 0; c < kMaxChunks; ++c) {
    if (c * kChunk >= dim) break;
    workgroup_barrier();
    stage(memory.columns, b, b_offset, padded, c * kChunk, dim);
    workgroup_barrier();
    if (!working) continue;
    FW_NO_UNROLL for (int j = 0; j < padded; j += 4) {
      F32x4 w[kRowsPerWave];
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
        w[r] = *reinterpret_cast<const F32x4*>(&weights[first_row + r][j]);
      }
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        const PerLane x = *reinterpret_cast<const PerLane*>(&memory.columns[j + e][lane * kPerLane]);
        FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
          acc[r][c] = __builtin_elementwise_fma(PerLane(w[r][e]), x, acc[r][c]);
        }
      }
    }
  }
}

// One row of an accumulator, times `factor`, to memory.
template <class T>
FW_DEVICE void store_row(T* out, const PerLane (&acc)[kMaxChunks], float factor, int dim) {
  FW_UNROLL for (int c = 0; c < kMaxChunks; ++c) {
    if (c * kChunk >= dim) break;
    FW_UNROLL for (int e = 0; e < kPerLane; ++e) {
      const int d = c * kChunk + lane_index() * kPerLane + e;
      if (d < dim) store(out + d, acc[c][e] * factor);
    }
  }
}

// The same to a tensor in T or in fp32.
template <class T>
FW_DEVICE void store_row(const abi::Tensor& t, int64_t offset, const PerLane (&acc)[kMaxChunks], float factor,
                         int dim) {
  if (t.dtype == abi::kF32) return store_row(elements<float>(t) + offset, acc, factor, dim);
  store_row(elements<T>(t) + offset, acc, factor, dim);
}

// Which 16 rows of which head a task has: blocks of one head are neighbours.
struct TaskBlock {
  int32_t b, h;
  int64_t begin;
  FW_METHOD TaskBlock(int64_t task, int64_t rows, int32_t heads) {
    const int64_t blocks = (rows + kRows - 1) / kRows;
    begin = task % blocks * kRows;
    h = int32_t(task / blocks % heads);
    b = int32_t(task / blocks / heads);
  }
};

FW_DEVICE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
FW_DEVICE int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace flashwave

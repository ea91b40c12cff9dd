// A and G of the backward on their way (bwd_config.h): rows of global memory -> registers -> LDS, as they are and
// transposed, both in fragment order.
#pragma once

#include "kernels/common/sequence.h"
#include "kernels/rdna/bwd_config.h"
#include "kernels/rdna/tile.h"

namespace flashwave {

FW_DEVICE int least(int a, int b) { return a < b ? a : b; }

// So many bytes from the first of `rows` rows reach to the end of the last one.
FW_DEVICE uint32_t span_of(int rows, uint32_t stride, int bytes) {
  return rows > 0 ? uint32_t(rows - 1) * stride + uint32_t(bytes) : 0;
}

// Rows of one head of a tensor. Uniform.
struct HeadRows {
  const char* data;
  uint32_t stride;  // bytes
  int columns;      // bytes of a row

  FW_METHOD void start(const abi::Tensor& t, int64_t offset, int dim) {
    data = static_cast<const char*>(t.data) + offset * 2;
    stride = uint32_t(t.stride[1] * 2);
    columns = dim * 2;
  }
  FW_METHOD Buffer buffer(int rows) const { return make_buffer(data, span_of(rows, stride, columns)); }
};

template <class C>
struct Stream {
  // RDNA4: a unit of 8 rows of one column as it came. RDNA3: 8 rows of 2 columns.
  using Transposed = Vec<uint32_t, kRdna4 ? 4 : 8>;

  HeadRows a, g;
  int rows;                     // of the tensors from the tile that is loaded on
  uint32_t a_source, g_source;  // byte offsets of this lane in the tile: of its first unit of rows,
  uint32_t a_across, g_across;  // and of the transposes (RDNA3: the same in both)
  uint32_t across_target;       // RDNA3
  U32x4 staged_rows[2][C::kRowLoads];
  Transposed staged[C::kTransposes];

  // RDNA3: which 8 rows of a tile a wave transposes, the even or odd ones of 16, and which tensor if not both.
  FW_METHOD static int row_group(int wave) { return C::kBothTransposes ? wave / (C::kDim / 64) : wave % 4; }
  FW_METHOD static bool has_g(int wave) { return !C::kBothTransposes && wave >= C::kWaves / 2; }

  FW_METHOD void start(int wave, int lane) {
    const int fragment = wave * C::kRowLoads, row = fragment / C::kSteps * 16 + (lane & 15);
    const int column = fragment % C::kSteps * 32 + (lane >> 4) * 16;
    a_source = row * a.stride + column;
    g_source = row * g.stride + column;
#if defined(__GFX12__)
    a_across = transposed_row(wave, lane) * a.stride + transposed_column(wave, lane);
    g_across = transposed_row(wave, lane) * g.stride + transposed_column(wave, lane);
#else
    // Column d is row i of its fragment, such that 8 lanes store to 8 different bank groups and a lane of dX^T ends
    // with 8 contiguous columns (ValueLoader in tile.h).
    const int group = row_group(wave), d = (C::kBothTransposes ? wave % (C::kDim / 64) * 64 : 0) + 2 * lane;
    const int unit = (d >> 3 & 1) | (d >> 2 & 1) << 1 | (d >> 1 & 1) << 2;
    a_across = d * 2;
    across_target = (group / 2 * C::kSteps + d / 16) * kFragmentBytes + group % 2 * 256 + unit * 16 +
                    (has_g(wave) ? C::kRowBytes : 0);
#endif
  }

  // Both tensors have all columns: the largest number is a power of two.
  FW_METHOD bool whole_columns() const { return here(a.columns & g.columns) == C::kDim * 2; }

  FW_METHOD void load_rows() {
    const Buffer from_a = a.buffer(least(rows, C::kStreamed)), from_g = g.buffer(least(rows, C::kStreamed));
    FW_UNROLL for (int j = 0; j < C::kRowLoads; ++j) {
      staged_rows[0][j] = buffer_load16(from_a, a_source + j * 32);
      staged_rows[1][j] = buffer_load16(from_g, g_source + j * 32);
    }
  }
  // Columns past the head dim hold whatever follows the row in memory, possibly NaN: 0. (Of transposes they reach only
  // columns of the results that are not written.)
  FW_METHOD void clear_tails(int wave, int lane) {
    hold(lane);
    wave = here(wave);
    FW_UNROLL for (int j = 0; j < C::kRowLoads; ++j) {
      const int column = (wave * C::kRowLoads + j) % C::kSteps * 32 + (lane >> 4) * 16;
      FW_UNROLL for (int w = 0; w < 4; ++w) {
        staged_rows[0][j][w] = column < a.columns ? staged_rows[0][j][w] : 0;
        staged_rows[1][j][w] = column < g.columns ? staged_rows[1][j][w] : 0;
      }
      hold(staged_rows[0][j]);
      hold(staged_rows[1][j]);
    }
  }
  // `at`: lane * 16 + wave * kRowLoads fragments.
  FW_METHOD void store_rows(char* lds, uint32_t at, int wave, int lane) {
    if (__builtin_expect(!whole_columns(), 0)) clear_tails(wave, lane);
    FW_UNROLL for (int j = 0; j < C::kRowLoads; ++j) {
      *reinterpret_cast<U32x4*>(lds + at + C::kA + j * kFragmentBytes) = staged_rows[0][j];
      *reinterpret_cast<U32x4*>(lds + at + C::kG + j * kFragmentBytes) = staged_rows[1][j];
    }
  }

#if defined(__GFX12__)
  static constexpr int kEach = C::kTransposes / 2;
  FW_METHOD static int transposed_row(int wave, int lane) {
    return wave * kEach / C::kSteps * 16 + (lane >> 4) * 8 + (lane & 7);
  }
  FW_METHOD static int transposed_column(int wave, int lane) { return wave * kEach % C::kSteps * 32 + (lane & 8) * 2; }
  // Transposing loads have no range check: rows and columns that are not there count as the last one, since P = dS = 0
  // multiplies the former and nobody wants the latter.
  FW_METHOD void load_transposes(int wave, int lane) {
    if (__builtin_expect(rows >= C::kStreamed && whole_columns(), 1)) {
      hold(a_across);  // extended to 64 bits here, or the load would not take it as 32
      hold(g_across);
      FW_UNROLL for (int j = 0; j < kEach; ++j) staged[j] = load_transposed(a.data + j * 32, a_across);
      if constexpr (C::kKeepsKeys) {
        FW_UNROLL for (int j = 0; j < kEach; ++j) staged[kEach + j] = load_transposed(g.data + j * 32, g_across);
      }
    } else {
      hold(lane);
      const int row = least(transposed_row(wave, lane), rows - 1), column = transposed_column(wave, lane);
      FW_UNROLL for (int j = 0; j < kEach; ++j) {
        staged[j] = load_transposed(a.data, row * a.stride + least(column + j * 32, a.columns - 16));
        if constexpr (C::kKeepsKeys) {
          staged[kEach + j] = load_transposed(g.data, row * g.stride + least(column + j * 32, g.columns - 16));
        }
      }
    }
  }
  // `at`: lane * 16 + wave * kEach fragments.
  FW_METHOD void store_transposes(char* lds, uint32_t at, int) {
    FW_UNROLL for (int j = 0; j < (C::kKeepsKeys ? 2 * kEach : kEach); ++j) {
      const int to = C::kAt + (j >= kEach ? C::kRowBytes : 0) + j % kEach * kFragmentBytes;
      *reinterpret_cast<U32x4*>(lds + at + to) = staged[j];
    }
  }
#else
  // One descriptor a row: rows that are not there, and columns past the head dim, read 0. `first` and `second` take the
  // places of A and G; kBoth: of G too.
  template <bool kBoth>
  FW_METHOD void load_transposes_of(const HeadRows& first, int first_rows, const HeadRows& second, int second_rows,
                                    int wave) {
    if (!kBoth && has_g(wave)) return;
    const int group = row_group(wave), row0 = group / 2 * 16 + group % 2;
    FW_UNROLL for (int j = 0; j < (kBoth ? C::kTransposes : 1); ++j) {
      const bool g_too = C::kBothTransposes ? j == 1 : has_g(wave);
      const uint32_t stride = g_too ? second.stride : first.stride;
      const int count = g_too ? second_rows : first_rows, columns = g_too ? second.columns : first.columns;
      const char* row = (g_too ? second.data : first.data) + int64_t{row0} * stride;
      FW_UNROLL for (int e = 0; e < 8; ++e) {
        const Buffer b = make_buffer(row, row0 + 2 * e < count ? columns : 0);
        staged[j][e] = buffer_load4(b, a_across);
        row += 2 * int64_t{stride};
      }
    }
  }
  FW_METHOD void load_transposes(int wave, int) { load_transposes_of<C::kKeepsKeys>(a, rows, g, rows, wave); }
  // `to`: where A's go, G's behind them.
  template <bool kBoth>
  FW_METHOD void store_transposes_to(char* lds, int to, int wave) {
    if (!kBoth && has_g(wave)) return;
    FW_UNROLL for (int j = 0; j < (kBoth ? C::kTransposes : 1); ++j) {
      FW_UNROLL for (int d0 = 0; d0 < 2; ++d0) {
        U32x4 unit;
        FW_UNROLL for (int e = 0; e < 4; ++e) {
          unit[e] = permute_bytes(staged[j][2 * e + 1], staged[j][2 * e], d0 ? 0x07060302 : 0x05040100);
        }
        *reinterpret_cast<U32x4*>(lds + across_target + to + j * C::kRowBytes + d0 * 128) = unit;
      }
    }
  }
  FW_METHOD void store_transposes(char* lds, uint32_t, int wave) {
    store_transposes_to<C::kKeepsKeys>(lds, C::kAt, wave);
  }
#endif
};

}  // namespace flashwave

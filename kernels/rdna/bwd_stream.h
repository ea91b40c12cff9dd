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
    data = static_cast<const char*>(t.data) + uniform(offset) * 2;  // lengths may come through the vector unit
    stride = uint32_t(t.stride[1] * 2);
    columns = dim * 2;
  }
  FW_METHOD Buffer buffer(int rows) const { return make_buffer(data, span_of(rows, stride, columns)); }
};

// Half of the waves that load have A, the others G.
template <class C>
struct Stream {
  // RDNA4: a unit of 8 rows of one column as it came. RDNA3: 8 rows of 2 columns.
  using Transposed = Vec<uint32_t, kRdna4 ? 4 : 8>;
  static constexpr int kSharers = C::kLoadWaves / 2;  // waves that have a tensor together

  HeadRows from;
  int rows;         // of the tensor from the tile that is loaded on
  uint32_t source;  // byte offsets of this lane in the tile: of its first unit of rows,
  uint32_t across;  // and of the transposes
  uint32_t target;  // in LDS, of rows
  uint32_t across_target;
  U32x4 staged_rows[C::kRowLoads];
  Transposed staged[C::kTransposes];

  FW_METHOD static bool has_g(int wave) { return wave >= kSharers; }
  FW_METHOD static int share(int wave) { return wave & (kSharers - 1); }
  // RDNA3: which 8 rows of a tile a wave transposes, the even or the odd ones, and from which 64 columns on.
  FW_METHOD static int row_group(int wave) { return share(wave) / (kSharers / 2); }
  FW_METHOD static int block(int wave) { return share(wave) % (kSharers / 2) * C::kTransposes; }

  FW_METHOD void start(int wave, int lane) {
    const int tensor = has_g(wave) ? C::kRowBytes : 0;
    source = (lane & 15) * from.stride + share(wave) * C::kRowLoads * 32 + (lane >> 4) * 16;
    target = lane * 16 + share(wave) * C::kRowLoads * kFragmentBytes + tensor;
#if defined(__GFX12__)
    across = transposed_row(lane) * from.stride + transposed_column(wave, lane);
    across_target = lane * 16 + share(wave) * C::kTransposes * kFragmentBytes + tensor;
#else
    // Column d is row i of its fragment, such that 8 lanes store to 8 different bank groups and a lane of dX^T ends
    // with 8 contiguous columns (ValueLoader in tile.h).
    const int d = block(wave) * 64 + 2 * lane;
    const int unit = (d >> 3 & 1) | (d >> 2 & 1) << 1 | (d >> 1 & 1) << 2;
    across = d * 2;
    across_target = d / 16 * kFragmentBytes + row_group(wave) * 256 + unit * 16 + tensor;
#endif
  }

  // The tensor has all columns.
  FW_METHOD bool whole_columns() const { return here(from.columns) == C::kDim * 2; }

  FW_METHOD void load_rows() {
    const Buffer b = from.buffer(least(rows, C::kStreamed));
    FW_UNROLL for (int j = 0; j < C::kRowLoads; ++j) staged_rows[j] = buffer_load16(b, source + j * 32);
  }
  // Columns past the head dim hold whatever follows the row in memory, possibly NaN: 0. (Of transposes they reach only
  // columns of the results that are not written.)
  FW_METHOD void clear_tails(int wave, int lane) {
    hold(lane);
    wave = here(wave);
    FW_UNROLL for (int j = 0; j < C::kRowLoads; ++j) {
      const int column = (share(wave) * C::kRowLoads + j) * 32 + (lane >> 4) * 16;
      FW_UNROLL for (int w = 0; w < 4; ++w) staged_rows[j][w] = column < from.columns ? staged_rows[j][w] : 0;
      hold(staged_rows[j]);
    }
  }
  FW_METHOD void store_rows(char* lds, int wave, int lane) {
    if (__builtin_expect(!whole_columns(), 0)) clear_tails(wave, lane);
    FW_UNROLL for (int j = 0; j < C::kRowLoads; ++j) {
      *reinterpret_cast<U32x4*>(lds + target + C::kA + j * kFragmentBytes) = staged_rows[j];
    }
  }

#if defined(__GFX12__)
  FW_METHOD static int transposed_row(int lane) { return (lane >> 4) * 8 + (lane & 7); }
  FW_METHOD static int transposed_column(int wave, int lane) {
    return share(wave) * C::kTransposes * 32 + (lane & 8) * 2;
  }
  // Transposing loads have no range check: rows and columns that are not there count as the last one, since P = dS = 0
  // multiplies the former and nobody wants the latter.
  FW_METHOD void load_transposes(int wave, int lane) {
    if (!C::kKeepsKeys && has_g(wave)) return;
    if (__builtin_expect(rows >= C::kStreamed && whole_columns(), 1)) {
      hold(across);  // extended to 64 bits here, or the load would not take it as 32
      FW_UNROLL for (int j = 0; j < C::kTransposes; ++j) staged[j] = load_transposed(from.data + j * 32, across);
    } else {
      hold(lane);
      const int row = least(transposed_row(lane), rows - 1), column = transposed_column(wave, lane);
      FW_UNROLL for (int j = 0; j < C::kTransposes; ++j) {
        staged[j] = load_transposed(from.data, row * from.stride + least(column + j * 32, from.columns - 16));
      }
    }
  }
  FW_METHOD void store_transposes(char* lds, int wave) {
    if (!C::kKeepsKeys && has_g(wave)) return;
    FW_UNROLL for (int j = 0; j < C::kTransposes; ++j) {
      *reinterpret_cast<U32x4*>(lds + across_target + C::kAt + j * kFragmentBytes) = staged[j];
    }
  }
#else
  // One descriptor a row: rows that are not there, and columns past the head dim, read 0.
  FW_METHOD void load_transposes_of(const HeadRows& t, int count, int wave) {
    const int row0 = row_group(wave);
    const char* row = t.data + int64_t{row0} * t.stride;
    FW_UNROLL for (int e = 0; e < 8; ++e) {
      const Buffer b = make_buffer(row, row0 + 2 * e < count ? t.columns : 0);
      FW_UNROLL for (int j = 0; j < C::kTransposes; ++j) staged[j][e] = buffer_load4(b, across + j * 128);
      row += 2 * int64_t{t.stride};
    }
  }
  FW_METHOD void load_transposes(int wave, int) {
    if (C::kKeepsKeys || !has_g(wave)) load_transposes_of(from, rows, wave);
  }
  // `to`: where A's go, G's behind them.
  FW_METHOD void store_transposes_to(char* to) {
    FW_UNROLL for (int j = 0; j < C::kTransposes; ++j) {
      FW_UNROLL for (int d0 = 0; d0 < 2; ++d0) {
        U32x4 unit;
        FW_UNROLL for (int e = 0; e < 4; ++e) {
          unit[e] = permute_bytes(staged[j][2 * e + 1], staged[j][2 * e], d0 ? 0x07060302 : 0x05040100);
        }
        *reinterpret_cast<U32x4*>(to + across_target + j * 4 * kFragmentBytes + d0 * 128) = unit;
      }
    }
  }
  FW_METHOD void store_transposes(char* lds, int wave) {
    if (C::kKeepsKeys || !has_g(wave)) store_transposes_to(lds + C::kAt);
  }
#endif
};

}  // namespace flashwave

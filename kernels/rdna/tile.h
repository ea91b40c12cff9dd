// K and V on their way: rows of global memory -> registers -> LDS in fragment order -> operands of WMMA.
#pragma once

#include "kernels/common/sequence.h"
#include "kernels/rdna/config.h"

namespace flashwave {

// How the tiles of one workgroup advance over the keys. Uniform.
struct TileCursor {
  int key;              // of the tile's first row; negative where a page begins with left pad
  const int32_t* page;  // entry of the block table that holds the first row; null if there is none
  int row_in_page;

  // Tiles start at rows that are multiples of 64 in a paged cache, whose pages are multiples of 64 rows.
  FW_METHOD void start(const Params& p, const Sequence& seq, int at) {
    key = at;
    page = nullptr;
    row_in_page = 0;
    if (p.block_table) {
      const uint32_t row = uint32_t(seq.k_row + at), size = uint32_t(p.page_size);
      page = p.block_table + seq.b * p.block_table_stride + row / size;
      row_in_page = int(row % size);
    }
  }

  FW_METHOD void advance(int rows) {
    key += rows;
    if (page) {
      const int size = int(arguments_again().params.page_size);
      for (row_in_page += rows; row_in_page >= size; row_in_page -= size) ++page;
    }
  }
};

// A wave's rows of K or V in the current tile: `offset` is the first of them, all 16 around it are in one page.
template <class C>
struct WaveRows {
  const char* base;  // dense: the first row; paged: row 0 of page 0
  int64_t stride;    // bytes between rows
  int offset;

  FW_METHOD void start(const Params& p, const abi::Tensor& t, const Sequence& seq, int head_k, int key, int first) {
    offset = first;
    stride = t.stride[1] * 2;
    base = static_cast<const char*>(t.data) + head_k * t.stride[2] * 2;
    if (!p.block_table) base += (seq.k_batch * t.stride[0] + (seq.k_row + key + first) * t.stride[1]) * 2;
  }
  FW_METHOD void advance(const TileCursor& tile, int rows) {
    if (!tile.page) base += rows * stride;
  }
  FW_METHOD const char* first_row(const FW_CONSTANT abi::Tensor& t, const TileCursor& tile, int keys) const {
    // `here`: decided for K and for V apart, or the decision would be kept in a vector register.
    if (!tile.page || here(tile.key) + offset >= keys) return base;
    int row = tile.row_in_page + offset;
    const int32_t* page = tile.page;
    if (C::kKeys > 64) {
      for (const int size = int(arguments_again().params.page_size); row >= size; row -= size) ++page;
    }
    return base + abi::at_most(load_uniform(page), t.most) * t.stride[0] * 2 + row * stride;
  }
};

// Loads of K: a wave takes fragments of 16 rows x 16 columns, lane & 15 the row, lane >> 4 the half of the columns, and
// stores them as they are: 8 lanes, 128 contiguous bytes of LDS.
template <class C>
struct KeyLoader {
  WaveRows<C> rows;
  U32x4 staged[C::kLoadsK];
  uint32_t source, target;  // byte offsets of this lane: from the wave's first row; in LDS, in the buffer to be filled
  int step, dim;            // first fragment across the head dim; columns there are

  // First row of a wave in a tile.
  FW_METHOD static int first_row(int wave) { return wave * C::kLoadsK / C::kStepsQk * 16; }

  FW_METHOD void start(const Params& p, const Sequence& seq, int head_k, int key, int wave, int lane) {
    rows.start(p, p.k, seq, head_k, key, first_row(wave));
    step = wave * C::kLoadsK % C::kStepsQk;
    dim = p.dim_qk;
    source = uint32_t(lane & 15) * uint32_t(rows.stride) + (lane >> 4) * 16;
    target = wave * C::kLoadsK * kFragmentBytes + lane * 16;
  }

  // Rows past the last key and fragments past the head dim read 0.
  FW_METHOD void load(const TileCursor& tile, int keys) {
    const char* const row = rows.first_row(arguments_again().params.k, tile, keys);
    int count = keys - (tile.key + rows.offset);
    count = count < 16 ? count : 16;
    const uint32_t skipped = count > 0 ? uint32_t(count - 1) * uint32_t(rows.stride) : 0;
    const int columns = here(count > 0 ? dim : 0);
    FW_UNROLL for (int j = 0; j < C::kLoadsK; ++j) {
      const int first = (step + j) * 16;
      const Buffer b = make_buffer(row + first * 2, columns > first ? skipped + uint32_t(columns - first) * 2 : 0);
      staged[j] = buffer_load16(b, source);
    }
  }

  // Columns at or past the head dim hold whatever follows the row in memory, possibly NaN: 0.
  FW_METHOD void clear_tail(int lane) {
    hold(lane);
    FW_UNROLL for (int j = 0; j < C::kLoadsK; ++j) {
      const int valid = dim - (step + j) * 16 - (lane >> 4) * 8;
      FW_UNROLL for (int w = 0; w < 4; ++w) staged[j][w] = 2 * w < valid ? staged[j][w] : 0;
      hold(staged[j]);
    }
  }

  FW_METHOD void store(char* lds, int lane) {
    if (__builtin_expect(dim % 16 != 0, 0)) clear_tail(lane);
    FW_UNROLL for (int j = 0; j < C::kLoadsK; ++j) {
      *reinterpret_cast<U32x4*>(lds + target + j * kFragmentBytes) = staged[j];
    }
  }
};

#if defined(__GFX12__)
// Loads of V on RDNA4, which transpose: a lane stores a unit of 8 keys of one column, as it came.
template <class C>
struct ValueLoader {
  WaveRows<C> rows;
  U32x4 staged[C::kLoadsV];
  uint32_t source, target;
  int step, columns;  // first fragment across the head dim; bytes of a row
  uint32_t whole;     // transposing loads have no range check: if the wave's first row is below this, all 16 are keys

  FW_METHOD static int first_row(int wave) { return wave * C::kLoadsV / C::kStepsV * 16; }
  // Column d = 16 * fragment + 8 * half + c of a lane of O^T is in this register.
  FW_METHOD static constexpr int register_of(int c) { return c; }

  FW_METHOD void start(const Params& p, const Sequence& seq, int head_k, int key, int wave, int lane) {
    rows.start(p, p.v, seq, head_k, key, first_row(wave));
    step = wave * C::kLoadsV % C::kStepsV;
    columns = p.dim_v * 2;
    const uint64_t places = reinterpret_cast<uintptr_t>(p.v.data) |
                            uint64_t(p.v.stride[0] | p.v.stride[1] | p.v.stride[2]) * 2 | uint64_t(columns) / 2;
    whole = places % 16 == 0 && seq.keys > 15 ? uint32_t(seq.keys) - 15 : 0;
    source = uint32_t(lane >> 4 << 3 | (lane & 7)) * uint32_t(rows.stride) + (lane & 8) * 2;
    target = wave * C::kLoadsV * kFragmentBytes + lane * 16;
  }

  FW_METHOD void load(const TileCursor& tile, int keys, int lane) {
    const char* const row = rows.first_row(arguments_again().params.v, tile, keys);
    const int key = here(tile.key) + rows.offset;
    if (__builtin_expect(uint32_t(key) < whole, 1)) {
      hold(source);  // extended to 64 bits here and not outside of a loop, or the load would not take it as 32
      FW_UNROLL for (int j = 0; j < C::kLoadsV; ++j) {  // past the head dim: columns that nobody wants
        const int at = (here(step) + j) * 32;
        staged[j] = load_transposed(row + (at < columns ? at : 0), source);
      }
    } else {
      load_some(row, key, keys, lane);
    }
  }

  // Rows at the end of the sequence or at odd places, element by element. Rows that are no keys read 0, columns past
  // the head dim anything.
  FW_METHOD void load_some(const char* row, int key, int keys, int lane) {
    hold(lane);
    const int first = key < 0 ? -key : 0, last = here(keys - key < 16 ? keys - key : 16);
    const uint32_t stride = uint32_t(rows.stride);
    const Buffer b = make_buffer(row + first * rows.stride,
                                 last > first ? uint32_t(last - first - 1) * stride + uint32_t(columns) : 0);
    const uint32_t at = uint32_t((lane >> 4) * 8 - first) * stride + (lane & 15) * 2;
    FW_UNROLL for (int j = 0; j < C::kLoadsV; ++j) {
      U16x8 unit;
      FW_UNROLL for (int e = 0; e < 8; ++e) { unit[e] = buffer_load2(b, at + e * stride + (step + j) * 32); }
      staged[j] = __builtin_bit_cast(U32x4, unit);
    }
  }

  FW_METHOD void store(char* lds, int) {
    FW_UNROLL for (int j = 0; j < C::kLoadsV; ++j) {
      *reinterpret_cast<U32x4*>(lds + target + j * kFragmentBytes) = staged[j];
    }
  }
};
#else
// Loads of V on RDNA3, transposed on the way: a lane takes 8 rows x 2 columns and stores two units of 8 keys.
// Column d is row i of its fragment, such that 8 lanes store to 8 different bank groups and a lane of O^T ends with 8
// contiguous columns: with d3 d2 d1 d0 the bits of d & 15, i is d0 d1 d2 d3 (register r, half h holds i = 2r + h).
template <class C>
struct ValueLoader {
  WaveRows<C> rows;
  uint32_t staged[C::kLoadsV][8];
  uint32_t source, target;
  int columns;  // bytes of a row

  FW_METHOD static int key_group(int wave) { return wave * C::kLoadsV / C::kBlocksV; }
  // Keys of a group: the even or odd ones of 16.
  FW_METHOD static int first_row(int wave) {
    const int g = key_group(wave);
    return g / 2 * 16 + g % 2;
  }
  // Column d = 16 * fragment + 8 * half + c of a lane of O^T is in this register.
  FW_METHOD static constexpr int register_of(int c) { return (c & 1) * 4 + (c >> 1 & 1) * 2 + (c >> 2); }

  FW_METHOD void start(const Params& p, const Sequence& seq, int head_k, int key, int wave, int lane) {
    rows.start(p, p.v, seq, head_k, key, first_row(wave));
    columns = p.dim_v * 2;
    const int block = wave * C::kLoadsV % C::kBlocksV, d = 2 * lane, g = key_group(wave);
    const int unit = (d >> 3 & 1) | (d >> 2 & 1) << 1 | (d >> 1 & 1) << 2;
    source = block * 128 + lane * 4;
    target = ((g >> 1) * C::kStepsV + block * 4 + (d >> 4)) * kFragmentBytes + (g & 1) * 256 + unit * 16;
  }

  // One descriptor a row: rows that are no keys, and columns past the head dim, read 0.
  FW_METHOD void load(const TileCursor& tile, int keys, int) {
    const char* row = rows.first_row(arguments_again().params.v, tile, keys);
    const int64_t step = here(rows.stride) * 2;
    int key = here(tile.key) + rows.offset;
    FW_UNROLL for (int j = 0; j < 8; ++j) {
      const Buffer b = make_buffer(row, uint32_t(key) < uint32_t(keys) ? columns : 0);
      FW_UNROLL for (int l = 0; l < C::kLoadsV; ++l) { staged[l][j] = buffer_load4(b, source + 128 * l); }
      row += step;
      key += 2;
    }
  }

  FW_METHOD void store(char* lds, int lane) {
    FW_UNROLL for (int l = 0; l < C::kLoadsV; ++l) {
      if (64 * (l + 1) > C::kDimV && 64 * l + 2 * lane >= C::kDimV) continue;
      FW_UNROLL for (int d0 = 0; d0 < 2; ++d0) {
        U32x4 unit;
        FW_UNROLL for (int j = 0; j < 4; ++j) {
          unit[j] = permute_bytes(staged[l][2 * j + 1], staged[l][2 * j], d0 ? 0x07060302 : 0x05040100);
        }
        *reinterpret_cast<U32x4*>(lds + target + d0 * 128 + l * 4 * kFragmentBytes) = unit;
      }
    }
  }
};
#endif

// Operands from LDS: one base address for each of K and V, everything else an immediate.
FW_DEVICE Fragment read_fragment(const char* at) {
#if defined(__GFX12__)
  return *reinterpret_cast<const U32x4*>(at);
#else
  return joined(*reinterpret_cast<const U32x4*>(at), *reinterpret_cast<const U32x4*>(at + 256));
#endif
}
// This lane's share of a fragment of K or V.
FW_DEVICE uint32_t operand_base(int lane) { return (kRdna4 ? lane : lane & 15) * 16; }

}  // namespace flashwave

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

  FW_METHOD void advance(const Params& p, int rows) {
    key += rows;
    if (page) {
      const int size = int(p.page_size);
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
  FW_METHOD const char* first_row(const Params& p, const abi::Tensor& t, const TileCursor& tile, int keys) const {
    if (!tile.page || tile.key + offset >= keys) return base;
    int row = tile.row_in_page + offset;
    const int32_t* page = tile.page;
    if (C::kKeys > 64) {
      for (const int size = int(p.page_size); row >= size; row -= size) ++page;
    }
    return base + load_uniform(page) * t.stride[0] * 2 + row * stride;
  }
};

// Loads of K: a wave takes 8 rows x 64 bytes, so that 8 lanes store 8 rows of a fragment, 128 contiguous bytes of LDS.
template <class C>
struct KeyLoader {
  WaveRows<C> rows;
  U32x4 staged[C::kLoadsK];
  uint32_t source, target;  // byte offsets of this lane: from the wave's first row; in LDS
  int block, dim;           // first block of 32 columns; columns there are

  // First row of a wave in a tile.
  FW_METHOD static int first_row(int wave) { return wave * C::kLoadsK / C::kBlocksK * 8; }

  FW_METHOD void start(const Params& p, const Sequence& seq, int head_k, int key, int wave, int lane) {
    rows.start(p, p.k, seq, head_k, key, first_row(wave));
    block = wave * C::kLoadsK % C::kBlocksK;
    dim = p.dim_qk;
    const int row = first_row(wave) + (lane & 7), unit = lane >> 3;
    source = uint32_t(lane & 7) * uint32_t(rows.stride) + unit * 16;
    target = (row >> 4) * C::kStepsQk * kFragmentBytes + block * 2 * kFragmentBytes + unit * 256 + (row & 15) * 16;
  }

  // Rows past the last key and blocks of columns past the head dim read 0.
  FW_METHOD void load(const Params& p, const TileCursor& tile, int keys) {
    const char* const row = rows.first_row(p, p.k, tile, keys);
    int count = keys - (tile.key + rows.offset);
    count = count < 8 ? count : 8;
    const uint32_t skipped = count > 0 ? uint32_t(count - 1) * uint32_t(rows.stride) : 0;
    const int columns = here(count > 0 ? dim : 0);
    FW_UNROLL for (int j = 0; j < C::kLoadsK; ++j) {
      const int first = (block + j) * 32;
      const Buffer b = make_buffer(row + first * 2, columns > first ? skipped + uint32_t(columns - first) * 2 : 0);
      staged[j] = __builtin_amdgcn_raw_buffer_load_b128(b, source, 0, 0);
    }
  }

  // Columns at or past the head dim hold whatever follows the row in memory, possibly NaN: 0.
  FW_METHOD void clear_tail(int lane) {
    hold(lane);
    FW_UNROLL for (int j = 0; j < C::kLoadsK; ++j) {
      const int valid = dim - (block + j) * 32 - (lane >> 3) * 8;
      FW_UNROLL for (int w = 0; w < 4; ++w) staged[j][w] = 2 * w < valid ? staged[j][w] : 0;
      hold(staged[j]);
    }
  }

  FW_METHOD void store(char* lds, uint32_t buffer, int lane) {
    if (__builtin_expect(dim % 32 != 0, 0)) clear_tail(lane);
    FW_UNROLL for (int j = 0; j < C::kLoadsK; ++j) {
      *reinterpret_cast<U32x4*>(lds + (target ^ buffer) + j * 2 * kFragmentBytes) = staged[j];
    }
  }
};

// Loads of V, which is transposed on the way: a lane takes 8 rows x 2 columns and stores two units of 8 keys.
// Column d is row i of its fragment, and the row is at unit i ^ swizzle, such that 8 lanes store to 8 different bank
// groups and a lane of O^T ends with 8 contiguous columns: with d3 d2 d1 d0 the bits of d & 15, i is
//   RDNA3: d0 d1 d2 d3 (register r, half h holds i = 2r + h), no swizzle;
//   RDNA4: d3 d1 d0 d2 (register r, half h holds i = 8h + r), swizzle 2 d3.
template <class C>
struct ValueLoader {
  WaveRows<C> rows;
  uint32_t staged[C::kLoadsV][8];
  uint32_t source, target;
  int columns;  // bytes of a row

  FW_METHOD static int key_group(int wave) { return wave * C::kLoadsV / C::kBlocksV; }
  // Keys of a group: 8 contiguous ones (RDNA4), or the even or odd ones of 16 (RDNA3).
  FW_METHOD static int first_row(int wave) {
    const int g = key_group(wave);
    return kRdna4 ? g * 8 : g / 2 * 16 + g % 2;
  }
  // Column d = 16 * fragment + 8 * half + c of a lane of O^T is in this register.
  FW_METHOD static constexpr int register_of(int c) {
    return kRdna4 ? (c >> 1 & 1) * 4 + (c & 1) * 2 + (c >> 2) : (c & 1) * 4 + (c >> 1 & 1) * 2 + (c >> 2);
  }

  FW_METHOD void start(const Params& p, const Sequence& seq, int head_k, int key, int wave, int lane) {
    rows.start(p, p.v, seq, head_k, key, first_row(wave));
    columns = p.dim_v * 2;
    const int block = wave * C::kLoadsV % C::kBlocksV, d = 2 * lane, g = key_group(wave);
    const int d1 = d >> 1 & 1, d2 = d >> 2 & 1, d3 = d >> 3 & 1;
    const int unit = kRdna4 ? d2 | d3 << 1 | d1 << 2 | d3 << 3 : d3 | d2 << 1 | d1 << 2;
    source = block * 128 + lane * 4;
    target = ((g >> 1) * C::kStepsV + block * 4 + (d >> 4)) * kFragmentBytes + (g & 1) * 256 + unit * 16;
  }

  // One descriptor a row: rows that are no keys, and columns past the head dim, read 0.
  FW_METHOD void load(const Params& p, const TileCursor& tile, int keys) {
    const char* row = rows.first_row(p, p.v, tile, keys);
    const int64_t step = here(rows.stride) * kRowsOfRegister;
    int key = here(tile.key) + rows.offset;
    FW_UNROLL for (int j = 0; j < 8; ++j) {
      const Buffer b = make_buffer(row, uint32_t(key) < uint32_t(keys) ? columns : 0);
      FW_UNROLL for (int l = 0; l < C::kLoadsV; ++l) {
        staged[l][j] = __builtin_amdgcn_raw_buffer_load_b32(b, source + 128 * l, 0, 0);
      }
      row += step;
      key += kRowsOfRegister;
    }
  }

  FW_METHOD void store(char* lds, uint32_t buffer, int lane) {
    FW_UNROLL for (int l = 0; l < C::kLoadsV; ++l) {
      if (64 * (l + 1) > C::kDimV && 64 * l + 2 * lane >= C::kDimV) continue;
      FW_UNROLL for (int d0 = 0; d0 < 2; ++d0) {
        U32x4 unit;
        FW_UNROLL for (int j = 0; j < 4; ++j) {
          unit[j] = permute_bytes(staged[l][2 * j + 1], staged[l][2 * j], d0 ? 0x07060302 : 0x05040100);
        }
        const uint32_t to = kRdna4 ? target ^ buffer ^ (d0 * 32) : (target ^ buffer) + d0 * 128;
        *reinterpret_cast<U32x4*>(lds + to + l * 4 * kFragmentBytes) = unit;
      }
    }
  }
};

// Operands from LDS: one base address for each of K and V, everything else an immediate.
FW_DEVICE Fragment read_fragment(const char* at) {
#if defined(__GFX12__)
  return *reinterpret_cast<const U32x4*>(at);
#else
  return joined(*reinterpret_cast<const U32x4*>(at), *reinterpret_cast<const U32x4*>(at + 256));
#endif
}
FW_DEVICE uint32_t key_base(int lane) { return (kRdna4 ? (lane >> 4) * 256 : 0) + (lane & 15) * 16; }
FW_DEVICE uint32_t value_base(int lane) {
  const int i = lane & 15;
  return kRdna4 ? (lane >> 4) * 256 + (i ^ (i >> 2 & 2)) * 16 : key_base(lane);
}

}  // namespace flashwave

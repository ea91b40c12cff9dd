// Tiles in LDS: 16-byte units, no padding, every access without bank conflicts. Each layout is one function from
// (row, unit) to an address; where a lane's addresses differ by constants only, they share a register.
//
// gfx908 to gfx942: 32 banks; 16-byte accesses go in phases of 8 lanes {0-3, 20-23}, {4-7, 16-19}, {8-11, 28-31},
// {12-15, 24-27}, + 32. gfx950: 64 banks; 16 lanes {0-3, 12-15, 20-27}, {4-11, 16-19, 28-31}, + 32, and transposing
// reads 32 lanes.
#pragma once

#include "kernels/cdna/isa.h"
#include "kernels/common/sequence.h"

namespace flashwave {

// Rows of kRowBytes in which unit u of row r lies at u ^ key(r): lanes that read the same unit of the rows of a phase
// hit different banks. Loads straight to LDS write linearly, so the order is put into their global addresses.
template <int kRowBytes_>
struct RowTile {
  static constexpr int kRowBytes = kRowBytes_, kKeyBits = kIsGfx950 && kRowBytes >= 256 ? 4 : 3;
  static constexpr int kPeriod = kIsGfx950 ? 16 : 8;  // rows after which keys repeat
  FW_METHOD static constexpr uint32_t key(uint32_t row) {
    return kIsGfx950 && kRowBytes == 128 ? row >> 1 & 7 : row & ((1 << kKeyBits) - 1);
  }

  // Fragment f of the 32 rows from row 0: a[f % kAddresses] + fragment_offset(f), with a[i] = read_address(i).
  static constexpr int kAddresses = 1 << (kKeyBits - 1);
  static constexpr int fragment_offset(int f) { return f / kAddresses * kAddresses * 32; }
  FW_METHOD static uint32_t read_address(uint32_t lane, int i) {
    const uint32_t row = lane & 31, unit = 2 * i + (lane >> 5);
    return row * kRowBytes + ((unit ^ key(row)) << 4);
  }
};

// Offsets in memory of what this lane has to fetch in the direct loads to a tile of rows: load i fills the 64 * kBytes
// bytes of LDS from chunk `wave + waves * i` on. Where that keeps the key, offsets differ by a multiple of the stride.
template <class Tile, int kBytes, int kWaves, int kLoads>
FW_DEVICE void direct_sources(uint32_t* source, uint32_t lane, uint32_t wave, uint32_t stride, uint32_t row_bytes) {
  constexpr uint32_t kStep = kWaves * kWave * kBytes / Tile::kRowBytes;  // rows from load to load
  constexpr int kDistinct = kStep >= Tile::kPeriod ? 1 : Tile::kPeriod / kStep;
  FW_UNROLL for (int i = 0; i < kLoads; ++i) {
    if (i < kDistinct) {
      const uint32_t byte = ((wave + kWaves * i) * kWave + lane) * kBytes, row = byte / Tile::kRowBytes;
      const uint32_t column = (byte % Tile::kRowBytes ^ Tile::key(row) << 4);
      source[i] = column < row_bytes ? row * stride + column : kNowhere;
    } else {
      source[i] = source[i - kDistinct] + kDistinct * kStep * stride;
    }
  }
}

// In accumulators of a product whose A operand has column d of V in lane i, d = i with bits 2 and 3 swapped, register r
// of a lane is column 16(r >> 3) + 8h + (r & 7): 8 columns in a row, a 16-byte store.
FW_DEVICE uint32_t swap_bits_2_3(uint32_t i) { return (i & ~12u) | (i & 4) << 1 | (i & 8) >> 1; }

#if defined(__gfx950__)

// V as rows of keys, transposed by ds_read_b64_tr_b16: a half wave reads 64 bytes (32 columns) of 4 rows, so it is
// these 64-byte chunks that must lie in different banks.
template <int kTileK, int kColumns>
struct VTile {
  static constexpr int kRowBytes = 2 * kColumns, kPeriod = 4;
  FW_METHOD static constexpr uint32_t key(uint32_t row) { return (kRowBytes == 128 ? row >> 1 & 1 : row & 3) << 2; }

  static constexpr int kAddresses = kRowBytes == 128 ? 2 : 4;
  FW_METHOD static uint32_t read_address(uint32_t lane, int i) {
    const uint32_t row = 4 * (lane >> 5) + (lane >> 2 & 3), piece = (lane & 1) << 1 | (lane >> 1 & 1);
    const uint32_t unit = 4 * i + 2 * (lane >> 4 & 1) + (piece >> 1);
    return row * kRowBytes + ((unit ^ key(row)) << 4) + 8 * (piece & 1);
  }
  // Keys 32 sub + 16 step + 4h + (0..3) and those + 8, of 32 columns from 32 block.
  FW_METHOD static U32x4 fragment(const uint32_t* a, uint32_t buffer, int sub, int step, int block) {
    const uint32_t at = a[block % kAddresses] + buffer + block / kAddresses * 256 + (32 * sub + 16 * step) * kRowBytes;
    const U32x2 low = lds_read_transposed(at), high = lds_read_transposed(at + 8 * kRowBytes);
    return (U32x4){low.x, low.y, high.x, high.y};
  }
};

#else

// V transposed: unit u of a column's keys holds keys 16(u >> 1) + 4(u & 1) + (0..3) and those + 8, the order of the
// accumulators of S. Lines of 128 bytes; with tiles of 32 keys, columns d and d + kLines share a line. Unit u of line d
// lies at u ^ key(d), key = (d0 ^ d2) | d1 << 1 | d3 << 2: conflict-free for the reads, whose lanes go through d with
// bits 2 and 3 swapped, and for the writes, whose lanes go through d in steps of 2.
template <int kTileK, int kColumns>
struct VTile {
  static constexpr int kLines = kColumns * kTileK / 64, kUnitsOfTile = kTileK / 8, kLineBytes = 128;
  static_assert(kLines == 64 || kLines == 128);
  FW_METHOD static constexpr uint32_t key(uint32_t d) { return ((d ^ d >> 2) & 1) | (d & 2) | (d >> 1 & 4); }

  static constexpr int kAddresses = 4;
  FW_METHOD static uint32_t read_address(uint32_t lane, int i) {
    const uint32_t d = swap_bits_2_3(lane & 31);
    return d * kLineBytes + (((2 * i + (lane >> 5)) ^ key(d)) << 4);
  }
  FW_METHOD static U32x4 fragment(const uint32_t* a, uint32_t buffer, int sub, int step, int block) {
    const int half = block * 32 / kLines, line = block * 32 % kLines;
    return lds_read16(a[2 * (kTileK == 64 ? sub : half) + step] + buffer + line * kLineBytes);
  }

  // The transposing store: a wave handles unit kWaves * round + wave of every line in each round; a lane loads two
  // columns (one dword) of kRows rows and writes the units of both. 64 lines: a lane has half a unit.
  static constexpr int kRows = kLines == 128 ? 8 : 4;
  FW_METHOD static uint32_t pair_of(uint32_t lane) { return kLines == 128 ? lane : (lane & 7) | (lane >> 4) << 3; }
  FW_METHOD static uint32_t half_of(uint32_t lane) { return kLines == 128 ? 0 : lane >> 3 & 1; }
  FW_METHOD static void sources(uint32_t* source, uint32_t lane, uint32_t unit, uint32_t stride, uint32_t row_bytes) {
    const uint32_t u = unit % kUnitsOfTile, first = 16 * (u >> 1) + 4 * (u & 1) + 8 * half_of(lane);
    const uint32_t column = 4 * (pair_of(lane) + unit / kUnitsOfTile * (kLines / 2));
    source[0] = column < row_bytes ? first * stride + column : kNowhere;
    FW_UNROLL for (int i = 1; i < kRows; ++i) source[i] = source[0] + (i % 4 + i / 4 * 8) * stride;
  }
  FW_METHOD static uint32_t write_address(uint32_t lane, uint32_t unit) {
    const uint32_t d = 2 * pair_of(lane);
    return d * kLineBytes + ((unit ^ key(d)) << 4) + 8 * half_of(lane);
  }
  // even, odd: kRows / 2 dwords, key pairs of columns d and d + 1, whose key differs in bit 0.
  FW_METHOD static void write(uint32_t address, const uint32_t* even, const uint32_t* odd) {
    const uint32_t next = (address ^ 16) + kLineBytes;
    if constexpr (kRows == 8) {
      lds_write16(address, (U32x4){even[0], even[1], even[2], even[3]});
      lds_write16(next, (U32x4){odd[0], odd[1], odd[2], odd[3]});
    } else {
      lds_write8(address, (U32x2){even[0], even[1]});
      lds_write8(next, (U32x2){odd[0], odd[1]});
    }
  }
};

#endif

// The tiles of K or V of one head, one after another: a descriptor for each, that ends with the last key in use, so
// that rows past it read 0 and cost no traffic. What only a change of page needs is read again then: scalar registers
// are few.
template <bool kOfV>
struct TileStream {
  const char* base;      // of the next tile
  int32_t page;          // of the next tile, its index in the sequence's row of the block table; negative: not paged
  int32_t left;          // keys from its start on
  uint32_t end;          // paged: the logical row behind the last key
  uint32_t stride, row;  // bytes: from row to row, of a row in use
  uint32_t batch;

  FW_METHOD static const abi::Tensor& tensor(const Params& p) { return kOfV ? p.v : p.k; }

  // Starts with key `from` (negative: the tile begins with -from rows that are not to be read), ends before key `to`.
  FW_METHOD void start(const Params& p, const Sequence& s, int head, int from, int to) {
    const abi::Tensor& t = tensor(p);
    stride = uint32_t(t.stride[1] * 2), row = uint32_t(kOfV ? p.dim_v : p.dim_qk) * 2;
    left = to - from;
    batch = uint32_t(s.b);
    page = -1;
    end = uint32_t(s.k_row + to);
    if (p.block_table) {
      const uint32_t first = uint32_t(s.k_row + from), page_size = uint32_t(p.page_size);
      page = int32_t(first / page_size);
      base = nullptr;
      if (left > 0) {
        const int64_t place = entry(p, 0);
        base = static_cast<const char*>(t.data) + (place * t.stride[0] + head * t.stride[2]) * 2 +
               int64_t{first - uint32_t(page) * page_size} * stride;
      }
    } else {
      base = static_cast<const char*>(t.data) + key_offset(p, t, s, from, head) * 2;
    }
  }
  // Where the page is, or one after it. A load through the vector unit would wait for the tiles that are on their way.
  FW_METHOD int32_t entry(const Params& p, int after) const {
    const int32_t* const table = p.block_table + batch * p.block_table_stride;
    return abi::at_most(load_uniform(table + page + after), tensor(p).most);
  }
  // The next tile of kRows rows; the first `skip` rows are left out, and offsets are from the first that is not.
  template <int kRows>
  FW_METHOD Buffer next(int skip = 0) {
    const int32_t rows = (left < kRows ? left : kRows) - skip;
    const Buffer tile = make_buffer(base + int64_t{skip} * stride, rows > 0 ? uint32_t(rows - 1) * stride + row : 0);
    left -= kRows;
    base += int64_t{kRows} * stride;
    if (__builtin_expect(page >= 0, 0)) {
      const Params& p = parameters_again();
      if (end - uint32_t(left) == uint32_t(page + 1) * uint32_t(p.page_size) && left > 0) {
        const int64_t places = int64_t{entry(p, 1)} - entry(p, 0);
        base += places * tensor(p).stride[0] * 2 - p.page_size * stride;
        ++page;
      }
    }
    return tile;
  }
};

}  // namespace flashwave

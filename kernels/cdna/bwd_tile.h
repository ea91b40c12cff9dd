// The backward's tiles in LDS: 16-byte units, no padding, every access without bank conflicts (tile.h has the phases).
// Each layout is one function from (row, unit) to an address; where a lane's addresses differ by constants only, they
// share a register.
#pragma once

#include "kernels/cdna/tile.h"

namespace flashwave {

// Bits 0 to 2 in the other order: rows that one write has side by side, q and q + 1, land in different halves of the
// banks.
FW_DEVICE constexpr uint32_t reversed3(uint32_t q) { return (q & 1) << 2 | (q & 2) | (q >> 2 & 1); }

// 32 rows of queries (of Q, dO) or of keys: unit u of row r lies at u ^ key(r). kHalves: one write has rows r and r + 8
// (Carried).
template <int kRowBytes, bool kHalves>
struct BackwardRows {
  static constexpr int kAddresses = 4;
  FW_METHOD static constexpr uint32_t key(uint32_t row) { return reversed3(row) ^ (kHalves ? (row & 8) >> 1 : 0); }
  FW_METHOD static uint32_t read_address(uint32_t lane, int i) {
    const uint32_t row = lane & 31;
    return row * kRowBytes + (((2 * i + (lane >> 5)) ^ key(row)) << 4);
  }
  static constexpr int fragment_offset(int f) { return f / kAddresses * 128; }
  FW_METHOD static uint32_t write_address(uint32_t row, uint32_t dword) {
    return row * kRowBytes + (((dword >> 2) ^ key(row)) << 4) + (dword & 3) * 4;
  }
};

// The same rows transposed: a line of 64 bytes for each column, whose unit 2T + h holds rows 16T + 4h + (0..3) and
// those
// + 8, the order of accumulators. Unit u of line d lies at u ^ key(d).
struct BackwardColumns {
  static constexpr int kLineBytes = 64;
  FW_METHOD static constexpr uint32_t key(uint32_t d) { return (d >> 1 & 1) | ((d >> 2 ^ d >> 3) & 1) << 1; }
  FW_METHOD static uint32_t read_address(uint32_t lane, int step) {
    const uint32_t d = swap_bits_2_3(lane & 31);
    return d * kLineBytes + (((2 * step + (lane >> 5)) ^ key(d)) << 4);
  }
};

// Which dwords of a tile of 32 rows a lane carries to LDS: two columns of kCount rows, which are one unit of the
// transposed tile, or half of one (`half`: rows 8 to 11 of the unit). More than 128 columns: kGroups of them, at
// multiples of kGroupBytes in LDS, and of group_bytes in memory.
// The columns of lanes 4 to 7 of 8 are swapped, so
// that the even columns of some lanes and the odd ones of others are written at the same time.
template <int kDim, int kWaves>  // kDim: columns in LDS, of which some may be unused
struct Carried {
  static constexpr int kGroups = kDim / 2 / kWave / (kWaves / 4) > 1 ? kDim / 2 / kWave / (kWaves / 4) : 1;
  static constexpr int kCount = 32 * kDim / 2 / (kWaves * kWave) / kGroups;
  static_assert(kCount == 8 || kCount == 4);
  static constexpr uint32_t kGroupBytes = 256;  // of a row
  uint32_t dword, half, unit, swapped;

  FW_METHOD Carried(uint32_t lane, uint32_t wave) {
    // Lanes of a row: 64 or 32. What of a wave number does not say the unit says the half of the row.
    half = kCount == 4 ? lane >> 3 & 1 : 0;
    const uint32_t in_row = kCount == 4 ? (lane & 7) | (lane >> 4) << 3 : lane;
    constexpr uint32_t kLanes = kCount == 4 ? 32 : 64, kParts = kDim / 2 / kLanes / kGroups;
    unit = wave / kParts;
    dword = in_row + wave % kParts * kLanes;
    swapped = lane >> 2 & 1;
  }
  FW_METHOD static constexpr int rows_on(int i) { return (i & 3) + 8 * (i >> 2); }  // from row 0 of them to row i
  FW_METHOD uint32_t row(int i) const { return 16 * (unit >> 1) + 4 * (unit & 1) + 8 * half + rows_on(i); }
  // In memory, of row 0.
  FW_METHOD uint32_t source(uint32_t stride, uint32_t row_bytes, uint32_t group, uint32_t group_bytes) const {
    const uint32_t byte = dword * 4 + group * group_bytes;
    return dword * 4 < group_bytes && byte < row_bytes ? row(0) * stride + byte : kNowhere;
  }
  // Of the first column that is written; that of the second is ^ 64.
  FW_METHOD uint32_t column_address() const {
    const uint32_t d = 2 * dword + swapped;
    return d * BackwardColumns::kLineBytes + ((unit ^ BackwardColumns::key(d)) << 4) + half * 8;
  }
  FW_METHOD uint32_t first_selector() const { return swapped ? 0x07060302 : 0x05040100; }
  FW_METHOD uint32_t second_selector() const { return swapped ? 0x05040100 : 0x07060302; }
};

// first, second: kCount / 2 dwords, pairs of rows of one column.
template <int kCount>
FW_DEVICE void write_columns(uint32_t address, const uint32_t* first, const uint32_t* second) {
  if constexpr (kCount == 8) {
    lds_write16(address, (U32x4){first[0], first[1], first[2], first[3]});
    lds_write16(address ^ 64, (U32x4){second[0], second[1], second[2], second[3]});
  } else {
    lds_write8(address, (U32x2){first[0], first[1]});
    lds_write8(address ^ 64, (U32x2){second[0], second[1]});
  }
}

// gfx950: 32 rows of queries that are read as rows and, transposed, as columns. Unit u of row r lies at u ^ key(r): 16
// rows in a row have their unit u in different banks, and 4 of them each 4 units from a multiple of 4.
template <int kRowBytes>
struct BothWays {
  static constexpr int kPeriod = 16, kAddresses = kRowBytes >= 256 ? 8 : 4;  // rows after which keys repeat
  FW_METHOD static constexpr uint32_t key(uint32_t row) {
    return (row >> 2 & 3) | (kRowBytes >= 256 ? (row & 3) << 2 : (row & 2) << 1);
  }
  FW_METHOD static uint32_t address(uint32_t row, uint32_t unit) { return row * kRowBytes + ((unit ^ key(row)) << 4); }
  FW_METHOD static uint32_t read_address(uint32_t lane, int i) { return address(lane & 31, 2 * i + (lane >> 5)); }
  static constexpr int fragment_offset(int f) { return f / kAddresses * kAddresses * 32; }
  // Of 32 columns, rows 4h + (0..3), or those + 8 (far): column d in lane i, as swap_bits_2_3 has it.
  FW_METHOD static uint32_t column_address(uint32_t lane, uint32_t block, uint32_t far) {
    const uint32_t row = 8 * far + 4 * (lane >> 5) + (lane >> 2 & 3), piece = (lane & 1) << 1 | (lane >> 1 & 1);
    return address(row, 4 * block + 2 * (lane >> 4 & 1) + (piece >> 1)) + 8 * (piece & 1);
  }
};

// gfx950: dS, a line of 32 queries for each key; piece c of it, queries 4c to 4c + 3, lies at c ^ key.
struct DsLines {
  static constexpr int kLineBytes = 64;
  FW_METHOD static uint32_t address(uint32_t key, uint32_t piece) {
    return key * kLineBytes + ((piece ^ (key >> 1 & 7)) << 3);
  }
  // Query i in lane i; keys 8h + (0..3), or those + 4 (far).
  FW_METHOD static uint32_t read_address(uint32_t lane, uint32_t first_key, uint32_t far) {
    const uint32_t key = first_key + 8 * (lane >> 5) + 4 * far + (lane >> 2 & 3);
    return address(key, 4 * (lane >> 4 & 1) + (lane & 3));
  }
};

}  // namespace flashwave

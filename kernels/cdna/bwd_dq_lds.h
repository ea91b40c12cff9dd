// What the kernel of dQ has in LDS: tiles of K and V as rows, and K as columns. On the way there a tile spends a step
// in registers.
//
// gfx950 reads columns from the rows, transposed. Those of the tile before are still read while the rows of the next
// are written, so there are four buffers, gone through in the order 0, 1, 3, 2: from one to the next a single bit of
// an address changes. The others write rows and columns, two buffers each, or one of rows with a second barrier.
#pragma once

#include "kernels/cdna/bwd_dq_plan.h"
#include "kernels/cdna/bwd_tile.h"

namespace flashwave {

// A tile in memory.
struct DqSource {
  Buffer tile;
  uint32_t stride, row_bytes;
};

template <class C, bool kTransposing = C::kTransposing>
struct DqLds {
  using Columns = BackwardColumns;
  using Carry = Carried<C::kPadded, C::kWaves>;
  using Rows = BackwardRows<C::kRowBytes, Carry::kCount == 4>;
  static constexpr int kStaged = C::kStaged, kCount = Carry::kCount, kGroups = Carry::kGroups;
  static_assert(kCount * kGroups == kStaged && kGroups == C::kGroups);

  uint32_t staged[2 * kStaged];  // dwords of rows of K, then of V
  uint32_t firsts[kStaged / 2], seconds[kStaged / 2];
  uint32_t row_read[4], column_read[2], row_write[4], column_write, k_source[kGroups], v_source[kGroups];
  uint32_t first_selector, second_selector;

  FW_METHOD void set_addresses(uint32_t lds, int lane, int wave, const DqSource& k, const DqSource& v) {
    const Carry carry(lane, wave);
    FW_UNROLL for (int i = 0; i < 4; ++i) {
      row_read[i] = lds + Rows::read_address(lane, i);
      row_write[i] = lds + Rows::write_address(carry.row(i), carry.dword);
    }
    // Columns of the tile before are read, those of this one written: the second buffer and the first.
    FW_UNROLL for (int i = 0; i < 2; ++i) {
      column_read[i] = lds + C::kTransposed + C::kMatrixBytes + Columns::read_address(lane, i);
    }
    column_write = lds + C::kTransposed + carry.column_address();
    first_selector = carry.first_selector(), second_selector = carry.second_selector();
    FW_UNROLL for (int g = 0; g < kGroups; ++g) {
      k_source[g] = carry.source(k.stride, k.row_bytes, g, Carry::kGroupBytes);
      v_source[g] = carry.source(v.stride, v.row_bytes, g, Carry::kGroupBytes);
    }
  }
  FW_METHOD void hold_sources() {  // sums with these stay in the loop
    if constexpr (kGroups == 1) return;
    FW_UNROLL for (int g = 0; g < kGroups; ++g) { hold(k_source[g]), hold(v_source[g]); }
  }

  FW_METHOD void load(int i, DqSource& k, DqSource& v) {
    const int group = i % kStaged / kCount, far = Carry::rows_on(i % kCount);
    DqSource& from = i < kStaged ? k : v;
    const uint32_t at = (i < kStaged ? k_source : v_source)[group];
    if constexpr (kGroups == 1) {
      from.stride = here(from.stride);  // multiples of it are made where they are used: scalar registers are few
      staged[i] = buffer_load4(from.tile, at, far * from.stride);
    } else {
      staged[i] = buffer_load4(from.tile, at + far * from.stride);
    }
  }
  FW_METHOD void carry_row(int i) const {
    const int matrix = i / kStaged, group = i % kStaged / kCount, row = i % kCount;
    lds_write4(
        row_write[row & 3] + (row >> 2) * 8 * C::kRowBytes + group * Carry::kGroupBytes + matrix * C::kMatrixBytes,
        staged[i]);
  }
  FW_METHOD void swap_columns(int i) {
    firsts[i] = permute_bytes(staged[2 * i + 1], staged[2 * i], first_selector);
    seconds[i] = permute_bytes(staged[2 * i + 1], staged[2 * i], second_selector);
  }
  FW_METHOD void carry_columns(int group) const {
    write_columns<kCount>(column_write + group * (128 * Columns::kLineBytes), firsts + group * (kCount / 2),
                          seconds + group * (kCount / 2));
  }

  // The first tile, whose dwords have been loaded, and columns of 0 for the one before it.
  FW_METHOD void begin() {
    FW_UNROLL for (int i = 0; i < 2 * kStaged; ++i) carry_row(i);
    FW_UNROLL for (int i = 0; i < kStaged / 2; ++i) firsts[i] = seconds[i] = 0;
    column_write ^= C::kMatrixBytes;
    FW_UNROLL for (int g = 0; g < kGroups; ++g) carry_columns(g);
    column_write ^= C::kMatrixBytes;
    FW_UNROLL for (int i = 0; i < kStaged / 2; ++i) swap_columns(i);
    if constexpr (C::kRowBuffers == 2) {
      FW_UNROLL for (int i = 0; i < 4; ++i) row_write[i] ^= C::kRowsBytes;
    }
  }
  FW_METHOD void change_buffers() {
    if constexpr (C::kRowBuffers == 2) {
      FW_UNROLL for (int i = 0; i < 4; ++i) row_read[i] ^= C::kRowsBytes, row_write[i] ^= C::kRowsBytes;
    }
    FW_UNROLL for (int i = 0; i < 2; ++i) column_read[i] ^= C::kMatrixBytes;
    column_write ^= C::kMatrixBytes;
  }

  FW_METHOD U32x4 row_fragment(int matrix, int i) const {
    return lds_read16(row_read[i % 4] + Rows::fragment_offset(i) + matrix * C::kMatrixBytes);
  }
  FW_METHOD U32x4 column_fragment(int step, int block) const {
    return lds_read16(column_read[step] + block * (32 * Columns::kLineBytes));
  }
};

#if defined(__gfx950__)

template <class C>
struct DqLds<C, true> {
  using Rows = BothWays<C::kRowBytes>;
  static constexpr int kStaged = C::kStaged, kUnits = C::kRowBytes / 16, kRowsAtOnce = C::kThreads / kUnits;
  static constexpr int kWrites = kRowsAtOnce < Rows::kPeriod ? Rows::kPeriod / kRowsAtOnce : 1;
  static_assert(kStaged * kRowsAtOnce == kDqTile);
  static constexpr uint32_t kBothBits = 3 * C::kRowsBytes;

  U32x4 staged[2 * kStaged];  // units of rows of K, then of V
  uint32_t row_read[Rows::kAddresses], columns[C::kBlocks][2], row_write[kWrites], k_source, v_source;
  uint32_t bit;  // in which the addresses of this tile and the next differ

  FW_METHOD void set_addresses(uint32_t lds, int lane, int wave, const DqSource& k, const DqSource& v) {
    FW_UNROLL for (int i = 0; i < Rows::kAddresses; ++i) row_read[i] = lds + Rows::read_address(lane, i);
    FW_UNROLL for (int b = 0; b < C::kBlocks; ++b) {
      FW_UNROLL for (int far = 0; far < 2; ++far) {
        columns[b][far] = lds + 2 * C::kRowsBytes + Rows::column_address(lane, b, far);
      }
    }
    const uint32_t thread = wave * kWave + lane, row = thread / kUnits, unit = thread % kUnits;
    FW_UNROLL for (int i = 0; i < kWrites; ++i) row_write[i] = lds + Rows::address(row + i * kRowsAtOnce, unit);
    k_source = unit * 16 < k.row_bytes ? row * k.stride + unit * 16 : kNowhere;
    v_source = unit * 16 < v.row_bytes ? row * v.stride + unit * 16 : kNowhere;
    bit = C::kRowsBytes;
  }
  FW_METHOD void hold_sources() {}

  FW_METHOD void load(int i, const DqSource& k, const DqSource& v) {
    const int rows = i % kStaged * kRowsAtOnce;
    staged[i] = i < kStaged ? buffer_load16(k.tile, k_source, rows * k.stride)
                            : buffer_load16(v.tile, v_source, rows * v.stride);
  }
  FW_METHOD void carry_row(int i) const { write(i, staged[i]); }
  FW_METHOD void swap_columns(int) {}
  FW_METHOD void carry_columns(int) const {}

  FW_METHOD void begin() {
    FW_UNROLL for (int i = 0; i < 2 * kStaged; ++i) carry_row(i);
    FW_UNROLL for (int i = 0; i < kWrites; ++i) row_write[i] ^= 2 * C::kRowsBytes;
    FW_UNROLL for (int i = 0; i < kStaged; ++i) write(i, (U32x4){0, 0, 0, 0});
    FW_UNROLL for (int i = 0; i < kWrites; ++i) row_write[i] ^= kBothBits;
  }
  FW_METHOD void change_buffers() {
    bit = here(bit);
    FW_UNROLL for (int i = 0; i < Rows::kAddresses; ++i) row_read[i] ^= bit;
    bit ^= kBothBits;
    FW_UNROLL for (int i = 0; i < kWrites; ++i) row_write[i] ^= bit;
    FW_UNROLL for (int b = 0; b < C::kBlocks; ++b) { columns[b][0] ^= bit, columns[b][1] ^= bit; }
  }

  FW_METHOD U32x4 row_fragment(int matrix, int i) const {
    return lds_read16(row_read[i % Rows::kAddresses] + Rows::fragment_offset(i) + matrix * C::kMatrixBytes);
  }
  FW_METHOD U32x4 column_fragment(int step, int block) const {
    const uint32_t rows = 16 * step * C::kRowBytes;
    const U32x2 low = lds_read_transposed(columns[block][0] + rows),
                high = lds_read_transposed(columns[block][1] + rows);
    return (U32x4){low.x, low.y, high.x, high.y};
  }

 private:
  FW_METHOD void write(int i, U32x4 x) const {
    const int matrix = i / kStaged, pass = i % kStaged;
    lds_write16(row_write[pass % kWrites] + pass / kWrites * (Rows::kPeriod * C::kRowBytes) + matrix * C::kMatrixBytes,
                x);
  }
};

#endif

}  // namespace flashwave

// What the kernel of dK and dV has in LDS: tiles of Q and dO as rows and as columns, and dS. On the way from memory to
// LDS, tiles spend C::kSets steps in registers.
//
// gfx950 reads columns from the rows, transposed, and so it does with dS, which is written as it is, a line of 32
// queries for each key. Two buffers of each: one barrier for a tile. The others write rows and columns, and dS as rows.
#pragma once

#include "kernels/cdna/bwd_stream.h"
#include "kernels/cdna/bwd_tile.h"

namespace flashwave {

template <class C, bool kTransposing = C::kTransposing>
struct BackwardLds {
  using Columns = BackwardColumns;
  using Carry = Carried<C::kPadded, C::kWaves>;
  using Rows = BackwardRows<C::kRowBytes, Carry::kCount == 4>;
  using DsRows = BackwardRows<C::kDsRowBytes, false>;
  static constexpr int kStaged = C::kStaged, kCount = Carry::kCount, kGroups = Carry::kGroups;
  static_assert(kCount * kGroups == kStaged && kGroups == C::kWalks);
  static constexpr bool kSameRows = C::kDsRowBytes == C::kRowBytes;  // dS is laid out as Q and dO are

  uint32_t staged[C::kSets][2 * kStaged];  // dwords of rows of Q, then of dO
  uint32_t firsts[kCount], seconds[kCount];
  uint32_t row_read[Rows::kAddresses], column_read[2], ds_read[kSameRows ? 1 : 4];
  uint32_t row_write[4], other_write[kGroups > 1 ? 4 : 1], column_write, ds_write[4];
  static constexpr int kSources = kGroups > 1 ? 4 : 1;  // with two walks, no scalar registers are left
  uint32_t q_source[kGroups][kSources], d_o_source[kGroups][kSources];
  uint32_t first_selector, second_selector;

  // Of a walk: the columns of its dK and dV are the first group that a lane carries. keys: the first that the wave's
  // columns of dQ are summed over.
  FW_METHOD void set_addresses(const BackwardStream<C>& stream, uint32_t lds, int lane, int wave, int walk,
                               [[maybe_unused]] int keys) {
    FW_UNROLL for (int i = 0; i < Rows::kAddresses; ++i) row_read[i] = lds + C::kRows + Rows::read_address(lane, i);
    FW_UNROLL for (int i = 0; i < 2; ++i) column_read[i] = lds + Columns::read_address(lane, i);
    const Carry carry(lane, wave);
    FW_UNROLL for (int i = 0; i < 4; ++i) {
      row_write[i] = lds + C::kRows + Rows::write_address(carry.row(i), carry.dword) + walk * Carry::kGroupBytes;
      if constexpr (kGroups > 1) other_write[i] = row_write[i] + Carry::kGroupBytes - 2 * walk * Carry::kGroupBytes;
    }
    column_write = lds + carry.column_address();
    first_selector = carry.first_selector(), second_selector = carry.second_selector();
    FW_UNROLL for (int g = 0; g < kGroups; ++g) {
      const uint32_t group = g == 0 ? walk : 1 - walk;
      q_source[g][0] = carry.source(stream.q_stride, stream.q_row, group, C::kColumnsQk * 2);
      d_o_source[g][0] = carry.source(stream.d_o_stride, stream.d_o_row, group, C::kColumnsV * 2);
      FW_UNROLL for (int i = 1; i < kSources; ++i) {
        q_source[g][i] = q_source[g][0] + i * stream.q_stride;
        d_o_source[g][i] = d_o_source[g][0] + i * stream.d_o_stride;
      }
    }
    if constexpr (C::kFused) {
      const int key = wave * kWaveKeys + (lane & 31), half = lane >> 5;
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        if constexpr (!kSameRows) ds_read[i] = lds + C::kDs + DsRows::read_address(lane, i) + keys * 2;
        ds_write[i] = lds + C::kDs + DsRows::write_address(4 * half + i, key >> 1) + (key & 1) * 2;
      }
    }
    hold_addresses();
  }

  template <int kSet>
  FW_METHOD void load(BackwardStream<C>& stream, int i) {
    const int group = i % kStaged / kCount, rows = Carry::rows_on(i % kCount);
    uint32_t& stride = i < kStaged ? stream.q_stride : stream.d_o_stride;
    const Buffer tile = i < kStaged ? stream.q_tile : stream.d_o_tile;
    const uint32_t* const source = (i < kStaged ? q_source : d_o_source)[group];
    if constexpr (kSources == 1) {
      stride = here(stride);  // multiples of it are made where they are used: scalar registers are few
      staged[kSet][i] = buffer_load4(tile, source[0], rows * stride);
    } else {
      staged[kSet][i] = buffer_load4(tile, source[rows & 3] + (rows & 8) * stride);
    }
  }
  FW_METHOD void hold_sources() {  // sums with these stay in the loop
    if constexpr (kSources == 1) return;
    FW_UNROLL for (int i = 0; i < kGroups * kSources; ++i) {
      hold(q_source[i / kSources][i % kSources]), hold(d_o_source[i / kSources][i % kSources]);
    }
  }

  template <int kSet, int kBuffer>
  FW_METHOD void carry_row(int i) const {
    const int matrix = i / kStaged, group = i % kStaged / kCount, row = i % kCount;
    lds_write4(
        (group == 0 ? row_write : other_write)[row & 3] + (row >> 2) * 8 * C::kRowBytes + matrix * C::kMatrixBytes,
        staged[kSet][i]);
  }
  template <int kSet>
  FW_METHOD void swap_columns(int i) {  // of the first group: the columns of this walk
    const uint32_t* const two = staged[kSet] + i / (kCount / 2) * kStaged + i % (kCount / 2) * 2;
    firsts[i] = permute_bytes(two[1], two[0], first_selector);
    seconds[i] = permute_bytes(two[1], two[0], second_selector);
  }
  template <int kBuffer>
  FW_METHOD void carry_columns(int matrix) const {
    write_columns<kCount>(column_write + matrix * C::kColumnBytes + kBuffer * C::kTransposedBytes,
                          firsts + matrix * (kCount / 2), seconds + matrix * (kCount / 2));
  }
  template <int kBuffer>
  FW_METHOD void share_ds(int pair, const uint32_t* ds) const {  // two queries
    const int rows = (pair >> 1) * 8 * C::kDsRowBytes;
    lds_write_low(ds_write[pair % 2 * 2] + rows, ds[pair]);
    lds_write_high(ds_write[pair % 2 * 2 + 1] + rows, ds[pair]);
  }

  FW_METHOD void change_ds() {}

  // Fragments of Q (matrix 0) or dO: 16 columns of the rows; 16 rows of 32 columns of the walk; 16 keys of dS.
  template <int kBuffer>
  FW_METHOD U32x4 row_fragment(int matrix, int i) const {
    const int walk = (matrix ? C::kColumnsV : C::kColumnsQk) / 16, f = i / walk * (C::kColumns / 16) + i % walk;
    return lds_read16(row_read[f % Rows::kAddresses] + Rows::fragment_offset(f) + matrix * C::kMatrixBytes);
  }
  template <int kBuffer>
  FW_METHOD U32x4 column_fragment(int matrix, int step, int block) const {
    return lds_read16(column_read[step] + block * (32 * Columns::kLineBytes) + matrix * C::kColumnBytes +
                      kBuffer * C::kTransposedBytes);
  }
  template <int kBuffer>
  FW_METHOD U32x4 ds_fragment(int i) const {
    const uint32_t at = kSameRows ? row_read[i % 4] + (C::kDs - C::kRows) : ds_read[i % 4];
    return lds_read16(at + DsRows::fragment_offset(i));
  }

 private:
  // Each in one register from here on: clang would keep what it is the sum of, in two, and add in the loop. With two
  // walks that takes more registers, not fewer.
  FW_METHOD void hold_addresses() {
    if constexpr (kGroups > 1) return;
    FW_UNROLL for (int i = 0; i < Rows::kAddresses; ++i) hold(row_read[i]);
    FW_UNROLL for (int i = 0; i < 2; ++i) hold(column_read[i]);
    FW_UNROLL for (int i = 0; i < 4; ++i) {
      hold(row_write[i]);
      if constexpr (kGroups > 1) hold(other_write[i]);
      if constexpr (C::kFused) hold(ds_write[i]);
      if constexpr (C::kFused && !kSameRows) hold(ds_read[i]);
    }
    hold(column_write);
  }
};

#if defined(__gfx950__)

template <class C>
struct BackwardLds<C, true> {
  using Rows = BothWays<C::kRowBytes>;
  using Ds = DsLines;
  static constexpr int kStaged = C::kStaged;
  static constexpr int kUnits = C::kRowBytes / 16, kRowsAtOnce = C::kThreads / kUnits;
  static constexpr int kWrites = kRowsAtOnce < Rows::kPeriod ? Rows::kPeriod / kRowsAtOnce : 1;
  static constexpr int kBlocks = C::kQkBlocks > C::kVBlocks ? C::kQkBlocks : C::kVBlocks;
  static_assert(kStaged * kRowsAtOnce == kQueryTile);

  U32x4 staged[C::kSets][2 * kStaged];  // units of rows of Q, then of dO
  uint32_t row_read[Rows::kAddresses], q_columns[kBlocks][2],
      d_o_columns[C::kColumnsQk == C::kColumnsV ? 1 : kBlocks][2];
  uint32_t row_write[kWrites], q_source, d_o_source, ds_read[2], ds_write[4];

  FW_METHOD void set_addresses(const BackwardStream<C>& stream, uint32_t lds, int lane, int wave, int walk, int keys) {
    FW_UNROLL for (int i = 0; i < Rows::kAddresses; ++i) row_read[i] = lds + Rows::read_address(lane, i);
    FW_UNROLL for (int b = 0; b < kBlocks; ++b) {
      FW_UNROLL for (int far = 0; far < 2; ++far) {
        q_columns[b][far] = lds + Rows::column_address(lane, walk * (C::kColumnsQk / 32) + b, far);
        if constexpr (C::kColumnsQk != C::kColumnsV) {
          d_o_columns[b][far] = lds + Rows::column_address(lane, walk * (C::kColumnsV / 32) + b, far);
        }
      }
    }
    const uint32_t thread = wave * kWave + lane, row = thread / kUnits, unit = thread % kUnits;
    FW_UNROLL for (int i = 0; i < kWrites; ++i) row_write[i] = lds + Rows::address(row + i * kRowsAtOnce, unit);
    q_source = unit * 16 < stream.q_row ? row * stream.q_stride + unit * 16 : kNowhere;
    d_o_source = unit * 16 < stream.d_o_row ? row * stream.d_o_stride + unit * 16 : kNowhere;
    if constexpr (C::kFused) {
      const uint32_t from = C::kPairs ? (2 + wave / 2) * C::kDsBytes : 0;
      FW_UNROLL for (int far = 0; far < 2; ++far) {
        ds_read[far] = lds + C::kDs + from + Ds::read_address(lane, keys, far);
      }
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        ds_write[i] = lds + C::kDs + Ds::address(wave * kWaveKeys + (lane & 31), 2 * i + (lane >> 5));
      }
    }
    hold_addresses();
  }

  template <int kSet>
  FW_METHOD void load(const BackwardStream<C>& stream, int i) {
    const int rows = i % kStaged * kRowsAtOnce;
    staged[kSet][i] = i < kStaged ? buffer_load16(stream.q_tile, q_source, rows * stream.q_stride)
                                  : buffer_load16(stream.d_o_tile, d_o_source, rows * stream.d_o_stride);
  }
  template <int kSet, int kBuffer>
  FW_METHOD void carry_row(int i) const {
    const int matrix = i / kStaged, pass = i % kStaged;
    lds_write16(row_write[pass % kWrites] + pass / kWrites * (Rows::kPeriod * C::kRowBytes) + place(matrix, kBuffer),
                staged[kSet][i]);
  }
  FW_METHOD void hold_sources() {}
  template <int kSet>
  FW_METHOD void swap_columns(int) {}
  template <int kBuffer>
  FW_METHOD void carry_columns(int) const {}
  template <int kBuffer>
  FW_METHOD void share_ds(int pair, const uint32_t* ds) const {  // four queries with the second pair of them
    if (pair % 2) lds_write8(ds_write[pair / 2] + kBuffer * C::kDsBytes, (U32x2){ds[pair - 1], ds[pair]});
  }

  template <int kBuffer>
  FW_METHOD U32x4 row_fragment(int matrix, int i) const {
    return lds_read16(row_read[i % Rows::kAddresses] + Rows::fragment_offset(i) + place(matrix, kBuffer));
  }
  template <int kBuffer>
  FW_METHOD U32x4 column_fragment(int matrix, int step, int block) const {
    const uint32_t* const at = matrix && C::kColumnsQk != C::kColumnsV ? d_o_columns[block] : q_columns[block];
    const uint32_t rows = 16 * step * C::kRowBytes + place(matrix, kBuffer);
    return both(lds_read_transposed(at[0] + rows), lds_read_transposed(at[1] + rows));
  }
  template <int kBuffer>
  FW_METHOD U32x4 ds_fragment(int i) const {  // of the tile before
    const uint32_t keys = C::kPairs ? 16 * (kBuffer * C::kDqFragments + i) * Ds::kLineBytes
                                    : 16 * i * Ds::kLineBytes + (kBuffer ^ 1) * C::kDsBytes;
    return both(lds_read_transposed(ds_read[0] + keys), lds_read_transposed(ds_read[1] + keys));
  }
  // kPairs: those of two tiles are written while those of the two before are read.
  FW_METHOD void change_ds() {
    FW_UNROLL for (int i = 0; i < 4; ++i) ds_write[i] ^= 2 * C::kDsBytes;
    FW_UNROLL for (int i = 0; i < 2; ++i) ds_read[i] ^= 2 * C::kDsBytes;
  }

 private:
  FW_METHOD static constexpr uint32_t place(int matrix, int buffer) { return (2 * buffer + matrix) * C::kMatrixBytes; }
  FW_METHOD static U32x4 both(U32x2 low, U32x2 high) { return (U32x4){low.x, low.y, high.x, high.y}; }
  FW_METHOD void hold_addresses() {
    FW_UNROLL for (int i = 0; i < Rows::kAddresses; ++i) hold(row_read[i]);
    FW_UNROLL for (int i = 0; i < kBlocks; ++i) {
      FW_UNROLL for (int far = 0; far < 2; ++far) {
        hold(q_columns[i][far]);
        if constexpr (C::kColumnsQk != C::kColumnsV) hold(d_o_columns[i][far]);
      }
    }
    FW_UNROLL for (int i = 0; i < kWrites; ++i) hold(row_write[i]);
    if constexpr (C::kFused) {
      FW_UNROLL for (int i = 0; i < 2; ++i) hold(ds_read[i]);
      FW_UNROLL for (int i = 0; i < 4; ++i) hold(ds_write[i]);
    }
  }
};

#endif

}  // namespace flashwave

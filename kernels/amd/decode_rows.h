// Where the rows of K and V of a step of keys lie, for every layout: dense, varlen, cached, paged with any page size.
#pragma once

#include "kernels/amd/mma16.h"
#include "kernels/common/sequence.h"

namespace flashwave {

// `count` registers from global memory; 4-byte alignment is enough.
template <int count>
FW_DEVICE Vec<uint32_t, count> load_global(uint64_t address) {
  using Words = Vec<uint32_t, count> __attribute__((aligned(4)));
  return *reinterpret_cast<const __attribute__((address_space(1))) Words*>(address);
}
template <class X>
FW_DEVICE void store_global(uint64_t address, X x) {
  using Words = X __attribute__((aligned(4)));
  *reinterpret_cast<__attribute__((address_space(1))) Words*>(address) = x;
}
FW_DEVICE uint64_t address_of(const void* p) { return reinterpret_cast<uint64_t>(p); }

// First of 8 (or `width`) columns that are read in place of columns `first` and on of a row of `dim`: the read stays
// inside the row, at the price of reading some columns twice.
FW_DEVICE int column_inside(int first, int dim, int width = 8) { return first < dim - width ? first : dim - width; }

// The rows of one step of kTiles x 16 keys, as this lane reads them.
template <int kTiles>
struct KeyStep {
  uint64_t in_order;   // uniform: no key past the end, and no tile of 16 keys goes on in another page
  uint64_t k[kTiles];  // row of K of key lane_key()
  uint64_t v[kTiles];  // in order: row of V of the group's first key, the others follow; else: of key lane_key()

  // In a scalar register: a branch on anything else may go both ways as far as clang knows, and waits for loads of
  // both.
  FW_METHOD bool all_in_order() const { return uniform(int32_t(in_order)) != 0; }
};

// The keys of one (sequence, key head), 16-bit elements.
template <int kTiles>
struct KeyRows {
  static constexpr int kKeys = 16 * kTiles;
  int32_t keys, first_row, page_size;
  uint32_t page_inverse;  // floor((2^32 - 1) / page_size)
  int32_t last_page;      // that there is
  bool paged;
  uint64_t k_data, v_data, table;
  int64_t k_row, v_row, k_page, v_page;  // bytes from a row, or page, to the next
  int lane_key;                          // key of a tile whose row of K this lane reads
  uint64_t k_lane, v_lane;               // bytes from the first row of a tile to this lane's

  FW_METHOD KeyRows(const Params& p, const Sequence& seq, int32_t head)
      : keys(int32_t(seq.keys)), first_row(int32_t(seq.k_row)), page_size(int32_t(p.page_size)), paged(p.block_table) {
    k_row = p.k.stride[1] * 2, v_row = p.v.stride[1] * 2, k_page = p.k.stride[0] * 2, v_page = p.v.stride[0] * 2;
    k_data = address_of(p.k.data) + head * p.k.stride[2] * 2;
    v_data = address_of(p.v.data) + head * p.v.stride[2] * 2;
    page_inverse = 0, table = 0, last_page = p.k.most;
    if (paged) {
      page_inverse = uniform(int32_t(0xFFFFFFFFu / uint32_t(page_size)));
      table = address_of(p.block_table) + seq.b * p.block_table_stride * 4;
    } else {
      k_data += seq.k_batch * k_page + seq.k_row * k_row;
      v_data += seq.k_batch * v_page + seq.k_row * v_row;
      first_row = 0;
    }
    lane_key = row_of_lane(lane_index() & 15);
    k_lane = lane_key * k_row;
    v_lane = kRegisters * group_index() * v_row;
  }

  // The estimate is at most 1 too small: row * (2^32 / page_size - page_inverse) / 2^32 < 1.
  FW_METHOD int32_t page_of(int32_t row) const {
    const int32_t estimate = int32_t((uint64_t{uint32_t(row)} * page_inverse) >> 32);
    return row - estimate * page_size >= page_size ? estimate + 1 : estimate;
  }

  // A key past the end is the last one again, which is masked. Unsigned: a step or two past 2^31 is no key either.
  FW_METHOD int32_t key_or_last(int32_t key) const { return uint32_t(key) < uint32_t(keys) ? key : keys - 1; }

  // What the table says of keys lane_key() of the step's tiles; to be asked for well before locate().
  FW_METHOD void find_pages(int32_t first_key, int32_t (&page)[kTiles]) const {
    if (!paged) return;
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      const int32_t key = key_or_last(first_key + 16 * t + lane_key);
      page[t] = int32_t(load_global<1>(table + uint64_t(page_of(first_row + key)) * 4)[0]);
    }
  }

  FW_METHOD KeyStep<kTiles> locate(int32_t first_key, const int32_t (&page)[kTiles]) const {
    KeyStep<kTiles> step;
    step.in_order = first_key <= keys - kKeys;
    int32_t slot[kTiles];
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      const int32_t row = first_row + first_key + 16 * t;
      slot[t] = paged ? row - page_of(row) * page_size : row;
      if (paged) step.in_order &= slot[t] + 16 <= page_size;
    }
    if (step.all_in_order()) {
      FW_UNROLL for (int t = 0; t < kTiles; ++t) {
        const int64_t in_page = paged ? abi::at_most(uniform(page[t]), last_page) : 0;
        step.k[t] = k_data + in_page * k_page + slot[t] * k_row + k_lane;
        step.v[t] = v_data + in_page * v_page + slot[t] * v_row + v_lane;
      }
    } else {
      FW_UNROLL for (int t = 0; t < kTiles; ++t) {
        const int32_t row = first_row + key_or_last(first_key + 16 * t + lane_key);
        const int64_t in_page = paged ? abi::at_most(page[t], last_page) : 0;
        const int64_t in_slot = paged ? row - page_of(row) * page_size : row;
        step.k[t] = k_data + in_page * k_page + in_slot * k_row;
        step.v[t] = v_data + in_page * v_page + in_slot * v_row;
      }
    }
    return step;
  }

  // Rows of V of keys kRegisters * group + r of the tiles.
  template <bool kInOrder>
  FW_METHOD void value_rows(const KeyStep<kTiles>& step, uint64_t (&row)[kTiles][kRegisters]) const {
    int first = lane_of_row(kRegisters * group_index());
    hold_operand(first);
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
        if constexpr (kInOrder) {
          row[t][r] = step.v[t] + r * v_row;
        } else {
          const int lane = first + lane_of_row(r);
          const uint64_t lo = from_lane(lane, uint32_t(step.v[t])), hi = from_lane(lane, uint32_t(step.v[t] >> 32));
          row[t][r] = hi << 32 | lo;
        }
      }
    }
  }
};

}  // namespace flashwave

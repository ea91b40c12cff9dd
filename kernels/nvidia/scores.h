// The scores that a thread has in the accumulators of mma.sync and wgmma: number 4 j + 2 i + e is 8 i rows and 8 j + e
// columns after number 0 (PTX ISA, "Matrix Fragments for mma.m16n8k16", "Register Fragments for wgmma.mma_async").
#pragma once

#include "kernels/common/modify.h"

namespace flashwave {

template <int N>
struct RowsAreQueries {
  static constexpr int kScores = N;
  static constexpr bool kPadded = false;
  FW_METHOD static constexpr int query(int i) { return i / 2 % 2 * 8; }
  FW_METHOD static constexpr int key(int i) { return i / 4 * 8 + i % 2; }
};
template <int N>
struct RowsAreKeys {
  static constexpr int kScores = N;
  static constexpr bool kPadded = false;
  FW_METHOD static constexpr int query(int i) { return i / 4 * 8 + i % 2; }
  FW_METHOD static constexpr int key(int i) { return i / 2 % 2 * 8; }
};

// The two products and two exclusive ors of a round, one instruction each: nvcc alone makes more of them.
struct PhiloxWords {
  template <uint32_t kFactor>
  FW_METHOD static void product(uint32_t x, uint32_t& low, uint32_t& high) {
    wide_product<kFactor>(x, low, high);
  }
  FW_METHOD static uint32_t xor3(uint32_t a, uint32_t b, uint32_t c) { return logic<0x96>(a, b, c); }
};
using DropoutTable = PhiloxTable<PhiloxWords>;

FW_DEVICE DropoutTable dropout_table(const Params& p, uint32_t batch_head) {
  const DropoutKey key = dropout_key(p);
  return {key.low, key.high, key.counter, batch_head};
}

}  // namespace flashwave

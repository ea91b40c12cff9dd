// The scores that a thread has in the accumulators of mma.sync and wgmma: number 4 j + 2 i + e is 8 i rows and 8 j + e
// columns after number 0 (PTX ISA, "Matrix Fragments for mma.m16n8k16", "Register Fragments for wgmma.mma_async").
#pragma once

#include "kernels/common/modify.h"

namespace flashwave {

template <int N>
struct RowsAreQueries {
  static constexpr int kScores = N;
  FW_METHOD static constexpr int query(int i) { return i / 2 % 2 * 8; }
  FW_METHOD static constexpr int key(int i) { return i / 4 * 8 + i % 2; }
};
template <int N>
struct RowsAreKeys {
  static constexpr int kScores = N;
  FW_METHOD static constexpr int query(int i) { return i / 4 * 8 + i % 2; }
  FW_METHOD static constexpr int key(int i) { return i / 2 % 2 * 8; }
};

}  // namespace flashwave

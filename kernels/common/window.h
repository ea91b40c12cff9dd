// The mask in 32 bits: causal and window, aligned to the bottom right. Plain C++ for the host and every GPU.
#pragma once

#include "kernels/common/sequence.h"

namespace flashwave {

// Query i, counted from the first of a block, sees the keys i + left, ..., i + right of its sequence, of those that
// exist. Keys [first(i), end(i, keys)); none where the end is not behind the first.
struct Edges {
  int32_t left, right;

  FW_FN int32_t first(int32_t i) const { return i + left > 0 ? i + left : 0; }
  FW_FN int32_t end(int32_t i, int32_t keys) const { return i + right + 1 < keys ? i + right + 1 : keys; }
  // The same of queries counted from another one.
  FW_FN Edges from(int32_t i) const { return {left + i, right + i}; }
};

// Of a block of up to `rows` queries, the first of which has the key `diagonal` on its diagonal: query + keys -
// queries. The edges are moved to where they hide nothing from any of the rows, or everything, so that no sum with a
// row or a key leaves 32 bits.
FW_FN Edges edges_of_block(const abi::Params& p, int64_t diagonal, int32_t keys, int32_t rows) {
  const int64_t left = diagonal - p.window_left, right = diagonal + p.window_right;
  return {left < -rows  ? -rows
          : left > keys ? keys
                        : int32_t(left),
          right < -rows  ? -rows
          : right > keys ? keys
                         : int32_t(right)};
}

// The same with fewer instructions where sequences have less than 2^30 queries and keys: an edge that hides nothing is
// far away.
FW_FN Edges near_edges(const abi::Params& p, int32_t diagonal) {
  constexpr int64_t kFar = 1 << 30;
  return {diagonal - int32_t(p.window_left < kFar ? p.window_left : kFar),
          diagonal + int32_t(p.window_right < kFar ? p.window_right : kFar)};
}

// Keys that some of the first `rows` queries of a block see, and keys that all of them see.
struct SeenKeys {
  int32_t some_first, some_end, all_first, all_end;
};
FW_FN SeenKeys seen_keys(const Edges& e, int32_t rows, int32_t keys) {
  const auto at_most_all = [keys](int32_t key) { return key < 0 ? 0 : key > keys ? keys : key; };
  return {at_most_all(e.left), at_most_all(e.right + rows), at_most_all(e.left + rows - 1), at_most_all(e.right + 1)};
}

}  // namespace flashwave

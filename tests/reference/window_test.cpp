// The mask in 32 bits against the rule for one query and one key, and at lengths near 2^31.
#include "kernels/common/window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace flashwave {
namespace {

constexpr int kRows = 16;

bool sees(const abi::Params& p, int64_t diagonal, int64_t key, int64_t keys) {
  return key >= 0 && key < keys && key >= diagonal - p.window_left && key <= diagonal + p.window_right;
}

struct Drawn {
  abi::Params p{};
  int queries = 0, keys = 0, first = 0, rows = 0;  // a block: its first query, its queries
};
Drawn draw(std::mt19937& rng) {
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  Drawn x;
  // A window need not hold its diagonal.
  x.p.window_left = below(2) ? abi::kNoWindow : below(50) - 5;
  x.p.window_right = below(2) ? abi::kNoWindow : below(50) - 5;
  x.queries = 1 + below(60), x.keys = below(60);
  x.first = below(x.queries), x.rows = std::min(x.queries - x.first, kRows);
  return x;
}

void expect_edges(const Edges& e, const Drawn& x) {
  for (int i = 0; i < x.rows; ++i) {
    for (int key = 0; key < x.keys; ++key) {
      const bool expected = sees(x.p, int64_t{x.first} + i + x.keys - x.queries, key, x.keys);
      ASSERT_EQ(key >= e.first(i) && key < e.end(i, x.keys), expected) << "query " << i << ", key " << key;
      const Edges later = e.from(i);
      ASSERT_EQ(key >= later.first(0) && key < later.end(0, x.keys), expected);
    }
  }
}

TEST(Window, EdgesSayWhatEachQuerySees) {
  std::mt19937 rng(1);
  for (int n = 0; n < 5000; ++n) {
    const Drawn x = draw(rng);
    const int diagonal = x.first + x.keys - x.queries;
    expect_edges(edges_of_block(x.p, diagonal, x.keys, kRows), x);
    expect_edges(near_edges(x.p, diagonal), x);
  }
}

TEST(Window, SomeAndAllOfABlock) {
  std::mt19937 rng(2);
  int hidden = 0, open = 0;
  for (int n = 0; n < 5000; ++n) {
    const Drawn x = draw(rng);
    const int diagonal = x.first + x.keys - x.queries;
    const SeenKeys seen = seen_keys(edges_of_block(x.p, diagonal, x.keys, x.rows), x.rows, x.keys);
    for (const int32_t edge : {seen.some_first, seen.some_end, seen.all_first, seen.all_end}) {
      ASSERT_GE(edge, 0);
      ASSERT_LE(edge, x.keys);
    }
    for (int key = 0; key < x.keys; ++key) {
      bool some = false, all = true;
      for (int i = 0; i < x.rows; ++i) {
        (sees(x.p, diagonal + i, key, x.keys) ? some : all) = sees(x.p, diagonal + i, key, x.keys);
      }
      if (some) ASSERT_TRUE(key >= seen.some_first && key < seen.some_end);
      ASSERT_EQ(key >= seen.all_first && key < seen.all_end, all);
      hidden += !some, open += all;
    }
  }
  EXPECT_GT(hidden, 1000);
  EXPECT_GT(open, 1000);
}

TEST(Window, LengthsNear2To31DoNotOverflow) {
  constexpr int32_t kLong = 2147483647 - kRows;
  abi::Params p{};
  for (const int64_t left : {int64_t{0}, int64_t{100}, int64_t{kLong}, abi::kNoWindow}) {
    for (const int64_t right : {int64_t{0}, int64_t{100}, int64_t{kLong}, abi::kNoWindow}) {
      p.window_left = left, p.window_right = right;
      for (const int64_t diagonal : {int64_t{0}, int64_t{1} - kLong, int64_t{kLong} - kRows, int64_t{1} << 30}) {
        const Edges e = edges_of_block(p, diagonal, kLong, kRows);
        for (int i = 0; i < kRows; ++i) {
          const int64_t first = std::clamp<int64_t>(diagonal + i - left, 0, kLong);
          const int64_t end = std::clamp<int64_t>(diagonal + i + right + 1, 0, kLong);
          if (first >= end) {
            EXPECT_GE(e.first(i), e.end(i, kLong));
          } else {
            EXPECT_EQ(e.first(i), first);
            EXPECT_EQ(e.end(i, kLong), end);
          }
          // A mask counts from any key.
          EXPECT_GE(int64_t{e.left} - kLong, int64_t{INT32_MIN});
          EXPECT_GE(int64_t{e.right} - kLong, int64_t{INT32_MIN});
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashwave

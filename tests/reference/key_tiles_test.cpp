// Which tiles of queries see a tile of keys, against the rule for one query and one key.
#include "kernels/common/key_tiles.h"

#include <gtest/gtest.h>

#include <random>

namespace flashwave {
namespace {

struct Counts {
  int some = 0, all = 0;  // tiles of queries that see some key, all of the keys
};

TEST(KeyTiles, QueriesAreThoseThatSeeAKey) {
  std::mt19937 rng(3);
  const auto draw = [&](int from, int to) { return from + static_cast<int>(rng() % static_cast<unsigned>(to - from)); };
  Counts seen;
  for (int n = 0; n < 20000; ++n) {
    abi::Params p{};
    const int tile = draw(1, 9);
    p.window_left = draw(0, 2) ? abi::kNoWindow : draw(0, 40);
    p.window_right = draw(0, 2) ? abi::kNoWindow : draw(0, 40);
    Sequence s{};
    s.queries = draw(0, 50), s.keys = draw(0, 50);
    const int from = draw(0, 50), to = std::min<int>(from + draw(0, 20), static_cast<int>(s.keys));
    const QueryTiles tiles = query_tiles(edges_of(p, s), static_cast<int32_t>(s.queries), from, to, tile);
    ASSERT_LE(tiles.first, tiles.all_first);
    ASSERT_LE(tiles.all_first, tiles.all_end);
    ASSERT_LE(tiles.all_end, tiles.end);
    for (int t = 0; t * tile < s.queries; ++t) {
      bool some = false, all = from < to;
      for (int i = t * tile; i < (t + 1) * tile; ++i) {
        for (int key = from; key < to; ++key) {
          const int64_t apart = key - (i + s.keys - s.queries);
          const bool sees = apart >= -p.window_left && apart <= p.window_right;
          some = some || (sees && i < s.queries);
          all = all && sees;
        }
      }
      // A tile between two that see a key may see none itself only where there is none: both edges rise with the query.
      EXPECT_EQ(t >= tiles.first && t < tiles.end, some) << n << " tile " << t;
      EXPECT_EQ(t >= tiles.all_first && t < tiles.all_end, all) << n << " tile " << t;
      seen.some += some, seen.all += all;
    }
  }
  EXPECT_GT(seen.all, 1000);
  EXPECT_GT(seen.some, seen.all);
}

TEST(KeyTiles, KeysAreThoseThatAreSeen) {
  std::mt19937 rng(4);
  const auto draw = [&](int from, int to) { return from + static_cast<int>(rng() % static_cast<unsigned>(to - from)); };
  Counts seen;
  for (int n = 0; n < 20000; ++n) {
    abi::Params p{};
    const int tile = draw(1, 9);
    p.window_left = draw(0, 2) ? abi::kNoWindow : draw(0, 40);
    p.window_right = draw(0, 2) ? abi::kNoWindow : draw(0, 40);
    Sequence s{};
    s.queries = draw(0, 50), s.keys = draw(0, 50);
    const int from = draw(0, 50), to = std::min<int>(from + draw(0, 20), static_cast<int>(s.queries));
    const QueryTiles tiles = key_tiles(edges_of(p, s), static_cast<int32_t>(s.keys), from, to, tile);
    ASSERT_LE(tiles.first, tiles.all_first);
    ASSERT_LE(tiles.all_first, tiles.all_end);
    ASSERT_LE(tiles.all_end, tiles.end);
    for (int t = 0; t * tile < s.keys; ++t) {
      bool some = false, all = from < to;
      for (int key = t * tile; key < (t + 1) * tile; ++key) {
        for (int i = from; i < to; ++i) {
          const KeyRange range = visible_keys(p, s, i);
          const bool sees = key >= range.first && key < range.last;
          some = some || sees, all = all && sees;
        }
      }
      EXPECT_EQ(t >= tiles.first && t < tiles.end, some) << n << " tile " << t;
      EXPECT_EQ(t >= tiles.all_first && t < tiles.all_end, all) << n << " tile " << t;
      seen.some += some, seen.all += all;
    }
  }
  EXPECT_GT(seen.all, 1000);
  EXPECT_GT(seen.some, seen.all);
}

TEST(KeyTiles, LengthsNear2To31DoNotOverflow) {
  constexpr int32_t kLong = 2147483647;
  abi::Params p{};
  p.window_left = abi::kNoWindow, p.window_right = 0;
  Sequence s{};
  s.queries = s.keys = kLong;
  const QueryTiles tiles = query_tiles(edges_of(p, s), kLong, kLong - 128, kLong, 32);
  EXPECT_EQ(tiles.first, (kLong - 128) / 32);
  EXPECT_EQ(tiles.end, kLong / 32 + 1);
  EXPECT_EQ(tiles.all_first, tiles.end);
}

}  // namespace
}  // namespace flashwave

// Which tiles of queries see a tile of keys, against the rule for one query and one key.
#include "kernels/common/key_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace flashwave {
namespace {

struct Drawn {
  abi::Params p{};
  Sequence s{};
};

// Tiles of one side, `tiled` long, against [from, to) of the other, `other` long. sees(i, j): element i of the tiled
// side and j of the other see each other.
template <class Find, class Sees>
void expect_tiles(unsigned seed, bool queries_are_tiled, Find&& find, Sees&& sees) {
  std::mt19937 rng(seed);
  const auto draw = [&](int from, int to) { return from + static_cast<int>(rng() % static_cast<unsigned>(to - from)); };
  int seen_some = 0, seen_all = 0;  // tiles
  for (int n = 0; n < 20000; ++n) {
    Drawn x;
    const int tile = draw(1, 9);
    x.p.window_left = draw(0, 2) ? abi::kNoWindow : draw(0, 40);
    x.p.window_right = draw(0, 2) ? abi::kNoWindow : draw(0, 40);
    x.s.queries = draw(0, 50), x.s.keys = draw(0, 50);
    const int tiled = static_cast<int>(queries_are_tiled ? x.s.queries : x.s.keys);
    const int other = static_cast<int>(queries_are_tiled ? x.s.keys : x.s.queries);
    const int from = draw(0, 50), to = std::min(from + draw(0, 20), other);
    const QueryTiles tiles = find(edges_of(x.p, x.s), tiled, from, to, tile);
    ASSERT_LE(tiles.first, tiles.all_first);
    ASSERT_LE(tiles.all_first, tiles.all_end);
    ASSERT_LE(tiles.all_end, tiles.end);
    for (int t = 0; t * tile < tiled; ++t) {
      bool some = false, all = from < to;
      for (int i = t * tile; i < (t + 1) * tile; ++i) {
        for (int j = from; j < to; ++j) {
          const bool both = sees(x, i, j);
          some = some || (both && i < tiled);
          all = all && both;
        }
      }
      // A tile between two that see something may see nothing itself only where there is nothing: both edges rise with
      // the query.
      EXPECT_EQ(t >= tiles.first && t < tiles.end, some) << n << " tile " << t;
      EXPECT_EQ(t >= tiles.all_first && t < tiles.all_end, all) << n << " tile " << t;
      seen_some += some, seen_all += all;
    }
  }
  EXPECT_GT(seen_all, 1000);
  EXPECT_GT(seen_some, seen_all);
}

// Queries past the end count for `all` as if they were there.
TEST(KeyTiles, QueriesAreThoseThatSeeAKey) {
  expect_tiles(3, true, query_tiles, [](const Drawn& x, int query, int key) {
    const int64_t apart = key - (query + x.s.keys - x.s.queries);
    return apart >= -x.p.window_left && apart <= x.p.window_right;
  });
}

TEST(KeyTiles, KeysAreThoseThatAreSeen) {
  expect_tiles(4, false, key_tiles, [](const Drawn& x, int key, int query) {
    const KeyRange range = keys_seen(x.p, x.s, query);
    return key >= range.first && key < range.last;
  });
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

// Which queries see a tile of keys: what the kernels of a backward that go by tiles of keys have in common. Plain C++
// for the host and every GPU, in 32 bits.
#pragma once

#include "kernels/common/window.h"

namespace flashwave {

// Edges for all queries of a sequence.
inline constexpr int32_t kFarEdge = 1 << 30;
FW_FN int32_t edge(int64_t x) { return x < -kFarEdge ? -kFarEdge : x > kFarEdge ? kFarEdge : int32_t(x); }
FW_FN Edges edges_of(const abi::Params& p, const Sequence& s) {
  const int64_t shift = s.keys - s.queries;
  return {edge(shift - p.window_left), edge(shift + p.window_right)};
}

// Tiles of queries, each of `tile` from a multiple of it on: those in which some query sees one of the keys from, ...,
// to - 1, and of those the ones in which every query, past the end of the sequence or not, sees all of them.
struct QueryTiles {
  int32_t first, end, all_first, all_end;
};
FW_FN QueryTiles query_tiles(const Edges& e, int32_t queries, int32_t from, int32_t to, int32_t tile) {
  if (from >= to || queries <= 0) return {0, 0, 0, 0};
  const int64_t first_query = int64_t{from} - e.right, last_query = int64_t{to} - 1 - e.left;
  const int64_t last = last_query < queries - 1 ? last_query : queries - 1;
  const int32_t first = first_query > 0 ? int32_t(first_query / tile) : 0;
  const int32_t end = last < 0 ? 0 : int32_t(last / tile) + 1;
  if (end <= first) return {0, 0, 0, 0};
  // The first query of a tile sees the last key, and the last query of the tile the first key.
  const int64_t seen_from = int64_t{to} - 1 - e.right, seen_to = int64_t{from} - e.left - (tile - 1);
  int32_t all_first = seen_from > 0 ? int32_t((seen_from + tile - 1) / tile) : 0;
  int32_t all_end = seen_to < 0 ? 0 : int32_t(seen_to / tile) + 1;
  all_first = all_first < first ? first : all_first > end ? end : all_first;
  all_end = all_end < all_first ? all_first : all_end > end ? end : all_end;
  return {first, end, all_first, all_end};
}

// The same with the sides exchanged: tiles of keys, of which one is seen by one of the queries from, ..., to - 1, and
// those of which all are keys and seen by all of them.
FW_FN QueryTiles key_tiles(const Edges& e, int32_t keys, int32_t from, int32_t to, int32_t tile) {
  QueryTiles t = query_tiles({-e.right, -e.left}, keys, from, to, tile);
  if (t.all_end > keys / tile) t.all_end = keys / tile > t.all_first ? keys / tile : t.all_first;
  return t;
}

}  // namespace flashwave

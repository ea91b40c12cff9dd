// Score modifiers, mask and dropout on the accumulators of S.
#pragma once

#include "kernels/nvidia/isa.h"
#include "kernels/nvidia/scores.h"

namespace flashwave {

// 16 queries x 8 kKeyTiles keys: s[n][2h + e] of lane 4g + c is query g + 8h, key 8n + 2c + e.
template <int kKeyTiles>
using ScoreTile = float[kKeyTiles][4];

// Keys outside of [first, last) of a row, which both rise by 1 from query to query, but last stays within the keys:
// -inf. first, last: of this lane's first query, counted from its first key.
template <int kKeyTiles>
FW_DEVICE void mask_scores(ScoreTile<kKeyTiles>& s, int first, int last, int end) {
  FW_UNROLL for (int h = 0; h < 2; ++h) {
    const int from = first + 8 * h, to = last + 8 * h < end ? last + 8 * h : end;
    FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
      FW_UNROLL for (int e = 0; e < 2; ++e) {
        const int key = 8 * n + e;
        if (key < from || key >= to) s[n][2 * h + e] = -kInf;
      }
    }
  }
}

// q.k -> score in units of log2. capped(n, h, x, y): takes the tangents of a softcap for two keys of query h.
template <int kKeyTiles, class Capped>
FW_DEVICE void modify_scores(ScoreTile<kKeyTiles>& s, const Params& p, const TilePlace& at, const Capped& capped) {
  modify_scores<RowsAreQueries<4 * kKeyTiles>>(p, at, reinterpret_cast<float (&)[4 * kKeyTiles]>(s),
                                               [&](int n, float x, float y) { capped(n / 2, n % 2, x, y); });
}
template <int kKeyTiles>
FW_DEVICE void modify_scores(ScoreTile<kKeyTiles>& s, const Params& p, const TilePlace& at) {
  modify_scores(s, p, at, [](int, int, float, float) {});
}

// One step of transposing the 4 words of 4 lanes, of which this is number c: afterwards word q is word c of lane q.
FW_DEVICE void exchange_words(uint32_t& low, uint32_t& high, int c, int lanes_apart) {
  const bool upper = c & lanes_apart;
  const uint32_t other = exchange(upper ? low : high, lanes_apart);
  low = upper ? other : low;
  high = upper ? high : other;
}

// Which elements are dropped: bit 4n + i is s[n][i]. A Philox call covers one query and the 8 keys of a key tile, of
// which each of the 4 lanes of a row has one word's: each lane makes one of 4 calls (2 key tiles x 2 queries), and they
// exchange words. The calls are a loop that gathers one bit for each weight: unrolled they would need too many
// registers.
template <int kKeyTiles>
FW_DEVICE uint32_t dropped_elements(const Params& p, const TilePlace& at) {
  static_assert(kKeyTiles <= 8);
  const int c = lane_index() & 3;
  const uint32_t group = uint32_t(at.key) / kKeysPerPhilox + uint32_t(c >> 1);
  DropoutTable table = dropout_table(p, uint32_t(at.batch * p.heads_q + at.head));
  const DropoutTable::Row row[1] = {table.row(uint32_t(at.query + 8 * (c & 1)))};
  uint32_t dropped = 0;  // bits 8t + 2q + e: call q of step t, which is key tile 2t + q / 2, query q % 2
  FW_NO_UNROLL for (int t = kKeyTiles / 2 - 1; t >= 0; --t) {
    // `here`: the keys of all rounds, made before the loop, would need too many registers as well.
    table.key0 = uint32_t(here(int(table.key0))), table.key1 = uint32_t(here(int(table.key1)));
    const DropoutTable::Column column[1] = {table.column(group + 2 * t)};
    Philox4 of_call[1], &x = of_call[0];
    table.numbers(row, column, of_call);
    exchange_words(x.word[0], x.word[1], c, 1);
    exchange_words(x.word[2], x.word[3], c, 1);
    exchange_words(x.word[0], x.word[2], c, 2);
    exchange_words(x.word[1], x.word[3], c, 2);
    FW_UNROLL for (int q = 3; q >= 0; --q) {
      dropped = dropped << 1 | uint32_t((x.word[q] >> 16) < p.dropout_threshold);
      dropped = dropped << 1 | uint32_t((x.word[q] & 0xFFFFu) < p.dropout_threshold);
    }
  }
  return dropped;
}

// Weights of dropped elements become 0.
template <int kKeyTiles>
FW_DEVICE void drop_weights(ScoreTile<kKeyTiles>& s, uint32_t dropped) {
  FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
    FW_UNROLL for (int i = 0; i < 4; ++i) {
      if (dropped >> (n * 4 + i) & 1) s[n][i] = 0.f;
    }
  }
}

}  // namespace flashwave

// Score modifiers and dropout on a sub-tile of S^T as it comes out of the matrix instructions.
#pragma once

#include "kernels/cdna/isa.h"
#include "kernels/common/modify.h"

namespace flashwave {

// A lane's part of the scores of a sub-tile: register r is key 8(r >> 2) + 4h + (r & 3). Plain: products, scaled in the
// exponent; modified: scores in units of log2. Bit r of keep: not dropped.
struct Scores {
  F32x16 s;
  uint32_t keep;
};
FW_DEVICE constexpr int key_of_register(int r) { return 8 * (r >> 2) + (r & 3); }

// What the gradient of a softcap is of its tangents: 1 without one.
struct CapGradients {
  uint32_t (&pairs)[8];  // of fp16

  FW_METHOD CapGradients(uint32_t (&to)[8], const Params& p) : pairs(to) {
    if (p.softcap > 0.f) return;
    FW_UNROLL for (uint32_t& pair : pairs) pair = 0x3C003C00;  // 1, 1
  }
  FW_METHOD void operator()(int n, float x, float y) const { pairs[n] = F16::pack(1.f - x * x, 1.f - y * y); }
};

// Where a lane's scores are (kernels/common/modify.h): a query, and keys in the registers.
struct LaneIsQuery {
  static constexpr int kScores = 16;
  static constexpr bool kPadded = true;
  FW_METHOD static constexpr int query(int) { return 0; }
  FW_METHOD static constexpr int key(int r) { return key_of_register(r); }
};

// What _modified kernels do to the scores of a wave, whose first query is at.query, in the sub-tile from at.key on.
struct Modifier {
  const Params& p;
  const TilePlace at;

  FW_METHOD void apply(Scores& x) const {
    modify_scores<LaneIsQuery>(p, of_lane(), x.s);
    draw(x);
  }
  // And the derivative of the softcap, as pairs of fp16, for the backward.
  FW_METHOD void apply(Scores& x, uint32_t (&cap_gradients)[8]) const {
    modify_scores<LaneIsQuery>(p, of_lane(), x.s, CapGradients{cap_gradients, p});
    draw(x);
  }

 private:
  FW_METHOD TilePlace of_lane() const {
    const int lane = lane_index_again();
    TilePlace place = at;
    place.query += lane & 31, place.key += 4 * (lane >> 5);
    return place;
  }
  FW_METHOD void draw(Scores& x) const { x.keep = p.dropout_threshold ? kept() : 0xFFFFu; }

  // Dropout: a lane has 4 of the 8 keys that share a Philox call, the other half of the wave the rest: each half makes
  // every other call and they exchange words.
  FW_METHOD uint32_t kept() const {
    const DropoutKey dropout = dropout_key(p);
    const TilePlace place = of_lane();
    const ScoreRow row = row_of(p, at, place.query);
    uint32_t keep = 0;
    if (at.key % kKeysPerPhilox != 0) {  // paged, with a left pad
      FW_NO_UNROLL for (int r = 0; r < 16; ++r) {
        keep |= uint32_t(!row.dropped(dropout, uint32_t(place.key + key_of_register(r)))) << r;
      }
      return keep;
    }
    const bool upper = lane_index_again() >= 32;
    FW_NO_UNROLL for (int pair = 0; pair < 2; ++pair) {
      const Philox4 words = row.dropout_group(dropout, at.key / kKeysPerPhilox + 2 * pair + (upper ? 1 : 0));
      const uint32_t sent0 = other_half(upper ? words.word[0] : words.word[2]);
      const uint32_t sent1 = other_half(upper ? words.word[1] : words.word[3]);
      const uint32_t even[2] = {upper ? sent0 : words.word[0], upper ? sent1 : words.word[1]};
      const uint32_t odd[2] = {upper ? words.word[2] : sent0, upper ? words.word[3] : sent1};
      uint32_t bits = 0;
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        bits |= uint32_t((even[i / 2] >> 16 * (i % 2) & 0xFFFF) >= p.dropout_threshold) << i;
        bits |= uint32_t((odd[i / 2] >> 16 * (i % 2) & 0xFFFF) >= p.dropout_threshold) << (4 + i);
      }
      keep |= bits << 8 * pair;
    }
    return keep;
  }
};

}  // namespace flashwave

// Score modifiers and dropout in the backward, on a tile of S as it comes out of the matrix instructions: a lane has
// one key, and register r is query 8(r >> 2) + 4h + (r & 3). What the gradient needs of a tile is kept from its scores
// to its dS.
#pragma once

#include "kernels/cdna/bwd_config.h"
#include "kernels/cdna/score.h"

namespace flashwave {

inline constexpr float kHuge = 0x1p64f;  // a power of two: multiples stay exact

// How far one is beyond the other, as a bound of exponents: > 0 where a key is seen.
FW_DEVICE float room(int to, int from) {
  constexpr int kFar = 1 << 20;
  const int x = __builtin_elementwise_sub_sat(to, from);
  return (float(x < -kFar ? -kFar : x > kFar ? kFar : x) + 0.5f) * kHuge;
}

// Where a lane's scores are (kernels/common/modify.h): a key, and queries in the registers.
struct LaneIsKey {
  static constexpr int kScores = 16;
  static constexpr bool kPadded = true;
  FW_METHOD static constexpr int query(int r) { return 8 * (r >> 2) + (r & 3); }
  FW_METHOD static constexpr int key(int) { return 0; }
};

template <class C, bool kModified = C::kModified>
struct BackwardModifier {  // nothing
  FW_METHOD explicit BackwardModifier(const Params&) {}
  FW_METHOD float weight_scale() const { return 1.f; }
  FW_METHOD float bounded(float exponent) const { return exponent; }
  FW_METHOD float kept(float dp, int) const { return dp; }
  FW_METHOD uint32_t kept_pair(uint32_t probs, int) const { return probs; }
  FW_METHOD float through_cap(float ds, int) const { return ds; }
};

template <class C>
struct BackwardModifier<C, true> {
  float scale, limit;         // of weights that are not dropped; of exponents
  uint32_t cap_gradients[8];  // of the softcap, as pairs of fp16
  uint32_t keep;              // bit r: not dropped

  FW_METHOD explicit BackwardModifier(const Params& p) {
    scale = 1.f / (1.f - p.dropout_p);
    // Next to a large bias lse is coarse, and an exponent may come out above 0, by numbers that exp2 turns into inf.
    limit = p.bias.data ? 0.f : kInf;
  }
  FW_METHOD float weight_scale() const { return scale; }
  FW_METHOD float bounded(float exponent) const { return __builtin_fminf(exponent, limit); }

  // q.k -> scores in units of log2, of the tile whose first query and key are those of `tile`.
  FW_METHOD void apply(F32x16& s, const TilePlace& tile) {
    const Params& p = parameters_again();
    const int lane = lane_index_again();
    TilePlace at = tile;
    at.query += 4 * (lane >> 5), at.key += lane & 31;
    modify_scores<LaneIsKey>(p, at, s, CapGradients{cap_gradients, p});
    keep = 0xFFFFu;
    if (p.dropout_threshold) keep = tile.key % kKeysPerPhilox == 0 ? kept_together(p, at) : kept_alone(p, at);
  }

  FW_METHOD float kept(float dp, int r) const {
    const uint32_t mask = uint32_t(int32_t(keep << (31 - r)) >> 31);
    return float_of(bits_of(dp) & mask) * scale;
  }
  FW_METHOD uint32_t kept_pair(uint32_t probs, int pair) const {
    const uint32_t low = uint32_t(int32_t(keep << (31 - 2 * pair)) >> 31),
                   high = uint32_t(int32_t(keep << (30 - 2 * pair)) >> 31);
    return probs & permute_bytes(high, low, 0x05040100);
  }
  FW_METHOD float through_cap(float ds, int r) const {
    return ds * float(__builtin_bit_cast(F16x2, cap_gradients[r / 2])[r % 2]);
  }

 private:
  // Eight lanes have the keys that share a Philox call: each makes the calls of two queries, turns them into bits, and
  // they exchange those.
  FW_METHOD static uint32_t kept_together(const Params& p, const TilePlace& at) {
    const DropoutKey dropout = dropout_key(p);
    const int place = at.key & 7;
    uint32_t mine = 0;  // bit 8 i + j: query i of two, key j
    FW_NO_UNROLL for (int i = 0; i < 2; ++i) {
      const Philox4 words = row_of(p, at, at.query + 8 * (place >> 1) + 2 * (place & 1) + i)
                                .dropout_group(dropout, uint32_t(at.key) / kKeysPerPhilox);
      uint32_t bits = 0;
      FW_UNROLL for (int j = 0; j < 8; ++j) {
        bits |= uint32_t((words.word[j / 2] >> 16 * (j % 2) & 0xFFFF) >= p.dropout_threshold) << j;
      }
      mine |= bits << 8 * i;
    }
    const uint32_t mirrored = lane_moved<0x141>(mine);  // row_half_mirror: the other four, last first
    const auto bits_of_key = [&](uint32_t both, int lane) {
      return ((both >> place & 1) | (both >> (7 + place) & 2)) << 2 * lane;
    };
    uint32_t near = bits_of_key(lane_moved<0x00>(mine), 0), far = bits_of_key(lane_moved<0x00>(mirrored), 3);
    near |= bits_of_key(lane_moved<0x55>(mine), 1), far |= bits_of_key(lane_moved<0x55>(mirrored), 2);
    near |= bits_of_key(lane_moved<0xAA>(mine), 2), far |= bits_of_key(lane_moved<0xAA>(mirrored), 1);
    near |= bits_of_key(lane_moved<0xFF>(mine), 3), far |= bits_of_key(lane_moved<0xFF>(mirrored), 0);
    return place < 4 ? near | far << 8 : far | near << 8;
  }
  // The keys of a wave do not begin with a multiple of 8: after a left pad.
  FW_METHOD static uint32_t kept_alone(const Params& p, const TilePlace& at) {
    const DropoutKey dropout = dropout_key(p);
    uint32_t bits = 0;
    FW_NO_UNROLL for (int r = 0; r < 16; ++r) {
      bits |= uint32_t(!row_of(p, at, at.query + LaneIsKey::query(r)).dropped(dropout, uint32_t(at.key))) << r;
    }
    return bits;
  }
};

}  // namespace flashwave

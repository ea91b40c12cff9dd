// Score modifiers and dropout in the backward, on a tile of S as it comes out of the matrix instructions: a lane has
// one key, and register r is query 8(r >> 2) + 4h + (r & 3). What the gradient needs of a tile is kept from its scores
// to its dS.
#pragma once

#include "kernels/cdna/bwd_config.h"
#include "kernels/common/score.h"

namespace flashwave {

inline constexpr float kHuge = 0x1p64f;  // a power of two: multiples stay exact

// How far one is beyond the other, as a bound of exponents: > 0 where a key is seen.
FW_DEVICE float room(int to, int from) {
  constexpr int kFar = 1 << 20;
  const int x = __builtin_elementwise_sub_sat(to, from);
  return (float(x < -kFar ? -kFar : x > kFar ? kFar : x) + 0.5f) * kHuge;
}

// Where the tile of a wave lies.
struct TilePlace {
  int batch, head;
  int query, key;  // the first
  int queries, keys;
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

  // q.k -> scores in units of log2. Queries and keys that do not exist count as the nearest ones: their weights are 0.
  FW_METHOD void apply(F32x16& s, const TilePlace& at) {
    const Params& p = parameters_again();
    const int lane = lane_index_again(), half = lane >> 5;
    const int key = at.key + (lane & 31), query = at.query + 4 * half;
    if (p.softcap > 0.f) {
      const float factor = p.softmax_scale / p.softcap, cap = p.softcap * kLog2e;
      FW_UNROLL for (int r = 0; r < 16; r += 2) {
        const float low = tanh_of(s[r] * factor), high = tanh_of(s[r + 1] * factor);
        cap_gradients[r / 2] = F16::pack(1.f - low * low, 1.f - high * high);
        s[r] = cap * low, s[r + 1] = cap * high;
      }
    } else {
      const float factor = p.softmax_scale * kLog2e;
      FW_UNROLL for (int r = 0; r < 16; ++r) s[r] *= factor;
      FW_UNROLL for (int i = 0; i < 8; ++i) cap_gradients[i] = 0x3C003C00;  // 1, 1
    }
    if (p.bias.data) {
      const int column = key < 0 ? 0 : key < at.keys ? key : at.keys - 1;
      const int64_t first = at.batch * p.bias.stride[0] + at.head * p.bias.stride[1] + column * p.bias.stride[3];
      FW_UNROLL for (int r = 0; r < 16; ++r) {
        const int row = query + query_of(r) < at.queries ? query + query_of(r) : at.queries - 1;
        s[r] += in_log2(bias_at(p, first + row * p.bias.stride[2]));
        if (r % 4 == 3) schedule_fence();  // four loads at a time: registers
      }
    }
    if (p.alibi_slopes) {
      const float slope = p.alibi_slopes[at.batch * p.alibi_batch_stride + at.head] * kLog2e;
      const int distance = query + at.keys - at.queries - key;
      FW_UNROLL for (int r = 0; r < 16; ++r) s[r] -= slope * __builtin_fabsf(float(distance + query_of(r)));
    }
    keep = 0xFFFFu;
    if (p.dropout_threshold)
      keep = at.key % kKeysPerPhilox == 0 ? kept_together(p, at, query, key) : kept_alone(p, at, query, key);
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
  FW_METHOD static constexpr int query_of(int r) { return 8 * (r >> 2) + (r & 3); }
  FW_METHOD static ScoreRow row_of(const Params& p, const TilePlace& at, int query) {
    return ScoreRow(p, {at.batch, 0, 0, 0, 0, at.queries, at.keys}, at.head, query);
  }

  // Eight lanes have the keys that share a Philox call: each makes the calls of two queries, turns them into bits, and
  // they exchange those.
  FW_METHOD static uint32_t kept_together(const Params& p, const TilePlace& at, int query, int key) {
    const DropoutKey dropout = dropout_key(p);
    const int place = key & 7;
    uint32_t mine = 0;  // bit 8 i + j: query i of two, key j
    FW_NO_UNROLL for (int i = 0; i < 2; ++i) {
      const Philox4 words = row_of(p, at, query + 8 * (place >> 1) + 2 * (place & 1) + i)
                                .dropout_group(dropout, uint32_t(key) / kKeysPerPhilox);
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
  FW_METHOD static uint32_t kept_alone(const Params& p, const TilePlace& at, int query, int key) {
    const DropoutKey dropout = dropout_key(p);
    uint32_t bits = 0;
    FW_NO_UNROLL for (int r = 0; r < 16; ++r) {
      bits |= uint32_t(!row_of(p, at, query + query_of(r)).dropped(dropout, uint32_t(key))) << r;
    }
    return bits;
  }
};

}  // namespace flashwave

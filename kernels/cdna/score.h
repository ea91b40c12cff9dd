// Score modifiers and dropout on a sub-tile of S^T as it comes out of the matrix instructions.
#pragma once

#include "kernels/cdna/isa.h"
#include "kernels/common/score.h"

namespace flashwave {

// A lane's part of the scores of a sub-tile: register r is key 8(r >> 2) + 4h + (r & 3). Plain: products, scaled in the
// exponent; modified: scores in units of log2. Bit r of keep: not dropped.
struct Scores {
  F32x16 s;
  uint32_t keep;
};
FW_DEVICE constexpr int key_of_register(int r) { return 8 * (r >> 2) + (r & 3); }

// What _modified kernels do to the scores of a wave: one switch after another for the whole sub-tile, all uniform.
struct Modifier {
  const Params& p;
  const int batch, head;
  const int first_query;           // of the wave
  const int rows, keys, diagonal;  // its queries, the sequence's keys, the key that its first query is aligned with

  // key: of the sub-tile's first register row. Queries and keys past the end count as the last: their results are
  // masked.
  // kGradients: and the derivative of the softcap, as pairs of fp16, for the backward.
  template <bool kGradients = false>
  FW_METHOD void apply(Scores& x, int key, [[maybe_unused]] uint32_t* cap_gradients = nullptr) const {
    const int lane = lane_index_again();
    const int query = (lane & 31) < rows ? lane & 31 : rows - 1;
    const Sequence seq = {batch, 0, 0, 0, 0, int64_t{keys} - diagonal + first_query, keys};
    const ScoreRow row(p, seq, head, first_query + query);
    const int first = key + 4 * (lane >> 5), last = keys - 1;
    if (p.softcap > 0.f) {
      const float scale = p.softmax_scale / p.softcap, cap = p.softcap * kLog2e;
      FW_UNROLL for (int r = 0; r < 16; ++r) x.s[r] = cap * tanh_of(x.s[r] * scale);
      if constexpr (kGradients) {
        const float back = 1.f / cap;
        FW_UNROLL for (int r = 0; r < 16; r += 2) {
          const float low = x.s[r] * back, high = x.s[r + 1] * back;
          cap_gradients[r / 2] = F16::pack(1.f - low * low, 1.f - high * high);
        }
      }
    } else {
      const float scale = p.softmax_scale * kLog2e;
      FW_UNROLL for (int r = 0; r < 16; ++r) x.s[r] *= scale;
      if constexpr (kGradients) {
        FW_UNROLL for (int i = 0; i < 8; ++i) cap_gradients[i] = 0x3C003C00;  // 1, 1
      }
    }
    if (p.bias.data) {
      if (p.bias.dtype == abi::kF32)
        add_bias<float>(x, row, first, last);
      else if (p.bias.dtype == abi::kF16)
        add_bias<_Float16>(x, row, first, last);
      else
        add_bias<__bf16>(x, row, first, last);
    }
    if (p.alibi_slopes) {
      const int diagonal = int(row.diagonal) - first;
      const float slope = row.slope * kLog2e;
      FW_UNROLL for (int r = 0; r < 16; ++r) x.s[r] -= slope * __builtin_fabsf(float(diagonal - key_of_register(r)));
    }
    x.keep = p.dropout_threshold ? kept(row, key, first) : 0xFFFFu;
  }

  template <class T>
  FW_METHOD void add_bias(Scores& x, const ScoreRow& row, int first, int last) const {
    const T* const data = static_cast<const T*>(p.bias.data) + row.bias;
    FW_UNROLL for (int r = 0; r < 16; ++r) {
      int key = first + key_of_register(r);
      key = key < 0 ? 0 : key > last ? last : key;
      x.s[r] += in_log2(float(data[key * p.bias.stride[3]]));
      if (r % 4 == 3) schedule_fence();  // four loads at a time: registers
    }
  }

  // Dropout: a lane has 4 of the 8 keys that share a Philox call, the other half of the wave the rest: each half makes
  // every other call and they exchange words.
  FW_METHOD uint32_t kept(const ScoreRow& row, int key, int first) const {
    const DropoutKey dropout = dropout_key(p);
    uint32_t keep = 0;
    if (key % kKeysPerPhilox != 0) {  // paged, with a left pad
      FW_NO_UNROLL for (int r = 0; r < 16; ++r) {
        const int k = first + key_of_register(r);
        const Philox4 words = row.dropout_group(dropout, uint32_t(k) / kKeysPerPhilox);
        const uint32_t low = k & 2 ? words.word[1] : words.word[0], high = k & 2 ? words.word[3] : words.word[2];
        const uint32_t bits = (k & 4 ? high : low) >> 16 * (k & 1) & 0xFFFF;
        keep |= uint32_t(bits >= p.dropout_threshold) << r;
      }
      return keep;
    }
    const bool upper = lane_index_again() >= 32;
    FW_NO_UNROLL for (int pair = 0; pair < 2; ++pair) {
      const Philox4 words = row.dropout_group(dropout, key / kKeysPerPhilox + 2 * pair + (upper ? 1 : 0));
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

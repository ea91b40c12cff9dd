// Score modifiers and dropout on accumulators: s[4 j + 2 i + e] is query `query` + 8 i, key `key` + 8 j + e. Every
// switch is uniform.
#pragma once

#include "kernels/common/score.h"
#include "kernels/hopper/isa.h"

namespace flashwave {

FW_DEVICE float widened(float x) { return x; }
FW_DEVICE float widened(BFloat16 x) { return to_float(x); }
FW_DEVICE float widened(Half x) { return float_of_half(x.bits); }

// Two rows of a block of scores, as this thread has them.
template <int kTileK>
struct ScoreRows {
  const Params& p;
  const ScoreRow row0, row1;
  const int first, last;  // key of s[0], last key of the sequence

  // Queries past the end count as the last: their results are not used.
  FW_METHOD ScoreRows(const Params& params, const Sequence& seq, int head, int query, int key)
      : p(params),
        row0(params, seq, head, min(int64_t{query}, seq.queries - 1)),
        row1(params, seq, head, min(int64_t{query} + 8, seq.queries - 1)),
        first(key),
        last(int(seq.keys) - 1) {}

  // q.k -> scores in units of log2.
  FW_METHOD void modify(float (&s)[kTileK / 2]) const {
    if (p.softcap > 0.f) {
      const float scale = p.softmax_scale / p.softcap, cap = p.softcap * kLog2e;
      FW_UNROLL for (int i = 0; i < kTileK / 2; ++i) s[i] = cap * tanh_of(s[i] * scale);
    } else {
      const float scale = p.softmax_scale * kLog2e;
      FW_UNROLL for (int i = 0; i < kTileK / 2; ++i) s[i] *= scale;
    }
    if (p.bias.data) {
      if (p.bias.dtype == abi::kF32)
        add_bias<float>(s);
      else if (p.bias.dtype == abi::kF16)
        add_bias<Half>(s);
      else
        add_bias<BFloat16>(s);
    }
    if (p.alibi_slopes) {
      const float slope = row0.slope * kLog2e;
      const int diagonal0 = int(row0.diagonal) - first, diagonal1 = int(row1.diagonal) - first;
      FW_UNROLL for (int i = 0; i < kTileK / 2; ++i) s[i] -=
          slope * float(abs((i & 2 ? diagonal1 : diagonal0) - key_of(i)));
    }
  }

  // Weights, packed as pairs of keys, of dropped elements become 0. A pair has one word of the four that Philox gives
  // for 8 keys of a row, and the four lanes that share a row have one each: each lane makes the words of every fourth 8
  // keys, and they transpose them.
  FW_METHOD void drop(uint32_t (&weights)[kTileK / 4]) const {
    const int place = lane_index() & 3, group = first / kKeysPerPhilox;
    const DropoutKey key = dropout_key(p);
    FW_UNROLL for (int row = 0; row < 2; ++row) {
      FW_UNROLL for (int j = 0; j < kTileK / 8; j += 4) {
        Philox4 x = (row ? row1 : row0).dropout_group(key, group + j + place);
        transpose_quad(x.word, place);
        FW_UNROLL for (int i = 0; i < 4; ++i) if (j + i < kTileK / 8)
            weights[(j + i) / 2 * 4 + (j + i) % 2 * 2 + row] &= kept(x.word[i]);
      }
    }
  }

 private:
  FW_METHOD static constexpr int key_of(int i) { return i / 4 * 8 + i % 2; }

  template <class T>
  FW_METHOD void add_bias(float (&s)[kTileK / 2]) const {
    const T *const data0 = static_cast<const T*>(p.bias.data) + row0.bias, *const data1 =
                                                                               static_cast<const T*>(p.bias.data) +
                                                                               row1.bias;
    FW_UNROLL for (int i = 0; i < kTileK / 2; ++i) s[i] +=
        in_log2(widened((i & 2 ? data1 : data0)[min(first + key_of(i), last) * p.bias.stride[3]]));
  }

  FW_METHOD uint32_t kept(uint32_t numbers) const {
    return ((numbers & 0xFFFFu) >= p.dropout_threshold ? 0xFFFFu : 0u) |
           (numbers >> 16 >= p.dropout_threshold ? 0xFFFF0000u : 0u);
  }
};

}  // namespace flashwave

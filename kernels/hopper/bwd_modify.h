// Score modifiers and dropout in the backward, on transposed scores: s[4 j + 2 i + e] is key `key` + 8 i and query
// `query` + 8 j + e of a thread. What the gradient needs of a block is kept from its scores to its dS. Every switch is
// uniform.
#pragma once

#include "kernels/common/score.h"
#include "kernels/hopper/bwd_tasks.h"

namespace flashwave {

template <class C>
struct Modified {
  static constexpr int N = 16;    // scores of a thread
  uint32_t cap_gradients[N / 2];  // of the softcap, as pairs of fp16
  uint32_t keeps;                 // bit 2 (2 j + e) + i: the element is not dropped

  FW_METHOD static Sequence sequence(const BackwardTask& t) { return {t.batch, 0, 0, 0, 0, t.queries, t.keys}; }

  // q.k -> scores in units of log2. query, key: the first of the warpgroup's.
  FW_METHOD void scores(const Params& p, const BackwardTask& t, int head, int query, int key, int thread,
                        float (&s)[N]) {
    if (p.softcap > 0.f) {
      const float scale = p.softmax_scale / p.softcap, cap = p.softcap * kLog2e;
      FW_UNROLL for (int i = 0; i < N; i += 2) {
        const float low = tanh_of(s[i] * scale), high = tanh_of(s[i + 1] * scale);
        cap_gradients[i / 2] = F16::pack(1.f - low * low, 1.f - high * high);
        s[i] = cap * low, s[i + 1] = cap * high;
      }
    } else {
      const float scale = p.softmax_scale * kLog2e;
      FW_UNROLL for (int i = 0; i < N; ++i) s[i] *= scale;
    }
    if (!p.bias.data && !p.alibi_slopes) return;
    const int first_key = key + thread / 32 * 16 + thread % 32 / 4, first_query = query + thread % 4 * 2;
    if (p.bias.data) {
      // Elements that are not there count as the last: their weights are 0.
      FW_UNROLL for (int i = 0; i < N; ++i) {
        const int q = min(first_query + i / 4 * 8 + i % 2, t.queries - 1),
                  k = min(first_key + i / 2 % 2 * 8, t.keys - 1);
        s[i] += in_log2(bias_at(
            p, t.batch * p.bias.stride[0] + head * p.bias.stride[1] + q * p.bias.stride[2] + k * p.bias.stride[3]));
      }
    }
    if (p.alibi_slopes) {
      const float slope = p.alibi_slopes[t.batch * p.alibi_batch_stride + head] * kLog2e;
      const int distance = first_query + t.keys - t.queries - first_key;
      FW_UNROLL for (int i = 0; i < N; ++i) s[i] -= slope * float(abs(distance + i / 4 * 8 + i % 2 - i / 2 % 2 * 8));
    }
  }

  // P. Next to a large bias lse is coarse, and the difference may come out above 0, by numbers that exp turns into inf.
  template <class Keys>
  FW_METHOD void exponentials(const Keys& keys, float (&s)[N], uint32_t (&x)[N / 2]) const {
    FW_UNROLL for (int k = 0; k < N / 8; ++k) {
      const float4 l = keys.lse(k);
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        const float low = s[8 * k + 2 * i] - (i < 2 ? l.x : l.z), high = s[8 * k + 2 * i + 1] - (i < 2 ? l.y : l.w);
        x[4 * k + i] = keys.p.bias.data ? C::Element::pack(exp2_fast(fminf(low, 0.f)), exp2_fast(fminf(high, 0.f)))
                                        : C::Element::pack(exp2_fast(low), exp2_fast(high));
      }
    }
  }

  // The weights that are not dropped. Eight lanes that have the same queries share the numbers of 8 keys of each: a
  // lane makes those of two queries, and they transpose them, words and then halves.
  FW_METHOD void drop(const Params& p, const BackwardTask& t, int head, int query, int key, int thread,
                      const uint32_t (&x)[N / 2], uint32_t (&kept)[N / 2]) {
    keeps = 0xFFFFu;
    if (p.dropout_threshold) {
      const int place = thread % 32 / 4, group = (key + thread / 32 * 16) / kKeysPerPhilox;
      const DropoutKey dropout = dropout_key(p);
      keeps = 0;
      FW_UNROLL for (int half = 0; half < 2; ++half) {
        const int number = 8 * half + place;  // of the 16 (query, 8 keys): 2 (2 j + e) + i
        const ScoreRow row(p, sequence(t), head, query + thread % 4 * 2 + number / 4 * 8 + number / 2 % 2);
        Philox4 r = row.dropout_group(dropout, group + number % 2);
        transpose_quad<8>(r.word, place / 2);
        FW_UNROLL for (int i = 0; i < 4; ++i) {
          const uint32_t mine = r.word[i], others = __shfl_xor_sync(kAllLanes, mine, 4);
          const uint32_t even = place & 1 ? others >> 16 : mine & 0xFFFFu;
          const uint32_t odd = place & 1 ? mine >> 16 : others & 0xFFFFu;
          if (even >= p.dropout_threshold) keeps |= 1u << (8 * half + 2 * i);
          if (odd >= p.dropout_threshold) keeps |= 2u << (8 * half + 2 * i);
        }
      }
    }
    // x[i] has the pair e = 0, 1 of (j, i % 2): bits 4 j + i % 2 and 4 j + 2 + i % 2.
    FW_UNROLL for (int i = 0; i < N / 2; ++i) kept[i] = x[i] & pair_mask(i);
  }
  FW_METHOD uint32_t pair_mask(int i) const {
    return (keeps >> (i / 2 * 4 + i % 2) & 1 ? 0xFFFFu : 0u) |
           (keeps >> (i / 2 * 4 + 2 + i % 2) & 1 ? 0xFFFF0000u : 0u);
  }

  // dS = P (dP' - delta) times the gradient of the softcap; dP' is 0 where an element is dropped, else dP / (1 - p).
  template <class Keys>
  FW_METHOD void score_gradients(const Keys& keys, const float (&dp)[N], const uint32_t (&probs)[N / 2],
                                 uint32_t (&x)[N / 2]) const {
    const Params& p = keys.p;
    const float scale = 1.f / (1.f - p.dropout_p);
    FW_UNROLL for (int k = 0; k < N / 8; ++k) {
      const float4 d = keys.delta(k);
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        const int pair = 4 * k + i;
        float low = dp[2 * pair], high = dp[2 * pair + 1];
        if (p.dropout_threshold) {
          const uint32_t mask = pair_mask(pair);
          low = mask & 0xFFFFu ? low * scale : 0.f, high = mask >> 16 ? high * scale : 0.f;
        }
        low = (low - (i < 2 ? d.x : d.z)) * C::Element::low(probs[pair]);
        high = (high - (i < 2 ? d.y : d.w)) * C::Element::high(probs[pair]);
        if (p.softcap > 0.f) low *= F16::low(cap_gradients[pair]), high *= F16::high(cap_gradients[pair]);
        x[pair] = C::Element::pack(low, high);
      }
    }
  }
};

}  // namespace flashwave

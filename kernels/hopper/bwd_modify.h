// Score modifiers and dropout in the backward, on transposed scores: s[4 j + 2 i + e] is key `key` + 8 i and query
// `query` + 8 j + e of a thread. What the gradient needs of a block is kept from its scores to its dS. Every switch is
// uniform.
#pragma once

#include "kernels/hopper/bwd_tasks.h"
#include "kernels/hopper/score.h"
#include "kernels/nvidia/scores.h"

namespace flashwave {

// N: scores of a thread.
template <class C, int N>
struct Modified {
  uint32_t cap_gradients[N / 2];  // of the softcap, as pairs of fp16

  FW_METHOD static Sequence sequence(const BackwardTask& t) { return {t.batch, 0, 0, 0, 0, t.queries, t.keys}; }

  // q.k -> scores in units of log2. query, key: the first of the warpgroup's.
  FW_METHOD void scores(const Params& p, const BackwardTask& t, int head, int query, int key, int thread,
                        float (&s)[N]) {
    const TilePlace at = {t.batch,   head,  query + thread % 4 * 2, key + thread / 32 * 16 + thread % 32 / 4,
                          t.queries, t.keys};
    modify_scores<RowsAreKeys<N>, FastTangent>(
        p, at, s, [&](int n, float x, float y) { cap_gradients[n] = F16::pack(1.f - x * x, 1.f - y * y); });
  }

  // Whether `scores` only multiplies by the scale: then `exponentials` can do it.
  FW_METHOD static bool only_scales(const Params& p) { return !(p.softcap > 0.f) && !p.bias.data && !p.alibi_slopes; }

  // P = 2^(c s - lse).
  template <class Keys>
  FW_METHOD void exponentials(const Keys& keys, const float (&s)[N], float c, uint32_t (&x)[N / 2]) const {
    const auto lse = [&](int k) { return keys.lse(k); };
    // Next to a large bias lse is coarse, and the difference may come out above 0, by numbers that exp turns into inf.
    const auto limited = [](int, float low, float high, float a, float b) {
      return C::Element::pack(exp2_fast(fminf(low - a, 0.f)), exp2_fast(fminf(high - b, 0.f)));
    };
    const auto plain = [c](int, float low, float high, float a, float b) {
      return C::Element::pack(exp2_fast(multiply_add(low, c, -a)), exp2_fast(multiply_add(high, c, -b)));
    };
    if (keys.p.bias.data) {
      each_pair(s, lse, limited, x);
    } else {
      each_pair(s, lse, plain, x);
    }
  }

  // Which of a thread's elements are not dropped. Eight lanes that have the same queries share the numbers of 8 keys of
  // each: a lane makes those of N / 8 of the N (query, 8 keys) and compares them, and the eight transpose the outcome,
  // bit by bit: 3 exchanges of a word.
  FW_METHOD static uint32_t draw(const Params& p, const BackwardTask& t, int head, int query, int key,
                                 uint32_t thread) {
    // Of the lane at `place` (bits e, i, h): in its g-th call query 8 (2 g + h) + e and the i-th 8 keys.
    const uint32_t place = thread % 32 / 4, group = (uint32_t(key) + thread / 32 * 16) / kKeysPerPhilox;
    const DropoutTable table = dropout_table(p, ScoreRow(p, sequence(t), head, 0).batch_head);
    const DropoutCompare compare(p.dropout_threshold);
    DropoutTable::Row rows[N / 8];
    DropoutTable::Column columns[N / 8];
    FW_UNROLL for (int g = 0; g < N / 8; ++g) {
      rows[g] = table.row(query + thread % 4 * 2 + 16 * g + place / 4 * 8 + place % 2);
      columns[g] = table.column(group + place / 2 % 2);
    }
    uint32_t keeps = 0;
    Philox4 r[N / 8];
    table.numbers(rows, columns, r);
    FW_UNROLL for (int i = 0; i < N / 2; ++i) keeps = compare.kept(keeps, r[i / 4].word[i % 4]);
    // Word n of the calls has left its bits at 16 - N / 2 + n and, of its upper half, 16 above. The three bits of a
    // key's number in its 8 (half, and two of the word) change places with those of the lane.
    keeps = permute_bytes(exchange(keeps, 4), keeps, thread & 4 ? 0x3276 : 0x5410);
    return exchange_bits<2>(exchange_bits<1>(keeps, 8, thread & 8), 16, thread & 16);
  }
  // The weights that are not dropped: of x[n], a pair e = 0, 1, tell bits 16 - N / 2 + n and 16 above.
  FW_METHOD static void drop(uint32_t keeps, const uint32_t (&x)[N / 2], uint32_t (&kept)[N / 2]) {
    FW_UNROLL for (int n = 0; n < N / 2; ++n) kept[n] = x[n] & halves_of_signs(keeps << (N / 2 - 1 - n));
  }

  // dS = P (dP' - delta) times the gradient of the softcap; dP' is 0 where an element is dropped, else dP / (1 - p).
  // kept: P where it is not dropped.
  template <class Keys>
  FW_METHOD void score_gradients(const Keys& keys, const float (&dp)[N], const uint32_t (&probs)[N / 2],
                                 const uint32_t (&kept)[N / 2], uint32_t (&x)[N / 2]) const {
    using Element = typename C::Element;
    const auto delta = [&](int k) { return keys.delta(k); };
    // Each switch once, and not at every pair.
    const auto make = [&](const auto& gradient) {
      if (keys.p.softcap > 0.f) {
        each_pair(
            dp, delta,
            [&](int n, float low, float high, float a, float b) {
              gradient(n, low, high, a, b);
              return Element::pack(low * F16::low(cap_gradients[n]), high * F16::high(cap_gradients[n]));
            },
            x);
      } else {
        each_pair(
            dp, delta,
            [&](int n, float low, float high, float a, float b) {
              gradient(n, low, high, a, b);
              return Element::pack(low, high);
            },
            x);
      }
    };
    if (keys.p.dropout_threshold) {
      const float scale = 1.f / (1.f - keys.p.dropout_p);
      make([&](int n, float& low, float& high, float a, float b) {
        low = low * scale * Element::low(kept[n]) - a * Element::low(probs[n]);
        high = high * scale * Element::high(kept[n]) - b * Element::high(probs[n]);
      });
    } else {
      make([&](int n, float& low, float& high, float a, float b) {
        low = (low - a) * Element::low(probs[n]), high = (high - b) * Element::high(probs[n]);
      });
    }
  }

 private:
  // x[n] = f(n, the pair s[2 n], s[2 n + 1], the numbers of its queries), which numbers(k) has for 8 scores.
  template <class Numbers, class F>
  FW_METHOD static void each_pair(const float (&s)[N], const Numbers& numbers, const F& f, uint32_t (&x)[N / 2]) {
    FW_UNROLL for (int k = 0; k < N / 8; ++k) {
      const float4 a = numbers(k);
      FW_UNROLL for (int i = 0; i < 4; ++i) x[4 * k + i] =
          f(4 * k + i, s[8 * k + 2 * i], s[8 * k + 2 * i + 1], i < 2 ? a.x : a.z, i < 2 ? a.y : a.w);
    }
  }
};

}  // namespace flashwave

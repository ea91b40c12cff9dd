// Score modifiers on an accumulator, however it lies: softcap, bias and ALiBi of all scores that a thread has of a
// tile, one switch after another, each uniform. ScoreRow (score.h) is the same for a score by itself.
#pragma once

#include "kernels/common/score.h"

namespace flashwave {

// A thread's scores in a tile: those of the sequence's query `query` and key `key`, and of others around it, which a
// layout names.
struct TilePlace {
  int batch, head;
  int query, key;
  int queries, keys;  // of the sequence
};

// One of its queries, for the numbers of dropout.
FW_DEVICE ScoreRow row_of(const Params& p, const TilePlace& at, int query) {
  return ScoreRow(p, {at.batch, 0, 0, 0, 0, at.queries, at.keys}, at.head, query);
}

FW_DEVICE float bias_value(const float* data, int64_t at) { return data[at]; }
FW_DEVICE float bias_value(const Half* data, int64_t at) { return float_of_half(data[at].bits); }
FW_DEVICE float bias_value(const BFloat16* data, int64_t at) { return to_float(data[at]); }

// Queries and keys past the end count as the last, and keys before the first as that: their results are masked, or not
// stored.
template <class Layout, class T, class Scores>
FW_DEVICE void add_bias(const T* data, const Params& p, const TilePlace& at, Scores& s) {
  const int last_query = at.queries - 1, last_key = at.keys - 1;
  data += at.batch * p.bias.stride[0] + at.head * p.bias.stride[1];
  FW_UNROLL for (int i = 0; i < Layout::kScores; ++i) {
    int query = at.query + Layout::query(i), key = at.key + Layout::key(i);
    query = query < last_query ? query : last_query;
    key = key < last_key ? key : last_key;
    if (Layout::kPadded) key = key < 0 ? 0 : key;
    s[i] += in_log2(bias_value(data, query * p.bias.stride[2] + key * p.bias.stride[3]));
    if (i % 4 == 3) schedule_fence();  // four loads at a time: registers
  }
}

// Minus slope times the distance from the diagonal. Lengths below 2^24 are exact in fp32, and the others rounded once.
template <class Layout, class Scores>
FW_DEVICE void add_alibi(const Params& p, const TilePlace& at, Scores& s) {
  const float slope = p.alibi_slopes[at.batch * p.alibi_batch_stride + at.head] * kLog2e;
  const float distance = float(at.query + at.keys - at.queries - at.key);
  FW_UNROLL for (int i = 0; i < Layout::kScores; ++i) {
    s[i] -= slope * __builtin_fabsf(distance + float(Layout::query(i) - Layout::key(i)));
  }
}

// tanh, for the softcap; GPUs with an instruction for it may take that.
struct ExactTangent {
  FW_METHOD static float of(float x) { return tanh_of(x); }
};

// q.k -> scores in units of log2. Layout: the number of a thread's scores, kScores, and how many queries and keys after
// those of `at` score i is, query(i) and key(i); whether some key may be before the first one, in a tile with the end
// of a left pad, kPadded. capped(n, x, y): takes the tangents of a softcap for scores 2 n and 2 n + 1, of whose squares
// the backward makes its gradient.
template <class Layout, class Tangent = ExactTangent, class Scores, class Capped>
FW_DEVICE void modify_scores(const Params& p, const TilePlace& at, Scores& s, const Capped& capped) {
  if (p.softcap > 0.f) {
    const float scale = p.softmax_scale / p.softcap, cap = p.softcap * kLog2e;
    FW_UNROLL for (int i = 0; i < Layout::kScores; i += 2) {
      const float x = Tangent::of(s[i] * scale), y = Tangent::of(s[i + 1] * scale);
      s[i] = cap * x, s[i + 1] = cap * y;
      capped(i / 2, x, y);
    }
  } else {
    const float scale = p.softmax_scale * kLog2e;
    FW_UNROLL for (int i = 0; i < Layout::kScores; ++i) s[i] *= scale;
  }
  if (p.bias.data) {
    if (p.bias.dtype == abi::kF32)
      add_bias<Layout>(static_cast<const float*>(p.bias.data), p, at, s);
    else if (p.bias.dtype == abi::kF16)
      add_bias<Layout>(static_cast<const Half*>(p.bias.data), p, at, s);
    else
      add_bias<Layout>(static_cast<const BFloat16*>(p.bias.data), p, at, s);
  }
  if (p.alibi_slopes) add_alibi<Layout>(p, at, s);
}
template <class Layout, class Tangent = ExactTangent, class Scores>
FW_DEVICE void modify_scores(const Params& p, const TilePlace& at, Scores& s) {
  modify_scores<Layout, Tangent>(p, at, s, [](int, float, float) {});
}

}  // namespace flashwave

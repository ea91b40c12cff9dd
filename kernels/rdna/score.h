// Score modifiers and dropout on accumulators. The loops over an accumulator's registers are not unrolled, as what they
// do for one score is long: each turn takes register 0 and puts the result behind register 7.
#pragma once

#include "kernels/common/score.h"
#include "kernels/rdna/isa.h"

namespace flashwave {

FW_DEVICE F32x8 shifted_in(F32x8 s, float last) {
  s = __builtin_shufflevector(s, s, 1, 2, 3, 4, 5, 6, 7, 0);
  s[7] = last;
  return s;
}

// The queries and keys of a 16 x 16 tile of S^T: this lane's query, and the key of an accumulator's register 0.
struct TilePlace {
  int64_t query, key;
};

// The parameters that scores and dropout depend on.
FW_DEVICE Params score_parameters() {
  const FW_CONSTANT Params& from = arguments_again().params;
  Params p;
  p.softmax_scale = from.softmax_scale;
  p.softcap = from.softcap;
  p.bias.data = from.bias.data;
  p.bias.dtype = from.bias.dtype;
  FW_UNROLL for (int i = 0; i < 4; ++i) p.bias.stride[i] = from.bias.stride[i];
  p.alibi_slopes = from.alibi_slopes;
  p.alibi_batch_stride = from.alibi_batch_stride;
  p.heads_q = from.heads_q;
  p.dropout_threshold = from.dropout_threshold;
  return p;
}

// q.k -> score in units of log2, -inf of keys outside of [first, end).
FW_DEVICE void modify_scores(const Sequence& seq, int head, TilePlace at, int first, int end, F32x8& s) {
  const Params p = score_parameters();
  const ScoreRow row(p, seq, head, at.query);
  FW_NO_UNROLL for (int r = 0; r < 8; ++r) {
    const int key = int(at.key) + kRowsOfRegister * r;
    float score = -kInf;
    if (key >= first && key < end) score = row.modified(s[0], key);
    s = shifted_in(s, score);
    hold(s);
  }
}

// Weights of dropped elements become 0.
FW_DEVICE void drop_weights(const Sequence& seq, int head, TilePlace at, F32x8& s) {
  const Params p = score_parameters();
  const DropoutKey dropout = dropout_key(p);
  const ScoreRow row(p, seq, head, at.query);
  Philox4 numbers = {};
  int64_t group = -1;
  FW_NO_UNROLL for (int r = 0; r < 8; ++r) {
    const int64_t key = at.key + kRowsOfRegister * r;
    if (r == 0 || key / kKeysPerPhilox != group) {
      group = key / kKeysPerPhilox;
      numbers = row.dropout_group(dropout, group);
    }
    const int word = int(key) % kKeysPerPhilox / 2;
    const uint32_t low = word & 1 ? numbers.word[1] : numbers.word[0],
                   high = word & 1 ? numbers.word[3] : numbers.word[2];
    const uint32_t number = (word & 2 ? high : low) >> (key & 1 ? 16 : 0) & 0xffff;
    s = shifted_in(s, number < p.dropout_threshold ? 0.f : s[0]);
    hold(s);
  }
}

}  // namespace flashwave

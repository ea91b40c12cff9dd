// Score modifiers and dropout on accumulators.
#pragma once

#include "kernels/common/modify.h"
#include "kernels/rdna/isa.h"

namespace flashwave {

// Where a lane's scores are (kernels/common/modify.h): a query, and keys in the registers.
struct LaneIsQuery {
  static constexpr int kScores = 8;
  static constexpr bool kPadded = true;
  FW_METHOD static constexpr int query(int) { return 0; }
  FW_METHOD static constexpr int key(int r) { return kRowsOfRegister * r; }
};

// q.k -> scores in units of log2.
FW_DEVICE void modify_scores(const TilePlace& at, F32x8& s) { modify_scores<LaneIsQuery>(parameters_again(), at, s); }

// Weights of dropped elements become 0. Eight keys share a call of Philox: RDNA4 has those of one in a lane's
// registers, RDNA3 every other one of two.
FW_DEVICE void drop_weights(const TilePlace& at, F32x8& s) {
  const Params& p = parameters_again();
  const DropoutKey dropout = dropout_key(p);
  const ScoreRow row = row_of(p, at, at.query);
  if (__builtin_expect(uniform(at.key) % kKeysPerPhilox != 0, 0)) {  // paged, with a left pad
    FW_NO_UNROLL for (int r = 0; r < 8; ++r) {                       // each turn takes register 0
      const float weight = row.dropped(dropout, uint32_t(at.key + kRowsOfRegister * r)) ? 0.f : s[0];
      s = __builtin_shufflevector(s, s, 1, 2, 3, 4, 5, 6, 7, 0);
      s[7] = weight;
      hold(s);
    }
    return;
  }
  constexpr int kCalls = kRowsOfRegister, kOfCall = 8 / kCalls;
  FW_UNROLL for (int call = 0; call < kCalls; ++call) {
    const Philox4 numbers = row.dropout_group(dropout, (at.key >> 3) + call);
    FW_UNROLL for (int i = 0; i < kOfCall; ++i) {
      const int r = kOfCall * call + i, key = kRowsOfRegister * i + (kCalls > 1 ? at.key & 1 : 0);
      const uint32_t word = numbers.word[kRowsOfRegister * i / 2], number = key & 1 ? word >> 16 : word & 0xFFFF;
      s[r] = number < p.dropout_threshold ? 0.f : s[r];
    }
  }
}

}  // namespace flashwave

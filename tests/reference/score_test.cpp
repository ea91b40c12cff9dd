// What happens to a score, as GPU kernels share it, against the formulas of docs/semantics.md in double.
#include "kernels/common/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace flashwave {
namespace {

constexpr int kBatch = 2, kHeads = 3, kQueries = 7, kKeys = 24;

TEST(Score, TanhIsAccurateNearZeroAndFar) {
  for (const float x : {0.f, 1e-20f, 1e-4f, 0.3f, 0.62f, 0.63f, 1.f, 5.f, 20.f, 200.f}) {
    EXPECT_NEAR(tanh_of(x), std::tanh(double{x}), 3e-7 * std::tanh(double{x}));
    EXPECT_EQ(tanh_of(-x), -tanh_of(x));
  }
}

// Scores in units of log2, for a bias in each type that one may have.
TEST(Score, SoftcapBiasAndAlibi) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> bias(kBatch * kHeads * kQueries * kKeys), slopes(kBatch * kHeads);
  std::vector<uint16_t> half(bias.size()), brain(bias.size());
  for (size_t i = 0; i < bias.size(); ++i) {
    bias[i] = to_float(from_float<BFloat16>(normal(rng)));  // a number that all three types hold
    half[i] = from_float<Half>(bias[i]).bits, brain[i] = from_float<BFloat16>(bias[i]).bits;
  }
  for (float& slope : slopes) slope = std::abs(normal(rng));
  for (int kind = 0; kind < 32; ++kind) {
    Params p{};
    p.heads_q = kHeads, p.softmax_scale = 0.3f;
    if (kind & 1) p.softcap = 1.5f;
    if (kind & 2) p.alibi_slopes = slopes.data(), p.alibi_batch_stride = kHeads;
    const int type = kind >> 2 & 3;
    if (kind & 16) {
      p.bias.data = type == 0 ? static_cast<void*>(bias.data()) : type == 1 ? half.data() : brain.data();
      p.bias.dtype = type == 0 ? abi::kF32 : type == 1 ? abi::kF16 : abi::kBF16;
      p.bias.stride[0] = kHeads * kQueries * kKeys, p.bias.stride[1] = kQueries * kKeys;
      p.bias.stride[2] = kKeys, p.bias.stride[3] = 1;
    }
    Sequence seq{};
    seq.b = 1, seq.queries = kQueries, seq.keys = kKeys;
    for (int query = 0; query < kQueries; ++query) {
      const int head = query % kHeads;
      const ScoreRow row(p, seq, head, query);
      for (int key = 0; key < kKeys; ++key) {
        const float dot = normal(rng) * 4.f;
        double x = double{dot} * double{p.softmax_scale}, gradient = 1;
        if (p.softcap > 0) {
          const double t = std::tanh(x / double{p.softcap});
          x = double{p.softcap} * t, gradient = 1 - t * t;
        }
        if (p.bias.data) x += double{bias[static_cast<size_t>(((1 * kHeads + head) * kQueries + query) * kKeys + key)]};
        if (p.alibi_slopes)
          x -= double{slopes[static_cast<size_t>(kHeads + head)]} * std::abs(query + kKeys - kQueries - key);
        float cap_gradient;
        EXPECT_NEAR(row.score(dot, key, cap_gradient), x, 3e-6 * (1 + std::abs(x)));
        EXPECT_NEAR(cap_gradient, gradient, 1e-6);
        EXPECT_NEAR(row.modified(dot, key), x * M_LOG2E, 5e-6 * (1 + std::abs(x)));
      }
    }
  }
}

TEST(Score, TheLowestBiasStaysFinite) {
  EXPECT_EQ(in_log2(-kLargest), -kLargest);
  EXPECT_EQ(in_log2(-kInf), -kInf);
  EXPECT_EQ(in_log2(1.f), kLog2e);
  EXPECT_EQ(from_log2(-kLargest), -kLargest);
  EXPECT_EQ(from_log2(-kInf), -kInf);
  EXPECT_NEAR(from_log2(2.f), 2 * M_LN2, 1e-6);
}

// One key by itself, groups of 8 keys, and the definition give the same elements; seed and offset may lie in memory.
TEST(Score, DropoutIsThatOfPhilox) {
  const uint64_t state[2] = {0x123456789ABCDEFull, 0xFEDCBA987654321ull};
  int dropped = 0;
  for (const bool in_memory : {false, true}) {
    Params p{};
    p.heads_q = kHeads, p.dropout_heads = kHeads, p.dropout_threshold = 20000;
    if (in_memory) {
      p.dropout_state = state;
    } else {
      p.dropout_seed = state[0], p.dropout_offset = state[1];
    }
    Sequence seq{};
    seq.b = 1, seq.queries = kQueries, seq.keys = kKeys;
    const DropoutKey key = dropout_key(p);
    for (int query = 0; query < kQueries; ++query) {
      const ScoreRow row(p, seq, 2, query);
      const ScoreRow placed = ScoreRow::placed(p, seq, 2, query);
      for (int k = 0; k < kKeys; ++k) {
        const uint32_t bits =
            dropout_bits(state[0], state[1], 1 * kHeads + 2, static_cast<uint32_t>(query), static_cast<uint32_t>(k));
        EXPECT_EQ(row.dropped(key, k), bits < p.dropout_threshold);
        EXPECT_EQ(placed.dropped(key, k), bits < p.dropout_threshold);
        EXPECT_EQ(row.dropout_group(key, k / 8).word[k % 8 / 2] >> (k % 2 * 16) & 0xFFFF, bits);
        dropped += bits < p.dropout_threshold;
      }
    }
  }
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, 2 * kQueries * kKeys);
}

// A piece of a longer sequence counts its queries and keys from where it lies.
TEST(Score, APieceDropsWhatTheWholeDrops) {
  Params whole{};
  whole.heads_q = whole.dropout_heads = kHeads, whole.dropout_threshold = 30000, whole.dropout_seed = 9;
  Params piece = whole;
  piece.positions = 1, piece.position_q = 3, piece.position_k = 5, piece.position_shift = 3 - 5;
  Sequence all{}, part{};
  all.queries = kQueries, all.keys = kKeys, part.queries = kQueries - 3, part.keys = kKeys - 5;
  for (int query = 0; query < kQueries - 3; ++query) {
    for (int key = 0; key < kKeys - 5; ++key) {
      EXPECT_EQ(ScoreRow::placed(piece, part, 1, query).dropped(dropout_key(piece), key),
                ScoreRow::placed(whole, all, 1, query + 3).dropped(dropout_key(whole), key + 5));
    }
  }
}

}  // namespace
}  // namespace flashwave

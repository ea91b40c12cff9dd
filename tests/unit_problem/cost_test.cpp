// Costs against counting pair by pair.
#include "problem/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sample.h"

namespace flashwave::test {
namespace {

struct Lengths {
  int64_t queries, keys;
};

double counted_pairs(const std::vector<Lengths>& batch, int64_t left, int64_t right) {
  double pairs = 0;
  for (const auto& [queries, keys] : batch) {
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        const int64_t distance = j - (i + keys - queries);
        pairs += (left < 0 || distance >= -left) && (right < 0 || distance <= right);
      }
    }
  }
  return pairs;
}

TEST(Cost, DenseMasksMatchACount) {
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    Sample s = Sample::dense();
    fw_attention& a = s.p.a;
    a.seqlen_q = static_cast<int64_t>(random() % 12);
    a.seqlen_k = static_cast<int64_t>(random() % 12);
    a.window_left = static_cast<int64_t>(random() % 16) - 1;
    a.window_right = static_cast<int64_t>(random() % 16) - 1;
    if (random() % 8 == 0) a.window_left = INT64_MAX;
    a.flags = random() % 2 ? FW_CAUSAL : 0;
    const int64_t right = a.flags ? 0 : a.window_right;
    const std::vector<Lengths> batch(2, {a.seqlen_q, a.seqlen_k});
    ASSERT_EQ(cost_of(s.p, true).flops, 2.0 * (8 + 8) * 4 * counted_pairs(batch, a.window_left, right))
        << describe(s.p);
  }
}

TEST(Cost, BackwardCountsFiveProducts) {
  Sample s = Sample::backward();
  s.p.a.dim_v = 4;
  EXPECT_EQ(cost_of(s.p, true).flops, 2.0 * (3 * 8 + 2 * 4) * 4 * (2 * 4 * 6));
}

TEST(Cost, RaggedBatchesCountTheirLengths) {
  Sample s = Sample::varlen();
  s.p.a.flags = FW_CAUSAL;
  EXPECT_EQ(cost_of(s.p, true).flops, 2.0 * 16 * 4 * counted_pairs({{1, 6}, {4, 2}}, -1, 0));
  Sample cached = Sample::cached();
  EXPECT_EQ(cost_of(cached.p, true).flops, 2.0 * 16 * 4 * counted_pairs({{4, 3}, {4, 3}}, -1, -1));
  Sample appended = Sample::appended();
  EXPECT_EQ(cost_of(appended.p, true).flops, 2.0 * 16 * 4 * counted_pairs({{4, 5}, {4, 5}}, -1, -1));
}

TEST(Cost, UnreadableLengthsCountTheirBounds) {
  for (Sample (*make)() : {Sample::varlen, Sample::cached, Sample::paged, Sample::appended, Sample::varlen_backward}) {
    Sample s = make();
    const Cost exact = cost_of(s.p, true), bound = cost_of(s.p, false);
    EXPECT_GE(bound.flops, exact.flops) << describe(s.p);
    EXPECT_GE(bound.bytes, exact.bytes) << describe(s.p);
  }
  Sample s = Sample::varlen();
  EXPECT_EQ(cost_of(s.p, false).flops, 2.0 * 16 * 4 * (5 * 6)) << "total_q * seqlen_k is the least bound";
}

TEST(Cost, BytesOfADenseForward) {
  Sample s = Sample::dense();
  const double rows = 2 * 4 * 4, keys = 2 * 6 * 2;
  EXPECT_EQ(cost_of(s.p, true).bytes, 2 * (rows * 16 + keys * 16) + 4 * rows);
  s.p.a.window_left = 0;  // keys 2..5 are seen: the last 4
  EXPECT_EQ(cost_of(s.p, true).bytes, 2 * (rows * 16 + 2 * 4 * 2 * 16) + 4 * rows);
}

TEST(Cost, BytesOfABackward) {
  Sample s = Sample::backward();
  const double rows = 2 * 4 * 4, keys = 2 * 6 * 2;
  const double inputs = 2 * (rows * (8 + 8 + 8) + keys * 16) + 4 * rows * 2;  // q, o, d_o; k, v; lse, d_lse
  const double outputs = 2 * (rows * 8 + keys * 16);                          // dq; dk, dv
  const double bias = 2 * 4.0 * 4 * 4 * 6, small = 2 * 4.0 * (4 + 8);         // each with its gradient
  EXPECT_EQ(cost_of(s.p, true).bytes, inputs + outputs + bias + small);
}

TEST(Cost, HugeProblemsDoNotOverflow) {
  Sample s = Sample::dense();
  fw_attention& a = s.p.a;
  a.seqlen_q = a.seqlen_k = INT32_MAX;
  const double n = INT32_MAX;
  EXPECT_EQ(cost_of(s.p, true).flops, 2.0 * 16 * 4 * 2 * n * n);
  a.window_left = 0;
  a.flags = FW_CAUSAL;
  EXPECT_EQ(cost_of(s.p, true).flops, 2.0 * 16 * 4 * 2 * n) << "the diagonal alone";
}

TEST(Cost, NothingCostsNothing) {
  Sample s = Sample::dense();
  s.p.a.batch = 0;
  EXPECT_EQ(cost_of(s.p, true).flops, 0);
  EXPECT_EQ(cost_of(s.p, true).bytes, 0);
}

}  // namespace
}  // namespace flashwave::test

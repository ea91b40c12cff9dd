// The end of a row, against sums in double.
#include "kernels/common/row_end.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace flashwave {
namespace {

// Natural scores of a row with weights relative to some m, and what becomes of it.
struct Row {
  std::vector<double> scores;
  float m = -kInf, l = 0;

  void sum(float reference) {
    m = reference, l = 0;
    for (const double s : scores) l += static_cast<float>(std::exp2(s * M_LOG2E - double{m}));
  }
};

struct Expected {
  double scale, lse;
};
// sink: natural, -inf for none.
Expected expected(const Row& row, double sink, double dropout) {
  double total = std::exp(sink);
  for (const double s : row.scores) total += std::exp(s);
  // O was summed with weights relative to m.
  return {total == 0 ? 0 : std::exp2(double{row.m}) / total / (1 - dropout), std::log(total)};
}

template <bool kBias>
void expect_end(const Row& row, const float* sink, float dropout) {
  Params p{};
  const float sinks[3] = {99.f, sink ? *sink : 0.f, 99.f};
  if (sink) p.sinks = sinks;
  p.dropout_p = dropout;
  const RowEnd end = finish_row<kBias>(p, 1, row.m, row.l);
  const Expected e = expected(row, sink ? double{*sink} : -INFINITY, kBias ? double{dropout} : 0);
  EXPECT_NEAR(end.scale, e.scale, 1e-5 * e.scale);
  if (std::isinf(e.lse)) {
    EXPECT_EQ(end.lse, -kInf);
  } else {
    EXPECT_NEAR(end.lse, e.lse, 2e-5);
  }
}

TEST(RowEnd, SumsSinksAndDropout) {
  std::mt19937 rng(3);
  std::normal_distribution<double> normal(0, 4);
  for (int n = 0; n < 2000; ++n) {
    Row row;
    row.scores.resize(rng() % 9);
    for (double& s : row.scores) s = normal(rng);
    // The reference need not be the maximum.
    if (!row.scores.empty()) row.sum(static_cast<float>(row.scores[0] * M_LOG2E) + static_cast<float>(rng() % 5));
    const float sink = static_cast<float>(normal(rng)), dropout = static_cast<float>(rng() % 2) * 0.25f;
    expect_end<true>(row, nullptr, dropout);
    expect_end<true>(row, &sink, dropout);
    expect_end<false>(row, &sink, 0.f);
  }
}

TEST(RowEnd, ARowThatSeesNothing) {
  Params p{};
  for (const float m : {-kInf, -kLargest, 0.f}) {
    const RowEnd end = finish_row(p, 0, m, 0.f);
    EXPECT_EQ(end.scale, 0.f);
    EXPECT_EQ(end.lse, -kInf);
  }
  // A sink alone, however low, is what the row amounts to; a sink of -inf is none.
  float sink = -1000.f;
  p.sinks = &sink;
  for (const float m : {-kInf, -kLargest}) EXPECT_NEAR(finish_row(p, 0, m, 0.f).lse, sink, 1e-3f);
  EXPECT_EQ(finish_row(p, 0, -kInf, 0.f).scale, 0.f);
  sink = -kInf;
  EXPECT_EQ(finish_row(p, 0, -kInf, 0.f).lse, -kInf);
  EXPECT_EQ(finish_row(p, 0, -kInf, 0.f).scale, 0.f);
  EXPECT_EQ(sink_of(p, 0), -kInf);
  EXPECT_EQ(reference_of(-kInf), 0.f);
  EXPECT_EQ(reference_of(-3.f), -3.f);
}

TEST(RowEnd, NaNStaysNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), sink = 1.f;
  Params p{};
  for (const float* sinks : {static_cast<const float*>(nullptr), &sink}) {
    p.sinks = sinks;
    EXPECT_TRUE(std::isnan(finish_row(p, 0, 0.f, nan).scale));
    EXPECT_TRUE(std::isnan(finish_row(p, 0, 0.f, nan).lse));
  }
}

// A bias of -kLargest hides keys without being infinite: the log of the sum is that bias, not -inf.
TEST(RowEnd, TheLowestBiasIsFinite) {
  Params p{};
  EXPECT_EQ(finish_row(p, 0, -kLargest, 1.f).lse, -kLargest);
  EXPECT_EQ(finish_row(p, 0, -kLargest, 4.f).scale, 0.25f);
}

TEST(RowEnd, MergedRows) {
  EXPECT_EQ(merged(-kInf, -kInf).lse, -kInf);
  EXPECT_EQ(merged(-kInf, 2.f).add, 1.f);
  EXPECT_EQ(merged(2.f, -kInf).keep, 1.f);
  const MergedRow both = merged(1.f, 3.f);
  EXPECT_NEAR(both.lse, std::log(std::exp(1.) + std::exp(3.)), 1e-6);
  EXPECT_NEAR(both.keep + both.add, 1.f, 1e-6f);
  EXPECT_NEAR(both.add / both.keep, std::exp(2.), 1e-5);
}

}  // namespace
}  // namespace flashwave

// Positions that only shift the window make an ordinary problem; others stay what they are.
#include <gtest/gtest.h>

#include "problem/problem.h"
#include "tests/unit_problem/sample.h"

namespace flashwave {
namespace {

using test::Sample;

// b=2 sq=4 sk=6.
struct Folded {
  bool placed, causal;
  int64_t left, right;
  bool operator==(const Folded&) const = default;
};

template <class Change>
Folded folded(int64_t position_q, int64_t position_k, Change&& change) {
  Sample s = Sample::dense();
  fw_attention& a = s.p.a;
  a.flags = FW_POSITIONS;
  a.position_q = position_q, a.position_k = position_k;
  change(s);
  normalize(s.p);
  return {s.p.placed(), s.p.causal(), a.window_left, a.window_right};
}
constexpr auto kNothing = [](Sample&) {};
constexpr auto kCausal = [](Sample& s) { s.p.a.flags |= FW_CAUSAL; };

TEST(Positions, WithoutAMaskAreNothing) { EXPECT_EQ(folded(7, 3, kNothing), (Folded{false, false, -1, -1})); }

TEST(Positions, CausalBecomesAWindow) {
  EXPECT_EQ(folded(2, 0, kCausal), (Folded{false, true, -1, -1}));     // the last query at the last key
  EXPECT_EQ(folded(3, 0, kCausal), (Folded{false, false, -1, 1}));     // one further
  EXPECT_EQ(folded(100, 0, kCausal), (Folded{false, false, -1, -1}));  // behind all keys
  EXPECT_EQ(folded(5, 0, kCausal), (Folded{false, false, -1, -1}));    // the first query at the last key
  EXPECT_EQ(folded(4, 0, kCausal), (Folded{false, false, -1, 2}));
}

TEST(Positions, BesideTheDiagonalStay) {
  EXPECT_EQ(folded(1, 0, kCausal), (Folded{true, true, -1, -1}));
  EXPECT_EQ(folded(9, 0, [](Sample& s) { s.p.a.window_left = 3; }), (Folded{true, false, 3, -1}));
}

TEST(Positions, MoveBothSidesOfAWindow) {
  const auto window = [](Sample& s) { s.p.a.window_left = 3, s.p.a.window_right = 1; };
  EXPECT_EQ(folded(4, 1, window), (Folded{false, false, 2, 2}));
  EXPECT_EQ(folded(3, 2, window), (Folded{false, false, 4, 0}));
  EXPECT_EQ(folded(5, 4, [](Sample& s) { s.p.a.window_left = INT64_MAX; }), (Folded{false, false, -1, -1}));
}

TEST(Positions, OfAlibiStayUnlessTheyAreTheUsualOnes) {
  const auto alibi = [](Sample& s) { s.p.a.alibi_slopes = s.floats(4); };
  EXPECT_TRUE(folded(3, 0, alibi).placed);
  EXPECT_FALSE(folded(12, 10, alibi).placed);
}

TEST(Positions, OfDropoutStayUnlessTheyAreZero) {
  EXPECT_TRUE(folded(2, 0, [](Sample& s) { s.p.a.dropout_p = 0.5f; }).placed);
  EXPECT_TRUE(folded(12, 10, [](Sample& s) { s.p.a.dropout_p = 0.5f; }).placed);
  EXPECT_FALSE(folded(0, 0, [](Sample& s) { s.p.a.dropout_p = 0.5f; }).placed);
}

TEST(Positions, OfLengthsInMemoryStay) {
  EXPECT_TRUE(folded(2, 0, [](Sample& s) { s.p.a.seqused_k = s.indices({6, 6}); }).placed);
}

TEST(Positions, HeadsOfDropoutCountOnlyWithDropout) {
  Sample s = Sample::dense();
  s.p.a.dropout_first = 3, s.p.a.dropout_heads = 9;
  normalize(s.p);
  EXPECT_FALSE(s.p.counts_elsewhere());
  s.p.a.dropout_p = 0.5f, s.p.a.dropout_first = 3;
  normalize(s.p);
  EXPECT_TRUE(s.p.counts_elsewhere());
}

}  // namespace
}  // namespace flashwave

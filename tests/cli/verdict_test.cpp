// The verdict must fail what is wrong: every test plants one error in an otherwise good answer.
#include "verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace flashwave::cli {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Readback values(std::vector<float> v) {
  Readback r;
  r.untouched.assign(v.size(), 0);
  r.value = std::move(v);
  return r;
}

struct Scene {
  Readback out = values({1.0f, -2.0f, 0.5f, -kInf});
  Readback reference = values({1.0f, -2.0f, 0.5f, -kInf});
  Readback naive = values({1.001f, -2.0f, 0.5f, -kInf});
  std::vector<Writing> writing = std::vector<Writing>(4, Writing::kMust);
  Rule rule{2.0, 1e-6};

  Judgement judged() const { return judge("o", out, reference, naive, writing, rule); }
};

TEST(Verdict, GoodAnswerPasses) {
  const Judgement j = Scene().judged();
  EXPECT_TRUE(j.ok) << j.reason;
  EXPECT_EQ(j.error, 0);
  EXPECT_NEAR(j.naive_error, 1e-3, 1e-6);
}

TEST(Verdict, ErrorUpToTwiceTheNaiveOnePassesAndMoreFails) {
  Scene s;
  s.out.value[1] = -2.0019f;
  EXPECT_TRUE(s.judged().ok);
  s.out.value[1] = -2.0021f;
  EXPECT_FALSE(s.judged().ok);
  EXPECT_NE(s.judged().reason.find("element 1"), std::string::npos);
  s.rule.factor = 3;
  EXPECT_TRUE(s.judged().ok);
}

TEST(Verdict, WithoutNaiveErrorOnlyTheFloorIsLeft) {
  Scene s;
  s.naive = s.reference;
  s.out.value[2] = 0.5f + 5e-7f;
  EXPECT_TRUE(s.judged().ok);
  s.out.value[2] = 0.5f + 5e-6f;
  EXPECT_FALSE(s.judged().ok);
}

TEST(Verdict, NonFiniteValuesMustMatch) {
  for (const float planted : {kNan, kInf, -kInf}) {
    Scene s;
    s.out.value[0] = planted;
    EXPECT_FALSE(s.judged().ok) << planted;
  }
  Scene finite;
  finite.out.value[3] = -1e30f;
  EXPECT_FALSE(finite.judged().ok);
  Scene sign;
  sign.out.value[3] = kInf;
  EXPECT_FALSE(sign.judged().ok);
}

TEST(Verdict, ANaiveThatOverflowsGivesNoSlack) {
  Scene s;
  s.naive.value[1] = kInf;
  s.out.value[1] = -3.0f;
  EXPECT_FALSE(s.judged().ok);
}

TEST(Verdict, PoisonLeftBehindFails) {
  Scene s;
  s.out.untouched[2] = 1;
  s.out.value[2] = kNan;
  EXPECT_FALSE(s.judged().ok);
  EXPECT_NE(s.judged().reason.find("never written"), std::string::npos);
}

TEST(Verdict, WritingWhereNothingBelongsFails) {
  Scene s;
  s.writing[3] = Writing::kMustNot;
  s.reference.untouched[3] = 1;
  EXPECT_FALSE(s.judged().ok);
  s.out.untouched[3] = 1;
  EXPECT_TRUE(s.judged().ok) << s.judged().reason;
}

TEST(Verdict, RowsOfNoSequenceAreFilledExactly) {
  for (const Writing writing : {Writing::kZero, Writing::kMinusInfinity}) {
    const float value = writing == Writing::kZero ? 0.f : -kInf;
    Scene s;
    s.writing[3] = writing;
    s.reference.value[3] = s.naive.value[3] = s.out.value[3] = value;
    EXPECT_TRUE(s.judged().ok) << s.judged().reason;
    s.out.value[3] = 1e-9f;
    EXPECT_FALSE(s.judged().ok);
    s.out.value[3] = value, s.out.untouched[3] = 1;
    EXPECT_FALSE(s.judged().ok);
    s.out.untouched[3] = 0, s.reference.value[3] = 1.f;
    EXPECT_FALSE(s.judged().ok);
  }
}

TEST(Verdict, ElsewhereTheReferenceDecides) {
  Scene s;
  s.writing[2] = Writing::kAsReference;
  s.reference.untouched[2] = 1;
  EXPECT_FALSE(s.judged().ok);
  s.out.untouched[2] = 1;
  EXPECT_TRUE(s.judged().ok);
}

TEST(Verdict, AReferenceThatDidNotWriteIsNoYardstick) {
  Scene s;
  s.out.untouched[0] = s.reference.untouched[0] = 1;
  EXPECT_FALSE(s.judged().ok);
}

TEST(Verdict, SizesMustAgree) {
  Scene s;
  s.out = values({1.0f});
  EXPECT_FALSE(s.judged().ok);
}

TEST(Verdict, FloorsAreTight) {
  EXPECT_DOUBLE_EQ(tolerance_floor(FW_F32, 3.0, 0.5), 4e-6);
  EXPECT_DOUBLE_EQ(tolerance_floor(FW_BF16, 1.5, 0.5), 0.5 / 128);
  EXPECT_DOUBLE_EQ(tolerance_floor(FW_F16, 1.5, 1.0), 1.0 / 1024);
  EXPECT_DOUBLE_EQ(tolerance_floor(FW_F16, 0, 1.0), 0);
}

TEST(Verdict, GradientsHaveTheirOwnRule) {
  const Geometry g = make_geometry(parse_case("op=bwd sq=2 d=2 dtype=bf16 sinks=1 dsinks=1"));
  const Readback reference = values({1.5f, 0.5f});
  EXPECT_DOUBLE_EQ(rule_of(g, kDQ, reference, 8.0).factor, 3.0);
  EXPECT_DOUBLE_EQ(rule_of(g, kDQ, reference, 8.0).atol, 1.0 / 128);
  EXPECT_DOUBLE_EQ(rows_summed(g, kDSinks), double(g.problem.b * 2));
  EXPECT_DOUBLE_EQ(rule_of(g, kDSinks, reference, 8.0).atol, 8 * 0.25 / 128 * std::sqrt(rows_summed(g, kDSinks) * 2));
  EXPECT_DOUBLE_EQ(rule_of(g, kO, reference, 0).factor, 2.0);
  EXPECT_DOUBLE_EQ(rule_of(g, kLse, reference, 0).atol, 2.5e-6);
}

TEST(Verdict, RaggedRowsOutsideSequencesMustStayUntouched) {
  const Geometry g = make_geometry(parse_case("op=bwd layout=varlen varlenlens=2:3,1:0 hq=2 d=4"));
  const auto expect_rows = [&](TensorId id, int64_t owned) {
    const View& v = g.view[id];
    const std::vector<Writing> writing = expected_writing(g, id);
    ASSERT_EQ(int64_t(writing.size()), v.count());
    ASSERT_GT(v.shape[1], owned);
    for (size_t i = 0; i < writing.size(); ++i) {
      const int64_t row = int64_t(i) / (v.shape[2] * v.shape[3]);
      EXPECT_EQ(writing[i], row < owned ? Writing::kMust : Writing::kMustNot);
    }
  };
  expect_rows(kDQ, 3);
  expect_rows(kDK, 3);
}

}  // namespace
}  // namespace flashwave::cli

// The reference forward against the oracle: every output number is the oracle's, rounded once.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/cases.h"
#include "tests/reference/harness.h"

namespace oracle {
namespace {

constexpr Type kTypes[] = {Type::kF32, Type::kF16, Type::kBF16};

// Rounding goes from fp64 through fp32 to the type, so a hair more than half an ulp; fp16 may be subnormal.
double forward_error(const Result& expected, const Problem& actual, Type type) {
  const double rounding = 1.0001 * half_ulp(type), tiny = type == Type::kF16 ? 0x1p-25 : 1e-13;
  return std::fmax(worst(expected.o, actual.get("o"), rounding, tiny),
                   worst(expected.lse, actual.get("lse"), 1.0001 * half_ulp(Type::kF32), 1e-13));
}

TEST(Forward, MatchesOracle) {
  for (const Type type : kTypes) {
    for (const NamedCase& c : attention_cases(type)) {
      SCOPED_TRACE(c.name + " type " + std::to_string(static_cast<int>(type)));
      const Problem problem(c.problem);
      problem.run(flashwave::reference_fwd);
      EXPECT_LE(forward_error(forward(c.problem), problem, type), 1.0);
    }
  }
}

TEST(Forward, ProbsAreTheSignedSoftmax) {
  for (const NamedCase& c : attention_cases(Type::kF32)) {
    if (c.problem.seqlen_k == 0) continue;
    SCOPED_TRACE(c.name);
    const Problem problem(c.problem);
    problem.run(flashwave::reference_fwd);
    const std::vector<Real> expected = forward(c.problem).probs, actual = problem.get("probs");
    EXPECT_LE(worst(expected, actual, 1.0001 * half_ulp(Type::kF32), 1e-13), 1.0);
    for (size_t x = 0; x < expected.size(); ++x) EXPECT_EQ(std::signbit(expected[x]), std::signbit(actual[x])) << x;
  }
}

TEST(Forward, DroppedZeroIsNegativeZero) {
  Case c;
  c.dropout_p = 0.5f;
  fill(c, 3);
  add_bias(c, {true, true, true, true});
  c.bias.at[0] = -std::numeric_limits<Real>::infinity();
  const Problem problem(c);
  problem.run(flashwave::reference_fwd);
  const std::vector<Real> probs = problem.get("probs");
  int negative = 0;
  for (const Real x : probs) {
    EXPECT_EQ(x, 0);
    negative += std::signbit(x);
  }
  EXPECT_GT(negative, 0);
  EXPECT_LT(negative, static_cast<int>(probs.size()));
}

TEST(Forward, EmptyRows) {
  Case c;  // seven queries, four keys, causal: the first three see nothing
  c.seqlen_q = 7, c.seqlen_k = 4, c.causal = true, c.batch = c.heads_q = c.heads_k = 1;
  fill(c, 9);
  for (const bool sinks : {false, true}) {
    c.sinks.clear();
    if (sinks) add_sinks(c);
    const Problem problem(c);
    problem.run(flashwave::reference_fwd);
    const std::vector<Real> o = problem.get("o"), lse = problem.get("lse");
    for (int64_t i = 0; i < 7; ++i) {
      const bool empty = i < 3;
      if (empty) {
        EXPECT_EQ(lse[i], sinks ? c.sinks[0] : -std::numeric_limits<Real>::infinity());
      } else {
        EXPECT_TRUE(std::isfinite(lse[i]));
      }
      for (int64_t d = 0; d < c.dim_v; ++d) EXPECT_EQ(o[i * c.dim_v + d] == 0, empty);
    }
  }
}

TEST(Forward, NanInputReachesItsRowOnly) {
  Case c;
  c.batch = c.heads_q = c.heads_k = 1;
  fill(c, 4);
  for (int64_t d = 0; d < c.dim_qk; ++d) c.q.at[2 * c.dim_qk + d] = std::numeric_limits<Real>::quiet_NaN();
  const Problem problem(c);
  problem.run(flashwave::reference_fwd);
  const std::vector<Real> lse = problem.get("lse");
  for (int64_t i = 0; i < c.seqlen_q; ++i) EXPECT_EQ(std::isnan(lse[i]), i == 2);
}

TEST(Forward, OptionalOutputsMayBeAbsent) {
  const NamedCase c = attention_cases(Type::kF32).front();
  Problem problem(c.problem);
  problem.params.lse = {};
  problem.params.probs = {};
  problem.run(flashwave::reference_fwd);
  EXPECT_LE(worst(forward(c.problem).o, problem.get("o"), 1.0001 * half_ulp(Type::kF32), 1e-13), 1.0);
  for (const Real x : problem.get("lse")) EXPECT_TRUE(std::isnan(x));
}

TEST(Forward, LongSequenceSpansSeveralTasks) {
  Case c;
  c.batch = 1, c.seqlen_q = 150, c.seqlen_k = 171, c.window_left = 40, c.window_right = 3;
  fill(c, 11);
  const Problem problem(c);
  problem.run(flashwave::reference_fwd, 3);
  EXPECT_LE(forward_error(forward(c), problem, Type::kF32), 1.0);
}

TEST(Forward, SameBitsWithAnyNumberOfThreads) {
  for (const auto kernel : {flashwave::reference_fwd, flashwave::naive_fwd}) {
    for (const NamedCase& c : attention_cases(Type::kBF16)) {
      const Problem one(c.problem), many(c.problem);
      one.run(kernel, 1);
      many.run(kernel, 5);
      EXPECT_EQ(one.buffer("o"), many.buffer("o")) << c.name;
      EXPECT_EQ(one.buffer("lse"), many.buffer("lse")) << c.name;
    }
  }
}

// The comparison above must fail when either side computes something else.
TEST(ForwardGuard, NoticesEveryMutation) {
  const auto cases = attention_cases(Type::kBF16);
  const auto named = [&](const std::string& name) {
    return std::find_if(cases.begin(), cases.end(), [&](const NamedCase& c) { return c.name == name; })->problem;
  };
  const auto error = [](const Case& c, auto&& mutate) {
    Problem problem(c);
    mutate(problem.params);
    problem.run(flashwave::reference_fwd);
    return forward_error(forward(c), problem, c.type);
  };
  EXPECT_GT(error(named("alibi_shared"), [](abi::Params& p) { const_cast<float*>(p.alibi_slopes)[0] *= -1; }), 10);
  EXPECT_GT(error(named("plain"), [](abi::Params& p) { p.softmax_scale *= 1.05f; }), 1.5);
  EXPECT_GT(error(named("causal_more_queries"), [](abi::Params& p) { p.window_right = 1; }), 10);
  EXPECT_GT(error(named("window_both"), [](abi::Params& p) { p.window_left += 1; }), 10);
  EXPECT_GT(error(named("softcap"), [](abi::Params& p) { p.softcap = 0; }), 10);
  EXPECT_GT(error(named("sinks"), [](abi::Params& p) { p.sinks = nullptr; }), 10);
  EXPECT_GT(error(named("dropout"), [](abi::Params& p) { p.dropout_seed += 1; }), 10);
  EXPECT_GT(error(named("dropout"), [](abi::Params& p) { p.dropout_offset += 1; }), 10);
  EXPECT_GT(error(named("dropout"), [](abi::Params& p) { p.dropout_threshold /= 2; }), 10);
  EXPECT_GT(error(named("bias_broadcast_full"), [](abi::Params& p) { p.bias.stride[0] = 0; }), 10);
  EXPECT_GT(error(named("leftpad"), [](abi::Params& p) { p.leftpad_k = nullptr; }), 10);
  EXPECT_GT(error(named("seqused"), [](abi::Params& p) { p.seqused_k = nullptr; }), 10);
  EXPECT_GT(error(named("cache_rows"), [](abi::Params& p) { p.cache_batch_idx = nullptr; }), 10);
}

}  // namespace
}  // namespace oracle

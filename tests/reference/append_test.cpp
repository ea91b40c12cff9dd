// The append pre-pass against the oracle: the cache it leaves, the queries it rotates, and attention over the result.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/cases.h"
#include "tests/reference/harness.h"

namespace oracle {
namespace {

// Cache positions outside the keys in use and the new ones are NaN in the kernel's memory and must stay so.
std::vector<Real> expected_cache(const std::vector<Real>& before, const std::vector<Real>& after,
                                 const std::vector<char>& touched) {
  std::vector<Real> out(after.size(), std::numeric_limits<Real>::quiet_NaN());
  for (size_t x = 0; x < out.size(); ++x) {
    if (touched[x] || after[x] != before[x]) out[x] = after[x];
  }
  return out;
}

TEST(Append, CacheAndQueriesMatchOracle) {
  for (const Type type : {Type::kF32, Type::kF16, Type::kBF16}) {
    for (const NamedCase& c : append_cases(type)) {
      SCOPED_TRACE(c.name + " type " + std::to_string(static_cast<int>(type)));
      const Result expected = forward(c.problem);
      const Problem problem(c.problem);
      problem.run(flashwave::append_kv, 3);
      // Three fp32 roundings of numbers up to about 4, then one to the type.
      const double relative = 1.0001 * half_ulp(type), absolute = 1e-6;
      EXPECT_LE(worst(expected_cache(c.problem.k.at, expected.k_appended, expected.touched.k), problem.get("k"),
                      relative, absolute),
                1.0);
      EXPECT_LE(
          worst(expected_cache(c.problem.v.at, expected.v_appended, expected.touched.v), problem.get("v"), 0, 1e-30),
          1.0);
      if (c.problem.cos.present()) {
        EXPECT_LE(worst(expected.q_rotated, problem.get("q_rotated"), relative, absolute), 1.0);
      }
    }
  }
}

TEST(Append, AttentionOverTheAppendedCacheMatchesOracle) {
  for (const NamedCase& c : append_cases(Type::kF32)) {
    SCOPED_TRACE(c.name);
    const Result expected = forward(c.problem);
    Problem problem(c.problem);
    problem.append_then(flashwave::reference_fwd);
    EXPECT_LE(worst(expected.o, problem.get("o"), 0, 2e-6), 1.0);
    EXPECT_LE(worst(expected.lse, problem.get("lse"), 0, 2e-6), 1.0);
  }
}

TEST(Append, RotationKeepsLengthAndRelativeAngle) {
  // q rotated by m and k by n meet in a product that depends on n - m alone.
  Case c;
  c.batch = 1, c.seqlen_q = c.seqlen_new = 1, c.seqlen_k = 30, c.causal = true, c.seqused_k = {0}, c.dim_qk = 8;
  fill(c, 5);
  add_rotary(c, 8, true, true);
  Real first = 0;
  for (const int used : {0, 7, 20}) {
    c.seqused_k = {used};
    const Problem problem(c);
    problem.run(flashwave::append_kv);
    const std::vector<Real> q = problem.get("q_rotated"), k = problem.get("k");
    Real product = 0;
    for (int d = 0; d < 8; ++d) product += q[d] * k[storage_position(c, c.k, 0, used, 0) + d];
    if (used == 0) first = product;
    EXPECT_NEAR(product, first, 1e-5);
  }
}

TEST(AppendGuard, NoticesEveryMutation) {
  const auto cases = append_cases(Type::kF32);
  const auto error = [&](const std::string& name, auto&& mutate) {
    const Case& c =
        std::find_if(cases.begin(), cases.end(), [&](const NamedCase& n) { return n.name == name; })->problem;
    const Result expected = forward(c);
    Problem problem(c);
    mutate(problem.params);
    problem.append_then(flashwave::reference_fwd);
    return worst(expected.o, problem.get("o"), 0, 2e-6);
  };
  EXPECT_LE(error("halves_causal", [](abi::Params&) {}), 1);
  EXPECT_GT(error("halves_causal", [](abi::Params& p) { p.rotary_interleaved = 1; }), 10);
  EXPECT_GT(error("halves_causal", [](abi::Params& p) { p.rotary_per_row = 0; }), 10);
  EXPECT_GT(error("halves_causal", [](abi::Params& p) { std::swap(p.rotary_cos, p.rotary_sin); }), 10);
  EXPECT_GT(error("halves_causal", [](abi::Params& p) { p.rotary_dim -= 2; }), 10);
  EXPECT_GT(error("leftpad", [](abi::Params& p) { p.leftpad_k = nullptr; }), 10);
}

}  // namespace
}  // namespace oracle

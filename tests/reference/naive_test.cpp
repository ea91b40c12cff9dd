// The naive kernels are the same mathematics, with the error of their type: neither none (then the numeric rule would
// allow nothing) nor more than its rounding explains (then it would allow anything).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/cases.h"
#include "tests/reference/harness.h"

namespace oracle {
namespace {

// max|a - b|; numbers that are NaN or infinite must be so on both sides.
double distance(const std::vector<Real>& a, const std::vector<Real>& b) { return worst(a, b, 0, 1); }

struct Envelope {
  Type type;
  double lowest, highest;  // of max|naive - reference| on numbers of order 1
};
constexpr Envelope kEnvelopes[] = {{Type::kF32, 1e-9, 2e-6}, {Type::kF16, 5e-5, 8e-3}, {Type::kBF16, 5e-4, 6e-2}};

Case mid_size(Type type, bool features) {
  Case c;
  c.type = type;
  c.batch = 2, c.seqlen_q = 48, c.seqlen_k = 64, c.heads_q = 4, c.heads_k = 2, c.dim_qk = 32, c.dim_v = 24;
  c.scale = 0.177f, c.causal = features;
  if (features) c.softcap = 5, c.dropout_p = 0.1f, c.window_left = 20;
  fill(c, 31);
  if (features) {
    add_bias(c, {true, false, false, false}, false);
    add_slopes(c, false);
    add_sinks(c);
  }
  return c;
}

// The same numbers in fp32 storage, so that the yardstick itself is not rounded to the type.
Case upcast(Case c) {
  c.type = Type::kF32;
  c.bias_f32 = true;
  return c;
}

TEST(Naive, ForwardErrorIsThatOfItsType) {
  for (const Envelope& e : kEnvelopes) {
    for (const bool features : {false, true}) {
      const Case c = mid_size(e.type, features);
      const Problem naive(c), exact(upcast(c));
      naive.run(flashwave::naive_fwd);
      exact.run(flashwave::reference_fwd);
      const double error = distance(exact.get("o"), naive.get("o"));
      EXPECT_GT(error, e.lowest) << static_cast<int>(e.type);
      EXPECT_LT(error, e.highest) << static_cast<int>(e.type);
      EXPECT_LT(distance(exact.get("lse"), naive.get("lse")), e.highest);
    }
  }
}

TEST(Naive, GradientErrorIsThatOfItsType) {
  for (const Envelope& e : kEnvelopes) {
    for (const bool features : {false, true}) {
      const Case c = mid_size(e.type, features);
      const Problem naive(c), exact(upcast(c));
      naive.run(flashwave::naive_fwd);
      naive.run(flashwave::naive_bwd);
      exact.run(flashwave::reference_fwd);
      exact.run(flashwave::reference_bwd);
      for (const char* name : {"dq", "dk", "dv"}) {
        const std::vector<Real> expected = exact.get(name);
        Real largest = 0;
        for (const Real x : expected) largest = std::fmax(largest, std::fabs(x));
        const double error = distance(expected, naive.get(name)) / static_cast<double>(largest);
        EXPECT_GT(error, e.lowest / 10) << name << static_cast<int>(e.type);
        EXPECT_LT(error, e.highest) << name << static_cast<int>(e.type);
      }
    }
  }
}

TEST(Naive, EveryCaseIsCloseToTheReference) {
  for (const Envelope& e : kEnvelopes) {
    for (const NamedCase& c : attention_cases(e.type)) {
      const Problem naive(c.problem), reference(c.problem);
      naive.run(flashwave::naive_fwd);
      naive.run(flashwave::naive_bwd);
      reference.run(flashwave::reference_fwd);
      reference.run(flashwave::reference_bwd);
      std::vector<std::string> names = {"o", "lse", "dq", "dk", "dv"};
      if (c.problem.bias.present()) names.push_back("d_bias");
      if (!c.problem.sinks.empty()) names.push_back("d_sinks");
      if (!c.problem.slopes.empty()) names.push_back("d_slopes");
      for (const std::string& name : names) {
        const std::vector<Real> expected = reference.get(name);
        Real largest = 1;
        for (const Real x : expected) largest = std::isfinite(x) ? std::fmax(largest, std::fabs(x)) : largest;
        EXPECT_LT(distance(expected, naive.get(name)), 2 * e.highest * static_cast<double>(largest))
            << c.name << " " << name;
      }
    }
  }
}

TEST(Naive, RoundsWhereTheReferenceDoesNot) {
  const Case c = mid_size(Type::kBF16, false);
  const Problem naive(c), reference(c);
  naive.run(flashwave::naive_fwd);
  reference.run(flashwave::reference_fwd);
  EXPECT_NE(naive.buffer("o"), reference.buffer("o"));
  for (const Real x : naive.get("probs")) EXPECT_EQ(quantize(x, Type::kBF16), x);  // the softmax it holds is bf16
}

}  // namespace
}  // namespace oracle

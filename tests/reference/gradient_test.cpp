// The reference backward against central differences of the oracle's forward, number by number, for every gradient.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/reference/cases.h"
#include "tests/reference/harness.h"

namespace oracle {
namespace {

constexpr Real kNan = std::numeric_limits<Real>::quiet_NaN();

using Gradients = std::map<std::string, std::vector<Real>>;

// The rows of dk or dv that must be 0 where no query reads them: all that a dense or ragged tensor holds for a
// sequence. Everything else keeps its poison: gaps, cache rows of no sequence, page rows without a key.
std::vector<Real> key_gradient_background(const Case& c, const Array& t, int64_t dim) {
  std::vector<Real> out(t.at.size(), kNan);
  for (int64_t b = 0; b < c.batch && c.page_size == 0; ++b) {
    const int64_t rows = c.cu_seqlens_k.empty() ? c.seqlen_k : c.cu_seqlens_k[b + 1] - c.cu_seqlens_k[b];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t h = 0; h < c.heads_k; ++h) {
        for (int64_t d = 0; d < dim; ++d) out[storage_position(c, t, b, row, h) + d] = 0;
      }
    }
  }
  return out;
}

Gradients differences(Case c) {
  const Touched touched = forward(c).touched;
  Gradients g;
  g["dq"].assign(c.q.at.size(), kNan);
  g["dk"] = key_gradient_background(c, c.k, c.dim_qk);
  g["dv"] = key_gradient_background(c, c.v, c.dim_v);
  const auto fill_in = [&](std::vector<Real>& to, Array& x, const std::vector<char>& marked) {
    for (size_t at = 0; at < to.size(); ++at) {
      if (marked[at]) to[at] = derivative(c, x.at[at]);
    }
  };
  fill_in(g["dq"], c.q, touched.q);
  fill_in(g["dk"], c.k, touched.k);
  fill_in(g["dv"], c.v, touched.v);
  g["d_bias"].assign(c.bias.at.size(), 0);
  for (size_t at = 0; at < c.bias.at.size(); ++at) {
    if (touched.bias[at] && std::isfinite(c.bias.at[at])) g["d_bias"][at] = derivative(c, c.bias.at[at]);
  }
  for (Real& x : c.sinks) g["d_sinks"].push_back(derivative(c, x));
  for (Real& x : c.slopes) g["d_slopes"].push_back(derivative(c, x));
  return g;
}

void run_both(Problem& problem, int32_t threads = 1) {
  problem.run(flashwave::reference_fwd, threads);
  problem.run(flashwave::reference_bwd, threads);
}

// The worst gradient in units of `tolerance` times its tensor's largest number (or 1).
double gradient_error(const Gradients& expected, const Problem& actual, double tolerance,
                      std::string* which = nullptr) {
  double result = 0;
  for (const auto& [name, numbers] : expected) {
    if (numbers.empty()) continue;
    Real largest = 1;
    for (const Real x : numbers) largest = std::fmax(largest, std::fabs(x));
    const double error = worst(numbers, actual.get(name), 0, tolerance * static_cast<double>(largest));
    if (which && error > result) *which = name;
    result = std::fmax(result, error);
  }
  return result;
}

// With fp32 storage, o and lse reach the backward rounded to fp32, which moves delta by up to about 1e-7 |dO||O|.
TEST(Gradient, MatchesFiniteDifferences) {
  for (const NamedCase& c : attention_cases(Type::kF32)) {
    Problem problem(c.problem);
    run_both(problem);
    std::string which;
    EXPECT_LE(gradient_error(differences(c.problem), problem, 1e-6, &which), 1.0) << c.name << " " << which;
  }
}

TEST(Gradient, WithoutLseGradient) {
  for (NamedCase& c : attention_cases(Type::kF32)) {
    if (c.name != "plain" && c.name != "everything" && c.name != "causal_more_queries_sinks") continue;
    c.problem.d_lse.at.clear();
    Problem problem(c.problem);
    run_both(problem);
    EXPECT_LE(gradient_error(differences(c.problem), problem, 1e-6), 1.0) << c.name;
  }
}

// Half precision: o enters delta rounded to the type, and the results are rounded to it.
TEST(Gradient, HalfTypesMatchWithinTheirRounding) {
  for (const Type type : {Type::kF16, Type::kBF16}) {
    for (const NamedCase& c : attention_cases(type)) {
      if (c.name != "plain" && c.name != "everything" && c.name != "bias_storage_type" && c.name != "paged") continue;
      Problem problem(c.problem);
      run_both(problem);
      EXPECT_LE(gradient_error(differences(c.problem), problem, 4 * half_ulp(type)), 1.0) << c.name;
    }
  }
}

// A part of the keys with the whole row's o and lse gives that part's share: what a ring of devices relies on.
TEST(Gradient, UsesTheGivenOutputAndLse) {
  Case whole;
  whole.batch = 1, whole.seqlen_k = 8;
  fill(whole, 21);
  Problem full(whole);
  run_both(full);
  const std::vector<Real> dq = full.get("dq"), dk = full.get("dk");
  std::vector<Real> sum(dq.size());
  for (const int64_t first : {0, 4}) {
    Problem part(whole);
    const size_t skip = static_cast<size_t>(first * whole.k.stride[1]);
    for (abi::Tensor* t : {&part.params.k, &part.params.v, &part.params.dk, &part.params.dv}) {
      t->data = static_cast<float*>(t->data) + skip;
    }
    part.params.seqlen_k = 4;
    part.params.o = full.params.o;
    part.params.lse = full.params.lse;
    part.run(flashwave::reference_bwd);
    for (size_t x = 0; x < sum.size(); ++x) sum[x] += part.get("dq")[x];
    const std::vector<Real> dk_part = part.get("dk");
    for (size_t x = skip; x < skip + 4 * whole.k.stride[1]; ++x) EXPECT_EQ(dk_part[x], dk[x]);
  }
  EXPECT_LE(worst(dq, sum, 0, 1e-6), 1.0);
}

TEST(Gradient, AbsentOutputsAreSkipped) {
  const auto cases = attention_cases(Type::kF32);
  const Case& c = cases.back().problem;
  Problem all(c);
  run_both(all);
  for (const std::string& wanted : {"dq", "dk", "dv", "d_bias", "d_sinks", "d_slopes"}) {
    Problem one(c);
    abi::Params& p = one.params;
    if (wanted != "dq") p.dq = {};
    if (wanted != "dk") p.dk = {};
    if (wanted != "dv") p.dv = {};
    if (wanted != "d_bias") p.d_bias = {};
    if (wanted != "d_sinks") p.d_sinks = nullptr;
    if (wanted != "d_slopes") p.d_slopes = nullptr;
    run_both(one);
    for (const std::string& name : {"dq", "dk", "dv", "d_bias", "d_sinks", "d_slopes"}) {
      if (name == wanted) {
        EXPECT_EQ(one.buffer(name), all.buffer(name)) << name;
      } else {
        for (const Real x : one.get(name))
          EXPECT_TRUE(std::isnan(x)) << name << " written, only " << wanted << " wanted";
      }
    }
  }
}

TEST(Gradient, SameBitsWithAnyNumberOfThreads) {
  for (const NamedCase& c : attention_cases(Type::kF32)) {
    Problem one(c.problem), many(c.problem);
    run_both(one, 1);
    run_both(many, 4);
    for (const char* name : {"dq", "dk", "dv"}) EXPECT_EQ(one.buffer(name), many.buffer(name)) << c.name << " " << name;
    if (c.problem.bias.present()) EXPECT_EQ(one.buffer("d_bias"), many.buffer("d_bias")) << c.name;
    if (!c.problem.sinks.empty()) EXPECT_EQ(one.buffer("d_sinks"), many.buffer("d_sinks")) << c.name;
    if (!c.problem.slopes.empty()) EXPECT_EQ(one.buffer("d_slopes"), many.buffer("d_slopes")) << c.name;
  }
}

// The comparison must fail when the backward computes something else than the forward it is compared with.
TEST(GradientGuard, NoticesEveryMutation) {
  const auto cases = attention_cases(Type::kF32);
  const auto named = [&](const std::string& name) {
    return std::find_if(cases.begin(), cases.end(), [&](const NamedCase& c) { return c.name == name; })->problem;
  };
  const auto error = [](const Case& c, auto&& mutate) {
    Problem problem(c);
    problem.run(flashwave::reference_fwd);
    mutate(problem.params);
    problem.run(flashwave::reference_bwd);
    return gradient_error(differences(c), problem, 1e-6);
  };
  EXPECT_LE(error(named("everything"), [](abi::Params&) {}), 1);
  EXPECT_GT(error(named("plain"), [](abi::Params& p) { p.d_lse = {}; }), 100);
  EXPECT_GT(error(named("plain"), [](abi::Params& p) { p.softmax_scale *= 1.001f; }), 10);
  EXPECT_GT(error(named("softcap"), [](abi::Params& p) { p.softcap *= 1.001f; }), 10);
  EXPECT_GT(error(named("dropout"), [](abi::Params& p) { p.dropout_seed ^= 1; }), 100);
  EXPECT_GT(error(named("sinks"), [](abi::Params& p) { static_cast<float*>(p.lse.data)[0] += 0.001f; }), 10);
  EXPECT_GT(error(named("alibi_per_batch"), [](abi::Params& p) { const_cast<float*>(p.alibi_slopes)[0] *= -1; }), 100);
  EXPECT_GT(error(named("bias_broadcast_head"), [](abi::Params& p) { p.bias.stride[0] = 0; }), 100);
  EXPECT_GT(error(named("causal_square"), [](abi::Params& p) { p.window_right = 1; }), 100);
  EXPECT_GT(error(named("positions_causal"), [](abi::Params& p) { p.position_shift += 1; }), 100);
  EXPECT_GT(error(named("positions_alibi"), [](abi::Params& p) { p.position_shift -= 1; }), 100);
  EXPECT_GT(error(named("positions_dropout"), [](abi::Params& p) { p.position_k += 1; }), 100);
  EXPECT_GT(error(named("positions_dropout"), [](abi::Params& p) { p.position_q += 1; }), 100);
  EXPECT_GT(error(named("dropout_of_other_heads"), [](abi::Params& p) { p.dropout_first += 1; }), 100);
}

}  // namespace
}  // namespace oracle

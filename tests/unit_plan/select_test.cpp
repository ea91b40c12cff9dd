#include <gtest/gtest.h>
#include <algorithm>

#include <functional>
#include <string>
#include <string_view>
#include <tuple>

#include "plan/plan.h"
#include "tests/unit_plan/problems.h"

namespace flashwave {
namespace {

constexpr uint32_t kBoth = kIsaAvx2 | kIsaAvx512;
constexpr KernelRow kRow = [] {
  KernelRow row{};
  row.name = "a_kernel";
  row.source = "";
  row.device = "cpu";
  row.op = Op::kForward;
  row.dtypes = kRowF16 | kRowBF16;
  row.max_dim_qk = row.max_dim_v = 128;
  row.tile_q = 8;
  row.tile_k = 64;
  row.features = kAllFeatures;
  row.work = Work::kQueryBlocks;
  return row;
}();

bool chosen_starts_with(const Selection& selection, std::string_view prefix) {
  return selection.row != nullptr && std::string_view(selection.row->name).starts_with(prefix);
}
void set_dtype(Problem& problem, int32_t dtype) {
  for (fw_tensor* t : {&problem.a.q, &problem.a.k, &problem.a.v, &problem.a.o}) t->dtype = dtype;
}
std::string chosen(const Selection& selection) { return selection.row ? selection.row->name : "none"; }

// ---------------------------------------------------------------------------------------------------- features_of

struct FeatureCase {
  Feature feature;
  std::function<void(Problem&)> ask;
};

const FeatureCase kFeatureCases[] = {
    {kMask, [](Problem& p) { p.a.flags |= FW_CAUSAL; }},
    {kMask, [](Problem& p) { p.a.window_left = 0; }},
    {kMask, [](Problem& p) { p.a.window_right = 7; }},
    {kGqa, [](Problem& p) { p.a.heads_k = 2; }},
    {kVarlen, [](Problem& p) { p.a.cu_seqlens_q = present<int32_t>(); }},
    {kVarlen, [](Problem& p) { p.a.cu_seqlens_k = present<int32_t>(); }},
    {kSeqused, [](Problem& p) { p.a.seqused_k = present<int32_t>(); }},
    {kLeftpad, [](Problem& p) { p.a.leftpad_k = present<int32_t>(); }},
    {kCacheIndex, [](Problem& p) { p.a.cache_batch_idx = present<int32_t>(); }},
    {kPaged, [](Problem& p) { p.a.block_table = present<int32_t>(); }},
    {kUnequalDims, [](Problem& p) { p.a.dim_v = 32; }},
    {kSoftcap, [](Problem& p) { p.a.softcap = 30; }},
    {kAlibi, [](Problem& p) { p.a.alibi_slopes = present<float>(); }},
    {kBias, [](Problem& p) { p.a.bias = tensor(FW_F32, 0, 0, 256); }},
    {kSinks, [](Problem& p) { p.a.sinks = present<float>(); }},
    {kDropout, [](Problem& p) { p.a.dropout_p = 0.1f; }},
};

TEST(FeaturesOf, PlainProblemsNeedNone) {
  EXPECT_EQ(features_of(forward_problem()), kNoFeatures);
  EXPECT_EQ(features_of(backward_problem()), kNoFeatures);
}

TEST(FeaturesOf, EachFieldSetsItsBitAndNoOther) {
  for (const FeatureCase& c : kFeatureCases) {
    SCOPED_TRACE(feature_name(c.feature));
    Problem forward = forward_problem(), backward = backward_problem();
    c.ask(forward);
    c.ask(backward);
    EXPECT_EQ(features_of(forward), c.feature);
    EXPECT_EQ(features_of(backward), c.feature);
  }
}

TEST(FeaturesOf, OptionalOutputsSetTheirs) {
  Problem forward = forward_problem();
  forward.a.probs = tensor(FW_F32, 4 * 128 * 256, 128 * 256, 256);
  EXPECT_EQ(features_of(forward), kProbs);

  const FeatureCase gradients[] = {
      {kDLse, [](Problem& p) { p.g.d_lse = p.a.lse; }},
      {kDBias, [](Problem& p) { p.g.d_bias = tensor(FW_F32, 0, 0, 256); }},
      {kDSinks, [](Problem& p) { p.g.d_sinks = present<float>(); }},
      {kDSlopes, [](Problem& p) { p.g.d_slopes = present<float>(); }},
  };
  for (const FeatureCase& c : gradients) {
    SCOPED_TRACE(feature_name(c.feature));
    Problem p = backward_problem();
    c.ask(p);
    EXPECT_EQ(features_of(p), c.feature);
  }
}

// -------------------------------------------------------------------------------------------------------- refusal

TEST(Refusal, NoneForAFittingRow) { EXPECT_EQ(refusal(kRow, forward_problem(), cpu_with(kIsaNone)), ""); }

TEST(Refusal, EachReasonNamesTheRule) {
  const Problem problem = forward_problem();
  const DeviceInfo cpu = cpu_with(kIsaNone);

  KernelRow row = kRow;
  row.device = "cuda";
  EXPECT_EQ(refusal(row, problem, cpu), "runs on cuda devices, not on cpu");

  row = kRow, row.op = Op::kBackward;
  EXPECT_EQ(refusal(row, problem, cpu), "computes the backward, not the forward");
  EXPECT_EQ(refusal(kRow, backward_problem(), cpu), "computes the forward, not the backward");

  row = kRow, row.isa = kIsaAvx512;
  EXPECT_EQ(refusal(row, problem, cpu), "needs AVX-512 (F, BW, DQ, VL), which this CPU does not have");
  EXPECT_EQ(refusal(row, problem, cpu_with(kIsaAvx2)), "needs AVX-512 (F, BW, DQ, VL), which this CPU does not have");
  EXPECT_EQ(refusal(row, problem, cpu_with(kBoth)), "");
  row.isa = kIsaAvx2;
  EXPECT_EQ(refusal(row, problem, cpu), "needs AVX2 (with FMA and F16C), which this CPU does not have");

  Problem other = problem;
  other.a.q.dtype = FW_F32;
  EXPECT_EQ(refusal(kRow, other, cpu), "does not take fp32");

  other = problem, other.a.dim_qk = 129;
  EXPECT_EQ(refusal(kRow, other, cpu), "takes dim_qk <= 128, got 129");
  other = problem, other.a.dim_v = 256;
  EXPECT_EQ(refusal(kRow, other, cpu), "takes dim_v <= 128, got 256");

  row = kRow, row.max_seqlen_q = 16;
  EXPECT_EQ(refusal(row, problem, cpu), "takes seqlen_q <= 16, got 128");
  EXPECT_EQ(refusal(row, forward_problem(16), cpu), "");
  EXPECT_EQ(refusal(row, forward_problem(17), cpu), "takes seqlen_q <= 16, got 17");

  row = kRow, row.max_seqlen_k = 16;
  EXPECT_EQ(refusal(row, problem, cpu), "takes seqlen_k <= 16, got 256");

  row = kRow, row.features = kAllFeatures & ~kSoftcap & ~kSinks;
  other = problem, other.a.softcap = 30;
  EXPECT_EQ(refusal(row, other, cpu), "does not support softcap");
  other.a.sinks = present<float>();
  EXPECT_EQ(refusal(row, other, cpu), "does not support softcap, sinks");

  row = kRow, row.op = Op::kAppend;
  EXPECT_EQ(refusal(row, problem, cpu), "has nothing to append");
  EXPECT_EQ(refusal(row, append_problem(), cpu), "");
}

TEST(Refusal, WhatAKernelNeedsOfTheData) {
  const DeviceInfo cpu = cpu_with(kIsaNone);
  const auto reason = [&](uint32_t needs, const std::function<void(Problem&)>& change) {
    Problem problem = forward_problem();
    change(problem);
    KernelRow row = kRow;
    row.needs = needs;
    return refusal(row, problem, cpu);
  };
  const auto nothing = [](Problem&) {};
  EXPECT_EQ(reason(kNeedsPositiveScale, nothing), "");
  EXPECT_EQ(reason(kNeedsPositiveScale, [](Problem& p) { p.a.softmax_scale = -1; }), "takes softmax_scale > 0");
  EXPECT_EQ(reason(kNeedsPositiveScale, [](Problem& p) { p.a.softmax_scale = 0; }), "takes softmax_scale > 0");
  EXPECT_EQ(reason(kTakesLseByScale, nothing), "");
  EXPECT_EQ(reason(kTakesLseByScale, [](Problem& p) { p.a.softmax_scale = 1e-31f; }),
            "divides LSE by softmax_scale, which must be 1e-30 or more");

  for (const auto& [needs, bytes] : {std::pair{kNeedsDwords, 4}, std::pair{kNeeds16Bytes, 16}}) {
    const std::string multiple = "multiples of " + std::to_string(bytes) + " bytes";
    EXPECT_EQ(reason(needs, nothing), "");
    EXPECT_EQ(reason(needs, [](Problem& p) { p.a.dim_qk = 33; }), "takes head dimensions that are " + multiple);
    EXPECT_EQ(reason(needs, [](Problem& p) { p.a.dim_v = 33; }), "takes head dimensions that are " + multiple);
    EXPECT_EQ(reason(needs, [](Problem& p) { p.a.k.stride[1] += 1; }), "takes k with rows at " + multiple);
    EXPECT_EQ(reason(needs, [](Problem& p) { p.a.o.stride[2] += 1; }), "takes o with rows at " + multiple);
    EXPECT_EQ(reason(needs, [](Problem& p) { p.a.q.data = static_cast<char*>(p.a.q.data) + 2; }),
              "takes q with rows at " + multiple);
  }
  EXPECT_EQ(reason(kNeedsDwords, [](Problem& p) { p.a.v.stride[1] += 2; }), "");
  EXPECT_EQ(reason(kNeeds16Bytes, [](Problem& p) { p.a.v.stride[1] += 2; }),
            "takes v with rows at multiples of 16 bytes");

  const auto paged = [](int64_t size) {
    return [size](Problem& p) { p.a.block_table = present<int32_t>(), p.a.page_size = size; };
  };
  EXPECT_EQ(reason(kNeedsPagesOf64, nothing), "");
  EXPECT_EQ(reason(kNeedsPagesOf64, paged(128)), "");
  EXPECT_EQ(reason(kNeedsPagesOf64, paged(96)), "takes a page_size that is a multiple of 64, got 96");

  EXPECT_EQ(reason(kNeedsPagesOf8, paged(24)), "");
  EXPECT_EQ(reason(kNeedsPagesOf8, paged(12)), "takes a page_size that is a multiple of 8, got 12");
  const auto padded = [](Problem& p) { p.a.block_table = p.a.leftpad_k = present<int32_t>(), p.a.page_size = 8; };
  EXPECT_EQ(reason(kNeedsPagesOf8, padded), "");
  EXPECT_EQ(reason(kNeedsUnpaddedPages, paged(8)), "");
  EXPECT_EQ(reason(kNeedsUnpaddedPages, [](Problem& p) { p.a.leftpad_k = present<int32_t>(); }), "");
  EXPECT_EQ(reason(kNeedsUnpaddedPages, padded), "does not take leftpad_k together with block_table");

  EXPECT_EQ(reason(kNeedsNearRows, nothing), "");
  EXPECT_EQ(reason(kNeedsNearRows, [](Problem& p) { p.a.q.stride[1] = (1 << 30) / 8 - 1; }), "");
  EXPECT_EQ(reason(kNeedsNearRows, [](Problem& p) { p.a.q.stride[1] = (1 << 30) / 8; }),
            "takes q with rows less than 134217728 elements apart");
  EXPECT_EQ(reason(kNeedsNearRows, [](Problem& p) { p.a.v.stride[1] = (1 << 30) / 64; }),
            "takes v with rows less than 16777216 elements apart");

  EXPECT_EQ(reason(kNeedsFastRounding, nothing), "rounds towards zero, which FW_FAST_ROUNDING allows");
  EXPECT_EQ(reason(kNeedsFastRounding, [](Problem& p) { p.a.flags |= FW_FAST_ROUNDING; }), "");
}

TEST(Refusal, ARowThatLacksAFeatureRefusesItByName) {
  for (const FeatureCase& c : kFeatureCases) {
    Problem problem = forward_problem();
    c.ask(problem);
    KernelRow row = kRow;
    row.features = kAllFeatures & ~c.feature;
    EXPECT_EQ(refusal(row, problem, cpu_with(kIsaNone)), std::string("does not support ") + feature_name(c.feature));
    row.features = c.feature;
    EXPECT_EQ(refusal(row, problem, cpu_with(kIsaNone)), "");
  }
}

// --------------------------------------------------------------------------------------------------------- select

TEST(Select, TakesTheWidestInstructionSetTheCpuHas) {
  EXPECT_TRUE(chosen_starts_with(select(forward_problem(), cpu_with(kBoth)), "avx512_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(forward_problem(), cpu_with(kIsaAvx2)), "avx2_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(forward_problem(), cpu_with(kIsaNeon)), "neon_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(forward_problem(), cpu_with(kIsaNone)), "portable_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(backward_problem(), cpu_with(kBoth)), "avx512_bwd"));
  EXPECT_TRUE(chosen_starts_with(select(backward_problem(), cpu_with(kIsaNeon)), "neon_bwd"));
  EXPECT_TRUE(chosen_starts_with(select(backward_problem(), cpu_with(kIsaNone)), "portable_bwd"));
}

TEST(Select, FewQueriesTakeTheDecodeKernel) {
  EXPECT_TRUE(chosen_starts_with(select(forward_problem(1), cpu_with(kIsaAvx2)), "avx2_decode"));
  EXPECT_TRUE(chosen_starts_with(select(forward_problem(17), cpu_with(kIsaAvx2)), "avx2_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(forward_problem(1), cpu_with(kIsaNeon)), "neon_decode"));
}

TEST(Select, TilesTakeBf16) {
  const DeviceInfo cpu = cpu_with(kBoth | kIsaAmx);
  Problem p = forward_problem(17);
  set_dtype(p, FW_BF16);
  p.a.heads_q = p.a.heads_k;
  EXPECT_TRUE(chosen_starts_with(select(p, cpu), "amx_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(p, cpu_with(kBoth)), "avx512_fwd"));
  p.a.seqlen_q = 16;
  EXPECT_TRUE(chosen_starts_with(select(p, cpu), "amx_decode"));
  EXPECT_EQ(chosen(select(p, cpu, {.force_kernel = "amx_fwd_m32n128"})), "amx_fwd_m32n128");
  p.a.seqlen_q = 4;
  const Selection few = select(p, cpu);
  EXPECT_TRUE(chosen_starts_with(few, "avx512_decode"));
  EXPECT_EQ(few.refused.at(0).reason, "is made for seqlen_q * heads_q / heads_k > 4, got 4");
  EXPECT_EQ(chosen(select(p, cpu, {.force_kernel = "amx_decode_m16n64"})), "amx_decode_m16n64");  // but it can
  p.a.seqlen_q = 16;
  p.a.heads_q = 2 * p.a.heads_k;  // 32 rows share a key head
  EXPECT_TRUE(chosen_starts_with(select(p, cpu), "amx_fwd"));
  EXPECT_EQ(select(p, cpu).refused.at(0).reason, "takes seqlen_q * heads_q / heads_k <= 16, got 32");
  Problem backward = backward_problem();
  set_dtype(backward, FW_BF16);
  EXPECT_TRUE(chosen_starts_with(select(backward, cpu), "amx_bwd"));
  set_dtype(p, FW_F32), set_dtype(backward, FW_F32);
  EXPECT_FALSE(chosen_starts_with(select(p, cpu), "amx_"));
  EXPECT_FALSE(chosen_starts_with(select(backward, cpu), "amx_"));
}

TEST(Select, TilesOfBf16TakeFp16InTwoParts) {
  const DeviceInfo cpu = cpu_with(kBoth | kIsaAmx);
  Problem p = forward_problem(17), backward = backward_problem();
  p.a.heads_q = p.a.heads_k, backward.a.heads_q = backward.a.heads_k;
  p.a.seqlen_k = 129, backward.a.seqlen_q = backward.a.seqlen_k = 129;
  p.a.dim_qk = p.a.dim_v = 64;
  set_dtype(p, FW_F16), set_dtype(backward, FW_F16);
  EXPECT_TRUE(chosen_starts_with(select(p, cpu), "amx_split_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(backward, cpu), "amx_split_bwd"));
  EXPECT_TRUE(chosen_starts_with(select(p, cpu_with(kBoth)), "avx512_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(p, cpu_with(kBoth | kIsaTiles)), "amx_fp16_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(backward, cpu_with(kBoth | kIsaTiles)), "amx_fp16_bwd"));

  // Where it does not pay AVX-512 is taken, and the reason is told; forced, it takes all.
  const auto expect_refusal = [&](const Problem& problem, const char* kernel, const char* instead, const char* reason) {
    const Selection selection = select(problem, cpu);
    EXPECT_TRUE(chosen_starts_with(selection, instead)) << chosen(selection);
    EXPECT_TRUE(std::any_of(selection.refused.begin(), selection.refused.end(), [&](const auto& row) {
      return std::string_view(row.row->name) == kernel && row.reason == reason;
    })) << reason;
    EXPECT_EQ(chosen(select(problem, cpu, {.force_kernel = kernel})), kernel);
  };
  const char *const forward_kernel = "amx_split_fwd_m32n128", *const backward_kernel = "amx_split_bwd_m256n128";
  Problem few = p;
  few.a.seqlen_q = 16;
  expect_refusal(few, forward_kernel, "avx512_decode", "is made for seqlen_q * heads_q / heads_k > 16, got 16");
  Problem brief = p;
  brief.a.seqlen_k = 128;
  expect_refusal(brief, forward_kernel, "avx512_fwd", "is made for seqlen_k > 128, got 128");
  brief = backward, brief.a.seqlen_q = 128;
  expect_refusal(brief, backward_kernel, "avx512_bwd", "is made for seqlen_q * heads_q / heads_k > 128, got 128");
  Problem modified = p;
  modified.a.softcap = 20;
  expect_refusal(modified, forward_kernel, "avx512_fwd",
                 "is made for head dims with softcap, alibi, bias or dropout > 96, got 64");
  modified.a.dim_qk = 128;
  EXPECT_TRUE(chosen_starts_with(select(modified, cpu), "amx_split_fwd"));
  modified = backward, modified.a.softcap = 20;
  EXPECT_TRUE(chosen_starts_with(select(modified, cpu), "amx_split_bwd"));
}

TEST(Select, TilesOfFp16TakeFp16) {
  const DeviceInfo cpu = cpu_with(kBoth | kIsaTiles);
  Problem p = forward_problem(17), backward = backward_problem();
  p.a.heads_q = p.a.heads_k;
  set_dtype(p, FW_F16), set_dtype(backward, FW_F16);
  EXPECT_TRUE(chosen_starts_with(select(p, cpu), "amx_fp16_fwd"));
  EXPECT_TRUE(chosen_starts_with(select(backward, cpu), "amx_fp16_bwd"));
  p.a.seqlen_q = 16;
  EXPECT_TRUE(chosen_starts_with(select(p, cpu), "amx_fp16_decode"));
  set_dtype(p, FW_BF16), set_dtype(backward, FW_BF16);
  EXPECT_TRUE(chosen_starts_with(select(p, cpu), "amx_decode"));
  EXPECT_TRUE(chosen_starts_with(select(backward, cpu), "amx_bwd"));
}

TEST(Select, SaysThatTheOperatingSystemRefused) {
  DeviceInfo cpu = cpu_with(kBoth);
  cpu.refused_isa = kIsaAmx;
  KernelRow row = kRow;
  row.isa = kIsaAmx;
  EXPECT_EQ(refusal(row, forward_problem(), cpu),
            "needs AMX tiles (BF16, with AVX512_BF16 and BMI2), which the operating system refused");
  cpu.refused_isa = kIsaNone;
  EXPECT_EQ(refusal(row, forward_problem(), cpu),
            "needs AMX tiles (BF16, with AVX512_BF16 and BMI2), which this CPU does not have");
}

TEST(Select, ListsWhatWasTriedBeforeInOrder) {
  const Selection selection = select(forward_problem(), cpu_with(kIsaAvx2));
  ASSERT_NE(selection.row, nullptr);
  size_t expected = 0;
  for (const KernelRow& row : catalog()) {
    if (&row == selection.row) break;
    if (std::string_view(row.device) != "cpu" || row.op != Op::kForward) continue;
    ASSERT_LT(expected, selection.refused.size());
    EXPECT_EQ(selection.refused[expected].row, &row);
    EXPECT_FALSE(selection.refused[expected].reason.empty());
    ++expected;
  }
  EXPECT_EQ(selection.refused.size(), expected);
  EXPECT_GE(expected, 2u);  // at least the AVX-512 ones
}

// Zen 4 has kernels of its own for few rows and for bf16, and is AVX-512 for all else.
TEST(Select, FewRowsAndBf16OnZen4) {
  const DeviceInfo cpu = cpu_with(kBoth | kIsaZen4);
  const auto chooses = [&](Problem problem, int32_t dtype, std::string_view kernel) {
    set_dtype(problem, dtype);
    EXPECT_TRUE(chosen_starts_with(select(problem, cpu), kernel)) << kernel << " " << dtype;
  };
  Problem grouped = forward_problem(5);
  grouped.a.heads_k = 1;  // 20 rows
  for (const int32_t dtype : {FW_BF16, FW_F16, FW_F32}) {
    const bool pairs = dtype == FW_BF16;
    chooses(forward_problem(1), dtype, "zen4_decode");
    chooses(forward_problem(16), dtype, "zen4_decode");
    chooses(forward_problem(17), dtype, pairs ? "zen4_fwd" : "avx512_fwd");
    chooses(grouped, dtype, pairs ? "zen4_fwd" : "avx512_decode");
    chooses(backward_problem(), dtype, pairs ? "zen4_bwd" : "avx512_bwd");
  }
}

// Up to 16 rows fill AVX2's panels, and only half of AVX-512's.
TEST(Select, TheBackwardOfFewRowsIsOfAvx2) {
  const auto chooses = [&](int64_t queries, int64_t heads_k, int32_t dtype, uint32_t isa, std::string_view kernel) {
    Problem p = backward_problem();
    p.a.seqlen_q = queries, p.a.heads_k = heads_k;
    set_dtype(p, dtype);
    EXPECT_TRUE(chosen_starts_with(select(p, cpu_with(isa)), kernel)) << kernel << " " << queries << " " << dtype;
  };
  for (const int32_t dtype : {FW_F16, FW_F32}) {
    for (const uint32_t isa : {kBoth, kBoth | kIsaZen4}) {
      chooses(1, 4, dtype, isa, "avx2_bwd");
      chooses(16, 4, dtype, isa, "avx2_bwd");
      chooses(17, 4, dtype, isa, "avx512_bwd");
      chooses(4, 1, dtype, isa, "avx2_bwd");  // 16 rows of the four heads that share keys
      chooses(5, 1, dtype, isa, "avx512_bwd");
    }
  }
  chooses(16, 4, FW_BF16, kBoth | kIsaZen4, "zen4_bwd");
  Problem few = backward_problem();
  few.a.seqlen_q = 16;
  EXPECT_TRUE(chosen_starts_with(select(few, cpu_with(kBoth), {.force_kernel = "avx512_bwd_m32n96"}), "avx512_bwd"));
}

// On every instruction set; the kernels on tiles and on pairs, and those for few rows, leave them to the others.
TEST(Select, TheSoftmaxMatrixAndTheGradientOfABiasComeFromFastKernels) {
  const std::tuple<uint32_t, std::string_view, std::string_view> cpus[] = {
      {kIsaNone, "portable_fwd", "portable_bwd"},
      {kIsaAvx2, "avx2_fwd", "avx2_bwd"},
      {kBoth, "avx512_fwd", "avx512_bwd"},
      {kBoth | kIsaZen4, "avx512_fwd", "avx512_bwd"},
      {kBoth | kIsaAmx, "avx512_fwd", "avx512_bwd"}};
  for (const auto& [isa, fwd, bwd] : cpus) {
    for (const int64_t queries : {1, 128}) {
      Problem p = forward_problem(queries);
      p.a.probs = tensor(FW_F32, 4 * queries * 256, queries * 256, 256);
      EXPECT_TRUE(chosen_starts_with(select(p, cpu_with(isa), {.slow_path = false}), fwd)) << fwd << queries;
    }
    for (const int axes : {0b1111, 0b0111, 0b0011, 0b1001, 0b0000}) {
      const auto stride = [&](int axis, int64_t s) { return axes & (8 >> axis) ? s : 0; };
      Problem p = backward_problem();
      p.a.bias = p.g.d_bias =
          tensor(FW_F32, stride(0, 4 * 128 * 256), stride(1, 128 * 256), stride(2, 256), stride(3, 1));
      EXPECT_TRUE(chosen_starts_with(select(p, cpu_with(isa), {.slow_path = false}), bwd)) << bwd << axes;
    }
  }
}

TEST(Select, ForcedKernelRunsThoughItWouldNotBeChosen) {
  const DeviceInfo cpu = cpu_with(kBoth);
  EXPECT_EQ(chosen(select(forward_problem(), cpu, {.force_kernel = "naive_fwd"})), "naive_fwd");
  EXPECT_EQ(chosen(select(forward_problem(), cpu, {.force_kernel = "reference_fwd"})), "reference_fwd");
  EXPECT_TRUE(select(forward_problem(), cpu, {.force_kernel = "naive_fwd"}).refused.empty());
}

TEST(Select, ForcedKernelStillHasToFit) {
  const auto reason = [](const Problem& problem, uint32_t isa, const char* forced) {
    const Selection selection = select(problem, cpu_with(isa), {.force_kernel = forced});
    EXPECT_EQ(selection.row, nullptr);
    EXPECT_EQ(selection.refused.size(), 1u);
    return selection.refused.at(0).reason;
  };
  EXPECT_EQ(reason(forward_problem(), kBoth, "reference_bwd"), "computes the backward, not the forward");
  EXPECT_EQ(reason(append_problem(), kBoth, "append_kv"), "accompanies other kernels and cannot be forced");
  for (const KernelRow& row : catalog()) {
    if (row.isa == kIsaAvx512 && row.op == Op::kForward && row.max_seqlen_q == 0) {
      EXPECT_EQ(reason(forward_problem(), kIsaAvx2, row.name),
                "needs AVX-512 (F, BW, DQ, VL), which this CPU does not have");
    }
  }
}

TEST(Select, RotaryTakesTheBestRotaryKernel) {
  const Rotary rotary = rotary_problem();
  EXPECT_EQ(chosen(select(rotary, cpu_with(kBoth))), "avx512_rotary");
  EXPECT_EQ(chosen(select(rotary, cpu_with(kIsaAvx2))), "avx2_rotary");
  EXPECT_EQ(chosen(select(rotary, cpu_with(kIsaNeon))), "neon_rotary");
  const Selection slow = select(rotary, cpu_with(kIsaNone));
  EXPECT_EQ(chosen(slow), "portable_rotary");
  ASSERT_EQ(slow.refused.size(), 3u);
  EXPECT_EQ(slow.refused[1].reason, "needs AVX2 (with FMA and F16C), which this CPU does not have");
  EXPECT_EQ(slow.refused[2].reason, "needs NEON, which this CPU does not have");
  EXPECT_EQ(chosen(select(rotary, cpu_with(kBoth), {.force_kernel = "portable_rotary"})), "portable_rotary");
  EXPECT_EQ(select(rotary, cpu_with(kBoth), {.force_kernel = "append_kv"}).refused.at(0).reason,
            "accompanies other kernels and cannot be forced");
  EXPECT_EQ(select(forward_problem(), cpu_with(kBoth), {.force_kernel = "avx2_rotary"}).refused.at(0).reason,
            "computes the rotary, not the forward");
  KernelRow row = *select(rotary, cpu_with(kIsaNone)).row;
  row.dtypes = 1u << FW_F32;
  EXPECT_EQ(refusal(row, rotary, cpu_with(kIsaNone)), "does not take bf16");
  row.dtypes = 1u << FW_BF16, row.max_dim_qk = 32;
  EXPECT_EQ(refusal(row, rotary, cpu_with(kIsaNone)), "takes dim <= 32, got 64");
}

TEST(Select, UnknownForcedNameSaysWhatThereIs) {
  const Selection typo = select(forward_problem(), cpu_with(kBoth), {.force_kernel = "refrence_fwd"});
  EXPECT_EQ(typo.row, nullptr);
  ASSERT_EQ(typo.refused.size(), 1u);
  EXPECT_EQ(typo.refused[0].row, nullptr);
  EXPECT_NE(typo.refused[0].reason.find("no kernel named 'refrence_fwd'"), std::string::npos);
  EXPECT_NE(typo.refused[0].reason.find("did you mean reference_fwd?"), std::string::npos);

  const std::string far = select(forward_problem(), cpu_with(kBoth), {.force_kernel = "zzz"}).refused.at(0).reason;
  EXPECT_EQ(far.find("did you mean"), std::string::npos);
  for (const KernelRow& row : catalog()) {
    if (std::string_view(row.device) != "cpu") continue;
    EXPECT_EQ(far.find(row.name) != std::string::npos, row.op == Op::kForward) << row.name;
  }
}

TEST(Select, OnlyForcedKernelsAreRefusedWhenNothingElseFits) {
  Problem p = forward_problem();
  p.a.dim_qk = p.a.dim_v = 1024;  // beyond every row
  const Selection selection = select(p, cpu_with(kBoth));
  EXPECT_EQ(selection.row, nullptr);
  bool naive_listed = false;
  for (const Refusal& r : selection.refused) {
    if (r.row->only_forced) {
      naive_listed = true;
      EXPECT_EQ(r.reason, "runs only when forced");
    } else {
      EXPECT_EQ(r.reason.find("runs only"), std::string::npos) << r.row->name;
    }
  }
  EXPECT_TRUE(naive_listed);
}

TEST(Select, RowsOfAnotherKindOfDeviceAreNoCandidates) {
  DeviceInfo gpu = cpu_with(kBoth);
  gpu.name = "cuda:0", gpu.kind = "cuda";
  const Selection selection = select(forward_problem(), gpu);
  for (const Refusal& r : selection.refused) EXPECT_STREQ(r.row->device, "cuda");
  if (selection.row != nullptr) EXPECT_STREQ(selection.row->device, "cuda");
  const Selection forced = select(forward_problem(), gpu, {.force_kernel = "reference_fwd"});
  EXPECT_EQ(forced.row, nullptr);
  EXPECT_EQ(forced.refused.at(0).reason, "runs on cpu devices, not on cuda:0");
}

// A matrix kernel made for a few queries is still better than the one that takes anything.
TEST(Select, KernelsForFewQueriesTakeMoreWhereOnlySlowerOnesAreLeft) {
  DeviceInfo gpu;
  gpu.name = "hip:0", gpu.kind = "hip", gpu.isa = kIsaAmd | kIsaCdna1 | kIsaCdna2;
  Problem problem = forward_problem(128);
  const Selection dense = select(problem, gpu);
  if (dense.row == nullptr) GTEST_SKIP() << "built without kernels of AMD GPUs";
  EXPECT_TRUE(chosen_starts_with(dense, "cdna_fwd")) << chosen(dense);
  problem.a.block_table = present<int32_t>(), problem.a.page_size = 128;
  EXPECT_TRUE(chosen_starts_with(select(problem, gpu), "cdna_fwd"));
  problem.a.page_size = 16;
  const Selection paged = select(problem, gpu);
  EXPECT_TRUE(chosen_starts_with(paged, "cdna_decode")) << chosen(paged);
  EXPECT_TRUE(chosen_starts_with(select(problem, gpu, {.force_kernel = paged.row->name}), "cdna_decode"));
  problem.a.probs = tensor(FW_F32, 0, 0, 256);
  EXPECT_TRUE(chosen_starts_with(select(problem, gpu), "amd_generic_fwd"));
}

bool says(const Selection& selection, std::string_view reason) {
  return std::ranges::any_of(selection.refused, [&](const Refusal& refused) { return refused.reason == reason; });
}

TEST(Select, TheSlowPathCanBeExcluded) {
  const Problem problem = forward_problem();
  const Selection any = select(problem, cpu_with(kIsaNone));
  const Selection fast = select(problem, cpu_with(kIsaNone), {.slow_path = false});
  EXPECT_EQ(any.row, fast.row);
  Problem odd = backward_problem();  // one that validation turns away: a CPU has fast kernels for all others
  odd.a.block_table = present<int32_t>(), odd.a.page_size = 16;
  EXPECT_EQ(chosen(select(odd, cpu_with(kBoth))), "reference_bwd");
  const Selection none = select(odd, cpu_with(kBoth), {.slow_path = false});
  EXPECT_EQ(none.row, nullptr);
  EXPECT_TRUE(says(none, "is the slow path, which FW_NO_SLOW_PATH excludes"));
  EXPECT_EQ(chosen(select(odd, cpu_with(kBoth), {.force_kernel = "reference_bwd", .slow_path = false})),
            "reference_bwd");
}

// What a row is told by is what it is chosen by.
TEST(Select, ARowThatIsUsedForMoreThanItIsMadeForIsNotAmongTheRefused) {
  DeviceInfo gpu;
  gpu.name = "hip:0", gpu.kind = "hip", gpu.isa = kIsaAmd | kIsaCdna1 | kIsaCdna2;
  Problem problem = forward_problem(128);
  problem.a.block_table = present<int32_t>(), problem.a.page_size = 16;
  for (const bool slow_path : {true, false}) {
    const Selection paged = select(problem, gpu, {.slow_path = slow_path});
    if (catalog_of("hip").empty()) GTEST_SKIP() << "built without kernels of AMD GPUs";
    ASSERT_NE(paged.row, nullptr);
    EXPECT_TRUE(chosen_starts_with(paged, "cdna_decode")) << chosen(paged);
    for (const Refusal& r : paged.refused) EXPECT_NE(r.row, paged.row);
  }
}

TEST(Select, EmulatedDevicesUseTheRowsOfTheRealOnes) {
  DeviceInfo emulated;
  emulated.name = "emu:gfx942", emulated.kind = "emu";
  KernelRow row = kRow;
  row.device = "hip";
  EXPECT_EQ(refusal(row, forward_problem(), emulated), "");
  EXPECT_EQ(refusal(kRow, forward_problem(), emulated), "runs on cpu devices, not on emu:gfx942");
}

}  // namespace
}  // namespace flashwave

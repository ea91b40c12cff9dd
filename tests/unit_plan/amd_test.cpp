// Which kernels AMD GPUs are given for a backward, and how their work is cut up, asked about GPUs that are not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "plan/plan.h"
#include "tests/unit_plan/problems.h"

namespace flashwave {
namespace {

DeviceInfo mi300() {
  DeviceInfo d;
  d.name = "emu:gfx942", d.kind = "emu", d.arch = "gfx942";
  d.isa = kIsaAmd | kIsaCdna1 | kIsaCdna2;
  d.compute_units = 304;
  d.lds_bytes = 65536;
  return d;
}

class AmdPlan : public PlanOf {
 protected:
  AmdPlan() : PlanOf("hip") {}
};

Problem backward_of(int64_t seqlen, int64_t dim, bool deterministic = false) {
  Problem p = backward_problem();
  p.a.seqlen_q = p.a.seqlen_k = seqlen;
  p.a.dim_qk = p.a.dim_v = dim;
  if (deterministic) p.a.flags |= FW_DETERMINISTIC;
  return p;
}

std::string chosen(const Problem& problem) {
  const Selection selection = select(problem, mi300());
  return selection.row != nullptr ? selection.row->name : "none";
}

TEST_F(AmdPlan, BackwardByMatrixCores) {
  EXPECT_EQ(chosen(backward_of(300, 64)), "cdna_bwd_bf16_d64_m32n128");
  EXPECT_EQ(chosen(backward_of(300, 96)), "cdna_bwd_bf16_d96_m32n128");
  EXPECT_EQ(chosen(backward_of(300, 104)), "cdna_bwd_bf16_d128_m32n128");
  EXPECT_EQ(chosen(backward_of(300, 192)), "cdna_bwd_dkdv_bf16_d192_m32n128");
  EXPECT_EQ(chosen(backward_of(300, 200)), "cdna_bwd_dkdv_bf16_d256_m32n128");
  EXPECT_EQ(chosen(backward_of(300, 264)), "amd_generic_bwd_bf16");
  Problem p = backward_of(300, 192);
  p.a.dim_v = 128;
  EXPECT_EQ(chosen(p), "cdna_bwd_dkdv_bf16_d192v128_m32n128");
  p = backward_of(300, 64);
  p.a.softcap = 30;
  EXPECT_EQ(chosen(p), "cdna_bwd_bf16_d128_m32n128_modified");
  p.a.bias = p.g.d_bias = tensor(FW_F32, 0, 0, 256);
  EXPECT_EQ(chosen(p), "cdna_bwd_bf16_d128_m32n128_modified") << "the gradient of bias";
}

// fp16 tensors multiplied as bf16: the plan is that of the copies.
TEST_F(AmdPlan, Fp16AsBf16) {
  Problem p = backward_of(300, 68);
  for (fw_tensor* t : {&p.a.q, &p.a.k, &p.a.v, &p.a.o, &p.g.d_o, &p.g.dq, &p.g.dk, &p.g.dv}) t->dtype = FW_F16;
  Plan plan;
  p.bf16_products = true;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(plan.convert, nullptr) << "rows of such head dims are for the slow path, which multiplies in fp32";
  p.a.dim_qk = p.a.dim_v = 72;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  ASSERT_NE(plan.convert, nullptr);
  EXPECT_EQ(std::string_view(plan.convert->name), "amd_convert");
  EXPECT_EQ(std::string_view(plan.selection.row->name), "cdna_bwd_bf16_d96_m32n128");
  const size_t rows = 2 * 300 * 4;
  EXPECT_EQ(plan.copies_bytes, rows * 72 * (7 * 2 + 4)) << "o is in fp32";
  const Bf16Problem converted = as_bf16(p, nullptr);
  EXPECT_EQ(converted.before.size(), 5u);
  EXPECT_EQ(converted.after.size(), 3u);
  EXPECT_EQ(schedule(p, converted.before[0]).tasks, 2 * 75);
  EXPECT_FALSE(converted.problem.bf16_products);
  EXPECT_EQ(converted.problem.a.o.dtype, FW_F32);
  // What is wanted in fp32 is written where it is wanted.
  p.g.dq.dtype = FW_F32;
  EXPECT_EQ(as_bf16(p, nullptr).after.size(), 2u);
  EXPECT_EQ(as_bf16(p, nullptr).problem.g.dq.data, p.g.dq.data);
  p.g.dq.dtype = FW_F16;
  ASSERT_TRUE(make_plan(p, mi300(), {.force_kernel = "cdna_bwd_f16_d96_m32n128"}, &plan).ok());
  EXPECT_EQ(plan.convert, nullptr) << "who names a kernel gets that one";
  p.a.bias = tensor(FW_F16, 0, 0, 256);
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(plan.convert, nullptr);
}

// Short sequences are one launch, in any order of sums; heads that share keys are not.
TEST_F(AmdPlan, ShortBackwardIsOneLaunch) {
  for (const bool deterministic : {false, true}) {
    EXPECT_EQ(chosen(backward_of(256, 64, deterministic)), "cdna_bwd_head_bf16_d64_m256n128");
    EXPECT_EQ(chosen(backward_of(256, 72, deterministic)), "cdna_bwd_head_bf16_d128_m256n128");
  }
  EXPECT_EQ(chosen(backward_of(257, 64)), "cdna_bwd_bf16_d64_m32n128");
  Problem p = backward_of(200, 64);
  Plan plan;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_TRUE(plan.before.empty() && plan.after.empty());
  EXPECT_EQ(plan.schedule.tasks, p.a.heads_q * p.a.batch);
  EXPECT_EQ(plan.schedule.rows_per_task, 32);
  EXPECT_EQ(plan.schedule.workspace_bytes, 128 + 7 * (32 * 8 + 128) * p.a.heads_q * p.a.batch) << "lse and delta alone";
  p.g.d_sinks = present<float>(), p.a.sinks = present<float>();
  const Status status = make_plan(p, mi300(), {}, &plan);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(std::string_view(plan.after[0].row->name), "amd_bwd_sums");
  p = backward_of(200, 64);
  p.a.heads_k = p.a.heads_q / 2;
  EXPECT_EQ(chosen(p), "cdna_bwd_bf16_d64_m32n128");
}

TEST_F(AmdPlan, FastRoundingTruncatesInTheBackward) {
  Problem p = backward_of(300, 128);
  p.a.flags |= FW_FAST_ROUNDING;
  EXPECT_EQ(chosen(p), "cdna_bwd_bf16_d128_m32n128_rtz");
  p.a.flags |= FW_DETERMINISTIC;
  EXPECT_EQ(chosen(p), "cdna_bwd_dkdv_bf16_d128_m32n128");
}

TEST_F(AmdPlan, DeterministicBackwardMakesNoSumsInMemory) {
  const Problem p = backward_of(300, 64, true);
  EXPECT_EQ(chosen(p), "cdna_bwd_dkdv_bf16_d64_m32n128");
  const Selection all = select(p, mi300());
  const auto fused = std::ranges::find_if(all.refused, [](const Refusal& r) {
    return r.row != nullptr && std::string_view(r.row->name) == "cdna_bwd_bf16_d64_m32n128";
  });
  ASSERT_NE(fused, all.refused.end());
  EXPECT_EQ(fused->reason,
            "makes sums in a fixed order one head at a time, and heads_k * batch = 8 are too few to fill the GPU");
}

// Heads enough for the GPU: a workgroup has all tiles of keys of a head, or every n-th, and sums of its own.
TEST_F(AmdPlan, DeterministicBackwardOfManyHeadsIsFused) {
  Plan plan;
  Problem p = backward_of(4096, 128, true);
  p.a.heads_q = p.a.heads_k = 32;
  p.a.batch = 8;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(std::string_view(plan.selection.row->name), "cdna_bwd_bf16_d128_m32n128");
  EXPECT_EQ(plan.schedule.tasks, 256);
  EXPECT_EQ(plan.schedule.splits, 1);
  EXPECT_EQ(plan.schedule.dq_columns, 128);
  EXPECT_TRUE(plan.schedule.in_order);
  p.a.batch = 4;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.tasks, 256) << "two workgroups for a head";
  EXPECT_EQ(plan.schedule.splits, 2);
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(plan.after[0].schedule.splits, 2) << "which adds up both";
  EXPECT_EQ(plan.before[0].schedule.dq_columns, 256);
  const int64_t block = 32 * 8 + 128 + 32 * 256 * 4;
  EXPECT_EQ(plan.schedule.workspace_bytes, 128 + 128 * block * 32 * 4);
  p.a.dim_qk = p.a.dim_v = 64;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.splits, 4) << "two waves have the same columns";
  EXPECT_EQ(plan.schedule.tasks, 256);
  p.a.batch = 1;
  EXPECT_EQ(chosen(p), "cdna_bwd_dkdv_bf16_d64_m32n128") << "more than four for a head take too much memory";
  const Selection forced = select(p, mi300(), {.force_kernel = "cdna_bwd_bf16_d64_m32n128"});
  ASSERT_NE(forced.row, nullptr);
  EXPECT_EQ(gpu_schedule(p, mi300(), *forced.row).tasks, 4 * 32);
}

// Beside the gradients: lse and delta of each query, 12 bytes with their part of a block, and the sums of dQ in fp32.
// In order by heads there are at most four sums, at head dim 64 for each of two waves.
TEST_F(AmdPlan, MemoryOfALongBackwardIsLinear) {
  constexpr int64_t kTokens = 65536;
  for (const int64_t heads : {32, 64}) {  // too few, and enough, for an order by heads
    for (const int64_t dim : {64, 128, 256}) {
      for (const bool deterministic : {false, true}) {
        Problem p = backward_of(kTokens, dim, deterministic);
        p.a.batch = 1, p.a.heads_q = p.a.heads_k = heads;
        Plan plan;
        ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
        const auto bytes = static_cast<double>(plan.workspace_bytes()), columns = static_cast<double>(dim);
        const double rows = static_cast<double>(kTokens * heads), gradients = 3.0 * rows * columns * 2;
        const int ordered = heads < 55 ? 0 : dim <= 64 ? 8 : 4, sums = dim > 128 ? 0 : deterministic ? ordered : 1;
        EXPECT_LE(bytes, rows * (12 + 4.0 * columns * sums) + 4096) << heads << " heads of " << dim;
        if (sums == 0) EXPECT_LE(gradients + bytes, 1.1 * gradients) << dim;
        Problem half = p;
        half.a.seqlen_q = half.a.seqlen_k = kTokens / 2;
        ASSERT_TRUE(make_plan(half, mi300(), {}, &plan).ok());
        EXPECT_NEAR(bytes / static_cast<double>(plan.workspace_bytes()), 2.0, 0.01);
      }
    }
  }
}

// One workgroup for each 128 keys of a key head, whatever the number of compute units.
TEST_F(AmdPlan, BackwardIsPreparedAndFinished) {
  Plan plan;
  Problem p = backward_of(300, 128);
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.tasks, 3 * p.a.heads_k * p.a.batch);
  EXPECT_EQ(plan.schedule.dq_columns, 128);
  ASSERT_EQ(plan.before.size(), 1u);
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(std::string_view(plan.before[0].row->name), "amd_bwd_prepare");
  EXPECT_EQ(std::string_view(plan.after[0].row->name), "amd_bwd_finish");
  EXPECT_EQ(plan.before[0].schedule.tasks, 10 * p.a.heads_q * p.a.batch) << "blocks of 32 queries";
  EXPECT_EQ(plan.before[0].schedule.dq_columns, 128) << "they must agree about the blocks";
  const int64_t block = 32 * 8 + 128 + 32 * 128 * 4;
  EXPECT_EQ(plan.schedule.workspace_bytes, 128 + 10 * block * p.a.heads_q * p.a.batch);
  p.g.d_sinks = present<float>(), p.a.sinks = present<float>();
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  ASSERT_EQ(plan.after.size(), 2u);
  EXPECT_EQ(std::string_view(plan.after[1].row->name), "amd_bwd_sums");
  EXPECT_EQ(plan.after[1].schedule.tasks, p.a.heads_q);
  p.g.dq = {}, p.g.d_sinks = nullptr;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_TRUE(plan.after.empty()) << "nobody asks for dQ";
}

// Gradients of what is added to scores: a wave for each 32 queries and 32 keys, or for the tiles that share entries.
TEST_F(AmdPlan, BackwardOfBiasAndSlopesStaysOnMatrixCores) {
  Plan plan;
  Problem p = backward_of(300, 128);
  p.a.bias = {.data = present<float>(), .stride = {0, 90000, 300, 1}, .dtype = FW_F32, .reserved = 0};
  p.g.d_bias = p.a.bias;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(std::string_view(plan.selection.row->name), "cdna_bwd_bf16_d128_m32n128_modified");
  ASSERT_EQ(plan.after.size(), 2u);
  EXPECT_EQ(std::string_view(plan.after[1].row->name), "cdna_bwd_dbias");
  EXPECT_EQ(plan.after[1].schedule.tasks, 25 * p.a.heads_q) << "10 x 10 tiles by four, one sum for the batch";
  p.g.d_bias.stride[2] = p.a.bias.stride[2] = 0;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(plan.after[1].schedule.tasks, (10 * p.a.heads_q + 3) / 4) << "one sum for all queries";
  const int64_t bytes = plan.schedule.workspace_bytes;
  p.a.alibi_slopes = p.g.d_slopes = present<float>(), p.g.d_bias = {};
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  ASSERT_EQ(plan.after.size(), 3u);
  EXPECT_EQ(std::string_view(plan.after[1].row->name), "cdna_bwd_dslopes");
  EXPECT_EQ(std::string_view(plan.after[2].row->name), "amd_bwd_sums");
  EXPECT_EQ(plan.schedule.workspace_bytes - bytes, 10 * p.a.heads_q * p.a.batch * 4) << "parts of the slopes";
  p.a.seqlen_q = 0;
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  EXPECT_EQ(std::string_view(plan.after.back().row->name), "amd_bwd_sums");
  for (const Step& step : plan.after) EXPECT_GT(step.schedule.tasks, 0) << step.row->name;
}

TEST_F(AmdPlan, DeterministicBackwardHasAKernelOfDq) {
  Plan plan;
  const Problem p = backward_of(300, 128, true);
  ASSERT_TRUE(make_plan(p, mi300(), {}, &plan).ok());
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(std::string_view(plan.after[0].row->name), "cdna_bwd_dq_bf16_d128_m256n32");
  EXPECT_EQ(plan.after[0].schedule.tasks, 2 * p.a.heads_q * p.a.batch) << "256 queries each";
  EXPECT_EQ(plan.schedule.workspace_bytes, 128 + 10 * (32 * 8 + 128) * p.a.heads_q * p.a.batch) << "no sums";
}

TEST_F(AmdPlan, BackwardTakesRowsOf16Bytes) {
  for (fw_tensor fw_gradients::* tensor :
       {&fw_gradients::d_o, &fw_gradients::dq, &fw_gradients::dk, &fw_gradients::dv}) {
    Problem p = backward_problem();
    (p.g.*tensor).stride[1] += 4;
    EXPECT_EQ(chosen(p), "amd_generic_bwd_bf16");
    p = backward_problem();
    (p.g.*tensor).stride[1] = int64_t{1} << 23;
    EXPECT_EQ(chosen(p), "amd_generic_bwd_bf16") << "offsets in a tile have 32 bits";
  }
}

}  // namespace
}  // namespace flashwave

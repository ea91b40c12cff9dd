// Which kernels of a backward AMD's graphics cards are given, and what goes before and after them.
#include <gtest/gtest.h>

#include <string_view>

#include "plan/plan.h"
#include "tests/unit_plan/problems.h"

namespace flashwave {
namespace {

DeviceInfo card(uint32_t generation) {
  DeviceInfo d;
  d.name = "hip:0", d.kind = "hip", d.arch = "a card";
  d.isa = kIsaAmd | generation;
  d.compute_units = 32;
  d.lds_bytes = 65536;
  return d;
}

Problem backward_of(int64_t dim, int64_t keys = 512) {
  Problem p = backward_problem();
  p.a.dim_qk = p.a.dim_v = dim;
  p.a.seqlen_k = keys;
  return p;
}
Problem deterministic(Problem p) {
  p.a.flags |= FW_DETERMINISTIC;
  return p;
}

class RdnaPlan : public PlanOf {
 protected:
  RdnaPlan() : PlanOf("hip") {}
};

std::string_view chosen(const Problem& problem, uint32_t generation = kIsaRdna4) {
  const Selection selection = select(problem, card(generation));
  return selection.row != nullptr ? selection.row->name : "none";
}

TEST_F(RdnaPlan, BackwardHasARowForEachHeadDim) {
  EXPECT_EQ(chosen(backward_of(64), kIsaRdna3), "rdna3_bwd_bf16_d64_m16n128");
  EXPECT_EQ(chosen(backward_of(64)), "rdna4_bwd_bf16_d64_m16n128");
  EXPECT_EQ(chosen(backward_of(72)), "rdna4_bwd_bf16_d128_m16n64");
  EXPECT_EQ(chosen(backward_of(192)), "rdna4_bwd_bf16_d256_m16n32");
  EXPECT_EQ(chosen(backward_of(264)), "amd_generic_bwd_bf16");
  EXPECT_EQ(chosen(backward_of(60)), "amd_generic_bwd_bf16") << "rows are read 16 bytes at a time";
}

TEST_F(RdnaPlan, BackwardWithModifiersHasItsRows) {
  Problem p = backward_of(128);
  p.a.dropout_p = 0.1f;
  EXPECT_EQ(chosen(p), "rdna4_bwd_bf16_d128_m16n64_modified");
  p = backward_of(128);
  p.a.softmax_scale = -1.f;
  EXPECT_EQ(chosen(p), "rdna4_bwd_bf16_d128_m16n64_modified") << "plain ones divide LSE by the scale";
  p = backward_of(128);
  p.a.sinks = present<float>();
  EXPECT_EQ(chosen(p), "rdna4_bwd_bf16_d128_m16n64") << "sinks are in LSE";
}

TEST_F(RdnaPlan, SumsOfDqArePreparedAndFinished) {
  Plan plan;
  const Problem p = backward_of(128);
  ASSERT_TRUE(make_plan(p, card(kIsaRdna4), {}, &plan).ok());
  ASSERT_EQ(plan.before.size(), 1u);
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(std::string_view(plan.before[0].row->name), "amd_bwd_prepare");
  EXPECT_EQ(std::string_view(plan.after[0].row->name), "amd_bwd_finish");
  EXPECT_EQ(plan.schedule.tasks, 512 / 64 * p.a.heads_k * p.a.batch) << "tiles of 64 keys";
  EXPECT_EQ(plan.schedule.dq_columns, 128);
  EXPECT_EQ(plan.before[0].schedule.lse_by_scale, 1);
}

TEST_F(RdnaPlan, DeterministicIsAPairWithoutSums) {
  Plan plan;
  const Problem p = deterministic(backward_of(128));
  ASSERT_TRUE(make_plan(p, card(kIsaRdna3), {}, &plan).ok());
  EXPECT_EQ(std::string_view(plan.selection.row->name), "rdna3_bwd_dkdv_bf16_d128_m16n64");
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(std::string_view(plan.after[0].row->name), "rdna3_bwd_dq_bf16_d128_m64n16");
  EXPECT_EQ(plan.after[0].schedule.tasks, 128 / 64 * p.a.heads_q * p.a.batch);
  EXPECT_EQ(plan.schedule.dq_columns, 0);
  const int64_t block = 16 * 8 + 128;
  EXPECT_EQ(plan.schedule.workspace_bytes, 128 + 128 / 16 * block * p.a.heads_q * p.a.batch);
}

// Short sequences are one launch, in any order of sums; heads that share keys are not.
TEST_F(RdnaPlan, ShortBackwardIsOneLaunch) {
  Problem p = backward_of(64, 256);
  EXPECT_EQ(chosen(p), "rdna4_bwd_head_bf16_d64_m16n128");
  EXPECT_EQ(chosen(deterministic(p), kIsaRdna3), "rdna3_bwd_head_bf16_d64_m16n128");
  Plan plan;
  ASSERT_TRUE(make_plan(p, card(kIsaRdna4), {}, &plan).ok());
  EXPECT_TRUE(plan.before.empty() && plan.after.empty());
  EXPECT_EQ(plan.schedule.tasks, p.a.heads_q * p.a.batch);
  EXPECT_EQ(plan.schedule.rows_per_task, 16);
  EXPECT_EQ(plan.schedule.lse_by_scale, 1);
  EXPECT_EQ(plan.schedule.dq_columns, 64) << "sums of two tiles of keys";
  p.a.seqlen_k = 128;
  ASSERT_TRUE(make_plan(p, card(kIsaRdna4), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.dq_columns, 0) << "one tile has all keys";
  EXPECT_EQ(plan.schedule.workspace_bytes, 128 + 8 * (16 * 8 + 128) * p.a.heads_q * p.a.batch);
  p.a.seqlen_k = 257;
  EXPECT_EQ(chosen(p), "rdna4_bwd_bf16_d64_m16n128");
  p = backward_of(64, 256);
  p.a.heads_k = 2;
  EXPECT_EQ(chosen(p), "rdna4_bwd_bf16_d64_m16n128");
  p = backward_of(72, 256);
  EXPECT_EQ(chosen(p), "rdna4_bwd_head_bf16_d128_m16n64");
  p.a.softcap = 30;
  EXPECT_EQ(chosen(p), "rdna4_bwd_bf16_d128_m16n64_modified");
}

// What is prepared for the one is read by the other.
TEST_F(RdnaPlan, BothKernelsOfAPairAreOfOneKind) {
  Plan plan;
  const PlanOptions forced = {.force_kernel = "rdna4_bwd_dkdv_bf16_d128_m16n64_modified"};
  ASSERT_TRUE(make_plan(backward_of(128), card(kIsaRdna4), forced, &plan).ok());
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(std::string_view(plan.after[0].row->name), "rdna4_bwd_dq_bf16_d128_m64n16_modified");
  EXPECT_EQ(plan.schedule.lse_by_scale, 0);
}

}  // namespace
}  // namespace flashwave

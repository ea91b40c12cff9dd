#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernels/abi/cpu_scratch.h"
#include "plan/plan.h"
#include "tests/unit_plan/problems.h"

namespace flashwave {
namespace {

size_t aligned(int64_t bytes) { return static_cast<size_t>((bytes + 63) / 64 * 64); }

Plan planned(const Problem& problem, const DeviceInfo& device, const PlanOptions& options = {}) {
  Plan plan;
  const Status status = make_plan(problem, device, options, &plan);
  EXPECT_TRUE(status.ok()) << status.message;
  return plan;
}

// What a task packs is worth more rows where there are few threads; parts of the keys, which change the order of sums,
// are those of the machine.
TEST(MakePlan, FewThreadsTakeLargerTasksAndTheSameParts) {
  Problem problem = forward_problem(4096);
  problem.a.batch = problem.a.heads_q = problem.a.heads_k = 1;
  const DeviceInfo cpu = cpu_with(kIsaAvx2, 16);
  const Plan one = planned(problem, cpu, {nullptr, 1}), all = planned(problem, cpu, {nullptr, 16});
  EXPECT_EQ(one.schedule.rows_per_task, 1024);
  EXPECT_EQ(all.schedule.rows_per_task, 128);
  EXPECT_EQ(planned(problem, cpu, {nullptr, 64}).schedule.rows_per_task, 128);  // there are no more cores
  problem.a.seqlen_q = 8;
  for (const int32_t threads : {1, 2, 16}) {
    EXPECT_EQ(planned(problem, cpu, {nullptr, threads}).schedule.splits, planned(problem, cpu).schedule.splits);
  }
}

TEST(MakePlan, WorkspaceIsThatOfTheScheduleInWholeCacheLines) {
  Problem problems[] = {forward_problem(), forward_problem(1), forward_problem(129), backward_problem(),
                        append_problem()};
  problems[2].a.num_splits = 4;
  for (const Problem& problem : problems) {
    for (const int32_t threads : {1, 2, 7, 64}) {
      const Plan plan = planned(problem, cpu_with(kIsaAvx2), {nullptr, threads});
      SCOPED_TRACE(std::string(plan.selection.row->name) + " threads " + std::to_string(threads));
      const abi::Schedule expected = schedule(problem, cpu_with(kIsaAvx2), *plan.selection.row, threads);
      EXPECT_EQ(plan.schedule.tasks, expected.tasks);
      EXPECT_EQ(plan.schedule.splits, expected.splits);
      EXPECT_GE(plan.threads, 1);
      EXPECT_EQ(plan.threads, std::min<int64_t>(threads, std::max<int64_t>(1, expected.tasks)));
      EXPECT_EQ(plan.kernel_bytes, aligned(expected.workspace_bytes));
      EXPECT_EQ(plan.scratch_bytes, aligned(plan.threads * expected.scratch_bytes));
      EXPECT_EQ(plan.workspace_bytes(), plan.q_rotated_bytes + plan.kernel_bytes + plan.scratch_bytes);
      EXPECT_EQ(plan.workspace_bytes() % 64, 0u);
    }
  }
}

TEST(MakePlan, ThreadsBelowOneCountAsOne) {
  EXPECT_EQ(planned(forward_problem(), cpu_with(kIsaNone), {nullptr, 0}).threads, 1);
  EXPECT_EQ(planned(forward_problem(), cpu_with(kIsaNone), {nullptr, -3}).threads, 1);
}

TEST(MakePlan, PartsOfADecodeDoNotDependOnTheThreads) {
  const Problem problem = forward_problem(1);
  const abi::Schedule one = planned(problem, cpu_with(kIsaAvx2), {nullptr, 1}).schedule;
  const abi::Schedule many = planned(problem, cpu_with(kIsaAvx2), {nullptr, 32}).schedule;
  EXPECT_EQ(one.splits, many.splits);
  EXPECT_EQ(one.tasks, many.tasks);
  EXPECT_EQ(one.keys_per_split, many.keys_per_split);
}

// Parts of the keys that are tasks of their own each have sums of dq in the workspace: a caller with one thread can do
// without both.
TEST(MakePlan, ABackwardThatMayNotSplitTheKeysHasNoSumsOfParts) {
  Problem problem = backward_problem();
  problem.a.batch = 1, problem.a.heads_q = problem.a.heads_k = 1;
  problem.a.seqlen_q = problem.a.seqlen_k = 4096;
  const abi::Schedule chosen = planned(problem, cpu_with(kIsaAvx2), {nullptr, 4}).schedule;
  EXPECT_GT(chosen.splits, 1);
  problem.a.num_splits = 1;
  const abi::Schedule whole = planned(problem, cpu_with(kIsaAvx2)).schedule;
  EXPECT_EQ(whole.splits, 1);
  EXPECT_EQ(whole.tasks, 1);
  EXPECT_LT(whole.workspace_bytes, chosen.workspace_bytes);
}

// The order of sums is that of the parts of the machine; how many of them are one task's follows from the threads.
TEST(MakePlan, PartsOfABackwardDoNotDependOnTheThreads) {
  for (const uint32_t isa : {uint32_t{kIsaNone}, uint32_t{kIsaAvx2}, kIsaAvx2 | kIsaAvx512 | kIsaAmx}) {
    for (const int64_t heads : {1, 2, 5, 16}) {
      Problem problem = backward_problem();
      problem.a.q.dtype = problem.a.k.dtype = problem.a.v.dtype = problem.a.o.dtype = FW_BF16;
      problem.g.d_o.dtype = problem.g.dq.dtype = problem.g.dk.dtype = problem.g.dv.dtype = FW_BF16;
      problem.a.batch = 1, problem.a.heads_q = problem.a.heads_k = heads;
      problem.a.seqlen_q = problem.a.seqlen_k = 8192;
      const DeviceInfo cpu = cpu_with(isa, 16);
      const abi::Schedule one = planned(problem, cpu, {nullptr, 1}).schedule;
      SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(isa));
      EXPECT_EQ(one.tasks, heads);
      EXPECT_EQ(one.splits, (16 + heads - 1) / heads);
      EXPECT_EQ(one.workspace_bytes, 0) << "the sums of all parts are the task's own";
      for (const int32_t threads : {2, 4, 16, 64}) {
        const abi::Schedule some = planned(problem, cpu, {nullptr, threads}).schedule;
        EXPECT_EQ(some.splits, one.splits);
        EXPECT_EQ(some.keys_per_split, one.keys_per_split);
        EXPECT_EQ(some.rows_per_task, one.rows_per_task);
        EXPECT_LE(some.tasks, heads * one.splits);
        EXPECT_GE(some.tasks, std::min<int64_t>(threads, heads * one.splits));
        EXPECT_LE(some.scratch_bytes, one.scratch_bytes);
      }
    }
  }
}

// The softmax matrix is made from the rows' sums, which lie in the workspace whether or not the keys are split; the
// gradient of a bias is summed in each thread's own memory.
TEST(MakePlan, MatricesHaveTheirMemory) {
  const DeviceInfo cpu = cpu_with(kIsaAvx2);
  Problem forward = forward_problem();
  const Plan without = planned(forward, cpu);
  EXPECT_EQ(without.schedule.workspace_bytes, 0);
  forward.a.probs = tensor(FW_F32, 4 * 128 * 256, 128 * 256, 256);
  const Plan with = planned(forward, cpu);
  EXPECT_EQ(with.schedule.splits, without.schedule.splits);
  EXPECT_EQ(with.schedule.scratch_bytes, without.schedule.scratch_bytes);
  EXPECT_EQ(with.schedule.workspace_bytes, abi::PartialResults(nullptr, 2 * 128 * 4, 1, 64).bytes);

  Problem backward = backward_problem();
  backward.a.bias = tensor(FW_F32, 0, 128 * 256, 256);
  const abi::Schedule plain = planned(backward, cpu).schedule;
  backward.g.d_bias = backward.a.bias;
  const abi::Schedule summed = planned(backward, cpu).schedule;
  const int64_t sums = abi::BiasGradientScratch(nullptr, abi::cpu_tile(16, 16), 64, 64).bytes;
  EXPECT_EQ(summed.scratch_bytes, std::max(plain.scratch_bytes, sums));
  EXPECT_EQ(summed.workspace_bytes, plain.workspace_bytes);
  EXPECT_EQ(summed.tasks, plain.tasks);
}

TEST(MakePlan, AppendTakesThePrePass) {
  const DeviceInfo cpu = cpu_with(kIsaNone);
  EXPECT_EQ(planned(forward_problem(), cpu).append, nullptr);
  EXPECT_EQ(planned(forward_problem(), cpu).q_rotated_bytes, 0u);

  Problem problem = append_problem();
  Plan plan = planned(problem, cpu);
  ASSERT_NE(plan.append, nullptr);
  EXPECT_STREQ(plan.append->name, "append_kv");
  EXPECT_EQ(plan.q_rotated_bytes, 2u * 1 * 4 * 64 * 2);

  problem.a.q.dtype = FW_F32;
  EXPECT_EQ(planned(problem, cpu).q_rotated_bytes, 2u * 1 * 4 * 64 * 4);

  problem = append_problem();
  problem.a.rotary_cos = problem.a.rotary_sin = {};
  plan = planned(problem, cpu);
  EXPECT_NE(plan.append, nullptr);
  EXPECT_EQ(plan.q_rotated_bytes, 0u);
}

TEST(MakePlan, RowsOfNoSequenceAreFilledWhereThatIsAskedForAndPacked) {
  const DeviceInfo cpu = cpu_with(kIsaNone);
  const auto fills = [&](Problem problem, bool packed_q, bool packed_k, uint32_t flags) {
    problem.a.flags |= flags;
    if (packed_q) problem.a.cu_seqlens_q = present<int32_t>(), problem.a.total_q = 20;
    if (packed_k) problem.a.cu_seqlens_k = present<int32_t>(), problem.a.total_k = 20;
    const Plan plan = planned(problem, cpu);
    if (plan.fill != nullptr) EXPECT_STREQ(plan.fill->name, "fill_unused");
    return plan.fill != nullptr;
  };
  for (const bool q : {false, true}) {
    for (const bool k : {false, true}) {
      EXPECT_FALSE(fills(forward_problem(), q, k, 0));
      EXPECT_FALSE(fills(backward_problem(), q, k, 0));
      EXPECT_EQ(fills(forward_problem(), q, k, FW_FILL_UNUSED), q) << "k and v are not written";
      EXPECT_EQ(fills(backward_problem(), q, k, FW_FILL_UNUSED), q || k);
    }
  }
  Problem only_dq = backward_problem();
  only_dq.g.dk = only_dq.g.dv = {};
  EXPECT_FALSE(fills(only_dq, false, true, FW_FILL_UNUSED));
  EXPECT_TRUE(fills(only_dq, true, false, FW_FILL_UNUSED));
}

TEST(MakePlan, RotatedQueriesOfARaggedBatchTakeItsRows) {
  Problem problem = append_problem();
  problem.a.cu_seqlens_q = present<int32_t>();
  problem.a.seqlen_q = 50, problem.a.total_q = 7;
  problem.a.heads_q = problem.a.heads_k = 1, problem.a.dim_qk = problem.a.dim_v = 3;
  EXPECT_EQ(planned(problem, cpu_with(kIsaNone)).q_rotated_bytes, 64u);  // 7 * 3 * 2 = 42, rounded up
}

TEST(MakePlan, UnsupportedListsEveryReason) {
  Problem problem = forward_problem();
  problem.a.dim_qk = problem.a.dim_v = 1024;
  Plan plan;
  const Status status = make_plan(problem, cpu_with(kIsaNone), {}, &plan);
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_EQ(plan.selection.row, nullptr);
  ASSERT_FALSE(plan.selection.refused.empty());
  for (const Refusal& r : plan.selection.refused) {
    EXPECT_NE(status.message.find(std::string(r.row->name) + " " + r.reason), std::string::npos) << r.row->name;
  }
}

TEST(MakePlan, ForcedKernelThatDoesNotFitFailsWithItsReason) {
  Plan plan;
  Status status = make_plan(backward_problem(), cpu_with(kIsaNone), {"reference_fwd", 1}, &plan);
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_EQ(status.message, "the forced kernel cannot run: reference_fwd computes the forward, not the backward");
  status = make_plan(forward_problem(), cpu_with(kIsaNone), {"no_such", 1}, &plan);
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_NE(status.message.find("there is no kernel named 'no_such'"), std::string::npos);
}

TEST(MakePlan, DeviceWithoutKernelsIsUnsupported) {
  DeviceInfo device = cpu_with(kIsaNone);
  device.name = device.kind = "abacus";
  Plan plan;
  const Status status = make_plan(forward_problem(), device, {}, &plan);
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_EQ(status.message, "there are no kernels for abacus");
}

}  // namespace
}  // namespace flashwave

// Which kernels NVIDIA GPUs are given, and how their work is cut up, asked about GPUs that are not there.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "tests/unit_plan/problems.h"

namespace flashwave {
namespace {

DeviceInfo gpu(uint32_t isa, int64_t units, int64_t lds_bytes) {
  DeviceInfo d;
  d.name = "cuda:0", d.kind = "cuda", d.arch = "a GPU";
  d.isa = isa;
  d.compute_units = units;
  d.lds_bytes = lds_bytes;
  return d;
}
DeviceInfo turing() { return gpu(kIsaSm75, 72, 65536); }
DeviceInfo ada() { return gpu(kIsaSm75 | kIsaSm80, 128, 101376); }
DeviceInfo ampere() { return gpu(kIsaSm75 | kIsaSm80, 108, 166912); }
DeviceInfo hopper() { return gpu(kIsaSm75 | kIsaSm80 | kIsaSm90, 132, 232448); }

Problem with_type(Problem p, fw_dtype dtype) {
  for (fw_tensor* t : {&p.a.q, &p.a.k, &p.a.v, &p.a.o}) t->dtype = dtype;
  return p;
}

class NvidiaPlan : public PlanOf {
 protected:
  NvidiaPlan() : PlanOf("cuda") {}
};

// Whether or not all reasons are wanted, the same one.
std::string chosen(const Problem& problem, const DeviceInfo& device) {
  const Selection selection = select(problem, device);
  const Selection quick = select(problem, device, {.reasons = Reasons::kNone});
  EXPECT_EQ(quick.row, selection.row);
  EXPECT_TRUE(quick.refused.empty());
  return selection.row != nullptr ? selection.row->name : "none";
}
void expect_chosen(const Problem& problem, const DeviceInfo& device, std::string_view prefix) {
  const std::string name = chosen(problem, device);
  EXPECT_TRUE(name.starts_with(prefix)) << name << " and not " << prefix;
}

TEST_F(NvidiaPlan, EachGenerationItsOwn) {
  expect_chosen(forward_problem(), hopper(), "hopper_fwd_bf16_d64_");
  expect_chosen(forward_problem(), ampere(), "ampere_fwd_bf16_d64_");
  expect_chosen(forward_problem(), ada(), "ampere_fwd_bf16_d64_");
  expect_chosen(forward_problem(), turing(), "nvidia_generic_fwd_bf16");
  expect_chosen(with_type(forward_problem(), FW_F16), turing(), "ampere_fwd_f16_d64_");
}

// A kernel of another element type is told of as that, whatever else it would need: `explain` only counts them.
TEST_F(NvidiaPlan, OtherElementTypesAreNoCandidates) {
  Problem decode = forward_problem();
  decode.a.seqlen_q = 1, decode.a.dim_qk = decode.a.dim_v = 128;
  int others = 0;
  for (const DeviceInfo& device : {ada(), ampere()}) {
    for (const Refusal& refused : select(decode, device).refused) {
      if (refused.row == nullptr || refused.row->op != Op::kForward || refused.row->dtypes & kRowBF16) continue;
      ++others;
      EXPECT_TRUE(refused.rule == Reason::kDtype || refused.rule == Reason::kIsa) << refused.row->name;
    }
  }
  EXPECT_GT(others, 0);
}

TEST_F(NvidiaPlan, SinglePrecisionIsGeneric) {
  for (const DeviceInfo& device : {turing(), ada(), ampere(), hopper()}) {
    expect_chosen(with_type(forward_problem(), FW_F32), device, "nvidia_generic_fwd_f32");
    expect_chosen(with_type(backward_problem(), FW_F32), device, "nvidia_generic_bwd_f32");
  }
}

Problem backward_of(int64_t seqlen, int64_t dim) {
  Problem p = backward_problem();
  p.a.seqlen_q = p.a.seqlen_k = seqlen;
  p.a.dim_qk = p.a.dim_v = dim;
  return p;
}

TEST_F(NvidiaPlan, BackwardOfHopper) {
  EXPECT_EQ(chosen(backward_of(129, 64), hopper()), "hopper_bwd_bf16_d64_m128n128");
  EXPECT_EQ(chosen(with_type(backward_of(129, 64), FW_F16), hopper()), "hopper_bwd_f16_d64_m128n128");
  EXPECT_EQ(chosen(backward_of(128, 96), hopper()), "hopper_bwd_bf16_d128_m64n128");
  EXPECT_EQ(chosen(backward_of(128, 192), hopper()), "hopper_bwd_bf16_d256_m64n128_pair");
  EXPECT_EQ(chosen(backward_of(128, 264), hopper()), "nvidia_generic_bwd_bf16");
}

// By shared memory: 163 KB, 99 KB, 64 KB.
TEST_F(NvidiaPlan, BackwardOfOtherGpus) {
  EXPECT_EQ(chosen(backward_of(128, 64), ampere()), "ampere_bwd_bf16_d64_m128n64");
  EXPECT_EQ(chosen(backward_of(128, 96), ampere()), "ampere_bwd_bf16_d128_m64n64");
  EXPECT_EQ(chosen(backward_of(128, 192), ampere()), "ampere_bwd_bf16_d256_m64n64");
  EXPECT_EQ(chosen(backward_of(128, 64), ada()), "ampere_bwd_bf16_d64_m128n64");
  EXPECT_EQ(chosen(backward_of(128, 128), ada()), "ampere_bwd_bf16_d128_m64n64");
  EXPECT_EQ(chosen(backward_of(128, 256), ada()), "ampere_bwd_bf16_d256_m32n32");
  EXPECT_EQ(chosen(backward_of(128, 264), ada()), "nvidia_generic_bwd_bf16");
  EXPECT_EQ(chosen(backward_of(128, 64), turing()), "nvidia_generic_bwd_bf16") << "it knows no bf16";
  for (const auto& [dim, name] : {std::pair{64, "ampere_bwd_f16_d64_m64n64"},
                                  {128, "ampere_bwd_f16_d128_m32n64"},
                                  {256, "ampere_bwd_f16_d256_m32n16"}}) {
    EXPECT_EQ(chosen(with_type(backward_of(128, dim), FW_F16), turing()), name);
  }
}

Problem with_modifiers(Problem p) {
  p.a.softcap = 30;
  p.a.alibi_slopes = present<float>();
  p.a.bias = tensor(FW_F32, 0, 0, 256);
  p.a.sinks = present<float>();
  p.a.dropout_p = 0.1f;
  return p;
}
Problem with_all_gradients(Problem p) {
  p = with_modifiers(p);
  p.g.d_bias = p.a.bias;
  p.g.d_sinks = p.g.d_slopes = present<float>();
  p.g.d_lse = p.a.lse;
  return p;
}

TEST_F(NvidiaPlan, NoTrainingIn16BitsIsSlow) {
  for (const DeviceInfo& device : {turing(), ada(), ampere(), hopper()}) {
    for (const fw_dtype dtype : {FW_F16, FW_BF16}) {
      if (dtype == FW_BF16 && device.isa == turing().isa) continue;
      for (const int64_t dim : {1, 7, 64, 96, 200, 256}) {
        Problem p = with_type(backward_of(128, dim), dtype);
        for (const Problem& asked : {p, with_modifiers(p), with_all_gradients(p)}) {
          for (const uint64_t flags : {uint64_t{0}, uint64_t{FW_DETERMINISTIC}}) {
            Problem each = asked;
            each.a.flags |= flags;
            const Selection selection = select(each, device);
            ASSERT_NE(selection.row, nullptr);
            EXPECT_FALSE(is_slow_path(*selection.row)) << selection.row->name;
          }
        }
      }
    }
  }
}

std::vector<std::string> names_of(const std::vector<Step>& steps) {
  std::vector<std::string> names;
  for (const Step& step : steps) names.emplace_back(step.row->name);
  return names;
}

TEST_F(NvidiaPlan, BackwardBySumsHasItsPasses) {
  using Names = std::vector<std::string>;
  Plan plan;
  const Problem p = backward_of(300, 128);
  ASSERT_TRUE(make_plan(p, ada(), {}, &plan).ok());
  EXPECT_EQ(names_of(plan.before), (Names{"ampere_bwd_prepare"}));
  EXPECT_EQ(names_of(plan.after), (Names{"ampere_bwd_finish"}));
  EXPECT_EQ(plan.schedule.tasks, 5 * p.a.heads_k * p.a.batch) << "tiles of 64 keys";
  EXPECT_EQ(plan.schedule.keys_per_split, 64);
  EXPECT_EQ(plan.schedule.zeroed_bytes, 0) << "the pass before clears";
  EXPECT_EQ(plan.before[0].schedule.tasks, 5 * p.a.heads_q * p.a.batch) << "blocks of 64 queries";
  EXPECT_EQ(plan.before[0].schedule.dq_columns, 128) << "they must agree about the blocks";
  const int64_t block = 64 * 8 + 128 + 64 * 128 * 4, blocks = 128 + 5 * block * p.a.heads_q * p.a.batch;
  EXPECT_EQ(plan.schedule.workspace_bytes, blocks);
  EXPECT_FALSE(plan.schedule.in_order);

  Problem all = with_all_gradients(p);
  all.a.flags |= FW_DETERMINISTIC;
  ASSERT_TRUE(make_plan(all, ada(), {}, &plan).ok());
  EXPECT_EQ(names_of(plan.after), (Names{"ampere_bwd_finish", "ampere_bwd_dbias_bf16_d128_m64n64", "ampere_bwd_sums"}));
  EXPECT_EQ(plan.after[1].schedule.tasks, 5 * 5) << "the bias tells neither sequences nor heads apart";
  EXPECT_EQ(plan.schedule.workspace_bytes, blocks + p.a.batch * p.a.heads_q * 5 * 8 * 4) << "parts of the slopes";
  EXPECT_TRUE(plan.schedule.in_order);
  all.g.d_bias.stride[3] = 0;
  ASSERT_TRUE(make_plan(all, ada(), {}, &plan).ok());
  EXPECT_EQ(plan.after[1].schedule.tasks, 5);
  all.a.seqlen_q = 0;
  ASSERT_TRUE(make_plan(all, ada(), {}, &plan).ok());
  EXPECT_EQ(names_of(plan.after), (Names{"ampere_bwd_finish", "ampere_bwd_sums"})) << "there is no entry of the bias";
}

// A kernel of its own has passes of its own, also where those of another family would fit.
TEST_F(NvidiaPlan, BackwardOfAnotherFamilyOnHopper) {
  Plan plan;
  for (const char* name : {"ampere_bwd_bf16_d128_m64n64", "ampere_bwd_bf16_d128_m64n64_modified"}) {
    ASSERT_TRUE(make_plan(backward_of(300, 128), hopper(), {.force_kernel = name}, &plan).ok());
    EXPECT_EQ(names_of(plan.before), (std::vector<std::string>{"ampere_bwd_prepare"}));
    EXPECT_EQ(names_of(plan.after), (std::vector<std::string>{"ampere_bwd_finish"}));
  }
}

// A pair of CTAs makes half as many sums in memory, and takes longer to begin a tile.
TEST_F(NvidiaPlan, BackwardByPairsWhereTilesAreLongOrSumsAreInOrder) {
  const std::string_view single = "hopper_bwd_bf16_d128_m64n128", pair = "hopper_bwd_bf16_d128_m64n256_pair";
  Problem p = backward_of(1023, 128);
  p.a.heads_q = p.a.heads_k;
  EXPECT_EQ(chosen(p, hopper()), single);
  p.a.seqlen_q = 1024;
  EXPECT_EQ(chosen(p, hopper()), pair);
  p.a.flags |= FW_CAUSAL;
  EXPECT_EQ(chosen(p, hopper()), single);
  p.a.heads_q *= 4;
  EXPECT_EQ(chosen(p, hopper()), pair);
  Problem ordered = backward_of(129, 64);
  ordered.a.flags |= FW_DETERMINISTIC;
  EXPECT_EQ(chosen(ordered, hopper()), "hopper_bwd_bf16_d64_m128n256_pair");
  const Selection forced = select(ordered, hopper(), {.force_kernel = "hopper_bwd_bf16_d64_m128n128"});
  ASSERT_NE(forced.row, nullptr) << "it can make them in order, too";
  EXPECT_TRUE(gpu_schedule(ordered, hopper(), *forced.row).in_order);
  EXPECT_FALSE(gpu_schedule(backward_of(129, 64), hopper(), *forced.row).in_order);
  ordered.a.flags |= FW_CAUSAL;
  EXPECT_EQ(chosen(ordered, hopper()), "hopper_bwd_bf16_d64_m128n128") << "with a mask they end one after the other";
  Problem window = backward_of(8192, 128);
  window.a.heads_q = window.a.heads_k;
  window.a.flags |= FW_CAUSAL;
  EXPECT_EQ(chosen(window, hopper()), pair);
  window.a.window_left = 1024;
  EXPECT_EQ(chosen(window, hopper()), single) << "few queries see a tile of keys";
}

TEST_F(NvidiaPlan, BackwardWithScoreModifiersHasItsKernels) {
  Problem p = backward_of(129, 64);
  p.a.softcap = 30;
  EXPECT_EQ(chosen(p, hopper()), "hopper_bwd_bf16_d64_m64n128_modified");
  p.a.flags |= FW_DETERMINISTIC;
  EXPECT_EQ(chosen(p, hopper()), "hopper_bwd_bf16_d64_m64n128_modified") << "it makes sums in order, too";
  p.a.dim_qk = p.a.dim_v = 128;
  EXPECT_EQ(chosen(p, hopper()), "hopper_bwd_bf16_d128_m64n128_pair_modified");
  p.a.dim_qk = p.a.dim_v = 256;
  EXPECT_EQ(chosen(p, hopper()), "hopper_bwd_bf16_d256_m64n128_pair_modified");
  p = backward_of(128, 64);
  p.a.bias = tensor(FW_F32, 0, 0, 256);
  expect_chosen(p, hopper(), "hopper_bwd_");
  p.g.d_bias = p.a.bias;
  EXPECT_EQ(chosen(p, hopper()), "ampere_bwd_bf16_d64_m64n64_modified");
}

// One tile has all keys of a head, in ragged batches too: nothing is added to dQ in memory.
TEST_F(NvidiaPlan, BackwardOfFewKeysWritesDqAtOnce) {
  Plan plan;
  Problem p = backward_of(128, 64);
  p.a.seqlen_q = 1000;
  ASSERT_TRUE(make_plan(p, hopper(), {}, &plan).ok());
  EXPECT_EQ(std::string_view(plan.selection.row->name), "hopper_bwd_bf16_d64_m64n128_short");
  EXPECT_EQ(plan.before.size(), 1u);
  EXPECT_TRUE(plan.after.empty());
  p.a.dropout_p = 0.1f;
  ASSERT_TRUE(make_plan(p, hopper(), {}, &plan).ok());
  EXPECT_EQ(std::string_view(plan.selection.row->name), "hopper_bwd_bf16_d64_m64n128_short_modified");
  EXPECT_TRUE(plan.after.empty());

  p.a.seqlen_k = 129;
  ASSERT_TRUE(make_plan(p, hopper(), {}, &plan).ok());
  EXPECT_EQ(std::string_view(plan.selection.row->name), "hopper_bwd_bf16_d64_m64n128_modified");
}

TEST_F(NvidiaPlan, BackwardTakesRowsThatTensorMapsTake) {
  for (fw_tensor fw_gradients::* tensor :
       {&fw_gradients::d_o, &fw_gradients::dq, &fw_gradients::dk, &fw_gradients::dv}) {
    Problem p = backward_problem();
    (p.g.*tensor).stride[1] += 4;
    EXPECT_EQ(chosen(p, hopper()), "ampere_bwd_bf16_d64_m64n64_modified");
  }
}

TEST_F(NvidiaPlan, BackwardIsPreparedAndFinished) {
  Plan plan;
  Problem p = backward_of(300, 128);
  ASSERT_TRUE(make_plan(p, hopper(), {}, &plan).ok());
  ASSERT_EQ(plan.before.size(), 1u);
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(std::string_view(plan.before[0].row->name), "hopper_bwd_prepare_bf16_d128_m64");
  EXPECT_EQ(std::string_view(plan.after[0].row->name), "hopper_bwd_finish_bf16_d128_m64");
  EXPECT_EQ(plan.before[0].schedule.dq_columns, 0) << "no sums to clear: the first tile stores its own";
  EXPECT_EQ(plan.before[0].schedule.tasks, 5 * p.a.heads_q * p.a.batch) << "blocks of 64 queries";
  EXPECT_EQ(plan.before[0].schedule.zeroed_bytes, 0);
  EXPECT_EQ(plan.schedule.zeroed_bytes, 0) << "the pass before clears the counter";
  EXPECT_TRUE(plan.selection.row->needs & kStartsEarly);
  EXPECT_TRUE(plan.before[0].row->needs & kStartsEarly);
  EXPECT_TRUE(plan.after[0].row->needs & kStartsEarly);
  const int64_t block = 64 * 8 + 128 + 64 * 128 * 4;
  EXPECT_EQ(plan.schedule.workspace_bytes, 128 + 5 * block * p.a.heads_q * p.a.batch);
  p.g.dq = {};
  ASSERT_TRUE(make_plan(p, hopper(), {}, &plan).ok());
  EXPECT_TRUE(plan.after.empty()) << "nobody asks for dQ";
  ASSERT_TRUE(make_plan(backward_of(8192, 128), hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.before[0].schedule.dq_columns, 128) << "pairs add to sums that were cleared";
}

TEST_F(NvidiaPlan, BackwardOfPairsFillsTheGpuWithPairs) {
  Plan plan;
  ASSERT_TRUE(make_plan(backward_of(8192, 128), hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.tasks, 132);
  Problem few = backward_of(300, 256);
  few.a.batch = few.a.heads_q = few.a.heads_k = 1;
  ASSERT_TRUE(make_plan(few, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.tasks, 2 * 3) << "three tiles of 128 keys";
}

TEST_F(NvidiaPlan, FewQueriesAndFewKeysHaveTheirKernels) {
  expect_chosen(forward_problem(1), hopper(), "ampere_decode_bf16_d64");
  expect_chosen(forward_problem(1), ada(), "ampere_decode_bf16_d64_small");
  Problem few_keys = forward_problem(1);
  few_keys.a.seqlen_k = 2;
  expect_chosen(few_keys, hopper(), "ampere_tiny_bf16_d64_");
}

TEST_F(NvidiaPlan, NothingIsRefused) {
  const auto all = [](Problem p) {
    p.a.flags |= FW_CAUSAL;
    return with_modifiers(p);
  };
  for (const DeviceInfo& device : {turing(), ada(), ampere(), hopper()}) {
    for (const fw_dtype dtype : {FW_F16, FW_BF16, FW_F32}) {
      for (const int64_t dim : {1, 7, 64, 96, 200, 512}) {
        Problem p = with_type(forward_problem(), dtype);
        p.a.dim_qk = p.a.dim_v = dim;
        EXPECT_NE(chosen(p, device), "none");
        EXPECT_NE(chosen(all(p), device), "none");
      }
    }
  }
}

TEST_F(NvidiaPlan, TooLittleSharedMemoryIsAReason) {
  const Selection selection = select(forward_problem(), gpu(hopper().isa, 132, 100000));
  bool said = false;
  for (const Refusal& refused : selection.refused) {
    said = said || (refused.reason.starts_with("needs ") && refused.reason.ends_with(" this device has 100000"));
  }
  EXPECT_TRUE(said);
  ASSERT_NE(selection.row, nullptr);
  EXPECT_TRUE(std::string_view(selection.row->name).starts_with("ampere_fwd_"));
}

// A list of kernels that a build forgot to compile, or one GPU of a family left out of its targets.
TEST_F(NvidiaPlan, RowsWithoutMachineCodeAreNotChosen) {
  DeviceInfo device = hopper();
  device.arch = "sm_90";
  device.code = CompiledCode({"ampere_fwd", "generic_attention", "generic_append"});
  const Problem problem = forward_problem();
  Plan plan;
  const Status status = make_plan(problem, device, {}, &plan);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(std::string_view(plan.selection.row->source), "ampere_fwd");
  const std::string reason = "has no machine code for sm_90 in this build of flashwave";
  const std::string text = explain_text(problem, device, plan, status);
  EXPECT_NE(text.find("hopper_fwd_bf16_d64_m192n128"), std::string::npos) << text;
  EXPECT_NE(text.find(": " + reason), std::string::npos) << text;
  const Status forced = make_plan(problem, device, {.force_kernel = "hopper_fwd_bf16_d64_m192n128"}, &plan);
  EXPECT_EQ(forced.message, "the forced kernel cannot run: hopper_fwd_bf16_d64_m192n128 " + reason);
  // Kernels that accompany the chosen one are looked for in the same way.
  const Status append = make_plan(append_problem(), device, {}, &plan);
  EXPECT_TRUE(append.ok()) << append.message;
  device.code = CompiledCode({"ampere_fwd", "generic_attention"});
  EXPECT_EQ(make_plan(append_problem(), device, {}, &plan).message,
            "no kernel of cuda:0 appends k_new and v_new to this cache");
  EXPECT_EQ(make_plan(rotary_problem(), device, {}, &plan).code, FW_UNSUPPORTED);
}

TEST_F(NvidiaPlan, PersistentKernelsFillTheGpuOnceAndCountTheirBlocks) {
  Problem problem = forward_problem(8192);
  problem.a.seqlen_k = 8192;
  Plan plan;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.tasks, 132);
  EXPECT_EQ(plan.schedule.zeroed_bytes, 64);
  EXPECT_EQ(plan.workspace_bytes(), 64u);
  problem = forward_problem(20);
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.tasks, 8) << "no more than there are blocks";
  problem = forward_problem(128);
  problem.a.batch = 50;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.tasks, 132);
  EXPECT_EQ(plan.schedule.zeroed_bytes, 0) << "few and short, they go by number";
  problem.a.seqlen_q = problem.a.seqlen_k = 512;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.zeroed_bytes, 0);
  problem.a.flags |= FW_CAUSAL;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.zeroed_bytes, 0);
  problem.a.seqlen_q = problem.a.seqlen_k = 1024;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.zeroed_bytes, 64) << "a mask makes them unequal";
  problem = forward_problem(128);
  problem.a.batch = 500;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.zeroed_bytes, 64);
}

// The kernel shares the keys of unequal sequences out itself, and splits are reported all the same.
TEST_F(NvidiaPlan, SplitsAreReportedWhereTheKernelChoosesThem) {
  Problem problem = forward_problem(1);
  problem.a.seqlen_k = 4096;
  problem.a.seqused_k = present<int32_t>();
  Plan plan;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  ASSERT_EQ(plan.selection.row->work, Work::kLine);
  ASSERT_EQ(plan.schedule.splits, 0);
  EXPECT_EQ(plan.splits, 17) << "132 workgroups for 2 sequences of 4 heads";
  EXPECT_NE(explain_text(problem, hopper(), plan, {}).find("splits     17\n"), std::string::npos);
  problem.a.num_splits = 3;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.splits, 3);
}

Problem chunk_problem(int64_t queries, int64_t keys, int64_t heads_q, int64_t heads_k) {
  Problem p = forward_problem(queries);
  p.a.batch = 1, p.a.seqlen_k = keys, p.a.heads_q = heads_q, p.a.heads_k = heads_k;
  p.a.dim_qk = p.a.dim_v = 128;
  p.a.q = p.a.o = tensor(FW_BF16, queries * heads_q * 128, heads_q * 128, 128);
  p.a.k = p.a.v = tensor(FW_BF16, keys * heads_k * 128, heads_k * 128, 128);
  return p;
}

// Blocks of queries that leave most of the GPU idle: heads share tiles, and keys are attended to in parts.
TEST_F(NvidiaPlan, AChunkOfQueriesOnALongCacheIsCutIntoPartsOfTheKeys) {
  Problem problem = chunk_problem(32, 32768, 32, 8);
  expect_chosen(problem, hopper(), "hopper_fwd_bf16_d128_m128n128_packed");
  Plan plan;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.heads_per_task, 4) << "all that share a key head";
  EXPECT_EQ(plan.splits, 16) << "8 tiles of 32 queries of 4 heads, 132 workgroups";
  EXPECT_EQ(plan.schedule.tasks, 128);
  ASSERT_EQ(plan.after.size(), 1u);
  EXPECT_EQ(plan.after[0].row->op, Op::kCombine);
  EXPECT_GE(plan.workspace_bytes(), size_t{16} * 32 * 32 * 128 * 4);
  const TensorMapDescriptions maps = describe_tensor_maps(*plan.selection.row, params_of(problem));
  EXPECT_EQ(maps[0].box[1], 16u);
  EXPECT_EQ(maps[0].box[2], 4u);
  EXPECT_EQ(maps[1].box[2], 1u);
  EXPECT_EQ(maps[0].l2_bytes, 256u);
  for (const int read_once : {1, 2}) EXPECT_EQ(maps[read_once].l2_bytes, 128u);

  problem.a.num_splits = 3;
  ASSERT_TRUE(make_plan(problem, hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.splits, 3);
  problem.a.num_splits = 0;

  ASSERT_TRUE(make_plan(chunk_problem(32, 32768, 24, 4), hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.heads_per_task, 2) << "of 6 that share a key head";
  ASSERT_TRUE(make_plan(chunk_problem(32, 32768, 128, 1), hopper(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.heads_per_task, 64);
}

TEST_F(NvidiaPlan, PackedRowsAreForWhatDecodingAndWholeBlocksAreNot) {
  expect_chosen(chunk_problem(4, 32768, 32, 8), hopper(), "ampere_decode_bf16_d128");
  expect_chosen(chunk_problem(5, 32768, 32, 8), hopper(), "hopper_fwd_bf16_d128_m128n128_packed");
  expect_chosen(chunk_problem(16, 32768, 32, 32), hopper(), "ampere_decode_bf16_d128");
  expect_chosen(chunk_problem(16, 32768, 32, 8), ampere(), "ampere_decode_bf16_d128_small");
  const Problem many = chunk_problem(8192, 8192, 32, 8);
  EXPECT_EQ(select(many, hopper()).row->name, std::string_view("hopper_fwd_bf16_d128_m128n128"));
  EXPECT_EQ(select(many, hopper(), {.force_kernel = "hopper_fwd_bf16_d128_m128n128_packed"}).row->work,
            Work::kPackedSplits);
  Problem capped = chunk_problem(32, 32768, 32, 8);
  capped.a.softcap = 30;
  expect_chosen(capped, hopper(), "hopper_fwd_bf16_d128_m128n128_softcap");
  EXPECT_NE(select(many, hopper(), {.force_kernel = "ampere_decode_bf16_d128"}).row, nullptr);
}

// A kernel that prefers other problems is better than none, and than the slow path.
TEST_F(NvidiaPlan, AnUnwillingKernelIsNotLost) {
  DeviceInfo device = ampere();
  const Problem problem = forward_problem();  // more queries than decoding is made for
  device.code = CompiledCode({"nvidia_decode_d64"});
  expect_chosen(problem, device, "ampere_decode_bf16_d64_small");
  device.code = CompiledCode({"nvidia_decode_d64", "generic_attention"});
  expect_chosen(problem, device, "ampere_decode_bf16_d64_small");
  EXPECT_EQ(select(problem, device, {.slow_path = false}).row, select(problem, device).row);
  for (const Refusal& refused : select(problem, device).refused) {
    EXPECT_NE(refused.row, select(problem, device).row) << "the chosen one is not among the refused";
  }
}

TEST_F(NvidiaPlan, TensorMapsAreDescribedByThePlan) {
  Problem problem = forward_problem();
  const Selection selection = select(problem, hopper());
  ASSERT_NE(selection.row, nullptr);
  ASSERT_TRUE(selection.row->needs & kNeedsTensorMaps);
  const TensorMapDescriptions maps = describe_tensor_maps(*selection.row, params_of(problem));
  const std::string_view names[] = {"q", "k", "v", "o"};
  for (size_t i = 0; i < maps.used().size(); ++i) {
    EXPECT_EQ(maps[i].tensor, names[i]);
    EXPECT_EQ(maps[i].base, reinterpret_cast<uintptr_t>(somewhere));
    const bool queries = i == 0 || i == 3;
    EXPECT_EQ(maps[i].dims[0], 64u);
    EXPECT_EQ(maps[i].dims[1], queries ? 128u : 256u) << "rows";
    EXPECT_EQ(maps[i].dims[2], 4u) << "heads";
    EXPECT_EQ(maps[i].strides[0], 512u) << "bytes from row to row";
    EXPECT_EQ(maps[i].strides[1], 128u) << "bytes from head to head";
    EXPECT_EQ(maps[i].box[1], queries ? 64u : static_cast<uint32_t>(selection.row->tile_k));
    EXPECT_EQ(maps[i].l2_bytes, 256u);
  }
}

TEST_F(NvidiaPlan, AScoreModifierAloneHasItsOwnKernel) {
  Problem alibi = forward_problem();
  alibi.a.alibi_slopes = present<float>();
  expect_chosen(alibi, hopper(), "hopper_fwd_bf16_d64_m192n128_alibi_nolse");
  alibi.a.lse = tensor(FW_F32, 4 * 128, 4, 1);
  expect_chosen(alibi, hopper(), "hopper_fwd_bf16_d64_m192n128_alibi");
  alibi.a.softmax_scale = -1;
  expect_chosen(alibi, hopper(), "hopper_fwd_bf16_d64_m192n128_alibi");
  Problem neither = alibi;
  neither.a.alibi_slopes = nullptr;
  expect_chosen(neither, hopper(), "hopper_fwd_bf16_d64_m128n128_modified");
  alibi.a.softmax_scale = 1, alibi.a.dropout_p = 0.1f;
  expect_chosen(alibi, hopper(), "hopper_fwd_bf16_d64_m128n128_modified");

  alibi.a.alibi_slopes = nullptr;
  expect_chosen(alibi, hopper(), "hopper_fwd_bf16_d64_m128n128_dropout");

  Problem bias = forward_problem();
  bias.a.bias = tensor(FW_BF16, 0, 128 * 256, 256);
  expect_chosen(bias, hopper(), "hopper_fwd_bf16_d64_m192n128_bias");
  const TensorMapDescriptions maps = describe_tensor_maps(*select(bias, hopper()).row, params_of(bias));
  ASSERT_EQ(maps.used().size(), 5u);
  EXPECT_EQ(maps[4].tensor, std::string_view("bias"));
  EXPECT_EQ(maps[4].dims[0], 256u) << "keys";
  EXPECT_EQ(maps[4].dims[1], 128u) << "queries";
  EXPECT_EQ(maps[4].strides[0], 512u) << "bytes from query to query";
  EXPECT_EQ(maps[4].strides[1], 65536u) << "bytes from head to head";
  Problem backward = backward_of(256, 64);
  backward.a.bias = tensor(FW_BF16, 0, 256 * 256, 256);
  expect_chosen(backward, hopper(), "hopper_bwd_bf16_d64_m64n128_bias");
  EXPECT_EQ(describe_tensor_maps(*select(backward, hopper()).row, params_of(backward)).used().size(), 5u);
  backward.a.seqlen_k = 128;
  expect_chosen(backward, hopper(), "hopper_bwd_bf16_d64_m64n128_short_bias");
  backward.a.dropout_p = 0.1f;
  expect_chosen(backward, hopper(), "hopper_bwd_bf16_d64_m64n128_short_modified");
  for (const fw_tensor& other : {tensor(FW_F32, 0, 128 * 256, 256), tensor(FW_BF16, 0, 128 * 257, 257),
                                 tensor(FW_BF16, 0, 256 * 128, 1, 128), tensor(FW_BF16, 0, 0, 1, 0)}) {
    bias.a.bias = other;
    expect_chosen(bias, hopper(), "hopper_fwd_bf16_d64_m128n128_modified");
  }
}

TEST_F(NvidiaPlan, PassesOfABackwardFollow) {
  Plan plan;
  ASSERT_TRUE(make_plan(with_type(backward_problem(), FW_F32), ampere(), {}, &plan).ok());
  ASSERT_FALSE(plan.after.empty());
  for (const Step& step : plan.after) {
    EXPECT_EQ(std::string_view(step.row->device), "cuda");
    EXPECT_EQ(step.schedule.zeroed_bytes, 0);
  }
}

TEST_F(NvidiaPlan, RotaryAndAppendRun) {
  Plan plan;
  EXPECT_TRUE(make_plan(rotary_problem(), turing(), {}, &plan).ok());
  Plan append;
  ASSERT_TRUE(make_plan(append_problem(), hopper(), {}, &append).ok());
  EXPECT_NE(append.append, nullptr);
}

Problem with_float_out(Problem p) {
  p.a.o.dtype = FW_F32;
  return p;
}

TEST_F(NvidiaPlan, OutputInFp32) {
  Problem p = with_float_out(forward_problem());
  expect_chosen(p, hopper(), "hopper_fwd_bf16_d64_m128n128_packed");
  expect_chosen(p, ampere(), "ampere_fwd_bf16_d64_");
  Plan plan;
  ASSERT_TRUE(make_plan(p, hopper(), {}, &plan).ok());
  ASSERT_EQ(plan.after.size(), 1u);  // from sums in fp32, though the keys are not split
  EXPECT_EQ(plan.after[0].row->op, Op::kCombine);
  EXPECT_GT(plan.schedule.workspace_bytes, 0);
  p.a.softcap = 5;
  expect_chosen(p, hopper(), "ampere_fwd_bf16_d64_");
  expect_chosen(with_float_out(backward_problem()), hopper(), "hopper_bwd_bf16_d64_");
  Problem gradients = backward_problem();
  gradients.g.dk.dtype = FW_F32;
  EXPECT_EQ(chosen(gradients, hopper()), "ampere_bwd_bf16_d64_m128n64");
}

TEST_F(NvidiaPlan, ResultsAreAddedByAKernelOfTheirOwn) {
  Problem p = with_float_out(forward_problem());
  p.a.flags = FW_ACCUMULATE;
  p.a.lse = tensor(FW_F32, 128 * 4, 4, 1);
  for (const DeviceInfo& device : {turing(), ampere(), hopper()}) {
    Plan plan;
    ASSERT_TRUE(make_plan(p, device, {}, &plan).ok());
    ASSERT_NE(plan.merge, nullptr);
    EXPECT_EQ(plan.merge->op, Op::kMerge);
    EXPECT_EQ(plan.part_o_bytes, size_t{2 * 128 * 4 * 64 * 4});
    EXPECT_EQ(plan.part_lse_bytes, size_t{2 * 128 * 4 * 4});
  }
}

TEST_F(NvidiaPlan, RowsOfNoSequenceAreFilledByAsManyWorkgroupsAsRunAtOnce) {
  for (const DeviceInfo& device : {turing(), ampere(), hopper()}) {
    for (Problem p : {forward_problem(), backward_problem()}) {
      p.a.cu_seqlens_q = present<int32_t>(), p.a.total_q = 256;
      Plan plan;
      ASSERT_TRUE(make_plan(p, device, {}, &plan).ok());
      EXPECT_EQ(plan.fill, nullptr);
      p.a.flags |= FW_FILL_UNUSED;
      ASSERT_TRUE(make_plan(p, device, {}, &plan).ok());
      ASSERT_NE(plan.fill, nullptr);
      EXPECT_STREQ(plan.fill->name, "nvidia_fill");
      EXPECT_EQ(fill_schedule(device, *plan.fill).tasks, device.compute_units);
    }
  }
}

TEST_F(NvidiaPlan, GradientsAreNotAdded) {
  Problem p = backward_problem();
  p.a.flags |= FW_ACCUMULATE;
  p.g.dq.dtype = p.g.dk.dtype = p.g.dv.dtype = FW_F32;
  Plan plan;
  const Status status = make_plan(p, hopper(), {}, &plan);
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_NE(status.message.find("adds to gradients"), std::string::npos) << status.message;
}

TEST_F(NvidiaPlan, PositionsThatAreMoreThanAWindowAreGeneric) {
  Problem p = forward_problem();
  p.a.flags = FW_POSITIONS;
  p.a.position_q = 1000, p.a.position_k = 500;
  p.a.alibi_slopes = present<float>();
  p.fold_positions();
  expect_chosen(p, hopper(), "nvidia_generic_fwd_bf16");
  const std::string why = refusal(*select(forward_problem(), hopper()).row, p, hopper());
  EXPECT_NE(why.find("position_q and position_k"), std::string::npos) << why;
  p = forward_problem();
  p.a.flags = FW_POSITIONS | FW_CAUSAL;
  p.a.position_q = 1000, p.a.position_k = 800;
  p.fold_positions();
  expect_chosen(p, hopper(), "hopper_fwd_bf16_d64_");
}

}  // namespace
}  // namespace flashwave

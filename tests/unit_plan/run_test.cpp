// What run() hands to a device: a device that only writes down what it is told.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tests/unit_plan/problems.h"

namespace flashwave {
namespace {

struct Launched {
  std::string kernel;
  abi::Params params;
  abi::Schedule schedule;
  LaunchOptions options;
  std::vector<std::string> maps;  // tensors that are mapped for it
};

class RecordingDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return facts; }
  Status alloc(size_t, void**) override { return {FW_INTERNAL_ERROR, "not part of these tests"}; }
  Status free(void*) override { return {FW_INTERNAL_ERROR, "not part of these tests"}; }
  Status copy(void*, const void*, size_t, fw_copy_kind, void*) override { return {FW_INTERNAL_ERROR, "nor this"}; }
  Status synchronize(void*) override { return {}; }
  char* cached_workspace(size_t bytes) override {
    if (out_of_memory) return nullptr;
    lent = bytes;
    return static_cast<char*>(std::aligned_alloc(64, bytes));
  }
  void release_workspace(char* workspace) override {
    ++released;
    std::free(workspace);
  }
  Status launch(const Kernel& kernel, const abi::Params& params, const abi::Schedule& schedule,
                const LaunchOptions& options) override {
    launches.push_back({kernel.name, params, schedule, options, {}});
    for (const abi::TensorMapDescription& map : options.tensor_maps) launches.back().maps.emplace_back(map.tensor);
    return launches.size() == fail_at ? Status{FW_DEVICE_ERROR, "asked to fail"} : Status{};
  }

  std::vector<Launched> launches;
  size_t fail_at = 0, lent = 0;
  int released = 0;
  bool out_of_memory = false;
  DeviceInfo facts = cpu_with(kIsaNone);
};

struct Call {
  RecordingDevice device;
  Plan plan;
  Status status;
  const Launched& last() const { return device.launches.back(); }
};

void make(Call& call, const Problem& problem, const RunOptions& options = {}) {
  const Status planned = make_plan(problem, call.device.info(), {nullptr, 3}, &call.plan);
  ASSERT_TRUE(planned.ok()) << planned.message;
  call.status = run(call.device, problem, call.plan, options);
}

void same_tensor(const abi::Tensor& a, const fw_tensor& b) {
  EXPECT_EQ(a.data, b.data);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(a.stride[i], b.stride[i]);
  EXPECT_EQ(a.dtype, b.dtype);
}

TEST(Run, ForwardParametersAreTheProblems) {
  // Every field different, so that none can stand for another.
  Problem problem = forward_problem();
  fw_attention& a = problem.a;
  char data[16];
  int32_t index[8];
  float numbers[4];
  const auto view = [&](int n, fw_dtype dtype) {
    return fw_tensor{data + n, {1000 + n, 100 + n, 10 + n, 1}, dtype, 0};
  };
  a.q = view(0, FW_F16), a.k = view(1, FW_F16), a.v = view(2, FW_F16), a.o = view(3, FW_F16);
  a.lse = view(4, FW_F32), a.bias = view(5, FW_F32), a.probs = view(6, FW_F32);
  a.batch = 3, a.seqlen_q = 5, a.seqlen_k = 7, a.heads_q = 6, a.heads_k = 2, a.dim_qk = 16, a.dim_v = 24;
  a.cu_seqlens_q = index, a.cu_seqlens_k = index + 1, a.seqused_k = index + 2, a.leftpad_k = index + 3;
  a.cache_batch_idx = index + 4, a.block_table = index + 5;
  a.total_q = 11, a.total_k = 13;
  a.block_table_stride = 17, a.page_size = 19;
  a.alibi_slopes = numbers, a.alibi_batch_stride = 23, a.sinks = numbers + 1;
  a.softmax_scale = 0.25f, a.softcap = 30, a.dropout_p = 0.5f;
  a.dropout_seed = 0x123456789abcdef0u, a.dropout_offset = 29;
  a.window_left = 31, a.window_right = 37;

  Call call;
  make(call, problem);
  ASSERT_TRUE(call.status.ok()) << call.status.message;
  ASSERT_EQ(call.device.launches.size(), 1u);
  EXPECT_EQ(call.last().kernel, call.plan.selection.row->name);
  const abi::Params& p = call.last().params;
  same_tensor(p.q, a.q), same_tensor(p.k, a.k), same_tensor(p.v, a.v), same_tensor(p.o, a.o);
  same_tensor(p.lse, a.lse), same_tensor(p.bias, a.bias), same_tensor(p.probs, a.probs);
  EXPECT_EQ(p.cu_seqlens_q, a.cu_seqlens_q);
  EXPECT_EQ(p.cu_seqlens_k, a.cu_seqlens_k);
  EXPECT_EQ(p.seqused_k, a.seqused_k);
  EXPECT_EQ(p.leftpad_k, a.leftpad_k);
  EXPECT_EQ(p.cache_batch_idx, a.cache_batch_idx);
  EXPECT_EQ(p.block_table, a.block_table);
  EXPECT_EQ(p.block_table_stride, 17);
  EXPECT_EQ(p.page_size, 19);
  EXPECT_EQ(p.alibi_slopes, numbers);
  EXPECT_EQ(p.alibi_batch_stride, 23);
  EXPECT_EQ(p.sinks, numbers + 1);
  EXPECT_EQ(p.batch, 3);
  EXPECT_EQ(p.seqlen_q, 5);
  EXPECT_EQ(p.seqlen_k, 7);
  EXPECT_EQ(p.heads_q, 6);
  EXPECT_EQ(p.heads_k, 2);
  EXPECT_EQ(p.dim_qk, 16);
  EXPECT_EQ(p.dim_v, 24);
  EXPECT_EQ(p.softmax_scale, 0.25f);
  EXPECT_EQ(p.softcap, 30);
  EXPECT_EQ(p.dropout_p, 0.5f);
  EXPECT_EQ(p.dropout_threshold, 32768u);
  EXPECT_EQ(p.dropout_seed, 0x123456789abcdef0u);
  EXPECT_EQ(p.dropout_offset, 29u);
  EXPECT_EQ(p.window_left, 31);
  EXPECT_EQ(p.window_right, 37);
  EXPECT_EQ(p.seqlen_new, 0);
  EXPECT_EQ(p.d_o.data, nullptr);
}

TEST(Run, BackwardParametersAreTheProblems) {
  Problem problem = backward_problem();
  fw_gradients& g = problem.g;
  char data[8];
  float sums[2];
  const auto view = [&](int n, fw_dtype dtype) {
    return fw_tensor{data + n, {1000 + n, 100 + n, 10 + n, 1}, dtype, 0};
  };
  g.d_o = view(0, FW_BF16), g.d_lse = view(1, FW_F32), g.dq = view(2, FW_BF16), g.dk = view(3, FW_BF16);
  g.dv = view(4, FW_BF16), g.d_bias = view(5, FW_F32);
  g.d_sinks = sums, g.d_slopes = sums + 1;
  Call call;
  make(call, problem);
  ASSERT_TRUE(call.status.ok()) << call.status.message;
  const abi::Params& p = call.last().params;
  same_tensor(p.d_o, g.d_o), same_tensor(p.d_lse, g.d_lse), same_tensor(p.dq, g.dq), same_tensor(p.dk, g.dk);
  same_tensor(p.dv, g.dv), same_tensor(p.d_bias, g.d_bias), same_tensor(p.lse, problem.a.lse);
  EXPECT_EQ(p.d_sinks, sums);
  EXPECT_EQ(p.d_slopes, sums + 1);
}

TEST(Run, WindowsFoldCausalInAndStayFarFromOverflow) {
  struct {
    bool causal;
    int64_t left, right, expected_left, expected_right;
  } const cases[] = {
      {false, -1, -1, abi::kNoWindow, abi::kNoWindow},
      {true, -1, -1, abi::kNoWindow, 0},
      {true, 5, 9, 5, 0},
      {true, 5, 0, 5, 0},
      {false, 0, 0, 0, 0},
      {false, 3, -1, 3, abi::kNoWindow},
      {false, std::numeric_limits<int64_t>::max(), 2, abi::kNoWindow, 2},
  };
  for (const auto& c : cases) {
    Problem problem = forward_problem();
    problem.a.flags = c.causal ? FW_CAUSAL : 0;
    problem.a.window_left = c.left, problem.a.window_right = c.right;
    Call call;
    make(call, problem);
    EXPECT_EQ(call.last().params.window_left, c.expected_left) << c.causal << " " << c.left << " " << c.right;
    EXPECT_EQ(call.last().params.window_right, c.expected_right) << c.causal << " " << c.left << " " << c.right;
  }
}

TEST(Run, AutomaticScaleIsResolved) {
  Call call;
  make(call, forward_problem());
  EXPECT_FLOAT_EQ(call.last().params.softmax_scale, 0.125f);
}

TEST(Run, DropoutThresholdIsRounded) {
  for (const float p : {0.f, 0.1f, 0.17f, 0.9f, 1.f / 65536, 0.4f / 65536}) {
    Problem problem = forward_problem();
    problem.a.dropout_p = p;
    Call call;
    make(call, problem);
    EXPECT_EQ(call.last().params.dropout_threshold, static_cast<uint32_t>(std::floor(p * 65536.0 + 0.5))) << p;
  }
}

TEST(Run, FillRunsFirstOnTheResultsAlone) {
  for (const bool backward : {false, true}) {
    Problem problem = backward ? backward_problem() : forward_problem();
    problem.a.flags |= FW_FILL_UNUSED;
    problem.a.cu_seqlens_q = problem.a.cu_seqlens_k = present<int32_t>();
    problem.a.total_q = problem.a.total_k = 20;
    Call call;
    make(call, problem);
    ASSERT_TRUE(call.status.ok()) << call.status.message;
    ASSERT_EQ(call.device.launches.size(), 2u);
    const Launched& fill = call.device.launches[0];
    EXPECT_EQ(fill.kernel, "fill_unused");
    EXPECT_EQ(fill.schedule.tasks, 1);
    EXPECT_EQ(fill.params.o.data != nullptr, !backward);
    EXPECT_EQ(fill.params.dq.data != nullptr, backward);
    EXPECT_EQ(fill.params.dk.data != nullptr, backward);
    if (backward) EXPECT_EQ(fill.params.lse.data, nullptr) << "it is read";
    EXPECT_EQ(fill.params.q.most, 20);
    EXPECT_NE(call.device.launches[1].params.o.data, nullptr);
  }
}

TEST(Run, AppendRunsFirstAndTheKernelReadsTheRotatedQueries) {
  const Problem problem = append_problem();
  Call call;
  make(call, problem);
  ASSERT_TRUE(call.status.ok()) << call.status.message;
  ASSERT_EQ(call.device.launches.size(), 2u);
  const Launched &append = call.device.launches[0], &kernel = call.device.launches[1];
  EXPECT_EQ(append.kernel, "append_kv");
  EXPECT_EQ(append.schedule.tasks, 2);
  EXPECT_EQ(append.schedule.scratch_bytes, 0);
  EXPECT_EQ(append.schedule.workspace_bytes, 0);
  same_tensor(append.params.q, problem.a.q);
  same_tensor(append.params.k_new, problem.a.k_new), same_tensor(append.params.v_new, problem.a.v_new);
  same_tensor(append.params.rotary_cos, problem.a.rotary_cos);
  same_tensor(append.params.rotary_sin, problem.a.rotary_sin);
  EXPECT_EQ(append.params.rotary_dim, 32);
  EXPECT_EQ(append.params.rotary_interleaved, 0);
  EXPECT_EQ(append.params.rotary_per_row, 0);
  EXPECT_EQ(append.params.seqlen_new, 1);

  const abi::Tensor& rotated = append.params.q_rotated;
  ASSERT_NE(rotated.data, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rotated.data) % 64, 0u);
  EXPECT_EQ(rotated.stride[0], 1 * 4 * 64);
  EXPECT_EQ(rotated.stride[1], 4 * 64);
  EXPECT_EQ(rotated.stride[2], 64);
  EXPECT_EQ(rotated.stride[3], 1);
  EXPECT_EQ(rotated.dtype, FW_BF16);
  EXPECT_EQ(kernel.kernel, call.plan.selection.row->name);
  EXPECT_EQ(kernel.params.q.data, rotated.data);
  EXPECT_EQ(kernel.params.q.stride[1], 4 * 64);
  EXPECT_EQ(kernel.params.seqlen_new, 1);
}

TEST(Run, RotationOfARaggedOrMaskedBatch) {
  Problem problem = append_problem();
  problem.a.cu_seqlens_q = present<int32_t>();
  problem.a.total_q = 2;
  problem.a.flags = FW_CAUSAL | FW_ROTARY_INTERLEAVED;
  Call causal;
  make(causal, problem);
  EXPECT_EQ(causal.device.launches[0].params.q_rotated.stride[0], 0);
  EXPECT_EQ(causal.device.launches[0].params.rotary_per_row, 1);
  EXPECT_EQ(causal.device.launches[0].params.rotary_interleaved, 1);
  problem.a.flags = 0;
  problem.a.window_left = 8;
  Call window;
  make(window, problem);
  EXPECT_EQ(window.device.launches[0].params.rotary_per_row, 1);
}

TEST(Run, AppendWithoutRotaryKeepsTheQueries) {
  Problem problem = append_problem();
  problem.a.rotary_cos = problem.a.rotary_sin = {};
  Call call;
  make(call, problem);
  ASSERT_EQ(call.device.launches.size(), 2u);
  EXPECT_EQ(call.device.launches[0].params.q_rotated.data, nullptr);
  same_tensor(call.device.launches[1].params.q, problem.a.q);
}

TEST(Run, AFailedPrePassEndsTheCallAndGivesTheMemoryBack) {
  const Problem problem = append_problem();
  Call call;
  call.device.fail_at = 1;
  make(call, problem);
  EXPECT_EQ(call.status.code, FW_DEVICE_ERROR);
  EXPECT_EQ(call.device.launches.size(), 1u);
  EXPECT_EQ(call.device.released, 1);
}

TEST(Run, WorkspaceComesFromTheDeviceAndGoesBack) {
  Call call;
  make(call, append_problem());
  EXPECT_EQ(call.device.lent, call.plan.workspace_bytes());
  EXPECT_EQ(call.device.released, 1);

  Call failing;
  failing.device.out_of_memory = true;
  make(failing, append_problem());
  EXPECT_EQ(failing.status.code, FW_OUT_OF_MEMORY);
  EXPECT_TRUE(failing.device.launches.empty());
  EXPECT_EQ(failing.device.released, 0);
}

TEST(Run, WorkspaceOfTheCallerIsCutInThree) {
  alignas(64) static char memory[16 << 20];
  RunOptions options;
  options.workspace = memory;
  options.workspace_size = sizeof memory;
  Call call;
  make(call, append_problem(), options);
  ASSERT_TRUE(call.status.ok()) << call.status.message;
  ASSERT_LE(call.plan.workspace_bytes(), sizeof memory);
  EXPECT_EQ(call.device.lent, 0u);
  EXPECT_EQ(call.device.released, 0);
  EXPECT_EQ(call.device.launches[0].params.q_rotated.data, memory);
  if (call.plan.kernel_bytes > 0) EXPECT_EQ(call.last().options.workspace, memory + call.plan.q_rotated_bytes);
  if (call.plan.scratch_bytes > 0) {
    EXPECT_EQ(call.last().options.scratch, memory + call.plan.q_rotated_bytes + call.plan.kernel_bytes);
  }
  EXPECT_EQ(call.last().options.threads, call.plan.threads);
}

TEST(Run, WorkspaceOfTheCallerIsChecked) {
  const Problem problem = append_problem();
  alignas(64) static char memory[16 << 20];
  Call first;
  make(first, problem);
  const size_t needed = first.plan.workspace_bytes();
  ASSERT_GT(needed, 0u);
  ASSERT_LT(needed, sizeof memory);

  RunOptions options;
  options.workspace = memory;
  options.workspace_size = needed;
  Call exact;
  make(exact, problem, options);
  EXPECT_TRUE(exact.status.ok()) << exact.status.message;

  options.workspace_size = needed - 1;
  Call small;
  make(small, problem, options);
  EXPECT_EQ(small.status.code, FW_WORKSPACE_TOO_SMALL);
  EXPECT_NE(small.status.message.find(std::to_string(needed)), std::string::npos);
  EXPECT_NE(small.status.message.find(std::to_string(needed - 1)), std::string::npos);
  EXPECT_TRUE(small.device.launches.empty());

  options.workspace = memory + 32;
  options.workspace_size = needed;
  Call crooked;
  make(crooked, problem, options);
  EXPECT_EQ(crooked.status.code, FW_INVALID_ARGUMENT);
  EXPECT_NE(crooked.status.message.find("64"), std::string::npos);
}

TEST(Run, RotaryParametersAreTheProblems) {
  Rotary rotary = rotary_problem();
  fw_rotary_embedding& r = rotary.r;
  int32_t indices[4];
  char data[4];
  r.x.data = data, r.out.data = data + 1, r.cos.data = data + 2, r.sin.data = data + 3;
  r.out.stride[1] = 300, r.seqlen_offset = 7;
  r.flags = FW_ROTARY_INTERLEAVED;
  r.cu_seqlens = indices, r.seqlen_offsets = indices + 1, r.total = 250;
  RecordingDevice device;
  Plan plan;
  ASSERT_TRUE(make_plan(rotary, device.info(), {nullptr, 3}, &plan).ok());
  EXPECT_EQ(plan.workspace_bytes(), 0u);
  EXPECT_EQ(plan.schedule.rows_per_task, (32 << 10) / (4 * 64 * 2));
  EXPECT_EQ(plan.schedule.tasks, 4) << "250 rows, 64 in a task";
  EXPECT_EQ(plan.threads, 3);
  int stream = 0;
  const fw_executor executor{};
  ASSERT_TRUE(run(device, rotary, plan, {.stream = &stream, .executor = &executor}).ok());
  ASSERT_EQ(device.launches.size(), 1u);
  const Launched& launch = device.launches[0];
  EXPECT_EQ(launch.kernel, "portable_rotary");
  EXPECT_EQ(launch.options.stream, &stream);
  EXPECT_EQ(launch.options.executor, &executor);
  EXPECT_EQ(launch.options.threads, 3);
  const abi::Params& p = launch.params;
  same_tensor(p.q, r.x), same_tensor(p.q_rotated, r.out);
  same_tensor(p.rotary_cos, r.cos), same_tensor(p.rotary_sin, r.sin);
  EXPECT_EQ(p.cu_seqlens_q, indices);
  EXPECT_EQ(p.seqused_k, indices + 1);
  EXPECT_EQ(p.batch, 2);
  EXPECT_EQ(p.seqlen_q, 128);
  EXPECT_EQ(p.heads_q, 4);
  EXPECT_EQ(p.dim_qk, 64);
  EXPECT_EQ(p.rotary_dim, 32);
  EXPECT_EQ(p.rotary_offset, 7);
  EXPECT_EQ(p.rotary_per_row, 1);
  EXPECT_EQ(p.rotary_interleaved, 1);
  EXPECT_EQ(p.rotary_conjugate, 0);

  r.flags = FW_ROTARY_CONJUGATE;
  r.heads = 1 << 20;
  ASSERT_TRUE(make_plan(rotary, device.info(), {}, &plan).ok());
  EXPECT_EQ(plan.schedule.rows_per_task, 1);
  ASSERT_TRUE(run(device, rotary, plan, {}).ok());
  EXPECT_EQ(device.launches[1].params.rotary_interleaved, 0);
  EXPECT_EQ(device.launches[1].params.rotary_conjugate, 1);
}

TEST(Run, TensorMapsGoWithTheKernelsThatNeedThem) {
  if (catalog_of("cuda").empty()) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  Call call;
  DeviceInfo& gpu = call.device.facts;
  gpu.name = "cuda:0", gpu.kind = "cuda", gpu.arch = "sm_90", gpu.host_memory = false;
  gpu.isa = kIsaSm75 | kIsaSm80 | kIsaSm90;
  gpu.lds_bytes = 232448;
  make(call, forward_problem());
  ASSERT_TRUE(call.status.ok()) << call.status.message;
  EXPECT_EQ(call.last().maps, (std::vector<std::string>{"q", "k", "v", "o"}));
  make(call, append_problem());
  EXPECT_TRUE(call.last().maps.empty()) << call.last().kernel;
}

TEST(Run, StreamAndExecutorReachTheDevice) {
  int stream = 0;
  const fw_executor executor{};
  RunOptions options;
  options.stream = &stream;
  options.executor = &executor;
  Call call;
  make(call, append_problem(), options);
  for (const Launched& launch : call.device.launches) {
    EXPECT_EQ(launch.options.stream, &stream);
    EXPECT_EQ(launch.options.executor, &executor);
  }
}

}  // namespace
}  // namespace flashwave

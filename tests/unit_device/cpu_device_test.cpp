#include "device/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/cpu_info.h"
#include "tests/unit_device/rows.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flashwave {
namespace {

// ------------------------------------------------------------------------------------------------------------ facts

#if defined(__x86_64__)
constexpr uint32_t kBoth = kIsaAvx2 | kIsaAvx512, kAll = kBoth | kIsaAmx, kTiles = kBoth | kIsaTiles,
                   kZen4 = kBoth | kIsaZen4;
#endif

TEST(CpuInfo, LimitsTakeAwayAndNeverAdd) {
  struct {
    uint32_t detected;
    const char* limit;
    uint32_t offered;
  } const cases[] = {
      {kCompiledCpuIsa, nullptr, kCompiledCpuIsa},
      {kCompiledCpuIsa, "", kCompiledCpuIsa},
      {kCompiledCpuIsa, "portable", 0},
#if defined(__x86_64__)
      {kBoth, nullptr, kBoth},
      {kBoth, "", kBoth},
      {kBoth, "avx512", kBoth},
      {kBoth, "avx2", kIsaAvx2},
      {kBoth, "portable", 0},
      {kIsaAvx2, "avx512", kIsaAvx2},
      {kIsaAvx2, "avx2", kIsaAvx2},
      {kIsaNone, "avx512", 0},
      {kIsaNone, "avx2", 0},
      {kAll, nullptr, kAll},
      {kAll, "amx", kAll},
      {kAll, "avx512", kBoth},
      {kAll, "avx2", kIsaAvx2},
      {kBoth, "amx", kBoth},
      {kIsaNone, "amx", 0},
      {kZen4, nullptr, kZen4},
      {kZen4, "zen4", kZen4},
      {kZen4, "avx512", kBoth},
      {kZen4, "amx", kZen4},
      {kAll, "zen4", kBoth},
      {kBoth, "zen4", kBoth},
      {kTiles, "amx_fp16", kTiles},
      {kTiles, "amx", kAll},
      {kAll, "amx_fp16", kAll},
#elif defined(__aarch64__)
      {kIsaNeon, "neon", kIsaNeon},
      {kIsaNone, "neon", 0},
#endif
  };
  for (const auto& c : cases) {
    uint32_t offered = ~0u;
    EXPECT_TRUE(limited_isa(c.detected, c.limit, &offered));
    EXPECT_EQ(offered, c.offered) << c.detected << " " << (c.limit ? c.limit : "(none)");
  }
#if defined(__aarch64__)
  const char* const unknown[] = {"NEON", "avx2", "amx"};
#else
  const char* const unknown[] = {"AVX2", "neon"};
#endif
  for (const char* word : unknown) {
    uint32_t offered = 0;
    EXPECT_FALSE(limited_isa(kCompiledCpuIsa, word, &offered)) << word;
    EXPECT_EQ(offered, kCompiledCpuIsa) << word;
  }
}

TEST(CpuInfo, FactsAreConsistent) {
  const DeviceInfo& info = cpu_device().info();
  EXPECT_EQ(info.name, "cpu");
  EXPECT_EQ(info.kind, "cpu");
  EXPECT_EQ(info.arch, arch_name(info.isa));
  EXPECT_FALSE(info.description.empty());
  EXPECT_GE(info.compute_units, 1);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_TRUE(info.host_memory);
  EXPECT_EQ(info.isa & ~detected_isa(), 0u);
  if (info.isa & kIsaAvx512) EXPECT_TRUE(info.isa & kIsaAvx2);
  if (info.isa & (kIsaZen4 | kIsaAmx)) EXPECT_TRUE(info.isa & kIsaAvx512);
  if (info.isa & kIsaAmxFp16) EXPECT_TRUE(info.isa & kIsaAmx);
}

// The environment is read once, so each case needs a process of its own.
TEST(CpuDeviceDeathTest, IsaEnvironmentVariable) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto code = [](uint32_t isa) {  // an exit code has 8 bits
    return (isa & kIsaAvx2 ? 1 : 0) | (isa & kIsaAvx512 ? 2 : 0) | (isa & kIsaAmx ? 4 : 0) | (isa & kIsaZen4 ? 8 : 0) |
           (isa & kIsaNeon ? 16 : 0) | (isa & kIsaAmxFp16 ? 32 : 0);
  };
  const auto exits_with_isa = [&](const char* limit) {
    setenv("FLASHWAVE_CPU_ISA", limit, 1);
    const DeviceInfo& info = cpu_device().info();
    const bool said = info.description.find("FLASHWAVE_CPU_ISA=") != std::string::npos;
    if (said != (info.isa != detected_isa())) std::exit(100);
    std::exit(code(info.isa));
  };
  const uint32_t isa = detected_isa();
  EXPECT_EXIT(exits_with_isa("portable"), testing::ExitedWithCode(0), "");
#if defined(__x86_64__)
  EXPECT_EXIT(exits_with_isa("avx2"), testing::ExitedWithCode(code(isa & kIsaAvx2)), "");
  EXPECT_EXIT(exits_with_isa("avx512"), testing::ExitedWithCode(code(isa & ~(kIsaZen4 | kIsaTiles))), "");
  EXPECT_EXIT(exits_with_isa("zen4"), testing::ExitedWithCode(code(isa & ~kIsaTiles)), "");
  EXPECT_EXIT(exits_with_isa("amx"), testing::ExitedWithCode(code(isa & ~uint32_t{kIsaAmxFp16})), "");
  EXPECT_EXIT(exits_with_isa("amx_fp16"), testing::ExitedWithCode(code(isa)), "");
#elif defined(__aarch64__)
  EXPECT_NE(isa, 0u);
  EXPECT_EXIT(exits_with_isa("neon"), testing::ExitedWithCode(code(isa)), "");
  EXPECT_EXIT(exits_with_isa("avx2"), testing::ExitedWithCode(code(isa)),
              "FLASHWAVE_CPU_ISA must be portable or neon; 'avx2' is ignored");
#endif
  EXPECT_EXIT(exits_with_isa("sse9"), testing::ExitedWithCode(code(isa)),
              "FLASHWAVE_CPU_ISA must be .*'sse9' is ignored");
}

// ----------------------------------------------------------------------------------------------------------- memory

TEST(CpuDevice, AllocatesWholeAlignedMemory) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1000}, size_t{1} << 20}) {
    void* pointer = nullptr;
    ASSERT_TRUE(cpu_device().alloc(bytes, &pointer).ok());
    ASSERT_NE(pointer, nullptr) << "NULL would mean an absent tensor";
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % 64, 0u);
    std::memset(pointer, 1, bytes);
    EXPECT_TRUE(cpu_device().free(pointer).ok());
  }
  EXPECT_TRUE(cpu_device().free(nullptr).ok());
}

TEST(CpuDevice, SaysWhenThereIsNotEnoughMemory) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 60}) {
    void* pointer = &pointer;
    const Status status = cpu_device().alloc(bytes, &pointer);
    EXPECT_EQ(status.code, FW_OUT_OF_MEMORY);
    EXPECT_NE(status.message.find(std::to_string(bytes)), std::string::npos);
    EXPECT_EQ(pointer, nullptr);
    EXPECT_EQ(cpu_device().cached_workspace(bytes), nullptr);
  }
}

TEST(CpuDevice, Copies) {
  char from[5] = "four", to[5] = {};
  EXPECT_TRUE(cpu_device().copy(to, from, 5, FW_HOST_TO_DEVICE, nullptr).ok());
  EXPECT_STREQ(to, "four");
  EXPECT_TRUE(cpu_device().copy(nullptr, nullptr, 0, FW_DEVICE_TO_DEVICE, nullptr).ok());
  EXPECT_TRUE(cpu_device().synchronize(nullptr).ok());
}

TEST(CachedWorkspace, IsKeptAndGrows) {
  std::thread([] {  // a thread without one yet
    Device& cpu = cpu_device();
    char* first = cpu.cached_workspace(100);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    std::memset(first, 1, 100);
    cpu.release_workspace(first);
    EXPECT_EQ(cpu.cached_workspace(100), first);
    cpu.release_workspace(first);
    EXPECT_EQ(cpu.cached_workspace(1), first);
    cpu.release_workspace(first);

    char* larger = cpu.cached_workspace(10 << 20);
    ASSERT_NE(larger, nullptr);
    std::memset(larger, 1, 10 << 20);
    cpu.release_workspace(larger);
    EXPECT_EQ(cpu.cached_workspace(10 << 20), larger);
    cpu.release_workspace(larger);
    EXPECT_EQ(cpu.cached_workspace(100), larger);
    cpu.release_workspace(larger);
  })
      .join();
}

TEST(CachedWorkspace, ANestedCallGetsOtherMemory) {
  std::thread([] {
    Device& cpu = cpu_device();
    char* outer = cpu.cached_workspace(1000);
    char* inner = cpu.cached_workspace(1000);
    char* innermost = cpu.cached_workspace(2000);
    ASSERT_TRUE(outer && inner && innermost);
    EXPECT_NE(outer, inner);
    EXPECT_NE(inner, innermost);
    std::memset(outer, 1, 1000), std::memset(inner, 2, 1000), std::memset(innermost, 3, 2000);
    EXPECT_EQ(outer[999], 1);
    EXPECT_EQ(inner[999], 2);
    cpu.release_workspace(innermost);
    cpu.release_workspace(inner);
    cpu.release_workspace(outer);
    EXPECT_EQ(cpu.cached_workspace(1000), outer);
    cpu.release_workspace(outer);
  }).join();
}

TEST(CachedWorkspace, VeryLargeOnesAreNotKept) {
  std::thread([] {
    Device& cpu = cpu_device();
    char* small = cpu.cached_workspace(100);
    cpu.release_workspace(small);
    char* large = cpu.cached_workspace((size_t{64} << 20) + 1);
    ASSERT_NE(large, nullptr);
    EXPECT_NE(large, small);
    large[size_t{64} << 20] = 1;
    cpu.release_workspace(large);
    EXPECT_EQ(cpu.cached_workspace(100), small);
    cpu.release_workspace(small);
  }).join();
}

TEST(CachedWorkspace, EachThreadHasItsOwn) {
  Device& cpu = cpu_device();
  char* mine = cpu.cached_workspace(100);
  ASSERT_NE(mine, nullptr);
  std::thread([&] {
    char* other = cpu.cached_workspace(100);
    EXPECT_NE(other, mine);
    cpu.release_workspace(other);
  }).join();
  cpu.release_workspace(mine);
}

// ---------------------------------------------------------------------------------------------------------- launches

// Attention of one query over one key per head: O = V, whatever Q and K are. Many heads make many tasks.
struct OneKey {
  static constexpr int kHeads = 64;
  std::vector<float> q = std::vector<float>(kHeads, 0.5f), k = q, v = q, o = std::vector<float>(kHeads, -1.f);
  abi::Params params{};
  abi::Schedule schedule{};

  OneKey() {
    for (int h = 0; h < kHeads; ++h) v[h] = static_cast<float>(h + 1);
    const auto view = [](std::vector<float>& x) { return abi::Tensor{x.data(), {kHeads, kHeads, 1, 1}, abi::kF32, 0}; };
    params.q = view(q), params.k = view(k), params.v = view(v), params.o = view(o);
    params.batch = params.seqlen_q = params.seqlen_k = params.dim_qk = params.dim_v = 1;
    params.heads_q = params.heads_k = kHeads;
    params.window_left = params.window_right = abi::kNoWindow;
    params.softmax_scale = 1;
    schedule.splits = schedule.rows_per_task = 1;
    schedule.keys_per_split = 1;
    schedule.tasks = kHeads;
  }
  Status launch(int32_t threads, const fw_executor* executor = nullptr) {
    LaunchOptions options;
    options.threads = threads;
    options.executor = executor;
    return cpu_device().launch(*find_row("reference_fwd"), params, schedule, options);
  }
};

TEST(Launch, AKernelOfAnotherMachineIsAnError) {
  OneKey problem;
  const Kernel other{"neon_fwd", "", 0, 0};
  const Status status = cpu_device().launch(other, problem.params, problem.schedule, {});
  EXPECT_EQ(status.code, FW_INTERNAL_ERROR);
  EXPECT_EQ(status.message, "neon_fwd is not a kernel of this CPU");
}

TEST(Launch, EveryRowOfThisCpuHasItsFunction) {
  for (const KernelRow& row : catalog_of("cpu")) {
    if ((row.isa & ~kCompiledCpuIsa) == 0) EXPECT_NE(row.function, nullptr) << row.name;
  }
}

TEST(Launch, AnyNumberOfThreadsGivesTheResult) {
  for (const int32_t threads : {1, 2, 3, 8, 100}) {
    OneKey problem;
    const Status status = problem.launch(threads);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(problem.o, problem.v) << threads;
  }
}

struct CountingExecutor {
  std::atomic<int> runs{0}, jobs{0};
  bool skip_last = false;

  // Backwards and on a thread of its own each, to be unlike the pool.
  static void run(void* context, int32_t workers, void (*job)(void*, int32_t), void* arg) {
    auto* self = static_cast<CountingExecutor*>(context);
    self->runs.fetch_add(1);
    std::vector<std::thread> threads;
    for (int32_t worker = workers - 1 - self->skip_last; worker >= 0; --worker) {
      self->jobs.fetch_add(1);
      threads.emplace_back(job, arg, worker);
    }
    for (auto& thread : threads) thread.join();
  }
  fw_executor hook() { return {this, run}; }
};

TEST(Launch, TheCallersExecutorRunsTheJobs) {
  CountingExecutor counting;
  const fw_executor executor = counting.hook();
  OneKey problem;
  const Status status = problem.launch(3, &executor);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_GE(counting.runs.load(), 1);
  EXPECT_EQ(counting.jobs.load(), 3 * counting.runs.load());
  EXPECT_EQ(problem.o, problem.v);
}

TEST(Launch, AnExecutorThatLeavesOutAJobIsAnError) {
  CountingExecutor counting;
  counting.skip_last = true;
  const fw_executor executor = counting.hook();
  OneKey problem;
  const Status status = problem.launch(3, &executor);
  EXPECT_EQ(status.code, FW_INVALID_ARGUMENT);
  EXPECT_NE(status.message.find("exactly once for each worker"), std::string::npos);
}

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
constexpr uint64_t kFlushToZero = 0x8040, kRoundUp = 0x4000;  // both subnormal bits of MXCSR; its rounding field
uint64_t floating_point_mode() { return _mm_getcsr(); }
void set_floating_point_mode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#else
constexpr uint64_t kFlushToZero = 1 << 24, kRoundUp = 1 << 22;  // of FPCR
uint64_t floating_point_mode() {
  uint64_t mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_floating_point_mode(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#endif

TEST(Launch, FloatingPointModeOfTheThreadDoesNotMatter) {
  const uint64_t before = floating_point_mode();
  for (const int32_t threads : {1, 4}) {
    OneKey problem;
    problem.v.assign(OneKey::kHeads, 1e-40f);
    set_floating_point_mode(before | kFlushToZero | kRoundUp);
    const Status status = problem.launch(threads);
    const uint64_t after = floating_point_mode();
    set_floating_point_mode(before);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(after, before | kFlushToZero | kRoundUp) << "the caller's mode is put back";
    EXPECT_EQ(std::memcmp(problem.o.data(), problem.v.data(), OneKey::kHeads * sizeof(float)), 0);
  }
}
#endif

}  // namespace
}  // namespace flashwave

// What every GPU does, whoever made it, on runtimes that have none (fake_hip.c, fake_cuda.c). They are loaded once, so
// each case has a process of its own.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/driver.h"
#include "tests/paths.h"
#include "tests/unit_device/fake_runtime.h"
#include "tests/unit_device/rows.h"

namespace flashwave {
namespace {

struct Maker {
  const char *device, *library, *file;  // the library and the variable that names it
  const char* capturing;                // variable of the stand-in
  const char* kernel;                   // a row that all of the maker's GPUs run
  const char* prefix;                   // of its functions
};
void PrintTo(const Maker& maker, std::ostream* out) { *out << maker.device; }

const Maker kMakers[] = {
    {"hip", "FLASHWAVE_HIP_LIBRARY", paths::kFakeHip, "FAKE_HIP_CAPTURING", "amd_generic_fwd_bf16", "hip"},
    {"cuda", "FLASHWAVE_CUDA_LIBRARY", paths::kFakeCuda, "FAKE_CUDA_CAPTURING", "nvidia_generic_fwd_bf16", "cu"},
};

class GpuDevice : public testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    setenv("FAKE_HIP_COUNT", "1", 1);
    ASSERT_NO_FATAL_FAILURE(runtime_.open(GetParam().library, GetParam().file, GetParam().device));
    row_ = find_row(GetParam().kernel);
    if (row_ == nullptr) GTEST_SKIP() << "built without kernels of these GPUs";
  }
  Device& device() { return runtime_.device(); }
  std::string asked() { return runtime_.asked(); }
  Status launch(int64_t tasks, const LaunchOptions& options = {}) {
    return device().launch(*row_, some_params(memory_), some_schedule(tasks), options);
  }
  // As a call does that brings no workspace.
  Status launch_with_lent_memory(void* stream) {
    LaunchOptions options;
    options.stream = stream;
    options.workspace = device().cached_workspace(1000);
    EXPECT_NE(options.workspace, nullptr);
    const Status status = launch(1, options);
    device().release_workspace(options.workspace);
    return status;
  }

  FakeRuntime runtime_;
  const KernelRow* row_ = nullptr;
  alignas(64) char memory_[256] = {};
};

TEST_P(GpuDevice, MemoryIsTheDevicesAndErrorsSayWhy) {
  void* memory = nullptr;
  ASSERT_TRUE(device().alloc(100, &memory).ok());
  const std::string text = "words";
  char back[6] = {};
  EXPECT_TRUE(device().copy(memory, text.c_str(), 6, FW_HOST_TO_DEVICE, nullptr).ok());
  EXPECT_TRUE(device().copy(back, memory, 6, FW_DEVICE_TO_HOST, nullptr).ok());
  EXPECT_TRUE(device().synchronize(nullptr).ok());
  EXPECT_EQ(back, text);
  EXPECT_TRUE(device().free(memory).ok());
  EXPECT_TRUE(device().free(nullptr).ok());
  const Status status = device().alloc(size_t{1} << 40, &memory);
  EXPECT_EQ(status.code, FW_OUT_OF_MEMORY);
  EXPECT_TRUE(status.message.starts_with(device().info().name + ": " + GetParam().prefix)) << status.message;
  EXPECT_TRUE(status.message.ends_with(": out of memory")) << status.message;
}

TEST_P(GpuDevice, LoadsAModuleOnceAndLaunches) {
  LaunchOptions options;
  options.stream = memory_;
  ASSERT_TRUE(launch(7, options).ok());
  const std::string first = asked();
  EXPECT_NE(first.find("load ELF"), std::string::npos) << first;
  EXPECT_NE(first.find(std::string("function ") + row_->name + "\n"), std::string::npos) << first;
  char expected[200];
  std::snprintf(expected, sizeof expected, "launch 7 x 1 of %d threads, 0 bytes, on stream %p\n", row_->threads,
                options.stream);
  EXPECT_TRUE(first.ends_with(expected)) << first;
  ASSERT_TRUE(launch(7, options).ok());
  EXPECT_EQ(asked(), expected) << "no second module, no synchronisation";
  ASSERT_TRUE(launch((int64_t{1} << 21) + 1, options).ok());
  EXPECT_NE(asked().find("launch 2097152 x 2 of"), std::string::npos);
}

TEST_P(GpuDevice, WhatMustStartAtZeroIsCleared) {
  memory_[0] = memory_[64] = 1;
  LaunchOptions options;
  options.workspace = memory_;
  options.stream = memory_;
  abi::Schedule schedule = some_schedule(2);
  schedule.zeroed_bytes = 64;
  ASSERT_TRUE(device().launch(*row_, some_params(memory_), schedule, options).ok());
  EXPECT_EQ(memory_[0], 0);
  EXPECT_EQ(memory_[64], 1);
  char expected[200];
  std::snprintf(expected, sizeof expected, "set 64 bytes to 0 on stream %p\nlaunch 2 x 1 of", options.stream);
  const std::string log = asked();
  EXPECT_NE(log.find(expected), std::string::npos) << log;
}

TEST_P(GpuDevice, LentWorkspaceWaitsBetweenStreams) {
  ASSERT_TRUE(launch_with_lent_memory(nullptr).ok());
  EXPECT_EQ(asked().find("waits"), std::string::npos);
  ASSERT_TRUE(launch_with_lent_memory(memory_).ok());
  const std::string log = asked();
  EXPECT_LT(log.find("waits\nlaunch"), log.find("record on stream")) << log;
  EXPECT_EQ(log.find("alloc"), std::string::npos) << "the same memory";
}

TEST_P(GpuDevice, LentWorkspaceStaysOutOfGraphs) {
  setenv(GetParam().capturing, "1", 1);
  const Status status = launch_with_lent_memory(memory_);
  EXPECT_EQ(status.code, FW_INVALID_ARGUMENT);
  EXPECT_EQ(status.message, "workspace: a call whose stream is being captured into a graph must bring its own");
  EXPECT_EQ(asked().find("launch"), std::string::npos);
  LaunchOptions options;
  options.workspace = memory_;
  options.stream = memory_;
  EXPECT_TRUE(launch(1, options).ok()) << "the caller's own memory may be captured";
}

TEST_P(GpuDevice, AKernelWithoutMachineCodeIsNamed) {
  static const Kernel forgotten{"a_kernel", "a_source_that_is_not_compiled", 64, 0};
  EXPECT_FALSE(device().info().code.has(forgotten.source));
  EXPECT_TRUE(device().info().code.has(row_->source));
  const Status status = device().launch(forgotten, {}, some_schedule(1), {});
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_EQ(status.message, device().info().name + ": this build of flashwave has no machine code of a_kernel for " +
                                device().info().arch);
}

INSTANTIATE_TEST_SUITE_P(Makers, GpuDevice, testing::ValuesIn(kMakers),
                         [](const auto& maker) { return std::string(maker.param.device); });

// One code object serves a family, and each GPU's loader is shown its own number.
TEST(HipDevice, CodeObjectsBearTheNumberOfTheGpu) {
  const KernelRow* row = find_row("amd_generic_fwd_bf16");
  if (row == nullptr) GTEST_SKIP() << "built without kernels of AMD GPUs";
  setenv("FLASHWAVE_HIP_LIBRARY", paths::kFakeHip, 1);
  setenv("FAKE_HIP_COUNT", "1", 1);
  setenv("FAKE_HIP_ARCH", "gfx1151", 1);
  void* library = dlopen(paths::kFakeHip, RTLD_NOW | RTLD_LOCAL);
  Device* found = nullptr;
  ASSERT_TRUE(find_device("hip", &found).ok());
  if (!found->info().code.any()) GTEST_SKIP() << "built without kernels of this GPU";
  char memory[64];
  ASSERT_TRUE(found->launch(*row, some_params(memory), some_schedule(1), {}).ok());
  const std::string log = reinterpret_cast<const char* (*)()>(dlsym(library, "fake_gpu_log"))();
  EXPECT_NE(log.find("load ELF of machine 0x4a\n"), std::string::npos) << log;
}

}  // namespace
}  // namespace flashwave

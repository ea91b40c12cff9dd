#include <atomic>
#include <cstring>
#include <thread>

#include "hip_sample.h"

namespace {

using namespace hip_test;

class HipLaunch : public Kernels {};

TEST_F(HipLaunch, ArgumentsByPointersAndByBuffer) {
  const int count = 100;
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = 0.25f * static_cast<float>(i);
  const DeviceArray<float> in(values);
  const auto expect = [&](const DeviceArray<float>& out, float factor) {
    const std::vector<float> read = out.read();
    for (int i = 0; i < count; ++i) EXPECT_EQ(read[i], values[i] * factor);
  };
  {
    const DeviceArray<float> out(count);
    EXPECT_EQ(launch("scale", 2, 64, out.data(), in.data(), count, 3.0f), hipSuccess) << fwemu_last_error();
    expect(out, 3);
  }
  const DeviceArray<float> out(count);
  struct {
    float* out;
    float* in;
    int count;
    float factor;
  } packed{out.data(), in.data(), count, -2};
  size_t bytes = sizeof packed;
  void* extra[] = {reinterpret_cast<void*>(HIP_LAUNCH_PARAM_BUFFER_POINTER), &packed,
                   reinterpret_cast<void*>(HIP_LAUNCH_PARAM_BUFFER_SIZE), &bytes,
                   reinterpret_cast<void*>(HIP_LAUNCH_PARAM_END)};
  EXPECT_EQ(hipModuleLaunchKernel(function("scale"), 2, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra), hipSuccess)
      << fwemu_last_error();
  expect(out, -2);

  void* pointers[] = {&packed.out};
  EXPECT_EQ(hipModuleLaunchKernel(function("scale"), 2, 1, 1, 64, 1, 1, 0, nullptr, pointers, extra),
            hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "twice")) << fwemu_last_error();
  bytes = 20;
  EXPECT_EQ(hipModuleLaunchKernel(function("scale"), 2, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra),
            hipErrorInvalidValue);
  EXPECT_EQ(hipModuleLaunchKernel(function("scale"), 2, 1, 1, 64, 1, 1, 0, nullptr, nullptr, nullptr),
            hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "argument 0")) << fwemu_last_error();
}

TEST_F(HipLaunch, ArgumentsOfAllSizesKeepTheirPlaces) {
  struct Mixed {
    char first;
    double second;
    int third[3];
  } mixed{-3, 1.5, {1, 2, 77}};
  const DeviceArray<double> out(5);
  EXPECT_EQ(launch("arguments", 1, 64, out.data(), static_cast<char>(-7), mixed, static_cast<short>(-300)), hipSuccess)
      << fwemu_last_error();
  EXPECT_EQ(out.read(), (std::vector<double>{-7, -3, 1.5, 77, -300}));
}

TEST_F(HipLaunch, DynamicLds) {
  const int count = 128;
  const DeviceArray<int> out(count);
  int* data = out.data();
  int n = count;
  void* pointers[] = {&data, &n};
  EXPECT_EQ(hipModuleLaunchKernel(function("reverse"), 1, 1, 1, count, 1, 1, count * 4, nullptr, pointers, nullptr),
            hipSuccess)
      << fwemu_last_error();
  const std::vector<int> read = out.read();
  for (int i = 0; i < count; ++i) EXPECT_EQ(read[i], count - 1 - i);
  EXPECT_EQ(hipModuleLaunchKernel(function("reverse"), 1, 1, 1, count, 1, 1, count * 4 - 4, nullptr, pointers, nullptr),
            hipErrorIllegalAddress)
      << "too little LDS";
  EXPECT_EQ(hipModuleLaunchKernel(function("reverse"), 1, 1, 1, count, 1, 1, 65537, nullptr, pointers, nullptr),
            hipErrorLaunchOutOfResources);
}

TEST_F(HipLaunch, ShapesThatAreNotPossible) {
  const DeviceArray<int> out(64);
  EXPECT_EQ(launch("small_groups", 0, 64, out.data()), hipErrorInvalidConfiguration);
  EXPECT_EQ(launch("small_groups", 1, 0, out.data()), hipErrorInvalidConfiguration);
  EXPECT_EQ(launch("lookup", 1, 1025, out.data()), hipErrorInvalidConfiguration);
  EXPECT_EQ(launch("lookup", 0x7fffffff, 64, out.data()), hipErrorInvalidConfiguration) << "2^32 work-items and more";
  EXPECT_EQ(launch("small_groups", 1, 65, out.data()), hipErrorInvalidConfiguration);
  EXPECT_TRUE(contains(fwemu_last_error(), "at most 64")) << fwemu_last_error();
}

TEST_F(HipLaunch, OutOfBoundsIsAnErrorWhateverIsChecked) {
  const DeviceArray<float> out(64);
  for (const char* mode : {"1", "report", "0"}) {
    ASSERT_EQ(fwemu_set_option("check", mode), 0);
    EXPECT_EQ(launch("past_end", 1, 64, out.data(), 32), hipErrorIllegalAddress) << mode;
    const std::string text = fwemu_last_error();
    EXPECT_TRUE(contains(text, "past the end of the allocation of 256 bytes")) << text;
    EXPECT_TRUE(contains(text, "past_end")) << text;
    EXPECT_TRUE(contains(text, "hip_kernels.hip:")) << text;
  }
}

TEST_F(HipLaunch, UseAfterFreeIsSeen) {
  void* freed = nullptr;
  ASSERT_EQ(hipMalloc(&freed, 256), hipSuccess);
  ASSERT_EQ(hipFree(freed), hipSuccess);
  EXPECT_EQ(launch("lookup", 1, 64, freed), hipErrorIllegalAddress);
  EXPECT_TRUE(contains(fwemu_last_error(), "which was freed")) << fwemu_last_error();
}

TEST_F(HipLaunch, HostMemoryThatWasNotAllocatedHereIsOutOfBounds) {
  std::vector<int> host(64);
  EXPECT_EQ(launch("lookup", 1, 64, host.data()), hipErrorIllegalAddress);
  void* pinned = nullptr;
  ASSERT_EQ(hipHostMalloc(&pinned, 256, 0), hipSuccess);
  EXPECT_EQ(launch("lookup", 1, 64, pinned), hipSuccess) << fwemu_last_error();
  EXPECT_EQ(static_cast<int*>(pinned)[1], 20);
  EXPECT_EQ(hipHostFree(pinned), hipSuccess);
}

TEST_F(HipLaunch, CheckersFailTheLaunchOrOnlyReport) {
  const DeviceArray<float> out(64);
  EXPECT_EQ(launch("uninitialised", 1, 64, out.data()), hipErrorLaunchFailure);
  EXPECT_TRUE(contains(fwemu_last_error(), "read before it was ever written")) << fwemu_last_error();
  EXPECT_GE(fwemu_report_count(), 1u);
  EXPECT_TRUE(contains(reports(), "uninitialised")) << reports();
  fwemu_clear_reports();
  EXPECT_EQ(fwemu_report_count(), 0u);
  EXPECT_EQ(reports(), "");

  ASSERT_EQ(fwemu_set_option("check", "report"), 0);
  EXPECT_EQ(launch("uninitialised", 1, 64, out.data()), hipSuccess);
  EXPECT_GE(fwemu_report_count(), 1u);
  fwemu_clear_reports();

  ASSERT_EQ(fwemu_set_option("check", "0"), 0);
  EXPECT_EQ(launch("uninitialised", 1, 64, out.data()), hipSuccess);
  EXPECT_EQ(fwemu_report_count(), 0u);

  ASSERT_EQ(fwemu_set_option("check", "1"), 0);
  ASSERT_EQ(fwemu_set_option("checks", "wait,bounds"), 0);
  EXPECT_EQ(launch("uninitialised", 1, 64, out.data()), hipSuccess) << fwemu_last_error();
}

TEST_F(HipLaunch, CountersNameEachLaunch) {
  const DeviceArray<int> out(64);
  EXPECT_EQ(counters(-1), "[]");
  ASSERT_EQ(launch("lookup", 1, 64, out.data()), hipSuccess);
  const std::string one = counters(kGfx942);
  EXPECT_TRUE(contains(one, "\"kernel\": \"lookup\"")) << one;
  EXPECT_TRUE(contains(one, "\"grid\": [1, 1, 1], \"block\": [64, 1, 1]")) << one;
  EXPECT_FALSE(contains(one, "\"instructions\": 0")) << one;
  EXPECT_EQ(counters(kGfx1100), "[]");
  fwemu_reset_counters(kGfx1100);
  EXPECT_EQ(counters(-1), one);
  fwemu_reset_counters(kGfx942);
  EXPECT_EQ(counters(-1), "[]");
}

TEST_F(HipLaunch, FromSeveralThreadsAtOnce) {
  constexpr int kThreads = 4, kRounds = 10, kCount = 256;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      if (hipSetDevice(kGfx942) != hipSuccess) ++wrong;
      for (int round = 0; round < kRounds; ++round) {
        const DeviceArray<float> in(std::vector<float>(kCount, static_cast<float>(t + 1))), out(kCount);
        if (launch("scale", kCount / 64, 64, out.data(), in.data(), kCount, 2.0f) != hipSuccess) ++wrong;
        if (out.read() != std::vector<float>(kCount, static_cast<float>(2 * (t + 1)))) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0) << fwemu_last_error();
}

TEST_F(HipLaunch, OrderOfWorkgroupsDoesNotMatterToGoodKernels) {
  const int count = 1000;
  const DeviceArray<float> in(std::vector<float>(count, 1.5f));
  for (const auto& [name, value] : {std::pair("seed", "7"), std::pair("reverse", "1"), std::pair("threads", "1")}) {
    ASSERT_EQ(fwemu_set_option(name, value), 0);
    const DeviceArray<float> out(count);
    EXPECT_EQ(launch("scale", 16, 64, out.data(), in.data(), count, 2.0f), hipSuccess) << fwemu_last_error();
    EXPECT_EQ(out.read(), std::vector<float>(count, 3.0f)) << name;
    ASSERT_EQ(fwemu_set_option(name, "0"), 0);
  }
}

TEST(HipLaunchOnRdna, RunsThatCode) {
  ASSERT_EQ(hipSetDevice(kGfx1100), hipSuccess);
  hipModule_t module = nullptr;
  hipFunction_t function = nullptr;
  ASSERT_EQ(hipModuleLoadData(&module, code_object("hip_kernels.gfx1100.co").data()), hipSuccess) << fwemu_last_error();
  ASSERT_EQ(hipModuleGetFunction(&function, module, "scale"), hipSuccess);
  {
    const DeviceArray<float> in(std::vector<float>(40, 2.0f)), out(40);
    float *to = out.data(), *from = in.data(), factor = 4;
    int count = 40;
    void* pointers[] = {&to, &from, &count, &factor};
    EXPECT_EQ(hipModuleLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, nullptr, pointers, nullptr), hipSuccess)
        << fwemu_last_error();
    EXPECT_EQ(out.read(), std::vector<float>(40, 8.0f));
    // Memory of another device is not this one's.
    ASSERT_EQ(hipSetDevice(kGfx942), hipSuccess);
    const DeviceArray<float> elsewhere(40);
    to = elsewhere.data();
    ASSERT_EQ(hipSetDevice(kGfx1100), hipSuccess);
    EXPECT_EQ(hipModuleLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, nullptr, pointers, nullptr),
              hipErrorIllegalAddress);
  }
  EXPECT_EQ(hipModuleUnload(module), hipSuccess);
  EXPECT_EQ(hipSetDevice(kGfx942), hipSuccess);
}

}  // namespace

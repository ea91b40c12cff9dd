// The driver of NVIDIA GPUs, on a driver library that has none (fake_cuda.c). It is loaded once, so each case has a
// process of its own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/code_archive.h"
#include "device/cuda/code_choice.h"
#include "device/driver.h"
#include "plan/plan.h"
#include "tests/paths.h"
#include "tests/unit_device/fake_runtime.h"
#include "tests/unit_device/rows.h"

namespace flashwave {
namespace {

constexpr const char* kPlain = "nvidia_generic_fwd_bf16";
constexpr const char* kWithMaps = "hopper_fwd_bf16_d128_m128n128";

testing::ExitedWithCode no_device() { return testing::ExitedWithCode(FW_NO_DEVICE); }

// Ends the process with the status, its message on stderr.
[[noreturn]] void open_and_exit(const char* device, const char* library) {
  setenv("FLASHWAVE_CUDA_LIBRARY", library, 1);
  Device* found = nullptr;
  const Status status = find_device(device, &found);
  if ((found != nullptr) != status.ok()) std::exit(100);
  std::fprintf(stderr, "%s", status.message.c_str());
  std::exit(static_cast<int>(status.code));
}

class CudaLibraryDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaLibraryDeathTest, NotFound) {
  EXPECT_EXIT(open_and_exit("cuda", "/nowhere/libcuda.so.1"), no_device(),
              "device 'cuda': NVIDIA's driver is not found: /nowhere/libcuda.so.1: cannot open");
}

TEST_F(CudaLibraryDeathTest, AnotherLibrary) {
  EXPECT_EXIT(open_and_exit("cuda:0", "libm.so.6"), no_device(),
              "device 'cuda:0': libm.so.6 is not NVIDIA's driver: it has no cuInit, cuDriverGetVersion, ");
}

TEST_F(CudaLibraryDeathTest, TooOld) {
  setenv("FAKE_CUDA_VERSION", "11080", 1);
  EXPECT_EXIT(open_and_exit("cuda", paths::kFakeCuda), no_device(),
              "is too old: it is for CUDA 11.8, at least 12.0 is needed");
}

TEST_F(CudaLibraryDeathTest, NoGpu) {
  setenv("FAKE_CUDA_INIT", "100", 1);
  EXPECT_EXIT(open_and_exit("cuda", paths::kFakeCuda), no_device(),
              "finds no GPU: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
  setenv("FAKE_CUDA_INIT", "0", 1);
  setenv("FAKE_CUDA_COUNT", "0", 1);
  EXPECT_EXIT(open_and_exit("cuda", paths::kFakeCuda), no_device(), "finds no GPU: cuDeviceGetCount: ");
}

TEST_F(CudaLibraryDeathTest, NotThatManyGpus) {
  setenv("FAKE_CUDA_COUNT", "2", 1);
  EXPECT_EXIT(open_and_exit("cuda:2", paths::kFakeCuda), no_device(),
              "device 'cuda:2': there is no such GPU; the last one is cuda:1");
}

// A device of the fake driver, and what was asked of that driver.
class CudaDevice : public testing::Test {
 protected:
  void SetUp() override { runtime_.open("FLASHWAVE_CUDA_LIBRARY", paths::kFakeCuda, "cuda"); }
  Device& device() { return runtime_.device(); }
  std::string asked() { return runtime_.asked(); }
  FakeRuntime runtime_;
};

TEST_F(CudaDevice, TellsWhatItIs) {
  const DeviceInfo& info = device().info();
  EXPECT_EQ(info.name, "cuda:0");
  EXPECT_EQ(info.kind, "cuda");
  EXPECT_EQ(info.arch, "sm_90");
  EXPECT_EQ(info.isa, kIsaSm75 | kIsaSm80 | kIsaSm90);
  EXPECT_EQ(info.compute_units, 132);
  EXPECT_EQ(info.lds_bytes, 232448);
  EXPECT_EQ(info.memory_bytes, 1000);
  EXPECT_EQ(info.description, "a GPU that is not there");
  EXPECT_FALSE(info.host_memory);
  ASSERT_EQ(present_devices().size(), 2u);
  EXPECT_EQ(asked(), "") << "no context was made for a list";
}

TEST_F(CudaDevice, LaterGpusHaveNoneOfHoppersOwnInstructions) {
  setenv("FAKE_CUDA_CAPABILITY", "120", 1);
  EXPECT_EQ(device().info().isa, kIsaSm75 | kIsaSm80);
}

TEST_F(CudaDevice, MakesAContextAndAsksForSharedMemoryOnce) {
  if (find_row(kPlain) == nullptr) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  std::vector<char> memory(64);
  const abi::Params params = some_params(memory.data());
  ASSERT_TRUE(device().launch(*find_row(kPlain), params, some_schedule(7), {}).ok());
  const std::string launch = "launch 7 x 1 of 256 threads, 0 bytes, on stream (nil)\n";
  EXPECT_EQ(asked(), std::string("retain 0\nload ELF\nfunction ") + kPlain + "\nshared limit 0\n" + launch);
  ASSERT_TRUE(device().launch(*find_row(kPlain), params, some_schedule(7), {}).ok());
  EXPECT_EQ(asked(), launch) << "no second module, no synchronisation";
}

TEST_F(CudaDevice, ADriverOlderThanTheMachineCodeGetsPtx) {
  if (find_row(kPlain) == nullptr) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  setenv("FAKE_CUDA_REFUSES", "ELF", 1);
  char memory[64];
  ASSERT_TRUE(device().launch(*find_row(kPlain), some_params(memory), some_schedule(1), {}).ok());
  EXPECT_NE(asked().find("load ELF\nload PTX\nfunction "), std::string::npos);
}

TEST_F(CudaDevice, ARefusedModuleIsNamedAndTriedAgain) {
  if (find_row(kPlain) == nullptr) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  setenv("FAKE_CUDA_REFUSES", "ELF PTX", 1);
  char memory[64];
  const Status status = device().launch(*find_row(kPlain), some_params(memory), some_schedule(1), {});
  EXPECT_EQ(status.code, FW_DEVICE_ERROR);
  EXPECT_EQ(status.message, "cuda:0: generic_attention: cuModuleLoadData: CUDA_ERROR_OTHER: other");
  unsetenv("FAKE_CUDA_REFUSES");
  EXPECT_TRUE(device().launch(*find_row(kPlain), some_params(memory), some_schedule(1), {}).ok());
}

TEST_F(CudaDevice, EarlyLaunchesSaySo) {
  if (find_row(kPlain) == nullptr) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  char memory[64] = {1};
  LaunchOptions options;
  options.early = true;
  ASSERT_TRUE(device().launch(*find_row(kPlain), some_params(memory), some_schedule(1), options).ok());
  EXPECT_NE(asked().find("on stream (nil), early\n"), std::string::npos);
}

TEST_F(CudaDevice, TensorsAreMappedAsThePlanDescribesThem) {
  const KernelRow* row = find_row(kWithMaps);
  if (row == nullptr) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  alignas(64) char memory[64] = {1};
  const abi::Params params = some_params(memory);
  TensorMapDescriptions maps = describe_tensor_maps(*row, params);
  maps.maps[2].l2_bytes = 128;
  LaunchOptions options;
  options.tensor_maps = maps.used();
  ASSERT_TRUE(device().launch(*row, params, some_schedule(2), options).ok());
  const std::string log = asked();
  EXPECT_NE(log.find("load ELF\nfunction hopper_fwd_bf16_d128_m128n128\n"), std::string::npos) << log;
  EXPECT_NE(log.find("map: rows 256 bytes apart, box of 64 x 64, L2 by 256\n"
                     "map: rows 256 bytes apart, box of 64 x 128, L2 by 256\n"
                     "map: rows 256 bytes apart, box of 64 x 128, L2 by 128\n"
                     "map: rows 256 bytes apart, box of 64 x 64, L2 by 256\n"
                     "launch 2 x 1 of 384 threads"),
            std::string::npos)
      << log;
}

TEST_F(CudaDevice, AMapThatTheDriverRefusesIsNamed) {
  const KernelRow* row = find_row(kWithMaps);
  if (row == nullptr) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  setenv("FAKE_CUDA_REFUSES_MAP", "3", 1);
  char memory[64];
  const TensorMapDescriptions maps = describe_tensor_maps(*row, some_params(memory));
  LaunchOptions options;
  options.tensor_maps = maps.used();
  const Status status = device().launch(*row, some_params(memory), some_schedule(2), options);
  EXPECT_EQ(status.message,
            std::string("cuda:0: ") + kWithMaps + ": v: cuTensorMapEncodeTiled: CUDA_ERROR_OTHER: other");
}

TEST_F(CudaDevice, HoppersCodeIsForHopperAlone) {
  if (find_row(kWithMaps) == nullptr) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  setenv("FAKE_CUDA_CAPABILITY", "100", 1);
  EXPECT_TRUE(device().info().code.has(find_row(kPlain)->source));
  EXPECT_FALSE(device().info().code.has(find_row(kWithMaps)->source));
  char memory[64];
  const Status status = device().launch(*find_row(kWithMaps), some_params(memory), some_schedule(1), {});
  EXPECT_EQ(status.message,
            "cuda:0: this build of flashwave has no machine code of hopper_fwd_bf16_d128_m128n128 for sm_100");
}

TEST(CudaCode, TheNearestOlderMachineCodeOfAGenerationThenPtx) {
  if (nvidia_code_archive().entries.empty()) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  const auto chosen = [](int capability, size_t rank) -> std::string {
    const auto usable = cuda::find_code(nvidia_code_archive(), "generic_attention", capability);
    return rank < usable.size() ? usable[rank]->arch : "";
  };
  EXPECT_EQ(chosen(75, 0), "sm_75");
  EXPECT_EQ(chosen(80, 0), "sm_80");
  EXPECT_EQ(chosen(89, 0), "sm_80");
  EXPECT_EQ(chosen(90, 0), "sm_90");
  EXPECT_EQ(chosen(90, 1), "compute_75");
  EXPECT_EQ(chosen(90, 2), "");
  EXPECT_EQ(chosen(120, 0), "compute_75");
  EXPECT_EQ(chosen(70, 0), "");
  EXPECT_EQ(cuda::preference("sm_75", 61), 0);
}

}  // namespace
}  // namespace flashwave

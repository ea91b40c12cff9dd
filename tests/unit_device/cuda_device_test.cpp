// The driver of NVIDIA GPUs, on a driver library that has none (fake_cuda.c). It is loaded once, so each case has a
// process of its own.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/code_archive.h"
#include "device/cuda/kernel_code.h"
#include "device/driver.h"

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
  EXPECT_EXIT(open_and_exit("cuda", FLASHWAVE_FAKE_CUDA), no_device(),
              "is too old: it is for CUDA 11.8, at least 12.0 is needed");
}

TEST_F(CudaLibraryDeathTest, NoGpu) {
  setenv("FAKE_CUDA_INIT", "100", 1);
  EXPECT_EXIT(open_and_exit("cuda", FLASHWAVE_FAKE_CUDA), no_device(),
              "finds no GPU: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
  setenv("FAKE_CUDA_INIT", "0", 1);
  setenv("FAKE_CUDA_COUNT", "0", 1);
  EXPECT_EXIT(open_and_exit("cuda", FLASHWAVE_FAKE_CUDA), no_device(), "finds no GPU: cuDeviceGetCount: ");
}

TEST_F(CudaLibraryDeathTest, NotThatManyGpus) {
  setenv("FAKE_CUDA_COUNT", "2", 1);
  EXPECT_EXIT(open_and_exit("cuda:2", FLASHWAVE_FAKE_CUDA), no_device(),
              "device 'cuda:2': there is no such GPU; the last one is cuda:1");
}

// A device of the fake driver, and what was asked of that driver.
class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    setenv("FLASHWAVE_CUDA_LIBRARY", FLASHWAVE_FAKE_CUDA, 1);
    void* library = dlopen(FLASHWAVE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    log_ = reinterpret_cast<const char* (*)()>(dlsym(library, "fake_cuda_log"));
    clear_ = reinterpret_cast<void (*)()>(dlsym(library, "fake_cuda_clear"));
  }
  Device& device() {
    Device* found = nullptr;
    const Status status = find_device("cuda", &found);
    EXPECT_TRUE(status.ok()) << status.message;
    return *found;
  }
  std::string asked() {
    std::string text = log_();
    clear_();
    return text;
  }
  static bool has(const char* kernel) { return cuda::find_kernel(kernel) != nullptr; }

  const char* (*log_)() = nullptr;
  void (*clear_)() = nullptr;
};

abi::Params some_params(char* memory) {
  abi::Params p{};
  for (abi::Tensor* t : {&p.q, &p.k, &p.v, &p.o}) *t = {memory, {256 * 128, 128, 128, 1}, abi::kBF16, 0};
  p.batch = p.heads_q = p.heads_k = 1;
  p.seqlen_q = p.seqlen_k = 256;
  p.dim_qk = p.dim_v = 128;
  return p;
}

abi::Schedule some_schedule(int64_t tasks) {
  abi::Schedule s{};
  s.splits = 1;
  s.tasks = tasks;
  return s;
}

TEST_F(CudaDevice, TellsWhatItIs) {
  const DeviceInfo& info = device().info();
  EXPECT_EQ(info.name, "cuda:0");
  EXPECT_EQ(info.kind, "cuda");
  EXPECT_EQ(info.arch, "sm_90");
  EXPECT_EQ(info.isa, kIsaSm75 | kIsaSm80 | kIsaSm90);
  EXPECT_EQ(info.compute_units, 132);
  EXPECT_EQ(info.shared_memory_bytes, 232448);
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

TEST_F(CudaDevice, MemoryIsTheContextsAndErrorsSayWhy) {
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
  EXPECT_EQ(status.message, "cuda:0: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  EXPECT_EQ(asked(), "retain 0\nalloc 100\n");
}

TEST_F(CudaDevice, LoadsAModuleOnceAndLaunches) {
  if (!has(kPlain)) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  std::vector<char> memory(64);
  LaunchOptions options;
  options.stream = memory.data();
  const abi::Params params = some_params(memory.data());
  ASSERT_TRUE(device().launch(kPlain, params, some_schedule(7), options).ok());
  char expected[200];
  std::snprintf(expected, sizeof expected, "launch 7 x 1 of 256 threads, 0 bytes, on stream %p\n", options.stream);
  EXPECT_EQ(asked(), std::string("retain 0\nload ELF\nfunction ") + kPlain + "\nshared limit 0\n" + expected);
  ASSERT_TRUE(device().launch(kPlain, params, some_schedule(7), options).ok());
  EXPECT_EQ(asked(), expected) << "no second module, no synchronisation";
  ASSERT_TRUE(device().launch(kPlain, params, some_schedule((int64_t{1} << 21) + 1), options).ok());
  EXPECT_NE(asked().find("launch 2097152 x 2 of"), std::string::npos);
}

TEST_F(CudaDevice, ADriverOlderThanTheMachineCodeGetsPtx) {
  if (!has(kPlain)) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  setenv("FAKE_CUDA_REFUSES", "ELF", 1);
  char memory[64];
  ASSERT_TRUE(device().launch(kPlain, some_params(memory), some_schedule(1), {}).ok());
  EXPECT_NE(asked().find("load ELF\nload PTX\nfunction "), std::string::npos);
}

TEST_F(CudaDevice, ARefusedModuleIsNamedAndTriedAgain) {
  if (!has(kPlain)) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  setenv("FAKE_CUDA_REFUSES", "ELF PTX", 1);
  char memory[64];
  const Status status = device().launch(kPlain, some_params(memory), some_schedule(1), {});
  EXPECT_EQ(status.code, FW_DEVICE_ERROR);
  EXPECT_EQ(status.message, "cuda:0: generic_attention: cuModuleLoadData: CUDA_ERROR_OTHER: other");
  unsetenv("FAKE_CUDA_REFUSES");
  EXPECT_TRUE(device().launch(kPlain, some_params(memory), some_schedule(1), {}).ok());
}

TEST_F(CudaDevice, UnknownKernel) {
  const Status status = device().launch("no_such_kernel", {}, some_schedule(1), {});
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_EQ(status.message, "cuda:0: this build of flashwave has no kernel no_such_kernel");
}

TEST_F(CudaDevice, CountersAreZeroedAndTensorsMapped) {
  if (!has(kWithMaps)) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  alignas(64) char memory[64] = {1};
  LaunchOptions options;
  options.shared = memory;
  abi::Schedule schedule = some_schedule(2);
  schedule.zeroed_bytes = 64;
  ASSERT_TRUE(device().launch(kWithMaps, some_params(memory), schedule, options).ok());
  EXPECT_EQ(memory[0], 0);
  const std::string log = asked();
  EXPECT_NE(log.find("load ELF\nfunction hopper_fwd_bf16_d128_m128n128\n"), std::string::npos) << log;
  EXPECT_NE(log.find("map: rows 256 bytes apart, box of 64 x 128\n"), std::string::npos) << log;
  EXPECT_LT(log.find("set 64 bytes to 0"), log.find("launch 2 x 1 of 384 threads")) << log;
}

TEST_F(CudaDevice, HoppersCodeIsForHopperAlone) {
  if (!has(kWithMaps)) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  setenv("FAKE_CUDA_CAPABILITY", "100", 1);
  char memory[64];
  const Status status = device().launch(kWithMaps, some_params(memory), some_schedule(1), {});
  EXPECT_EQ(status.message,
            "cuda:0: this build of flashwave has no machine code of hopper_fwd_bf16_d128_m128n128 for sm_100");
}

TEST_F(CudaDevice, LentWorkspaceWaitsBetweenStreamsAndStaysOutOfGraphs) {
  if (!has(kPlain)) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  char memory[64];
  LaunchOptions options;
  const auto call = [&](void* stream) {
    options.stream = stream;
    options.shared = device().cached_workspace(1000);
    EXPECT_NE(options.shared, nullptr);
    const Status status = device().launch(kPlain, some_params(memory), some_schedule(1), options);
    device().release_workspace(options.shared);
    return status;
  };
  ASSERT_TRUE(call(nullptr).ok());
  EXPECT_EQ(asked().find("waits"), std::string::npos);
  ASSERT_TRUE(call(memory).ok());
  const std::string log = asked();
  EXPECT_LT(log.find("waits\nlaunch"), log.find("record on stream")) << log;
  EXPECT_EQ(log.find("alloc"), std::string::npos) << "the same memory";
  setenv("FAKE_CUDA_CAPTURING", "1", 1);
  const Status status = call(memory);
  EXPECT_EQ(status.code, FW_INVALID_ARGUMENT);
  EXPECT_EQ(status.message, "workspace: a call whose stream is being captured into a graph must bring its own");
  options.shared = nullptr;
  options.stream = memory;
  EXPECT_TRUE(device().launch(kPlain, some_params(memory), some_schedule(1), options).ok());
}

TEST(CudaCode, TheNearestOlderMachineCodeOfAGenerationThenPtx) {
  if (nvidia_code_archive().entries.empty()) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  const auto chosen = [](int capability, int rank) -> std::string {
    const ArchiveEntry* entry = cuda::find_code("generic_attention", capability, rank);
    return entry != nullptr ? entry->arch : "";
  };
  EXPECT_EQ(chosen(75, 0), "sm_75");
  EXPECT_EQ(chosen(80, 0), "sm_80");
  EXPECT_EQ(chosen(89, 0), "sm_80");
  EXPECT_EQ(chosen(90, 0), "sm_90");
  EXPECT_EQ(chosen(90, 1), "compute_75");
  EXPECT_EQ(chosen(90, 2), "");
  EXPECT_EQ(chosen(120, 0), "compute_75");
  EXPECT_EQ(chosen(70, 0), "");
  EXPECT_TRUE(cuda::has_code(75));
  EXPECT_FALSE(cuda::has_code(61));
}

}  // namespace
}  // namespace flashwave

// The HIP driver on the emulator: the same calls that a real GPU gets.
#include "device/hip/hip_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "device/code_archive.h"
#include "device/driver.h"
#include "tests/paths.h"

namespace flashwave {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The kernels of hip_kernels.hip, and what is no code object at all, packed as the library's own are.
const CodeArchive& archive_of_tests() {
  static const CodeArchive& archive = *[] {
    std::ifstream in(paths::kTestArchive, std::ios::binary);
    static const auto& bytes =
        *new std::vector<char>{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    EXPECT_FALSE(bytes.empty());
    return new CodeArchive(read_archive(bytes.data()));
  }();
  return archive;
}

constexpr Kernel kFill{"driver_test_fill", "hip_kernels", 64, 0};
constexpr Kernel kUninitialised{"driver_test_uninitialised", "hip_kernels", 64, 0};
constexpr Kernel kAbsent{"driver_test_absent", "hip_kernels", 64, 0};
constexpr Kernel kJunk{"driver_test_junk", "junk", 64, 0};
constexpr Kernel kLarge{"driver_test_large", "hip_kernels", 64, 1 << 20};
constexpr Kernel kForgotten{"cdna3_fwd_that_nobody_wrote", "cdna3_fwd", 64, 0};

bool has_kernels_for(const char* name) {
  Device* device = nullptr;
  return find_device(name, &device).ok() && device->info().code.any();
}

class HipDriver : public testing::Test {
 protected:
  void SetUp() override {
    static Device* const device = [] {
      Device* made = nullptr;
      const Status status = make_emulated_device("gfx942", archive_of_tests(), &made);
      EXPECT_TRUE(status.ok()) << status.message;
      return made;
    }();
    device_ = device;
    ASSERT_NE(device_, nullptr);
  }

  // Output of `tasks` workgroups of 64 floats.
  Status launch(const Kernel& kernel, int64_t tasks, std::vector<float>* out, LaunchOptions options = {}) {
    void* data = nullptr;
    const size_t bytes = static_cast<size_t>(tasks) * 64 * sizeof(float);
    EXPECT_TRUE(device_->alloc(bytes, &data).ok());
    abi::Params params{};
    params.o.data = data;
    params.softmax_scale = 100;
    abi::Schedule schedule{};
    schedule.tasks = tasks;
    Status status = device_->launch(kernel, params, schedule, options);
    if (status.ok()) {
      out->resize(static_cast<size_t>(tasks) * 64);
      EXPECT_TRUE(device_->copy(out->data(), data, bytes, FW_DEVICE_TO_HOST, options.stream).ok());
      EXPECT_TRUE(device_->synchronize(options.stream).ok());
    }
    EXPECT_TRUE(device_->free(data).ok());
    return status;
  }

  Device* device_ = nullptr;
};

TEST_F(HipDriver, FactsOfTheEmulatedGpu) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.name, "emu:gfx942");
  EXPECT_EQ(info.kind, "emu");
  EXPECT_EQ(info.arch, "gfx942");
  EXPECT_EQ(info.compute_units, 304);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_FALSE(info.host_memory);
  EXPECT_TRUE(contains(info.description, "emulated")) << info.description;
  EXPECT_TRUE(info.code.has("hip_kernels") && info.code.has("junk"));
  EXPECT_FALSE(info.code.has("cdna3_fwd"));
  Device *found = nullptr, *again = nullptr;
  EXPECT_TRUE(find_device("emu:gfx942", &found).ok());
  EXPECT_TRUE(find_device("emu:gfx942", &again).ok());
  EXPECT_EQ(again, found);
  EXPECT_TRUE(find_device("emu:gfx1100", &again).ok());
  EXPECT_NE(again, found);
  EXPECT_EQ(again->info().arch, "gfx1100");
  for (Device* present : present_devices()) EXPECT_NE(present->info().kind, "emu") << "opened by name alone";
}

TEST_F(HipDriver, UnknownGpusListTheKnownOnes) {
  for (const char* name : {"emu:gfx1", "emu:GFX942", "emu:gfx942:xnack+"}) {
    Device* found = nullptr;
    const Status status = find_device(name, &found);
    EXPECT_EQ(status.code, FW_NO_DEVICE);
    EXPECT_TRUE(contains(status.message, name)) << status.message;
    EXPECT_TRUE(contains(status.message, "gfx90a, gfx942")) << status.message;
  }
}

TEST_F(HipDriver, CopiesThereAndBack) {
  const std::vector<char> from = {'a', 'b', 'c', 'd'};
  std::vector<char> to(4);
  void *first = nullptr, *second = nullptr;
  ASSERT_TRUE(device_->alloc(4, &first).ok());
  ASSERT_TRUE(device_->alloc(4, &second).ok());
  EXPECT_TRUE(device_->copy(first, from.data(), 4, FW_HOST_TO_DEVICE, nullptr).ok());
  EXPECT_TRUE(device_->copy(second, first, 4, FW_DEVICE_TO_DEVICE, nullptr).ok());
  EXPECT_TRUE(device_->copy(to.data(), second, 4, FW_DEVICE_TO_HOST, nullptr).ok());
  EXPECT_TRUE(device_->synchronize(nullptr).ok());
  EXPECT_EQ(to, from);
  const Status status = device_->copy(first, from.data(), 5, FW_HOST_TO_DEVICE, nullptr);
  EXPECT_EQ(status.code, FW_DEVICE_ERROR);
  EXPECT_TRUE(contains(status.message, "emu:gfx942: hipMemcpyAsync: hipErrorInvalidValue")) << status.message;
  EXPECT_TRUE(contains(status.message, "do not fit")) << status.message;
  EXPECT_TRUE(device_->free(first).ok());
  EXPECT_TRUE(device_->free(second).ok());
  EXPECT_EQ(device_->free(second).code, FW_DEVICE_ERROR);
  EXPECT_EQ(device_->alloc(SIZE_MAX / 2, &first).code, FW_OUT_OF_MEMORY);
  EXPECT_EQ(first, nullptr);
}

TEST_F(HipDriver, LaunchesOneWorkgroupForEachTask) {
  std::vector<float> out;
  const Status status = launch(kFill, 5, &out);
  ASSERT_TRUE(status.ok()) << status.message;
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<float>(i / 64) * 100 + static_cast<float>(i % 64));
  }
}

TEST_F(HipDriver, WorkspacesReachTheKernelAndAreKept) {
  LaunchOptions options;
  options.workspace = device_->cached_workspace(1000);
  options.scratch = device_->cached_workspace(1000);
  ASSERT_TRUE(options.workspace != nullptr && options.scratch != nullptr);
  EXPECT_NE(options.workspace, options.scratch);
  std::vector<float> out;
  const Status status = launch(kFill, 1, &out, options);
  ASSERT_TRUE(status.ok()) << status.message;
  char read[2] = {};
  EXPECT_TRUE(device_->copy(read, options.workspace, 1, FW_DEVICE_TO_HOST, nullptr).ok());
  EXPECT_TRUE(device_->copy(read + 1, options.scratch, 1, FW_DEVICE_TO_HOST, nullptr).ok());
  EXPECT_EQ(std::string(read, 2), "sc");
  device_->release_workspace(options.scratch);
  device_->release_workspace(options.workspace);
  char* again = device_->cached_workspace(1000);
  EXPECT_EQ(again, options.workspace) << "the one used last";
  std::thread([&] {
    char* other = device_->cached_workspace(1000);
    EXPECT_NE(other, again);
    EXPECT_TRUE(launch(kFill, 1, &out).ok());
    device_->release_workspace(other);
  }).join();
  device_->release_workspace(again);
  char* large = device_->cached_workspace(100 << 20);
  ASSERT_NE(large, nullptr);
  device_->release_workspace(large);
  EXPECT_EQ(device_->cached_workspace(size_t{1} << 60), nullptr);
}

TEST_F(HipDriver, MissingMachineCodeIsSaid) {
  std::vector<float> out;
  Status status = launch(kForgotten, 1, &out);
  EXPECT_EQ(status.code, FW_UNSUPPORTED);
  EXPECT_TRUE(contains(status.message, "cdna3_fwd_that_nobody_wrote for gfx942")) << status.message;
  status = launch(kAbsent, 1, &out);
  EXPECT_EQ(status.code, FW_DEVICE_ERROR);
  EXPECT_TRUE(contains(status.message, "hipModuleGetFunction: hipErrorNotFound")) << status.message;
  status = launch(kJunk, 1, &out);
  EXPECT_EQ(status.code, FW_DEVICE_ERROR);
  EXPECT_TRUE(contains(status.message, "hipModuleLoadData: hipErrorInvalidImage")) << status.message;
  status = launch(kLarge, 1, &out);
  EXPECT_EQ(status.code, FW_DEVICE_ERROR);
  EXPECT_TRUE(contains(status.message, "driver_test_large: hipModuleLaunchKernel: ")) << status.message;
  EXPECT_TRUE(contains(status.message, "bytes of LDS")) << status.message;
}

TEST_F(HipDriver, WhatACheckerFindsIsInTheMessage) {
  std::vector<float> out;
  const Status status = launch(kUninitialised, 1, &out);
  EXPECT_EQ(status.code, FW_DEVICE_ERROR);
  EXPECT_TRUE(
      contains(status.message, "emu:gfx942: driver_test_uninitialised: hipModuleLaunchKernel: hipErrorLaunchFailure"))
      << status.message;
  EXPECT_TRUE(contains(status.message, "uninitialised: ")) << status.message;
  EXPECT_TRUE(contains(status.message, "read before it was ever written")) << status.message;
}

TEST_F(HipDriver, CountersInsteadOfTimes) {
  std::string json;
  ASSERT_TRUE(device_->counters(&json).ok());
  device_->reset_counters();
  std::vector<float> out;
  ASSERT_TRUE(launch(kFill, 2, &out).ok());
  ASSERT_TRUE(device_->counters(&json).ok());
  EXPECT_TRUE(contains(json, "\"kernel\": \"driver_test_fill\"")) << json;
  EXPECT_TRUE(contains(json, "\"grid\": [2, 1, 1]")) << json;
  EXPECT_TRUE(contains(json, "\"store_bytes\":512")) << json;
  device_->reset_counters();
  ASSERT_TRUE(device_->counters(&json).ok());
  EXPECT_EQ(json, "[]");
  Device* cpu = nullptr;
  ASSERT_TRUE(find_device("cpu", &cpu).ok());
  EXPECT_EQ(cpu->counters(&json).code, FW_UNSUPPORTED);
}

TEST_F(HipDriver, CountersThroughTheCInterface) {
  fw_device* handle = nullptr;
  ASSERT_EQ(fw_device_open("emu:gfx942", &handle), FW_OK) << fw_last_error();
  std::string text(1 << 16, '\0');
  size_t needed = 0;
  ASSERT_EQ(fw_device_counters(handle, text.data(), text.size(), &needed), FW_OK);
  std::vector<float> out;
  ASSERT_TRUE(launch(kFill, 1, &out).ok());
  EXPECT_EQ(fw_device_counters(handle, nullptr, 0, &needed), FW_OK);
  ASSERT_GT(needed, 10u);
  EXPECT_EQ(fw_device_counters(handle, text.data(), needed - 1, &needed), FW_OK);
  EXPECT_EQ(std::strlen(text.c_str()), needed - 2) << "cut, and so not forgotten";
  EXPECT_EQ(fw_device_counters(handle, text.data(), needed, &needed), FW_OK);
  EXPECT_EQ(std::strlen(text.c_str()), needed - 1);
  EXPECT_TRUE(contains(text, "driver_test_fill"));
  EXPECT_EQ(fw_device_counters(handle, text.data(), text.size(), &needed), FW_OK);
  EXPECT_STREQ(text.c_str(), "[]");
}

// One query, one key: the answer is the value.
TEST_F(HipDriver, RunsTheLibrarysKernels) {
  if (!has_kernels_for("emu:gfx908")) GTEST_SKIP() << "built without kernels of AMD GPUs";
  fw_device* handle = nullptr;
  ASSERT_EQ(fw_device_open("emu:gfx908", &handle), FW_OK) << fw_last_error();
  EXPECT_NE(fw_kernel_name(handle, 0), nullptr);
  fw_attention attention;
  fw_attention_init(&attention, sizeof attention);
  attention.batch = attention.seqlen_q = attention.seqlen_k = attention.heads_q = attention.heads_k = 1;
  attention.dim_qk = attention.dim_v = 8;
  void* memory = nullptr;
  ASSERT_EQ(fw_device_alloc(handle, 4 * 8 * sizeof(float), &memory), FW_OK);
  const float values[8] = {1, -2, 3, -4, 5, -6, 7, -8};
  float got[8] = {};
  fw_tensor* const tensors[] = {&attention.q, &attention.k, &attention.v, &attention.o};
  for (int i = 0; i < 4; ++i) {
    float* const data = static_cast<float*>(memory) + 8 * i;
    *tensors[i] = fw_tensor{data, {8, 8, 8, 1}, FW_F32, 0};
    EXPECT_EQ(fw_device_copy(handle, data, values, sizeof values, FW_HOST_TO_DEVICE, nullptr), FW_OK);
  }
  EXPECT_EQ(fw_forward(handle, &attention, nullptr), FW_OK) << fw_last_error();
  EXPECT_EQ(fw_device_copy(handle, got, attention.o.data, sizeof got, FW_DEVICE_TO_HOST, nullptr), FW_OK);
  EXPECT_EQ(fw_device_synchronize(handle, nullptr), FW_OK);
  EXPECT_EQ(std::memcmp(got, values, sizeof got), 0);
  EXPECT_EQ(fw_device_free(handle, memory), FW_OK);

  // Memory of the host is none of the device's.
  float outside[8] = {};
  attention.q.data = outside;
  EXPECT_EQ(fw_forward(handle, &attention, nullptr), FW_DEVICE_ERROR);
  EXPECT_TRUE(contains(fw_last_error(), "emu:gfx908")) << fw_last_error();
}

// One attention with dropout on a GPU, and what it gives. All tensors are dense and of one element type.
class DropoutOnGpu {
 public:
  DropoutOnGpu(fw_device* device, fw_dtype dtype, int64_t queries, bool backward)
      : device_(device), backward_(backward) {
    fw_attention_init(&a_, sizeof a_), fw_gradients_init(&g_, sizeof g_);
    a_.batch = 1, a_.seqlen_q = queries, a_.seqlen_k = kKeys, a_.heads_q = a_.heads_k = 2, a_.dim_qk = a_.dim_v = kDim;
    a_.dropout_p = 0.5F;
    const size_t element = dtype == FW_F32 ? 4 : 2;
    for (auto [tensor, rows] : {std::pair{&a_.q, queries},
                                {&a_.k, kKeys},
                                {&a_.v, kKeys},
                                {&a_.o, queries},
                                {&g_.d_o, queries},
                                {&g_.dq, queries},
                                {&g_.dk, kKeys},
                                {&g_.dv, kKeys}}) {
      const size_t bytes = static_cast<size_t>(rows) * 2 * kDim * element;
      *tensor = fw_tensor{filled(bytes, dtype), {0, 2 * kDim, kDim, 1}, dtype, 0};
      results_.emplace_back(tensor->data, bytes);
    }
    const size_t lse = static_cast<size_t>(queries) * 2 * sizeof(float);
    a_.lse = fw_tensor{filled(lse, FW_F32), {0, 1, queries, 0}, FW_F32, 0};
  }
  ~DropoutOnGpu() {
    for (void* memory : memory_) EXPECT_EQ(fw_device_free(device_, memory), FW_OK);
  }
  DropoutOnGpu(const DropoutOnGpu&) = delete;
  DropoutOnGpu& operator=(const DropoutOnGpu&) = delete;

  // Every tensor after a call with these numbers: by value, or in the device's memory.
  std::vector<char> run(uint64_t seed, uint64_t offset, bool on_device) {
    const uint64_t state[2] = {seed, offset};
    a_.dropout_seed = on_device ? 0 : seed, a_.dropout_offset = on_device ? 0 : offset, a_.dropout_state = nullptr;
    if (on_device) a_.dropout_state = static_cast<const uint64_t*>(on_gpu(state, sizeof state));
    EXPECT_EQ(fw_forward(device_, &a_, nullptr), FW_OK) << fw_last_error();
    if (backward_) EXPECT_EQ(fw_backward(device_, &a_, &g_, nullptr), FW_OK) << fw_last_error();
    std::vector<char> all;
    for (const auto& [data, bytes] : results_) {
      all.resize(all.size() + bytes);
      EXPECT_EQ(fw_device_copy(device_, all.data() + all.size() - bytes, data, bytes, FW_DEVICE_TO_HOST, nullptr),
                FW_OK);
    }
    EXPECT_EQ(fw_device_synchronize(device_, nullptr), FW_OK);
    return all;
  }

 private:
  static constexpr int64_t kKeys = 70, kDim = 64;

  void* on_gpu(const void* data, size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(fw_device_alloc(device_, bytes, &memory), FW_OK);
    EXPECT_EQ(fw_device_copy(device_, memory, data, bytes, FW_HOST_TO_DEVICE, nullptr), FW_OK);
    memory_.push_back(memory);
    return memory;
  }
  void* filled(size_t bytes, fw_dtype dtype) {  // with numbers of the size of 1 in every type, of both signs
    std::vector<uint16_t> words(bytes / 2);
    for (size_t i = 0; i < words.size(); ++i) {
      const size_t number = i * 2654435761U >> 7;
      words[i] = static_cast<uint16_t>((dtype == FW_F16 ? 0x3800 : 0x3F00) | (number & 0x80FF));
    }
    return on_gpu(words.data(), bytes);
  }

  fw_device* device_;
  bool backward_;
  fw_attention a_;
  fw_gradients g_;
  std::vector<void*> memory_;
  std::vector<std::pair<void*, size_t>> results_;
};

// The same numbers by value and in the device's memory drop the same, on every GPU and in every kernel with dropout.
TEST_F(HipDriver, ASeedInTheDevicesMemoryIsReadByTheKernels) {
  int gpus = 0;
  for (const char* gpu : {"gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"}) {
    if (!has_kernels_for((std::string("emu:") + gpu).c_str())) continue;
    ++gpus;
    fw_device* handle = nullptr;
    ASSERT_EQ(fw_device_open((std::string("emu:") + gpu).c_str(), &handle), FW_OK) << fw_last_error();
    // Matrix kernels, decoding, and the slow path forward and backward.
    for (const auto& [dtype, queries, backward] :
         {std::tuple{FW_BF16, 40, false}, {FW_F16, 40, false}, {FW_BF16, 1, false}, {FW_F32, 20, true}}) {
      SCOPED_TRACE(std::string(gpu) + " dtype " + std::to_string(dtype) + " queries " + std::to_string(queries));
      DropoutOnGpu problem(handle, dtype, queries, backward);
      constexpr uint64_t kSeed = 0x123456789ABCDEF0, kOffset = 0xFEDCBA9876543210;
      const std::vector<char> expected = problem.run(kSeed, kOffset, false);
      EXPECT_EQ(problem.run(kSeed, kOffset, true), expected);
      EXPECT_NE(problem.run(kSeed + (uint64_t{1} << 40), kOffset, true), expected);
      EXPECT_NE(problem.run(kSeed, kOffset + 1, true), expected);
    }
  }
  if (gpus == 0) GTEST_SKIP() << "built without kernels of AMD GPUs";
}

TEST_F(HipDriver, TheProgramsOwnDeviceStaysCurrent) {
  Device* other = nullptr;
  ASSERT_TRUE(find_device("emu:gfx1100", &other).ok());
  void *here = nullptr, *there = nullptr;
  ASSERT_TRUE(device_->alloc(16, &here).ok());
  ASSERT_TRUE(other->alloc(16, &there).ok());
  std::vector<float> out;
  EXPECT_TRUE(launch(kFill, 1, &out).ok()) << "memory of both devices was made where it belongs";
  EXPECT_TRUE(other->free(there).ok());
  EXPECT_TRUE(device_->free(here).ok());
}

}  // namespace
}  // namespace flashwave

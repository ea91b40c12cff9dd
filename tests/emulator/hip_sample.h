// What the tests of the HIP surface share: kernels compiled beforehand, and device memory that frees itself.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "hip/abi.h"
#include "include/flashwave_emu.h"
#include "tests/paths.h"

namespace hip_test {

inline constexpr int kGfx942 = 0, kGfx1100 = 1;  // as hip_environment.cpp lists them

inline std::vector<char> code_object(const std::string& name) {
  std::ifstream in(std::string(flashwave::paths::kCodeObjects) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    void* data = nullptr;
    EXPECT_EQ(hipMalloc(&data, count * sizeof(T)), hipSuccess) << fwemu_last_error();
    data_ = static_cast<T*>(data);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    EXPECT_EQ(hipMemcpyHtoD(data_, values.data(), count_ * sizeof(T)), hipSuccess) << fwemu_last_error();
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { EXPECT_EQ(hipFree(data_), hipSuccess) << fwemu_last_error(); }

  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(hipMemcpyDtoH(values.data(), data_, count_ * sizeof(T)), hipSuccess) << fwemu_last_error();
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

// A test on the device of gfx942 with the kernels of hip_kernels.hip loaded; options are as they were afterwards.
class Kernels : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(hipSetDevice(kGfx942), hipSuccess);
    ASSERT_EQ(hipModuleLoadData(&module_, code_object("hip_kernels.gfx942.co").data()), hipSuccess)
        << fwemu_last_error();
    fwemu_clear_reports();
    fwemu_reset_counters(-1);
  }
  void TearDown() override {
    EXPECT_EQ(hipModuleUnload(module_), hipSuccess);
    EXPECT_EQ(fwemu_set_option("check", "1"), 0);
    EXPECT_EQ(fwemu_set_option("checks", "all"), 0);
  }

  hipFunction_t function(const char* name) {
    hipFunction_t found = nullptr;
    EXPECT_EQ(hipModuleGetFunction(&found, module_, name), hipSuccess) << fwemu_last_error();
    return found;
  }
  // One dimension; arguments by pointers to each.
  template <class... Arguments>
  hipError_t launch(const char* name, unsigned grid, unsigned block, Arguments... arguments) {
    void* pointers[] = {&arguments...};
    return hipModuleLaunchKernel(function(name), grid, 1, 1, block, 1, 1, 0, nullptr, pointers, nullptr);
  }

  hipModule_t module_ = nullptr;
};

inline std::string reports() {
  std::string text(fwemu_reports(nullptr, 0), '\0');
  text.resize(fwemu_reports(text.data(), text.size()) - 1);
  return text;
}

inline std::string counters(int device) {
  std::string text(fwemu_counters_json(device, nullptr, 0), '\0');
  text.resize(fwemu_counters_json(device, text.data(), text.size()) - 1);
  return text;
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace hip_test

// A stand-in for a GPU's runtime (fake_hip.c, fake_cuda.c): its device, and what was asked of it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "device/driver.h"

namespace flashwave {

class FakeRuntime {
 public:
  // variable: the one that names the library to flashwave.
  void open(const char* variable, const char* file, const char* device) {
    setenv(variable, file, 1);
    device_ = device;
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    log_ = reinterpret_cast<const char* (*)()>(dlsym(library, "fake_gpu_log"));
    clear_ = reinterpret_cast<void (*)()>(dlsym(library, "fake_gpu_clear"));
  }
  Device& device() const {
    Device* found = nullptr;
    const Status status = find_device(device_, &found);
    EXPECT_TRUE(status.ok()) << status.message;
    return *found;
  }
  // Since the last time.
  std::string asked() const {
    std::string text = log_();
    clear_();
    return text;
  }

 private:
  std::string device_;
  const char* (*log_)() = nullptr;
  void (*clear_)() = nullptr;
};

}  // namespace flashwave

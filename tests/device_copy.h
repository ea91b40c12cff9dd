// Bytes in the memory of a device that start as a copy of those of the host.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

#include "flashwave/flashwave.h"

namespace flashwave {

class DeviceCopy {
 public:
  DeviceCopy(fw_device* device, const void* host, size_t bytes) : device_(device), bytes_(bytes) {
    EXPECT_EQ(fw_device_alloc(device, std::max<size_t>(bytes, 1), &data_), FW_OK) << fw_last_error();
    EXPECT_EQ(fw_device_copy(device, data_, host, bytes, FW_HOST_TO_DEVICE, nullptr), FW_OK) << fw_last_error();
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy() { fw_device_free(device_, data_); }
  void* data() { return data_; }
  void fetch(void* host) {
    EXPECT_EQ(fw_device_copy(device_, host, data_, bytes_, FW_DEVICE_TO_HOST, nullptr), FW_OK) << fw_last_error();
    EXPECT_EQ(fw_device_synchronize(device_, nullptr), FW_OK) << fw_last_error();
  }

 private:
  fw_device* device_;
  size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace flashwave

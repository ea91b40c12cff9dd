#include <cstdint>
#include <cstring>

#include "hip_sample.h"

namespace {

using namespace hip_test;

TEST(HipMemory, StartsPoisonedAndAligned) {
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{4096}, size_t{1000000}}) {
    void* data = nullptr;
    ASSERT_EQ(hipMalloc(&data, bytes), hipSuccess);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u);
    std::vector<unsigned char> read(bytes);
    EXPECT_EQ(hipMemcpy(read.data(), data, bytes, hipMemcpyDeviceToHost), hipSuccess);
    EXPECT_EQ(read, std::vector<unsigned char>(bytes, 0xff));
    EXPECT_EQ(hipFree(data), hipSuccess);
  }
  void* data = &data;
  EXPECT_EQ(hipMalloc(&data, 0), hipSuccess);
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(hipFree(nullptr), hipSuccess);
}

TEST(HipMemory, TooMuchIsRefused) {
  size_t total = 0, available = 0;
  ASSERT_EQ(hipMemGetInfo(&available, &total), hipSuccess);
  EXPECT_GT(total, 0u);
  EXPECT_LE(available, total);
  for (const size_t bytes : {total + (size_t{1} << 40), SIZE_MAX, SIZE_MAX / 2}) {
    void* data = &data;
    EXPECT_EQ(hipMalloc(&data, bytes), hipErrorOutOfMemory);
    EXPECT_EQ(data, nullptr);
    EXPECT_TRUE(contains(fwemu_last_error(), std::to_string(bytes)));
  }
}

TEST(HipMemory, CopiesStayInTheirAllocations) {
  DeviceArray<int> device(4);
  std::vector<int> host = {1, 2, 3, 4}, back(4);
  EXPECT_EQ(hipMemcpy(device.data(), host.data(), 16, hipMemcpyHostToDevice), hipSuccess);
  EXPECT_EQ(hipMemcpy(device.data() + 1, device.data(), 12, hipMemcpyDeviceToDevice), hipSuccess) << "overlapping";
  EXPECT_EQ(hipMemcpyAsync(back.data(), device.data(), 16, hipMemcpyDefault, nullptr), hipSuccess);
  EXPECT_EQ(back, (std::vector<int>{1, 1, 2, 3}));
  EXPECT_EQ(hipMemcpy(device.data(), host.data(), 17, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "destination: 17 bytes from offset 0 do not fit")) << fwemu_last_error();
  EXPECT_EQ(hipMemcpyDtoH(back.data(), device.data() + 3, 5), hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "source: ")) << fwemu_last_error();
  EXPECT_EQ(hipMemcpyHtoD(host.data(), back.data(), 4), hipErrorInvalidValue) << "host memory is not the device's";
  EXPECT_EQ(hipMemcpy(device.data(), host.data(), 4, static_cast<hipMemcpyKind>(7)), hipErrorInvalidMemcpyDirection);
  EXPECT_EQ(hipMemcpy(nullptr, host.data(), 4, hipMemcpyHostToDevice), hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpy(nullptr, nullptr, 0, hipMemcpyHostToDevice), hipSuccess);
}

TEST(HipMemory, Fills) {
  DeviceArray<uint32_t> device(3);
  EXPECT_EQ(hipMemset(device.data(), 0x101, 12), hipSuccess) << "the low byte counts";
  EXPECT_EQ(device.read(), std::vector<uint32_t>(3, 0x01010101));
  EXPECT_EQ(hipMemsetD32Async(device.data(), 7, 2, nullptr), hipSuccess);
  EXPECT_EQ(device.read(), (std::vector<uint32_t>{7, 7, 0x01010101}));
  EXPECT_EQ(hipMemset(device.data(), 0, 13), hipErrorInvalidValue);
  EXPECT_EQ(hipMemsetD32(device.data(), 0, SIZE_MAX / 2), hipErrorInvalidValue);
}

TEST(HipMemory, FreesAreChecked) {
  void *device = nullptr, *host = nullptr;
  ASSERT_EQ(hipMalloc(&device, 64), hipSuccess);
  ASSERT_EQ(hipHostMalloc(&host, 64, 0), hipSuccess);
  std::memset(host, 1, 64);
  EXPECT_EQ(hipFree(static_cast<char*>(device) + 8), hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "inside one")) << fwemu_last_error();
  EXPECT_EQ(hipFree(host), hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "hipHostFree")) << fwemu_last_error();
  EXPECT_EQ(hipHostFree(host), hipSuccess);
  EXPECT_EQ(hipFreeAsync(device, nullptr), hipSuccess);
  EXPECT_EQ(hipFree(device), hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "was freed before")) << fwemu_last_error();
  char byte = 0;
  EXPECT_EQ(hipMemcpyDtoH(&byte, device, 1), hipErrorInvalidValue);
  EXPECT_TRUE(contains(fwemu_last_error(), "which was freed")) << fwemu_last_error();
}

TEST(HipMemory, ManyAllocationsComeAndGo) {
  for (int i = 0; i < 3000; ++i) {
    void* data = nullptr;
    ASSERT_EQ(hipMalloc(&data, 100), hipSuccess);
    ASSERT_EQ(hipFree(data), hipSuccess);
  }
}

TEST(HipMemory, PointersAreKnown) {
  ASSERT_EQ(hipSetDevice(kGfx1100), hipSuccess);
  DeviceArray<int> device(4);
  hipPointerAttribute_t attributes{};
  EXPECT_EQ(hipPointerGetAttributes(&attributes, device.data() + 3), hipSuccess);
  EXPECT_EQ(attributes.type, hipMemoryTypeDevice);
  EXPECT_EQ(attributes.device, kGfx1100);
  EXPECT_EQ(attributes.devicePointer, device.data() + 3);
  int local = 0;
  EXPECT_EQ(hipPointerGetAttributes(&attributes, &local), hipErrorInvalidValue);
  EXPECT_EQ(attributes.type, hipMemoryTypeUnregistered);
  EXPECT_EQ(hipSetDevice(kGfx942), hipSuccess);
}

}  // namespace

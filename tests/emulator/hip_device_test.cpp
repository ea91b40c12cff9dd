#include <cstring>
#include <set>
#include <thread>

#include "hip_sample.h"

namespace {

using namespace hip_test;

TEST(HipDevices, AreThoseOfTheEnvironment) {
  EXPECT_EQ(hipInit(0), hipSuccess);
  int count = 0;
  EXPECT_EQ(hipGetDeviceCount(&count), hipSuccess);
  EXPECT_GE(count, 2);
  int version = 0;
  EXPECT_EQ(hipRuntimeGetVersion(&version), hipSuccess);
  EXPECT_GE(version, 60000000);
}

TEST(HipDevices, PropertiesOfBothLayouts) {
  // At the bytes where programs built against AMD's headers look.
  struct {
    int device;
    const char* arch;
    int wave, units;
  } const cases[] = {{kGfx942, "gfx942:sramecc+:xnack-", 64, 304}, {kGfx1100, "gfx1100", 32, 96}};
  for (const auto& c : cases) {
    char bytes[1472 + 8];
    std::memset(bytes, 0x5a, sizeof bytes);
    ASSERT_EQ(hipGetDevicePropertiesR0600(reinterpret_cast<hipDeviceProp_tR0600*>(bytes), c.device), hipSuccess);
    EXPECT_STREQ(bytes + 1160, c.arch);
    int wave = 0, units = 0;
    std::memcpy(&wave, bytes + 308, 4), std::memcpy(&units, bytes + 388, 4);
    EXPECT_EQ(wave, c.wave);
    EXPECT_EQ(units, c.units);
    EXPECT_EQ(bytes[1472], 0x5a) << "nothing is written past the end";
    std::memset(bytes, 0x5a, sizeof bytes);
    ASSERT_EQ(hipGetDeviceProperties(reinterpret_cast<hipDeviceProp_tR0000*>(bytes), c.device), hipSuccess);
    EXPECT_STREQ(bytes + 396, c.arch);
    EXPECT_EQ(bytes[792], 0x5a);
    int value = 0;
    EXPECT_EQ(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, c.device), hipSuccess);
    EXPECT_EQ(value, c.wave);
    EXPECT_EQ(hipDeviceGetAttribute(&value, hipDeviceAttributeMultiprocessorCount, c.device), hipSuccess);
    EXPECT_EQ(value, c.units);
  }
  int value = 0;
  EXPECT_EQ(hipDeviceGetAttribute(&value, static_cast<hipDeviceAttribute_t>(5000), 0), hipErrorInvalidValue);
  EXPECT_EQ(hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 4095), hipErrorInvalidDevice);
  char name[8];
  EXPECT_EQ(hipDeviceGetName(name, sizeof name, kGfx942), hipSuccess);
  EXPECT_STREQ(name, "AMD Ins");
}

TEST(HipDevices, EachThreadChoosesItsOwn) {
  ASSERT_EQ(hipSetDevice(kGfx1100), hipSuccess);
  std::thread([] {
    int device = -1;
    EXPECT_EQ(hipGetDevice(&device), hipSuccess);
    EXPECT_EQ(device, 0);
  }).join();
  int device = -1;
  EXPECT_EQ(hipGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, kGfx1100);
  EXPECT_EQ(hipSetDevice(4095), hipErrorInvalidDevice);
  EXPECT_TRUE(contains(fwemu_last_error(), "4095"));
  EXPECT_EQ(hipSetDevice(kGfx942), hipSuccess);
}

TEST(HipDevices, OpenFindsAndAddAlwaysAdds) {
  int index = -1;
  EXPECT_EQ(fwemu_open("gfx1100", &index), 0);
  EXPECT_EQ(index, kGfx1100);
  int first = -1, second = -1, count = 0;
  EXPECT_EQ(fwemu_open("gfx950", &first), 0);
  EXPECT_EQ(fwemu_open("gfx950", &second), 0);
  EXPECT_EQ(first, second);
  EXPECT_EQ(hipGetDeviceCount(&count), hipSuccess);
  EXPECT_EQ(fwemu_add_device("gfx950"), count);
  EXPECT_EQ(fwemu_add_device("gfx1"), -1);
  EXPECT_TRUE(contains(fwemu_last_error(), "gfx1201")) << "says which there are";
  EXPECT_EQ(fwemu_open("", &index), hipErrorInvalidDevice);
  EXPECT_TRUE(contains(fwemu_architectures(), "gfx90a"));
}

TEST(HipDevices, ContextsOfOldPrograms) {
  ASSERT_EQ(hipSetDevice(kGfx942), hipSuccess);
  hipCtx_t context = nullptr, other = nullptr;
  EXPECT_EQ(hipDevicePrimaryCtxRetain(&context, kGfx1100), hipSuccess);
  EXPECT_EQ(hipCtxPushCurrent(context), hipSuccess);
  int device = -1;
  EXPECT_EQ(hipCtxGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, kGfx1100);
  EXPECT_EQ(hipCtxPopCurrent(&other), hipSuccess);
  EXPECT_EQ(other, context);
  EXPECT_EQ(hipGetDevice(&device), hipSuccess);
  EXPECT_EQ(device, kGfx942);
  EXPECT_EQ(hipCtxPopCurrent(&other), hipErrorInvalidContext);
}

TEST(HipErrors, HaveNamesAndAreRemembered) {
  EXPECT_STREQ(hipGetErrorName(hipErrorLaunchFailure), "hipErrorLaunchFailure");
  EXPECT_STREQ(hipGetErrorString(hipSuccess), "no error");
  EXPECT_EQ(hipSetDevice(-1), hipErrorInvalidDevice);
  EXPECT_EQ(hipPeekAtLastError(), hipErrorInvalidDevice);
  EXPECT_EQ(hipGetLastError(), hipErrorInvalidDevice);
  EXPECT_EQ(hipGetLastError(), hipSuccess);
}

TEST(HipStreams, AreObjectsThatCanBeWrong) {
  hipStream_t stream = nullptr;
  EXPECT_EQ(hipStreamCreateWithPriority(&stream, 1, -1), hipSuccess);
  EXPECT_EQ(hipStreamQuery(stream), hipSuccess);
  auto capturing = static_cast<hipStreamCaptureStatus>(7);
  EXPECT_EQ(hipStreamIsCapturing(stream, &capturing), hipSuccess);
  EXPECT_EQ(capturing, hipStreamCaptureStatusNone);
  hipEvent_t start = nullptr, stop = nullptr, untimed = nullptr;
  EXPECT_EQ(hipEventCreate(&start), hipSuccess);
  EXPECT_EQ(hipEventCreate(&stop), hipSuccess);
  EXPECT_EQ(hipEventCreateWithFlags(&untimed, hipEventDisableTiming), hipSuccess);
  float milliseconds = -1;
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, stop), hipErrorInvalidHandle) << "not recorded yet";
  EXPECT_EQ(hipEventRecord(start, stream), hipSuccess);
  EXPECT_EQ(hipEventRecord(stop, nullptr), hipSuccess);
  EXPECT_EQ(hipEventRecord(untimed, stream), hipSuccess);
  EXPECT_EQ(hipStreamWaitEvent(stream, stop, 0), hipSuccess);
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, stop), hipSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(hipEventElapsedTime(&milliseconds, start, untimed), hipErrorInvalidHandle);
  EXPECT_EQ(hipStreamDestroy(stream), hipSuccess);
  EXPECT_EQ(hipStreamDestroy(stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipStreamSynchronize(stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipEventRecord(start, stream), hipErrorInvalidHandle);
  EXPECT_EQ(hipEventDestroy(start), hipSuccess);
  EXPECT_EQ(hipEventQuery(start), hipErrorInvalidHandle);
  EXPECT_EQ(hipEventDestroy(stop), hipSuccess);
  EXPECT_EQ(hipEventDestroy(untimed), hipSuccess);
}

TEST(HipSymbols, CanBeAskedFor) {
  void* found = nullptr;
  int status = -1;
  EXPECT_EQ(hipGetProcAddress("hipMalloc", &found, 600, 0, &status), hipSuccess);
  EXPECT_EQ(found, reinterpret_cast<void*>(&hipMalloc));
  EXPECT_EQ(hipGetProcAddress("hipGetDeviceProperties", &found, 600, 0, &status), hipSuccess);
  EXPECT_EQ(found, reinterpret_cast<void*>(&hipGetDevicePropertiesR0600));
  EXPECT_EQ(hipGetProcAddress("hipTeleport", &found, 600, 0, &status), hipErrorInvalidValue);
}

TEST(Options, AreCheckedByNameAndValue) {
  EXPECT_EQ(fwemu_set_option("seed", "18446744073709551615"), 0);
  EXPECT_EQ(fwemu_set_option("seed", "0"), 0);
  struct {
    const char *name, *value, *says;
  } const wrong[] = {{"colour", "1", "there are: check, checks"},
                     {"check", "2", "0, 1 or report"},
                     {"checks", "wait,colour", "colour"},
                     {"threads", "-1", "whole number"},
                     {"threads", "1025", "1024"},
                     {"seed", "1x", "1x"},
                     {"reverse", "", "0 or 1"},
                     {"hazards", "none", "compiler or assembly"},
                     {"order", "random", "waves, lockstep or compare"},
                     {"numerics", "double", "chain or hardware"}};
  for (const auto& c : wrong) {
    EXPECT_EQ(fwemu_set_option(c.name, c.value), hipErrorInvalidValue) << c.name;
    EXPECT_TRUE(contains(fwemu_last_error(), c.says)) << fwemu_last_error();
  }
  EXPECT_EQ(fwemu_set_option(nullptr, "1"), hipErrorInvalidValue);
}

}  // namespace

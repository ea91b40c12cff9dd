#include <gtest/gtest.h>

#include <string>

#include "device/driver.h"

namespace flashwave {
namespace {

TEST(Registry, TheCpuIsAlwaysFirst) {
  ASSERT_FALSE(present_devices().empty());
  EXPECT_EQ(present_devices()[0]->info().name, "cpu");
}

TEST(Registry, FindsWhatIsPresentByItsName) {
  for (Device* present : present_devices()) {
    Device* found = nullptr;
    EXPECT_TRUE(find_device(present->info().name, &found).ok());
    EXPECT_EQ(found, present);
  }
}

TEST(Registry, AutoIsTheFirstGpuWithKernelsElseTheCpu) {
  Device* found = nullptr;
  EXPECT_TRUE(find_device("auto", &found).ok());
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->info().code.any());
  for (Device* present : present_devices()) {
    if (present->info().name == "cpu" || !present->info().code.any()) continue;
    EXPECT_EQ(found, present);
    return;
  }
  EXPECT_EQ(found, present_devices().front());
}

TEST(Registry, NamesNobodyKnowsListTheKnownForms) {
  for (const char* name : {"", "CPU", "cpu:0", "tpu", "cuda:", "cuda:x", "cudax", "hip:1x", "emu", "emu:"}) {
    Device* found = nullptr;
    const Status status = find_device(name, &found);
    EXPECT_EQ(status.code, FW_NO_DEVICE) << name;
    EXPECT_EQ(found, nullptr) << name;
    EXPECT_NE(status.message.find("'" + std::string(name) + "'"), std::string::npos) << status.message;
    for (const char* form : {"cpu", "cuda[:i]", "hip[:i]", "emu:gfxNNN", "auto"}) {
      EXPECT_NE(status.message.find(form), std::string::npos) << status.message;
    }
  }
}

TEST(Registry, DevicesThatAreNotThereSaySo) {
  for (const char* name : {"cuda:4095", "hip:4095", "emu:gfx1"}) {
    Device* found = nullptr;
    const Status status = find_device(name, &found);
    EXPECT_EQ(status.code, FW_NO_DEVICE) << name;
    EXPECT_EQ(found, nullptr) << name;
    EXPECT_EQ(status.message.find("not a name"), std::string::npos) << status.message;
    EXPECT_NE(status.message.find(name), std::string::npos) << status.message;
  }
}

}  // namespace
}  // namespace flashwave

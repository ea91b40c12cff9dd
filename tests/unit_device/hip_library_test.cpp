// What is said when there is no AMD GPU to be had. The library is chosen once, so each case has a process of its own.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "device/driver.h"
#include "device/hip/hip_device.h"
#include "tests/paths.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
// AMD's runtime keeps what it allocates when it finds no GPU.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libamdhip64"; }
extern "C" const char* __lsan_default_options();
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }
#endif
#endif

namespace flashwave {
namespace {

// Ends the process with the status, its message on stderr.
[[noreturn]] void open_and_exit(const char* device, const char* library) {
  setenv("FLASHWAVE_HIP_LIBRARY", library, 1);
  Device* found = nullptr;
  const Status status = find_device(device, &found);
  if ((found != nullptr) != status.ok()) std::exit(100);
  std::fprintf(stderr, "%s", status.message.c_str());
  std::exit(static_cast<int>(status.code));
}

testing::ExitedWithCode no_device() { return testing::ExitedWithCode(FW_NO_DEVICE); }

class HipLibraryDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(HipLibraryDeathTest, NotFound) {
  EXPECT_EXIT(open_and_exit("hip", "/nowhere/libamdhip64.so"), no_device(),
              "device 'hip': AMD's HIP runtime is not found: /nowhere/libamdhip64.so: cannot open");
}

TEST_F(HipLibraryDeathTest, AnotherLibrary) {
  EXPECT_EXIT(open_and_exit("hip:0", "libm.so.6"), no_device(),
              "device 'hip:0': libm.so.6 is not AMD's HIP runtime: it has no hipInit, hipRuntimeGetVersion, ");
}

TEST_F(HipLibraryDeathTest, TooOld) {
  setenv("FAKE_HIP_VERSION", "40321200", 1);
  EXPECT_EXIT(open_and_exit("hip", paths::kFakeHip), no_device(), "is too old: it is 4.3, at least 5.0 is needed");
  unsetenv("FAKE_HIP_VERSION");
}

TEST_F(HipLibraryDeathTest, DoesNotStart) {
  setenv("FAKE_HIP_INIT", "3", 1);
  EXPECT_EXIT(open_and_exit("hip", paths::kFakeHip), no_device(), "does not start: hipInit: hipErrorOther: other");
  unsetenv("FAKE_HIP_INIT");
}

TEST_F(HipLibraryDeathTest, NoGpu) {
  EXPECT_EXIT(open_and_exit("hip", paths::kFakeHip), no_device(), "finds no GPU: .*hipErrorNoDevice");
}

TEST_F(HipLibraryDeathTest, NotThatManyGpus) {
  setenv("FAKE_HIP_COUNT", "2", 1);
  EXPECT_EXIT(open_and_exit("hip:2", paths::kFakeHip), no_device(),
              "device 'hip:2': there is no such GPU; the last one is hip:1");
  EXPECT_EXIT(open_and_exit("hip:99999999999999999999", paths::kFakeHip), no_device(), "no such GPU");
  unsetenv("FAKE_HIP_COUNT");
}

TEST_F(HipLibraryDeathTest, GpusAreListedBehindTheCpuAndAutoWantsKernels) {
  const auto facts = [] {
    setenv("FLASHWAVE_HIP_LIBRARY", paths::kFakeHip, 1);
    const std::vector<Device*>& present = present_devices();
    if (present.size() != 3) std::exit(1);
    const DeviceInfo& info = present[2]->info();
    if (present[0]->info().name != "cpu" || info.name != "hip:1" || info.kind != "hip" || info.arch != "gfx90a" ||
        info.index != 1 || info.compute_units != 110 || info.memory_bytes != 1000 || info.host_memory ||
        info.description != "a GPU that is not there") {
      std::exit(2);
    }
    const bool kernels = present[1]->info().code.any();
    Device* chosen = nullptr;
    if (!find_device("auto", &chosen).ok() || kernels == amd_code_archive().entries.empty() ||
        chosen->info().name != (kernels ? "hip:0" : "cpu")) {
      std::exit(3);
    }
    void* pointer = &pointer;
    const Status status = present[1]->alloc(64, &pointer);
    std::fprintf(stderr, "%s", status.message.c_str());
    std::exit(status.code == FW_DEVICE_ERROR && pointer == nullptr ? 0 : 4);
  };
  setenv("FAKE_HIP_COUNT", "2", 1);
  setenv("FAKE_HIP_SET", "999", 1);
  EXPECT_EXIT(facts(), testing::ExitedWithCode(0), "hip:0: hipSetDevice: hipErrorOther: other");
  unsetenv("FAKE_HIP_SET");
  unsetenv("FAKE_HIP_COUNT");
}

// A ROCm build of PyTorch carries a runtime of its own. A second one beside it would know none of its memory.
TEST_F(HipLibraryDeathTest, TheRuntimeThatTheProgramHasLoadedIsTaken) {
  const auto open = [](const char* loaded) {
    if (loaded != nullptr && dlopen(loaded, RTLD_NOW | RTLD_LOCAL) == nullptr) std::exit(100);
    Device* found = nullptr;
    const Status status = find_device("hip", &found);
    std::fprintf(stderr, "%s", status.message.c_str());
    std::exit(static_cast<int>(status.code));
  };
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string path = before != nullptr ? before : "";
  setenv("LD_LIBRARY_PATH", paths::kSystemLibraries, 1);
  EXPECT_EXIT(open(nullptr), no_device(), "the HIP runtime libamdhip64.so.7 finds no GPU");
  EXPECT_EXIT(open(paths::kTorchHip), no_device(), "the HIP runtime libamdhip64.so.6 finds no GPU");
  // An installation that is named comes before what the loader finds, but not before what is loaded.
  const std::filesystem::path rocm = std::filesystem::path(testing::TempDir()) / "rocm";
  std::filesystem::create_directories(rocm / "lib");
  std::filesystem::remove(rocm / "lib/libamdhip64.so");
  std::filesystem::create_symlink(paths::kFakeHip, rocm / "lib/libamdhip64.so");
  setenv("ROCM_PATH", rocm.c_str(), 1);
  EXPECT_EXIT(open(nullptr), no_device(), "the HIP runtime .*rocm/lib/libamdhip64.so finds no GPU");
  EXPECT_EXIT(open(paths::kTorchHip), no_device(), "the HIP runtime libamdhip64.so.6 finds no GPU");
  unsetenv("ROCM_PATH");
  before != nullptr ? setenv("LD_LIBRARY_PATH", path.c_str(), 1) : unsetenv("LD_LIBRARY_PATH");
}

TEST_F(HipLibraryDeathTest, TheRealRuntimeWithoutAGpu) {
  if (access("/dev/kfd", F_OK) == 0) GTEST_SKIP() << "this machine has an AMD GPU";
  for (const char* name : {"libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7"}) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) continue;
    dlclose(library);
    EXPECT_EXIT(open_and_exit("hip", name), no_device(),
                "device 'hip': the HIP runtime libamdhip64.* finds no GPU: hip");
    EXPECT_EXIT((setenv("FLASHWAVE_HIP_LIBRARY", name, 1), std::exit(static_cast<int>(present_devices().size()))),
                testing::ExitedWithCode(1), "^$")
        << "nothing is printed";
    return;
  }
  GTEST_SKIP() << "AMD's HIP runtime is not installed (Debian: libamdhip64-5)";
}

TEST_F(HipLibraryDeathTest, CpuLoadsNothing) {
  const auto cpu = [] {
    setenv("FLASHWAVE_HIP_LIBRARY", paths::kFakeHip, 1);
    Device* found = nullptr;
    const bool opened = find_device("cpu", &found).ok();
    std::exit(opened && dlopen(paths::kFakeHip, RTLD_LAZY | RTLD_NOLOAD) == nullptr ? 0 : 1);
  };
  EXPECT_EXIT(cpu(), testing::ExitedWithCode(0), "");
}

[[noreturn]] void emulate_and_exit(const char* device, const char* library) {
  setenv("FLASHWAVE_EMU_LIBRARY", library, 1);
  Device* found = nullptr;
  const Status status = find_device(device, &found);
  std::fprintf(stderr, "%s", status.message.c_str());
  std::exit(static_cast<int>(status.code));
}

TEST_F(HipLibraryDeathTest, NoEmulator) {
  EXPECT_EXIT(emulate_and_exit("emu:gfx942", "/nowhere/libflashwave_emu.so"), no_device(),
              "device 'emu:gfx942': the emulator of AMD GPUs is not found: /nowhere/libflashwave_emu.so");
  EXPECT_EXIT(emulate_and_exit("emu:gfx942", paths::kFakeHip), no_device(), "it has no fwemu_ functions");
  EXPECT_EXIT(emulate_and_exit("emu:gfx942", "libm.so.6"), no_device(), "libm.so.6 is not the emulator of AMD GPUs");
}

}  // namespace
}  // namespace flashwave

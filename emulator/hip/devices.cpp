#include "hip/devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "hip/errors.h"

namespace emu::hip {
namespace {

thread_local int chosen_device = 0;

// The emulator's vector code is compiled for these.
bool cpu_can_emulate() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return true;
#endif
}

struct DeviceList {
  std::mutex mutex;
  std::deque<const Target*> targets;

  DeviceList() {
    if (!cpu_can_emulate()) return;
    const char* listed = std::getenv("FLASHWAVE_EMU_ARCH");
    const std::string list = listed == nullptr || *listed == '\0' ? "gfx942" : listed;
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      const std::string name = list.substr(begin, end - begin);
      begin = end + 1;
      if (const Target* target = find_target(name)) {
        targets.push_back(target);
      } else {
        std::fprintf(stderr, "flashwave_emu: FLASHWAVE_EMU_ARCH names '%s', which is not emulated; there are: %s\n",
                     name.c_str(), architectures().c_str());
      }
    }
  }
};

DeviceList& list() {
  static auto& devices = *new DeviceList;  // never destroyed: other threads may run while the process exits
  return devices;
}

// Fails unless there is such a GPU and this CPU can emulate it.
hipError_t find_architecture(const std::string& name, const Target** target) {
  if (!cpu_can_emulate()) return fail(hipErrorNoDevice, "the emulator needs a CPU with AVX2, FMA and F16C");
  *target = find_target(name);
  if (*target != nullptr) return hipSuccess;
  return fail(hipErrorInvalidDevice, "'" + name + "' is not an emulated GPU; there are: " + architectures());
}

}  // namespace

int device_count() {
  DeviceList& devices = list();
  const std::lock_guard lock(devices.mutex);
  return static_cast<int>(devices.targets.size());
}

const Target* device_target(int index) {
  DeviceList& devices = list();
  const std::lock_guard lock(devices.mutex);
  if (index < 0 || static_cast<size_t>(index) >= devices.targets.size()) return nullptr;
  return devices.targets[static_cast<size_t>(index)];
}

hipError_t no_device() {
  return fail(hipErrorNoDevice, cpu_can_emulate() ? "FLASHWAVE_EMU_ARCH names no GPU that is emulated"
                                                  : "the emulator needs a CPU with AVX2, FMA and F16C");
}

std::string architectures() {
  std::string names;
  for (const Target& target : all_targets()) names += (names.empty() ? "" : ", ") + target.name;
  return names;
}

hipError_t open_device(const std::string& architecture, int* index) {
  const Target* target = nullptr;
  if (const hipError_t error = find_architecture(architecture, &target); error != hipSuccess) return error;
  DeviceList& devices = list();
  const std::lock_guard lock(devices.mutex);
  const auto found = std::find(devices.targets.begin(), devices.targets.end(), target);
  *index = static_cast<int>(found - devices.targets.begin());
  if (found == devices.targets.end()) devices.targets.push_back(target);
  return hipSuccess;
}

hipError_t add_device(const std::string& architecture, int* index) {
  const Target* target = nullptr;
  if (const hipError_t error = find_architecture(architecture, &target); error != hipSuccess) return error;
  DeviceList& devices = list();
  const std::lock_guard lock(devices.mutex);
  *index = static_cast<int>(devices.targets.size());
  devices.targets.push_back(target);
  return hipSuccess;
}

int current_device() { return chosen_device; }

hipError_t set_current_device(int index) {
  if (device_target(index) == nullptr) {
    return fail(hipErrorInvalidDevice,
                "device " + std::to_string(index) + " does not exist; there are " + std::to_string(device_count()));
  }
  chosen_device = index;
  return hipSuccess;
}

std::string target_id(const Target& target) {
  // Data-centre parts have error correction and, unless told otherwise, run without retry of page faults.
  return target.cdna > 0 ? target.name + ":sramecc+:xnack-" : target.name;
}

}  // namespace emu::hip

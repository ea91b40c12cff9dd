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

struct DeviceList {
  std::mutex mutex;
  std::deque<const Target*> targets;

  DeviceList() {
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

hipError_t unknown_architecture(const std::string& name) {
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

std::string architectures() {
  std::string names;
  for (const Target& target : all_targets()) names += (names.empty() ? "" : ", ") + target.name;
  return names;
}

hipError_t open_device(const std::string& architecture, int* index) {
  const Target* target = find_target(architecture);
  if (target == nullptr) return unknown_architecture(architecture);
  DeviceList& devices = list();
  const std::lock_guard lock(devices.mutex);
  const auto found = std::find(devices.targets.begin(), devices.targets.end(), target);
  *index = static_cast<int>(found - devices.targets.begin());
  if (found == devices.targets.end()) devices.targets.push_back(target);
  return hipSuccess;
}

hipError_t add_device(const std::string& architecture, int* index) {
  const Target* target = find_target(architecture);
  if (target == nullptr) return unknown_architecture(architecture);
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

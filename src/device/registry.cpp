// Devices by name and by number.
#include <algorithm>
#include <string_view>

#include "device/cpu/cpu_device.h"
#include "device/driver.h"

namespace flashwave {
namespace {

// "kind" or "kind:number".
bool names_device_of(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind)) return false;
  name.remove_prefix(kind.size());
  if (name.empty()) return true;
  if (name.size() < 2 || name.front() != ':') return false;
  return std::all_of(name.begin() + 1, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Status no_driver(const std::string& name, const char* what) {
  return {FW_NO_DEVICE, "device '" + name + "': this build of flashwave has no " + what};
}

}  // namespace

const std::vector<Device*>& present_devices() {
  // Never destroyed: a call may still run while the process exits.
  static const auto& devices = *new std::vector<Device*>{&cpu_device()};
  return devices;
}

Status find_device(const std::string& name, Device** device) {
  const std::vector<Device*>& present = present_devices();
  for (Device* candidate : present) {
    if (candidate->info().name == name) return *device = candidate, Status{};
  }
  if (name == "auto") return *device = present.back(), Status{};
  if (names_device_of(name, "cuda")) return no_driver(name, "CUDA driver");
  if (names_device_of(name, "hip")) return no_driver(name, "HIP driver");
  if (name.starts_with("emu:") && name.size() > 4) return no_driver(name, "emulator of AMD GPUs");
  return {FW_NO_DEVICE,
          "device '" + name + "' is not a name flashwave knows: cpu, cuda[:i], hip[:i], emu:gfxNNN, auto"};
}

}  // namespace flashwave

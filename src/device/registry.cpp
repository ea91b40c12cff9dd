// Devices by name and by number.
#include <algorithm>
#include <string_view>

#include "device/cpu/cpu_device.h"
#include "device/driver.h"
#include "device/hip/hip_device.h"

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

// Says which device the reason is about.
Status named(const std::string& name, Status status) {
  if (!status.ok()) status.message = "device '" + name + "': " + status.message;
  return status;
}

Status no_driver(const std::string& name, const std::string& what) {
  return named(name, {FW_NO_DEVICE, "this build of flashwave has no " + what});
}

Status find_hip_device(const std::string& name, Device** device) {
  const HipDevices& hip = hip_devices();
  if (!hip.status.ok()) return named(name, hip.status);
  // "hip" is the first one. A number that does not fit is one there is no device for.
  const std::string exact = name == "hip" ? "hip:0" : name;
  const auto found = std::find_if(hip.devices.begin(), hip.devices.end(),
                                  [&](Device* candidate) { return candidate->info().name == exact; });
  if (found != hip.devices.end()) return *device = *found, Status{};
  return named(name, {FW_NO_DEVICE, "there is no such GPU; the last one is " + hip.devices.back()->info().name});
}

constexpr std::string_view kEmulated = "emu:";

}  // namespace

const std::vector<Device*>& present_devices() {
  // Never destroyed: a call may still run while the process exits.
  static const auto& devices = *new std::vector<Device*>([] {
    std::vector<Device*> present{&cpu_device()};
    if (may_have_hip_devices()) {
      present.insert(present.end(), hip_devices().devices.begin(), hip_devices().devices.end());
    }
    return present;
  }());
  return devices;
}

Status find_device(const std::string& name, Device** device) {
  if (name == "cpu") return *device = &cpu_device(), Status{};  // without loading any driver
  if (name == "auto") {
    const std::vector<Device*>& present = present_devices();
    const auto gpu = std::find_if(present.begin() + 1, present.end(), [](Device* d) { return d->has_kernels(); });
    return *device = gpu != present.end() ? *gpu : present.front(), Status{};
  }
  if (names_device_of(name, "cuda")) return no_driver(name, "CUDA driver");
  if (names_device_of(name, "hip")) return find_hip_device(name, device);
  if (name.starts_with(kEmulated) && name.size() > kEmulated.size()) {
    return named(name, find_emulated_device(name.substr(kEmulated.size()), device));
  }
  return {FW_NO_DEVICE,
          "device '" + name + "' is not a name flashwave knows: cpu, cuda[:i], hip[:i], emu:gfxNNN, auto"};
}

}  // namespace flashwave

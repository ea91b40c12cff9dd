// Devices by name and by number.
#include <algorithm>
#include <string_view>

#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "device/driver.h"
#include "device/hip/hip_device.h"
#include "device/planned_device.h"

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

// Found: what the driver of a kind of GPUs has (HipDevices, CudaDevices).
template <class Found>
Status find_gpu(const std::string& name, const Found& found, Device** device) {
  if (!found.status.ok()) return named(name, found.status);
  // Without a number, the first one. A number that does not fit is one there is no device for.
  const std::string exact = name.find(':') == std::string::npos ? name + ":0" : name;
  const auto gpu = std::ranges::find_if(found.devices, [&](Device* d) { return d->info().name == exact; });
  if (gpu != found.devices.end()) return *device = *gpu, Status{};
  return named(name, {FW_NO_DEVICE, "there is no such GPU; the last one is " + found.devices.back()->info().name});
}

constexpr std::string_view kEmulated = "emu:";

}  // namespace

const std::vector<Device*>& present_devices() {
  // Never destroyed: a call may still run while the process exits.
  static const auto& devices = *new std::vector<Device*>([] {
    std::vector<Device*> present{&cpu_device()};
    const auto add = [&](const std::vector<Device*>& gpus) { present.insert(present.end(), gpus.begin(), gpus.end()); };
    if (may_have_hip_devices()) add(hip_devices().devices);
    if (may_have_cuda_devices()) add(cuda_devices().devices);
    return present;
  }());
  return devices;
}

Status find_device(const std::string& name, Device** device) {
  if (name == "cpu") return *device = &cpu_device(), Status{};  // without loading any driver
  if (name == "auto") {
    const std::vector<Device*>& present = present_devices();
    const auto gpu = std::find_if(present.begin() + 1, present.end(), [](Device* d) { return d->info().code.any(); });
    return *device = gpu != present.end() ? *gpu : present.front(), Status{};
  }
  if (names_device_of(name, "cuda")) return find_gpu(name, cuda_devices(), device);
  if (names_device_of(name, "hip")) return find_gpu(name, hip_devices(), device);
  if (name.starts_with(kEmulated) && name.size() > kEmulated.size()) {
    return named(name, find_emulated_device(name.substr(kEmulated.size()), device));
  }
  if (names_architecture(name)) return named(name, find_planned_device(name, device));
  return {FW_NO_DEVICE, "device '" + name +
                            "' is not a name flashwave knows: cpu, cuda[:i], hip[:i], emu:gfxNNN, auto; or, for plans "
                            "alone, gfxNNN, sm_NN"};
}

}  // namespace flashwave

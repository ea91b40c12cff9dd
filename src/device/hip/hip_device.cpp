#include "device/hip/hip_device.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "device/gpu_device.h"
#include "device/hip/architectures.h"
#include "device/hip/hip_api.h"
#include "device/hip/hip_driver.h"

namespace flashwave {
namespace {

using hip::Api;
using hip::Error;

// "gfx942" of "gfx942:sramecc+:xnack-"; empty if the runtime does not say.
std::string architecture(const Api& api, int index) {
  alignas(16) char properties[hip::kPropertyBytes] = {};
  const bool new_layout = api.GetDevicePropertiesR0600 != nullptr;
  const Error error =
      new_layout ? api.GetDevicePropertiesR0600(properties, index) : api.GetDeviceProperties(properties, index);
  if (error != hip::kSuccess) return "";
  const char* name = properties + (new_layout ? hip::kArchOffset : hip::kArchOffsetBefore6);
  const std::string full(name, strnlen(name, hip::kArchBytes));
  return full.substr(0, full.find(':'));
}

Device* make_device(const Api& api, int index, const std::string& name, const std::string& kind,
                    const CodeArchive& archive) {
  DeviceInfo info;
  info.name = name;
  info.kind = kind;
  info.index = index;
  info.arch = architecture(api, index);
  const Architecture* arch = find_architecture(info.arch);
  if (arch != nullptr) info.isa = arch->isa;
  info.code = compiled_code(archive, [&](std::string_view code) { return arch != nullptr && code == arch->code; });
  char description[256] = {};
  if (api.DeviceGetName(description, sizeof description, index) == hip::kSuccess) info.description = description;
  int units = 0;
  if (api.DeviceGetAttribute(&units, hip::kComputeUnits, index) == hip::kSuccess) info.compute_units = units;
  size_t bytes = 0;
  if (api.DeviceTotalMem(&bytes, index) == hip::kSuccess) info.memory_bytes = static_cast<int64_t>(bytes);
  return make_gpu_device(std::move(info), hip::make_driver(api, index, arch, archive)).release();
}

HipDevices find_devices() {
  HipDevices found;
  auto api = std::make_unique<Api>();
  found.status = hip::load_runtime(api.get());
  if (!found.status.ok()) return found;
  const auto no_gpu = [&](const char* function, Error error) -> Status {
    return {FW_NO_DEVICE, "the HIP runtime " + api->library + " finds no GPU: " + hip::describe(*api, function, error)};
  };
  if (const Error error = api->Init(0); error != hip::kSuccess) {
    const bool none = error == hip::kNoDevice || error == hip::kInvalidDevice;
    found.status = none ? no_gpu("hipInit", error)
                        : Status{FW_NO_DEVICE, "the HIP runtime " + api->library +
                                                   " does not start: " + hip::describe(*api, "hipInit", error)};
    return found;
  }
  int count = 0;
  if (const Error error = api->GetDeviceCount(&count); error != hip::kSuccess || count == 0) {
    found.status = no_gpu("hipGetDeviceCount", error != hip::kSuccess ? error : hip::kNoDevice);
    return found;
  }
  const Api& kept = *api.release();
  found.api = &kept;
  for (int i = 0; i < count; ++i) {
    found.devices.push_back(make_device(kept, i, "hip:" + std::to_string(i), "hip", amd_code_archive()));
  }
  return found;
}

// The emulator's library, loaded once; devices of it are made one by one.
struct Emulator {
  std::mutex mutex;
  Api api;
  Status loaded = load();

 private:
  Status load() {
    Status status = hip::load_emulator(&api);
    // Waves of one workgroup do different work in some kernels, and meet where each one is.
    if (status.ok() && std::getenv("FLASHWAVE_EMU_BARRIERS") == nullptr) {
      static_cast<void>(api.emu_set_option("barriers", "counted"));
    }
    return status;
  }
};

}  // namespace

bool may_have_hip_devices() {
  const char* chosen = std::getenv("FLASHWAVE_HIP_LIBRARY");
  // The kernel driver's device, on Linux and under Windows' subsystem for it.
  return (chosen != nullptr && *chosen != '\0') || access("/dev/kfd", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

const HipDevices& hip_devices() {
  static const auto& found = *new HipDevices(find_devices());  // never destroyed: a call may still run at exit
  return found;
}

Status current_hip_device(Device** device) {
  const HipDevices& found = hip_devices();
  if (!found.status.ok()) return found.status;
  int index = 0;
  if (const Error error = found.api->GetDevice(&index); error != hip::kSuccess) {
    return {FW_DEVICE_ERROR, "the current HIP device: " + hip::describe(*found.api, "hipGetDevice", error)};
  }
  *device = found.devices.at(static_cast<size_t>(index));
  return {};
}

Status make_emulated_device(const std::string& arch, const CodeArchive& archive, Device** device) {
  static auto& emulator = *new Emulator;
  const std::lock_guard lock(emulator.mutex);
  if (!emulator.loaded.ok()) return emulator.loaded;
  int index = 0;
  if (emulator.api.emu_open(arch.c_str(), &index) != hip::kSuccess) {
    return {FW_NO_DEVICE, emulator.api.emu_last_error()};
  }
  *device = make_device(emulator.api, index, "emu:" + arch, "emu", archive);
  return {};
}

Status find_emulated_device(const std::string& arch, Device** device) {
  static auto& mutex = *new std::mutex;
  static auto& devices = *new std::map<std::string, Device*>;  // by architecture
  const std::lock_guard lock(mutex);
  Device*& known = devices[arch];
  if (known == nullptr) {
    if (Status status = make_emulated_device(arch, amd_code_archive(), &known); !status.ok()) return status;
  }
  *device = known;
  return {};
}

}  // namespace flashwave

#include "device/cuda/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "device/cuda/code_choice.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_driver.h"
#include "device/gpu_device.h"

namespace flashwave {
namespace {

using cuda::Api;
using cuda::Error;

Device* make_device(const Api& api, int ordinal) {
  DeviceInfo info;
  info.name = "cuda:" + std::to_string(ordinal);
  info.kind = "cuda";
  info.index = ordinal;
  int device = 0, capability = 0;
  if (api.DeviceGet(&device, ordinal) == cuda::kSuccess) {
    const auto attribute = [&](cuda::Attribute which) {
      int value = 0;
      return api.DeviceGetAttribute(&value, which, device) == cuda::kSuccess ? value : 0;
    };
    capability = attribute(cuda::kComputeMajor) * 10 + attribute(cuda::kComputeMinor);
    info.arch = "sm_" + std::to_string(capability);
    info.isa = cuda::instruction_sets(capability);
    info.compute_units = std::max(attribute(cuda::kMultiprocessors), 1);
    info.lds_bytes = attribute(cuda::kSharedMemoryPerBlock);
    char description[256] = {};
    if (api.DeviceGetName(description, sizeof description, device) == cuda::kSuccess) info.description = description;
    size_t bytes = 0;
    if (api.DeviceTotalMem(&bytes, device) == cuda::kSuccess) info.memory_bytes = static_cast<int64_t>(bytes);
  }
  const CodeArchive archive = nvidia_code_archive();
  info.code = compiled_code(archive, [&](std::string_view arch) { return cuda::preference(arch, capability) > 0; });
  return make_gpu_device(std::move(info), cuda::make_driver(api, device, capability, archive)).release();
}

CudaDevices find_devices() {
  CudaDevices found;
  auto api = std::make_unique<Api>();
  found.status = cuda::load_driver(api.get());
  if (!found.status.ok()) return found;
  const auto no_gpu = [&](const char* function, Error error) -> Status {
    return {FW_NO_DEVICE,
            "NVIDIA's driver " + api->library + " finds no GPU: " + cuda::describe(*api, function, error)};
  };
  if (const Error error = api->Init(0); error != cuda::kSuccess) {
    found.status = no_gpu("cuInit", error);
    return found;
  }
  int count = 0;
  if (const Error error = api->DeviceGetCount(&count); error != cuda::kSuccess || count == 0) {
    found.status = no_gpu("cuDeviceGetCount", error != cuda::kSuccess ? error : cuda::kNoDevice);
    return found;
  }
  const Api& kept = *api.release();
  for (int i = 0; i < count; ++i) found.devices.push_back(make_device(kept, i));
  return found;
}

}  // namespace

bool may_have_cuda_devices() {
  const char* chosen = std::getenv("FLASHWAVE_CUDA_LIBRARY");
  // The kernel driver's device, on Linux and under Windows' subsystem for it.
  return (chosen != nullptr && *chosen != '\0') || access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

const CudaDevices& cuda_devices() {
  static const auto& found = *new CudaDevices(find_devices());  // never destroyed: a call may still run at exit
  return found;
}

}  // namespace flashwave

#include "device/cuda/cuda_api.h"

#include <cstdlib>
#include <vector>

#include "device/library.h"

namespace flashwave::cuda {
namespace {

// The first one with tensor maps (cuTensorMapEncodeTiled) and for Hopper.
constexpr int kOldestVersion = 12000;

// Finds every function; names those that are not there. The suffixes are versions of the driver's ABI.
std::string find_functions(const Library& library, Api* api) {
  NeededFunctions need(library);
  need("cuInit", &api->Init);
  need("cuDriverGetVersion", &api->DriverGetVersion);
  need("cuDeviceGetCount", &api->DeviceGetCount);
  need("cuDeviceGet", &api->DeviceGet);
  need("cuDeviceGetName", &api->DeviceGetName);
  need("cuDeviceGetAttribute", &api->DeviceGetAttribute);
  need("cuDeviceTotalMem_v2", &api->DeviceTotalMem);
  need("cuDevicePrimaryCtxRetain", &api->DevicePrimaryCtxRetain);
  need("cuCtxGetCurrent", &api->CtxGetCurrent);
  need("cuCtxSetCurrent", &api->CtxSetCurrent);
  need("cuMemAlloc_v2", &api->MemAlloc);
  need("cuMemFree_v2", &api->MemFree);
  need("cuMemcpyAsync", &api->MemcpyAsync);
  need("cuMemsetD8Async", &api->MemsetD8Async);
  need("cuStreamSynchronize", &api->StreamSynchronize);
  need("cuStreamWaitEvent", &api->StreamWaitEvent);
  need("cuStreamIsCapturing", &api->StreamIsCapturing);
  need("cuEventCreate", &api->EventCreate);
  need("cuEventRecord", &api->EventRecord);
  need("cuEventDestroy_v2", &api->EventDestroy);
  need("cuModuleLoadData", &api->ModuleLoadData);
  need("cuModuleGetFunction", &api->ModuleGetFunction);
  need("cuFuncSetAttribute", &api->FuncSetAttribute);
  need("cuLaunchKernelEx", &api->LaunchKernelEx);
  need("cuTensorMapEncodeTiled", &api->TensorMapEncodeTiled);
  need("cuGetErrorName", &api->GetErrorName);
  need("cuGetErrorString", &api->GetErrorString);
  return need.missing();
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

Status load_driver(Api* api) {
  const char* chosen = std::getenv("FLASHWAVE_CUDA_LIBRARY");
  const std::string name = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
  const Library library = open_library({name});
  if (library.handle == nullptr) return {FW_NO_DEVICE, "NVIDIA's driver is not found: " + library.error};
  api->library = library.name;
  // Before the functions: an old driver lacks some, and that it is old says more.
  find_function(library, "cuDriverGetVersion", &api->DriverGetVersion);
  if (api->DriverGetVersion != nullptr && api->DriverGetVersion(&api->version) == kSuccess &&
      api->version < kOldestVersion) {
    return {FW_NO_DEVICE, "NVIDIA's driver " + library.name + " is too old: it is for CUDA " +
                              version_text(api->version) + ", at least " + version_text(kOldestVersion) + " is needed"};
  }
  const std::string missing = find_functions(library, api);
  if (!missing.empty()) return {FW_NO_DEVICE, library.name + " is not NVIDIA's driver: it has no " + missing};
  return {};
}

std::string describe(const Api& api, const char* function, Error error) {
  const char *name = nullptr, *text = nullptr;
  std::string result = std::string(function) + ": ";
  if (api.GetErrorName(error, &name) != kSuccess || name == nullptr) return result + "error " + std::to_string(error);
  result += name;
  if (api.GetErrorString(error, &text) == kSuccess && text != nullptr) result += std::string(": ") + text;
  return result;
}

}  // namespace flashwave::cuda

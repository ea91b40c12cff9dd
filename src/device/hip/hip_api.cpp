#include "device/hip/hip_api.h"

#include <cstdlib>

#include "device/library.h"

namespace flashwave::hip {
namespace {

// Runtimes before this one do not load the code objects that are embedded (version 5 of their format).
constexpr int kOldestVersion = 50000000;

std::vector<std::string> names_or(const char* variable, std::vector<std::string> names) {
  const char* chosen = std::getenv(variable);
  return chosen != nullptr && *chosen != '\0' ? std::vector<std::string>{chosen} : std::move(names);
}

// Finds every function; names those that are not there.
std::string find_functions(const Library& library, Api* api) {
  NeededFunctions need(library);
  need("hipInit", &api->Init);
  need("hipRuntimeGetVersion", &api->RuntimeGetVersion);
  need("hipGetDeviceCount", &api->GetDeviceCount);
  need("hipGetDevice", &api->GetDevice);
  need("hipSetDevice", &api->SetDevice);
  need("hipDeviceGetName", &api->DeviceGetName);
  need("hipDeviceGetAttribute", &api->DeviceGetAttribute);
  need("hipDeviceTotalMem", &api->DeviceTotalMem);
  need("hipMalloc", &api->Malloc);
  need("hipFree", &api->Free);
  need("hipMemcpyAsync", &api->MemcpyAsync);
  need("hipMemsetAsync", &api->MemsetAsync);
  need("hipStreamSynchronize", &api->StreamSynchronize);
  need("hipStreamIsCapturing", &api->StreamIsCapturing);
  need("hipStreamWaitEvent", &api->StreamWaitEvent);
  need("hipEventCreateWithFlags", &api->EventCreateWithFlags);
  need("hipEventRecord", &api->EventRecord);
  need("hipEventDestroy", &api->EventDestroy);
  need("hipModuleLoadData", &api->ModuleLoadData);
  need("hipModuleGetFunction", &api->ModuleGetFunction);
  need("hipModuleLaunchKernel", &api->ModuleLaunchKernel);
  need("hipGetErrorName", &api->GetErrorName);
  need("hipGetErrorString", &api->GetErrorString);
  find_function(library, "hipGetDevicePropertiesR0600", &api->GetDevicePropertiesR0600);
  if (api->GetDevicePropertiesR0600 == nullptr) need("hipGetDeviceProperties", &api->GetDeviceProperties);
  return need.missing();
}

std::string version_text(int version) {
  return std::to_string(version / 10000000) + "." + std::to_string(version / 100000 % 100);
}

// `what`: how messages call it.
Status load(const std::vector<std::string>& names, const std::string& what, Api* api) {
  const Library library = open_library(names);
  if (library.handle == nullptr) return {FW_NO_DEVICE, what + " is not found: " + library.error};
  api->library = library.name;
  // Before the functions: an old runtime lacks some, and that it is old says more.
  find_function(library, "hipRuntimeGetVersion", &api->RuntimeGetVersion);
  if (api->RuntimeGetVersion != nullptr && api->RuntimeGetVersion(&api->version) == kSuccess &&
      api->version < kOldestVersion) {
    return {FW_NO_DEVICE, what + " " + library.name + " is too old: it is " + version_text(api->version) +
                              ", at least " + version_text(kOldestVersion) + " is needed"};
  }
  const std::string missing = find_functions(library, api);
  if (!missing.empty()) return {FW_NO_DEVICE, library.name + " is not " + what + ": it has no " + missing};
  find_function(library, "fwemu_architectures", &api->emu_architectures);
  find_function(library, "fwemu_last_error", &api->emu_last_error);
  find_function(library, "fwemu_open", &api->emu_open);
  find_function(library, "fwemu_set_option", &api->emu_set_option);
  find_function(library, "fwemu_counters_json", &api->emu_counters_json);
  find_function(library, "fwemu_reset_counters", &api->emu_reset_counters);
  return {};
}

}  // namespace

Status load_runtime(Api* api) {
  const std::string inside = "/lib/libamdhip64.so";
  std::vector<std::string> names = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
  const char* rocm = std::getenv("ROCM_PATH");
  if (rocm != nullptr && *rocm != '\0') names.insert(names.begin(), rocm + inside);
  names.push_back("/opt/rocm" + inside);  // where it lies, though the loader may not have been told
  return load(names_or("FLASHWAVE_HIP_LIBRARY", std::move(names)), "AMD's HIP runtime", api);
}

Status load_emulator(Api* api) {
  const std::string plain = "libflashwave_emu.so";
  Status status =
      load(names_or("FLASHWAVE_EMU_LIBRARY", {own_folder() + plain, plain}), "the emulator of AMD GPUs", api);
  if (!status.ok()) return status;
  if (api->emu_open == nullptr || api->emu_architectures == nullptr || api->emu_last_error == nullptr ||
      api->emu_set_option == nullptr || api->emu_counters_json == nullptr || api->emu_reset_counters == nullptr) {
    return {FW_NO_DEVICE, api->library + " is not the emulator of AMD GPUs: it has no fwemu_ functions"};
  }
  return {};
}

std::string describe(const Api& api, const char* function, Error error) {
  std::string text = std::string(function) + ": " + api.GetErrorName(error) + ": " + api.GetErrorString(error);
  const char* detail = api.emu_last_error != nullptr ? api.emu_last_error() : "";
  if (*detail != '\0') text += std::string(": ") + detail;
  return text;
}

}  // namespace flashwave::hip

#include "device/hip/hip_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "device/hip/architectures.h"
#include "device/hip/code_objects.h"
#include "device/hip/hip_api.h"
#include "device/workspace_pool.h"
#include "kernels/abi/gpu_launch.h"

namespace flashwave {
namespace {

using hip::Api;
using hip::Error;

// `what`: the device, or what was to run on it.
Status failed(const Api& api, const std::string& what, const char* function, Error error) {
  const fw_status code = error == hip::kOutOfMemory ? FW_OUT_OF_MEMORY : FW_DEVICE_ERROR;
  return {code, what + ": " + hip::describe(api, function, error)};
}

// Makes a device the calling thread's for the time of a call; the program's own choice is put back.
class CurrentDevice {
 public:
  CurrentDevice(const Api& api, int index) : api_(api) {
    error_ = api.GetDevice(&before_);
    if (error_ == hip::kSuccess && before_ != index) {
      error_ = api.SetDevice(index);
      changed_ = error_ == hip::kSuccess;
    }
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (changed_) static_cast<void>(api_.SetDevice(before_));
  }
  Error error() const { return error_; }

 private:
  const Api& api_;
  int before_ = 0;
  bool changed_ = false;
  Error error_;
};

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

class HipMemory final : public StreamOrderedMemory {
 public:
  explicit HipMemory(const Api& api) : api_(api) {}
  int allocate(void** data, size_t bytes) override { return api_.Malloc(data, bytes); }
  int release(void* data) override { return api_.Free(data); }
  int create_event(void** event) override { return api_.EventCreateWithFlags(event, hip::kEventWithoutTiming); }
  int destroy_event(void* event) override { return api_.EventDestroy(event); }
  int record(void* event, void* stream) override { return api_.EventRecord(event, stream); }
  int wait(void* stream, void* event) override { return api_.StreamWaitEvent(stream, event, 0); }

 private:
  const Api& api_;
};

class HipDevice final : public Device {
 public:
  HipDevice(const Api& api, int index, const std::string& name, const std::string& kind)
      : api_(api), memory_(api), workspaces_(memory_) {
    info_.name = name;
    info_.kind = kind;
    info_.index = index;
    info_.arch = architecture(api, index);
    if (const Architecture* known = find_architecture(info_.arch)) info_.isa = known->isa;
    info_.has_code = has_code_objects(info_.arch);
    char description[256] = {};
    if (api.DeviceGetName(description, sizeof description, index) == hip::kSuccess) info_.description = description;
    int units = 0;
    if (api.DeviceGetAttribute(&units, hip::kComputeUnits, index) == hip::kSuccess) info_.compute_units = units;
    size_t bytes = 0;
    if (api.DeviceTotalMem(&bytes, index) == hip::kSuccess) info_.memory_bytes = static_cast<int64_t>(bytes);
  }

  const DeviceInfo& info() const override { return info_; }

  Status alloc(size_t bytes, void** pointer) override {
    *pointer = nullptr;
    return on_device("hipMalloc", [&] { return api_.Malloc(pointer, std::max<size_t>(bytes, 1)); });
  }

  Status free(void* pointer) override {
    return on_device("hipFree", [&] { return api_.Free(pointer); });
  }

  Status copy(void* destination, const void* source, size_t bytes, fw_copy_kind kind, void* stream) override {
    if (bytes == 0) return {};
    const hip::CopyKind direction = kind == FW_HOST_TO_DEVICE   ? hip::kHostToDevice
                                    : kind == FW_DEVICE_TO_HOST ? hip::kDeviceToHost
                                                                : hip::kDeviceToDevice;
    return on_device("hipMemcpyAsync", [&] { return api_.MemcpyAsync(destination, source, bytes, direction, stream); });
  }

  Status synchronize(void* stream) override {
    return on_device("hipStreamSynchronize", [&] { return api_.StreamSynchronize(stream); });
  }

  char* cached_workspace(size_t bytes) override {
    const CurrentDevice current(api_, info_.index);
    return current.error() == hip::kSuccess ? workspaces_.lend(bytes) : nullptr;
  }

  void release_workspace(char* workspace) override {
    const CurrentDevice current(api_, info_.index);
    workspaces_.give_back(workspace);
  }

  Status launch(const char* kernel, const abi::Params& params, const abi::Schedule& schedule,
                const LaunchOptions& options) override {
    const CodeObject* code = find_code_object(kernel, info_.arch);
    if (code == nullptr) {
      return {FW_UNSUPPORTED,
              info_.name + ": this build of flashwave has no machine code of " + kernel + " for " + info_.arch};
    }
    const CurrentDevice current(api_, info_.index);
    if (current.error() != hip::kSuccess) return failure("hipSetDevice", current.error());
    void* function = nullptr;
    if (Status status = find_function(*code, &function); !status.ok()) return status;

    abi::GpuArguments arguments{params, schedule, options.shared, options.scratch};
    size_t bytes = sizeof arguments;
    void* extra[] = {reinterpret_cast<void*>(hip::kArgumentBuffer), &arguments,
                     reinterpret_cast<void*>(hip::kArgumentBytes), &bytes, reinterpret_cast<void*>(hip::kArgumentsEnd)};
    const int64_t rows = (schedule.tasks + abi::kTasksPerRow - 1) / abi::kTasksPerRow;
    const int64_t columns = std::min(schedule.tasks, abi::kTasksPerRow);
    if (Error error = workspaces_.before_launch(options.stream); error != hip::kSuccess) {
      return failure("hipStreamWaitEvent", error);
    }
    const Error error = api_.ModuleLaunchKernel(
        function, static_cast<unsigned>(columns), static_cast<unsigned>(rows), 1, static_cast<unsigned>(code->threads),
        1, 1, static_cast<unsigned>(code->dynamic_lds), options.stream, nullptr, extra);
    if (error != hip::kSuccess) return failed(api_, info_.name + ": " + kernel, "hipModuleLaunchKernel", error);
    const Error recorded = workspaces_.after_launch(options.stream);
    return recorded == hip::kSuccess ? Status{} : failure("hipEventRecord", recorded);
  }

  Status counters(std::string* json) override {
    if (api_.emu_counters_json == nullptr) return Device::counters(json);
    static_cast<void>(api_.emu_set_option("count", "1"));
    std::string text;
    for (size_t needed = 1; needed > text.size();) {
      text.resize(needed);
      needed = api_.emu_counters_json(info_.index, text.data(), text.size());
    }
    text.resize(text.find('\0'));
    *json = std::move(text);
    return {};
  }

  void reset_counters() override {
    if (api_.emu_reset_counters != nullptr) api_.emu_reset_counters(info_.index);
  }

 private:
  Status failure(const char* function, Error error) const { return failed(api_, info_.name, function, error); }

  template <class Call>
  Status on_device(const char* function, Call&& call) {
    const CurrentDevice current(api_, info_.index);
    if (current.error() != hip::kSuccess) return failure("hipSetDevice", current.error());
    const Error error = call();
    return error == hip::kSuccess ? Status{} : failure(function, error);
  }

  // Each code object is loaded once, when a kernel in it is first launched.
  Status find_function(const CodeObject& code, void** function) {
    const std::lock_guard lock(mutex_);
    void*& known = functions_[&code];
    if (known == nullptr) {
      void*& module = modules_[code.image];
      if (module == nullptr) {
        const Error error = api_.ModuleLoadData(&module, code.image);
        if (error != hip::kSuccess) {
          module = nullptr;
          return failure("hipModuleLoadData", error);
        }
      }
      const Error error = api_.ModuleGetFunction(&known, module, code.kernel);
      if (error != hip::kSuccess) {
        known = nullptr;
        return failure("hipModuleGetFunction", error);
      }
    }
    *function = known;
    return {};
  }

  const Api& api_;
  DeviceInfo info_;
  HipMemory memory_;
  WorkspacePool workspaces_;
  std::mutex mutex_;
  std::map<const void*, void*> modules_;  // by image
  std::map<const CodeObject*, void*> functions_;
};

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
  for (int i = 0; i < count; ++i) found.devices.push_back(new HipDevice(kept, i, "hip:" + std::to_string(i), "hip"));
  return found;
}

// The emulator's library, loaded once; devices of it are made one by one.
struct Emulator {
  std::mutex mutex;
  Api api;
  Status loaded = load();
  std::map<std::string, Device*> devices;  // by architecture

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
    return failed(*found.api, "the current HIP device", "hipGetDevice", error);
  }
  *device = found.devices.at(static_cast<size_t>(index));
  return {};
}

Status find_emulated_device(const std::string& arch, Device** device) {
  static auto& emulator = *new Emulator;
  const std::lock_guard lock(emulator.mutex);
  if (!emulator.loaded.ok()) return emulator.loaded;
  Device*& known = emulator.devices[arch];
  if (known == nullptr) {
    int index = 0;
    if (emulator.api.emu_open(arch.c_str(), &index) != hip::kSuccess) {
      return {FW_NO_DEVICE, emulator.api.emu_last_error()};
    }
    known = new HipDevice(emulator.api, index, "emu:" + arch, "emu");
  }
  *device = known;
  return {};
}

}  // namespace flashwave

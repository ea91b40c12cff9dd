#include "device/cuda/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "device/cuda/cuda_api.h"
#include "device/cuda/kernel_code.h"
#include "device/workspace_pool.h"
#include "kernels/abi/features.h"
#include "kernels/abi/gpu_launch.h"
#include "kernels/abi/tensor_maps.h"

namespace flashwave {
namespace {

using cuda::Api;
using cuda::Error;

uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// `what`: the device, or what was to run on it.
Status failed(const Api& api, const std::string& what, const char* function, Error error) {
  const fw_status code = error == cuda::kOutOfMemory ? FW_OUT_OF_MEMORY : FW_DEVICE_ERROR;
  return {code, what + ": " + cuda::describe(api, function, error)};
}

// Makes a context the calling thread's for the time of a call; the program's own choice is put back.
class CurrentContext {
 public:
  CurrentContext(const Api& api, void* context) : api_(api) {
    error_ = api.CtxGetCurrent(&before_);
    if (error_ == cuda::kSuccess && before_ != context) {
      error_ = api.CtxSetCurrent(context);
      changed_ = error_ == cuda::kSuccess;
    }
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext() {
    if (changed_) static_cast<void>(api_.CtxSetCurrent(before_));
  }
  Error error() const { return error_; }

 private:
  const Api& api_;
  void* before_ = nullptr;
  bool changed_ = false;
  Error error_;
};

class CudaMemory final : public StreamOrderedMemory {
 public:
  explicit CudaMemory(const Api& api) : api_(api) {}
  int allocate(void** data, size_t bytes) override {
    uint64_t pointer = 0;
    const Error error = api_.MemAlloc(&pointer, bytes);
    *data = reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
    return error;
  }
  int release(void* data) override { return api_.MemFree(address(data)); }
  int create_event(void** event) override { return api_.EventCreate(event, cuda::kEventWithoutTiming); }
  int destroy_event(void* event) override { return api_.EventDestroy(event); }
  int record(void* event, void* stream) override { return api_.EventRecord(event, stream); }
  int wait(void* stream, void* event) override { return api_.StreamWaitEvent(stream, event, 0); }

 private:
  const Api& api_;
};

Error encode(const Api& api, const abi::TensorMapDescription& description, abi::TensorMap* map) {
  constexpr uint32_t kEveryElement[abi::kTensorMapRank] = {1, 1, 1, 1, 1};
  return api.TensorMapEncodeTiled(map, cuda::kElements16, abi::kTensorMapRank,
                                  reinterpret_cast<void*>(static_cast<uintptr_t>(description.base)), description.dims,
                                  description.strides, description.box, kEveryElement, cuda::kNoInterleave,
                                  cuda::kSwizzle128, cuda::kPromote256, cuda::kFillZeros);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(const Api& api, int ordinal) : api_(api), memory_(api), workspaces_(memory_) {
    info_.name = "cuda:" + std::to_string(ordinal);
    info_.kind = "cuda";
    info_.index = ordinal;
    if (api.DeviceGet(&device_, ordinal) != cuda::kSuccess) return;
    capability_ = attribute(cuda::kComputeMajor) * 10 + attribute(cuda::kComputeMinor);
    info_.arch = "sm_" + std::to_string(capability_);
    if (capability_ >= 75) info_.isa |= kIsaSm75;
    if (capability_ >= 80) info_.isa |= kIsaSm80;
    if (capability_ == 90) info_.isa |= kIsaSm90;
    info_.has_code = cuda::has_code(capability_);
    info_.compute_units = std::max(attribute(cuda::kMultiprocessors), 1);
    info_.shared_memory_bytes = attribute(cuda::kSharedMemoryPerBlock);
    char description[256] = {};
    if (api.DeviceGetName(description, sizeof description, device_) == cuda::kSuccess) info_.description = description;
    size_t bytes = 0;
    if (api.DeviceTotalMem(&bytes, device_) == cuda::kSuccess) info_.memory_bytes = static_cast<int64_t>(bytes);
  }

  const DeviceInfo& info() const override { return info_; }

  Status alloc(size_t bytes, void** pointer) override {
    return on_device("cuMemAlloc", [&] { return memory_.allocate(pointer, std::max<size_t>(bytes, 1)); });
  }

  Status free(void* pointer) override {
    if (pointer == nullptr) return {};
    return on_device("cuMemFree", [&] { return memory_.release(pointer); });
  }

  Status copy(void* destination, const void* source, size_t bytes, fw_copy_kind /*addresses tell*/,
              void* stream) override {
    if (bytes == 0) return {};
    return on_device("cuMemcpyAsync",
                     [&] { return api_.MemcpyAsync(address(destination), address(source), bytes, stream); });
  }

  Status synchronize(void* stream) override {
    return on_device("cuStreamSynchronize", [&] { return api_.StreamSynchronize(stream); });
  }

  char* cached_workspace(size_t bytes) override {
    char* workspace = nullptr;
    static_cast<void>(on_device("cuMemAlloc", [&] {
      workspace = workspaces_.lend(bytes);
      return cuda::kSuccess;
    }));
    return workspace;
  }

  void release_workspace(char* workspace) override {
    static_cast<void>(on_device("cuMemFree", [&] {
      workspaces_.give_back(workspace);
      return cuda::kSuccess;
    }));
  }

  Status launch(const char* name, const abi::Params& params, const abi::Schedule& schedule,
                const LaunchOptions& options) override {
    const cuda::Kernel* kernel = cuda::find_kernel(name);
    if (kernel == nullptr) return {FW_UNSUPPORTED, info_.name + ": this build of flashwave has no kernel " + name};
    if (Status status = make_context(); !status.ok()) return status;
    const CurrentContext current(api_, context_);
    if (current.error() != cuda::kSuccess) return failure("cuCtxSetCurrent", current.error());
    void* function = nullptr;
    if (Status status = find_function(*kernel, &function); !status.ok()) return status;

    abi::GpuArguments arguments{params, schedule, options.shared, options.scratch};
    abi::TensorMaps maps;
    void* parameters[] = {&arguments, &maps};
    if (kernel->needs & (kNeedsTensorMaps | kNeedsGradientMaps)) {
      if (Status status = make_maps(*kernel, params, &maps); !status.ok()) return status;
    }
    if (Status status = before_launch(options.stream); !status.ok()) return status;
    if (schedule.zeroed_bytes > 0) {
      const Error error =
          api_.MemsetD8Async(address(options.shared), 0, static_cast<size_t>(schedule.zeroed_bytes), options.stream);
      if (error != cuda::kSuccess) return failure("cuMemsetD8Async", error);
    }
    const int64_t rows = (schedule.tasks + abi::kTasksPerRow - 1) / abi::kTasksPerRow;
    const int64_t columns = std::min(schedule.tasks, abi::kTasksPerRow);
    const Error error =
        api_.LaunchKernel(function, static_cast<unsigned>(columns), static_cast<unsigned>(rows), 1,
                          static_cast<unsigned>(kernel->threads), 1, 1, static_cast<unsigned>(kernel->shared_bytes),
                          options.stream, parameters, nullptr);
    if (error != cuda::kSuccess) return failed(api_, info_.name + ": " + name, "cuLaunchKernel", error);
    const Error recorded = workspaces_.after_launch(options.stream);
    return recorded == cuda::kSuccess ? Status{} : failure("cuEventRecord", recorded);
  }

 private:
  Status failure(const char* function, Error error) const { return failed(api_, info_.name, function, error); }

  int attribute(cuda::Attribute which) const {
    int value = 0;
    return api_.DeviceGetAttribute(&value, which, device_) == cuda::kSuccess ? value : 0;
  }

  // The primary context, which the CUDA runtime (and so PyTorch) uses too; made when it is first needed, since it takes
  // memory of the GPU, and never given back: the program may still use it.
  Status make_context() {
    const std::lock_guard lock(mutex_);
    if (context_ != nullptr) return {};
    const Error error = api_.DevicePrimaryCtxRetain(&context_, device_);
    if (error == cuda::kSuccess) return {};
    context_ = nullptr;
    return failure("cuDevicePrimaryCtxRetain", error);
  }

  template <class Call>
  Status on_device(const char* function, Call&& call) {
    if (Status status = make_context(); !status.ok()) return status;
    const CurrentContext current(api_, context_);
    if (current.error() != cuda::kSuccess) return failure("cuCtxSetCurrent", current.error());
    const Error error = call();
    return error == cuda::kSuccess ? Status{} : failure(function, error);
  }

  // Memory that goes from call to call has no place in a graph, which is replayed when it has other users.
  Status before_launch(void* stream) {
    if (!workspaces_.has_lent()) return {};
    int32_t capture = cuda::kNotCapturing;
    if (Error error = api_.StreamIsCapturing(stream, &capture); error != cuda::kSuccess) {
      return failure("cuStreamIsCapturing", error);
    }
    if (capture != cuda::kNotCapturing) {
      return Status::invalid("workspace: a call whose stream is being captured into a graph must bring its own");
    }
    const Error error = workspaces_.before_launch(stream);
    return error == cuda::kSuccess ? Status{} : failure("cuStreamWaitEvent", error);
  }

  Status make_maps(const cuda::Kernel& kernel, const abi::Params& params, abi::TensorMaps* maps) const {
    const bool backward = (kernel.needs & kNeedsGradientMaps) != 0;
    const abi::TensorMapDescriptions descriptions =
        backward ? abi::describe_gradient_maps(params) : abi::describe_tensor_maps(params, kernel.tile_k);
    const auto one = [&](const char* tensor, const abi::TensorMapDescription& description, abi::TensorMap* map) {
      const Error error = encode(api_, description, map);
      if (error == cuda::kSuccess) return Status{};
      return failed(api_, info_.name + ": " + kernel.name + ": " + tensor, "cuTensorMapEncodeTiled", error);
    };
    Status status = one("q", descriptions.q, &maps->q);
    if (status.ok()) status = one("k", descriptions.k, &maps->k);
    if (status.ok()) status = one("v", descriptions.v, &maps->v);
    if (status.ok()) status = one(backward ? "d_o" : "o", descriptions.o, &maps->o);
    return status;
  }

  // Code that is newer than the driver is refused by it; then the next best is tried.
  Status load_module(const cuda::Kernel& kernel, void** module) {
    Status refused{FW_UNSUPPORTED, info_.name + ": this build of flashwave has no machine code of " + kernel.name +
                                       " for " + info_.arch};
    for (int rank = 0; const ArchiveEntry* code = cuda::find_code(kernel.source, capability_, rank); ++rank) {
      const std::unique_ptr<char[]> image = nvidia_code_archive().unpack(*code);
      if (image == nullptr) return {FW_INTERNAL_ERROR, std::string(kernel.source) + ": damaged machine code"};
      const Error error = api_.ModuleLoadData(module, image.get());
      if (error == cuda::kSuccess) return {};
      if (rank == 0) refused = failed(api_, info_.name + ": " + kernel.source, "cuModuleLoadData", error);
    }
    return refused;
  }

  Status find_function(const cuda::Kernel& kernel, void** function) {
    const std::lock_guard lock(mutex_);
    void*& known = functions_[&kernel];
    if (known == nullptr) {
      void*& module = modules_[kernel.source];
      if (module == nullptr) {
        if (Status status = load_module(kernel, &module); !status.ok()) {
          module = nullptr;
          return status;
        }
      }
      void* found = nullptr;
      Error error = api_.ModuleGetFunction(&found, module, kernel.name);
      if (error != cuda::kSuccess) return failed(api_, info_.name + ": " + kernel.name, "cuModuleGetFunction", error);
      error = api_.FuncSetAttribute(found, cuda::kMaxDynamicSharedBytes, kernel.shared_bytes);
      if (error != cuda::kSuccess) return failed(api_, info_.name + ": " + kernel.name, "cuFuncSetAttribute", error);
      known = found;
    }
    *function = known;
    return {};
  }

  const Api& api_;
  DeviceInfo info_;
  int device_ = 0;
  int capability_ = 0;  // 90: 9.0
  void* context_ = nullptr;
  CudaMemory memory_;
  WorkspacePool workspaces_;
  std::mutex mutex_;
  std::map<std::string, void*> modules_;  // by source
  std::map<const cuda::Kernel*, void*> functions_;
};

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
  for (int i = 0; i < count; ++i) found.devices.push_back(new CudaDevice(kept, i));
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

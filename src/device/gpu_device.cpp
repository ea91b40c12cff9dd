#include "device/gpu_device.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "device/workspace_pool.h"
#include "kernels/abi/gpu_launch.h"

namespace flashwave {
namespace {

constexpr size_t kMostTensorMaps = 8;

// Makes a GPU the calling thread's for the time of a call; the program's own choice is put back.
class Current {
 public:
  Current(GpuDriver& driver, GpuDriver::Context context) : driver_(driver) {
    error_ = driver.get_current(&before_);
    if (!error_ && before_ != context) {
      error_ = driver.set_current(context);
      changed_ = !error_;
    }
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    if (changed_) static_cast<void>(driver_.set_current(before_));
  }
  GpuError error() const { return error_; }

 private:
  GpuDriver& driver_;
  GpuDriver::Context before_ = 0;
  bool changed_ = false;
  GpuError error_;
};

class GpuDevice final : public Device {
 public:
  GpuDevice(DeviceInfo info, std::unique_ptr<GpuDriver> driver)
      : info_(std::move(info)), driver_(std::move(driver)), workspaces_(*driver_) {}

  const DeviceInfo& info() const override { return info_; }

  Status alloc(size_t bytes, void** pointer) override {
    *pointer = nullptr;
    return on_device([&] { return driver_->allocate(pointer, std::max<size_t>(bytes, 1)); });
  }

  Status free(void* pointer) override {
    if (pointer == nullptr) return {};
    return on_device([&] { return driver_->release(pointer); });
  }

  Status copy(void* destination, const void* source, size_t bytes, fw_copy_kind kind, void* stream) override {
    if (bytes == 0) return {};
    return on_device([&] { return driver_->copy(destination, source, bytes, kind, stream); });
  }

  Status synchronize(void* stream) override {
    return on_device([&] { return driver_->synchronize(stream); });
  }

  char* cached_workspace(size_t bytes) override {
    char* workspace = nullptr;
    static_cast<void>(on_device([&] {
      workspace = workspaces_.lend(bytes);
      return GpuError{};
    }));
    return workspace;
  }

  void release_workspace(char* workspace) override {
    static_cast<void>(on_device([&] {
      workspaces_.give_back(workspace);
      return GpuError{};
    }));
  }

  Status launch(const Kernel& kernel, const abi::Params& params, const abi::Schedule& schedule,
                const LaunchOptions& options) override {
    if (Status status = make_context(); !status.ok()) return status;
    const Current current(*driver_, context_);
    if (current.error()) return failure(current.error());
    void* function = nullptr;
    if (Status status = find_function(kernel, &function); !status.ok()) return status;
    std::array<abi::TensorMap, kMostTensorMaps> maps;
    if (Status status = encode(kernel, options.tensor_maps, &maps); !status.ok()) return status;
    if (Status status = prepare_memory(schedule, options); !status.ok()) return status;

    abi::GpuArguments arguments{params, schedule, options.workspace, options.scratch};
    const int64_t rows = (schedule.tasks + abi::kTasksPerRow - 1) / abi::kTasksPerRow;
    const int64_t columns = std::min(schedule.tasks, abi::kTasksPerRow);
    const GpuError error = driver_->launch({.function = function,
                                            .columns = static_cast<unsigned>(columns),
                                            .rows = static_cast<unsigned>(rows),
                                            .threads = static_cast<unsigned>(kernel.threads),
                                            .lds_bytes = static_cast<unsigned>(kernel.lds_bytes),
                                            .stream = options.stream,
                                            .early = options.early,
                                            .arguments = &arguments,
                                            .maps = options.tensor_maps.empty() ? nullptr : maps.data()});
    if (error) return failure_of(kernel.name, error);
    const GpuError recorded = workspaces_.after_launch(options.stream);
    return recorded ? failure(recorded) : Status{};
  }

  Status counters(std::string* json) override {
    if (!driver_->counts()) return Device::counters(json);
    *json = driver_->counters();
    return {};
  }

  void reset_counters() override { driver_->reset_counters(); }

 private:
  Status failure(GpuError error) const { return gpu_failure(*driver_, info_.name, error); }
  Status failure_of(const std::string& what, GpuError error) const {
    return gpu_failure(*driver_, info_.name + ": " + what, error);
  }

  // When it is first needed, since it may take memory of the GPU, and never given back: the program may still use it.
  Status make_context() {
    const std::lock_guard lock(mutex_);
    if (has_context_) return {};
    if (const GpuError error = driver_->make_context(&context_)) return failure(error);
    has_context_ = true;
    return {};
  }

  template <class Call>
  Status on_device(Call&& call) {
    if (Status status = make_context(); !status.ok()) return status;
    const Current current(*driver_, context_);
    if (current.error()) return failure(current.error());
    const GpuError error = call();
    return error ? failure(error) : Status{};
  }

  // Code that is newer than the driver is refused by it; then the next best is tried.
  Status load_module(const Kernel& kernel, void** module) {
    Status refused{FW_UNSUPPORTED, info_.name + ": this build of flashwave has no machine code of " + kernel.name +
                                       " for " + info_.arch};
    bool first = true;
    for (const ArchiveEntry* code : driver_->find_code(kernel.source)) {
      std::unique_ptr<char[]> image = driver_->archive().unpack(*code);
      if (image == nullptr) return {FW_INTERNAL_ERROR, std::string(kernel.source) + ": damaged machine code"};
      const GpuError error = driver_->load(std::move(image), code->raw_bytes, module);
      if (!error) return {};
      if (std::exchange(first, false)) refused = failure_of(kernel.source, error);
    }
    *module = nullptr;
    return refused;
  }

  // Each module is loaded once, when a kernel in it is first launched.
  Status find_function(const Kernel& kernel, void** function) {
    const std::lock_guard lock(mutex_);
    void*& known = functions_[&kernel];
    if (known == nullptr) {
      void*& module = modules_[kernel.source];
      if (module == nullptr) {
        if (Status status = load_module(kernel, &module); !status.ok()) return status;
      }
      void* found = nullptr;
      if (const GpuError error = driver_->find_function(module, kernel.name, kernel.lds_bytes, &found)) {
        return failure_of(kernel.name, error);
      }
      known = found;
    }
    *function = known;
    return {};
  }

  Status encode(const Kernel& kernel, std::span<const abi::TensorMapDescription> descriptions,
                std::array<abi::TensorMap, kMostTensorMaps>* maps) {
    if (descriptions.size() > maps->size()) return {FW_INTERNAL_ERROR, std::string(kernel.name) + ": too many maps"};
    for (size_t i = 0; i < descriptions.size(); ++i) {
      if (const GpuError error = driver_->encode(descriptions[i], &(*maps)[i])) {
        return failure_of(std::string(kernel.name) + ": " + descriptions[i].tensor, error);
      }
    }
    return {};
  }

  // What is lent waits for its last user, and what must start at zero is cleared.
  Status prepare_memory(const abi::Schedule& schedule, const LaunchOptions& options) {
    if (workspaces_.has_lent()) {
      // Memory that goes from call to call has no place in a graph, which is replayed when it has other users.
      bool captured = false;
      if (const GpuError error = driver_->is_captured(options.stream, &captured)) return failure(error);
      if (captured) {
        return Status::invalid("workspace: a call whose stream is being captured into a graph must bring its own");
      }
      if (const GpuError error = workspaces_.before_launch(options.stream)) return failure(error);
    }
    if (schedule.zeroed_bytes == 0) return {};
    const auto bytes = static_cast<size_t>(schedule.zeroed_bytes);
    const GpuError error = driver_->clear(options.workspace, bytes, options.stream);
    return error ? failure(error) : Status{};
  }

  DeviceInfo info_;
  std::unique_ptr<GpuDriver> driver_;
  WorkspacePool workspaces_;
  std::mutex mutex_;
  bool has_context_ = false;
  GpuDriver::Context context_ = 0;
  std::map<std::string, void*, std::less<>> modules_;  // by source
  std::map<const Kernel*, void*> functions_;
};

}  // namespace

std::unique_ptr<Device> make_gpu_device(DeviceInfo info, std::unique_ptr<GpuDriver> driver) {
  return std::make_unique<GpuDevice>(std::move(info), std::move(driver));
}

Status gpu_failure(const GpuDriver& driver, const std::string& what, GpuError error) {
  const fw_status code = driver.out_of_memory(error) ? FW_OUT_OF_MEMORY : FW_DEVICE_ERROR;
  return {code, what + ": " + driver.describe(error)};
}

}  // namespace flashwave

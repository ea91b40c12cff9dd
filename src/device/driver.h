// What the library needs of a device: facts about it, memory, and a way to start a kernel. One implementation per
// kind of device; nothing here knows what attention is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/isa.h"
#include "base/kernel.h"
#include "base/status.h"
#include "flashwave/flashwave.h"
#include "kernels/abi/params.h"
#include "kernels/abi/tensor_map.h"

namespace flashwave {

// What kernels are compiled from (Kernel::source), as far as this build carries machine code of it for one device.
class CompiledCode {
 public:
  CompiledCode() = default;  // everything: CPUs, and devices that are made up for a question
  explicit CompiledCode(std::vector<std::string_view> sources) : all_(false), sources_(std::move(sources)) {
    std::ranges::sort(sources_);
  }
  bool any() const { return all_ || !sources_.empty(); }
  bool has(std::string_view source) const { return all_ || std::ranges::binary_search(sources_, source); }

 private:
  bool all_ = true;
  std::vector<std::string_view> sources_;  // sorted; of an archive, which lives as long as the process
};

// Plain data, so that plans can be made for devices that are not there.
struct DeviceInfo {
  std::string name;  // "cpu", "cuda:0", "emu:gfx942"
  std::string kind;  // "cpu", "cuda", "hip", "emu": which rows of the catalog apply
  std::string arch;
  std::string description;
  int32_t index = 0;
  uint32_t isa = kIsaNone;
  uint32_t refused_isa = kIsaNone;  // what the hardware has, but the operating system does not let this process use
  int64_t compute_units = 1;
  int64_t memory_bytes = 0;
  int64_t lds_bytes = 0;     // that a workgroup may ask for; 0: kernels declare what they need
  bool host_memory = false;  // the host can read the device's memory
  bool absent = false;       // made up for questions about plans: nothing runs on it
  CompiledCode code;
};

struct LaunchOptions {
  void* stream = nullptr;
  int32_t threads = 1;  // CPU: workers; scratch is sized for this many
  const fw_executor* executor = nullptr;
  char* workspace = nullptr;  // schedule.workspace_bytes of device memory
  char* scratch = nullptr;    // threads * schedule.scratch_bytes of device memory
  bool early = false;         // may start before what was launched last has ended, for which the kernel waits itself
  // Encoded and passed to the kernel as its second argument, if there are any.
  std::span<const abi::TensorMapDescription> tensor_maps;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual Status alloc(size_t bytes, void** pointer) = 0;
  virtual Status free(void* pointer) = 0;
  virtual Status copy(void* destination, const void* source, size_t bytes, fw_copy_kind kind, void* stream) = 0;
  virtual Status synchronize(void* stream) = 0;
  // Memory for one call made by this thread, kept for the next one; nullptr if there is none to be had. The call ends
  // with release_workspace on the same thread; until then a call nested in it gets other memory.
  virtual char* cached_workspace(size_t bytes) = 0;
  virtual void release_workspace(char* workspace) = 0;
  // The kernel must live as long as the process, as rows of the catalog do: what is found out about it is kept.
  virtual Status launch(const Kernel& kernel, const abi::Params& params, const abi::Schedule& schedule,
                        const LaunchOptions& options) = 0;
  // Those of the Isa bits that the operating system refuses to this process. Some it grants on request only, for the
  // rest of the process's life and at a cost to all of its threads; this makes the request.
  virtual uint32_t refused(uint32_t /*isa*/) { return kIsaNone; }
  // What launches cost, as JSON, counted since reset_counters; the first call may turn on what is counted. Emulated
  // devices alone have counters.
  virtual Status counters(std::string* json) {
    json->clear();
    return {FW_UNSUPPORTED, info().name + " has no counters; emulated devices do"};
  }
  virtual void reset_counters() {}
};

// Real devices of this machine: [0] is the CPU. They live as long as the process. The first call loads the drivers.
const std::vector<Device*>& present_devices();
// By name ("cpu", "cuda:1", "auto", ...). auto: the first GPU that kernels were compiled for, else the CPU.
Status find_device(const std::string& name, Device** device);

}  // namespace flashwave

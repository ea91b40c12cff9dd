#include "device/planned_device.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <mutex>

#include "device/cuda/code_choice.h"
#include "device/gpu_device.h"
#include "device/hip/architectures.h"

namespace flashwave {
namespace {

// A widespread GPU of each architecture: how work is cut up depends on how many units there are to share it.
struct Example {
  const char* arch;
  const char* title;
  int64_t units;
  int64_t gigabytes;
  int64_t lds_bytes;  // that a workgroup may ask for; 0 for AMD GPUs, whose kernels declare what they need
};

constexpr int64_t kTuringShared = 64 * 1024, kSmallShared = 99 * 1024, kAmpereShared = 163 * 1024,
                  kHopperShared = 227 * 1024;

constexpr Example kExamples[] = {
    {"gfx900", "AMD Radeon RX Vega 64", 64, 8, 0},
    {"gfx906", "AMD Instinct MI50", 60, 32, 0},
    {"gfx908", "AMD Instinct MI100", 120, 32, 0},
    {"gfx90a", "AMD Instinct MI250, one of its two dies", 110, 64, 0},
    {"gfx942", "AMD Instinct MI300X", 304, 192, 0},
    {"gfx950", "AMD Instinct MI350X", 256, 288, 0},
    {"gfx1010", "AMD Radeon RX 5700 XT", 40, 8, 0},
    {"gfx1030", "AMD Radeon RX 6900 XT", 80, 16, 0},
    {"gfx1100", "AMD Radeon RX 7900 XTX", 96, 24, 0},
    {"gfx1101", "AMD Radeon RX 7800 XT", 60, 16, 0},
    {"gfx1102", "AMD Radeon RX 7600", 32, 8, 0},
    {"gfx1151", "AMD Radeon 8060S", 40, 96, 0},
    {"gfx1200", "AMD Radeon RX 9060 XT", 32, 16, 0},
    {"gfx1201", "AMD Radeon RX 9070 XT", 64, 16, 0},
    {"sm_75", "NVIDIA T4", 40, 16, kTuringShared},
    {"sm_80", "NVIDIA A100", 108, 80, kAmpereShared},
    {"sm_86", "NVIDIA GeForce RTX 3090", 82, 24, kSmallShared},
    {"sm_87", "NVIDIA Jetson AGX Orin", 16, 64, kAmpereShared},
    {"sm_89", "NVIDIA GeForce RTX 4090", 128, 24, kSmallShared},
    {"sm_90", "NVIDIA H200", 132, 141, kHopperShared},
    {"sm_100", "NVIDIA B200", 148, 180, kHopperShared},
    {"sm_103", "NVIDIA B300", 148, 270, kHopperShared},
    {"sm_120", "NVIDIA GeForce RTX 5090", 170, 32, kSmallShared},
    {"sm_121", "NVIDIA GB10", 48, 128, kSmallShared},
};

constexpr std::string_view kAmd = "gfx", kNvidia = "sm_";

int capability_of(std::string_view arch) {
  int capability = 0;
  std::from_chars(arch.data() + kNvidia.size(), arch.data() + arch.size(), capability);
  return capability;
}

DeviceInfo facts_of(const Example& example) {
  DeviceInfo info;
  info.name = info.arch = example.arch;
  info.description = std::string(example.title) + ", which need not be here";
  info.compute_units = example.units;
  info.memory_bytes = example.gigabytes << 30;
  info.lds_bytes = example.lds_bytes;
  info.absent = true;
  if (info.arch.starts_with(kAmd)) {
    info.kind = "hip";
    const Architecture* arch = find_architecture(info.arch);
    if (arch != nullptr) info.isa = arch->isa;
    info.code =
        compiled_code(amd_code_archive(), [&](std::string_view code) { return arch != nullptr && code == arch->code; });
  } else {
    info.kind = "cuda";
    const int capability = capability_of(info.arch);
    info.isa = cuda::instruction_sets(capability);
    info.code = compiled_code(nvidia_code_archive(),
                              [&](std::string_view code) { return cuda::preference(code, capability) > 0; });
  }
  return info;
}

class PlannedDevice final : public Device {
 public:
  explicit PlannedDevice(DeviceInfo info) : info_(std::move(info)) {}
  const DeviceInfo& info() const override { return info_; }
  Status alloc(size_t /*bytes*/, void** /*pointer*/) override { return nothing_runs_on(info_); }
  Status free(void* /*pointer*/) override { return nothing_runs_on(info_); }
  Status copy(void* /*destination*/, const void* /*source*/, size_t /*bytes*/, fw_copy_kind /*kind*/,
              void* /*stream*/) override {
    return nothing_runs_on(info_);
  }
  Status synchronize(void* /*stream*/) override { return nothing_runs_on(info_); }
  char* cached_workspace(size_t /*bytes*/) override { return nullptr; }
  void release_workspace(char* /*workspace*/) override {}
  Status launch(const Kernel& /*kernel*/, const abi::Params& /*params*/, const abi::Schedule& /*schedule*/,
                const LaunchOptions& /*options*/) override {
    return nothing_runs_on(info_);
  }

 private:
  DeviceInfo info_;
};

}  // namespace

bool names_architecture(std::string_view name) { return name.starts_with(kAmd) || name.starts_with(kNvidia); }

Status find_planned_device(const std::string& name, Device** device) {
  static auto& mutex = *new std::mutex;
  static auto& devices = *new std::map<std::string, Device*>;  // by architecture; never destroyed, as real ones
  const auto* example = std::ranges::find_if(kExamples, [&](const Example& e) { return name == e.arch; });
  if (example == std::end(kExamples)) {
    std::string known;
    for (const Example& e : kExamples) known += (known.empty() ? "" : ", ") + std::string(e.arch);
    return {FW_NO_DEVICE, "nothing is known about this GPU; plans are made for " + known};
  }
  const std::lock_guard lock(mutex);
  Device*& known = devices[example->arch];
  if (known == nullptr) known = new PlannedDevice(facts_of(*example));
  *device = known;
  return {};
}

Status nothing_runs_on(const DeviceInfo& planned) {
  const bool amd = planned.arch.starts_with(kAmd);
  return {FW_NO_DEVICE, "nothing runs on " + planned.name + ", an architecture that plans are made for; a device is " +
                            (amd ? "hip[:i], or emu:" + planned.name + ", which executes its machine code on the CPU"
                                 : std::string("cuda[:i]"))};
}

}  // namespace flashwave

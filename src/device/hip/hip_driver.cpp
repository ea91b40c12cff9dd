#include "device/hip/hip_driver.h"

#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

namespace flashwave::hip {
namespace {

// e_flags of a 64-bit ELF header; its low byte says for which GPU the code is.
constexpr size_t kElfFlags = 48;

// A loader wants to see the name of its own GPU, though the code was compiled for one of its family.
void set_elf_machine(char* image, size_t bytes, uint32_t machine) {
  if (bytes < kElfFlags + 4) return;
  uint32_t flags;
  std::memcpy(&flags, image + kElfFlags, sizeof flags);
  flags = (flags & ~uint32_t{0xff}) | machine;
  std::memcpy(image + kElfFlags, &flags, sizeof flags);
}

constexpr GpuError of(const char* function, Error error) {
  return error == kSuccess ? GpuError{} : GpuError{function, error};
}

class HipDriver final : public GpuDriver {
 public:
  HipDriver(const Api& api, int index, const Architecture* arch, const CodeArchive& archive)
      : api_(api), index_(index), arch_(arch), archive_(archive) {}

  GpuError make_context(Context* context) override {
    *context = static_cast<Context>(index_);
    return {};
  }
  GpuError get_current(Context* context) override {
    int device = 0;
    const GpuError error = of("hipGetDevice", api_.GetDevice(&device));
    *context = static_cast<Context>(device);
    return error;
  }
  GpuError set_current(Context context) override {
    return of("hipSetDevice", api_.SetDevice(static_cast<int>(context)));
  }

  GpuError allocate(void** data, size_t bytes) override { return of("hipMalloc", api_.Malloc(data, bytes)); }
  GpuError release(void* data) override { return of("hipFree", api_.Free(data)); }
  GpuError copy(void* to, const void* from, size_t bytes, fw_copy_kind kind, void* stream) override {
    const CopyKind direction = kind == FW_HOST_TO_DEVICE   ? kHostToDevice
                               : kind == FW_DEVICE_TO_HOST ? kDeviceToHost
                                                           : kDeviceToDevice;
    return of("hipMemcpyAsync", api_.MemcpyAsync(to, from, bytes, direction, stream));
  }
  GpuError clear(void* data, size_t bytes, void* stream) override {
    return of("hipMemsetAsync", api_.MemsetAsync(data, 0, bytes, stream));
  }
  GpuError synchronize(void* stream) override { return of("hipStreamSynchronize", api_.StreamSynchronize(stream)); }
  GpuError is_captured(void* stream, bool* captured) override {
    int32_t status = kNotCapturing;
    const GpuError error = of("hipStreamIsCapturing", api_.StreamIsCapturing(stream, &status));
    *captured = status != kNotCapturing;
    return error;
  }

  GpuError create_event(void** event) override {
    return of("hipEventCreateWithFlags", api_.EventCreateWithFlags(event, kEventWithoutTiming));
  }
  GpuError destroy_event(void* event) override { return of("hipEventDestroy", api_.EventDestroy(event)); }
  GpuError record(void* event, void* stream) override { return of("hipEventRecord", api_.EventRecord(event, stream)); }
  GpuError wait(void* stream, void* event) override {
    return of("hipStreamWaitEvent", api_.StreamWaitEvent(stream, event, 0));
  }

  std::vector<const ArchiveEntry*> find_code(const char* source) const override {
    for (const ArchiveEntry& entry : archive_.entries) {
      if (arch_ != nullptr && std::string_view(entry.source) == source && std::string_view(entry.arch) == arch_->code) {
        return {&entry};
      }
    }
    return {};
  }

  GpuError load(std::unique_ptr<char[]> image, size_t bytes, void** module) override {
    set_elf_machine(image.get(), bytes, arch_->elf_machine);
    const GpuError error = of("hipModuleLoadData", api_.ModuleLoadData(module, image.get()));
    if (!error) images_.push_back(std::move(image));  // the runtime may go on reading them
    return error;
  }

  GpuError find_function(void* module, const char* name, int32_t, void** function) override {
    return of("hipModuleGetFunction", api_.ModuleGetFunction(function, module, name));
  }

  GpuError encode(const abi::TensorMapDescription&, abi::TensorMap*) override {
    return {"tensor maps", kNotSupported};  // no row of an AMD GPU asks for them
  }

  GpuError launch(const GpuLaunch& l) override {
    size_t bytes = sizeof *l.arguments;
    void* extra[] = {reinterpret_cast<void*>(kArgumentBuffer), l.arguments, reinterpret_cast<void*>(kArgumentBytes),
                     &bytes, reinterpret_cast<void*>(kArgumentsEnd)};
    return of("hipModuleLaunchKernel", api_.ModuleLaunchKernel(l.function, l.columns, l.rows, 1, l.threads, 1, 1,
                                                               l.lds_bytes, l.stream, nullptr, extra));
  }

  const CodeArchive& archive() const override { return archive_; }
  bool out_of_memory(GpuError error) const override { return error.code == kOutOfMemory; }
  std::string describe(GpuError error) const override { return hip::describe(api_, error.function, error.code); }

  bool counts() const override { return api_.emu_counters_json != nullptr; }
  std::string counters() override {
    static_cast<void>(api_.emu_set_option("count", "1"));
    std::string text;
    for (size_t needed = 1; needed > text.size();) {
      text.resize(needed);
      needed = api_.emu_counters_json(index_, text.data(), text.size());
    }
    text.resize(text.find('\0'));
    return text;
  }
  void reset_counters() override {
    if (api_.emu_reset_counters != nullptr) api_.emu_reset_counters(index_);
  }

 private:
  const Api& api_;
  const int index_;
  const Architecture* arch_;
  const CodeArchive archive_;
  std::vector<std::unique_ptr<char[]>> images_;  // guarded by the device, which loads one at a time
};

}  // namespace

std::unique_ptr<GpuDriver> make_driver(const Api& api, int index, const Architecture* arch,
                                       const CodeArchive& archive) {
  return std::make_unique<HipDriver>(api, index, arch, archive);
}

}  // namespace flashwave::hip

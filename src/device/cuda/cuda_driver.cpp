#include "device/cuda/cuda_driver.h"

#include "device/cuda/code_choice.h"

namespace flashwave::cuda {
namespace {

uint64_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

constexpr GpuError of(const char* function, Error error) {
  return error == kSuccess ? GpuError{} : GpuError{function, error};
}

class CudaDriver final : public GpuDriver {
 public:
  CudaDriver(const Api& api, int device, int capability, const CodeArchive& archive)
      : api_(api), device_(device), capability_(capability), archive_(archive) {}

  // The primary context, which the CUDA runtime (and so PyTorch) uses too.
  GpuError make_context(Context* context) override {
    void* made = nullptr;
    const GpuError error = of("cuDevicePrimaryCtxRetain", api_.DevicePrimaryCtxRetain(&made, device_));
    *context = reinterpret_cast<Context>(made);
    return error;
  }
  GpuError get_current(Context* context) override {
    void* current = nullptr;
    const GpuError error = of("cuCtxGetCurrent", api_.CtxGetCurrent(&current));
    *context = reinterpret_cast<Context>(current);
    return error;
  }
  GpuError set_current(Context context) override {
    return of("cuCtxSetCurrent", api_.CtxSetCurrent(reinterpret_cast<void*>(context)));
  }

  GpuError allocate(void** data, size_t bytes) override {
    uint64_t pointer = 0;
    const GpuError error = of("cuMemAlloc", api_.MemAlloc(&pointer, bytes));
    *data = reinterpret_cast<void*>(static_cast<uintptr_t>(pointer));
    return error;
  }
  GpuError release(void* data) override { return of("cuMemFree", api_.MemFree(address(data))); }
  GpuError copy(void* to, const void* from, size_t bytes, fw_copy_kind /*addresses tell*/, void* stream) override {
    return of("cuMemcpyAsync", api_.MemcpyAsync(address(to), address(from), bytes, stream));
  }
  GpuError clear(void* data, size_t bytes, void* stream) override {
    return of("cuMemsetD8Async", api_.MemsetD8Async(address(data), 0, bytes, stream));
  }
  GpuError synchronize(void* stream) override { return of("cuStreamSynchronize", api_.StreamSynchronize(stream)); }
  GpuError is_captured(void* stream, bool* captured) override {
    int32_t status = kNotCapturing;
    const GpuError error = of("cuStreamIsCapturing", api_.StreamIsCapturing(stream, &status));
    *captured = status != kNotCapturing;
    return error;
  }

  GpuError create_event(void** event) override {
    return of("cuEventCreate", api_.EventCreate(event, kEventWithoutTiming));
  }
  GpuError destroy_event(void* event) override { return of("cuEventDestroy", api_.EventDestroy(event)); }
  GpuError record(void* event, void* stream) override { return of("cuEventRecord", api_.EventRecord(event, stream)); }
  GpuError wait(void* stream, void* event) override {
    return of("cuStreamWaitEvent", api_.StreamWaitEvent(stream, event, 0));
  }

  std::vector<const ArchiveEntry*> find_code(const char* source) const override {
    return cuda::find_code(archive_, source, capability_);
  }

  GpuError load(std::unique_ptr<char[]> image, size_t, void** module) override {
    return of("cuModuleLoadData", api_.ModuleLoadData(module, image.get()));
  }

  GpuError find_function(void* module, const char* name, int32_t lds_bytes, void** function) override {
    const GpuError error = of("cuModuleGetFunction", api_.ModuleGetFunction(function, module, name));
    if (error) return error;
    return of("cuFuncSetAttribute", api_.FuncSetAttribute(*function, kMaxDynamicSharedBytes, lds_bytes));
  }

  GpuError encode(const abi::TensorMapDescription& d, abi::TensorMap* map) override {
    constexpr uint32_t kEveryElement[abi::kTensorMapRank] = {1, 1, 1, 1, 1};
    return of("cuTensorMapEncodeTiled",
              api_.TensorMapEncodeTiled(map, kElements16, abi::kTensorMapRank,
                                        reinterpret_cast<void*>(static_cast<uintptr_t>(d.base)), d.dims, d.strides,
                                        d.box, kEveryElement, kNoInterleave, kSwizzle128,
                                        d.l2_bytes == 128 ? kPromote128 : kPromote256, kFillZeros));
  }

  GpuError launch(const GpuLaunch& l) override {
    void* parameters[] = {l.arguments, l.maps};
    LaunchAttribute early = {.id = kProgrammaticSerialization, .value = {}};
    early.value.number = 1;
    const LaunchConfig config = {l.columns, l.rows,      1,        l.threads, 1,
                                 1,         l.lds_bytes, l.stream, &early,    l.early ? 1u : 0u};
    return of("cuLaunchKernelEx", api_.LaunchKernelEx(&config, l.function, parameters, nullptr));
  }

  const CodeArchive& archive() const override { return archive_; }
  bool out_of_memory(GpuError error) const override { return error.code == kOutOfMemory; }
  std::string describe(GpuError error) const override { return cuda::describe(api_, error.function, error.code); }

 private:
  const Api& api_;
  const int device_, capability_;
  const CodeArchive archive_;
};

}  // namespace

std::unique_ptr<GpuDriver> make_driver(const Api& api, int device, int capability, const CodeArchive& archive) {
  return std::make_unique<CudaDriver>(api, device, capability, archive);
}

}  // namespace flashwave::cuda

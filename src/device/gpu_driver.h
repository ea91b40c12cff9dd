// What the library asks of one GPU's runtime: the table that HIP and CUDA fill in, and all that
// src/device/gpu_device.cpp knows of either. Each call answers with the function of the runtime that failed, or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/code_archive.h"
#include "flashwave/flashwave.h"
#include "kernels/abi/gpu_launch.h"
#include "kernels/abi/tensor_map.h"

namespace flashwave {

struct [[nodiscard]] GpuError {
  const char* function = nullptr;  // nullptr: nothing failed
  int32_t code = 0;
  explicit operator bool() const { return function != nullptr; }
};

// The grid and what each workgroup gets.
struct GpuLaunch {
  void* function;
  unsigned columns, rows, threads, lds_bytes;
  void* stream;
  bool early;  // LaunchOptions
  abi::GpuArguments* arguments;
  abi::TensorMap* maps;  // nullptr: the kernel takes none
};

class GpuDriver {
 public:
  // What is current for a thread: a device's number (HIP) or a context (CUDA).
  using Context = uintptr_t;

  virtual ~GpuDriver() = default;

  virtual GpuError make_context(Context* context) = 0;  // this GPU's, for the rest of the process
  virtual GpuError get_current(Context* context) = 0;
  virtual GpuError set_current(Context context) = 0;

  // The rest wants the context to be current.
  virtual GpuError allocate(void** data, size_t bytes) = 0;
  virtual GpuError release(void* data) = 0;  // waits for work that uses it
  virtual GpuError copy(void* to, const void* from, size_t bytes, fw_copy_kind kind, void* stream) = 0;
  virtual GpuError clear(void* data, size_t bytes, void* stream) = 0;
  virtual GpuError synchronize(void* stream) = 0;
  virtual GpuError is_captured(void* stream, bool* captured) = 0;  // into a graph

  virtual GpuError create_event(void** event) = 0;
  virtual GpuError destroy_event(void* event) = 0;
  virtual GpuError record(void* event, void* stream) = 0;
  virtual GpuError wait(void* stream, void* event) = 0;

  // What this GPU can run of a source, best first.
  virtual std::vector<const ArchiveEntry*> find_code(const char* source) const = 0;
  virtual GpuError load(std::unique_ptr<char[]> image, size_t bytes, void** module) = 0;
  virtual GpuError find_function(void* module, const char* name, int32_t lds_bytes, void** function) = 0;
  virtual GpuError encode(const abi::TensorMapDescription& description, abi::TensorMap* map) = 0;
  virtual GpuError launch(const GpuLaunch& launch) = 0;

  virtual const CodeArchive& archive() const = 0;
  virtual bool out_of_memory(GpuError error) const = 0;
  virtual std::string describe(GpuError error) const = 0;  // "hipMalloc: hipErrorOutOfMemory: out of memory"

  // Emulated GPUs alone count.
  virtual bool counts() const { return false; }
  virtual std::string counters() { return ""; }
  virtual void reset_counters() {}
};

}  // namespace flashwave

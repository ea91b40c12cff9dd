// A GPU, whoever made it.
#pragma once

#include <memory>

#include "device/driver.h"
#include "device/gpu_driver.h"

namespace flashwave {

std::unique_ptr<Device> make_gpu_device(DeviceInfo info, std::unique_ptr<GpuDriver> driver);

// "cuda:0: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory". `what`: the device, or what was to run on it.
Status gpu_failure(const GpuDriver& driver, const std::string& what, GpuError error);

// What an archive has for a GPU. runs(arch): whether it runs code of that name ("gfx942", "compute_80").
template <class Runs>
CompiledCode compiled_code(const CodeArchive& archive, Runs&& runs) {
  std::vector<std::string_view> sources;
  for (const ArchiveEntry& entry : archive.entries) {
    if (runs(std::string_view(entry.arch))) sources.emplace_back(entry.source);
  }
  return CompiledCode(std::move(sources));
}

}  // namespace flashwave

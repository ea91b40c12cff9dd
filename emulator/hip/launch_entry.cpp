// Entry points about kernels: facts, and starting one.
#include <algorithm>
#include <cstring>
#include <shared_mutex>
#include <vector>

#include "core/errors.h"
#include "core/launch.h"
#include "hip/devices.h"
#include "hip/errors.h"
#include "hip/memory_pool.h"
#include "hip/modules.h"
#include "hip/occupancy.h"
#include "hip/results.h"
#include "hip/settings.h"
#include "hip/streams.h"
#include "isa/matrix.h"

namespace emu::hip {
namespace {

constexpr u64 kMostThreadsPerBlock = 1024;
constexpr u64 kMostWorkItems = 0xffffffff;  // of a dimension: the dispatch packet holds 32 bits

// The kernel behind a handle and the module that keeps it alive.
struct Launchable {
  std::shared_ptr<Module> module;
  const Kernel* kernel = nullptr;
};

hipError_t find_kernel(hipFunction_t handle, Launchable* found) {
  if (const std::shared_ptr<Function> function = functions().find(handle)) {
    found->module = function->module.lock();
    found->kernel = function->kernel;
    if (found->module != nullptr) return hipSuccess;
  }
  return fail(hipErrorInvalidHandle, "the function's module was unloaded, or it never was one");
}

// Explicit arguments as the metadata lays them out, from pointers to each.
hipError_t pack_arguments(const Kernel& kernel, void** parameters, std::vector<u8>* packed) {
  int index = 0;
  for (const Argument& argument : kernel.arguments) {
    if (argument.hidden()) continue;
    if (parameters == nullptr || parameters[index] == nullptr) {
      return fail(hipErrorInvalidValue, "argument " + std::to_string(index) +
                                            (argument.name.empty() ? "" : " (" + argument.name + ")") + " of " +
                                            kernel.name + " is not given");
    }
    packed->resize(std::max<size_t>(packed->size(), argument.offset + argument.size));
    std::memcpy(packed->data() + argument.offset, parameters[index], argument.size);
    ++index;
  }
  return hipSuccess;
}

// The same from one buffer: a list of (key, value) that ends with HIP_LAUNCH_PARAM_END.
hipError_t read_buffer(const Kernel& kernel, void** extra, std::vector<u8>* packed) {
  const void* buffer = nullptr;
  const size_t* bytes = nullptr;
  for (int i = 0;; i += 2) {
    const auto key = reinterpret_cast<uintptr_t>(extra[i]);
    if (key == HIP_LAUNCH_PARAM_END) break;
    if (key == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[i + 1];
    } else if (key == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = static_cast<const size_t*>(extra[i + 1]);
    } else {
      return fail(hipErrorInvalidValue, "extra has an entry that is none of HIP_LAUNCH_PARAM_*");
    }
  }
  if (buffer == nullptr || bytes == nullptr) return fail(hipErrorInvalidValue, "extra names no buffer and its size");
  for (const Argument& argument : kernel.arguments) {
    if (!argument.hidden() && argument.offset + argument.size > *bytes) {
      return fail(hipErrorInvalidValue, "the argument buffer of " + std::to_string(*bytes) + " bytes ends before " +
                                            (argument.name.empty() ? "an argument" : argument.name) + " of " +
                                            kernel.name);
    }
  }
  packed->assign(static_cast<const u8*>(buffer), static_cast<const u8*>(buffer) + *bytes);
  return hipSuccess;
}

std::string by(const u32 (&extent)[3]) {
  return std::to_string(extent[0]) + " x " + std::to_string(extent[1]) + " x " + std::to_string(extent[2]);
}

hipError_t check_shape(const Target& target, const Kernel& kernel, const LaunchShape& shape) {
  const u64 threads = u64{shape.block[0]} * shape.block[1] * shape.block[2];
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.block[i] == 0 || shape.block[i] > kMostThreadsPerBlock ||
        u64{shape.grid[i]} * shape.block[i] > kMostWorkItems) {
      return fail(hipErrorInvalidConfiguration,
                  "a grid of " + by(shape.grid) + " workgroups of " + by(shape.block) + " work-items is not possible");
    }
  }
  if (threads > kernel.max_workgroup) {
    return fail(hipErrorInvalidConfiguration, "a workgroup of " + by(shape.block) + " work-items; " + kernel.name +
                                                  " was compiled for at most " + std::to_string(kernel.max_workgroup));
  }
  const u64 lds = u64{kernel.lds_bytes} + shape.dynamic_lds;
  if (lds > target.lds_bytes) {
    return fail(hipErrorLaunchOutOfResources, kernel.name + " needs " + std::to_string(lds) + " bytes of LDS; " +
                                                  target.name + " has " + std::to_string(target.lds_bytes));
  }
  return hipSuccess;
}

hipError_t verdict(const LaunchResult& result, const Settings& settings) {
  bool bounds = false, trap = false;
  for (const Report& report : result.reports) {
    bounds |= report.check == Check::bounds;
    trap |= report.check == Check::trap;
  }
  std::string text = reports_text(result);
  if (!result.error.empty()) text = result.error + (text.empty() ? "" : "\n" + text);
  if (bounds) return fail(hipErrorIllegalAddress, text);
  if (trap || !result.error.empty()) return fail(hipErrorLaunchFailure, text);
  if (!result.reports.empty() && settings.check == CheckMode::fail) return fail(hipErrorLaunchFailure, text);
  return hipSuccess;
}

hipError_t launch(hipFunction_t handle, const LaunchShape& shape, hipStream_t stream, void** parameters, void** extra) {
  Launchable found;
  if (const hipError_t error = find_kernel(handle, &found); error != hipSuccess) return error;
  if (const hipError_t error = check_stream(stream); error != hipSuccess) return error;
  const Kernel& kernel = *found.kernel;
  const Program& program = *found.module->program;
  if (const hipError_t error = check_shape(*program.target, kernel, shape); error != hipSuccess) return error;
  if (parameters != nullptr && extra != nullptr) {
    return fail(hipErrorInvalidValue, "arguments are given twice, in kernelParams and in extra");
  }
  std::vector<u8> arguments;
  const hipError_t packed =
      extra != nullptr ? read_buffer(kernel, extra, &arguments) : pack_arguments(kernel, parameters, &arguments);
  if (packed != hipSuccess) return packed;

  const Settings settings = current_settings();
  set_matrix_numerics(settings.hardware_numerics ? MatrixNumerics::hardware : MatrixNumerics::chain);
  // Comparing orders puts memory back to what it was, so nothing else may run then.
  std::shared_lock with_others(running(), std::defer_lock);
  std::unique_lock alone(running(), std::defer_lock);
  if (settings.order == WaveOrder::compare) {
    alone.lock();
  } else {
    with_others.lock();
  }
  const LaunchResult result =
      run_kernel(program, kernel, shape, arguments.data(), arguments.size(),
                 memory_pool().regions(found.module->device, program.image), settings.run_options());
  keep_results({found.module->device, &program, &kernel, shape}, result, settings);
  return verdict(result, settings);
}

}  // namespace
}  // namespace emu::hip

using namespace emu;
using namespace emu::hip;

hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_lds,
                                 hipStream_t stream, void** parameters, void** extra) {
  return guarded([&] {
    const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_lds};
    return launch(function, shape, stream, parameters, extra);
  });
}

hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute, hipFunction_t function) {
  return guarded([&] {
    if (value == nullptr) return null_argument("value");
    Launchable found;
    if (const hipError_t error = find_kernel(function, &found); error != hipSuccess) return error;
    const Kernel& kernel = *found.kernel;
    const Target& target = *found.module->program->target;
    switch (attribute) {
      case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = static_cast<int>(kernel.max_workgroup);
        return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = static_cast<int>(kernel.lds_bytes);
        return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = static_cast<int>(kernel.scratch_bytes);
        return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_NUM_REGS:
        *value = static_cast<int>(kernel.vgprs);
        return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = static_cast<int>(target.lds_bytes - std::min(target.lds_bytes, kernel.lds_bytes));
        return hipSuccess;
      case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      case HIP_FUNC_ATTRIBUTE_PTX_VERSION:
      case HIP_FUNC_ATTRIBUTE_BINARY_VERSION:
      case HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      case HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = 0;
        return hipSuccess;
    }
    return fail(hipErrorInvalidValue, "function attribute " + std::to_string(attribute) + " is not offered");
  });
}

hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, hipFunction_t function, int block_size,
                                                              size_t dynamic_lds) {
  return guarded([&] {
    if (blocks == nullptr) return null_argument("blocks");
    if (block_size <= 0) return fail(hipErrorInvalidValue, "block_size must be at least 1");
    Launchable found;
    if (const hipError_t error = find_kernel(function, &found); error != hipSuccess) return error;
    const Target& target = *found.module->program->target;
    *blocks =
        static_cast<int>(occupancy(target, *found.kernel, static_cast<u32>(block_size), dynamic_lds).blocks_per_cu);
    return hipSuccess;
  });
}

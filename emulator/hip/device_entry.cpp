// Entry points about devices and contexts.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "hip/devices.h"
#include "hip/errors.h"
#include "hip/memory_pool.h"

namespace emu::hip {
namespace {

constexpr int kVersion = 60000000;  // HIP 6.0: major * 10^7 + minor * 10^5
// There is no clock; programs that divide by one get 1 GHz (in kHz), and the 100 MHz of the constant-rate timer.
constexpr int kClock = 1000000, kTimer = 100000;
constexpr int kMostThreadsPerBlock = 1024, kMostBlocks = 2147483647, kMostBlocksYZ = 65536;
constexpr int kNotAnAttribute = -1;

// gfx942 is version 9.4 stepping 2; gfx1100 is 11.0.0.
struct Version {
  int major, minor;
};
Version version_of(const Target& target) {
  const std::string digits = target.name.substr(3);
  return {std::stoi(digits.substr(0, digits.size() - 2)), digits[digits.size() - 2] - '0'};
}

std::string name_of(const Target& target) { return target.title + " (emulated)"; }

int threads_per_cu(const Target& t) { return static_cast<int>(t.simds_per_cu * t.max_waves_per_simd) * t.wave_size; }

int registers_per_cu(const Target& t) { return static_cast<int>(t.simds_per_cu * t.vgprs_per_simd) * t.wave_size; }

int attribute_of(const Target& t, hipDeviceAttribute_t attribute) {
  switch (attribute) {
    case hipDeviceAttributeCanMapHostMemory:
    case hipDeviceAttributeConcurrentKernels:
    case hipDeviceAttributeUnifiedAddressing:
    case hipDeviceAttributeMemoryPoolsSupported:
    case hipDeviceAttributeIsLargeBar:
      return 1;
    case hipDeviceAttributeEccEnabled:
    case hipDeviceAttributeAsyncEngineCount:
    case hipDeviceAttributeComputeMode:
    case hipDeviceAttributeCooperativeLaunch:
    case hipDeviceAttributeIntegrated:
    case hipDeviceAttributeKernelExecTimeout:
    case hipDeviceAttributeL2CacheSize:
    case hipDeviceAttributeManagedMemory:
    case hipDeviceAttributeMemoryBusWidth:
    case hipDeviceAttributeMemoryClockRate:
    case hipDeviceAttributePageableMemoryAccess:
    case hipDeviceAttributePciBusId:
    case hipDeviceAttributePciDeviceId:
    case hipDeviceAttributePciDomainID:
    case hipDeviceAttributeStreamPrioritiesSupported:
    case hipDeviceAttributeAsicRevision:
      return 0;
    case hipDeviceAttributeClockRate:
      return kClock;
    case hipDeviceAttributeClockInstructionRate:
    case hipDeviceAttributeWallClockRate:
      return kTimer;
    case hipDeviceAttributeComputeCapabilityMajor:
      return version_of(t).major;
    case hipDeviceAttributeComputeCapabilityMinor:
      return version_of(t).minor;
    case hipDeviceAttributeMaxBlocksPerMultiProcessor:
      return static_cast<int>(t.simds_per_cu * t.max_waves_per_simd);
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
    case hipDeviceAttributeMaxThreadsPerBlock:
      return kMostThreadsPerBlock;
    case hipDeviceAttributeMaxGridDimX:
    case hipDeviceAttributeMaxPitch:
    case hipDeviceAttributeTotalConstantMemory:
      return kMostBlocks;
    case hipDeviceAttributeMaxGridDimY:
    case hipDeviceAttributeMaxGridDimZ:
      return kMostBlocksYZ;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
      return threads_per_cu(t);
    case hipDeviceAttributeMultiprocessorCount:
    case hipDeviceAttributePhysicalMultiProcessorCount:
      return static_cast<int>(t.compute_units);
    case hipDeviceAttributeMaxRegistersPerBlock:
    case hipDeviceAttributeMaxRegistersPerMultiprocessor:
      return registers_per_cu(t);
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeSharedMemPerBlockOptin:
    case hipDeviceAttributeSharedMemPerMultiprocessor:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(t.lds_bytes);
    case hipDeviceAttributeWarpSize:
      return t.wave_size;
  }
  return kNotAnAttribute;
}

template <size_t N>
void put(const std::string& text, char (&field)[N]) {
  std::memcpy(field, text.c_str(), std::min(text.size() + 1, N));
  field[N - 1] = '\0';
}

// What both layouts of the properties have.
template <class Properties>
void fill_common(const Target& t, Properties* p) {
  put(name_of(t), p->name);
  put(target_id(t), p->gcnArchName);
  p->totalGlobalMem = total_memory();
  p->sharedMemPerBlock = t.lds_bytes;
  p->maxSharedMemoryPerMultiProcessor = t.lds_bytes;
  p->regsPerBlock = registers_per_cu(t);
  p->warpSize = t.wave_size;
  p->maxThreadsPerBlock = kMostThreadsPerBlock;
  std::fill_n(p->maxThreadsDim, 3, kMostThreadsPerBlock);
  p->maxGridSize[0] = kMostBlocks;
  p->maxGridSize[1] = p->maxGridSize[2] = kMostBlocksYZ;
  p->clockRate = kClock;
  p->clockInstructionRate = kTimer;
  p->totalConstMem = kMostBlocks;
  p->major = version_of(t).major;
  p->minor = version_of(t).minor;
  p->multiProcessorCount = static_cast<int>(t.compute_units);
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->maxThreadsPerMultiProcessor = threads_per_cu(t);
}

template <class Body>
hipError_t with_target(int device, Body&& body) {
  return guarded([&] {
    const Target* target = device_target(device);
    if (target == nullptr) return fail(hipErrorInvalidDevice, "device " + std::to_string(device) + " does not exist");
    return body(*target);
  });
}

// A context is its device's number plus one, as a pointer.
hipCtx_t context_of(int device) { return reinterpret_cast<hipCtx_t>(static_cast<uintptr_t>(device) + 1); }
int device_of(hipCtx_t context) { return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1; }

thread_local std::vector<int> context_stack;

}  // namespace
}  // namespace emu::hip

using namespace emu;
using namespace emu::hip;

hipError_t hipInit(unsigned flags) {
  return guarded([&] {
    if (flags != 0) return fail(hipErrorInvalidValue, "flags must be 0");
    if (device_count() == 0) return no_device();
    return hipSuccess;
  });
}

hipError_t hipDriverGetVersion(int* version) {
  if (version == nullptr) return null_argument("version");
  *version = kVersion;
  return hipSuccess;
}

hipError_t hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

hipError_t hipGetDeviceCount(int* count) {
  return guarded([&] {
    if (count == nullptr) return null_argument("count");
    *count = device_count();
    return *count > 0 ? hipSuccess : no_device();
  });
}

hipError_t hipGetDevice(int* device) {
  if (device == nullptr) return null_argument("device");
  *device = current_device();
  return hipSuccess;
}

hipError_t hipSetDevice(int device) {
  return guarded([&] { return set_current_device(device); });
}

hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
  return with_target(ordinal, [&](const Target&) {
    if (device == nullptr) return null_argument("device");
    *device = ordinal;
    return hipSuccess;
  });
}

hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device) {
  return with_target(device, [&](const Target& target) {
    if (name == nullptr || length <= 0) return fail(hipErrorInvalidValue, "name must have room");
    const std::string text = name_of(target);
    const size_t copied = std::min(text.size(), static_cast<size_t>(length) - 1);
    std::memcpy(name, text.data(), copied);
    name[copied] = '\0';
    return hipSuccess;
  });
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  return with_target(device, [&](const Target& target) {
    if (value == nullptr) return null_argument("value");
    const int found = attribute_of(target, attribute);
    if (found == kNotAnAttribute) {
      return fail(hipErrorInvalidValue, "device attribute " + std::to_string(attribute) + " is not offered");
    }
    *value = found;
    return hipSuccess;
  });
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int device) {
  return with_target(device, [&](const Target& target) {
    if (properties == nullptr) return null_argument("properties");
    hipDeviceProp_tR0600 filled{};
    fill_common(target, &filled);
    filled.memPitch = static_cast<size_t>(kMostBlocks);
    filled.sharedMemPerMultiprocessor = target.lds_bytes;
    filled.sharedMemPerBlockOptin = target.lds_bytes;
    filled.regsPerMultiprocessor = registers_per_cu(target);
    filled.maxBlocksPerMultiProcessor = static_cast<int>(target.simds_per_cu * target.max_waves_per_simd);
    *properties = filled;
    return hipSuccess;
  });
}

hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000* properties, int device) {
  return with_target(device, [&](const Target& target) {
    if (properties == nullptr) return null_argument("properties");
    hipDeviceProp_tR0000 filled{};
    fill_common(target, &filled);
    *properties = filled;
    return hipSuccess;
  });
}

hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device) {
  return with_target(device, [&](const Target&) {
    if (bytes == nullptr) return null_argument("bytes");
    *bytes = total_memory();
    return hipSuccess;
  });
}

hipError_t hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device) {
  return with_target(device, [&](const Target& target) {
    if (major == nullptr || minor == nullptr) return null_argument("major and minor");
    *major = version_of(target).major;
    *minor = version_of(target).minor;
    return hipSuccess;
  });
}

hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return with_target(device, [&](const Target&) {
    if (can == nullptr) return null_argument("can");
    if (device_target(peer) == nullptr) return fail(hipErrorInvalidDevice, "the peer does not exist");
    *can = 0;
    return hipSuccess;
  });
}

hipError_t hipDeviceSynchronize() { return hipSuccess; }  // every launch has ended when it returns

hipError_t hipGetProcAddress(const char* symbol, void** function, int version, uint64_t, int* found) {
  return guarded([&] {
    if (symbol == nullptr || function == nullptr) return null_argument("symbol and function");
    std::string name = symbol;
    if (name == "hipGetDeviceProperties" && version >= 600) name += "R0600";
    Dl_info self{};
    *function = nullptr;
    if (dladdr(reinterpret_cast<const void*>(&hipInit), &self) != 0) {
      if (void* library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
        *function = dlsym(library, name.c_str());
        dlclose(library);
      }
    }
    if (found != nullptr) *found = *function != nullptr ? 0 : 1;
    return *function != nullptr ? hipSuccess : fail(hipErrorInvalidValue, name + " is not offered");
  });
}

hipError_t hipCtxCreate(hipCtx_t* context, unsigned, hipDevice_t device) {
  return with_target(device, [&](const Target&) {
    if (context == nullptr) return null_argument("context");
    context_stack.push_back(current_device());
    *context = context_of(device);
    return set_current_device(device);
  });
}

hipError_t hipCtxDestroy(hipCtx_t context) {
  return with_target(device_of(context), [](const Target&) { return hipSuccess; });
}

hipError_t hipCtxGetCurrent(hipCtx_t* context) {
  if (context == nullptr) return null_argument("context");
  *context = context_of(current_device());
  return hipSuccess;
}

hipError_t hipCtxSetCurrent(hipCtx_t context) {
  return guarded([&] { return context == nullptr ? hipSuccess : set_current_device(device_of(context)); });
}

hipError_t hipCtxPushCurrent(hipCtx_t context) {
  return guarded([&] {
    const int before = current_device();
    const hipError_t error = set_current_device(device_of(context));
    if (error == hipSuccess) context_stack.push_back(before);
    return error;
  });
}

hipError_t hipCtxPopCurrent(hipCtx_t* context) {
  return guarded([&] {
    if (context_stack.empty()) return fail(hipErrorInvalidContext, "no context was pushed");
    if (context != nullptr) *context = context_of(current_device());
    const int before = context_stack.back();
    context_stack.pop_back();
    return set_current_device(before);
  });
}

hipError_t hipCtxGetDevice(hipDevice_t* device) { return hipGetDevice(device); }

hipError_t hipCtxSynchronize() { return hipSuccess; }

hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* context, hipDevice_t device) {
  return with_target(device, [&](const Target&) {
    if (context == nullptr) return null_argument("context");
    *context = context_of(device);
    return hipSuccess;
  });
}

hipError_t hipDevicePrimaryCtxRelease(hipDevice_t device) {
  return with_target(device, [](const Target&) { return hipSuccess; });
}

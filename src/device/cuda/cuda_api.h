// The functions of NVIDIA's driver that are used, found at run time in libcuda.so.1: no CUDA toolkit, no CUDA runtime.
// Values and layouts are those of the public driver API.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace flashwave::cuda {

using Error = int32_t;
inline constexpr Error kSuccess = 0, kOutOfMemory = 2, kNoDevice = 100;

enum Attribute : int32_t {
  kMultiprocessors = 16,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kSharedMemoryPerBlock = 97,  // with cuFuncSetAttribute
};
inline constexpr int32_t kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_*
inline constexpr unsigned kEventWithoutTiming = 2;    // CU_EVENT_DISABLE_TIMING
inline constexpr int32_t kNotCapturing = 0;           // CU_STREAM_CAPTURE_STATUS_NONE
// CU_TENSOR_MAP_*
inline constexpr int32_t kElements16 = 1, kNoInterleave = 0, kSwizzle128 = 3, kPromote128 = 2, kPromote256 = 3,
                         kFillZeros = 0;

struct LaunchAttribute {  // CUlaunchAttribute
  int32_t id, padding = 0;
  union {
    char bytes[64];
    int32_t number;
  } value;
};
inline constexpr int32_t kProgrammaticSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
struct LaunchConfig {                                     // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Api {
  Error (*Init)(unsigned flags);
  Error (*DriverGetVersion)(int* version);
  Error (*DeviceGetCount)(int* count);
  Error (*DeviceGet)(int* device, int ordinal);
  Error (*DeviceGetName)(char* name, int length, int device);
  Error (*DeviceGetAttribute)(int* value, int32_t attribute, int device);
  Error (*DeviceTotalMem)(size_t* bytes, int device);
  Error (*DevicePrimaryCtxRetain)(void** context, int device);
  Error (*CtxGetCurrent)(void** context);
  Error (*CtxSetCurrent)(void* context);
  Error (*MemAlloc)(uint64_t* pointer, size_t bytes);
  Error (*MemFree)(uint64_t pointer);
  Error (*MemcpyAsync)(uint64_t to, uint64_t from, size_t bytes, void* stream);
  Error (*MemsetD8Async)(uint64_t pointer, unsigned char value, size_t bytes, void* stream);
  Error (*StreamSynchronize)(void* stream);
  Error (*StreamWaitEvent)(void* stream, void* event, unsigned flags);
  Error (*StreamIsCapturing)(void* stream, int32_t* status);
  Error (*EventCreate)(void** event, unsigned flags);
  Error (*EventRecord)(void* event, void* stream);
  Error (*EventDestroy)(void* event);
  Error (*ModuleLoadData)(void** module, const void* image);
  Error (*ModuleGetFunction)(void** function, void* module, const char* name);
  Error (*FuncSetAttribute)(void* function, int32_t attribute, int value);
  Error (*LaunchKernelEx)(const LaunchConfig* config, void* function, void** parameters, void** extra);
  Error (*TensorMapEncodeTiled)(void* map, int32_t type, uint32_t rank, void* base, const uint64_t* dims,
                                const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                                int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill);
  Error (*GetErrorName)(Error error, const char** text);
  Error (*GetErrorString)(Error error, const char** text);

  std::string library;  // the name it was found by
  int version = 0;      // 12040: CUDA 12.4
};

// Loads the driver: FLASHWAVE_CUDA_LIBRARY, or libcuda.so.1. Says in the status what is missing or wrong; that there is
// no GPU is not found out here.
Status load_driver(Api* api);

// "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory".
std::string describe(const Api& api, const char* function, Error error);

}  // namespace flashwave::cuda

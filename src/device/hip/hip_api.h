// The functions of a HIP runtime that the driver uses, found at run time: AMD's libamdhip64.so, or the emulator's
// library, which offers the same ones. Values and layouts are those of the public HIP ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace flashwave::hip {

using Error = int32_t;
inline constexpr Error kSuccess = 0, kOutOfMemory = 2, kNoDevice = 100, kInvalidDevice = 101, kNotSupported = 801;

enum CopyKind : int32_t { kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };
inline constexpr int32_t kComputeUnits = 63;        // hipDeviceAttributeMultiprocessorCount
inline constexpr unsigned kEventWithoutTiming = 2;  // hipEventDisableTiming
inline constexpr int32_t kNotCapturing = 0;         // hipStreamCaptureStatusNone
inline constexpr uintptr_t kArgumentBuffer = 1, kArgumentBytes = 2, kArgumentsEnd = 3;  // HIP_LAUNCH_PARAM_*

// hipGetDevicePropertiesR0600 fills 1472 bytes; before ROCm 6 hipGetDeviceProperties filled 792. All that is read of
// them is the name of the architecture; the buffer has room for those to come.
inline constexpr size_t kPropertyBytes = 4096, kArchOffset = 1160, kArchOffsetBefore6 = 396, kArchBytes = 256;

struct Api {
  Error (*Init)(unsigned flags);
  Error (*RuntimeGetVersion)(int* version);
  Error (*GetDeviceCount)(int* count);
  Error (*GetDevice)(int* device);
  Error (*SetDevice)(int device);
  Error (*DeviceGetName)(char* name, int length, int device);
  Error (*DeviceGetAttribute)(int* value, int32_t attribute, int device);
  Error (*DeviceTotalMem)(size_t* bytes, int device);
  Error (*Malloc)(void** pointer, size_t bytes);
  Error (*Free)(void* pointer);
  Error (*MemcpyAsync)(void* to, const void* from, size_t bytes, int32_t kind, void* stream);
  Error (*MemsetAsync)(void* pointer, int value, size_t bytes, void* stream);
  Error (*StreamSynchronize)(void* stream);
  Error (*StreamIsCapturing)(void* stream, int32_t* status);
  Error (*StreamWaitEvent)(void* stream, void* event, unsigned flags);
  Error (*EventCreateWithFlags)(void** event, unsigned flags);
  Error (*EventRecord)(void* event, void* stream);
  Error (*EventDestroy)(void* event);
  Error (*ModuleLoadData)(void** module, const void* image);
  Error (*ModuleGetFunction)(void** function, void* module, const char* name);
  Error (*ModuleLaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned dynamic_lds, void* stream, void** parameters,
                              void** extra);
  const char* (*GetErrorName)(Error error);
  const char* (*GetErrorString)(Error error);

  // One of the two is there.
  Error (*GetDevicePropertiesR0600)(void* properties, int device) = nullptr;
  Error (*GetDeviceProperties)(void* properties, int device) = nullptr;

  // The emulator's own; nullptr in AMD's runtime.
  const char* (*emu_architectures)() = nullptr;
  const char* (*emu_last_error)() = nullptr;
  int (*emu_open)(const char* architecture, int* index) = nullptr;
  int (*emu_set_option)(const char* name, const char* value) = nullptr;
  size_t (*emu_counters_json)(int device, char* buffer, size_t capacity) = nullptr;
  void (*emu_reset_counters)(int device) = nullptr;

  std::string library;  // the name it was found by
  int version = 0;      // 60342134: 6.3.42134
};

// Loads AMD's runtime: FLASHWAVE_HIP_LIBRARY, or its usual names. Says in the status what is missing or wrong; that
// there is no GPU is not found out here.
Status load_runtime(Api* api);
// Loads the emulator: FLASHWAVE_EMU_LIBRARY, or libflashwave_emu.so beside this library, or wherever the loader looks.
Status load_emulator(Api* api);

// "hipMalloc: hipErrorOutOfMemory: out of memory", and what the emulator adds to it.
std::string describe(const Api& api, const char* function, Error error);

}  // namespace flashwave::hip

// The part of AMD's HIP ABI that the emulator offers: values, layouts and functions as of ROCm 6 (hip_runtime_api.h),
// restated so that no ROCm header is needed. Programs load this library in place of libamdhip64.so.
#pragma once

#include <cstddef>
#include <cstdint>

#define EMU_EXPORT __attribute__((visibility("default")))

enum hipError_t : int32_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorNotInitialized = 3,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidDevicePointer = 17,
  hipErrorInvalidMemcpyDirection = 21,
  hipErrorInvalidDeviceFunction = 98,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidImage = 200,
  hipErrorInvalidContext = 201,
  hipErrorNoBinaryForGpu = 209,
  hipErrorFileNotFound = 301,
  hipErrorSharedObjectSymbolNotFound = 302,
  hipErrorInvalidHandle = 400,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorLaunchOutOfResources = 701,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
  hipErrorUnknown = 999,
};

enum hipMemcpyKind : int32_t {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
};

enum hipMemoryType : int32_t {
  hipMemoryTypeUnregistered = 0,
  hipMemoryTypeHost = 1,
  hipMemoryTypeDevice = 2,
  hipMemoryTypeManaged = 3,
};

enum hipDeviceAttribute_t : int32_t {
  hipDeviceAttributeEccEnabled = 0,
  hipDeviceAttributeAsyncEngineCount = 2,
  hipDeviceAttributeCanMapHostMemory = 3,
  hipDeviceAttributeClockRate = 5,
  hipDeviceAttributeComputeMode = 6,
  hipDeviceAttributeConcurrentKernels = 8,
  hipDeviceAttributeCooperativeLaunch = 10,
  hipDeviceAttributeIntegrated = 16,
  hipDeviceAttributeKernelExecTimeout = 18,
  hipDeviceAttributeL2CacheSize = 19,
  hipDeviceAttributeComputeCapabilityMajor = 23,
  hipDeviceAttributeManagedMemory = 24,
  hipDeviceAttributeMaxBlocksPerMultiProcessor = 25,
  hipDeviceAttributeMaxBlockDimX = 26,
  hipDeviceAttributeMaxBlockDimY = 27,
  hipDeviceAttributeMaxBlockDimZ = 28,
  hipDeviceAttributeMaxGridDimX = 29,
  hipDeviceAttributeMaxGridDimY = 30,
  hipDeviceAttributeMaxGridDimZ = 31,
  hipDeviceAttributeMaxThreadsPerBlock = 56,
  hipDeviceAttributeMaxThreadsPerMultiProcessor = 57,
  hipDeviceAttributeMaxPitch = 58,
  hipDeviceAttributeMemoryBusWidth = 59,
  hipDeviceAttributeMemoryClockRate = 60,
  hipDeviceAttributeComputeCapabilityMinor = 61,
  hipDeviceAttributeMultiprocessorCount = 63,
  hipDeviceAttributePageableMemoryAccess = 65,
  hipDeviceAttributePciBusId = 67,
  hipDeviceAttributePciDeviceId = 68,
  hipDeviceAttributePciDomainID = 69,
  hipDeviceAttributeMaxRegistersPerBlock = 71,
  hipDeviceAttributeMaxRegistersPerMultiprocessor = 72,
  hipDeviceAttributeMaxSharedMemoryPerBlock = 74,
  hipDeviceAttributeSharedMemPerBlockOptin = 75,
  hipDeviceAttributeSharedMemPerMultiprocessor = 76,
  hipDeviceAttributeStreamPrioritiesSupported = 78,
  hipDeviceAttributeTotalConstantMemory = 83,
  hipDeviceAttributeUnifiedAddressing = 85,
  hipDeviceAttributeWarpSize = 87,
  hipDeviceAttributeMemoryPoolsSupported = 88,
  hipDeviceAttributeClockInstructionRate = 10000,
  hipDeviceAttributeMaxSharedMemoryPerMultiprocessor = 10002,
  hipDeviceAttributeIsLargeBar = 10011,
  hipDeviceAttributeAsicRevision = 10012,
  hipDeviceAttributePhysicalMultiProcessorCount = 10015,
  hipDeviceAttributeWallClockRate = 10017,
};

enum hipFunction_attribute : int32_t {
  HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES = 2,
  HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
  HIP_FUNC_ATTRIBUTE_NUM_REGS = 4,
  HIP_FUNC_ATTRIBUTE_PTX_VERSION = 5,
  HIP_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
  HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA = 7,
  HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
};

// hipDeviceProp_tR0600. Fields that mean nothing to an emulator are left out and zero.
struct hipDeviceProp_tR0600 {
  char name[256];
  char uuid[16];
  char unused_luid[16];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int32_t regsPerBlock;
  int32_t warpSize;
  size_t memPitch;
  int32_t maxThreadsPerBlock;
  int32_t maxThreadsDim[3];
  int32_t maxGridSize[3];
  int32_t clockRate;
  size_t totalConstMem;
  int32_t major, minor;
  char unused_textures[20];
  int32_t multiProcessorCount;
  int32_t kernelExecTimeoutEnabled;
  int32_t integrated;
  int32_t canMapHostMemory;
  char unused_surfaces[172];
  int32_t concurrentKernels;
  char unused_bus[36];
  int32_t l2CacheSize;
  int32_t unused_persisting;
  int32_t maxThreadsPerMultiProcessor;
  char unused_caches[12];
  size_t sharedMemPerMultiprocessor;
  int32_t regsPerMultiprocessor;
  char unused_managed[44];
  size_t sharedMemPerBlockOptin;
  char unused_pages[8];
  int32_t maxBlocksPerMultiProcessor;
  char unused_reserved[444];
  char gcnArchName[256];
  size_t maxSharedMemoryPerMultiProcessor;
  int32_t clockInstructionRate;
  char unused_tail[44];
};
static_assert(offsetof(hipDeviceProp_tR0600, totalGlobalMem) == 288);
static_assert(offsetof(hipDeviceProp_tR0600, warpSize) == 308);
static_assert(offsetof(hipDeviceProp_tR0600, clockRate) == 348);
static_assert(offsetof(hipDeviceProp_tR0600, major) == 360);
static_assert(offsetof(hipDeviceProp_tR0600, multiProcessorCount) == 388);
static_assert(offsetof(hipDeviceProp_tR0600, concurrentKernels) == 576);
static_assert(offsetof(hipDeviceProp_tR0600, l2CacheSize) == 616);
static_assert(offsetof(hipDeviceProp_tR0600, maxThreadsPerMultiProcessor) == 624);
static_assert(offsetof(hipDeviceProp_tR0600, sharedMemPerMultiprocessor) == 640);
static_assert(offsetof(hipDeviceProp_tR0600, sharedMemPerBlockOptin) == 696);
static_assert(offsetof(hipDeviceProp_tR0600, maxBlocksPerMultiProcessor) == 712);
static_assert(offsetof(hipDeviceProp_tR0600, gcnArchName) == 1160);
static_assert(offsetof(hipDeviceProp_tR0600, maxSharedMemoryPerMultiProcessor) == 1416);
static_assert(sizeof(hipDeviceProp_tR0600) == 1472);

// What hipGetDeviceProperties filled before ROCm 6; the symbol without a suffix still means this one.
struct hipDeviceProp_tR0000 {
  char name[256];
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int32_t regsPerBlock;
  int32_t warpSize;
  int32_t maxThreadsPerBlock;
  int32_t maxThreadsDim[3];
  int32_t maxGridSize[3];
  int32_t clockRate;
  int32_t memoryClockRate;
  int32_t memoryBusWidth;
  size_t totalConstMem;
  int32_t major, minor;
  int32_t multiProcessorCount;
  int32_t l2CacheSize;
  int32_t maxThreadsPerMultiProcessor;
  int32_t computeMode;
  int32_t clockInstructionRate;
  uint32_t arch;
  int32_t concurrentKernels;
  int32_t pciDomainID, pciBusID, pciDeviceID;
  size_t maxSharedMemoryPerMultiProcessor;
  int32_t isMultiGpuBoard;
  int32_t canMapHostMemory;
  int32_t gcnArch;
  char gcnArchName[256];
  char unused_tail[140];
};
static_assert(offsetof(hipDeviceProp_tR0000, multiProcessorCount) == 336);
static_assert(offsetof(hipDeviceProp_tR0000, maxSharedMemoryPerMultiProcessor) == 376);
static_assert(offsetof(hipDeviceProp_tR0000, gcnArchName) == 396);
static_assert(sizeof(hipDeviceProp_tR0000) == 792);

struct hipPointerAttribute_t {
  hipMemoryType type;
  int32_t device;
  void* devicePointer;
  void* hostPointer;
  int32_t isManaged;
  uint32_t allocationFlags;
};
static_assert(sizeof(hipPointerAttribute_t) == 32);

using hipDevice_t = int;
using hipDeviceptr_t = void*;
using hipCtx_t = struct ihipCtx_t*;
using hipStream_t = struct ihipStream_t*;
enum hipStreamCaptureStatus { hipStreamCaptureStatusNone = 0 };
using hipEvent_t = struct ihipEvent_t*;
using hipModule_t = struct ihipModule_t*;
using hipFunction_t = struct ihipModuleSymbol_t*;

constexpr uint32_t hipEventDisableTiming = 2;
constexpr uintptr_t HIP_LAUNCH_PARAM_BUFFER_POINTER = 1;
constexpr uintptr_t HIP_LAUNCH_PARAM_BUFFER_SIZE = 2;
constexpr uintptr_t HIP_LAUNCH_PARAM_END = 3;

extern "C" {
// Devices.
EMU_EXPORT hipError_t hipInit(unsigned flags);
EMU_EXPORT hipError_t hipDriverGetVersion(int* version);
EMU_EXPORT hipError_t hipRuntimeGetVersion(int* version);
EMU_EXPORT hipError_t hipGetDeviceCount(int* count);
EMU_EXPORT hipError_t hipGetDevice(int* device);
EMU_EXPORT hipError_t hipSetDevice(int device);
EMU_EXPORT hipError_t hipDeviceGet(hipDevice_t* device, int ordinal);
EMU_EXPORT hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device);
EMU_EXPORT hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device);
EMU_EXPORT hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int device);
EMU_EXPORT hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000* properties, int device);
EMU_EXPORT hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device);
EMU_EXPORT hipError_t hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device);
EMU_EXPORT hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer);
EMU_EXPORT hipError_t hipDeviceSynchronize();
EMU_EXPORT hipError_t hipGetProcAddress(const char* symbol, void** function, int version, uint64_t flags, int* found);

// Contexts: each device has the one that programs of the old style ask for.
EMU_EXPORT hipError_t hipCtxCreate(hipCtx_t* context, unsigned flags, hipDevice_t device);
EMU_EXPORT hipError_t hipCtxDestroy(hipCtx_t context);
EMU_EXPORT hipError_t hipCtxGetCurrent(hipCtx_t* context);
EMU_EXPORT hipError_t hipCtxSetCurrent(hipCtx_t context);
EMU_EXPORT hipError_t hipCtxPushCurrent(hipCtx_t context);
EMU_EXPORT hipError_t hipCtxPopCurrent(hipCtx_t* context);
EMU_EXPORT hipError_t hipCtxGetDevice(hipDevice_t* device);
EMU_EXPORT hipError_t hipCtxSynchronize();
EMU_EXPORT hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* context, hipDevice_t device);
EMU_EXPORT hipError_t hipDevicePrimaryCtxRelease(hipDevice_t device);

// Memory.
EMU_EXPORT hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes);
EMU_EXPORT hipError_t hipMalloc(void** pointer, size_t bytes);
EMU_EXPORT hipError_t hipFree(void* pointer);
EMU_EXPORT hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags);
EMU_EXPORT hipError_t hipHostFree(void* pointer);
EMU_EXPORT hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream);
EMU_EXPORT hipError_t hipFreeAsync(void* pointer, hipStream_t stream);
EMU_EXPORT hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind);
EMU_EXPORT hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream);
EMU_EXPORT hipError_t hipMemcpyHtoD(hipDeviceptr_t to, const void* from, size_t bytes);
EMU_EXPORT hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes);
EMU_EXPORT hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes);
EMU_EXPORT hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from, size_t bytes, hipStream_t stream);
EMU_EXPORT hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes, hipStream_t stream);
EMU_EXPORT hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes, hipStream_t stream);
EMU_EXPORT hipError_t hipMemset(void* to, int value, size_t bytes);
EMU_EXPORT hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream);
EMU_EXPORT hipError_t hipMemsetD32(hipDeviceptr_t to, int value, size_t count);
EMU_EXPORT hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count, hipStream_t stream);
EMU_EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* pointer);

// Streams and events.
EMU_EXPORT hipError_t hipStreamCreate(hipStream_t* stream);
EMU_EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags);
EMU_EXPORT hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority);
EMU_EXPORT hipError_t hipStreamDestroy(hipStream_t stream);
EMU_EXPORT hipError_t hipStreamSynchronize(hipStream_t stream);
EMU_EXPORT hipError_t hipStreamQuery(hipStream_t stream);
EMU_EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status);
EMU_EXPORT hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags);
EMU_EXPORT hipError_t hipEventCreate(hipEvent_t* event);
EMU_EXPORT hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags);
EMU_EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
EMU_EXPORT hipError_t hipEventSynchronize(hipEvent_t event);
EMU_EXPORT hipError_t hipEventQuery(hipEvent_t event);
EMU_EXPORT hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop);
EMU_EXPORT hipError_t hipEventDestroy(hipEvent_t event);

// Code objects and kernels.
EMU_EXPORT hipError_t hipModuleLoad(hipModule_t* module, const char* file);
EMU_EXPORT hipError_t hipModuleLoadData(hipModule_t* module, const void* image);
EMU_EXPORT hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned count, int* options,
                                          void** values);
EMU_EXPORT hipError_t hipModuleUnload(hipModule_t module);
EMU_EXPORT hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name);
EMU_EXPORT hipError_t hipModuleGetGlobal(hipDeviceptr_t* address, size_t* bytes, hipModule_t module, const char* name);
EMU_EXPORT hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute, hipFunction_t function);
EMU_EXPORT hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned dynamic_lds,
                                            hipStream_t stream, void** parameters, void** extra);
EMU_EXPORT hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, hipFunction_t function,
                                                                         int block_size, size_t dynamic_lds);

// Errors, of the calling thread.
EMU_EXPORT const char* hipGetErrorString(hipError_t error);
EMU_EXPORT const char* hipGetErrorName(hipError_t error);
EMU_EXPORT hipError_t hipGetLastError();
EMU_EXPORT hipError_t hipPeekAtLastError();
}

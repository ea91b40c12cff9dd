// Entry points about memory. Everything a stream was given before has ended, so copies are made at once.
#include <algorithm>
#include <cstring>

#include "hip/devices.h"
#include "hip/errors.h"
#include "hip/memory_pool.h"
#include "hip/modules.h"
#include "hip/streams.h"

namespace emu::hip {
namespace {

hipError_t allocate(void** pointer, size_t bytes, Home home, u32 flags) {
  if (pointer == nullptr) return null_argument("pointer");
  *pointer = nullptr;
  const int device = current_device();
  if (device_target(device) == nullptr) return no_device();
  if (bytes == 0) return hipSuccess;
  *pointer = memory_pool().allocate(bytes, home, device, flags);
  if (*pointer != nullptr) return hipSuccess;
  return fail(hipErrorOutOfMemory, "there is no memory for " + std::to_string(bytes) + " bytes; " +
                                       std::to_string(available_memory()) + " are available");
}

hipError_t release(void* pointer, Home home) {
  if (pointer == nullptr) return hipSuccess;
  const std::unique_lock lock(running());  // as on a GPU, freeing waits for what runs
  const std::string wrong = memory_pool().release(pointer, home);
  return wrong.empty() ? hipSuccess : fail(hipErrorInvalidValue, wrong);
}

hipError_t copy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  if (bytes == 0) return hipSuccess;
  if (to == nullptr || from == nullptr) return null_argument("an address of a copy");
  if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) {
    return fail(hipErrorInvalidMemcpyDirection, "kind " + std::to_string(kind) + " is none");
  }
  const bool to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  const bool from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  if (const std::string wrong = memory_pool().fault(to, bytes, to_device); !wrong.empty()) {
    return fail(hipErrorInvalidValue, "destination: " + wrong);
  }
  if (const std::string wrong = memory_pool().fault(from, bytes, from_device); !wrong.empty()) {
    return fail(hipErrorInvalidValue, "source: " + wrong);
  }
  std::memmove(to, from, bytes);
  return hipSuccess;
}

template <class Word>
hipError_t fill(void* to, Word value, size_t count) {
  if (count == 0) return hipSuccess;
  if (to == nullptr) return null_argument("destination");
  if (count > SIZE_MAX / sizeof(Word)) return fail(hipErrorInvalidValue, "there are no such sizes");
  const std::string wrong = memory_pool().fault(to, count * sizeof(Word), true);
  if (!wrong.empty()) return fail(hipErrorInvalidValue, "destination: " + wrong);
  std::fill_n(static_cast<Word*>(to), count, value);
  return hipSuccess;
}

// Something done on a stream that must exist.
template <class Body>
hipError_t on_stream(hipStream_t stream, Body&& body) {
  return guarded([&] {
    const hipError_t error = check_stream(stream);
    return error == hipSuccess ? body() : error;
  });
}

}  // namespace
}  // namespace emu::hip

using namespace emu;
using namespace emu::hip;

hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return guarded([&] {
    if (total_bytes != nullptr) *total_bytes = total_memory();
    if (free_bytes != nullptr) *free_bytes = available_memory();
    return hipSuccess;
  });
}

hipError_t hipMalloc(void** pointer, size_t bytes) {
  return guarded([&] { return allocate(pointer, bytes, Home::device, 0); });
}

hipError_t hipFree(void* pointer) {
  return guarded([&] { return release(pointer, Home::device); });
}

hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {
  return guarded([&] { return allocate(pointer, bytes, Home::host, flags); });
}

hipError_t hipHostFree(void* pointer) {
  return guarded([&] { return release(pointer, Home::host); });
}

hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
  return on_stream(stream, [&] { return allocate(pointer, bytes, Home::device, 0); });
}

hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  return on_stream(stream, [&] { return release(pointer, Home::device); });
}

hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  return guarded([&] { return copy(to, from, bytes, kind); });
}

hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  return on_stream(stream, [&] { return copy(to, from, bytes, kind); });
}

hipError_t hipMemcpyHtoD(hipDeviceptr_t to, const void* from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyHostToDevice);
}

hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyDeviceToHost);
}

hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes) {
  return hipMemcpy(to, from, bytes, hipMemcpyDeviceToDevice);
}

hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void* from, size_t bytes, hipStream_t stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyHostToDevice, stream);
}

hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes, hipStream_t stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToHost, stream);
}

hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes, hipStream_t stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToDevice, stream);
}

hipError_t hipMemset(void* to, int value, size_t bytes) {
  return guarded([&] { return fill(to, static_cast<u8>(value), bytes); });
}

hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  return on_stream(stream, [&] { return fill(to, static_cast<u8>(value), bytes); });
}

hipError_t hipMemsetD32(hipDeviceptr_t to, int value, size_t count) {
  return guarded([&] { return fill(to, static_cast<u32>(value), count); });
}

hipError_t hipMemsetD32Async(hipDeviceptr_t to, int value, size_t count, hipStream_t stream) {
  return on_stream(stream, [&] { return fill(to, static_cast<u32>(value), count); });
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* pointer) {
  return guarded([&] {
    if (attributes == nullptr) return null_argument("attributes");
    *attributes = {};
    const auto found = memory_pool().find(pointer);
    if (!found) return fail(hipErrorInvalidValue, "the pointer is not memory of a device");
    attributes->type = found->home == Home::host ? hipMemoryTypeHost : hipMemoryTypeDevice;
    attributes->device = found->device;
    attributes->devicePointer = const_cast<void*>(pointer);
    attributes->hostPointer = found->home == Home::host ? const_cast<void*>(pointer) : nullptr;
    attributes->allocationFlags = found->flags;
    return hipSuccess;
  });
}

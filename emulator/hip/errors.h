// What a failed call leaves behind for the thread that made it.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "hip/abi.h"

namespace emu::hip {

// Keeps the code for hipGetLastError and the text for fwemu_last_error; returns the code.
hipError_t fail(hipError_t code, std::string text);
const char* last_text();

// No exception leaves an entry point.
template <class Body>
hipError_t guarded(Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return fail(hipErrorOutOfMemory, "the host is out of memory");
  } catch (const std::exception& error) {
    return fail(hipErrorUnknown, error.what());
  }
}

inline hipError_t null_argument(const char* name) {
  return fail(hipErrorInvalidValue, std::string(name) + " must not be NULL");
}

}  // namespace emu::hip

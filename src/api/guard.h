// What stands between the library and a C caller: no exception leaves, and every failure leaves its message behind.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "base/status.h"
#include "device/driver.h"
#include "flashwave/flashwave.h"

namespace flashwave::api {

// Keeps the message for fw_last_error of this thread; returns the code. Nothing happens if the status is ok.
fw_status report(const Status& status) noexcept;
fw_status report(fw_status code, const char* message) noexcept;

template <class Body>
fw_status guarded(Body&& body) noexcept {
  try {
    return report(std::forward<Body>(body)());
  } catch (const std::bad_alloc&) {
    return report(FW_OUT_OF_MEMORY, "the host is out of memory");
  } catch (const std::exception& error) {
    return report(FW_INTERNAL_ERROR, error.what());
  } catch (...) {
    return report(FW_INTERNAL_ERROR, "unknown exception");
  }
}

// fw_device is Device under a name that C knows.
inline Device* device_of(fw_device* handle) { return reinterpret_cast<Device*>(handle); }
inline fw_device* handle_of(Device* device) { return reinterpret_cast<fw_device*>(device); }

inline Status check_not_null(const void* pointer, const char* name) {
  return pointer != nullptr ? Status{} : Status::invalid(std::string(name) + " must not be NULL");
}

}  // namespace flashwave::api

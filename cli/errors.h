// How a command ends early: wrong usage (exit 2) or a failure while working (exit 1).
#pragma once

#include <stdexcept>
#include <string>

#include "flashwave/flashwave.h"

namespace flashwave::cli {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The library said no. Keeps the status, so that a check can tell a refusal from a breakdown.
struct LibraryError : std::runtime_error {
  LibraryError(fw_status code, const std::string& what_failed)
      : std::runtime_error(what_failed + ": " + fw_status_name(code) + ": " + fw_last_error()), status(code) {}
  fw_status status;
};

// The host cannot hold what is to be checked or measured.
struct HostMemoryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(fw_status status, const std::string& what_failed) {
  if (status != FW_OK) throw LibraryError(status, what_failed);
}

}  // namespace flashwave::cli

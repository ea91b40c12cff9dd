// Outcome of a call inside the library: a code and, when it failed, a sentence for the user.
#pragma once

#include <string>
#include <utility>

#include "flashwave/flashwave.h"

namespace flashwave {

struct [[nodiscard]] Status {
  fw_status code = FW_OK;
  std::string message;

  bool ok() const { return code == FW_OK; }
  static Status invalid(std::string message) { return {FW_INVALID_ARGUMENT, std::move(message)}; }
};

}  // namespace flashwave

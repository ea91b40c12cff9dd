// Shared by the files that hold the argument rules.
#pragma once

#include <sstream>
#include <string>

#include "base/status.h"
#include "problem/problem.h"
#include "problem/views.h"

namespace flashwave {

// The refusal whose message is the parts put together.
template <class... Parts>
Status broken(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Status::invalid(text.str());
}

// Leaves the calling function with the refusal if the rule is broken.
#define FW_RULE(holds, ...)                   \
  do {                                        \
    if (!(holds)) return broken(__VA_ARGS__); \
  } while (false)

#define FW_RULES(call)                                       \
  do {                                                       \
    if (Status status = (call); !status.ok()) return status; \
  } while (false)

Status validate_layouts(const Problem& problem, const Views& views);  // presence, dtypes, strides
Status validate_addresses(const Views& views);                        // alignment, address space, overlap

}  // namespace flashwave

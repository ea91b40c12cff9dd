// Shared by the files that hold the argument rules.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <sstream>
#include <string>

#include "base/status.h"
#include "problem/problem.h"
#include "problem/views.h"

namespace flashwave {

// The refusal whose message is the parts put together. Cold, so that what makes messages does not lie between the
// rules: a small call takes longer to fetch its instructions than to execute them.
template <class... Parts>
[[gnu::cold, gnu::noinline]] Status broken(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Status::invalid(text.str());
}

// Leaves the calling function with the refusal if the rule is broken.
#define FW_RULE(holds, ...)                   \
  do {                                        \
    if (!(holds)) return broken(__VA_ARGS__); \
  } while (false)

#define FW_RULES(call)                                     \
  do {                                                     \
    if (Status status = (call); !status.ok()) [[unlikely]] \
      return status;                                       \
  } while (false)

// Presence, dtypes and strides. first: the tensor whose dtype the others follow, "q" or "x".
Status validate_layouts(std::span<const View> views, const char* first, int32_t dtype);
Status validate_addresses(std::span<const View> views);  // alignment, address space, overlap

// The values of an array of row offsets. total < 0: they address no rows (paged keys), only their differences count.
Status validate_offsets(const char* name, const int32_t* offsets, int64_t batch, int64_t longest,
                        const char* longest_name, int64_t total, const char* total_name);

inline constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();  // kernels and index arrays count in int32
inline constexpr int64_t kMaxRows = int64_t{1} << 40;
inline constexpr int64_t kMaxDim = 512;
Status validate_extent(const char* name, int64_t value, int64_t least = 0, int64_t most = kMaxExtent);

}  // namespace flashwave

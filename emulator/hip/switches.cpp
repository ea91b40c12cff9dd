// The functions of include/flashwave_emu.h.
#include <algorithm>
#include <cstring>

#include "hip/devices.h"
#include "hip/errors.h"
#include "hip/results.h"
#include "hip/settings.h"
#include "include/flashwave_emu.h"

namespace emu::hip {
namespace {

size_t give(const std::string& text, char* buffer, size_t capacity) {
  if (buffer != nullptr && capacity > 0) {
    const size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size() + 1;
}

// Text made by `body`; none if there is no memory for it.
template <class Body>
size_t give_text(char* buffer, size_t capacity, Body&& body) {
  size_t needed = 0;
  static_cast<void>(guarded([&] {
    needed = give(body(), buffer, capacity);
    return hipSuccess;
  }));
  return needed;
}

}  // namespace
}  // namespace emu::hip

using namespace emu::hip;

const char* fwemu_version(void) { return "0.1.0"; }

const char* fwemu_architectures(void) {
  static const std::string& names = *new std::string(architectures());
  return names.c_str();
}

int fwemu_set_option(const char* name, const char* value) {
  return guarded([&] {
    if (name == nullptr || value == nullptr) return null_argument("name and value");
    const std::string wrong = set_option(name, value);
    return wrong.empty() ? hipSuccess : fail(hipErrorInvalidValue, wrong);
  });
}

int fwemu_open(const char* architecture, int* index) {
  return guarded([&] {
    if (architecture == nullptr || index == nullptr) return null_argument("architecture and index");
    return open_device(architecture, index);
  });
}

int fwemu_add_device(const char* architecture) {
  int index = -1;
  const hipError_t error = guarded(
      [&] { return architecture != nullptr ? add_device(architecture, &index) : null_argument("architecture"); });
  return error == hipSuccess ? index : -1;
}

const char* fwemu_last_error(void) { return last_text(); }

size_t fwemu_reports(char* buffer, size_t capacity) { return give_text(buffer, capacity, kept_reports); }

size_t fwemu_report_count(void) { return kept_report_count(); }

void fwemu_clear_reports(void) { forget_reports(); }

size_t fwemu_counters_json(int device, char* buffer, size_t capacity) {
  return give_text(buffer, capacity, [&] { return kept_counters(device); });
}

void fwemu_reset_counters(int device) { forget_counters(device); }

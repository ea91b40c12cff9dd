#include "api/settings.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "api/guard.h"
#include "flashwave/flashwave.h"

#if defined(__linux__)
#include <sched.h>
#include <unistd.h>
#endif

namespace flashwave::api {
namespace {

std::atomic<int32_t> threads_set{0};  // 0: not set

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::string_view(value) : std::string_view();
}

// The words that python/flashwave/settings.py takes for yes; whatever else is set is no.
bool switched_on(const char* name) {
  std::string value;
  for (const char c : environment(name)) {
    if (c != ' ' && c != '\t') value += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return value == "1" || value == "true" || value == "on" || value == "yes";
}

int32_t cores_allowed() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::clamp(CPU_COUNT(&set), 1, kMostThreads);
#endif
  return std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()), 1, kMostThreads);
}

const KernelRow* row_named(std::string_view name) {
  const auto rows = catalog();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const KernelRow& r) { return name == r.name; });
  return row == rows.end() ? nullptr : &*row;
}

}  // namespace

Status default_threads(int32_t* threads) {
  *threads = threads_set.load(std::memory_order_relaxed);
  if (*threads > 0) return {};
  *threads = cores_allowed();
  const std::string_view text = environment("FLASHWAVE_NUM_THREADS");
  if (text.empty()) return {};
  int32_t wanted = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), wanted);
  if (error != std::errc() || end != text.data() + text.size() || wanted < 1) {
    return Status::invalid("FLASHWAVE_NUM_THREADS must be a whole number of at least 1, got '" + std::string(text) +
                           "'");
  }
  *threads = std::min(wanted, kMostThreads);
  return {};
}

Status forced_kernel(Op op, std::string* name) {
  name->clear();
  const std::string_view list = environment("FLASHWAVE_FORCE_KERNEL");
  for (std::string_view rest = list; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    if (one.empty()) continue;
    const KernelRow* row = row_named(one);
    if (row == nullptr || row->op == op) {
      *name = one;  // an unknown name too: planning refuses it and says which there are
      return {};
    }
  }
  if (list.empty()) return {};
  return {FW_UNSUPPORTED, "FLASHWAVE_FORCE_KERNEL=" + std::string(list) + " names no " + op_name(op) + " kernel"};
}

bool environment_steers() {
#if defined(__linux__)
  constexpr std::string_view kCommon = "FLASH";
  constexpr std::string_view kSteering[] = {
      "FLASH_ATTENTION_", "FLASHWAVE_FORCE_KERNEL=", "FLASHWAVE_FAST_ROUNDING=", "FLASHWAVE_CHECK_INDEXES="};
  if (environ == nullptr) return false;  // clearenv
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if ((*variable)[0] != kCommon[0] || !std::string_view(*variable).starts_with(kCommon)) continue;
    const auto sets = [&](std::string_view start) { return std::string_view(*variable).starts_with(start); };
    if (std::any_of(std::begin(kSteering), std::end(kSteering), sets)) return true;
  }
  return false;
#else
  return true;
#endif
}

bool debug_wanted() { return switched_on("FLASH_ATTENTION_DEBUG"); }

bool index_checks_wanted() { return switched_on("FLASHWAVE_CHECK_INDEXES"); }

bool deterministic_wanted() { return switched_on("FLASH_ATTENTION_INTERNAL_DETERMINISTIC"); }

bool fast_rounding_wanted(bool on_amd) {
  if (switched_on("FLASHWAVE_FAST_ROUNDING")) return true;
  if (!on_amd) return false;
  const char* const rounding = "FLASH_ATTENTION_INTERNAL_USE_RTZ";
  if (!environment(rounding).empty()) return switched_on(rounding);
  return switched_on("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE");
}

bool bf16_products_wanted(bool on_amd) { return on_amd && switched_on("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE"); }

}  // namespace flashwave::api

using namespace flashwave;

fw_status fw_set_num_threads(int32_t threads) {
  return api::guarded([&]() -> Status {
    if (threads < 0)
      return Status::invalid("threads must be at least 0 (0: all cores), got " + std::to_string(threads));
    api::threads_set.store(std::min(threads, api::kMostThreads), std::memory_order_relaxed);
    return {};
  });
}

int32_t fw_get_num_threads(void) {
  int32_t threads = 1;
  try {
    // A value that is no number is reported by the calls that need it; here the cores stand in.
    static_cast<void>(api::default_threads(&threads).ok());
  } catch (...) {
  }
  return threads;
}

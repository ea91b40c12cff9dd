#include "hip/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>

namespace emu::hip {
namespace {

std::string must_be(const std::string& rule, const std::string& value) {
  return "must be " + rule + ", got '" + value + "'";
}

std::string parse_switch(const std::string& value, bool* on) {
  if (value != "0" && value != "1") return must_be("0 or 1", value);
  *on = value == "1";
  return "";
}

template <class Number>
std::string parse_number(const std::string& value, Number most, Number* number) {
  const char* end = value.data() + value.size();
  const auto [stopped, error] = std::from_chars(value.data(), end, *number);
  if (error == std::errc() && stopped == end && *number >= 0 && *number <= most) return "";
  return must_be("a whole number from 0 to " + std::to_string(most), value);
}

std::string parse_mode(const std::string& value, CheckMode* mode) {
  if (value != "0" && value != "1" && value != "report") return must_be("0, 1 or report", value);
  *mode = value == "0" ? CheckMode::off : value == "1" ? CheckMode::fail : CheckMode::report;
  return "";
}

std::string parse_numerics(const std::string& value, bool* hardware) {
  if (value != "chain" && value != "hardware") return must_be("chain or hardware", value);
  *hardware = value == "hardware";
  return "";
}

struct Option {
  const char* name;
  const char* environment;
  std::string (*apply)(const std::string& value, Settings* settings);
};

constexpr Option kOptions[] = {
    {"check", "FLASHWAVE_EMU_CHECK",
     [](const std::string& value, Settings* s) { return parse_mode(value, &s->check); }},
    {"checks", "FLASHWAVE_EMU_CHECKS",
     [](const std::string& value, Settings* s) { return parse_checks(value, &s->checks.enabled); }},
    {"strict", "FLASHWAVE_EMU_STRICT",
     [](const std::string& value, Settings* s) { return parse_switch(value, &s->checks.strict_write_after_read); }},
    {"hazards", "FLASHWAVE_EMU_HAZARDS",
     [](const std::string& value, Settings* s) { return parse_hazards(value, &s->checks.close_vector_hazards); }},
    {"barriers", "FLASHWAVE_EMU_BARRIERS",
     [](const std::string& value, Settings* s) {
       if (value != "same" && value != "counted") return must_be("same or counted", value);
       s->checks.same_barrier_instruction = value == "same";
       return std::string();
     }},
    {"count", "FLASHWAVE_EMU_COUNT",
     [](const std::string& value, Settings* s) { return parse_switch(value, &s->count); }},
    {"model", "FLASHWAVE_EMU_MODEL",
     [](const std::string& value, Settings* s) { return parse_switch(value, &s->model); }},
    {"order", "FLASHWAVE_EMU_ORDER",
     [](const std::string& value, Settings* s) { return parse_order(value, &s->order); }},
    {"seed", "FLASHWAVE_EMU_SEED",
     [](const std::string& value, Settings* s) {
       return parse_number(value, std::numeric_limits<u64>::max(), &s->seed);
     }},
    {"reverse", "FLASHWAVE_EMU_REVERSE",
     [](const std::string& value, Settings* s) { return parse_switch(value, &s->reverse); }},
    {"threads", "FLASHWAVE_EMU_THREADS",
     [](const std::string& value, Settings* s) { return parse_number(value, 1024, &s->threads); }},
    {"numerics", "FLASHWAVE_EMU_NUMERICS",
     [](const std::string& value, Settings* s) { return parse_numerics(value, &s->hardware_numerics); }},
    {"log", "FLASHWAVE_EMU_LOG", [](const std::string& value, Settings* s) { return parse_switch(value, &s->log); }},
};

struct Store {
  std::mutex mutex;
  Settings settings;

  Store() {
    for (const Option& option : kOptions) {
      const char* value = std::getenv(option.environment);
      if (value == nullptr || *value == '\0') continue;
      const std::string wrong = option.apply(value, &settings);
      if (!wrong.empty()) {
        std::fprintf(stderr, "flashwave_emu: %s %s; it is ignored\n", option.environment, wrong.c_str());
      }
    }
  }
};

Store& store() {
  static auto& settings = *new Store;  // never destroyed: kernels of other threads may run while the process exits
  return settings;
}

}  // namespace

RunOptions Settings::run_options() const {
  RunOptions options;
  options.check = check != CheckMode::off;
  options.checks = checks;
  options.count = count || model;  // the model needs the bank conflicts
  options.trace = model;
  options.order = order;
  options.seed = seed;
  options.reverse = reverse;
  options.threads = threads;
  return options;
}

Settings current_settings() {
  Store& s = store();
  const std::lock_guard lock(s.mutex);
  return s.settings;
}

std::string set_option(const std::string& name, const std::string& value) {
  std::string names;
  for (const Option& option : kOptions) {
    if (name == option.name) {
      Store& s = store();
      const std::lock_guard lock(s.mutex);
      Settings changed = s.settings;
      const std::string wrong = option.apply(value, &changed);
      if (!wrong.empty()) return "option " + name + " " + wrong;
      s.settings = changed;
      return "";
    }
    names += (names.empty() ? "" : ", ") + std::string(option.name);
  }
  return "there is no option '" + name + "'; there are: " + names;
}

std::string parse_hazards(const std::string& value, bool* close_vector) {
  if (value != "compiler" && value != "assembly") return must_be("compiler or assembly", value);
  *close_vector = value == "compiler";
  return "";
}

std::string parse_order(const std::string& value, WaveOrder* order) {
  for (const auto& [name, chosen] : {std::pair("waves", WaveOrder::waves), std::pair("lockstep", WaveOrder::lockstep),
                                     std::pair("compare", WaveOrder::compare)}) {
    if (value != name) continue;
    *order = chosen;
    return "";
  }
  return must_be("waves, lockstep or compare", value);
}

std::string parse_checks(const std::string& list, u32* enabled) {
  constexpr int kCount = static_cast<int>(Check::count);
  u32 bits = 0;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    begin = end + 1;
    u32 bit = name == "all" ? (1u << kCount) - 1 : 0;
    std::string names = "all";
    for (int i = 0; i < kCount; ++i) {
      const char* known = check_name(static_cast<Check>(i));
      if (name == known) bit = 1u << i;
      names += std::string(", ") + known;
    }
    if (bit == 0) return "must be names of checks with commas between them (" + names + "), got '" + name + "'";
    bits |= bit;
  }
  *enabled = bits;
  return "";
}

}  // namespace emu::hip

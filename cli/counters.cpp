#include "counters.h"

#include "errors.h"
#include "json_value.h"

namespace flashwave::cli {
namespace {

// 1234567 as 1.23 M: the table has many columns.
std::string short_count(double count) {
  for (const auto& [unit, name] : {std::pair(1e9, " G"), std::pair(1e6, " M"), std::pair(1e4, " k")}) {
    const double scale = unit == 1e4 ? 1e3 : unit;
    if (count >= unit) return fixed(count / scale, 2) + name;
  }
  return fixed(count, 0);
}

std::string percent(double share) { return share > 0 ? fixed(100 * share, 1) + "%" : "-"; }

}  // namespace

bool start_counters(fw_device* device) {
  char text[1];
  const fw_status status = fw_device_counters(device, text, sizeof text, nullptr);
  if (status == FW_UNSUPPORTED) return false;
  require(status, "fw_device_counters");
  take_counters(device);
  return true;
}

std::string take_counters(fw_device* device) {
  std::string text;
  size_t needed = 1;
  while (needed > text.size()) {
    text.resize(needed);
    require(fw_device_counters(device, text.data(), text.size(), &needed), "fw_device_counters");
  }
  text.resize(needed - 1);
  return text;
}

Counts sum_counters(const std::string& json) {
  Counts sum;
  double matrix_clocks = 0, overlapped = 0, in_turns = 0;  // of launches with matrix instructions
  for (const JsonValue& launch : parse_json(json).items) {
    const JsonValue &c = launch["counters"], &classes = c["classes"];
    ++sum.launches;
    sum.instructions += c["instructions"].number;
    sum.matrix += classes["matrix"].number;
    sum.vector += classes["vector"].number;
    sum.transcendental += classes["transcendental"].number;
    for (const char* name : {"lds_read", "lds_write", "lds_atomic"}) sum.lds += classes[name].number;
    for (const char* name : {"vmem_load", "vmem_store", "vmem_atomic"}) sum.memory += classes[name].number;
    sum.lds_clocks += c["lds_clocks"].number;
    sum.lds_ideal_clocks += c["lds_ideal_clocks"].number;
    sum.memory_bytes += c["vmem_bytes"].number;
    sum.unique_bytes += c["unique_bytes"].number;
    if (c["overlap_bound"].number > 0 && c["serial_bound"].number > 0) {
      matrix_clocks += c["matrix_clocks"].number;
      overlapped += c["matrix_clocks"].number / c["overlap_bound"].number;
      in_turns += c["matrix_clocks"].number / c["serial_bound"].number;
    }
  }
  if (matrix_clocks > 0) {
    sum.overlap_bound = matrix_clocks / overlapped;
    sum.serial_bound = matrix_clocks / in_turns;
  }
  return sum;
}

std::vector<Column> counter_columns() {
  return {{"launches", true}, {"wave instr.", true}, {"matrix", true},         {"vector", true},
          {"transc.", true},  {"LDS", true},         {"memory", true},         {"bytes", true},
          {"distinct", true}, {"LDS slowed", true},  {"matrix busy <=", true}, {"in turns", true}};
}

std::vector<std::string> counter_cells(const Counts& c) {
  return {
      std::to_string(c.launches),    short_count(c.instructions),
      short_count(c.matrix),         short_count(c.vector),
      short_count(c.transcendental), short_count(c.lds),
      short_count(c.memory),         human_bytes(c.memory_bytes),
      human_bytes(c.unique_bytes),   c.lds_ideal_clocks > 0 ? fixed(c.lds_clocks / c.lds_ideal_clocks, 2) + "x" : "-",
      percent(c.overlap_bound),      percent(c.serial_bound)};
}

std::string counter_caption() {
  return "\nExecuted on an instruction-level emulator: these are counts, there are no times. wave instr.: instructions "
         "of\n"
         "all waves, then those by kind. bytes: moved by memory instructions; distinct: touched at least once. LDS\n"
         "slowed: clocks with bank conflicts over clocks without. matrix busy: share of time the matrix units could\n"
         "work if all units overlap; in turns: if matrix and vector instructions do not. Caches, latency, occupancy "
         "and\n"
         "clock rates are not modelled: the numbers rank kernels, they do not say how fast one is.\n";
}

}  // namespace flashwave::cli

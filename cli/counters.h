// What an emulated device counts in place of time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flashwave/flashwave.h"
#include "table.h"

namespace flashwave::cli {

// Whether the device counts. Turns the counting on; what was counted so far is forgotten.
bool start_counters(fw_device* device);

// Of the launches since the last call, as the library wrote it.
std::string take_counters(fw_device* device);

// Sums over launches.
struct Counts {
  int64_t launches = 0;
  double instructions = 0, matrix = 0, vector = 0, transcendental = 0, lds = 0, memory = 0;  // of waves, by kind
  double lds_clocks = 0, lds_ideal_clocks = 0;
  double memory_bytes = 0, unique_bytes = 0;
  // Share of time the matrix units could work: at most, if all units overlap; and if matrix and vector instructions
  // take turns. 0 without matrix instructions.
  double overlap_bound = 0, serial_bound = 0;
};
Counts sum_counters(const std::string& json);

std::vector<Column> counter_columns();
std::vector<std::string> counter_cells(const Counts& counts);
std::string counter_caption();

}  // namespace flashwave::cli

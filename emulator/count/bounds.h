// What the counts of a launch imply: which unit limits the kernel, and how busy the matrix units can be.
#pragma once

#include "core/launch.h"

namespace emu {

struct LdsConflict {
  u32 index = 0;  // instruction
  u64 code_address = 0;
  std::string instruction;
  SourceLine source;
  u64 executed = 0, cycles = 0, ideal_cycles = 0;
};

// Clocks are of one SIMD if the work is spread evenly over the SIMDs of one compute unit, except LDS and memory
// clocks, which are of the compute unit. Caches, memory bandwidth beyond 64 bytes a clock, occupancy and clock rates
// are not modelled: these rank variants of a kernel, they do not say how fast it is.
struct LaunchCounters {
  std::string target;
  bool cdna = false;
  u64 instructions = 0;
  u64 by_class[static_cast<int>(Class::count)] = {};
  u64 dual_issued = 0;  // VOPD pairs, counted once among the vector instructions
  u64 scratch_instructions = 0;
  double matrix_clocks = 0;
  double vector_clocks = 0;  // transcendentals included
  double transcendental_clocks = 0;
  bool accesses_counted = false;  // the fields below are 0 otherwise
  u64 lds_clocks = 0, lds_ideal_clocks = 0;
  u64 vmem_bytes = 0, unique_bytes = 0, store_bytes = 0, atomic_bytes = 0;
  double vmem_clocks = 0;
  // Share of time the matrix units work: if all units overlap perfectly, and if matrix and vector instructions share
  // the issue port. 0 without matrix instructions.
  double overlap_bound = 0, serial_bound = 0;
  std::vector<LdsConflict> conflicts;  // worst first
};

LaunchCounters launch_counters(const Program& program, const LaunchResult& result);
std::string counters_table(const LaunchCounters& counters);
std::string counters_json(const LaunchCounters& counters);

}  // namespace emu

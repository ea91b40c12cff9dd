// Running a kernel of a loaded program.
#pragma once

#include <functional>

#include "check/checker.h"
#include "core/memory_map.h"
#include "core/program.h"
#include "core/report.h"
#include "count/counters.h"

namespace emu {

struct LaunchShape {
  u32 grid[3] = {1, 1, 1};   // workgroups
  u32 block[3] = {1, 1, 1};  // work-items of a workgroup
  u32 dynamic_lds = 0;
};

// Which wave of a workgroup is next.
enum class WaveOrder : u8 {
  waves,     // one after the other, each up to its next barrier; a seed interleaves them
  lockstep,  // every wave one instruction in turn
  compare,   // both, the second from the same memory: does the result differ? What the first leaves is kept
};
enum class OrdersCompared : u8 { no, same, different };

struct RunOptions {
  bool check = true;
  CheckOptions checks = {};
  bool count = false;  // bank conflicts and bytes; instructions are always counted
  bool trace = false;  // keep the instruction order of one workgroup for the issue model
  WaveOrder order = WaveOrder::waves;
  u64 seed = 0;                        // 0: waves and workgroups in order; else a random interleaving of both
  bool reverse = false;                // workgroups from last to first
  int threads = 0;                     // workgroups at a time; 0: one per core
  u64 instruction_limit = 1ull << 33;  // of one wave: a kernel that never ends is an error
  // Called after every instruction when set (one thread then).
  std::function<void(const Wave&, const Instruction&)> on_instruction = nullptr;
};

struct LaunchResult {
  std::vector<Report> reports;
  OrdersCompared orders = OrdersCompared::no;
  std::string error;                        // not empty: the kernel did not finish
  u64 instructions = 0;                     // executed by all waves
  std::vector<u64> executed;                // by instruction index
  std::unique_ptr<AccessCounter> accesses;  // when counting
  std::vector<std::vector<u32>> trace;      // when tracing: instruction indices, per wave of workgroup 0
  u32 waves_per_group = 0, lds_bytes = 0;
  double seconds = 0;
};

// `arguments` are the explicit kernel arguments as laid out by the metadata; hidden ones are filled in.
LaunchResult run_kernel(const Program& program, const Kernel& kernel, const LaunchShape& shape, const void* arguments,
                        size_t argument_bytes, std::vector<Region> memory, const RunOptions& options);

}  // namespace emu

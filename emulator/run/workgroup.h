// One workgroup at a time: its waves, their order, its barriers.
#pragma once

#include <random>

#include "run/setup.h"

namespace emu {

// What a thread needs to run workgroups one after another; made once per thread and launch.
class WorkgroupRunner {
 public:
  WorkgroupRunner(const Program& program, const Kernel& kernel, const LaunchShape& shape, const RunOptions& options,
                  LaunchLog& log);
  std::vector<Region> scratch_regions() const;
  void use_memory(const DispatchMemory& dispatch, MemoryMap& memory);
  void run(const u32 id[3], u64 seed, std::vector<std::vector<u32>>* trace);

  std::vector<u64> executed;  // by instruction index
  u64 instructions = 0;
  std::unique_ptr<AccessCounter> counter;

 private:
  void run_in_order();
  void run_in_lockstep();
  void run_interleaved(u64 seed);
  // Until the wave stops or `limit` instructions are done.
  void advance(Wave& wave, u64 limit);
  template <bool Checked, bool Watched>
  void advance_as(Wave& wave, u64 limit);
  bool release_barriers();
  bool can_pass(const Wave& wave) const;
  bool finished() const;
  void stuck();

  const Program& program_;
  const LaunchShape& shape_;
  const RunOptions& options_;
  const DispatchMemory* dispatch_ = nullptr;
  Workgroup group_;
  std::vector<std::unique_ptr<Wave>> waves_;
  std::vector<Wave*> wave_pointers_;
  std::vector<std::unique_ptr<WaveChecker>> checkers_;
  std::vector<std::vector<u32>>* trace_ = nullptr;
};

}  // namespace emu

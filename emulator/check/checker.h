// The checkers: what a wave and its workgroup remember so that mistakes the numbers do not show are seen.
#pragma once

#include "core/access.h"
#include "core/report.h"

namespace emu {

// Which checks are on; bits 1 << Check. Off costs nothing.
struct CheckOptions {
  u32 enabled = (1u << static_cast<int>(Check::count)) - 1;
  // Also demand that a wave's LDS reads had returned before a barrier lets others overwrite the bytes. Hand-written
  // pipelines rely on the LDS unit being in order here, so this is off by default.
  bool strict_write_after_read = false;
  bool on(Check check) const { return enabled >> static_cast<int>(check) & 1; }
};

// One per wave: wait counters, registers ever written, hazards.
class WaveChecker {
 public:
  explicit WaveChecker(const CheckOptions& options);
  ~WaveChecker();
  // Before and after the instruction executes. `before` sees register state as the instruction will read it.
  void start(const Wave& wave, u32 initial_sgprs, u32 initial_vgprs);  // how many registers the launch filled in
  void before(Wave& wave, const Instruction& in);
  void after(Wave& wave, const Instruction& in);
  // For LDS: the number of LDS instructions / direct-to-LDS loads issued, and how many have been waited for.
  u32 lds_issued() const;
  u32 lds_done() const;
  u32 vmem_issued() const;
  u32 vmem_done() const;

 private:
  struct State;
  State* state_;
};

// One per workgroup: the last accesses of every LDS byte.
class LdsChecker {
 public:
  LdsChecker(const CheckOptions& options, size_t lds_bytes, int waves);
  ~LdsChecker();
  void access(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind,
              bool from_memory);
  // Wave arrives at a barrier (its waits so far now count for the others).
  void barrier_signalled(const Wave& wave);

 private:
  struct State;
  State* state_;
};

// At the end of a workgroup or when it can make no progress: waves at a barrier the others never reach.
void check_barrier_divergence(const std::vector<std::unique_ptr<Wave>>& waves, const Program& program);

}  // namespace emu

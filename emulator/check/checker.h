// The checkers: what a wave and its workgroup remember so that mistakes the numbers do not show are seen.
#pragma once

#include "core/access.h"
#include "core/report.h"

namespace emu {

struct RegisterUse;

// Which checks are on; bits 1 << Check. Off costs nothing.
struct CheckOptions {
  u32 enabled = (1u << static_cast<int>(Check::count)) - 1;
  // Also demand that a wave's LDS reads had returned before a barrier lets others overwrite the bytes by LDS
  // instructions. Hand-written pipelines rely on the LDS unit being in order here, so this is off by default.
  // Direct-to-LDS loads are not in that order and are always looked at.
  bool strict_write_after_read = false;
  // Waves that meet at one barrier must be at the same instruction. Pipelines whose waves do different work may turn
  // this off: the hardware counts arrivals only.
  bool same_barrier_instruction = true;
  // Also say so when a wave ends having passed fewer barriers than others. Legal (an ended wave holds nobody up), and
  // usual where whole waves leave early.
  bool skipped_barriers = false;
  // Rules on neighbouring vector instructions, one or two wait states apart, which compilers keep and hand-written
  // assembly often does not (check/hazards.cpp).
  bool close_vector_hazards = true;
  bool on(Check check) const { return enabled >> static_cast<int>(check) & 1; }
};

// One per wave: wait counters, registers ever written, hazards.
class WaveChecker {
 public:
  explicit WaveChecker(const CheckOptions& options);
  ~WaveChecker();
  void start(const Wave& wave, u32 initial_sgprs, u32 initial_vgprs);  // how many registers the launch filled in
  // Before and after the instruction executes (wave_state.h). `before` sees register state as the instruction will read
  // it and gives what `after` needs. Where register numbers count on from M0, `in` has those it means.
  const RegisterUse& before(Wave& wave, const Instruction& in);
  void after(Wave& wave, const Instruction& in, const RegisterUse& use);
  // For LDS: the number of LDS instructions / direct-to-LDS loads issued, and how many have been waited for.
  u32 lds_issued() const;
  u32 lds_done() const;
  u32 vmem_issued() const;
  u32 vmem_done() const;
  const CheckOptions& options() const;

 private:
  struct State;
  State* state_;
};

// One per workgroup, gone before its waves are: the last accesses of every LDS byte. Access B of one wave comes after
// access A of another if that one signalled a barrier after A which the first has passed before B; a write must also
// have been waited for before that signal. Other ways to order waves (flags in LDS that are polled) are not understood.
class LdsChecker {
 public:
  LdsChecker(const CheckOptions& options, size_t lds_bytes, int waves, bool loads_to_lds);
  ~LdsChecker();
  // Within the instruction's execution: its own sequence number is one past those issued.
  void access(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind,
              bool from_memory);
  // After a barrier instruction of any kind was executed: if it signalled, the wave's waits so far now count for the
  // others.
  void barrier_signalled(const Wave& wave);

 private:
  struct State;
  State* state_;
};

// At the end of a workgroup or when it can make no progress: waves at a barrier that never completes and, if asked
// for, waves that passed fewer barriers than others.
void check_barrier_divergence(const std::vector<std::unique_ptr<Wave>>& waves, const Program& program);

}  // namespace emu

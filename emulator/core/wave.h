// The state of one wave and of the workgroup it belongs to, as the instructions see it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/instruction.h"
#include "core/target.h"

namespace emu {

struct Program;
struct Kernel;
class MemoryMap;
class WaveChecker;    // check/: waits, uninitialised registers, hazards
class LdsChecker;     // check/: races and uninitialised bytes
class AccessCounter;  // count/: bank conflicts, bytes moved
class LaunchLog;      // check/: where reports go

struct Wave;
struct Workgroup {
  const Program* program = nullptr;
  const Kernel* kernel = nullptr;
  const Target* target = nullptr;
  MemoryMap* memory = nullptr;
  std::vector<u8> lds;
  u32 id[3] = {0, 0, 0};
  int wave_count = 0;
  Wave* const* waves = nullptr;       // wave_count of them
  LdsChecker* lds_checker = nullptr;  // nullptr: not checking
  AccessCounter* counter = nullptr;   // nullptr: not counting
  LaunchLog* log = nullptr;           // never nullptr
};

enum class WaveState : u8 { running, at_barrier, done };

struct Wave {
  alignas(64) u32 vgpr[kVectorRegisters][kLanes];
  u32 sgpr[kScalarRegisters + 4];
  bool scc = false;
  WaveState state = WaveState::running;
  u32 pc = 0;  // index in Program::code of the next instruction
  int lanes = 64;
  int id = 0;  // in the workgroup
  u64 full_mask = ~0ull;
  // MODE register. The usual mode is round to nearest even with denormals; anything else takes slower paths.
  bool flush_f32 = false, flush_f16_f64 = false;
  bool indexing = false;  // gfx9: s_set_gpr_idx_on
  u32 mode = 0;
  u64 executed = 0;  // instructions so far
  u32 barriers_signalled = 0, barriers_passed = 0;

  Workgroup* group = nullptr;
  const Target* target = nullptr;
  WaveChecker* checker = nullptr;  // nullptr: not checking
  std::vector<u8> scratch;         // swizzled: dword k of lane l at (k * lanes + l) * 4
  u32 scratch_bytes_per_lane = 0;

  u64 exec() const { return load64(&sgpr[kExec]); }
  void set_exec(u64 mask) { store64(&sgpr[kExec], mask); }
  u64 vcc() const { return lanes == 32 ? sgpr[kVcc] : load64(&sgpr[kVcc]); }
};

// Of the MODE register; throws ExecutionError for rounding modes that are not modelled.
void set_mode(Wave& wave, u32 mode);

}  // namespace emu

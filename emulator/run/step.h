// Executing one instruction of a wave.
#pragma once

#include "check/wave_state.h"
#include "core/indexing.h"
#include "core/program.h"

namespace emu {

// VOPD: both halves read their sources before either writes.
inline void execute_pair(Wave& wave, const Instruction& in) {
  const u16 reg = in.operand[0].reg;
  Row before, result;
  std::memcpy(before.lane, wave.vgpr[reg], sizeof before);
  in.execute(wave, in);
  std::memcpy(result.lane, wave.vgpr[reg], sizeof result);
  std::memcpy(wave.vgpr[reg], before.lane, sizeof before);
  in.second->execute(wave, *in.second);
  std::memcpy(wave.vgpr[reg], result.lane, sizeof result);
}

// gfx9 register indexing: the registers that M0 names are shifted before the instruction runs.
void execute_indexed(Wave& wave, const Instruction& in);

template <bool Checked>
inline void step(Wave& wave, const Instruction& in) {
  ++wave.pc;
  ++wave.executed;
  if (is_indexed(wave, in)) [[unlikely]]
    return execute_indexed(wave, in);
  const RegisterUse* use = nullptr;
  if constexpr (Checked) use = &wave.checker->before(wave, in);
  if (in.second) [[unlikely]] {
    execute_pair(wave, in);
  } else {
    in.execute(wave, in);
  }
  if constexpr (Checked) wave.checker->after(wave, in, *use);
}

}  // namespace emu

// The parts of the vector integer table.
#pragma once

#include "isa/lanes.h"

namespace emu {

std::span<const Opcode> vector_int32_opcodes();  // results of 32 bits
std::span<const Opcode> vector_bits_opcodes();   // bit fields, bytes, sums of byte differences
std::span<const Opcode> vector_carry_opcodes();  // carries, masks and 64 bits

// Integer clamping is saturation: a handler of its own, chosen once.
template <Handler saturating>
std::string bind_saturation(Instruction& in, const Target&) {
  if (in.clamp) in.execute = saturating;
  return {};
}

}  // namespace emu

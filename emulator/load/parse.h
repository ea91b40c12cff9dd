// One line of disassembly -> Instruction.
#pragma once

#include <string>

#include "core/instruction.h"
#include "core/target.h"

namespace emu {

// `word`, `address` and `size` of `in` are set before. Fills the rest; returns what is not understood, or "".
std::string parse_instruction(const std::string& text, const Target& target, Instruction& in);

}  // namespace emu

// Operands of instructions that are made by hand and not decoded.
#pragma once

#include "core/instruction.h"

namespace emu_test {

inline emu::Operand vgprs(int reg, int width) {
  emu::Operand o;
  o.kind = emu::OperandKind::vgpr;
  o.reg = static_cast<emu::u16>(reg);
  o.width = static_cast<emu::u8>(width);
  return o;
}

}  // namespace emu_test

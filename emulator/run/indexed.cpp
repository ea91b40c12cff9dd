#include "core/errors.h"
#include "run/step.h"

namespace emu {

// CDNA3 ISA "VGPR indexing": M0[15:12] = {DST, SRC2, SRC1, SRC0}, M0[7:0] is added to VGPR numbers of those operands.
void execute_indexed(Wave& wave, const Instruction& in) {
  const u32 index = wave.sgpr[kM0] & 0xff, mode = wave.sgpr[kM0] >> 12 & 0xf;
  Instruction shifted = in;
  for (int i = 0; i < in.operand_count; ++i) {
    Operand& o = shifted.operand[i];
    const bool applies = i < in.dest_count ? mode & 8 : mode >> (i - in.dest_count) & 1;
    if (!applies || !o.is_vgpr()) continue;
    if (o.reg + index + o.width > kFirstAgpr) throw ExecutionError("register index past the last VGPR");
    o.reg = static_cast<u16>(o.reg + index);
    // Which register is written is only known now; what is read may be any element of an array partly filled.
    if (i < in.dest_count && wave.checker) wave.checker->defined(o.reg, o.width);
  }
  shifted.execute(wave, shifted);
}

}  // namespace emu

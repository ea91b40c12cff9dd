#include "core/errors.h"
#include "core/indexing.h"
#include "run/step.h"

namespace emu {

void execute_indexed(Wave& wave, const Instruction& in) {
  const Indexing indexing = Indexing::of_mode(wave, in);
  for (int i = 0; i < in.operand_count; ++i) {
    if ((indexing.operands >> i & 1) && in.operand[i].reg + indexing.index + in.operand[i].width > kFirstAgpr) {
      throw ExecutionError("register index past the last VGPR");
    }
  }
  const Instruction shifted = indexing.apply(in);
  if (!wave.checker) return shifted.execute(wave, shifted);
  const RegisterUse& use = wave.checker->before(wave, shifted);
  shifted.execute(wave, shifted);
  wave.checker->after(wave, shifted, use);
}

}  // namespace emu

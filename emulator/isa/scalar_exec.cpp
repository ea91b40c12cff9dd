// SOP1 instructions that change EXEC: S_*_SAVEEXEC gives the old mask, S_*_WREXEC the new one; SCC says whether any
// lane is left.
#include "isa/scalar_op.h"

namespace emu {
namespace {

template <class T>
constexpr auto exec_and = [](T a, T exec) -> T { return a & exec; };
template <class T>
constexpr auto exec_or = [](T a, T exec) -> T { return a | exec; };
template <class T>
constexpr auto exec_xor = [](T a, T exec) -> T { return a ^ exec; };
template <class T>
constexpr auto exec_nand = [](T a, T exec) -> T { return ~(a & exec); };
template <class T>
constexpr auto exec_nor = [](T a, T exec) -> T { return ~(a | exec); };
template <class T>
constexpr auto exec_xnor = [](T a, T exec) -> T { return ~(a ^ exec); };
template <class T>
constexpr auto exec_only = [](T a, T exec) -> T { return ~a & exec; };
template <class T>
constexpr auto source_only = [](T a, T exec) -> T { return a & ~exec; };
template <class T>
constexpr auto not_source_or_exec = [](T a, T exec) -> T { return ~a | exec; };
template <class T>
constexpr auto source_or_not_exec = [](T a, T exec) -> T { return a | ~exec; };

enum class Gives { old_mask, new_mask };

template <class T, auto F, Gives gives>
void change_exec(Wave& w, const Instruction& in) {
  const T old = static_cast<T>(w.exec());
  const T changed = F(read_scalar<T>(w, in.source(0)), old);
  if constexpr (sizeof(T) == 4) {
    w.sgpr[kExec] = changed;
  } else {
    w.set_exec(changed);
  }
  write_scalar(w, in, WithScc<T>{gives == Gives::old_mask ? old : changed, changed != 0});
}

#define EMU_EXEC(name, function, gives)                                                                      \
  Opcode{name "_b32", change_exec<u32, function<u32>, gives>, Class::scalar, "u=u", 0, kWritesScc}, Opcode { \
    name "_b64", change_exec<u64, function<u64>, gives>, Class::scalar, "q=q", 0, kWritesScc                 \
  }

}  // namespace

std::span<const Opcode> scalar_exec_opcodes() {
  using enum Gives;
  static const Opcode rows[] = {
      EMU_EXEC("s_and_saveexec", exec_and, old_mask),
      EMU_EXEC("s_or_saveexec", exec_or, old_mask),
      EMU_EXEC("s_xor_saveexec", exec_xor, old_mask),
      EMU_EXEC("s_nand_saveexec", exec_nand, old_mask),
      EMU_EXEC("s_nor_saveexec", exec_nor, old_mask),
      EMU_EXEC("s_xnor_saveexec", exec_xnor, old_mask),
      // The same four instructions as gfx9 and as gfx11 spell them.
      EMU_EXEC("s_andn1_saveexec", exec_only, old_mask),
      EMU_EXEC("s_and_not0_saveexec", exec_only, old_mask),
      EMU_EXEC("s_andn2_saveexec", source_only, old_mask),
      EMU_EXEC("s_and_not1_saveexec", source_only, old_mask),
      EMU_EXEC("s_orn1_saveexec", not_source_or_exec, old_mask),
      EMU_EXEC("s_or_not0_saveexec", not_source_or_exec, old_mask),
      EMU_EXEC("s_orn2_saveexec", source_or_not_exec, old_mask),
      EMU_EXEC("s_or_not1_saveexec", source_or_not_exec, old_mask),
      EMU_EXEC("s_andn1_wrexec", exec_only, new_mask),
      EMU_EXEC("s_and_not0_wrexec", exec_only, new_mask),
      EMU_EXEC("s_andn2_wrexec", source_only, new_mask),
      EMU_EXEC("s_and_not1_wrexec", source_only, new_mask),
  };
  return rows;
}

}  // namespace emu

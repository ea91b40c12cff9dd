// Registers that hold nothing yet. A register counts as a whole: written in one lane or one half, it is written.
#include "check/wave_state.h"

namespace emu {

void WaveChecker::State::start_registers(const Wave& wave, u32 initial_sgprs, u32 initial_vgprs) {
  auto define = [this](int first, int count) {
    for (int r = first; r < first + count; ++r) words[r / 64].undefined &= ~(1ull << r % 64);
  };
  for (RegisterState& word : words) word = RegisterState{0, 0, ~0ull, 0};
  if (!options.on(Check::uninitialised)) {
    for (RegisterState& word : words) word.undefined = 0;
    return;
  }
  define(0, static_cast<int>(initial_vgprs));
  // Before architected scratch, clang adds the wave's scratch offset to the descriptor even in kernels that do not ask
  // for it and never use the sum; it would be the next register.
  const u32 unasked = wave.target->architected_flat_scratch ? 0 : 1;
  define(kScalarBase, static_cast<int>(initial_sgprs + unasked));
  // EXEC, M0, the apertures and flat scratch are the launch's; trap temporaries hold the ids on gfx12.
  define(kScalarBase + kTtmp0, kScalarRegisters - kTtmp0);
  if (wave.lanes == 32) define(kScalarBase + kVcc + 1, 1);  // a plain register nobody masks with
}

void WaveChecker::State::examine_undefined(Wave& wave, const Instruction& in, const RegisterUse& use) {
  const RegisterRange* reads = use.read_range();
  const RegisterRange* writes = use.write_range();
  auto report = [&](const RegisterRange& range) {
    for (int r = range.first; r < range.first + range.count; ++r) {
      if (!undefined(r)) continue;
      wave.group->log->add(
          Check::uninitialised, wave, in,
          std::string(r < kScalarBase ? "VGPR " : "SGPR ") + register_name(r) + " read before it was ever written");
      words[r / 64].undefined &= ~(1ull << r % 64);
    }
  };
  auto leave_undefined = [&](int reg) {
    new_undefined[reg / 64] |= 1ull << reg % 64;
    leaves_undefined = true;
  };
  auto any_defined = [&](const RegisterRange& range) {
    for (int r = range.first; r < range.first + range.count; ++r) {
      if (!undefined(r)) return true;
    }
    return false;
  };
  switch (use.undefined) {
    case Undefined::reported:
      for (int i = 0; i < use.read_ranges; ++i) report(reads[i]);
      break;
    case Undefined::ignored:
      for (int i = 0; i < use.read_ranges; ++i) {
        if (i < use.data_range || i >= use.data_range + use.data_ranges) report(reads[i]);
      }
      break;
    case Undefined::copied:
      for (int i = 0; i < use.write_ranges && i < use.read_ranges; ++i) {
        for (int d = 0; d < writes[i].count && d < reads[i].count; ++d) {
          if (undefined(reads[i].first + d)) leave_undefined(writes[i].first + d);
        }
      }
      break;
    case Undefined::selected: {
      // The last source of a vector select is its mask or selector, which must be known.
      int data = use.read_ranges;
      if (!in.second && in.cls == Class::vector && data > 1 && reads[data - 1].first >= kScalarBase) {
        report(reads[--data]);
      }
      bool defined = false;
      for (int i = 0; i < data; ++i) defined |= any_defined(reads[i]);
      if (defined) break;
      for (int i = 0; i < use.write_ranges; ++i) {
        for (int d = 0; d < writes[i].count; ++d) leave_undefined(writes[i].first + d);
      }
      break;
    }
    case Undefined::packed:
    case Undefined::packed_move: {
      const bool move = use.undefined == Undefined::packed_move;
      for (int half = 0; half < 2 && in.dest_count; ++half) {
        for (int i = 0; i < in.operand_count - in.dest_count; ++i) {
          const Operand& o = in.source(i);
          if (!o.is_vgpr() || o.width < 2 || (move && i != half)) continue;
          const u8 select = move || half == 0 ? in.op_sel : in.op_sel_hi;
          if (undefined(o.reg + (select >> i & 1))) leave_undefined(in.operand[0].reg + half);
        }
      }
      break;
    }
    case Undefined::high_follows:
      for (int i = 0; i < use.read_ranges; ++i) {
        const bool pair = reads[i].count == 2;
        report(pair ? RegisterRange{reads[i].first, 1} : reads[i]);
        if (pair && undefined(reads[i].first + 1) && writes[0].count == 2) leave_undefined(writes[0].first + 1);
      }
      break;
  }
}

}  // namespace emu

#include "isa/lanes.h"

#include <string>

#include "core/errors.h"

namespace emu {
namespace {

// Lane that DPP16 reads from, or -1 if there is none (CDNA3 ISA "DPP", RDNA3 ISA "DPP16").
int dpp16_source(u32 control, int lane, int lanes) {
  const int row = lane & ~15, in_row = lane & 15, amount = static_cast<int>(control & 15);
  if (control < 0x100) return (lane & ~3) | (control >> (2 * (lane & 3)) & 3);
  if (control < 0x110) return in_row + amount < 16 ? lane + amount : -1;
  if (control < 0x120) return in_row >= amount ? lane - amount : -1;
  if (control < 0x130) return row + ((in_row - amount) & 15);
  switch (control) {
    case 0x130:
      return lane + 1 < lanes ? lane + 1 : -1;
    case 0x134:
      return (lane + 1) % lanes;
    case 0x138:
      return lane - 1;
    case 0x13c:
      return (lane + lanes - 1) % lanes;
    case 0x140:
      return row + 15 - in_row;
    case 0x141:
      return (lane & ~7) + 7 - (lane & 7);
    case 0x142:
      return row - 1;
    case 0x143:
      return lane >= 32 ? 31 : -1;
    default:
      break;
  }
  if (control >= 0x150 && control < 0x160) return row + amount;
  if (control >= 0x160 && control < 0x170) return lane ^ amount;
  throw ExecutionError("DPP control " + std::to_string(control) + " is not known");
}

// Reads `from` through DPP into `to`; returns the lanes that may be written.
u64 through_dpp(const Wave& w, const Instruction& in, const u32* from, u32* to) {
  const u64 exec = w.exec();
  u64 written = 0;
  Row source;
  std::memcpy(source.lane, from, sizeof source);
  for (int lane = 0; lane < w.lanes; ++lane) {
    int other;
    bool enabled = true;
    if (in.dpp == DppKind::dpp8) {
      other = (lane & ~7) | static_cast<int>(in.dpp8_select >> (3 * (lane & 7)) & 7);
    } else {
      other = dpp16_source(in.dpp_control, lane, w.lanes);
      enabled = (in.row_mask >> (lane >> 4) & 1) && (in.bank_mask >> (lane >> 2 & 3) & 1);
    }
    const bool valid = other >= 0 && (in.fetch_inactive || (exec >> other & 1));
    to[lane] = valid ? source.lane[other] : 0;
    // Without bound_ctrl a lane with nothing to read keeps its old result. DPP8 reads 0 from inactive lanes.
    if (enabled && (valid || in.bound_ctrl || in.dpp == DppKind::dpp8)) written |= 1ull << lane;
  }
  return written;
}

void select_sdwa(const Wave& w, const Operand& o, const u32* from, u32* to) {
  const int shift = o.sdwa_select < 4 ? 8 * o.sdwa_select : 16 * (o.sdwa_select - 4);
  const bool byte = o.sdwa_select < 4;
  const bool sign = o.sign_extend;
  for_lanes(w, [&](int l) {
    const u32 x = from[l] >> shift;
    if (byte) {
      to[l] = sign ? static_cast<u32>(static_cast<i32>(static_cast<i8>(x))) : x & 0xff;
    } else {
      to[l] = sign ? static_cast<u32>(static_cast<i32>(static_cast<i16>(x))) : x & 0xffff;
    }
  });
}

const u32* apply_sign(const Wave& w, const Operand& o, const u32* x, Row& space, u32 sign_bit) {
  if (!o.negate && !o.absolute) return x;
  const u32 keep = o.absolute ? ~sign_bit : ~0u, flip = o.negate ? sign_bit : 0;
  for_lanes(w, [&](int l) { space.lane[l] = (x[l] & keep) ^ flip; });
  return space.lane;
}

// DPP, SDWA and true16 halves: what 16- and 32-bit sources share.
const u32* selected_row(Wave& w, const Instruction& in, int i, Row& space, u64& mask) {
  const Operand& o = in.source(i);
  const u32* x = plain_row(w, o, space);
  if (in.dpp != DppKind::none && i == 0) {
    Row moved;
    mask &= through_dpp(w, in, x, moved.lane);
    std::memcpy(space.lane, moved.lane, sizeof space);
    x = space.lane;
  }
  if (o.sdwa_select != 6) {
    select_sdwa(w, o, x, space.lane);
    x = space.lane;
  }
  if (o.half == Half::high) {
    for_lanes(w, [&](int l) { space.lane[l] = x[l] >> 16; });
    x = space.lane;
  } else if (o.half == Half::low) {
    for_lanes(w, [&](int l) { space.lane[l] = x[l] & 0xffff; });
    x = space.lane;
  }
  return x;
}

float clamped(float x) { return x > 1.0f ? 1.0f : x > 0.0f ? x : 0.0f; }  // NaN becomes 0 (DX10_CLAMP is set)

u32 flushed_f32(u32 bits) { return (bits & 0x7f800000) ? bits : bits & 0x80000000; }

float omod_factor(u8 omod) { return omod == 1 ? 2.0f : omod == 2 ? 4.0f : 0.5f; }

}  // namespace

const u32* modified_source32(Wave& w, const Instruction& in, int i, Row& space, u64& mask) {
  const u32* x = selected_row(w, in, i, space, mask);
  return apply_sign(w, in.source(i), x, space, 0x80000000u);
}

const u32* source16(Wave& w, const Instruction& in, int i, Row& space, u64& mask) {
  const Operand& o = in.source(i);
  const u32* x = selected_row(w, in, i, space, mask);
  if (o.half == Half::whole && o.sdwa_select == 6) {
    const int shift = (in.op_sel >> i & 1) && !o.is_constant() ? 16 : 0;
    for_lanes(w, [&](int l) { space.lane[l] = x[l] >> shift & 0xffff; });
    x = space.lane;
  }
  return apply_sign(w, o, x, space, 0x8000u);
}

const u32* flush_row(const Wave& w, const u32* values, Row& space) {
  for_lanes(w, [&](int l) { space.lane[l] = flushed_f32(values[l]); });
  return space.lane;
}

Source64::Source64(Wave& w, const Instruction& in, int i, u64& mask) {
  const Operand& o = in.source(i);
  negate = o.negate;
  absolute = o.absolute;
  low = plain_row(w, o, low_space);
  high = plain_row(w, o, high_space, 1);
  if (in.dpp != DppKind::none && i == 0) {
    Row moved;
    mask &= through_dpp(w, in, low, moved.lane);
    std::memcpy(low_space.lane, moved.lane, sizeof moved);
    through_dpp(w, in, high, moved.lane);
    std::memcpy(high_space.lane, moved.lane, sizeof moved);
    low = low_space.lane;
    high = high_space.lane;
  }
}

void write_row(Wave& w, u16 reg, const u32* values, u64 mask) {
  u32* to = w.vgpr[reg];
  if (mask == w.full_mask) {
    std::memcpy(to, values, 128);  // of a size the compiler knows
    if (w.lanes == 64) std::memcpy(to + 32, values + 32, 128);
    return;
  }
  for (int base = 0; base < w.lanes; base += 32) {
    const u32 bits = static_cast<u32>(mask >> base);
    for (int l = 0; l < 32; ++l) to[base + l] = (bits >> l & 1) ? values[base + l] : to[base + l];
  }
}

void write32(Wave& w, const Instruction& in, Row& values, u64 mask) {
  const u16 reg = in.operand[0].reg;
  if (in.operand[0].is_sgpr()) {  // gfx12 v_s_* write a scalar
    set_scalar32(w, in.operand[0], values.lane[0]);
    return;
  }
  if (in.sdwa_dest_select != 6) {
    const bool byte = in.sdwa_dest_select < 4;
    const int shift = byte ? 8 * in.sdwa_dest_select : 16 * (in.sdwa_dest_select - 4);
    const u32 field = (byte ? 0xffu : 0xffffu) << shift;
    const u32* old = w.vgpr[reg];
    const u32 top = byte ? 0x80u : 0x8000u;
    for_lanes(w, [&](int l) {
      const u32 placed = values.lane[l] << shift & field;
      u32 rest = 0;
      if (in.sdwa_dest_unused == 2) rest = old[l] & ~field;
      if (in.sdwa_dest_unused == 1 && (values.lane[l] & top)) rest = ~(field | ((1u << shift) - 1));
      values.lane[l] = placed | rest;
    });
  }
  write_row(w, reg, values.lane, mask);
}

void write_f32(Wave& w, const Instruction& in, Row& values, u64 mask) {
  if (w.flush_f32) [[unlikely]] {
    for_lanes(w, [&](int l) { values.lane[l] = flushed_f32(values.lane[l]); });
  }
  if (in.omod) {
    const float factor = omod_factor(in.omod);
    for_lanes(w, [&](int l) { values.lane[l] = bits_of(as_f32(values.lane[l]) * factor); });
  }
  if (in.clamp) {
    for_lanes(w, [&](int l) { values.lane[l] = bits_of(clamped(as_f32(values.lane[l]))); });
  }
  write32(w, in, values, mask);
}

void write16(Wave& w, const Instruction& in, Row& values, u64 mask) {
  const Operand& o = in.operand[0];
  if (in.sdwa_dest_select != 6) return write32(w, in, values, mask);
  const u32* old = w.vgpr[o.reg];
  const bool high = o.half == Half::high || (o.half == Half::whole && (in.op_sel & 8));
  if (high) {
    for_lanes(w, [&](int l) { values.lane[l] = (old[l] & 0xffff) | values.lane[l] << 16; });
  } else if (o.half == Half::low || w.target->keeps_high_half) {
    for_lanes(w, [&](int l) { values.lane[l] = (old[l] & 0xffff0000) | (values.lane[l] & 0xffff); });
  } else {
    for_lanes(w, [&](int l) { values.lane[l] &= 0xffff; });
  }
  write_row(w, o.reg, values.lane, mask);
}

void write_f16(Wave& w, const Instruction& in, Row& values, u64 mask) {
  if (in.omod) {
    const float factor = omod_factor(in.omod);
    for_lanes(w, [&](int l) { values.lane[l] = f16_of_f32(f32_of_f16(values.lane[l]) * factor); });
  }
  if (in.clamp) {
    for_lanes(w, [&](int l) { values.lane[l] = f16_of_f32(clamped(f32_of_f16(values.lane[l]))); });
  }
  write16(w, in, values, mask);
}

void write64(Wave& w, const Instruction& in, const u64* values, u64 mask) {
  Row low, high;
  for_lanes(w, [&](int l) {
    low.lane[l] = static_cast<u32>(values[l]);
    high.lane[l] = static_cast<u32>(values[l] >> 32);
  });
  write_row(w, in.operand[0].reg, low.lane, mask);
  write_row(w, in.operand[0].reg + 1, high.lane, mask);
}

void write_f64(Wave& w, const Instruction& in, u64* values, u64 mask) {
  if (in.omod) {
    const double factor = omod_factor(in.omod);
    for_lanes(w, [&](int l) { values[l] = bits_of(as_f64(values[l]) * factor); });
  }
  if (in.clamp) {
    for_lanes(w, [&](int l) {
      const double x = as_f64(values[l]);
      values[l] = bits_of(x > 1.0 ? 1.0 : x > 0.0 ? x : 0.0);
    });
  }
  write64(w, in, values, mask);
}

}  // namespace emu

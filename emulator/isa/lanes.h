// Operands as rows of lanes: how every vector instruction reads its sources and writes its results.
#pragma once

#include "core/opcode.h"
#include "core/wave.h"

namespace emu {

// Calls f(lane) for every lane of the wave, in blocks the compiler turns into vector code.
// Inlined always: through a call the captured pointers might alias, and nothing would vectorise. Not unrolled: clang
// unrolls 32 steps before it vectorises, and then cannot.
template <class F>
[[gnu::always_inline]] inline void for_lanes(const Wave& w, F f) {
  const int lanes = w.lanes;
#if defined(__clang__)
  __builtin_assume(lanes == 32 || lanes == 64);
#pragma clang loop unroll(disable)
#endif
  for (int base = 0; base < lanes; base += 32) {
#if defined(__clang__)
#pragma clang loop unroll(disable)
#endif
    for (int l = 0; l < 32; ++l) f(base + l);
  }
}

// for_lanes for loops that write one row and read others, at the same lane each: the rows may be the same one.
template <class F>
[[gnu::always_inline]] inline void for_rows(const Wave& w, F f) {
  const int lanes = w.lanes;
#if defined(__clang__)
  __builtin_assume(lanes == 32 || lanes == 64);
#pragma clang loop unroll(disable)
#endif
  for (int base = 0; base < lanes; base += 32) {
#if defined(__clang__)
#pragma clang loop unroll(disable) vectorize(assume_safety)
#endif
    for (int l = 0; l < 32; ++l) f(base + l);
  }
}

// --- scalars -------------------------------------------------------------------------------------------------------
inline u32 special_scalar(const Wave& w, u16 reg) {
  return reg == kSrcScc ? w.scc : reg == kSrcVccz ? w.vcc() == 0 : w.exec() == 0;
}
inline u32 scalar32(const Wave& w, const Operand& o, int dword = 0) {
  if (o.kind == OperandKind::sgpr) {
    return o.reg >= kScalarRegisters ? special_scalar(w, o.reg) : w.sgpr[o.reg + dword];
  }
  if (o.kind == OperandKind::vgpr) return w.vgpr[o.reg + dword][0];
  return static_cast<u32>(o.constant >> (32 * dword));
}
inline u64 scalar64(const Wave& w, const Operand& o) {
  if (o.kind == OperandKind::constant) return o.constant;
  if (o.reg >= kScalarRegisters) return special_scalar(w, o.reg);
  return o.reg == kNull ? 0 : load64(&w.sgpr[o.reg]);
}
inline void set_scalar32(Wave& w, const Operand& o, u32 value) {
  if (o.reg != kNull) w.sgpr[o.reg] = value;
}
inline void set_scalar64(Wave& w, const Operand& o, u64 value) {
  if (o.reg != kNull) store64(&w.sgpr[o.reg], value);
}
// A mask with a bit per lane: 32 or 64 bits by wave size.
inline u64 lane_mask(const Wave& w, const Operand& o) { return w.lanes == 32 ? scalar32(w, o) : scalar64(w, o); }
inline void set_lane_mask(Wave& w, const Operand& o, u64 mask) {
  if (w.lanes == 32) {
    set_scalar32(w, o, static_cast<u32>(mask));
  } else {
    set_scalar64(w, o, mask);
  }
}

// --- sources -------------------------------------------------------------------------------------------------------
// One dword of an operand in every lane, no modifiers: the register itself, a constant's row, or `space` filled.
inline const u32* plain_row(const Wave& w, const Operand& o, Row& space, int dword = 0) {
  if (o.kind == OperandKind::vgpr) return w.vgpr[o.reg + dword];
  if (o.broadcast && dword == 0) return o.broadcast->lane;
  const u32 value = scalar32(w, o, dword);
  for (u32& lane : space.lane) lane = value;
  return space.lane;
}
// Source i of a 32-bit instruction with DPP, SDWA, true16 halves and sign modifiers applied. `mask` loses the lanes
// that DPP says must not be written. The row returned may be the register itself: read it before writing results.
const u32* modified_source32(Wave& w, const Instruction& in, int i, Row& space, u64& mask);
inline const u32* source32(Wave& w, const Instruction& in, int i, Row& space, u64& mask) {
  const Operand& o = in.source(i);
  if (o.plain) [[likely]]
    return o.is_vgpr() ? w.vgpr[o.reg] : o.broadcast->lane;
  return modified_source32(w, in, i, space, mask);
}
// The same for 16-bit sources: the value in bits 15:0, zeros above.
const u32* source16(Wave& w, const Instruction& in, int i, Row& space, u64& mask);
// As source32, flushing f32 denormals if the wave's mode says so.
const u32* flush_row(const Wave& w, const u32* values, Row& space);
inline const u32* source_f32(Wave& w, const Instruction& in, int i, Row& space, u64& mask) {
  const u32* values = source32(w, in, i, space, mask);
  return w.flush_f32 ? flush_row(w, values, space) : values;
}
struct Source64 {
  Row low_space, high_space;
  const u32 *low, *high;
  bool negate = false, absolute = false;  // f64 sign modifiers
  Source64(Wave& w, const Instruction& in, int i, u64& mask);
  u64 operator[](int lane) const {
    u64 value = low[lane] | static_cast<u64>(high[lane]) << 32;
    if (absolute) value &= ~(1ull << 63);
    if (negate) value ^= 1ull << 63;
    return value;
  }
};

// --- results -------------------------------------------------------------------------------------------------------
void write_row(Wave& w, u16 reg, const u32* values, u64 mask);
// Where results go at once: to the register, if all lanes are written and as they are, else to `space`.
inline u32* result32(Wave& w, const Instruction& in, Row& space, u64 mask) {
  return in.operand[0].plain && mask == w.full_mask ? w.vgpr[in.operand[0].reg] : space.lane;
}
inline u32* result_f32(Wave& w, const Instruction& in, Row& space, u64 mask) {
  return w.flush_f32 ? space.lane : result32(w, in, space, mask);
}
// Through SDWA destination selection.
void write32(Wave& w, const Instruction& in, Row& values, u64 mask);
// Through output modifier, clamp and denormal mode, then as write32.
void write_f32(Wave& w, const Instruction& in, Row& values, u64 mask);
// 16-bit results: into the half that op_sel, the register (v1.h) or SDWA names; what becomes of the other half
// depends on the target.
void write16(Wave& w, const Instruction& in, Row& values, u64 mask);
void write_f16(Wave& w, const Instruction& in, Row& values, u64 mask);  // with omod and clamp
void write64(Wave& w, const Instruction& in, const u64* values, u64 mask);
void write_f64(Wave& w, const Instruction& in, u64* values, u64 mask);  // with omod and clamp

// --- the common shapes of instruction --------------------------------------------------------------------------------
// Each takes a function of plain values; lambdas without captures are template arguments, so every opcode gets a loop
// of its own.
template <auto F>
void int1(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  u32* to = result32(w, in, r, mask);
  for_rows(w, [&](int l) { to[l] = F(x[l]); });
  if (to == r.lane) write32(w, in, r, mask);
}
template <auto F>
void int2(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  u32* to = result32(w, in, r, mask);
  for_rows(w, [&](int l) { to[l] = F(x[l], y[l]); });
  if (to == r.lane) write32(w, in, r, mask);
}
template <auto F>
void int3(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* z = source32(w, in, 2, c, mask);
  u32* to = result32(w, in, r, mask);
  for_rows(w, [&](int l) { to[l] = F(x[l], y[l], z[l]); });
  if (to == r.lane) write32(w, in, r, mask);
}
template <auto F>
void float1(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  u32* to = result_f32(w, in, r, mask);
  for_rows(w, [&](int l) { to[l] = bits_of(F(as_f32(x[l]))); });
  if (to == r.lane) write_f32(w, in, r, mask);
}
template <auto F>
void float2(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  u32* to = result_f32(w, in, r, mask);
  for_rows(w, [&](int l) { to[l] = bits_of(F(as_f32(x[l]), as_f32(y[l]))); });
  if (to == r.lane) write_f32(w, in, r, mask);
}
template <auto F>
void float3(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  const u32* z = source_f32(w, in, 2, c, mask);
  u32* to = result_f32(w, in, r, mask);
  for_rows(w, [&](int l) { to[l] = bits_of(F(as_f32(x[l]), as_f32(y[l]), as_f32(z[l]))); });
  if (to == r.lane) write_f32(w, in, r, mask);
}
// 16-bit: F works on the 16 bits (integers) or on the value widened to f32 (floats; F's result is rounded once).
template <auto F>
void word2(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(x[l], y[l]) & 0xffff; });
  write16(w, in, r, mask);
}
template <auto F>
void half1(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(F(f32_of_f16(x[l]))); });
  write_f16(w, in, r, mask);
}
template <auto F>
void half2(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(F(f32_of_f16(x[l]), f32_of_f16(y[l]))); });
  write_f16(w, in, r, mask);
}

}  // namespace emu

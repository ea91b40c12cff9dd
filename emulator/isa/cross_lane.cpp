// Vector instructions that move values between lanes, or between lanes and scalars.
#include <algorithm>
#include <bit>
#include <vector>

#include "isa/masks.h"

namespace emu {
namespace {

constexpr u32 kRdna = 1u << static_cast<int>(Family::gfx11) | 1u << static_cast<int>(Family::gfx12);

u32 lane_number(const Wave& w, const Operand& o) { return scalar32(w, o) & static_cast<u32>(w.lanes - 1); }

void readlane(Wave& w, const Instruction& in) {
  const Operand& from = in.source(0);
  const u32 lane = lane_number(w, in.source(1));
  set_scalar32(w, in.operand[0], from.is_vgpr() ? w.vgpr[from.reg][lane] : scalar32(w, from));
}
void readfirstlane(Wave& w, const Instruction& in) {
  const Operand& from = in.source(0);
  const u64 exec = w.exec() & w.full_mask;
  const int lane = exec ? std::countr_zero(exec) : 0;
  set_scalar32(w, in.operand[0], from.is_vgpr() ? w.vgpr[from.reg][lane] : scalar32(w, from));
}
void writelane(Wave& w, const Instruction& in) {
  w.vgpr[in.operand[0].reg][lane_number(w, in.source(1))] = scalar32(w, in.source(0));
}

// --- counting the lanes below
// ------------------------------------------------------------------------------------------
// Adds how many bits of the source stand for lanes below this one: the source is the low or the high half of a mask.
template <int first_lane>
void mbcnt(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  for_lanes(w, [&](int l) {
    const int below = l - first_lane;
    const u32 bits = below >= 32 ? ~0u : below > 0 ? (1u << (below & 31)) - 1 : 0;
    r.lane[l] = count_ones(x[l] & bits) + y[l];
  });
  write32(w, in, r, mask);
}

// --- permutations
// ------------------------------------------------------------------------------------------------------ Lane l takes
// the source of lane from(l). A lane that is off is read only with fetch_inactive; else 0 is read, or nothing written,
// by bound_ctrl (RDNA3 ISA, V_PERMLANE16_B32).
template <class From>
void permute(Wave& w, const Instruction& in, bool fetch_inactive, bool bound_ctrl, From from) {
  const u64 exec = w.exec() & w.full_mask;
  Row source;
  const u32* x = plain_row(w, in.source(0), source);
  Row result;
  u64 mask = 0;
  for (int l = 0; l < w.lanes; ++l) {
    const int other = from(l);
    const bool readable = fetch_inactive || (exec >> other & 1);
    result.lane[l] = readable ? x[other] : 0;
    if (readable || bound_ctrl) mask |= 1ull << l;
  }
  write_row(w, in.operand[0].reg, result.lane, mask & exec);
}

// Within rows of 16 lanes, or from the neighbouring row. The selectors are 4 bits for each lane of a row.
template <int other_row>
void permlane16(Wave& w, const Instruction& in) {
  const u64 selectors = scalar32(w, in.source(1)) | static_cast<u64>(scalar32(w, in.source(2))) << 32;
  permute(w, in, in.op_sel & 1, in.op_sel & 2,
          [&](int l) { return ((l & ~15) ^ other_row) | static_cast<int>(selectors >> (4 * (l & 15)) & 15); });
}
template <int other_row>
void permlane16_var(Wave& w, const Instruction& in) {
  Row space;
  const u32* selector = plain_row(w, in.source(1), space);
  permute(w, in, in.op_sel & 1, in.op_sel & 2,
          [&](int l) { return ((l & ~15) ^ other_row) | static_cast<int>(selector[l] & 15); });
}
// Swaps the halves of a wave64; in wave32 it does nothing.
void permlane64(Wave& w, const Instruction& in) {
  if (w.lanes == 64) permute(w, in, true, false, [](int l) { return l ^ 32; });
}

// --- swaps
// -------------------------------------------------------------------------------------------------------------
void swap_b32(Wave& w, const Instruction& in) {
  u32 *a = w.vgpr[in.operand[0].reg], *b = w.vgpr[in.operand[1].reg];
  for_lanes_and_bits(w, w.exec(), [&](int l, u32 active) {
    const u32 old_a = a[l], old_b = b[l];
    a[l] = active ? old_b : old_a;
    b[l] = active ? old_a : old_b;
  });
}
void swap_b16(Wave& w, const Instruction& in) {
  const u64 exec = w.exec();
  const Operand &oa = in.operand[0], &ob = in.operand[1];
  u32 *a = w.vgpr[oa.reg], *b = w.vgpr[ob.reg];
  const int shift_a = oa.half == Half::high ? 16 : 0, shift_b = ob.half == Half::high ? 16 : 0;
  for (int l = 0; l < w.lanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const u32 value_a = a[l] >> shift_a & 0xffff, value_b = b[l] >> shift_b & 0xffff;
    a[l] = (a[l] & ~(0xffffu << shift_a)) | value_b << shift_a;
    b[l] = (b[l] & ~(0xffffu << shift_b)) | value_a << shift_b;
  }
}
// gfx950: the upper `distance` lanes of every 2 * distance of the first register against the lower ones of the second.
// CDNA4 ISA, V_PERMLANE16_SWAP_B32.
template <int distance>
void permlane_swap(Wave& w, const Instruction& in) {
  const u64 exec = w.exec() & w.full_mask;
  u32 *first = w.vgpr[in.operand[0].reg], *second = w.vgpr[in.operand[1].reg];
  if (exec == w.full_mask) {
    for (int l = 0; l < w.lanes; l += 2 * distance)
      std::swap_ranges(second + l, second + l + distance, first + l + distance);
    return;
  }
  auto receive = [&](u32& to, int lane, u32 value, int other) {
    const bool readable = in.fetch_inactive || (exec >> other & 1);
    if ((exec >> lane & 1) && (readable || in.bound_ctrl)) to = readable ? value : 0;
  };
  for (int l = 0; l < w.lanes; ++l) {
    if (l & distance) continue;
    const int upper = l + distance;
    const u32 from_first = first[upper], from_second = second[l];
    receive(first[upper], upper, from_second, l);
    receive(second[l], l, from_first, upper);
  }
}

}  // namespace

std::span<const Opcode> cross_lane_opcodes() {
  constexpr u32 swaps = kReadsDest | kWritesSource0;
  static const std::vector<Opcode> rows = {
      {"v_readlane_b32", readlane, Class::vector, "u=uu", 0, kIgnoresExec},
      {"v_readfirstlane_b32", readfirstlane, Class::vector, "u=u", 0, kIgnoresExec},
      {"v_writelane_b32", writelane, Class::vector, "u=uu", 0, kIgnoresExec},
      {"v_mbcnt_lo_u32_b32", mbcnt<0>, Class::vector, "u=uu", kTakesDpp},
      {"v_mbcnt_hi_u32_b32", mbcnt<32>, Class::vector, "u=uu", kTakesDpp},
      {"v_permlane16_b32", permlane16<0>, Class::vector, "u=uuu", kTakesOpSel, 0, 4, nullptr, kRdna},
      {"v_permlanex16_b32", permlane16<16>, Class::vector, "u=uuu", kTakesOpSel, 0, 4, nullptr, kRdna},
      {"v_permlane16_var_b32", permlane16_var<0>, Class::vector, "u=uu", kTakesOpSel, 0, 4, nullptr, kRdna},
      {"v_permlanex16_var_b32", permlane16_var<16>, Class::vector, "u=uu", kTakesOpSel, 0, 4, nullptr, kRdna},
      {"v_permlane64_b32", permlane64, Class::vector, "u=u", 0, 0, 4, nullptr, kRdna},
      {"v_swap_b32", swap_b32, Class::vector, "u=u", 0, swaps},
      {"v_swap_b16", swap_b16, Class::vector, "w=w", 0, swaps},
      {"v_permlane16_swap_b32", permlane_swap<16>, Class::vector, "u=u", kTakesDpp, swaps},
      {"v_permlane32_swap_b32", permlane_swap<32>, Class::vector, "u=u", kTakesDpp, swaps},
  };
  return rows;
}

}  // namespace emu

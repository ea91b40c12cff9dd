// Vector integer arithmetic and logic with 32-bit results. "CDNA3 ISA" and "RDNA4 ISA", vector ALU instructions.
#include "isa/vector_int_op.h"

#include <algorithm>
#include <vector>

#include "isa/rates.h"

namespace emu {
namespace {

void move(Wave& w, const Instruction& in) {
  Row space;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, space, mask);
  if (in.sdwa_dest_select == 6) return write_row(w, in.operand[0].reg, x, mask);
  if (x != space.lane) std::copy(x, x + kLanes, space.lane);
  write32(w, in, space, mask);
}
void nothing(Wave&, const Instruction&) {}

// --- functions
// ---------------------------------------------------------------------------------------------------------
constexpr i32 sign(u32 a) { return static_cast<i32>(a); }
constexpr i32 sign24(u32 a) { return sign(a << 8) >> 8; }
constexpr u32 low24(u32 a) { return a & 0xffffff; }

constexpr auto add = [](u32 a, u32 b) { return a + b; };
constexpr auto sub = [](u32 a, u32 b) { return a - b; };
constexpr auto subrev = [](u32 a, u32 b) { return b - a; };
constexpr auto add_saturating = [](u32 a, u32 b) { return a + b < a ? ~0u : a + b; };
constexpr auto sub_saturating = [](u32 a, u32 b) { return a < b ? 0 : a - b; };
constexpr auto subrev_saturating = [](u32 a, u32 b) { return b < a ? 0 : b - a; };
// On overflow the sum has the wrong sign; the right one says which end was passed.
constexpr u32 signed_limit(u32 sum) { return static_cast<u32>(sign(sum) >> 31) ^ 0x80000000; }
constexpr auto add_signed_saturating = [](u32 a, u32 b) {
  const u32 sum = a + b;
  return sign((a ^ sum) & (b ^ sum)) < 0 ? signed_limit(sum) : sum;
};
constexpr auto sub_signed_saturating = [](u32 a, u32 b) {
  const u32 difference = a - b;
  return sign((a ^ b) & (a ^ difference)) < 0 ? signed_limit(difference) : difference;
};

constexpr auto mul_lo = [](u32 a, u32 b) { return a * b; };
constexpr auto mul_hi_u32 = [](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); };
constexpr auto mul_hi_i32 = [](u32 a, u32 b) { return static_cast<u32>(i64{sign(a)} * sign(b) >> 32); };
constexpr auto mul_u24 = [](u32 a, u32 b) { return low24(a) * low24(b); };
constexpr auto mul_i24 = [](u32 a, u32 b) { return static_cast<u32>(sign24(a)) * static_cast<u32>(sign24(b)); };
constexpr auto mul_hi_u24 = [](u32 a, u32 b) { return static_cast<u32>(u64{low24(a)} * low24(b) >> 32); };
constexpr auto mul_hi_i24 = [](u32 a, u32 b) { return static_cast<u32>(i64{sign24(a)} * sign24(b) >> 32); };
constexpr auto mad_u24 = [](u32 a, u32 b, u32 c) { return mul_u24(a, b) + c; };
constexpr auto mad_i24 = [](u32 a, u32 b, u32 c) { return mul_i24(a, b) + c; };

template <class T>
constexpr auto min2 = [](u32 a, u32 b) { return static_cast<T>(a) < static_cast<T>(b) ? a : b; };
template <class T>
constexpr auto max2 = [](u32 a, u32 b) { return static_cast<T>(a) < static_cast<T>(b) ? b : a; };
template <class T>
constexpr auto min3 = [](u32 a, u32 b, u32 c) { return min2<T>(min2<T>(a, b), c); };
template <class T>
constexpr auto max3 = [](u32 a, u32 b, u32 c) { return max2<T>(max2<T>(a, b), c); };
template <class T>
constexpr auto med3 = [](u32 a, u32 b, u32 c) { return max2<T>(min2<T>(a, b), min2<T>(max2<T>(a, b), c)); };
template <class T>
constexpr auto minmax = [](u32 a, u32 b, u32 c) { return max2<T>(min2<T>(a, b), c); };
template <class T>
constexpr auto maxmin = [](u32 a, u32 b, u32 c) { return min2<T>(max2<T>(a, b), c); };

constexpr auto lshlrev = [](u32 n, u32 a) { return a << (n & 31); };
constexpr auto lshrrev = [](u32 n, u32 a) { return a >> (n & 31); };
constexpr auto ashrrev = [](u32 n, u32 a) { return static_cast<u32>(sign(a) >> (n & 31)); };

std::string bind_multiply(Instruction& in, const Target& target) {
  in.cycles = cycles_of_int_multiply(target);
  return {};
}

Opcode row1(const char* name, Handler handler, u32 modifiers = kVopInt) {
  return {name, handler, Class::vector, "u=u", modifiers};
}
Opcode row2(const char* name, Handler handler, u32 modifiers = kVopInt) {
  return {name, handler, Class::vector, "u=uu", modifiers};
}
Opcode row3(const char* name, Handler handler, u32 modifiers = kVopInt) {
  return {name, handler, Class::vector, "u=uuu", modifiers};
}
template <auto plain, auto saturating>
Opcode sum(const char* name) {
  return {name, int2<plain>, Class::vector, "u=uu", kVopInt | kTakesClamp, 0, 4, bind_saturation<int2<saturating>>};
}
Opcode product(const char* name, Handler handler) {
  return {name, handler, Class::vector, "u=uu", kVopInt, 0, 16, bind_multiply};
}

}  // namespace

std::span<const Opcode> vector_int32_opcodes() {
  static const std::vector<Opcode> rows = {
      {"v_nop", nothing, Class::vector, "="},
      {"v_clrexcp", nothing, Class::vector, "="},
      {"v_pipeflush", nothing, Class::vector, "="},
      row1("v_mov_b32", move),
      row1("v_accvgpr_read_b32", move, 0),
      row1("v_accvgpr_write_b32", move, 0),
      row1("v_accvgpr_mov_b32", move, 0),
      row1("v_accvgpr_read", move, 0),
      row1("v_accvgpr_write", move, 0),
      row1("v_accvgpr_mov", move, 0),
      // The step of a 32-bit linear feedback shift register (gfx950).
      row1("v_prng_b32", int1<[](u32 a) { return a << 1 ^ (a >> 31 ? 197 : 0); }>),

      // Without carry: gfx9 and later spellings.
      sum<add, add_saturating>("v_add_u32"),
      sum<add, add_saturating>("v_add_nc_u32"),
      sum<sub, sub_saturating>("v_sub_u32"),
      sum<sub, sub_saturating>("v_sub_nc_u32"),
      sum<subrev, subrev_saturating>("v_subrev_u32"),
      sum<subrev, subrev_saturating>("v_subrev_nc_u32"),
      sum<add, add_signed_saturating>("v_add_i32"),
      sum<add, add_signed_saturating>("v_add_nc_i32"),
      sum<sub, sub_signed_saturating>("v_sub_i32"),
      sum<sub, sub_signed_saturating>("v_sub_nc_i32"),
      row3("v_add3_u32", int3<[](u32 a, u32 b, u32 c) { return a + b + c; }>),
      row3("v_lshl_add_u32", int3<[](u32 a, u32 n, u32 c) { return (a << (n & 31)) + c; }>),
      row3("v_add_lshl_u32", int3<[](u32 a, u32 b, u32 n) { return (a + b) << (n & 31); }>),
      row3("v_xad_u32", int3<[](u32 a, u32 b, u32 c) { return (a ^ b) + c; }>),

      product("v_mul_lo_u32", int2<mul_lo>),
      product("v_mul_hi_u32", int2<mul_hi_u32>),
      product("v_mul_hi_i32", int2<mul_hi_i32>),
      row2("v_mul_u32_u24", int2<mul_u24>),
      row2("v_mul_i32_i24", int2<mul_i24>),
      row2("v_mul_hi_u32_u24", int2<mul_hi_u24>),
      row2("v_mul_hi_i32_i24", int2<mul_hi_i24>),
      row3("v_mad_u32_u24", int3<mad_u24>),
      row3("v_mad_i32_i24", int3<mad_i24>),

      row2("v_min_u32", int2<min2<u32>>),
      row2("v_min_i32", int2<min2<i32>>),
      row2("v_max_u32", int2<max2<u32>>),
      row2("v_max_i32", int2<max2<i32>>),
      row3("v_min3_u32", int3<min3<u32>>),
      row3("v_min3_i32", int3<min3<i32>>),
      row3("v_max3_u32", int3<max3<u32>>),
      row3("v_max3_i32", int3<max3<i32>>),
      row3("v_med3_u32", int3<med3<u32>>),
      row3("v_med3_i32", int3<med3<i32>>),
      row3("v_minmax_u32", int3<minmax<u32>>),
      row3("v_minmax_i32", int3<minmax<i32>>),
      row3("v_maxmin_u32", int3<maxmin<u32>>),
      row3("v_maxmin_i32", int3<maxmin<i32>>),

      row1("v_not_b32", int1<[](u32 a) { return ~a; }>),
      row2("v_and_b32", int2<[](u32 a, u32 b) { return a & b; }>),
      row2("v_or_b32", int2<[](u32 a, u32 b) { return a | b; }>),
      row2("v_xor_b32", int2<[](u32 a, u32 b) { return a ^ b; }>),
      row2("v_xnor_b32", int2<[](u32 a, u32 b) { return ~(a ^ b); }>),
      row2("v_lshlrev_b32", int2<lshlrev>),
      row2("v_lshrrev_b32", int2<lshrrev>),
      row2("v_ashrrev_i32", int2<ashrrev>),
      row3("v_and_or_b32", int3<[](u32 a, u32 b, u32 c) { return (a & b) | c; }>),
      row3("v_or3_b32", int3<[](u32 a, u32 b, u32 c) { return a | b | c; }>),
      row3("v_xor3_b32", int3<[](u32 a, u32 b, u32 c) { return a ^ b ^ c; }>),
      row3("v_lshl_or_b32", int3<[](u32 a, u32 n, u32 c) { return (a << (n & 31)) | c; }>),
  };
  return rows;
}

std::span<const Opcode> vector_int_opcodes() {
  static const std::vector<Opcode> rows = [] {
    std::vector<Opcode> all;
    for (std::span<const Opcode> part : {vector_int32_opcodes(), vector_bits_opcodes(), vector_carry_opcodes()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return rows;
}

}  // namespace emu

// SOP1, SOP2, SOPC and SOPK: integers and bits. What becomes of SCC is as in the "Scalar ALU instructions" chapters of
// the CDNA3 and RDNA4 ISA guides.
#include <algorithm>
#include <vector>

#include "isa/scalar_op.h"

namespace emu {
namespace {

// Most bit instructions set SCC when their result is not zero.
template <class T>
WithScc<T> nonzero(T value) {
  return {value, value != 0};
}
template <class T>
constexpr u32 kBits = 8 * sizeof(T);

template <class T>
constexpr auto move = [](T a) { return a; };
template <class T>
constexpr auto move_if_scc = [](Old<T> old, SccIn scc, T a) { return scc.value ? a : old.value; };
template <class T>
constexpr auto select = [](SccIn scc, T a, T b) { return scc.value ? a : b; };

template <class T>
constexpr auto bit_not = [](T a) { return nonzero<T>(~a); };
template <class T>
constexpr auto bit_and = [](T a, T b) { return nonzero<T>(a & b); };
template <class T>
constexpr auto bit_or = [](T a, T b) { return nonzero<T>(a | b); };
template <class T>
constexpr auto bit_xor = [](T a, T b) { return nonzero<T>(a ^ b); };
template <class T>
constexpr auto and_not = [](T a, T b) { return nonzero<T>(a & ~b); };
template <class T>
constexpr auto or_not = [](T a, T b) { return nonzero<T>(a | ~b); };
template <class T>
constexpr auto bit_nand = [](T a, T b) { return nonzero<T>(~(a & b)); };
template <class T>
constexpr auto bit_nor = [](T a, T b) { return nonzero<T>(~(a | b)); };
template <class T>
constexpr auto bit_xnor = [](T a, T b) { return nonzero<T>(~(a ^ b)); };

template <class T>
constexpr auto shift_left = [](T a, u32 n) { return nonzero<T>(a << (n % kBits<T>)); };
template <class T>
constexpr auto shift_right = [](T a, u32 n) { return nonzero<T>(a >> (n % kBits<T>)); };

// A field's offset and width are both in the second source: bits 5:0 (4:0) and 22:16.
template <class T>
constexpr auto extract = [](T a, u32 field) {
  const u32 width = field >> 16 & 127;
  a >>= field % kBits<T>;
  return nonzero<T>(width >= kBits<T> ? a : a & ((T{1} << width) - 1));
};
template <class T>
constexpr auto extract_signed = [](T a, u32 field) {
  const u32 width = std::min(field >> 16 & 127, kBits<T>);
  a >>= field % kBits<T>;
  if (width == 0) return nonzero<T>(0);
  const u32 above = kBits<T> - width;
  return nonzero<T>(static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << above) >> above);
};
template <class T>
constexpr auto field_mask =
    [](u32 width, u32 offset) { return ((T{1} << (width % kBits<T>)) - 1) << (offset % kBits<T>); };

template <class T>
constexpr auto count_ones = [](T a) { return nonzero<u32>(static_cast<u32>(std::popcount(a))); };
template <class T>
constexpr auto count_zeros = [](T a) { return nonzero<u32>(static_cast<u32>(std::popcount(static_cast<T>(~a)))); };
// "Not found" is -1.
template <class T>
u32 lowest_one(T a) {
  return a ? static_cast<u32>(std::countr_zero(a)) : ~0u;
}
template <class T>
constexpr auto find_one = [](T a) { return lowest_one(a); };
template <class T>
constexpr auto find_zero = [](T a) { return lowest_one(static_cast<T>(~a)); };
template <class T>
constexpr auto leading_zeros = [](T a) { return a ? static_cast<u32>(std::countl_zero(a)) : ~0u; };
template <class T>
constexpr auto leading_signs = [](T a) {
  const T flipped = a ^ static_cast<T>(static_cast<std::make_signed_t<T>>(a) >> (kBits<T> - 1));
  return flipped ? static_cast<u32>(std::countl_zero(flipped)) : ~0u;
};
template <class T>
constexpr auto reverse = [](T a) {
  T result = 0;
  for (u32 i = 0; i < kBits<T>; ++i) result |= (a >> i & 1) << (kBits<T> - 1 - i);
  return result;
};

template <class T>
T quad_bits(T a) {  // bit 4*i set if any bit of quad i is
  a |= a >> 1;
  a |= a >> 2;
  return a & static_cast<T>(0x1111111111111111ull);
}
template <class T>
constexpr auto whole_quads = [](T a) { return nonzero<T>(quad_bits(a) * 15); };
template <class T>
constexpr auto quad_mask = [](T a) {
  const T quads = quad_bits(a);
  T result = 0;
  for (u32 i = 0; i < kBits<T> / 4; ++i) result |= (quads >> (4 * i) & 1) << i;
  return nonzero<T>(result);
};
constexpr auto replicate = [](u32 a) {
  u64 result = 0;
  for (u32 i = 0; i < 32; ++i) result |= (a >> i & 1) * (u64{3} << (2 * i));
  return result;
};
template <class T>
constexpr auto clear_bit = [](Old<T> old, u32 bit) { return old.value & ~(T{1} << (bit % kBits<T>)); };
template <class T>
constexpr auto set_bit = [](Old<T> old, u32 bit) { return old.value | T{1} << (bit % kBits<T>); };
template <class T>
constexpr auto test_bit = [](T a, u32 bit) { return (a >> (bit % kBits<T>)&1) != 0; };
template <class T>
constexpr auto test_no_bit = [](T a, u32 bit) { return (a >> (bit % kBits<T>)&1) == 0; };

constexpr auto absolute = [](i32 a) { return nonzero<u32>(a < 0 ? 0u - static_cast<u32>(a) : static_cast<u32>(a)); };
constexpr auto absolute_difference = [](u32 a, u32 b) {
  const u32 difference = a - b;
  return nonzero<u32>(static_cast<i32>(difference) < 0 ? 0u - difference : difference);
};

WithScc<u32> sum(u32 a, u32 b, bool carry) {
  const u64 total = u64{a} + b + carry;
  return {static_cast<u32>(total), (total >> 32) != 0};
}
WithScc<u32> difference(u32 a, u32 b, bool borrow) { return {a - b - borrow, u64{b} + borrow > a}; }
WithScc<u32> signed_sum(u32 a, u32 b) {
  const u32 total = a + b;
  return {total, ((a ^ total) & (b ^ total)) >> 31 != 0};
}
WithScc<u32> signed_difference(u32 a, u32 b) {
  const u32 total = a - b;
  return {total, ((a ^ b) & (a ^ total)) >> 31 != 0};
}
constexpr auto add_unsigned = [](u32 a, u32 b) { return sum(a, b, false); };
constexpr auto add_carry = [](SccIn scc, u32 a, u32 b) { return sum(a, b, scc.value); };
constexpr auto add_signed = [](u32 a, u32 b) { return signed_sum(a, b); };
constexpr auto sub_unsigned = [](u32 a, u32 b) { return difference(a, b, false); };
constexpr auto sub_borrow = [](SccIn scc, u32 a, u32 b) { return difference(a, b, scc.value); };
constexpr auto sub_signed = [](u32 a, u32 b) { return signed_difference(a, b); };
constexpr auto add_constant = [](Old<u32> old, Simm16 k) { return signed_sum(old.value, static_cast<u32>(k.value)); };

template <u32 N>
constexpr auto shift_add = [](u32 a, u32 b) {
  const u64 total = (u64{a} << N) + b;
  return WithScc<u32>{static_cast<u32>(total), (total >> 32) != 0};
};
// SCC: the first source was taken.
template <class T>
constexpr auto minimum = [](T a, T b) { return WithScc<T>{std::min(a, b), a < b}; };
template <class T>
constexpr auto maximum = [](T a, T b) { return WithScc<T>{std::max(a, b), a >= b}; };

constexpr u32 low(u32 a) { return a & 0xffff; }
constexpr u32 high(u32 a) { return a >> 16; }

// The unsigned compares zero-extend the constant.
constexpr u32 unsigned_constant(Simm16 k) { return low(static_cast<u32>(k.value)); }

Opcode row(const char* name, Handler handler, const char* signature, u32 flags = 0) {
  return {name, handler, Class::scalar, signature, 0, flags};
}

#define EMU_COMPARE(name, op)                                                                              \
  row("s_cmp_" name "_i32", scalar<[](i32 a, i32 b) { return a op b; }>, "=uu", kWritesScc),               \
      row("s_cmp_" name "_u32", scalar<[](u32 a, u32 b) { return a op b; }>, "=uu", kWritesScc),           \
      row("s_cmpk_" name "_i32", scalar<[](i32 a, Simm16 k) { return a op k.value; }>, "=uu", kWritesScc), \
      row("s_cmpk_" name "_u32", scalar<[](u32 a, Simm16 k) { return a op unsigned_constant(k); }>, "=uu", kWritesScc)
#define EMU_BOTH(name, function, flags) \
  row(name "_b32", scalar<function<u32>>, "u=uu", flags), row(name "_b64", scalar<function<u64>>, "q=qq", flags)

}  // namespace

std::span<const Opcode> scalar_int_opcodes() {
  static const std::vector<Opcode> rows = {
      row("s_mov_b32", scalar<move<u32>>, "u=u"),
      row("s_mov_b64", scalar<move<u64>>, "q=q"),
      row("s_movk_i32", scalar<[](Simm16 k) { return k.value; }>, "u=u"),
      row("s_cmov_b32", scalar<move_if_scc<u32>>, "u=u", kReadsDest | kReadsScc),
      row("s_cmov_b64", scalar<move_if_scc<u64>>, "q=q", kReadsDest | kReadsScc),
      row("s_cmovk_i32", scalar<[](Old<i32> old, SccIn scc, Simm16 k) { return scc.value ? k.value : old.value; }>,
          "u=u", kReadsDest | kReadsScc),
      EMU_BOTH("s_cselect", select, kReadsScc),

      row("s_not_b32", scalar<bit_not<u32>>, "u=u", kWritesScc),
      row("s_not_b64", scalar<bit_not<u64>>, "q=q", kWritesScc),
      EMU_BOTH("s_and", bit_and, kWritesScc),
      EMU_BOTH("s_or", bit_or, kWritesScc),
      EMU_BOTH("s_xor", bit_xor, kWritesScc),
      EMU_BOTH("s_nand", bit_nand, kWritesScc),
      EMU_BOTH("s_nor", bit_nor, kWritesScc),
      EMU_BOTH("s_xnor", bit_xnor, kWritesScc),
      EMU_BOTH("s_andn2", and_not, kWritesScc),
      EMU_BOTH("s_and_not1", and_not, kWritesScc),
      EMU_BOTH("s_orn2", or_not, kWritesScc),
      EMU_BOTH("s_or_not1", or_not, kWritesScc),
      row("s_lshl_b32", scalar<shift_left<u32>>, "u=uu", kWritesScc),
      row("s_lshl_b64", scalar<shift_left<u64>>, "q=qu", kWritesScc),
      row("s_lshr_b32", scalar<shift_right<u32>>, "u=uu", kWritesScc),
      row("s_lshr_b64", scalar<shift_right<u64>>, "q=qu", kWritesScc),
      row("s_ashr_i32", scalar<shift_right<i32>>, "u=uu", kWritesScc),
      row("s_ashr_i64", scalar<shift_right<i64>>, "q=qu", kWritesScc),

      row("s_bfe_u32", scalar<extract<u32>>, "u=uu", kWritesScc),
      row("s_bfe_u64", scalar<extract<u64>>, "q=qu", kWritesScc),
      row("s_bfe_i32", scalar<extract_signed<i32>>, "u=uu", kWritesScc),
      row("s_bfe_i64", scalar<extract_signed<i64>>, "q=qu", kWritesScc),
      row("s_bfm_b32", scalar<field_mask<u32>>, "u=uu"),
      row("s_bfm_b64", scalar<field_mask<u64>>, "q=uu"),
      row("s_bitset0_b32", scalar<clear_bit<u32>>, "u=u", kReadsDest),
      row("s_bitset0_b64", scalar<clear_bit<u64>>, "q=u", kReadsDest),
      row("s_bitset1_b32", scalar<set_bit<u32>>, "u=u", kReadsDest),
      row("s_bitset1_b64", scalar<set_bit<u64>>, "q=u", kReadsDest),
      row("s_bitcmp0_b32", scalar<test_no_bit<u32>>, "=uu", kWritesScc),
      row("s_bitcmp0_b64", scalar<test_no_bit<u64>>, "=qu", kWritesScc),
      row("s_bitcmp1_b32", scalar<test_bit<u32>>, "=uu", kWritesScc),
      row("s_bitcmp1_b64", scalar<test_bit<u64>>, "=qu", kWritesScc),
      row("s_bitreplicate_b64_b32", scalar<replicate>, "q=u"),
      row("s_brev_b32", scalar<reverse<u32>>, "u=u"),
      row("s_brev_b64", scalar<reverse<u64>>, "q=q"),
      row("s_wqm_b32", scalar<whole_quads<u32>>, "u=u", kWritesScc),
      row("s_wqm_b64", scalar<whole_quads<u64>>, "q=q", kWritesScc),
      row("s_quadmask_b32", scalar<quad_mask<u32>>, "u=u", kWritesScc),
      row("s_quadmask_b64", scalar<quad_mask<u64>>, "q=q", kWritesScc),
      row("s_sext_i32_i8", scalar<[](u32 a) { return static_cast<i32>(static_cast<i8>(a)); }>, "u=u"),
      row("s_sext_i32_i16", scalar<[](u32 a) { return static_cast<i32>(static_cast<i16>(a)); }>, "u=u"),
      row("s_pack_ll_b32_b16", scalar<[](u32 a, u32 b) { return low(a) | low(b) << 16; }>, "u=uu"),
      row("s_pack_lh_b32_b16", scalar<[](u32 a, u32 b) { return low(a) | high(b) << 16; }>, "u=uu"),
      row("s_pack_hl_b32_b16", scalar<[](u32 a, u32 b) { return high(a) | low(b) << 16; }>, "u=uu"),
      row("s_pack_hh_b32_b16", scalar<[](u32 a, u32 b) { return high(a) | high(b) << 16; }>, "u=uu"),

      row("s_bcnt0_i32_b32", scalar<count_zeros<u32>>, "u=u", kWritesScc),
      row("s_bcnt0_i32_b64", scalar<count_zeros<u64>>, "u=q", kWritesScc),
      row("s_bcnt1_i32_b32", scalar<count_ones<u32>>, "u=u", kWritesScc),
      row("s_bcnt1_i32_b64", scalar<count_ones<u64>>, "u=q", kWritesScc),
      row("s_ff0_i32_b32", scalar<find_zero<u32>>, "u=u"),
      row("s_ff0_i32_b64", scalar<find_zero<u64>>, "u=q"),
      row("s_ff1_i32_b32", scalar<find_one<u32>>, "u=u"),
      row("s_ff1_i32_b64", scalar<find_one<u64>>, "u=q"),
      row("s_ctz_i32_b32", scalar<find_one<u32>>, "u=u"),
      row("s_ctz_i32_b64", scalar<find_one<u64>>, "u=q"),
      row("s_flbit_i32_b32", scalar<leading_zeros<u32>>, "u=u"),
      row("s_flbit_i32_b64", scalar<leading_zeros<u64>>, "u=q"),
      row("s_clz_i32_u32", scalar<leading_zeros<u32>>, "u=u"),
      row("s_clz_i32_u64", scalar<leading_zeros<u64>>, "u=q"),
      row("s_flbit_i32", scalar<leading_signs<u32>>, "u=u"),
      row("s_flbit_i32_i64", scalar<leading_signs<u64>>, "u=q"),
      row("s_cls_i32", scalar<leading_signs<u32>>, "u=u"),
      row("s_cls_i32_i64", scalar<leading_signs<u64>>, "u=q"),

      row("s_add_u32", scalar<add_unsigned>, "u=uu", kWritesScc),
      row("s_add_co_u32", scalar<add_unsigned>, "u=uu", kWritesScc),
      row("s_add_i32", scalar<add_signed>, "u=uu", kWritesScc),
      row("s_add_co_i32", scalar<add_signed>, "u=uu", kWritesScc),
      row("s_addc_u32", scalar<add_carry>, "u=uu", kWritesScc | kReadsScc),
      row("s_add_co_ci_u32", scalar<add_carry>, "u=uu", kWritesScc | kReadsScc),
      row("s_sub_u32", scalar<sub_unsigned>, "u=uu", kWritesScc),
      row("s_sub_co_u32", scalar<sub_unsigned>, "u=uu", kWritesScc),
      row("s_sub_i32", scalar<sub_signed>, "u=uu", kWritesScc),
      row("s_sub_co_i32", scalar<sub_signed>, "u=uu", kWritesScc),
      row("s_subb_u32", scalar<sub_borrow>, "u=uu", kWritesScc | kReadsScc),
      row("s_sub_co_ci_u32", scalar<sub_borrow>, "u=uu", kWritesScc | kReadsScc),
      row("s_addk_i32", scalar<add_constant>, "u=u", kWritesScc | kReadsDest),
      row("s_addk_co_i32", scalar<add_constant>, "u=u", kWritesScc | kReadsDest),
      row("s_add_nc_u64", scalar<[](u64 a, u64 b) { return a + b; }>, "q=qq"),
      row("s_sub_nc_u64", scalar<[](u64 a, u64 b) { return a - b; }>, "q=qq"),
      row("s_abs_i32", scalar<absolute>, "u=u", kWritesScc),
      row("s_absdiff_i32", scalar<absolute_difference>, "u=uu", kWritesScc),
      row("s_min_i32", scalar<minimum<i32>>, "u=uu", kWritesScc),
      row("s_min_u32", scalar<minimum<u32>>, "u=uu", kWritesScc),
      row("s_max_i32", scalar<maximum<i32>>, "u=uu", kWritesScc),
      row("s_max_u32", scalar<maximum<u32>>, "u=uu", kWritesScc),
      row("s_lshl1_add_u32", scalar<shift_add<1>>, "u=uu", kWritesScc),
      row("s_lshl2_add_u32", scalar<shift_add<2>>, "u=uu", kWritesScc),
      row("s_lshl3_add_u32", scalar<shift_add<3>>, "u=uu", kWritesScc),
      row("s_lshl4_add_u32", scalar<shift_add<4>>, "u=uu", kWritesScc),
      row("s_mul_i32", scalar<[](u32 a, u32 b) { return a * b; }>, "u=uu"),
      row("s_mulk_i32", scalar<[](Old<u32> old, Simm16 k) { return old.value * static_cast<u32>(k.value); }>, "u=u",
          kReadsDest),
      row("s_mul_hi_u32", scalar<[](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); }>, "u=uu"),
      row("s_mul_hi_i32", scalar<[](i32 a, i32 b) { return static_cast<i32>(i64{a} * b >> 32); }>, "u=uu"),
      row("s_mul_u64", scalar<[](u64 a, u64 b) { return a * b; }>, "q=qq"),

      EMU_COMPARE("eq", ==),
      EMU_COMPARE("lg", !=),
      EMU_COMPARE("gt", >),
      EMU_COMPARE("ge", >=),
      EMU_COMPARE("lt", <),
      EMU_COMPARE("le", <=),
      row("s_cmp_eq_u64", scalar<[](u64 a, u64 b) { return a == b; }>, "=qq", kWritesScc),
      row("s_cmp_lg_u64", scalar<[](u64 a, u64 b) { return a != b; }>, "=qq", kWritesScc),
  };
  return rows;
}

std::span<const Opcode> scalar_opcodes() {
  static const std::vector<Opcode> rows = [] {
    std::vector<Opcode> all;
    for (std::span<const Opcode> part : {scalar_int_opcodes(), scalar_exec_opcodes(), scalar_float_opcodes()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return rows;
}

}  // namespace emu

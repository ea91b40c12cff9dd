// 16-bit arithmetic, f16 and integer, of one value per lane. Semantics: "AMD Instinct MI300 ISA", "RDNA3 ISA" and
// "RDNA4 ISA" reference guides, VOP1, VOP2 and VOP3 sections.
#include "isa/transcendental.h"

namespace emu {
namespace {

// What an instruction does to the half of its destination that it does not write: most clear it on gfx9.
enum class Other : bool { by_target, kept };

// --- f16 -----------------------------------------------------------------------------------------------------------
// F takes f32 and gives an f32 that rounding to f16 makes the exact result: f16 sums, products, quotients and roots
// have no double rounding in f32 (24 >= 2 * 11 + 2 bits).
template <auto F, Other O = Other::by_target>
void f16_1(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(F(f32_of_f16(x[l]))); });
  finish_f16(w, in, r, mask, O == Other::kept);
}
template <auto F, Other O = Other::by_target>
void f16_2(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(F(f32_of_f16(x[l]), f32_of_f16(y[l]))); });
  finish_f16(w, in, r, mask, O == Other::kept);
}
template <auto F, Other O = Other::by_target>
void f16_3(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  const u32* z = source_f16(w, in, 2, c, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(F(f32_of_f16(x[l]), f32_of_f16(y[l]), f32_of_f16(z[l]))); });
  finish_f16(w, in, r, mask, O == Other::kept);
}
template <auto F>
void f16_accumulate(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  const u32* z = old_half(w, in, c);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(F(f32_of_f16(x[l]), f32_of_f16(y[l]), f32_of_f16(z[l]))); });
  finish_f16(w, in, r, mask, false);
}
template <Choice C, bool Ieee>
void choose2_as(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = choose<F16Bits, C, Ieee>(x[l], y[l]); });
  finish_f16(w, in, r, mask, false);
}
template <Choice C>
void choose2(Wave& w, const Instruction& in) {
  ieee_mode(w) ? choose2_as<C, true>(w, in) : choose2_as<C, false>(w, in);
}
template <Choice First, Choice Second, bool Ieee>
void choose3_as(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  const u32* z = source_f16(w, in, 2, c, mask);
  for_lanes(w,
            [&](int l) { r.lane[l] = choose<F16Bits, Second, Ieee>(choose<F16Bits, First, Ieee>(x[l], y[l]), z[l]); });
  finish_f16(w, in, r, mask, true);
}
template <Choice First, Choice Second>
void choose3(Wave& w, const Instruction& in) {
  ieee_mode(w) ? choose3_as<First, Second, true>(w, in) : choose3_as<First, Second, false>(w, in);
}
void median3(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  const u32* z = source_f16(w, in, 2, c, mask);
  for_lanes(w, [&](int l) { r.lane[l] = median_number<F16Bits>(x[l], y[l], z[l]); });
  finish_f16(w, in, r, mask, true);
}

constexpr auto add = [](float a, float b) { return a + b; };
constexpr auto subtract = [](float a, float b) { return a - b; };
constexpr auto subtract_reversed = [](float a, float b) { return b - a; };
constexpr auto multiply = [](float a, float b) { return a * b; };
constexpr auto fused = [](float a, float b, float c) { return fma_f16_to_odd(a, b, c); };
// V_MAD_F16 and V_MAC_F16 round the product too.
constexpr auto mad = [](float a, float b, float c) { return f32_of_f16(f16_of_f32(a * b)) + c; };
constexpr auto round_even = [](float a) { return __builtin_rintf(a); };
constexpr auto round_down = [](float a) { return __builtin_floorf(a); };
constexpr auto round_up = [](float a) { return __builtin_ceilf(a); };
constexpr auto round_to_zero = [](float a) { return __builtin_truncf(a); };
// Never 1, as V_FRACT_F32: the largest f16 below it.
constexpr auto fraction = [](float a) {
  const float r = a - __builtin_floorf(a);
  return r > 0x1.ffcp-1f ? 0x1.ffcp-1f : r;
};
constexpr auto frexp_mantissa = [](float a) {
  const u32 bits = bits_of(a);  // every f16 but 0 is a normal f32
  const bool special = a == 0 || (bits & 0x7f800000) == 0x7f800000;
  return special ? a : as_f32((bits & 0x807fffff) | 126u << 23);
};
// V_DIV_FIXUP_F16: the quotient a of c / b, put right at the edges.
constexpr auto fixup = [](float a, float b, float c) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const u32 sign = (bits_of(b) ^ bits_of(c)) & 0x80000000;
  const float size_b = __builtin_fabsf(b), size_c = __builtin_fabsf(c);
  float r = as_f32((bits_of(a) & 0x7fffffff) | sign);
  r = size_b == infinity || c == 0 ? as_f32(sign) : r;
  r = b == 0 || size_c == infinity ? as_f32(0x7f800000 | sign) : r;
  r = (b == 0 && c == 0) || (size_b == infinity && size_c == infinity) ? as_f32(0xffc00000) : r;
  r = b != b ? b : r;
  return c != c ? c : r;
};

void ldexp_f16(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* n = source16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) {
    const i32 wanted = static_cast<i16>(n[l]);
    const i32 power = wanted < -60 ? -60 : (wanted > 60 ? 60 : wanted);
    r.lane[l] = f16_of_f32(f32_of_f16(x[l]) * as_f32(static_cast<u32>(power + 127) << 23));
  });
  finish_f16(w, in, r, mask, false);
}
void frexp_exponent(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) {
    const u32 exponent = bits_of(f32_of_f16(x[l])) >> 23 & 0xff;
    r.lane[l] = (exponent == 0 || exponent == 0xff ? 0 : exponent - 126) & 0xffff;
  });
  write16(w, in, r, mask);
}
// gfx12 V_S_*_F16: of a scalar, into a scalar whose high half becomes 0.
template <auto F>
void scalar_f16(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const float factor = in.omod == 1 ? 2.f : (in.omod == 2 ? 4.f : (in.omod == 3 ? 0.5f : 1.f));
  float value = f32_of_f16(f16_of_f32(F(f32_of_f16(x[0])))) * factor;
  if (in.clamp) value = value > 1.f ? 1.f : (value > 0.f ? value : 0.f);
  r.lane[0] = f16_of_f32(value);
  if (w.flush_f16_f64) r.lane[0] = flush_f16_bits(r.lane[0]);
  write32(w, in, r, mask);
}

void pack_f16(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = x[l] | y[l] << 16; });
  write32(w, in, r, mask);
}

// --- integers ------------------------------------------------------------------------------------------------------
constexpr i32 sign_extended(u32 x) { return static_cast<i16>(x); }
constexpr u32 saturated_unsigned(i32 x) { return static_cast<u32>(x < 0 ? 0 : (x > 0xffff ? 0xffff : x)); }
constexpr u32 saturated_signed(i32 x) {
  return static_cast<u32>(x < -0x8000 ? -0x8000 : (x > 0x7fff ? 0x7fff : x)) & 0xffff;
}

void put(Wave& w, const Instruction& in, Row& r, u64 mask, Other other) {
  if (other == Other::kept) return write16_keeping(w, in, r, mask);
  write16(w, in, r, mask);
}
template <auto F>
void word1(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(x[l]) & 0xffff; });
  write16(w, in, r, mask);
}
template <auto F>
void word3(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  const u32* z = source16(w, in, 2, c, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(x[l], y[l], z[l]) & 0xffff; });
  write16_keeping(w, in, r, mask);
}
// Arithmetic in 32 bits that clamp saturates. Signed: the sources are extended by their sign.
template <auto F, bool Signed, Other O>
void arithmetic2(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) {
    const i32 result = Signed ? F(sign_extended(x[l]), sign_extended(y[l]))
                              : F(static_cast<i32>(x[l] & 0xffff), static_cast<i32>(y[l] & 0xffff));
    r.lane[l] =
        in.clamp ? (Signed ? saturated_signed(result) : saturated_unsigned(result)) : static_cast<u32>(result) & 0xffff;
  });
  put(w, in, r, mask, O);
}
template <bool Signed, Other O>
void multiply_add(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  const u32* z = source16(w, in, 2, c, mask);
  for_lanes(w, [&](int l) {
    if constexpr (Signed) {
      const i32 result = sign_extended(x[l]) * sign_extended(y[l]) + sign_extended(z[l]);
      r.lane[l] = in.clamp ? saturated_signed(result) : static_cast<u32>(result) & 0xffff;
    } else {
      const u32 result = (x[l] & 0xffff) * (y[l] & 0xffff) + (z[l] & 0xffff);  // at most 0xffff * 0x10000
      r.lane[l] = in.clamp && result > 0xffff ? 0xffff : result & 0xffff;
    }
  });
  put(w, in, r, mask, O);
}
// V_MAD_U32_U16, V_MAD_I32_I16.
template <bool Signed>
void multiply_add_wide(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  const u32* z = source32(w, in, 2, c, mask);
  for_lanes(w, [&](int l) {
    if constexpr (Signed) {
      const i64 result = static_cast<i64>(sign_extended(x[l])) * sign_extended(y[l]) + static_cast<i32>(z[l]);
      const i64 limited = result < INT32_MIN ? INT32_MIN : (result > INT32_MAX ? INT32_MAX : result);
      r.lane[l] = static_cast<u32>(in.clamp ? limited : result);
    } else {
      const u64 result = static_cast<u64>(x[l] & 0xffff) * (y[l] & 0xffff) + z[l];
      r.lane[l] = in.clamp && result >> 32 ? ~0u : static_cast<u32>(result);
    }
  });
  write32(w, in, r, mask);
}

constexpr auto plus = [](i32 a, i32 b) { return a + b; };
constexpr auto minus = [](i32 a, i32 b) { return a - b; };
constexpr auto minus_reversed = [](i32 a, i32 b) { return b - a; };
constexpr auto times = [](u32 a, u32 b) { return (a & 0xffff) * (b & 0xffff); };
constexpr auto min_u = [](u32 a, u32 b) { return (a & 0xffff) < (b & 0xffff) ? a : b; };
constexpr auto max_u = [](u32 a, u32 b) { return (a & 0xffff) > (b & 0xffff) ? a : b; };
constexpr auto min_i = [](u32 a, u32 b) { return sign_extended(a) < sign_extended(b) ? a : b; };
constexpr auto max_i = [](u32 a, u32 b) { return sign_extended(a) > sign_extended(b) ? a : b; };
constexpr auto shift_left = [](u32 n, u32 x) { return x << (n & 15); };
constexpr auto shift_right = [](u32 n, u32 x) { return (x & 0xffff) >> (n & 15); };
constexpr auto shift_right_signed = [](u32 n, u32 x) { return static_cast<u32>(sign_extended(x) >> (n & 15)); };
constexpr auto bit_and = [](u32 a, u32 b) { return a & b; };
constexpr auto bit_or = [](u32 a, u32 b) { return a | b; };
constexpr auto bit_xor = [](u32 a, u32 b) { return a ^ b; };
constexpr auto bit_not = [](u32 a) { return ~a; };
constexpr auto same = [](u32 a) { return a; };
constexpr auto min3_u = [](u32 a, u32 b, u32 c) { return min_u(min_u(a, b), c); };
constexpr auto max3_u = [](u32 a, u32 b, u32 c) { return max_u(max_u(a, b), c); };
constexpr auto min3_i = [](u32 a, u32 b, u32 c) { return min_i(min_i(a, b), c); };
constexpr auto max3_i = [](u32 a, u32 b, u32 c) { return max_i(max_i(a, b), c); };
constexpr auto med3_u = [](u32 a, u32 b, u32 c) { return max_u(min_u(a, b), min_u(max_u(a, b), c)); };
constexpr auto med3_i = [](u32 a, u32 b, u32 c) { return max_i(min_i(a, b), min_i(max_i(a, b), c)); };

void select_by_mask(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u64 second = lane_mask(w, in.source(2));
  const u32* x = source16(w, in, 0, a, mask);
  const u32* y = source16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = (second >> l & 1 ? y[l] : x[l]) & 0xffff; });
  write16(w, in, r, mask);
}
// Two i16 to two u8, saturated.
void saturate_bytes(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const auto byte = [](i32 v) { return static_cast<u32>(v < 0 ? 0 : (v > 255 ? 255 : v)); };
  for_lanes(w, [&](int l) { r.lane[l] = byte(sign_extended(x[l])) | byte(sign_extended(x[l] >> 16)) << 8; });
  write16(w, in, r, mask);
}

constexpr Class V = Class::vector, T = Class::transcendental;
constexpr u16 quarter = 16;
constexpr u32 integer = kVopInt | kTakesOpSel;
constexpr u32 saturating = integer | kTakesClamp;
constexpr Other kept = Other::kept, by_target = Other::by_target;

const Opcode rows[] = {
    {"v_add_f16", f16_2<add>, V, "h=hh", kVop16},
    {"v_sub_f16", f16_2<subtract>, V, "h=hh", kVop16},
    {"v_subrev_f16", f16_2<subtract_reversed>, V, "h=hh", kVop16},
    {"v_mul_f16", f16_2<multiply>, V, "h=hh", kVop16},
    {"v_fma_f16", f16_3<fused, kept>, V, "h=hhh", kVop16},
    {"v_fma_legacy_f16", f16_3<fused>, V, "h=hhh", kVop16},
    {"v_fmac_f16", f16_accumulate<fused>, V, "h=hh", kVop16, kReadsDest},
    {"v_fmaak_f16", f16_3<fused>, V, "h=hhh"},
    {"v_fmamk_f16", f16_3<fused>, V, "h=hhh"},
    {"v_mad_f16", f16_3<mad, kept>, V, "h=hhh", kVop16},
    {"v_mad_legacy_f16", f16_3<mad>, V, "h=hhh", kVop16},
    {"v_mac_f16", f16_accumulate<mad>, V, "h=hh", kVop16, kReadsDest},
    {"v_madak_f16", f16_3<mad>, V, "h=hhh"},
    {"v_madmk_f16", f16_3<mad>, V, "h=hhh"},

    {"v_min_f16", choose2<Choice::min>, V, "h=hh", kVop16},
    {"v_max_f16", choose2<Choice::max>, V, "h=hh", kVop16},
    {"v_min_num_f16", choose2<Choice::min>, V, "h=hh", kVop16},
    {"v_max_num_f16", choose2<Choice::max>, V, "h=hh", kVop16},
    {"v_minimum_f16", choose2<Choice::minimum>, V, "h=hh", kVop16},
    {"v_maximum_f16", choose2<Choice::maximum>, V, "h=hh", kVop16},
    {"v_min3_f16", choose3<Choice::min, Choice::min>, V, "h=hhh", kVop16},
    {"v_max3_f16", choose3<Choice::max, Choice::max>, V, "h=hhh", kVop16},
    {"v_min3_num_f16", choose3<Choice::min, Choice::min>, V, "h=hhh", kVop16},
    {"v_max3_num_f16", choose3<Choice::max, Choice::max>, V, "h=hhh", kVop16},
    {"v_minimum3_f16", choose3<Choice::minimum, Choice::minimum>, V, "h=hhh", kVop16},
    {"v_maximum3_f16", choose3<Choice::maximum, Choice::maximum>, V, "h=hhh", kVop16},
    {"v_minmax_f16", choose3<Choice::min, Choice::max>, V, "h=hhh", kVop16},
    {"v_maxmin_f16", choose3<Choice::max, Choice::min>, V, "h=hhh", kVop16},
    {"v_minmax_num_f16", choose3<Choice::min, Choice::max>, V, "h=hhh", kVop16},
    {"v_maxmin_num_f16", choose3<Choice::max, Choice::min>, V, "h=hhh", kVop16},
    {"v_minimummaximum_f16", choose3<Choice::minimum, Choice::maximum>, V, "h=hhh", kVop16},
    {"v_maximumminimum_f16", choose3<Choice::maximum, Choice::minimum>, V, "h=hhh", kVop16},
    {"v_med3_f16", median3, V, "h=hhh", kVop16},
    {"v_med3_num_f16", median3, V, "h=hhh", kVop16},

    {"v_floor_f16", f16_1<round_down>, V, "h=h", kVop16},
    {"v_ceil_f16", f16_1<round_up>, V, "h=h", kVop16},
    {"v_trunc_f16", f16_1<round_to_zero>, V, "h=h", kVop16},
    {"v_rndne_f16", f16_1<round_even>, V, "h=h", kVop16},
    {"v_fract_f16", f16_1<fraction>, V, "h=h", kVop16},
    {"v_ldexp_f16", ldexp_f16, V, "h=hh", kVop16},
    {"v_frexp_mant_f16", f16_1<frexp_mantissa>, V, "h=h", kVop16},
    {"v_frexp_exp_i16_f16", frexp_exponent, V, "w=h", integer | kTakesSign},
    {"v_div_fixup_f16", f16_3<fixup, kept>, V, "h=hhh", kVop16},
    {"v_div_fixup_legacy_f16", f16_3<fixup>, V, "h=hhh", kVop16},

    {"v_exp_f16", f16_1<exp2_f32>, T, "h=h", kVop16, 0, quarter},
    {"v_log_f16", f16_1<log2_f32>, T, "h=h", kVop16, 0, quarter},
    {"v_rcp_f16", f16_1<rcp_f32>, T, "h=h", kVop16, 0, quarter},
    {"v_rsq_f16", f16_1<rsq_f32>, T, "h=h", kVop16, 0, quarter},
    {"v_sqrt_f16", f16_1<sqrt_f32>, T, "h=h", kVop16, 0, quarter},
    {"v_sin_f16", f16_1<sin_f32>, T, "h=h", kVop16, 0, quarter},
    {"v_cos_f16", f16_1<cos_f32>, T, "h=h", kVop16, 0, quarter},
    {"v_s_exp_f16", scalar_f16<exp2_f32>, T, "h=h", kVop16, kIgnoresExec, quarter},
    {"v_s_log_f16", scalar_f16<log2_f32>, T, "h=h", kVop16, kIgnoresExec, quarter},
    {"v_s_rcp_f16", scalar_f16<rcp_f32>, T, "h=h", kVop16, kIgnoresExec, quarter},
    {"v_s_rsq_f16", scalar_f16<rsq_f32>, T, "h=h", kVop16, kIgnoresExec, quarter},
    {"v_s_sqrt_f16", scalar_f16<sqrt_f32>, T, "h=h", kVop16, kIgnoresExec, quarter},
    {"v_pack_b32_f16", pack_f16, V, "u=hh", kTakesSign | kTakesOpSel | kTakesDpp},

    {"v_add_u16", arithmetic2<plus, false, by_target>, V, "w=ww", saturating},
    {"v_sub_u16", arithmetic2<minus, false, by_target>, V, "w=ww", saturating},
    {"v_subrev_u16", arithmetic2<minus_reversed, false, by_target>, V, "w=ww", saturating},
    {"v_add_i16", arithmetic2<plus, true, kept>, V, "w=ww", saturating},
    {"v_sub_i16", arithmetic2<minus, true, kept>, V, "w=ww", saturating},
    {"v_add_nc_u16", arithmetic2<plus, false, kept>, V, "w=ww", saturating},
    {"v_sub_nc_u16", arithmetic2<minus, false, kept>, V, "w=ww", saturating},
    {"v_add_nc_i16", arithmetic2<plus, true, kept>, V, "w=ww", saturating},
    {"v_sub_nc_i16", arithmetic2<minus, true, kept>, V, "w=ww", saturating},
    {"v_mul_lo_u16", word2<times>, V, "w=ww", integer},
    {"v_mad_u16", multiply_add<false, kept>, V, "w=www", saturating},
    {"v_mad_i16", multiply_add<true, kept>, V, "w=www", saturating},
    {"v_mad_legacy_u16", multiply_add<false, by_target>, V, "w=www", saturating},
    {"v_mad_legacy_i16", multiply_add<true, by_target>, V, "w=www", saturating},
    {"v_mad_u32_u16", multiply_add_wide<false>, V, "u=wwu", saturating},
    {"v_mad_i32_i16", multiply_add_wide<true>, V, "u=wwu", saturating},
    {"v_min_u16", word2<min_u>, V, "w=ww", integer},
    {"v_max_u16", word2<max_u>, V, "w=ww", integer},
    {"v_min_i16", word2<min_i>, V, "w=ww", integer},
    {"v_max_i16", word2<max_i>, V, "w=ww", integer},
    {"v_min3_u16", word3<min3_u>, V, "w=www", integer},
    {"v_max3_u16", word3<max3_u>, V, "w=www", integer},
    {"v_min3_i16", word3<min3_i>, V, "w=www", integer},
    {"v_max3_i16", word3<max3_i>, V, "w=www", integer},
    {"v_med3_u16", word3<med3_u>, V, "w=www", integer},
    {"v_med3_i16", word3<med3_i>, V, "w=www", integer},
    {"v_lshlrev_b16", word2<shift_left>, V, "w=ww", integer},
    {"v_lshrrev_b16", word2<shift_right>, V, "w=ww", integer},
    {"v_ashrrev_i16", word2<shift_right_signed>, V, "w=ww", integer},
    {"v_and_b16", word2<bit_and>, V, "w=ww", integer},
    {"v_or_b16", word2<bit_or>, V, "w=ww", integer},
    {"v_xor_b16", word2<bit_xor>, V, "w=ww", integer},
    {"v_not_b16", word1<bit_not>, V, "w=w", integer},
    {"v_mov_b16", word1<same>, V, "w=w", integer},
    {"v_cndmask_b16", select_by_mask, V, "w=wwm", integer | kTakesSign},
    {"v_sat_pk_u8_i16", saturate_bytes, V, "w=W", kVopInt | kTakesOpSel},
};

}  // namespace

std::span<const Opcode> vector_16_opcodes() { return rows; }

}  // namespace emu

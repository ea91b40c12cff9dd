// f32 arithmetic. Semantics: "AMD Instinct MI300 ISA" and "RDNA4 ISA" reference guides, VOP1, VOP2 and VOP3 sections.
#include "core/cpu.h"
#include "isa/division.h"
#include "isa/transcendental.h"

namespace emu {
namespace {

// --- shapes that lanes.h does not have -----------------------------------------------------------------------------
// The destination is the third source.
template <auto F>
void accumulate(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  const u32* z = w.vgpr[in.operand[0].reg];
  u32* to = result_f32(w, in, r, mask);
  if (w.flush_f32) [[unlikely]] {
    for_rows(w, [&](int l) { to[l] = bits_of(F(as_f32(x[l]), as_f32(y[l]), flush(as_f32(z[l])))); });
  } else {
    for_rows(w, [&](int l) { to[l] = bits_of(F(as_f32(x[l]), as_f32(y[l]), as_f32(z[l]))); });
  }
  if (to == r.lane) write_f32(w, in, r, mask);
}
template <Choice C>
void choose2(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  u32* to = result_f32(w, in, r, mask);
  if (ieee_mode(w)) {
    for_rows(w, [&](int l) { to[l] = choose<F32Bits, C, true>(x[l], y[l]); });
  } else {
    for_rows(w, [&](int l) { to[l] = choose<F32Bits, C, false>(x[l], y[l]); });
  }
  if (to == r.lane) write_f32(w, in, r, mask);
}
// Second(First(a, b), c).
template <Choice First, Choice Second>
void choose3(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  const u32* z = source_f32(w, in, 2, c, mask);
  u32* to = result_f32(w, in, r, mask);
  if (ieee_mode(w)) {
    for_rows(w, [&](int l) { to[l] = choose<F32Bits, Second, true>(choose<F32Bits, First, true>(x[l], y[l]), z[l]); });
  } else {
    for_rows(w,
             [&](int l) { to[l] = choose<F32Bits, Second, false>(choose<F32Bits, First, false>(x[l], y[l]), z[l]); });
  }
  if (to == r.lane) write_f32(w, in, r, mask);
}
void median3(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  const u32* z = source_f32(w, in, 2, c, mask);
  for_lanes(w, [&](int l) { r.lane[l] = median_number<F32Bits>(x[l], y[l], z[l]); });
  write_f32(w, in, r, mask);
}

// --- arithmetic ----------------------------------------------------------------------------------------------------
constexpr auto add = [](float a, float b) { return a + b; };
constexpr auto subtract = [](float a, float b) { return a - b; };
constexpr auto subtract_reversed = [](float a, float b) { return b - a; };
constexpr auto multiply = [](float a, float b) { return a * b; };
constexpr auto fused = [](float a, float b, float c) { return __builtin_fmaf(a, b, c); };
// DX9 rules: 0 times anything is 0.
constexpr auto multiply_dx9 = [](float a, float b) { return a == 0 || b == 0 ? 0.f : a * b; };
constexpr auto fused_dx9 = [](float a, float b, float c) { return a == 0 || b == 0 ? c : __builtin_fmaf(a, b, c); };
// V_MAD_F32 and V_MAC_F32 round twice and never see or give a denormal, whatever the mode.
constexpr auto mad = [](float a, float b, float c) { return flush(flush(flush(a) * flush(b)) + flush(c)); };
constexpr auto mad_dx9 = [](float a, float b, float c) {
  const float x = flush(a), y = flush(b);
  return x == 0 || y == 0 ? flush(c) : flush(flush(x * y) + flush(c));
};

constexpr auto round_even = [](float a) { return __builtin_rintf(a); };
constexpr auto round_down = [](float a) { return __builtin_floorf(a); };
constexpr auto round_up = [](float a) { return __builtin_ceilf(a); };
constexpr auto round_to_zero = [](float a) { return __builtin_truncf(a); };
// Below 1 even where x - floor(x) rounds to it: LLVM forms V_FRACT from min(x - floor(x), 0x1.fffffep-1).
constexpr auto fraction = [](float a) {
  const float r = a - __builtin_floorf(a);
  return r >= 1.f ? 0x1.fffffep-1f : r;
};

// x * 2^n, rounded once: exact in double, whose range has room for every result.
void ldexp_f32(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* n = source32(w, in, 1, b, mask);
  for_lanes(w, [&](int l) {
    const i32 wanted = static_cast<i32>(n[l]);
    const i32 power = wanted < -300 ? -300 : (wanted > 300 ? 300 : wanted);
    r.lane[l] = bits_of(static_cast<float>(static_cast<double>(as_f32(x[l])) * power_of_two(power)));
  });
  write_f32(w, in, r, mask);
}
// Mantissa in [1/2, 1) and its exponent, denormals included; infinity and NaN have exponent 0.
constexpr auto frexp_mantissa = [](float a) {
  const double wide = static_cast<double>(a);
  const u64 bits = bits_of(wide);
  const bool special = a == 0 || (bits >> 52 & 0x7ff) == 0x7ff;
  return special ? a : static_cast<float>(as_f64((bits & ~(0x7ffull << 52)) | 1022ull << 52));
};
void frexp_exponent(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  for_lanes(w, [&](int l) {
    const u64 bits = bits_of(static_cast<double>(as_f32(x[l])));
    const i32 exponent = static_cast<i32>(bits >> 52 & 0x7ff);
    r.lane[l] = exponent == 0 || exponent == 0x7ff ? 0 : static_cast<u32>(exponent - 1022);
  });
  write32(w, in, r, mask);
}

// --- division ------------------------------------------------------------------------------------------------------
void division_scale(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec(), scaled = 0;
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  const u32* z = source_f32(w, in, 2, c, mask);
  for_lanes(w, [&](int l) {
    bool bit;
    r.lane[l] = bits_of(div_scale(as_f32(x[l]), as_f32(y[l]), as_f32(z[l]), bit));
    scaled |= static_cast<u64>(bit) << l;
  });
  write_f32(w, in, r, mask);
  set_lane_mask(w, in.operand[1], scaled & mask);
}
void division_fmas(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u64 scaled = w.vcc();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  const u32* z = source_f32(w, in, 2, c, mask);
  if ((scaled & w.full_mask) == 0) {
    for_lanes(w, [&](int l) { r.lane[l] = bits_of(__builtin_fmaf(as_f32(x[l]), as_f32(y[l]), as_f32(z[l]))); });
  } else {
    for_lanes(w,
              [&](int l) { r.lane[l] = bits_of(div_fmas(as_f32(x[l]), as_f32(y[l]), as_f32(z[l]), scaled >> l & 1)); });
  }
  write_f32(w, in, r, mask);
}
constexpr auto fixup = [](float a, float b, float c) { return div_fixup(a, b, c); };

template <float (*F)(float)>
constexpr Handler transcendental = float1<flushed<F>>;

constexpr u32 gfx9 = 1 << static_cast<int>(Family::gfx9);
// Their double arithmetic takes half the time in vectors of twice the width. The same code, so the same results.
#if defined(__x86_64__) && defined(__clang__)
template <Handler H>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void in_avx512(Wave& w, const Instruction& in) {
  [[clang::always_inline]] H(w, in);
}
#else
template <Handler H>
constexpr Handler in_avx512 = H;
#endif
template <Handler H>
std::string bind_width(Instruction& in, const Target&) {
  if (cpu_has_avx512()) in.execute = in_avx512<H>;
  return {};
}

constexpr Class V = Class::vector, T = Class::transcendental;
constexpr u16 quarter = 16;  // transcendentals issue at a quarter of the rate (CDNA3 ISA, "VALU")

const Opcode rows[] = {
    {"v_add_f32", float2<add>, V, "f=ff", kVop32},
    {"v_sub_f32", float2<subtract>, V, "f=ff", kVop32},
    {"v_subrev_f32", float2<subtract_reversed>, V, "f=ff", kVop32},
    {"v_mul_f32", float2<multiply>, V, "f=ff", kVop32},
    {"v_mul_legacy_f32", float2<multiply_dx9>, V, "f=ff", kVop32},
    {"v_mul_dx9_zero_f32", float2<multiply_dx9>, V, "f=ff", kVop32},
    {"v_fma_f32", float3<fused>, V, "f=fff", kVop32},
    {"v_fma_dx9_zero_f32", float3<fused_dx9>, V, "f=fff", kVop32},
    {"v_fmac_f32", accumulate<fused>, V, "f=ff", kVop32, kReadsDest},
    {"v_fmac_dx9_zero_f32", accumulate<fused_dx9>, V, "f=ff", kVop32, kReadsDest},
    {"v_fmaak_f32", float3<fused>, V, "f=fff"},
    {"v_fmamk_f32", float3<fused>, V, "f=fff"},
    {"v_mad_f32", float3<mad>, V, "f=fff", kVop32, 0, 4, nullptr, gfx9},
    {"v_mad_legacy_f32", float3<mad_dx9>, V, "f=fff", kVop32, 0, 4, nullptr, gfx9},
    {"v_mac_f32", accumulate<mad>, V, "f=ff", kVop32, kReadsDest, 4, nullptr, gfx9},
    {"v_madak_f32", float3<mad>, V, "f=fff", 0, 0, 4, nullptr, gfx9},
    {"v_madmk_f32", float3<mad>, V, "f=fff", 0, 0, 4, nullptr, gfx9},

    {"v_min_f32", choose2<Choice::min>, V, "f=ff", kVop32},
    {"v_max_f32", choose2<Choice::max>, V, "f=ff", kVop32},
    {"v_min_num_f32", choose2<Choice::min>, V, "f=ff", kVop32},
    {"v_max_num_f32", choose2<Choice::max>, V, "f=ff", kVop32},
    {"v_minimum_f32", choose2<Choice::minimum>, V, "f=ff", kVop32},
    {"v_maximum_f32", choose2<Choice::maximum>, V, "f=ff", kVop32},
    {"v_min3_f32", choose3<Choice::min, Choice::min>, V, "f=fff", kVop32},
    {"v_max3_f32", choose3<Choice::max, Choice::max>, V, "f=fff", kVop32},
    {"v_min3_num_f32", choose3<Choice::min, Choice::min>, V, "f=fff", kVop32},
    {"v_max3_num_f32", choose3<Choice::max, Choice::max>, V, "f=fff", kVop32},
    {"v_minimum3_f32", choose3<Choice::minimum, Choice::minimum>, V, "f=fff", kVop32},
    {"v_maximum3_f32", choose3<Choice::maximum, Choice::maximum>, V, "f=fff", kVop32},
    {"v_minmax_f32", choose3<Choice::min, Choice::max>, V, "f=fff", kVop32},
    {"v_maxmin_f32", choose3<Choice::max, Choice::min>, V, "f=fff", kVop32},
    {"v_minmax_num_f32", choose3<Choice::min, Choice::max>, V, "f=fff", kVop32},
    {"v_maxmin_num_f32", choose3<Choice::max, Choice::min>, V, "f=fff", kVop32},
    {"v_minimummaximum_f32", choose3<Choice::minimum, Choice::maximum>, V, "f=fff", kVop32},
    {"v_maximumminimum_f32", choose3<Choice::maximum, Choice::minimum>, V, "f=fff", kVop32},
    {"v_med3_f32", median3, V, "f=fff", kVop32},
    {"v_med3_num_f32", median3, V, "f=fff", kVop32},

    {"v_floor_f32", float1<round_down>, V, "f=f", kVop32},
    {"v_ceil_f32", float1<round_up>, V, "f=f", kVop32},
    {"v_trunc_f32", float1<round_to_zero>, V, "f=f", kVop32},
    {"v_rndne_f32", float1<round_even>, V, "f=f", kVop32},
    {"v_fract_f32", float1<fraction>, V, "f=f", kVop32},
    {"v_ldexp_f32", ldexp_f32, V, "f=fu", kVop32},
    {"v_frexp_mant_f32", float1<frexp_mantissa>, V, "f=f", kVop32},
    {"v_frexp_exp_i32_f32", frexp_exponent, V, "u=f", kTakesSign | kTakesDpp | kTakesSdwa},

    {"v_div_scale_f32", division_scale, V, "fm=fff", kTakesSign},
    {"v_div_fmas_f32", division_fmas, V, "f=fff", kVop32, kReadsVcc},
    {"v_div_fixup_f32", float3<fixup>, V, "f=fff", kVop32},

    {"v_exp_f32", transcendental<exp2_f32>, T, "f=f", kVop32, 0, quarter, bind_width<transcendental<exp2_f32>>},
    {"v_exp_legacy_f32", transcendental<exp2_f32>, T, "f=f", kVop32, 0, quarter},
    {"v_log_f32", transcendental<log2_f32>, T, "f=f", kVop32, 0, quarter, bind_width<transcendental<log2_f32>>},
    {"v_log_legacy_f32", transcendental<log2_f32>, T, "f=f", kVop32, 0, quarter},
    {"v_rcp_f32", transcendental<rcp_f32>, T, "f=f", kVop32, 0, quarter},
    {"v_rcp_iflag_f32", transcendental<rcp_f32>, T, "f=f", kVop32, 0, quarter},
    {"v_rsq_f32", transcendental<rsq_f32>, T, "f=f", kVop32, 0, quarter},
    {"v_sqrt_f32", transcendental<sqrt_f32>, T, "f=f", kVop32, 0, quarter},
    {"v_sin_f32", transcendental<sin_f32>, T, "f=f", kVop32, 0, quarter},
    {"v_cos_f32", transcendental<cos_f32>, T, "f=f", kVop32, 0, quarter},
    // gfx12: of a scalar, into a scalar; EXEC does not matter.
    {"v_s_exp_f32", transcendental<exp2_f32>, T, "f=f", kVop32, kIgnoresExec, quarter},
    {"v_s_log_f32", transcendental<log2_f32>, T, "f=f", kVop32, kIgnoresExec, quarter},
    {"v_s_rcp_f32", transcendental<rcp_f32>, T, "f=f", kVop32, kIgnoresExec, quarter},
    {"v_s_rsq_f32", transcendental<rsq_f32>, T, "f=f", kVop32, kIgnoresExec, quarter},
    {"v_s_sqrt_f32", transcendental<sqrt_f32>, T, "f=f", kVop32, kIgnoresExec, quarter},
};

}  // namespace

std::span<const Opcode> vector_float_opcodes() { return rows; }

}  // namespace emu

// f64 arithmetic. Semantics: "AMD Instinct MI300 ISA" and "RDNA4 ISA" reference guides, VOP1, VOP2 and VOP3 sections.
#include "isa/division.h"

namespace emu {
namespace {

// One f64 source as doubles.
struct Doubles {
  Source64 source;
  bool flushes;
  Doubles(Wave& w, const Instruction& in, int i, u64& mask) : source(w, in, i, mask), flushes(w.flush_f16_f64) {}
  u64 bits(int lane) const { return flushes ? flush_f64_bits(source[lane]) : source[lane]; }
  double operator[](int lane) const { return as_f64(bits(lane)); }
};
void write_result(Wave& w, const Instruction& in, u64* values, u64 mask) {
  if (w.flush_f16_f64) {
    for_lanes(w, [&](int l) { values[l] = flush_f64_bits(values[l]); });
  }
  write_f64(w, in, values, mask);
}

template <auto F>
void double1(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask);
  for_lanes(w, [&](int l) { r[l] = bits_of(F(x[l])); });
  write_result(w, in, r, mask);
}
template <auto F>
void double2(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask), y(w, in, 1, mask);
  for_lanes(w, [&](int l) { r[l] = bits_of(F(x[l], y[l])); });
  write_result(w, in, r, mask);
}
template <auto F>
void double3(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask), y(w, in, 1, mask), z(w, in, 2, mask);
  for_lanes(w, [&](int l) { r[l] = bits_of(F(x[l], y[l], z[l])); });
  write_result(w, in, r, mask);
}
void fused_accumulate(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask), y(w, in, 1, mask);
  const u32 *low = w.vgpr[in.operand[0].reg], *high = w.vgpr[in.operand[0].reg + 1];
  for_lanes(w, [&](int l) {
    const u64 old = low[l] | static_cast<u64>(high[l]) << 32;
    const double z = as_f64(w.flush_f16_f64 ? flush_f64_bits(old) : old);
    r[l] = bits_of(__builtin_fma(x[l], y[l], z));
  });
  write_result(w, in, r, mask);
}
template <Choice C>
void choose2(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask), y(w, in, 1, mask);
  const bool ieee = ieee_mode(w);
  for_lanes(w, [&](int l) {
    r[l] = ieee ? choose<F64Bits, C, true>(x.bits(l), y.bits(l)) : choose<F64Bits, C, false>(x.bits(l), y.bits(l));
  });
  write_result(w, in, r, mask);
}

constexpr auto add = [](double a, double b) { return a + b; };
constexpr auto multiply = [](double a, double b) { return a * b; };
constexpr auto fused = [](double a, double b, double c) { return __builtin_fma(a, b, c); };
constexpr auto round_even = [](double a) { return __builtin_rint(a); };
constexpr auto round_down = [](double a) { return __builtin_floor(a); };
constexpr auto round_up = [](double a) { return __builtin_ceil(a); };
constexpr auto round_to_zero = [](double a) { return __builtin_trunc(a); };
// Never 1, as V_FRACT_F32.
constexpr auto fraction = [](double a) {
  const double r = a - __builtin_floor(a);
  return r >= 1 ? 0x1.fffffffffffffp-1 : r;
};
// The hardware's reciprocals are approximations that the compiler refines; correctly rounded ones serve it as well.
constexpr auto reciprocal = [](double a) { return 1 / a; };
constexpr auto square_root = [](double a) { return __builtin_sqrt(a); };
constexpr auto reciprocal_root = [](double a) { return 1 / __builtin_sqrt(a); };
constexpr auto fixup = [](double a, double b, double c) { return div_fixup(a, b, c); };
constexpr auto frexp_mantissa = [](double a) {
  int exponent;
  return std::isfinite(a) ? std::frexp(a, &exponent) : a;
};

void frexp_exponent(Wave& w, const Instruction& in) {
  Row r;
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask);
  for_lanes(w, [&](int l) {
    int exponent = 0;
    if (std::isfinite(x[l])) (void)std::frexp(x[l], &exponent);
    r.lane[l] = static_cast<u32>(exponent);
  });
  write32(w, in, r, mask);
}
void ldexp_f64(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  Row b;
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask);
  const u32* n = source32(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r[l] = bits_of(std::ldexp(x[l], static_cast<i32>(n[l]))); });
  write_result(w, in, r, mask);
}

void division_scale(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  u64 mask = w.exec(), scaled = 0;
  const Doubles x(w, in, 0, mask), y(w, in, 1, mask), z(w, in, 2, mask);
  for_lanes(w, [&](int l) {
    bool bit;
    r[l] = bits_of(div_scale(x[l], y[l], z[l], bit));
    scaled |= static_cast<u64>(bit) << l;
  });
  write_result(w, in, r, mask);
  set_lane_mask(w, in.operand[1], scaled & mask);
}
void division_fmas(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  u64 mask = w.exec();
  const u64 scaled = w.vcc();
  const Doubles x(w, in, 0, mask), y(w, in, 1, mask), z(w, in, 2, mask);
  for_lanes(w, [&](int l) { r[l] = bits_of(div_fmas(x[l], y[l], z[l], scaled >> l & 1)); });
  write_result(w, in, r, mask);
}

// The first 1216 bits of the fraction of 2 / pi, most significant first.
constexpr u32 two_over_pi[] = {
    0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab, 0xdebbc561,
    0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e, 0xe88235f5, 0x2ebb4484,
    0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b, 0x1ff897ff, 0xde05980f,
    0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b,
    0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046, 0xfc7b6bab,
};
// `shift` bits into 2 / pi, the next 53 as an integer.
u64 bits_of_two_over_pi(u32 shift) {
  constexpr u32 words = sizeof two_over_pi / sizeof *two_over_pi;
  u64 value = 0;
  for (u32 bit = shift; bit < shift + 53; ++bit) {
    const u32 word = bit / 32;
    value = value << 1 | (word < words ? two_over_pi[word] >> (31 - bit % 32) & 1 : 0);
  }
  return value;
}
// V_TRIG_PREOP_F64: a segment of 2 / pi aligned to the exponent of a large argument (Payne-Hanek reduction).
void trig_preop(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  Row b;
  u64 mask = w.exec();
  const Doubles x(w, in, 0, mask);
  const u32* segment = source32(w, in, 1, b, mask);
  for_lanes(w, [&](int l) {
    const u32 exponent = static_cast<u32>(x.bits(l) >> 52 & 0x7ff);
    const u32 shift = (segment[l] & 31) * 53 + (exponent > 1077 ? exponent - 1077 : 0);
    const int scale = -53 - static_cast<int>(shift) + (exponent >= 1968 ? 128 : 0);
    r[l] = bits_of(std::ldexp(static_cast<double>(bits_of_two_over_pi(shift)), scale));
  });
  write_result(w, in, r, mask);
}

// Full rate since gfx90a: MI250X and MI300X give as many f64 as unpacked f32 flops (CDNA2 and CDNA3 white papers;
// LLVM's SIDPGFX90AFullSpeedModel). MI100 half of that; RDNA3 and RDNA4 a sixteenth (RX 7900 XTX: 1.9 of 30.7 Tflops
// unpaired).
std::string f64_rate(Instruction& in, const Target& target) {
  if (target.is_rdna()) {
    in.cycles = static_cast<u16>(in.cycles * 16);
  } else if (target.cdna == 1) {
    in.cycles = static_cast<u16>(in.cycles * 2);
  }
  return "";
}

constexpr u32 modifiers = kTakesSign | kTakesClamp | kTakesOmod | kTakesDpp;
constexpr Class V = Class::vector, T = Class::transcendental;

const Opcode rows[] = {
    {"v_add_f64", double2<add>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_mul_f64", double2<multiply>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_fma_f64", double3<fused>, V, "d=ddd", modifiers, 0, 4, f64_rate},
    {"v_fmac_f64", fused_accumulate, V, "d=dd", modifiers, kReadsDest, 4, f64_rate},
    {"v_min_f64", choose2<Choice::min>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_max_f64", choose2<Choice::max>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_min_num_f64", choose2<Choice::min>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_max_num_f64", choose2<Choice::max>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_minimum_f64", choose2<Choice::minimum>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_maximum_f64", choose2<Choice::maximum>, V, "d=dd", modifiers, 0, 4, f64_rate},
    {"v_floor_f64", double1<round_down>, V, "d=d", modifiers, 0, 4, f64_rate},
    {"v_ceil_f64", double1<round_up>, V, "d=d", modifiers, 0, 4, f64_rate},
    {"v_trunc_f64", double1<round_to_zero>, V, "d=d", modifiers, 0, 4, f64_rate},
    {"v_rndne_f64", double1<round_even>, V, "d=d", modifiers, 0, 4, f64_rate},
    {"v_fract_f64", double1<fraction>, V, "d=d", modifiers, 0, 4, f64_rate},
    {"v_ldexp_f64", ldexp_f64, V, "d=du", modifiers, 0, 4, f64_rate},
    {"v_frexp_mant_f64", double1<frexp_mantissa>, V, "d=d", modifiers, 0, 4, f64_rate},
    {"v_frexp_exp_i32_f64", frexp_exponent, V, "u=d", kTakesSign | kTakesDpp, 0, 4, f64_rate},
    {"v_div_scale_f64", division_scale, V, "dm=ddd", kTakesSign, 0, 4, f64_rate},
    {"v_div_fmas_f64", division_fmas, V, "d=ddd", modifiers, kReadsVcc, 4, f64_rate},
    {"v_div_fixup_f64", double3<fixup>, V, "d=ddd", modifiers, 0, 4, f64_rate},
    {"v_trig_preop_f64", trig_preop, V, "d=du", modifiers, 0, 4, f64_rate},
    {"v_rcp_f64", double1<reciprocal>, T, "d=d", modifiers, 0, 16, f64_rate},
    {"v_rsq_f64", double1<reciprocal_root>, T, "d=d", modifiers, 0, 16, f64_rate},
    {"v_sqrt_f64", double1<square_root>, T, "d=d", modifiers, 0, 16, f64_rate},
};

}  // namespace

std::span<const Opcode> vector_f64_opcodes() { return rows; }

}  // namespace emu

// Conversions between the wider formats. Semantics: "AMD Instinct MI300 ISA", "CDNA4 ISA" and "RDNA4 ISA" reference
// guides, VOP1 and VOP3 sections. The formats of 8 bits and fewer are in convert_small.cpp.
#include <vector>

#include "isa/small_floats.h"
#include "isa/transcendental.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace emu {
namespace {

// --- float to integer: truncated, saturated, NaN gives 0 -------------------------------------------------------------
constexpr u32 to_i32(float x) {
  const float inside = x < 2147483520.f ? (x > -2147483648.f ? x : -2147483648.f) : 2147483520.f;
  const u32 r = x >= 2147483648.f ? 0x7fffffff : static_cast<u32>(static_cast<i32>(inside));
  return x == x ? r : 0;
}
constexpr u32 to_u32(float x) {
  const float inside = x < 4294967040.f ? (x > 0.f ? x : 0.f) : 4294967040.f;
  const bool big = inside >= 2147483648.f;  // in two halves: only the signed conversion has vector code
  const u32 half = static_cast<u32>(static_cast<i32>(big ? inside - 2147483648.f : inside));
  const u32 r = x >= 4294967296.f ? 0xffffffff : half + (big ? 0x80000000 : 0);
  return x == x ? r : 0;
}
constexpr u32 to_i32(double x) {
  const double inside = x < 2147483647. ? (x > -2147483648. ? x : -2147483648.) : 2147483647.;
  return x == x ? static_cast<u32>(static_cast<i32>(inside)) : 0;
}
constexpr u32 to_u32(double x) {
  const double inside = x < 4294967295. ? (x > 0. ? x : 0.) : 4294967295.;
  return x == x ? static_cast<u32>(static_cast<i64>(inside)) : 0;
}
constexpr u32 to_i16(float x) {
  const float inside = x < 32767.f ? (x > -32768.f ? x : -32768.f) : 32767.f;
  return x == x ? static_cast<u32>(static_cast<i32>(inside)) & 0xffff : 0;
}
constexpr u32 to_u16(float x) {
  const float inside = x < 65535.f ? (x > 0.f ? x : 0.f) : 65535.f;
  return x == x ? static_cast<u32>(static_cast<i32>(inside)) : 0;
}
constexpr u32 to_u8(float x) {
  const float inside = x < 255.f ? (x > 0.f ? x : 0.f) : 255.f;
  return x == x ? static_cast<u32>(static_cast<i32>(inside)) : 0;
}
// Normalised: [-1, 1] to [-32767, 32767], [0, 1] to [0, 65535], to nearest even; NaN gives 0.
inline u32 to_snorm16(float x) {
  const float inside = x < 1.f ? (x > -1.f ? x : -1.f) : 1.f;
  return x == x ? static_cast<u32>(static_cast<i32>(__builtin_rintf(inside * 32767.f))) & 0xffff : 0;
}
inline u32 to_unorm16(float x) {
  const float inside = x < 1.f ? (x > 0.f ? x : 0.f) : 1.f;
  return x == x ? static_cast<u32>(static_cast<i32>(__builtin_rintf(inside * 65535.f))) : 0;
}

template <auto F>
void integer_of_f32(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(as_f32(x[l])); });
  write32(w, in, r, mask);
}
template <auto F>
void f32_of_integer(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = bits_of(F(x[l])); });
  write_f32(w, in, r, mask);
}
template <auto F>
void word_of_f16(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(f32_of_f16(x[l])); });
  write16(w, in, r, mask);
}
template <auto F>
void f16_of_word(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(F(x[l])); });
  finish_f16(w, in, r, mask, false);
}
template <auto F>
void wide_of_word(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(x[l]); });
  write32(w, in, r, mask);
}
// Two f32 (or two f16) to two 16-bit values in one register.
template <auto F>
void pair_of_f32(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(as_f32(x[l])) | F(as_f32(y[l])) << 16; });
  write32(w, in, r, mask);
}
template <auto F>
void pair_of_f16(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  const u32* y = source_f16(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(f32_of_f16(x[l])) | F(f32_of_f16(y[l])) << 16; });
  write32(w, in, r, mask);
}

constexpr auto i32_of = [](float x) { return to_i32(x); };
constexpr auto u32_of = [](float x) { return to_u32(x); };
constexpr auto floor_i32_of = [](float x) { return to_i32(__builtin_floorf(x)); };
constexpr auto nearest_i32_of = [](float x) { return to_i32(__builtin_floorf(x + 0.5f)); };
constexpr auto f32_of_i32 = [](u32 x) { return static_cast<float>(static_cast<i32>(x)); };
constexpr auto f32_of_u32 = [](u32 x) { return static_cast<float>(x); };
template <int Byte>
constexpr auto f32_of_byte = [](u32 x) { return static_cast<float>(static_cast<i32>(x >> (8 * Byte) & 0xff)); };
// V_CVT_OFF_F32_I4: a signed 4-bit number of sixteenths.
constexpr auto f32_of_sixteenths = [](u32 x) { return static_cast<float>(static_cast<i32>(x << 28) >> 28) * 0.0625f; };
constexpr auto f32_of_bits_bf16 = [](u32 x) { return as_f32(x << 16); };
constexpr auto f32_of_signed = [](u32 x) { return static_cast<float>(static_cast<i32>(static_cast<i16>(x))); };
constexpr auto f32_of_unsigned = [](u32 x) { return static_cast<float>(static_cast<i32>(x & 0xffff)); };
constexpr auto extend_signed = [](u32 x) { return static_cast<u32>(static_cast<i32>(static_cast<i16>(x))); };
constexpr auto extend_unsigned = [](u32 x) { return x & 0xffff; };
constexpr auto pack_i16 = [](u32 a, u32 b) {
  const auto narrow = [](u32 bits) {
    const i32 x = static_cast<i32>(bits);
    return static_cast<u32>(x < -32768 ? -32768 : (x > 32767 ? 32767 : x)) & 0xffff;
  };
  return narrow(a) | narrow(b) << 16;
};
constexpr auto pack_u16 = [](u32 a, u32 b) {
  const auto narrow = [](u32 x) { return x > 0xffff ? 0xffff : x; };
  return narrow(a) | narrow(b) << 16;
};

// --- f16 and bf16 ----------------------------------------------------------------------------------------------------
void f16_of_f32_row(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = f16_of_f32(as_f32(x[l])); });
  finish_f16(w, in, r, mask, false);
}
void f32_of_f16_row(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source_f16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = bits_of(f32_of_f16(x[l])); });
  write_f32(w, in, r, mask);
}
// A bf16 source is the high half of an f32, so its sign bit is bit 15.
void f32_of_bf16_row(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source16(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r.lane[l] = bits_of(f32_of_bits_bf16(x[l])); });
  write_f32(w, in, r, mask);
}
#ifdef __F16C__
void to_f16_towards_zero(const u32* x, u32* r) {
  for (int l = 0; l < kLanes; l += 8) {
    const __m256 value = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + l)));
    const __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(r + l), _mm256_cvtepu16_epi32(half));
  }
}
#else
// Nearest, then one step back where that went past the value.
void to_f16_towards_zero(const u32* x, u32* r) {
  for (int l = 0; l < kLanes; ++l) {
    const float value = as_f32(x[l]), size = __builtin_fabsf(value);
    const u32 nearest = f16_of_f32(value);
    const bool past = __builtin_fabsf(f32_of_f16(nearest)) > size;
    r[l] = past ? nearest - 1 : nearest;
  }
}
#endif
void pair_towards_zero(Wave& w, const Instruction& in) {
  Row a, b, low, high;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  to_f16_towards_zero(x, low.lane);
  to_f16_towards_zero(y, high.lane);
  for_lanes(w, [&](int l) { low.lane[l] |= high.lane[l] << 16; });
  write32(w, in, low, mask);
}
constexpr auto f16_bits = [](float x) { return f16_of_f32(x); };
constexpr auto bf16_bits = [](float x) {
  const u32 bits = bits_of(x);
  const u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x == x ? rounded : (bits >> 16 | 0x40);
};
// V_CVT_SR_F16_F32, V_CVT_SR_BF16_F32 (gfx950): stochastic rounding into one half, the other half stays.
template <class T>
void half_by_chance(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* seed = source32(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = narrowed_by_chance<T>(as_f32(x[l]), seed[l], false); });
  write16_keeping(w, in, r, mask);
}

// --- f64 -------------------------------------------------------------------------------------------------------------
template <auto F>
void integer_of_f64(Wave& w, const Instruction& in) {
  Row r;
  u64 mask = w.exec();
  const Source64 x(w, in, 0, mask);
  for_lanes(w, [&](int l) { r.lane[l] = F(as_f64(x[l])); });
  write32(w, in, r, mask);
}
constexpr auto i32_of_f64 = [](double x) { return to_i32(x); };
constexpr auto u32_of_f64 = [](double x) { return to_u32(x); };
void f32_of_f64(Wave& w, const Instruction& in) {
  Row r;
  u64 mask = w.exec();
  const Source64 x(w, in, 0, mask);
  const bool flushes = w.flush_f16_f64;
  for_lanes(w, [&](int l) { r.lane[l] = bits_of(static_cast<float>(as_f64(flushes ? flush_f64_bits(x[l]) : x[l]))); });
  write_f32(w, in, r, mask);
}
void f64_of_f32(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  Row a;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  for_lanes(w, [&](int l) { r[l] = bits_of(static_cast<double>(as_f32(x[l]))); });
  write_f64(w, in, r, mask);
}
template <bool Signed>
void f64_of_integer(Wave& w, const Instruction& in) {
  alignas(64) u64 r[kLanes];
  Row a;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  for_lanes(w, [&](int l) {
    r[l] = bits_of(Signed ? static_cast<double>(static_cast<i32>(x[l])) : static_cast<double>(x[l]));
  });
  write_f64(w, in, r, mask);
}

// --- bytes of a register ---------------------------------------------------------------------------------------------
// V_CVT_PK_U8_F32: byte s1 of s2 replaced by s0. V_CVT_PKACCUM_U8_F32: of the destination.
template <bool Accumulates>
void byte_of_f32(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* place = source32(w, in, 1, b, mask);
  const u32* into = Accumulates ? w.vgpr[in.operand[0].reg] : source32(w, in, 2, c, mask);
  for_lanes(w, [&](int l) {
    const u32 shift = 8 * (place[l] & 3);
    r.lane[l] = (into[l] & ~(0xffu << shift)) | to_u8(as_f32(x[l])) << shift;
  });
  write32(w, in, r, mask);
}

constexpr Class V = Class::vector;
constexpr u32 from_float = kTakesSign | kTakesDpp | kTakesSdwa;
constexpr u32 to_float = kTakesClamp | kTakesOmod | kTakesDpp | kTakesSdwa;
constexpr u32 f64_modifiers = kTakesSign | kTakesClamp | kTakesOmod | kTakesDpp;
constexpr auto snorm = [](float x) { return to_snorm16(x); };
constexpr auto unorm = [](float x) { return to_unorm16(x); };
constexpr auto i16_of = [](float x) { return to_i16(x); };
constexpr auto u16_of = [](float x) { return to_u16(x); };

// Saturation is what these do anyway, so clamp says nothing new.
constexpr u32 to_integer = from_float | kTakesClamp;

const Opcode rows[] = {
    {"v_cvt_i32_f32", integer_of_f32<i32_of>, V, "u=f", to_integer},
    {"v_cvt_u32_f32", integer_of_f32<u32_of>, V, "u=f", to_integer},
    {"v_cvt_flr_i32_f32", integer_of_f32<floor_i32_of>, V, "u=f", to_integer},
    {"v_cvt_floor_i32_f32", integer_of_f32<floor_i32_of>, V, "u=f", to_integer},
    {"v_cvt_rpi_i32_f32", integer_of_f32<nearest_i32_of>, V, "u=f", to_integer},
    {"v_cvt_nearest_i32_f32", integer_of_f32<nearest_i32_of>, V, "u=f", to_integer},
    {"v_cvt_f32_i32", f32_of_integer<f32_of_i32>, V, "f=u", to_float},
    {"v_cvt_f32_u32", f32_of_integer<f32_of_u32>, V, "f=u", to_float},
    {"v_cvt_f32_ubyte0", f32_of_integer<f32_of_byte<0>>, V, "f=u", to_float},
    {"v_cvt_f32_ubyte1", f32_of_integer<f32_of_byte<1>>, V, "f=u", to_float},
    {"v_cvt_f32_ubyte2", f32_of_integer<f32_of_byte<2>>, V, "f=u", to_float},
    {"v_cvt_f32_ubyte3", f32_of_integer<f32_of_byte<3>>, V, "f=u", to_float},
    {"v_cvt_off_f32_i4", f32_of_integer<f32_of_sixteenths>, V, "f=u", to_float},

    {"v_cvt_f16_f32", f16_of_f32_row, V, "h=f", kVop16},
    {"v_cvt_f32_f16", f32_of_f16_row, V, "f=h", kVop16},
    {"v_cvt_f32_bf16", f32_of_bf16_row, V, "f=b", kVop16},
    {"v_cvt_pkrtz_f16_f32", pair_towards_zero, V, "u=ff", from_float},
    {"v_cvt_pk_rtz_f16_f32", pair_towards_zero, V, "u=ff", from_float},
    {"v_cvt_pk_f16_f32", pair_of_f32<f16_bits>, V, "u=ff", from_float},
    {"v_cvt_pk_bf16_f32", pair_of_f32<bf16_bits>, V, "u=ff", from_float},
    {"v_cvt_sr_f16_f32", half_by_chance<Half16>, V, "h=fu", kTakesSign | kTakesOpSel},
    {"v_cvt_sr_bf16_f32", half_by_chance<Brain16>, V, "b=fu", kTakesSign | kTakesOpSel},

    {"v_cvt_i16_f16", word_of_f16<i16_of>, V, "w=h", to_integer | kTakesOpSel},
    {"v_cvt_u16_f16", word_of_f16<u16_of>, V, "w=h", to_integer | kTakesOpSel},
    {"v_cvt_f16_i16", f16_of_word<f32_of_signed>, V, "h=w", to_float | kTakesOpSel},
    {"v_cvt_f16_u16", f16_of_word<f32_of_unsigned>, V, "h=w", to_float | kTakesOpSel},
    {"v_cvt_i32_i16", wide_of_word<extend_signed>, V, "u=w", kVopInt | kTakesOpSel},
    {"v_cvt_u32_u16", wide_of_word<extend_unsigned>, V, "u=w", kVopInt | kTakesOpSel},
    {"v_cvt_norm_i16_f16", word_of_f16<snorm>, V, "w=h", from_float | kTakesOpSel},
    {"v_cvt_norm_u16_f16", word_of_f16<unorm>, V, "w=h", from_float | kTakesOpSel},

    {"v_cvt_pknorm_i16_f32", pair_of_f32<snorm>, V, "u=ff", from_float},
    {"v_cvt_pknorm_u16_f32", pair_of_f32<unorm>, V, "u=ff", from_float},
    {"v_cvt_pk_norm_i16_f32", pair_of_f32<snorm>, V, "u=ff", from_float},
    {"v_cvt_pk_norm_u16_f32", pair_of_f32<unorm>, V, "u=ff", from_float},
    {"v_cvt_pknorm_i16_f16", pair_of_f16<snorm>, V, "u=hh", from_float | kTakesOpSel},
    {"v_cvt_pknorm_u16_f16", pair_of_f16<unorm>, V, "u=hh", from_float | kTakesOpSel},
    {"v_cvt_pk_norm_i16_f16", pair_of_f16<snorm>, V, "u=hh", from_float | kTakesOpSel},
    {"v_cvt_pk_norm_u16_f16", pair_of_f16<unorm>, V, "u=hh", from_float | kTakesOpSel},
    {"v_cvt_pk_i16_f32", pair_of_f32<i16_of>, V, "u=ff", from_float},
    {"v_cvt_pk_u16_f32", pair_of_f32<u16_of>, V, "u=ff", from_float},
    {"v_cvt_pk_i16_i32", int2<pack_i16>, V, "u=uu", kVopInt},
    {"v_cvt_pk_u16_u32", int2<pack_u16>, V, "u=uu", kVopInt},
    {"v_cvt_pk_u8_f32", byte_of_f32<false>, V, "u=fuu", kTakesSign | kTakesDpp},
    {"v_cvt_pkaccum_u8_f32", byte_of_f32<true>, V, "u=fu", kTakesSign | kTakesDpp, kReadsDest},

    {"v_cvt_i32_f64", integer_of_f64<i32_of_f64>, V, "u=d", kTakesSign | kTakesClamp | kTakesDpp},
    {"v_cvt_u32_f64", integer_of_f64<u32_of_f64>, V, "u=d", kTakesSign | kTakesClamp | kTakesDpp},
    {"v_cvt_f64_i32", f64_of_integer<true>, V, "d=u", f64_modifiers},
    {"v_cvt_f64_u32", f64_of_integer<false>, V, "d=u", f64_modifiers},
    {"v_cvt_f32_f64", f32_of_f64, V, "f=d", f64_modifiers},
    {"v_cvt_f64_f32", f64_of_f32, V, "d=f", f64_modifiers},
};

}  // namespace

std::span<const Opcode> convert_opcodes() {
  static const std::vector<Opcode> all = [] {
    std::vector<Opcode> joined(std::begin(rows), std::end(rows));
    const std::span<const Opcode> small = small_float_opcodes();
    joined.insert(joined.end(), small.begin(), small.end());
    return joined;
  }();
  return all;
}

}  // namespace emu

// Conversions to and from floats of 8, 6 and 4 bits. Semantics: "AMD Instinct MI300 ISA" (fnuz formats), "CDNA4 ISA"
// and "RDNA4 ISA" (OCP formats) reference guides.
//
// The scaled conversions of gfx950 take an f32 of which only the exponent counts: a block scale of format E8M0. Packing
// divides by it, unpacking multiplies.
#include "isa/small_floats.h"
#include "isa/transcendental.h"

namespace emu {
namespace {

// --- fp8 and bf8, unscaled (gfx942, gfx950, gfx12)
// --------------------------------------------------------------------- Which byte a single conversion reads: SDWA
// chose it already; gfx12 says byte_sel.
template <class T>
void f32_of_byte(Wave& w, const Instruction& in) {
  Row a, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const int shift = 8 * in.byte_sel;
  for_lanes(w, [&](int l) { r.lane[l] = bits_of(widened<T>(x[l] >> shift & 0xff)); });
  write_f32(w, in, r, mask);
}
// op_sel names the word, unless SDWA or the register (v1.h) does.
template <class T>
void pair_of_word(Wave& w, const Instruction& in) {
  Row a, low, high;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const int shift = in.source(0).half == Half::whole && (in.op_sel & 1) ? 16 : 0;
  for_lanes(w, [&](int l) {
    low.lane[l] = bits_of(widened<T>(x[l] >> shift & 0xff));
    high.lane[l] = bits_of(widened<T>(x[l] >> shift >> 8 & 0xff));
  });
  write_row(w, in.operand[0].reg, low.lane, mask);
  write_row(w, in.operand[0].reg + 1, high.lane, mask);
}
template <class T>
void word_of_pair(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const bool saturate = overflow_saturates(w);
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* y = source_f32(w, in, 1, b, mask);
  for_lanes(w,
            [&](int l) { r.lane[l] = narrowed<T>(as_f32(x[l]), saturate) | narrowed<T>(as_f32(y[l]), saturate) << 8; });
  write16_keeping(w, in, r, mask);
}

void write_byte(Wave& w, const Instruction& in, const Row& values, u32 byte, u64 mask) {
  const u32* old = w.vgpr[in.operand[0].reg];
  const u32 field = 0xffu << (8 * byte);
  Row merged;
  for_lanes(w, [&](int l) { merged.lane[l] = (old[l] & ~field) | (values.lane[l] << (8 * byte) & field); });
  write_row(w, in.operand[0].reg, merged.lane, mask);
}
u32 destination_byte(const Wave& w, const Instruction& in) {
  return w.target->family == Family::gfx12 ? in.byte_sel : encoded_op_sel(in) >> 2;
}
template <class T>
void byte_by_chance(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const bool saturate = overflow_saturates(w);
  const u32* x = source_f32(w, in, 0, a, mask);
  const u32* seed = source32(w, in, 1, b, mask);
  for_lanes(w, [&](int l) { r.lane[l] = narrowed_by_chance<T>(as_f32(x[l]), seed[l], saturate); });
  write_byte(w, in, r, destination_byte(w, in), mask);
}
// gfx942 has the fnuz formats, its successors those of the OCP.
template <Handler Fnuz, Handler Ocp>
std::string by_format(Instruction& in, const Target& target) {
  in.execute = target.cdna == 3 ? Fnuz : Ocp;
  return "";
}

// --- scaled (gfx950)
// -----------------------------------------------------------------------------------------------------
enum class Wide : u8 { f32, f16, bf16 };
template <Wide From>
float wide_value(u32 bits) {
  if constexpr (From == Wide::f32) return as_f32(bits);
  if constexpr (From == Wide::f16) return f32_of_f16(bits);
  if constexpr (From == Wide::bf16) return f32_of_bf16(bits);
}
template <Wide To>
u32 wide_bits(float value) {
  if constexpr (To == Wide::f32) return bits_of(value);
  if constexpr (To == Wide::f16) return f16_of_f32(value);
  if constexpr (To == Wide::bf16) return bf16_of_f32(value);
}
// Products with a power of two are exact in double, and what f32 then loses is below every narrow format.
float scaled_up(float value, u32 scale) {
  const i32 exponent = static_cast<i32>(scale >> 23 & 0xff);
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(static_cast<double>(value) * power_of_two(exponent - 127));
}
float scaled_down(float value, u32 scale) {
  const i32 exponent = static_cast<i32>(scale >> 23 & 0xff);
  if (exponent == 255) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(static_cast<double>(value) * power_of_two(127 - exponent));
}
u32 next_random(u32 x) { return x << 1 ^ (x >> 31 ? 197u : 0u); }  // V_PRNG_B32

// Two values of one source (packed 16-bit) or of two sources (f32), and the scale after them.
template <Wide From>
struct Pair {
  Row a, b, s;
  const u32 *first, *second, *scale;
  Pair(Wave& w, const Instruction& in, u64& mask) {
    if constexpr (From == Wide::f32) {
      first = source_f32(w, in, 0, a, mask);
      second = source_f32(w, in, 1, b, mask);
      scale = source32(w, in, 2, s, mask);
    } else {
      first = second = source32(w, in, 0, a, mask);
      scale = source32(w, in, 1, s, mask);
    }
  }
  float low(int l) const { return scaled_down(wide_value<From>(first[l]), scale[l]); }
  float high(int l) const {
    return scaled_down(wide_value<From>(From == Wide::f32 ? second[l] : second[l] >> 16), scale[l]);
  }
};
template <class T, Wide From>
void scaled_word_of_pair(Wave& w, const Instruction& in) {
  Row r;
  u64 mask = w.exec();
  const bool saturate = overflow_saturates(w);
  const Pair<From> x(w, in, mask);
  for_lanes(w, [&](int l) { r.lane[l] = narrowed<T>(x.low(l), saturate) | narrowed<T>(x.high(l), saturate) << 8; });
  const u32 high = encoded_op_sel(in) >> 3;
  const u32* old = w.vgpr[in.operand[0].reg];
  for_lanes(w,
            [&](int l) { r.lane[l] = high ? (old[l] & 0xffff) | r.lane[l] << 16 : (old[l] & 0xffff0000) | r.lane[l]; });
  write_row(w, in.operand[0].reg, r.lane, mask);
}
template <Wide From>
void scaled_fp4_of_pair(Wave& w, const Instruction& in) {
  Row r;
  u64 mask = w.exec();
  const Pair<From> x(w, in, mask);
  for_lanes(w, [&](int l) { r.lane[l] = narrowed<Fp4>(x.low(l), true) | narrowed<Fp4>(x.high(l), true) << 4; });
  write_byte(w, in, r, encoded_op_sel(in) >> 2, mask);
}
template <class T, Wide From>
void scaled_byte_by_chance(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  u64 mask = w.exec();
  const bool saturate = overflow_saturates(w);
  const u32* x = From == Wide::f32 ? source_f32(w, in, 0, a, mask) : source32(w, in, 0, a, mask);
  const u32* seed = source32(w, in, 1, b, mask);
  const u32* scale = source32(w, in, 2, c, mask);
  const int shift = From != Wide::f32 && (encoded_op_sel(in) & 1) ? 16 : 0;
  for_lanes(w, [&](int l) {
    const float value = scaled_down(wide_value<From>(x[l] >> shift), scale[l]);
    r.lane[l] = narrowed_by_chance<T>(value, seed[l], saturate);
  });
  write_byte(w, in, r, encoded_op_sel(in) >> 2, mask);
}
// S0 is a pair of registers for f32, one register of two halves otherwise.
template <Wide From>
void scaled_fp4_by_chance(Wave& w, const Instruction& in) {
  Row a, a2, b, c, r;
  u64 mask = w.exec();
  const u32* x = plain_row(w, in.source(0), a);
  const u32* y = From == Wide::f32 ? plain_row(w, in.source(0), a2, 1) : x;
  const u32* seed = source32(w, in, 1, b, mask);
  const u32* scale = source32(w, in, 2, c, mask);
  for_lanes(w, [&](int l) {
    const float low = scaled_down(wide_value<From>(x[l]), scale[l]);
    const float high = scaled_down(wide_value<From>(From == Wide::f32 ? y[l] : y[l] >> 16), scale[l]);
    r.lane[l] = narrowed_by_chance<Fp4>(low, seed[l], true) | narrowed_by_chance<Fp4>(high, next_random(seed[l]), true)
                                                                  << 4;
  });
  write_byte(w, in, r, encoded_op_sel(in) >> 2, mask);
}
template <class T, Wide To>
void scaled_single_of_byte(Wave& w, const Instruction& in) {
  Row a, b, r;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* scale = source32(w, in, 1, b, mask);
  const u32 select = encoded_op_sel(in), shift = 8 * (select & 3);
  for_lanes(w, [&](int l) { r.lane[l] = wide_bits<To>(scaled_up(widened<T>(x[l] >> shift & 0xff), scale[l])); });
  if constexpr (To == Wide::f32) return write32(w, in, r, mask);
  const u32* old = w.vgpr[in.operand[0].reg];
  for_lanes(w, [&](int l) {
    r.lane[l] = select & 8 ? (old[l] & 0xffff) | r.lane[l] << 16 : (old[l] & 0xffff0000) | r.lane[l];
  });
  write_row(w, in.operand[0].reg, r.lane, mask);
}
// Two values from a word (8-bit formats: OPSEL[0]) or a byte (fp4: OPSEL[1:0]).
template <class T, Wide To>
void scaled_pair(Wave& w, const Instruction& in) {
  constexpr bool nibbles = T::sign == Fp4::sign;
  constexpr u32 bits = nibbles ? 4 : 8, all = (1u << bits) - 1;
  Row a, b, low, high;
  u64 mask = w.exec();
  const u32* x = source32(w, in, 0, a, mask);
  const u32* scale = source32(w, in, 1, b, mask);
  const u32 select = encoded_op_sel(in), shift = nibbles ? 8 * (select & 3) : 16 * (select & 1);
  for_lanes(w, [&](int l) {
    low.lane[l] = wide_bits<To>(scaled_up(widened<T>(x[l] >> shift & all), scale[l]));
    high.lane[l] = wide_bits<To>(scaled_up(widened<T>(x[l] >> shift >> bits & all), scale[l]));
  });
  const u16 reg = in.operand[0].reg;
  if constexpr (To == Wide::f32) {
    write_row(w, reg, low.lane, mask);
    write_row(w, reg + 1, high.lane, mask);
  } else {
    for_lanes(w, [&](int l) { low.lane[l] |= high.lane[l] << 16; });
    write_row(w, reg, low.lane, mask);
  }
}

// --- blocks of 32 six-bit floats (gfx950)
// ---------------------------------------------------------------------------------- Sources are read whole before
// anything is written: the destination may overlap them.
void write_rows(Wave& w, const Instruction& in, const Row* rows, int count, u64 mask) {
  for (int i = 0; i < count; ++i) write_row(w, static_cast<u16>(in.operand[0].reg + i), rows[i].lane, mask);
}
u32 source_dword(const Wave& w, const Operand& o, int dword, int lane) {
  return o.is_vgpr() ? w.vgpr[o.reg + dword][lane] : scalar32(w, o, o.is_constant() ? 0 : dword);
}
template <class T, Wide To>
void unpack_block(Wave& w, const Instruction& in) {
  constexpr int count = To == Wide::f32 ? 32 : 16;
  Row b, out[count] = {};
  u64 mask = w.exec();
  const u32* scale = source32(w, in, 1, b, mask);
  for (int l = 0; l < w.lanes; ++l) {
    for (int e = 0; e < 32; ++e) {
      const int bit = 6 * e, dword = bit / 32, shift = bit % 32;
      u64 window = source_dword(w, in.source(0), dword, l);
      if (shift > 26) window |= static_cast<u64>(source_dword(w, in.source(0), dword + 1, l)) << 32;
      const u32 bits = wide_bits<To>(scaled_up(widened<T>(static_cast<u32>(window >> shift) & 63), scale[l]));
      if constexpr (To == Wide::f32) {
        out[e].lane[l] = bits;
      } else {
        out[e / 2].lane[l] |= bits << (16 * (e & 1));
      }
    }
  }
  write_rows(w, in, out, count, mask);
}
// `Sources` = 2: the two f32 blocks of sixteen interleave. `Chance`: source 1 is the seed.
template <class T, Wide From, int Sources, bool Chance>
void pack_block(Wave& w, const Instruction& in) {
  Row seed_space, scale_space, out[6] = {};
  u64 mask = w.exec();
  const u32* seed = Chance ? source32(w, in, 1, seed_space, mask) : nullptr;
  const u32* scale = source32(w, in, Chance ? 2 : Sources, scale_space, mask);
  for (int l = 0; l < w.lanes; ++l) {
    u32 random = Chance ? seed[l] : 0;
    for (int e = 0; e < 32; ++e) {
      const Operand& o = in.source(Sources == 2 ? e & 1 : 0);
      const int index = Sources == 2 ? e / 2 : e;
      const u32 bits =
          From == Wide::f32 ? source_dword(w, o, index, l) : source_dword(w, o, index / 2, l) >> (16 * (index & 1));
      const float value = scaled_down(wide_value<From>(bits), scale[l]);
      u32 code;
      if constexpr (Chance) {
        code = narrowed_by_chance<T>(value, random, true);
        random = next_random(random);
      } else {
        code = narrowed<T>(value, true);
      }
      const int bit = 6 * e, dword = bit / 32, shift = bit % 32;
      out[dword].lane[l] |= code << shift;
      if (shift > 26) out[dword + 1].lane[l] |= code >> (32 - shift);
    }
  }
  write_rows(w, in, out, 6, mask);
}

// What a sign would mean on a source of several values, the manual does not say; on the scale, the last, it is nothing.
std::string plain_sources(Instruction& in, const Target&) {
  for (int i = in.dest_count; i + 1 < in.operand_count; ++i) {
    if (in.operand[i].negate || in.operand[i].absolute) return "the sign of a packed source is not modelled";
  }
  return "";
}

constexpr Class V = Class::vector;
constexpr u32 from_byte = kTakesClamp | kTakesOmod | kTakesDpp | kTakesSdwa | kTakesByteSel;
constexpr u32 from_word = kTakesOpSel | kTakesDpp | kTakesSdwa;
constexpr u32 to_word = kTakesSign | kTakesOpSel | kTakesDpp;
constexpr u32 to_byte = kTakesSign | kTakesOpSel | kTakesDpp | kTakesByteSel;
constexpr u32 scaled = kTakesSign | kTakesOpSel;
constexpr Wide f32 = Wide::f32, half = Wide::f16, brain = Wide::bf16;

const Opcode rows[] = {
    {"v_cvt_f32_fp8", f32_of_byte<Fp8>, V, "f=u", from_byte, 0, 4, by_format<f32_of_byte<Fp8Fnuz>, f32_of_byte<Fp8>>},
    {"v_cvt_f32_bf8", f32_of_byte<Bf8>, V, "f=u", from_byte, 0, 4, by_format<f32_of_byte<Bf8Fnuz>, f32_of_byte<Bf8>>},
    {"v_cvt_pk_f32_fp8", pair_of_word<Fp8>, V, "F=u", from_word, 0, 4,
     by_format<pair_of_word<Fp8Fnuz>, pair_of_word<Fp8>>},
    {"v_cvt_pk_f32_bf8", pair_of_word<Bf8>, V, "F=u", from_word, 0, 4,
     by_format<pair_of_word<Bf8Fnuz>, pair_of_word<Bf8>>},
    {"v_cvt_pk_fp8_f32", word_of_pair<Fp8>, V, "w=ff", to_word, 0, 4,
     by_format<word_of_pair<Fp8Fnuz>, word_of_pair<Fp8>>},
    {"v_cvt_pk_bf8_f32", word_of_pair<Bf8>, V, "w=ff", to_word, 0, 4,
     by_format<word_of_pair<Bf8Fnuz>, word_of_pair<Bf8>>},
    {"v_cvt_sr_fp8_f32", byte_by_chance<Fp8>, V, "u=fu", to_byte, 0, 4,
     by_format<byte_by_chance<Fp8Fnuz>, byte_by_chance<Fp8>>},
    {"v_cvt_sr_bf8_f32", byte_by_chance<Bf8>, V, "u=fu", to_byte, 0, 4,
     by_format<byte_by_chance<Bf8Fnuz>, byte_by_chance<Bf8>>},

    {"v_cvt_scalef32_pk_fp8_f32", scaled_word_of_pair<Fp8, f32>, V, "u=fff", scaled},
    {"v_cvt_scalef32_pk_bf8_f32", scaled_word_of_pair<Bf8, f32>, V, "u=fff", scaled},
    {"v_cvt_scalef32_pk_fp8_f16", scaled_word_of_pair<Fp8, half>, V, "u=Hf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk_bf8_f16", scaled_word_of_pair<Bf8, half>, V, "u=Hf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk_fp8_bf16", scaled_word_of_pair<Fp8, brain>, V, "u=Bf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk_bf8_bf16", scaled_word_of_pair<Bf8, brain>, V, "u=Bf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk_fp4_f32", scaled_fp4_of_pair<f32>, V, "u=fff", scaled},
    {"v_cvt_scalef32_pk_fp4_f16", scaled_fp4_of_pair<half>, V, "u=Hf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk_fp4_bf16", scaled_fp4_of_pair<brain>, V, "u=Bf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_fp8_f32", scaled_byte_by_chance<Fp8, f32>, V, "u=fuf", scaled},
    {"v_cvt_scalef32_sr_bf8_f32", scaled_byte_by_chance<Bf8, f32>, V, "u=fuf", scaled},
    {"v_cvt_scalef32_sr_fp8_f16", scaled_byte_by_chance<Fp8, half>, V, "u=huf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_bf8_f16", scaled_byte_by_chance<Bf8, half>, V, "u=huf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_fp8_bf16", scaled_byte_by_chance<Fp8, brain>, V, "u=buf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_bf8_bf16", scaled_byte_by_chance<Bf8, brain>, V, "u=buf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk_fp4_f32", scaled_fp4_by_chance<f32>, V, "u=Fuf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk_fp4_f16", scaled_fp4_by_chance<half>, V, "u=Huf", scaled, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk_fp4_bf16", scaled_fp4_by_chance<brain>, V, "u=Buf", scaled, 0, 4, plain_sources},

    {"v_cvt_scalef32_f32_fp8", scaled_single_of_byte<Fp8, f32>, V, "f=uf", scaled},
    {"v_cvt_scalef32_f32_bf8", scaled_single_of_byte<Bf8, f32>, V, "f=uf", scaled},
    {"v_cvt_scalef32_f16_fp8", scaled_single_of_byte<Fp8, half>, V, "h=uf", scaled},
    {"v_cvt_scalef32_f16_bf8", scaled_single_of_byte<Bf8, half>, V, "h=uf", scaled},
    {"v_cvt_scalef32_pk_f32_fp8", scaled_pair<Fp8, f32>, V, "F=uf", scaled},
    {"v_cvt_scalef32_pk_f32_bf8", scaled_pair<Bf8, f32>, V, "F=uf", scaled},
    {"v_cvt_scalef32_pk_f32_fp4", scaled_pair<Fp4, f32>, V, "F=uf", scaled},
    {"v_cvt_scalef32_pk_f16_fp8", scaled_pair<Fp8, half>, V, "H=uf", scaled},
    {"v_cvt_scalef32_pk_f16_bf8", scaled_pair<Bf8, half>, V, "H=uf", scaled},
    {"v_cvt_scalef32_pk_f16_fp4", scaled_pair<Fp4, half>, V, "H=uf", scaled},
    {"v_cvt_scalef32_pk_bf16_fp8", scaled_pair<Fp8, brain>, V, "B=uf", scaled},
    {"v_cvt_scalef32_pk_bf16_bf8", scaled_pair<Bf8, brain>, V, "B=uf", scaled},
    {"v_cvt_scalef32_pk_bf16_fp4", scaled_pair<Fp4, brain>, V, "B=uf", scaled},

    {"v_cvt_scalef32_pk32_f32_fp6", unpack_block<Fp6, f32>, V, "x=xf", kTakesSign},
    {"v_cvt_scalef32_pk32_f32_bf6", unpack_block<Bf6, f32>, V, "x=xf", kTakesSign},
    {"v_cvt_scalef32_pk32_f16_fp6", unpack_block<Fp6, half>, V, "x=xf", kTakesSign},
    {"v_cvt_scalef32_pk32_f16_bf6", unpack_block<Bf6, half>, V, "x=xf", kTakesSign},
    {"v_cvt_scalef32_pk32_bf16_fp6", unpack_block<Fp6, brain>, V, "x=xf", kTakesSign},
    {"v_cvt_scalef32_pk32_bf16_bf6", unpack_block<Bf6, brain>, V, "x=xf", kTakesSign},
    {"v_cvt_scalef32_pk32_fp6_f16", pack_block<Fp6, half, 1, false>, V, "x=xf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk32_bf6_f16", pack_block<Bf6, half, 1, false>, V, "x=xf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk32_fp6_bf16", pack_block<Fp6, brain, 1, false>, V, "x=xf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_pk32_bf6_bf16", pack_block<Bf6, brain, 1, false>, V, "x=xf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_2xpk16_fp6_f32", pack_block<Fp6, f32, 2, false>, V, "x=xxf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_2xpk16_bf6_f32", pack_block<Bf6, f32, 2, false>, V, "x=xxf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk32_fp6_f32", pack_block<Fp6, f32, 1, true>, V, "x=xuf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk32_bf6_f32", pack_block<Bf6, f32, 1, true>, V, "x=xuf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk32_fp6_f16", pack_block<Fp6, half, 1, true>, V, "x=xuf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk32_bf6_f16", pack_block<Bf6, half, 1, true>, V, "x=xuf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk32_fp6_bf16", pack_block<Fp6, brain, 1, true>, V, "x=xuf", kTakesSign, 0, 4, plain_sources},
    {"v_cvt_scalef32_sr_pk32_bf6_bf16", pack_block<Bf6, brain, 1, true>, V, "x=xuf", kTakesSign, 0, 4, plain_sources},
};

}  // namespace

std::span<const Opcode> small_float_opcodes() { return rows; }

}  // namespace emu

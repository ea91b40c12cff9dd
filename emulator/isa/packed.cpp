// Packed, mixed-precision and dot-product instructions (VOP3P and their VOP2 forms). Semantics: "AMD Instinct MI300
// ISA", "CDNA4 ISA" and "RDNA4 ISA" reference guides, VOP3P section.
#include "isa/small_floats.h"
#include "isa/transcendental.h"

namespace emu {
namespace {

// --- two 16-bit values a lane
// ------------------------------------------------------------------------------------------
enum class Kind : u8 { integer, f16, bf16 };
// Source i as two rows of 16-bit values: op_sel says which half the low result reads, op_sel_hi which the high one
// does.
struct Halves {
  Row low, high;
  Halves(Wave& w, const Instruction& in, int i, u64& mask, Kind kind) {
    const bool is_float = kind != Kind::integer;
    Row space;
    const u32* x = source32(w, in, i, space, mask);
    const int low_shift = in.op_sel >> i & 1 ? 16 : 0, high_shift = in.op_sel_hi >> i & 1 ? 16 : 0;
    // neg flips sign bits; integers have none.
    const u32 low_flip = is_float && (in.neg_lo >> i & 1) ? 0x8000 : 0;
    const u32 high_flip = is_float && (in.neg_hi >> i & 1) ? 0x8000 : 0;
    for_lanes(w, [&](int l) {
      low.lane[l] = (x[l] >> low_shift & 0xffff) ^ low_flip;
      high.lane[l] = (x[l] >> high_shift & 0xffff) ^ high_flip;
    });
    if (kind == Kind::f16 && w.flush_f16_f64) [[unlikely]] {
      for_lanes(w, [&](int l) {
        low.lane[l] = flush_f16_bits(low.lane[l]);
        high.lane[l] = flush_f16_bits(high.lane[l]);
      });
    }
  }
};
u32 clamp_f16(u32 x) {
  const float value = f32_of_f16(x);
  return f16_of_f32(value > 1.f ? 1.f : (value > 0.f ? value : 0.f));
}
// `low` and `high` hold f16 results.
void write_pair_f16(Wave& w, const Instruction& in, Row& low, Row& high, u64 mask) {
  if (w.flush_f16_f64) [[unlikely]] {
    for_lanes(w, [&](int l) {
      low.lane[l] = flush_f16_bits(low.lane[l]);
      high.lane[l] = flush_f16_bits(high.lane[l]);
    });
  }
  if (in.clamp) {
    for_lanes(w, [&](int l) {
      low.lane[l] = clamp_f16(low.lane[l]);
      high.lane[l] = clamp_f16(high.lane[l]);
    });
  }
  for_lanes(w, [&](int l) { low.lane[l] |= high.lane[l] << 16; });
  write_row(w, in.operand[0].reg, low.lane, mask);
}
template <auto F>
void f16_pair2(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Halves x(w, in, 0, mask, Kind::f16);
  const Halves y(w, in, 1, mask, Kind::f16);
  for_lanes(w, [&](int l) {
    x.low.lane[l] = f16_of_f32(F(f32_of_f16(x.low.lane[l]), f32_of_f16(y.low.lane[l])));
    x.high.lane[l] = f16_of_f32(F(f32_of_f16(x.high.lane[l]), f32_of_f16(y.high.lane[l])));
  });
  write_pair_f16(w, in, x.low, x.high, mask);
}
void f16_pair_fma(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Halves x(w, in, 0, mask, Kind::f16);
  const Halves y(w, in, 1, mask, Kind::f16), z(w, in, 2, mask, Kind::f16);
  const auto fused = [](u32 a, u32 b, u32 c) {
    return f16_of_f32(fma_f16_to_odd(f32_of_f16(a), f32_of_f16(b), f32_of_f16(c)));
  };
  for_lanes(w, [&](int l) {
    x.low.lane[l] = fused(x.low.lane[l], y.low.lane[l], z.low.lane[l]);
    x.high.lane[l] = fused(x.high.lane[l], y.high.lane[l], z.high.lane[l]);
  });
  write_pair_f16(w, in, x.low, x.high, mask);
}
void f16_pair_accumulate(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Halves x(w, in, 0, mask, Kind::f16);
  const Halves y(w, in, 1, mask, Kind::f16);
  const u32* old = w.vgpr[in.operand[0].reg];
  const auto fused = [](u32 a, u32 b, u32 c) {
    return f16_of_f32(fma_f16_to_odd(f32_of_f16(a), f32_of_f16(b), f32_of_f16(c)));
  };
  for_lanes(w, [&](int l) {
    x.low.lane[l] = fused(x.low.lane[l], y.low.lane[l], old[l]);
    x.high.lane[l] = fused(x.high.lane[l], y.high.lane[l], old[l] >> 16);
  });
  write_pair_f16(w, in, x.low, x.high, mask);
}
// An inline constant is in both halves from gfx11 on, in the low one before (LLVM, getPKFMACF16InlineEncoding).
std::string bind_pair_accumulate(Instruction& in, const Target& target) {
  Operand& o = in.operand[in.dest_count];
  if (o.is_constant() && !o.is_literal && target.is_rdna()) o.constant = (o.constant & 0xffff) * 0x10001;
  return "";
}
template <Choice C, bool Ieee>
void choose_pair_as(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Halves x(w, in, 0, mask, Kind::f16);
  const Halves y(w, in, 1, mask, Kind::f16);
  for_lanes(w, [&](int l) {
    x.low.lane[l] = choose<F16Bits, C, Ieee>(x.low.lane[l], y.low.lane[l]);
    x.high.lane[l] = choose<F16Bits, C, Ieee>(x.high.lane[l], y.high.lane[l]);
  });
  write_pair_f16(w, in, x.low, x.high, mask);
}
template <Choice C>
void choose_pair(Wave& w, const Instruction& in) {
  ieee_mode(w) ? choose_pair_as<C, true>(w, in) : choose_pair_as<C, false>(w, in);
}
template <Choice C>  // minimum3 and maximum3 only: NaN wins whatever the mode
void choose_pair3(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Halves x(w, in, 0, mask, Kind::f16);
  const Halves y(w, in, 1, mask, Kind::f16), z(w, in, 2, mask, Kind::f16);
  const auto pick = [](u32 a, u32 b) { return choose<F16Bits, C, false>(a, b); };
  for_lanes(w, [&](int l) {
    x.low.lane[l] = pick(pick(x.low.lane[l], y.low.lane[l]), z.low.lane[l]);
    x.high.lane[l] = pick(pick(x.high.lane[l], y.high.lane[l]), z.high.lane[l]);
  });
  write_pair_f16(w, in, x.low, x.high, mask);
}

// Integers: F takes the sources extended by sign or by zeros and gives 32 bits, which clamp saturates.
template <bool Signed>
i32 extended(u32 x) {
  return Signed ? static_cast<i16>(x) : static_cast<i32>(x);
}
template <bool Signed>
u32 to_word(i64 x, bool saturate) {
  if (!saturate) return static_cast<u32>(x) & 0xffff;
  const i64 low = Signed ? -0x8000 : 0, high = Signed ? 0x7fff : 0xffff;
  return static_cast<u32>(x < low ? low : (x > high ? high : x)) & 0xffff;
}
template <auto F, bool Signed>
void word_pair2(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row r;
  const Halves x(w, in, 0, mask, Kind::integer), y(w, in, 1, mask, Kind::integer);
  for_lanes(w, [&](int l) {
    const i32 low = F(extended<Signed>(x.low.lane[l]), extended<Signed>(y.low.lane[l]));
    const i32 high = F(extended<Signed>(x.high.lane[l]), extended<Signed>(y.high.lane[l]));
    r.lane[l] = to_word<Signed>(low, in.clamp) | to_word<Signed>(high, in.clamp) << 16;
  });
  write_row(w, in.operand[0].reg, r.lane, mask);
}
template <bool Signed>
void word_pair_mad(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row r;
  const Halves x(w, in, 0, mask, Kind::integer), y(w, in, 1, mask, Kind::integer), z(w, in, 2, mask, Kind::integer);
  const auto mad = [](u32 a, u32 b, u32 c) {
    return static_cast<i64>(extended<Signed>(a)) * extended<Signed>(b) + extended<Signed>(c);
  };
  for_lanes(w, [&](int l) {
    r.lane[l] = to_word<Signed>(mad(x.low.lane[l], y.low.lane[l], z.low.lane[l]), in.clamp) |
                to_word<Signed>(mad(x.high.lane[l], y.high.lane[l], z.high.lane[l]), in.clamp) << 16;
  });
  write_row(w, in.operand[0].reg, r.lane, mask);
}
constexpr auto add_f = [](float a, float b) { return a + b; };
constexpr auto multiply_f = [](float a, float b) { return a * b; };
constexpr auto plus = [](i32 a, i32 b) { return a + b; };
constexpr auto minus = [](i32 a, i32 b) { return a - b; };
// The low 16 bits are all that is kept.
constexpr auto times = [](i32 a, i32 b) {
  return static_cast<i32>(static_cast<u32>(a) * static_cast<u32>(b) & 0xffff);
};
constexpr auto smaller = [](i32 a, i32 b) { return a < b ? a : b; };
constexpr auto larger = [](i32 a, i32 b) { return a > b ? a : b; };
constexpr auto shift_left = [](i32 n, i32 x) { return static_cast<i32>(static_cast<u32>(x) << (n & 15)); };
constexpr auto shift_right = [](i32 n, i32 x) { return x >> (n & 15); };

// --- two f32 a lane (gfx90a on)
// ------------------------------------------------------------------------------------------ Dword `select` of source
// i, with its sign flipped or not. Constants are one dword, the same for both results.
const u32* dword_of_pair(Wave& w, const Instruction& in, int i, bool high, Row& space) {
  const Operand& o = in.source(i);
  const int select = (high ? in.op_sel_hi : in.op_sel) >> i & 1;
  const u32 flip = (high ? in.neg_hi : in.neg_lo) >> i & 1 ? 0x80000000 : 0;
  const u32* x = plain_row(w, o, space, o.is_constant() ? 0 : select);
  if (!flip && !w.flush_f32) return x;
  const bool flushes = w.flush_f32;
  for_lanes(w, [&](int l) { space.lane[l] = (flushes ? flush_bits(x[l]) : x[l]) ^ flip; });
  return space.lane;
}
void write_pair_f32(Wave& w, const Instruction& in, Row& low, Row& high, u64 mask) {
  Row* const halves[] = {&low, &high};
  for (int i = 0; i < 2; ++i) {
    u32* x = halves[i]->lane;
    if (w.flush_f32) for_lanes(w, [&](int l) { x[l] = flush_bits(x[l]); });
    if (in.clamp) {
      for_lanes(w, [&](int l) {
        const float value = as_f32(x[l]);
        x[l] = bits_of(value > 1.f ? 1.f : (value > 0.f ? value : 0.f));
      });
    }
    write_row(w, static_cast<u16>(in.operand[0].reg + i), x, mask);
  }
}
template <auto F>
void f32_pair2(Wave& w, const Instruction& in) {
  Row a, b, c, d, low, high;
  const u32 *x0 = dword_of_pair(w, in, 0, false, a), *y0 = dword_of_pair(w, in, 1, false, b);
  const u32 *x1 = dword_of_pair(w, in, 0, true, c), *y1 = dword_of_pair(w, in, 1, true, d);
  for_lanes(w, [&](int l) {
    low.lane[l] = bits_of(F(as_f32(x0[l]), as_f32(y0[l])));
    high.lane[l] = bits_of(F(as_f32(x1[l]), as_f32(y1[l])));
  });
  write_pair_f32(w, in, low, high, w.exec());
}
void f32_pair_fma(Wave& w, const Instruction& in) {
  Row a, b, c, d, e, f, low, high;
  const u32 *x0 = dword_of_pair(w, in, 0, false, a), *y0 = dword_of_pair(w, in, 1, false, b);
  const u32 *x1 = dword_of_pair(w, in, 0, true, c), *y1 = dword_of_pair(w, in, 1, true, d);
  const u32 *z0 = dword_of_pair(w, in, 2, false, e), *z1 = dword_of_pair(w, in, 2, true, f);
  for_lanes(w, [&](int l) {
    low.lane[l] = bits_of(__builtin_fmaf(as_f32(x0[l]), as_f32(y0[l]), as_f32(z0[l])));
    high.lane[l] = bits_of(__builtin_fmaf(as_f32(x1[l]), as_f32(y1[l]), as_f32(z1[l])));
  });
  write_pair_f32(w, in, low, high, w.exec());
}
// V_PK_MOV_B32: op_sel[0] chooses the low result's dword of source 0, op_sel[1] the high result's of source 1.
void move_pair(Wave& w, const Instruction& in) {
  Row a, b, low, high;
  const auto select = [&](int i) { return in.source(i).is_constant() ? 0 : in.op_sel >> i & 1; };
  const u32* x = plain_row(w, in.source(0), a, select(0));
  const u32* y = plain_row(w, in.source(1), b, select(1));
  std::memcpy(low.lane, x, sizeof low);
  std::memcpy(high.lane, y, sizeof high);
  write_row(w, in.operand[0].reg, low.lane, w.exec());
  write_row(w, in.operand[0].reg + 1, high.lane, w.exec());
}
std::string no_signs(Instruction& in, const Target&) {
  return in.neg_lo || in.neg_hi ? "neg_lo and neg_hi have no meaning here" : "";
}

// --- mixed precision
// ----------------------------------------------------------------------------------------------------- Source i as
// f32: op_sel_hi says f16, op_sel then which half. Signs apply to the value.
void mixed_source(Wave& w, const Instruction& in, int i, Row& out) {
  const Operand& o = in.source(i);
  Row space;
  const u32* x = plain_row(w, o, space);
  const bool is_f16 = in.op_sel_hi >> i & 1;
  if (is_f16) {
    const int shift = (in.op_sel >> i & 1) && !o.is_constant() ? 16 : 0;
    const bool flushes = w.flush_f16_f64;
    for_lanes(w, [&](int l) {
      const u32 half = x[l] >> shift & 0xffff;
      out.lane[l] = bits_of(f32_of_f16(flushes ? flush_f16_bits(half) : half));
    });
  } else {
    const bool flushes = w.flush_f32;
    for_lanes(w, [&](int l) { out.lane[l] = flushes ? flush_bits(x[l]) : x[l]; });
  }
  const u32 keep = o.absolute ? 0x7fffffff : ~0u, flip = o.negate ? 0x80000000 : 0;
  for_lanes(w, [&](int l) { out.lane[l] = (out.lane[l] & keep) ^ flip; });
}
enum class Into : u8 { f32, low_f16, high_f16 };
template <Into Where>
void mixed_fma(Wave& w, const Instruction& in) {
  Row a, b, c, r;
  mixed_source(w, in, 0, a);
  mixed_source(w, in, 1, b);
  mixed_source(w, in, 2, c);
  const bool clamps = in.clamp, flushes = w.flush_f32;
  const u32* old = w.vgpr[in.operand[0].reg];
  for_lanes(w, [&](int l) {
    const float x = as_f32(a.lane[l]), y = as_f32(b.lane[l]), z = as_f32(c.lane[l]);
    float value = __builtin_fmaf(x, y, z);
    value = flushes ? flush(value) : value;
    value = clamps ? (value > 1.f ? 1.f : (value > 0.f ? value : 0.f)) : value;
    if constexpr (Where == Into::f32) r.lane[l] = bits_of(value);
    if constexpr (Where == Into::low_f16) r.lane[l] = (old[l] & 0xffff0000) | f16_of_f32(value);
    if constexpr (Where == Into::high_f16) r.lane[l] = (old[l] & 0xffff) | f16_of_f32(value) << 16;
  });
  write_row(w, in.operand[0].reg, r.lane, w.exec());
}
// Their op_sel_hi is 0 where none is printed, unlike the packed instructions'. A constant with a point stands for an
// f16 where op_sel_hi says the source is one.
std::string bind_mixed(Instruction& in, const Target&) {
  if (in.op_sel_hi == 0xff) in.op_sel_hi = 0;
  if (in.neg_lo || in.neg_hi) return "neg_lo and neg_hi have no meaning here";
  for (int i = 0; i < 3; ++i) {
    Operand& o = in.operand[in.dest_count + i];
    const float value = as_f32(static_cast<u32>(o.constant)), size = __builtin_fabsf(value);
    const bool inline_float =
        size == 0.5f || size == 1.f || size == 2.f || size == 4.f || value == 0.15915494309189532f;
    if (o.is_constant() && (in.op_sel_hi >> i & 1) && inline_float) o.constant = f16_of_f32(value);
  }
  return "";
}

// --- dot products of floats
// ------------------------------------------------------------------------------------------------
enum class Element : u8 { f16, bf16 };
template <Element E>
float element(u32 bits) {
  return E == Element::f16 ? f32_of_f16(bits) : f32_of_bf16(bits & 0xffff);
}
// Products are exact in f32; each addition rounds, in the manual's order: the accumulator first, except that CDNA4's
// V_DOT2_F32_BF16 adds it last.
template <Element E>
float dot2(float c, u32 a0, u32 b0, u32 a1, u32 b1, bool accumulator_last) {
  const float first = element<E>(a0) * element<E>(b0), second = element<E>(a1) * element<E>(b1);
  return accumulator_last ? (first + second) + c : (c + first) + second;
}
template <Element E>
void dot2_f32(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row c, r;
  constexpr Kind kind = E == Element::f16 ? Kind::f16 : Kind::bf16;
  const Halves x(w, in, 0, mask, kind), y(w, in, 1, mask, kind);
  const u32* z = source_f32(w, in, 2, c, mask);
  const u32 flip = in.neg_lo >> 2 & 1 ? 0x80000000 : 0;
  const bool last = E == Element::bf16 && !w.target->is_rdna();
  for_lanes(w, [&](int l) {
    r.lane[l] =
        bits_of(dot2<E>(as_f32(z[l] ^ flip), x.low.lane[l], y.low.lane[l], x.high.lane[l], y.high.lane[l], last));
  });
  write_f32(w, in, r, mask);
}
std::string bind_dot2(Instruction& in, const Target&) {
  return in.neg_hi >> 2 & 1 ? "neg_hi of an f32 source has no meaning" : "";
}
// VOP2: the destination accumulates; the sources have no halves to choose and, as printed signs go, no signs.
template <Element E>
void dot2_accumulate(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row a, b, r;
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* z = w.vgpr[in.operand[0].reg];
  for_lanes(w, [&](int l) {
    r.lane[l] = bits_of(dot2<E>(as_f32(z[l]), x[l] & 0xffff, y[l] & 0xffff, x[l] >> 16, y[l] >> 16, false));
  });
  write_f32(w, in, r, mask);
}
// V_DOT2_F16_F16, V_DOT2_BF16_BF16 (gfx11, gfx12): a 16-bit accumulator and result, rounded at each addition.
template <Element E>
void dot2_narrow(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row a, b, c, r;
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* z = source16(w, in, 2, c, mask);
  const auto narrow = [](float value) { return E == Element::f16 ? f16_of_f32(value) : bf16_of_f32(value); };
  for_lanes(w, [&](int l) {
    const float first = element<E>(x[l] & 0xffff) * element<E>(y[l] & 0xffff);
    const float second = element<E>(x[l] >> 16) * element<E>(y[l] >> 16);
    const u32 sum = narrow(element<E>(z[l]) + first);
    r.lane[l] = narrow(element<E>(sum) + second);
  });
  write16_keeping(w, in, r, mask);
}
std::string bind_dot2_narrow(Instruction& in, const Target&) {
  for (int i = 0; i < 2; ++i) {
    if (in.source(i).negate || in.source(i).absolute) return "the sign of a packed source is not modelled";
  }
  return in.op_sel & 3 ? "op_sel of a packed source is not modelled" : "";
}
// V_DOT4_F32_FP8_BF8 and the like (gfx12).
template <class A, class B>
void dot4_f32(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row a, b, c, r;
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* z = source_f32(w, in, 2, c, mask);
  const u32 flip = in.neg_lo >> 2 & 1 ? 0x80000000 : 0;
  for_lanes(w, [&](int l) {
    float sum = as_f32(z[l] ^ flip);
    for (int i = 0; i < 32; i += 8) sum += widened<A>(x[l] >> i & 0xff) * widened<B>(y[l] >> i & 0xff);
    r.lane[l] = bits_of(sum);
  });
  write_f32(w, in, r, mask);
}
std::string bind_dot4_f32(Instruction& in, const Target&) {
  return (in.neg_lo & 3) || in.neg_hi ? "signs of 8-bit sources have no meaning" : "";
}

// --- dot products of integers
// ----------------------------------------------------------------------------------------------
template <int Bits>
i64 field(u32 x, int place, bool is_signed) {
  const u32 raw = x >> (Bits * place) & ((1u << Bits) - 1);
  const u32 sign = 1u << (Bits - 1);
  return is_signed ? static_cast<i64>(raw ^ sign) - sign : static_cast<i64>(raw);
}
template <int Bits>
u32 integer_dot(u32 x, u32 y, u32 c, bool signed_x, bool signed_y, bool signed_sum, bool saturate) {
  i64 sum = signed_sum ? static_cast<i64>(static_cast<i32>(c)) : static_cast<i64>(c);
  for (int i = 0; i < 32 / Bits; ++i) sum += field<Bits>(x, i, signed_x) * field<Bits>(y, i, signed_y);
  if (saturate) {
    const i64 low = signed_sum ? INT32_MIN : 0, high = signed_sum ? INT32_MAX : UINT32_MAX;
    sum = sum < low ? low : (sum > high ? high : sum);
  }
  return static_cast<u32>(sum);
}
enum class Signs : u8 { none, both, by_neg };  // by_neg: V_DOT4_I32_IU8 tells each source's sign by neg_lo
template <int Bits, Signs S>
void dot_integers(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row a, b, c, r;
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* z = source32(w, in, 2, c, mask);
  const bool signed_x = S == Signs::both || (S == Signs::by_neg && (in.neg_lo & 1));
  const bool signed_y = S == Signs::both || (S == Signs::by_neg && (in.neg_lo & 2));
  const bool saturate = in.clamp;
  // 16-bit elements may be chosen by op_sel as the packed instructions' are.
  const auto halves = [&](u32 v, int i) {
    if constexpr (Bits != 16) return v;
    const u32 low = v >> (in.op_sel >> i & 1 ? 16 : 0) & 0xffff;
    return low | (v >> (in.op_sel_hi >> i & 1 ? 16 : 0)) << 16;
  };
  for_lanes(w, [&](int l) {
    r.lane[l] =
        integer_dot<Bits>(halves(x[l], 0), halves(y[l], 1), z[l], signed_x, signed_y, S != Signs::none, saturate);
  });
  write32(w, in, r, mask);
}
template <int Bits>
void dot_integers_accumulate(Wave& w, const Instruction& in) {
  u64 mask = w.exec();
  Row a, b, r;
  const u32* x = source32(w, in, 0, a, mask);
  const u32* y = source32(w, in, 1, b, mask);
  const u32* z = w.vgpr[in.operand[0].reg];
  const bool saturate = in.clamp;
  for_lanes(w, [&](int l) { r.lane[l] = integer_dot<Bits>(x[l], y[l], z[l], true, true, true, saturate); });
  write32(w, in, r, mask);
}

constexpr Class V = Class::vector;
constexpr u32 pair = kTakesPacked | kTakesClamp | kTakesDpp;
constexpr u32 mixed = kTakesPacked | kTakesSign | kTakesClamp;
constexpr u32 accumulating = kTakesClamp | kTakesDpp;

const Opcode rows[] = {
    {"v_pk_add_f16", f16_pair2<add_f>, V, "H=HH", pair},
    {"v_pk_mul_f16", f16_pair2<multiply_f>, V, "H=HH", pair},
    {"v_pk_fma_f16", f16_pair_fma, V, "H=HHH", pair},
    {"v_pk_fmac_f16", f16_pair_accumulate, V, "H=HH", accumulating, kReadsDest, 4, bind_pair_accumulate},
    {"v_pk_min_f16", choose_pair<Choice::min>, V, "H=HH", pair},
    {"v_pk_max_f16", choose_pair<Choice::max>, V, "H=HH", pair},
    {"v_pk_min_num_f16", choose_pair<Choice::min>, V, "H=HH", pair},
    {"v_pk_max_num_f16", choose_pair<Choice::max>, V, "H=HH", pair},
    {"v_pk_minimum_f16", choose_pair<Choice::minimum>, V, "H=HH", pair},
    {"v_pk_maximum_f16", choose_pair<Choice::maximum>, V, "H=HH", pair},
    {"v_pk_minimum3_f16", choose_pair3<Choice::minimum>, V, "H=HHH", pair},
    {"v_pk_maximum3_f16", choose_pair3<Choice::maximum>, V, "H=HHH", pair},

    {"v_pk_add_u16", word_pair2<plus, false>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_add_i16", word_pair2<plus, true>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_sub_u16", word_pair2<minus, false>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_sub_i16", word_pair2<minus, true>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_mul_lo_u16", word_pair2<times, false>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_mad_u16", word_pair_mad<false>, V, "W=WWW", pair, 0, 4, no_signs},
    {"v_pk_mad_i16", word_pair_mad<true>, V, "W=WWW", pair, 0, 4, no_signs},
    {"v_pk_min_u16", word_pair2<smaller, false>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_max_u16", word_pair2<larger, false>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_min_i16", word_pair2<smaller, true>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_max_i16", word_pair2<larger, true>, V, "W=WW", pair, 0, 4, no_signs},
    {"v_pk_lshlrev_b16", word_pair2<shift_left, false>, V, "W=WW", kTakesPacked | kTakesDpp, 0, 4, no_signs},
    {"v_pk_lshrrev_b16", word_pair2<shift_right, false>, V, "W=WW", kTakesPacked | kTakesDpp, 0, 4, no_signs},
    {"v_pk_ashrrev_i16", word_pair2<shift_right, true>, V, "W=WW", kTakesPacked | kTakesDpp, 0, 4, no_signs},

    // One pass for two results: what makes packed f32 twice the rate (CDNA2 white paper, "packed FP32").
    {"v_pk_add_f32", f32_pair2<add_f>, V, "F=FF", kTakesPacked | kTakesClamp},
    {"v_pk_mul_f32", f32_pair2<multiply_f>, V, "F=FF", kTakesPacked | kTakesClamp},
    {"v_pk_fma_f32", f32_pair_fma, V, "F=FFF", kTakesPacked | kTakesClamp},
    {"v_pk_mov_b32", move_pair, V, "F=FF", kTakesPacked, 0, 4, no_signs},

    {"v_fma_mix_f32", mixed_fma<Into::f32>, V, "f=fff", mixed, 0, 4, bind_mixed},
    {"v_fma_mixlo_f16", mixed_fma<Into::low_f16>, V, "h=fff", mixed, 0, 4, bind_mixed},
    {"v_fma_mixhi_f16", mixed_fma<Into::high_f16>, V, "h=fff", mixed, 0, 4, bind_mixed},

    {"v_dot2_f32_f16", dot2_f32<Element::f16>, V, "f=HHf", pair, 0, 4, bind_dot2},
    {"v_dot2_f32_bf16", dot2_f32<Element::bf16>, V, "f=BBf", pair, 0, 4, bind_dot2},
    {"v_dot2c_f32_f16", dot2_accumulate<Element::f16>, V, "f=HH", accumulating, kReadsDest},
    {"v_dot2c_f32_bf16", dot2_accumulate<Element::bf16>, V, "f=BB", accumulating, kReadsDest},
    {"v_dot2acc_f32_f16", dot2_accumulate<Element::f16>, V, "f=HH", accumulating, kReadsDest},
    {"v_dot2acc_f32_bf16", dot2_accumulate<Element::bf16>, V, "f=BB", accumulating, kReadsDest},
    {"v_dot2_f16_f16", dot2_narrow<Element::f16>, V, "h=HHh", kTakesSign | kTakesOpSel | kTakesDpp, 0, 4,
     bind_dot2_narrow},
    {"v_dot2_bf16_bf16", dot2_narrow<Element::bf16>, V, "b=BBb", kTakesSign | kTakesOpSel | kTakesDpp, 0, 4,
     bind_dot2_narrow},
    {"v_dot4_f32_fp8_fp8", dot4_f32<Fp8, Fp8>, V, "f=uuf", kTakesPacked | kTakesDpp, 0, 4, bind_dot4_f32},
    {"v_dot4_f32_fp8_bf8", dot4_f32<Fp8, Bf8>, V, "f=uuf", kTakesPacked | kTakesDpp, 0, 4, bind_dot4_f32},
    {"v_dot4_f32_bf8_fp8", dot4_f32<Bf8, Fp8>, V, "f=uuf", kTakesPacked | kTakesDpp, 0, 4, bind_dot4_f32},
    {"v_dot4_f32_bf8_bf8", dot4_f32<Bf8, Bf8>, V, "f=uuf", kTakesPacked | kTakesDpp, 0, 4, bind_dot4_f32},

    {"v_dot2_i32_i16", dot_integers<16, Signs::both>, V, "u=WWu", pair, 0, 4, no_signs},
    {"v_dot2_u32_u16", dot_integers<16, Signs::none>, V, "u=WWu", pair, 0, 4, no_signs},
    {"v_dot4_i32_i8", dot_integers<8, Signs::both>, V, "u=uuu", pair, 0, 4, no_signs},
    {"v_dot4_u32_u8", dot_integers<8, Signs::none>, V, "u=uuu", pair, 0, 4, no_signs},
    {"v_dot8_i32_i4", dot_integers<4, Signs::both>, V, "u=uuu", pair, 0, 4, no_signs},
    {"v_dot8_u32_u4", dot_integers<4, Signs::none>, V, "u=uuu", pair, 0, 4, no_signs},
    {"v_dot4_i32_iu8", dot_integers<8, Signs::by_neg>, V, "u=uuu", pair},
    {"v_dot8_i32_iu4", dot_integers<4, Signs::by_neg>, V, "u=uuu", pair},
    {"v_dot2c_i32_i16", dot_integers_accumulate<16>, V, "u=WW", accumulating, kReadsDest},
    {"v_dot4c_i32_i8", dot_integers_accumulate<8>, V, "u=uu", accumulating, kReadsDest},
    {"v_dot8c_i32_i4", dot_integers_accumulate<4>, V, "u=uu", accumulating, kReadsDest},
};

}  // namespace

std::span<const Opcode> packed_opcodes() { return rows; }

}  // namespace emu

// Rules of floating point that several files of instructions share: minimum and maximum, denormals, f16 arithmetic.
#pragma once

#include <cmath>

#include "isa/lanes.h"

namespace emu {

// MODE register, bit 9: a signalling NaN entering min or max comes out as a quiet one instead of losing to a number.
// gfx12 has no such bit, and numbers always win there (RDNA4 ISA, V_MAX_NUM_F32).
inline bool ieee_mode(const Wave& w) { return w.target->family != Family::gfx12 && (w.mode >> 9 & 1); }
// MODE register, bit 23 (FP16_OVFL): conversions to 8-bit floats stop at the largest number.
inline bool overflow_saturates(const Wave& w) { return w.mode >> 23 & 1; }

inline u32 flush_bits(u32 x) { return (x & 0x7f800000) == 0 ? x & 0x80000000 : x; }
inline float flush(float x) { return as_f32(flush_bits(bits_of(x))); }
inline u32 flush_f16_bits(u32 x) { return (x & 0x7c00) == 0 ? x & 0x8000 : x; }
inline u64 flush_f64_bits(u64 x) { return (x >> 52 & 0x7ff) == 0 ? x & 1ull << 63 : x; }

// --- the formats as bits -------------------------------------------------------------------------------------------
// `order` is an integer that sorts as the numbers do, -0 before +0.
struct F32Bits {
  using Bits = u32;
  static constexpr u32 magnitude = 0x7fffffff, infinity = 0x7f800000, quiet = 0x00400000;
  static i32 order(u32 x) { return static_cast<i32>(x ^ (static_cast<u32>(static_cast<i32>(x) >> 31) & 0x7fffffff)); }
};
struct F64Bits {
  using Bits = u64;
  static constexpr u64 magnitude = ~(1ull << 63), infinity = 0x7ffull << 52, quiet = 1ull << 51;
  static i64 order(u64 x) { return static_cast<i64>(x ^ (static_cast<u64>(static_cast<i64>(x) >> 63) & magnitude)); }
};
struct F16Bits {  // in the low half of a 32-bit lane
  using Bits = u32;
  static constexpr u32 magnitude = 0x7fff, infinity = 0x7c00, quiet = 0x0200;
  static i32 order(u32 x) {
    const i32 extended = static_cast<i16>(x);
    return extended ^ ((extended >> 15) & 0x7fff);
  }
};
template <class T>
inline bool is_nan(typename T::Bits x) {
  return (x & T::magnitude) > T::infinity;
}
template <class T>
inline bool is_signalling(typename T::Bits x) {
  return is_nan<T>(x) && (x & T::quiet) == 0;
}

enum class Pick : u8 { min, max };
template <class T, Pick P>
inline typename T::Bits pick_ordered(typename T::Bits a, typename T::Bits b) {
  const bool first = P == Pick::max ? T::order(a) > T::order(b) : T::order(a) < T::order(b);
  return first ? a : b;
}
// A number wins over a NaN (V_MIN_F32, V_MAX_NUM_F32, ...).
template <class T, Pick P, bool Ieee>
inline typename T::Bits pick_number(typename T::Bits a, typename T::Bits b) {
  typename T::Bits r = pick_ordered<T, P>(a, b);
  r = is_nan<T>(b) ? a : r;
  r = is_nan<T>(a) ? b : r;
  if constexpr (Ieee) {
    r = is_signalling<T>(b) ? b | T::quiet : r;
    r = is_signalling<T>(a) ? a | T::quiet : r;
  }
  return r;
}
// A NaN wins over a number (V_MINIMUM_F32, ...: IEEE 754-2019 minimum and maximum).
template <class T, Pick P>
inline typename T::Bits pick_nan(typename T::Bits a, typename T::Bits b) {
  typename T::Bits r = pick_ordered<T, P>(a, b);
  r = is_nan<T>(b) ? b | T::quiet : r;
  r = is_nan<T>(a) ? a | T::quiet : r;
  return r;
}
template <class T>
inline typename T::Bits median_number(typename T::Bits a, typename T::Bits b, typename T::Bits c) {
  using U = typename T::Bits;
  const U low = pick_ordered<T, Pick::min>(a, b), high = pick_ordered<T, Pick::max>(a, b);
  const U median = pick_ordered<T, Pick::max>(low, pick_ordered<T, Pick::min>(high, c));
  const U least = pick_number<T, Pick::min, false>(pick_number<T, Pick::min, false>(a, b), c);
  return is_nan<T>(a) || is_nan<T>(b) || is_nan<T>(c) ? least : median;  // V_MED3_F32: with a NaN, min3
}

// Which of the two-operand rules an instruction joins to make its result; `Ieee` follows the wave's mode.
enum class Choice : u8 { min, max, minimum, maximum };
template <class T, Choice C, bool Ieee>
inline typename T::Bits choose(typename T::Bits a, typename T::Bits b) {
  if constexpr (C == Choice::min) return pick_number<T, Pick::min, Ieee>(a, b);
  if constexpr (C == Choice::max) return pick_number<T, Pick::max, Ieee>(a, b);
  if constexpr (C == Choice::minimum) return pick_nan<T, Pick::min>(a, b);
  if constexpr (C == Choice::maximum) return pick_nan<T, Pick::max>(a, b);
}

// --- f16 arithmetic ------------------------------------------------------------------------------------------------
// a * b + c of three f16, rounded once. The product is exact in f32 (22 bits). The sum is rounded to odd, so that
// rounding the 24 bits to f16's 11 afterwards gives what rounding the exact sum would (Boldo and Melquiond, "Emulation
// of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
inline float fma_f16_to_odd(float a, float b, float c) {
  const float product = a * b, sum = product + c;
  const float virtual_c = sum - product, error = (product - (sum - virtual_c)) + (c - virtual_c);
  const u32 bits = bits_of(sum);
  const bool inexact = error > 0 || error < 0;  // not for infinities, whose error is NaN
  const u32 towards = (error > 0) == (sum > 0) ? 1u : ~0u;
  return as_f32(inexact && (bits & 1) == 0 ? bits + towards : bits);
}

// Source i of an f16 instruction, denormals flushed where the mode says so.
inline const u32* source_f16(Wave& w, const Instruction& in, int i, Row& space, u64& mask) {
  const u32* x = source16(w, in, i, space, mask);
  if (!w.flush_f16_f64) return x;
  for_lanes(w, [&](int l) { space.lane[l] = flush_f16_bits(x[l]); });
  return space.lane;
}
// What a 16-bit instruction's destination held: the half it is about to write.
inline const u32* old_half(const Wave& w, const Instruction& in, Row& space) {
  const Operand& d = in.operand[0];
  const bool high = d.half == Half::high || (d.half == Half::whole && (in.op_sel & 8));
  const u32* row = w.vgpr[d.reg];
  for_lanes(w, [&](int l) { space.lane[l] = (high ? row[l] >> 16 : row[l]) & 0xffff; });
  return space.lane;
}
// Writes one half of the destination and leaves the other alone, on every target. So do, on gfx9 as well, the 16-bit
// instructions that only VOP3 has (GCNSubtarget::zeroesHigh16BitsOfDest of LLVM lists those that clear it).
inline void write16_keeping(Wave& w, const Instruction& in, const Row& values, u64 mask) {
  const Operand& d = in.operand[0];
  const bool high = d.half == Half::high || (d.half == Half::whole && (in.op_sel & 8));
  const u32* old = w.vgpr[d.reg];
  Row merged;
  for_lanes(w, [&](int l) {
    const u32 x = values.lane[l] & 0xffff;
    merged.lane[l] = high ? (old[l] & 0xffff) | x << 16 : (old[l] & 0xffff0000) | x;
  });
  write_row(w, d.reg, merged.lane, mask);
}

// Output modifier, clamp and denormal mode of an f16 result, then the destination: as write_f16, or keeping the other
// half on every target.
inline void finish_f16(Wave& w, const Instruction& in, Row& values, u64 mask, bool keeps_other_half) {
  if (w.flush_f16_f64) {
    for_lanes(w, [&](int l) { values.lane[l] = flush_f16_bits(values.lane[l]); });
  }
  if (!keeps_other_half) return write_f16(w, in, values, mask);
  const float factor = in.omod == 1 ? 2.f : (in.omod == 2 ? 4.f : (in.omod == 3 ? 0.5f : 1.f));
  if (in.omod || in.clamp) {
    for_lanes(w, [&](int l) {
      const float x = f32_of_f16(values.lane[l]) * factor;
      values.lane[l] = f16_of_f32(in.clamp ? (x > 1.f ? 1.f : (x > 0.f ? x : 0.f)) : x);
    });
  }
  write16_keeping(w, in, values, mask);
}

// OPSEL of a VOP3 encoding as encoded (bits 14:11). The conversions of 8-bit floats use it to choose bytes, which the
// operand-wise meaning of op_sel cannot say. 0 for the other encodings.
inline u32 encoded_op_sel(const Instruction& in) {
  const u32 major = in.word[0] >> 26;  // 0x34 on gfx9, 0x35 since gfx10
  return major == 0x34 || major == 0x35 ? in.word[0] >> 11 & 15 : 0;
}

}  // namespace emu

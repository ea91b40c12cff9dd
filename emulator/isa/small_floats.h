// Floats of 4, 6 and 8 bits, and conversion to any narrower float with nearest or stochastic rounding.
#pragma once

#include <limits>

#include "core/bits.h"
#include "core/opcode.h"

namespace emu {

// What the codes above the largest number mean.
enum class Special : u8 {
  none,      // OCP FP4 and FP6: all codes are numbers
  nan_only,  // OCP E4M3: all ones is NaN
  ieee,      // OCP E5M2, f16, bf16: infinity and NaN
  fnuz       // gfx942: NaN is what -0 would be, and there is no other special code
};
template <int Exponent, int Mantissa, int Bias, Special S>
struct SmallFloat {
  static constexpr int mantissa = Mantissa, bias = Bias;
  static constexpr Special special = S;
  static constexpr u32 sign = 1u << (Exponent + Mantissa), all = sign - 1;
  static constexpr u32 infinity = all & ~((1u << Mantissa) - 1);  // Special::ieee
  static constexpr u32 largest = S == Special::ieee ? infinity - 1 : (S == Special::nan_only ? all - 1 : all);
};
using Fp8 = SmallFloat<4, 3, 7, Special::nan_only>;
using Bf8 = SmallFloat<5, 2, 15, Special::ieee>;
using Fp8Fnuz = SmallFloat<4, 3, 8, Special::fnuz>;
using Bf8Fnuz = SmallFloat<5, 2, 16, Special::fnuz>;
using Fp6 = SmallFloat<2, 3, 1, Special::none>;
using Bf6 = SmallFloat<3, 2, 3, Special::none>;
using Fp4 = SmallFloat<2, 1, 1, Special::none>;
using Half16 = SmallFloat<5, 10, 15, Special::ieee>;
using Brain16 = SmallFloat<8, 7, 127, Special::ieee>;

template <class T>
inline float widened(u32 code) {
  const u32 magnitude = code & T::all;
  // The code's bits as those of an f32 have the wrong bias; the product puts that right, denormals included.
  constexpr float rebias = std::bit_cast<float>(static_cast<u32>(254 - T::bias) << 23);
  float value = as_f32(magnitude << (23 - T::mantissa)) * rebias;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  if constexpr (T::special == Special::nan_only) value = magnitude == T::all ? nan : value;
  if constexpr (T::special == Special::ieee) {
    value = magnitude == T::infinity ? std::numeric_limits<float>::infinity() : value;
    value = magnitude > T::infinity ? nan : value;
  }
  const float result = code & T::sign ? -value : value;
  if constexpr (T::special == Special::fnuz) return (code & (T::sign | T::all)) == T::sign ? nan : result;
  return result;
}

// Puts sign, overflow and special values around the code of a magnitude. `magnitude`: of the f32 that was converted.
template <class T>
inline u32 finished_code(u32 code, u32 magnitude, u32 sign, bool saturate) {
  constexpr u32 overflow = T::special == Special::ieee   ? T::infinity
                           : T::special == Special::none ? T::largest
                           : T::special == Special::fnuz ? T::sign
                                                         : T::all;
  constexpr u32 nan = T::special == Special::ieee   ? T::infinity | 1u << (T::mantissa - 1)
                      : T::special == Special::none ? T::largest
                      : T::special == Special::fnuz ? T::sign
                                                    : T::all;
  const bool too_large = code > T::largest || magnitude >= 0x7f800000;
  u32 result = too_large ? (saturate ? T::largest : overflow) : code;
  result = magnitude > 0x7f800000 ? nan : result;
  // There is no -0 among the fnuz codes: its place is NaN's.
  if constexpr (T::special == Special::fnuz) return result == 0 || result == T::sign ? result : result | sign;
  return result | sign;
}

// Nearest, ties to even.
template <class T>
inline u32 narrowed(float value, bool saturate) {
  const u32 bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = bits >> 31 ? T::sign : 0;
  constexpr int dropped = 23 - T::mantissa;
  constexpr u32 smallest_normal = static_cast<u32>(128 - T::bias) << 23;
  const u32 rounded = magnitude + ((1u << (dropped - 1)) - 1) + (magnitude >> dropped & 1);
  const u32 normal = (rounded >> dropped) - (static_cast<u32>(127 - T::bias) << T::mantissa);
  // Adding a number whose last place is the denormals' last place lets the f32 adder do the rounding.
  constexpr u32 aligner = static_cast<u32>(128 - T::bias + dropped) << 23;
  const u32 denormal = bits_of(as_f32(magnitude) + as_f32(aligner)) - aligner;
  return finished_code<T>(magnitude < smallest_normal ? denormal : normal, magnitude, sign, saturate);
}

// Stochastic: up with the probability of what is dropped, as the seed's highest bits decide. The manual adds S1[31:12]
// (fp8) or S1[31:11] (bf8) to the mantissa of a number that is normal in the result, which is this.
template <class T>
inline u32 narrowed_by_chance(float value, u32 seed, bool saturate) {
  const u32 bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = bits >> 31 ? T::sign : 0;
  const int exponent = static_cast<int>(magnitude >> 23);  // biased, f32
  const u64 mantissa = exponent ? (magnitude & 0x7fffff) | 1u << 23 : magnitude;
  const int place = (exponent ? exponent : 1) - 127 + T::bias;  // biased, of the result, if it is normal
  const int dropped = 23 - T::mantissa + (place < 1 ? 1 - place : 0);
  const u64 kept = dropped < 56 ? (mantissa << 32) >> dropped : 0;
  const u32 steps = static_cast<u32>((kept + seed) >> 32);
  // The leading bit of a normal mantissa is counted in `steps`, hence one less in the exponent.
  const u32 code = place < 1 ? steps : steps + (static_cast<u32>(place - 1) << T::mantissa);
  return finished_code<T>(place > 300 ? T::largest + 1 : code, magnitude, sign, saturate);
}

// fp8, bf8, fp6, bf6 and fp4 conversions, rows of convert_opcodes().
std::span<const Opcode> small_float_opcodes();

}  // namespace emu

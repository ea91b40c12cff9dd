// The three instructions the compiler builds IEEE division from. The manual's text gives a correctly rounded quotient
// only when read as below; each place where it is silent or self-contradictory is named.
#pragma once

#include <limits>

#include "isa/float_rules.h"

namespace emu {

template <class T>
struct Division;
template <>
struct Division<float> {
  using Bits = F32Bits;
  static constexpr int mantissa = 23, exponent_mask = 0xff, bias = 127;
  static constexpr int scale = 64, far_apart = 96, tiny_numerator = 23, underflow = -150;
  static constexpr float smallest_normal = std::numeric_limits<float>::min();
  static constexpr float default_nan() { return -std::numeric_limits<float>::quiet_NaN(); }
};
template <>
struct Division<double> {
  using Bits = F64Bits;
  static constexpr int mantissa = 52, exponent_mask = 0x7ff, bias = 1023;
  static constexpr int scale = 128, far_apart = 768, tiny_numerator = 53, underflow = -1075;
  static constexpr double smallest_normal = std::numeric_limits<double>::min();
  static constexpr double default_nan() { return -std::numeric_limits<double>::quiet_NaN(); }
};

template <class T>
inline int biased_exponent(T x) {
  return static_cast<int>(bits_of(x) >> Division<T>::mantissa) & Division<T>::exponent_mask;
}
template <class T>
inline bool below_normal(T x) {
  return std::fabs(x) < Division<T>::smallest_normal;
}

// V_DIV_SCALE: s0 is the denominator s1 or the numerator s2. `scaled_quotient` is the bit of VCC.
template <class T>
inline T div_scale(T s0, T s1, T s2, bool& scaled_quotient) {
  using D = Division<T>;
  scaled_quotient = false;
  if (s2 == 0 || s1 == 0 || s1 != s1 || s2 != s2) return std::numeric_limits<T>::quiet_NaN();
  const bool is_denominator = s0 == s1, is_numerator = s0 == s2;
  const bool tiny_reciprocal = below_normal(1 / s1) && 1 / s1 != 0;
  // "S2 / S1 == DENORM" has to hold for quotients that round to zero too: the two that lie next to half the smallest
  // denormal are only rounded properly when scaled.
  const bool tiny_quotient = below_normal(s2 / s1);
  if (biased_exponent(s2) - biased_exponent(s1) >= D::far_apart) {
    scaled_quotient = true;
    return is_denominator ? std::ldexp(s0, D::scale) : s0;
  }
  if (below_normal(s1)) return std::ldexp(s0, D::scale);
  if (tiny_reciprocal && tiny_quotient) {
    // The manual scales the denominator up here, past infinity; down is what V_DIV_FMAS can undo.
    scaled_quotient = true;
    return is_denominator ? std::ldexp(s0, -D::scale) : s0;
  }
  if (tiny_reciprocal) return std::ldexp(s0, -D::scale);
  if (tiny_quotient) {
    scaled_quotient = true;
    return is_numerator ? std::ldexp(s0, D::scale) : s0;
  }
  if (biased_exponent(s2) <= D::tiny_numerator) return std::ldexp(s0, D::scale);
  return s0;
}

// a * b + c, times a power of two, rounded once: the scaled result may be a denormal. `Wide` has at least two more bits
// of mantissa than T and a larger range of exponents; rounding to odd in it keeps what the last rounding has to know.
template <class Wide, class T>
inline T scaled_fma(T a, T b, T c, int scale) {
  const T product = a * b;
  const T product_error = std::fma(a, b, -product);
  const Wide sum = static_cast<Wide>(product) + static_cast<Wide>(c);
  const Wide virtual_c = sum - static_cast<Wide>(product);
  const Wide sum_error = (static_cast<Wide>(product) - (sum - virtual_c)) + (static_cast<Wide>(c) - virtual_c);
  const Wide rest = sum_error + static_cast<Wide>(product_error);
  Wide result = sum + rest;
  const Wide error = rest - (result - sum);
  if (error != 0 && std::isfinite(result)) {
    // Towards the error is the neighbour whose last bit differs from this one's: keep the odd of the two.
    const Wide towards = std::nextafter(
        result, error > 0 ? std::numeric_limits<Wide>::infinity() : -std::numeric_limits<Wide>::infinity());
    const int digits = std::numeric_limits<Wide>::digits;
    int exponent;
    const Wide fraction = std::frexp(result, &exponent);
    const bool even = std::fmod(std::ldexp(std::fabs(fraction), digits), static_cast<Wide>(2)) == 0;
    if (even) result = towards;
  }
  return static_cast<T>(std::ldexp(result, scale));
}
inline float scaled_fma_of(float a, float b, float c, int scale) { return scaled_fma<double>(a, b, c, scale); }
inline double scaled_fma_of(double a, double b, double c, int scale) {
  static_assert(std::numeric_limits<long double>::digits >= 64, "needs a long double wider than double");
  return scaled_fma<long double>(a, b, c, scale);
}

// V_DIV_FMAS. The manual prints 2^32 (f32) and 2^64 (f64) for a set bit of VCC; the scales V_DIV_SCALE applied are 2^64
// and 2^128, up or down, and only undoing them gives the quotient. Which of the two, the quotient's exponent tells.
template <class T>
inline T div_fmas(T a, T b, T c, bool scaled_quotient) {
  using D = Division<T>;
  if (!scaled_quotient) return std::fma(a, b, c);
  return scaled_fma_of(a, b, c, biased_exponent(c) > D::bias ? D::scale : -D::scale);
}

// V_DIV_FIXUP: s0 is the quotient so far.
template <class T>
inline T div_fixup(T s0, T s1, T s2) {
  using D = Division<T>;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  const bool negative = std::signbit(s1) != std::signbit(s2);
  const auto with_sign = [&](T x) { return std::copysign(x, negative ? static_cast<T>(-1) : static_cast<T>(1)); };
  if (s2 != s2) return s2 + s2;
  if (s1 != s1) return s1 + s1;
  const bool infinite1 = std::fabs(s1) == infinity, infinite2 = std::fabs(s2) == infinity;
  if ((s1 == 0 && s2 == 0) || (infinite1 && infinite2)) return D::default_nan();
  if (s1 == 0 || infinite2) return with_sign(infinity);
  if (infinite1 || s2 == 0) return with_sign(0);
  if (biased_exponent(s2) - biased_exponent(s1) < D::underflow) return with_sign(0);
  // Past the range the steps before this one made a NaN of an infinity.
  if (s0 != s0) return with_sign(infinity);
  return with_sign(std::fabs(s0));
}

}  // namespace emu

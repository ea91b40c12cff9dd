// exp2, log2, sine, cosine and roots as the f32 and f16 instructions compute them: within one unit in the last place,
// in loops the compiler turns into vector code. All but exp2's and the sine's results are correctly rounded in nearly
// every case, which the hardware's are not; the compiler's expansions of division and square root only rely on 1 ulp.
#pragma once

#include <limits>

#include "isa/float_rules.h"

namespace emu {

inline double power_of_two(i32 n) { return as_f64(static_cast<u64>(static_cast<i64>(n) + 1023) << 52); }

// 2^x in double arithmetic, good to about 1e-15.
inline double exp2_double(double x) {
  // The sum's last bits are the whole number nearest to x.
  constexpr double kShift = 0x1.8p52;
  const double shifted = x + kShift, whole = shifted - kShift;
  const double y = (x - whole) * 0.69314718055994530942;  // |y| <= ln(2)/2
  double p = 1.0 / 39916800;
  p = __builtin_fma(p, y, 1.0 / 3628800);
  p = __builtin_fma(p, y, 1.0 / 362880);
  p = __builtin_fma(p, y, 1.0 / 40320);
  p = __builtin_fma(p, y, 1.0 / 5040);
  p = __builtin_fma(p, y, 1.0 / 720);
  p = __builtin_fma(p, y, 1.0 / 120);
  p = __builtin_fma(p, y, 1.0 / 24);
  p = __builtin_fma(p, y, 1.0 / 6);
  p = __builtin_fma(p, y, 0.5);
  p = __builtin_fma(p, y, 1.0);
  p = __builtin_fma(p, y, 1.0);
  return as_f64(bits_of(p) + (bits_of(shifted) << 52));  // p is normal, and so is the product
}
inline float exp2_f32(float x) {
  const float limited = x < -200.f ? -200.f : (x > 200.f ? 200.f : x);
  const float inside = limited == limited ? limited : 0.f;
  const float r = static_cast<float>(exp2_double(static_cast<double>(inside)));
  return x == x ? r : x;
}

// log2 of a positive normal f32.
inline float log2_f32(float x) {
  // m in [sqrt(1/2), sqrt(2)), so that the series keeps its relative accuracy on both sides of 1.
  const u32 bits = bits_of(x);
  const i32 exponent = static_cast<i32>(bits - 0x3f3504f3) >> 23;
  const double m = static_cast<double>(as_f32(bits - (static_cast<u32>(exponent) << 23)));
  const double s = (m - 1) / (m + 1), s2 = s * s;  // ln(m) = 2 atanh(s), |s| <= 0.1716
  double p = 1.0 / 13;
  p = __builtin_fma(p, s2, 1.0 / 11);
  p = __builtin_fma(p, s2, 1.0 / 9);
  p = __builtin_fma(p, s2, 1.0 / 7);
  p = __builtin_fma(p, s2, 1.0 / 5);
  p = __builtin_fma(p, s2, 1.0 / 3);
  p = __builtin_fma(p, s2, 1.0);
  const double r = __builtin_fma(p * s, 2.88539008177792681472, static_cast<double>(exponent));
  float result = static_cast<float>(r);
  result = x == std::numeric_limits<float>::infinity() ? x : result;
  result = x == 0.f ? -std::numeric_limits<float>::infinity() : result;
  return x < 0.f || x != x ? std::numeric_limits<float>::quiet_NaN() : result;
}

// sin(2 pi x) for x in revolutions, in double arithmetic. The reduction to a quarter turn is exact.
inline double sin_revolutions(double x) {
  const double turn = x - __builtin_rint(x);  // [-1/2, 1/2]
  const double folded = turn > 0.25 ? 0.5 - turn : (turn < -0.25 ? -0.5 - turn : turn);
  const double y = folded * 6.28318530717958647693, y2 = y * y;
  double p = -1.0 / 121645100408832000;
  p = __builtin_fma(p, y2, 1.0 / 355687428096000);
  p = __builtin_fma(p, y2, -1.0 / 1307674368000);
  p = __builtin_fma(p, y2, 1.0 / 6227020800);
  p = __builtin_fma(p, y2, -1.0 / 39916800);
  p = __builtin_fma(p, y2, 1.0 / 362880);
  p = __builtin_fma(p, y2, -1.0 / 5040);
  p = __builtin_fma(p, y2, 1.0 / 120);
  p = __builtin_fma(p, y2, -1.0 / 6);
  return __builtin_fma(p * y2, y, y);
}
inline float sin_f32(float x) { return static_cast<float>(sin_revolutions(static_cast<double>(x))); }
inline float cos_f32(float x) { return static_cast<float>(sin_revolutions(static_cast<double>(x) + 0.25)); }
inline float rcp_f32(float x) { return 1.f / x; }
inline float sqrt_f32(float x) { return __builtin_sqrtf(x); }
inline float rsq_f32(float x) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(x))); }

// What is common to the f32 forms: they take denormals as zero and give none, whatever the mode (LLVM scales around
// them for that reason: AMDGPULegalizerInfo::legalizeFSQRTF32 and its neighbours).
template <float (*F)(float)>
inline float flushed(float x) {
  return flush(F(flush(x)));
}

}  // namespace emu

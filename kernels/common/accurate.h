// exp and log to the accuracy of fp32, where the bare instructions with a factor log2(e) or ln(2) would lose bits; and
// reductions over a wave. For kernels that are complete rather than fast.
#pragma once

#include "kernels/common/gpu.h"

namespace flashwave {

// e^x. x * log2(e) rounded to fp32 is off by up to |x| * 2^-24, which exp2 turns into a relative error; here the whole
// part is taken off before anything is rounded.
FW_DEVICE float exp_accurate(float x) {
  constexpr float kLog2eLow = 1.9259629911e-8f;  // log2(e) - kLog2e
  const float whole = __builtin_rintf(x * kLog2e);
  const float fraction = __builtin_fmaf(x, kLog2eLow, __builtin_fmaf(x, kLog2e, -whole));
  const float result = scaled_by_power(exp2_fast(fraction), int(whole));
  return x < -104.f ? 0.f : result;  // below half the smallest denormal; also -inf, where the above is NaN
}

// log(x) for x = 0 or x >= 2^-126. The exponent is taken off first: the smaller the result of the bare instruction, the
// smaller its error.
FW_DEVICE float log_accurate(float x) {
  constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;  // 12 trailing zeros: exponent * high is exact
  const int exponent = int(bits_of(x) - 0x3F3504F3u) >> 23;           // mantissa in [sqrt(1/2), sqrt(2))
  const float mantissa = float_of(bits_of(x) - (uint32_t(exponent) << 23));
  const float small = __builtin_fmaf(float(exponent), kLn2Low, log2_fast(mantissa) * kLn2);
  const float result = __builtin_fmaf(float(exponent), kLn2High, small);
  return x == 0.f ? -kInf : x < kInf ? result : x;  // infinity and NaN: themselves
}

FW_DEVICE float wave_max(float x) {
  return wave_reduce(x, [](float a, float b) { return __builtin_fmaxf(a, b); });
}
FW_DEVICE float wave_sum(float x) {
  return wave_reduce(x, [](float a, float b) { return a + b; });
}

}  // namespace flashwave

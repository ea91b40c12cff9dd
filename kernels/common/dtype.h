// The storage types and their exact conversions to and from float, in portable C++ (round to nearest even).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/common/platform.h"

namespace flashwave {

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

FW_FN float to_float(float x) { return x; }
FW_FN float to_float(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
FW_FN float to_float(Half x) {
  const uint32_t sign = (x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 31u, mantissa = x.bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = float(mantissa) * 0x1p-24f;  // subnormal or zero: exact
  return sign ? -magnitude : magnitude;
}

template <class T>
FW_FN T from_float(float x);

template <>
FW_FN float from_float<float>(float x) {
  return x;
}
template <>
FW_FN BFloat16 from_float<BFloat16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {uint16_t((u >> 16) | 0x40u)};  // NaN stays NaN
  return {uint16_t((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16)};
}
template <>
FW_FN Half from_float<Half>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000u, a = u & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return {uint16_t(sign | 0x7E00u)};
  if (a >= 0x477FF000u) return {uint16_t(sign | 0x7C00u)};  // 65520 and above round to infinity
  if (a < 0x38800000u) {                                    // below 2^-14: let the FPU round to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(a) + 0.5f;   // ulp of [0.5, 1) is 2^-24
    return {uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
  }
  return {uint16_t(sign | ((a + 0xFFFu + ((a >> 13) & 1u) - 0x38000000u) >> 13))};
}

}  // namespace flashwave

// The two element types: how they multiply, and how P and O are rounded to them.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/common/elements.h"
#include "kernels/rdna/isa.h"

namespace flashwave {

// How P is rounded: to nearest even, or truncated, with the mean loss made up for in the exponent.
enum class Rounding { kNearest, kTruncate };

// Members: `gain`, log2 of what P is scaled up by to make up for truncation; `headroom`, log2 of the weight that a
// row's reference score gets; `limit`, above which a sum of weights counts as overflow; `pack`, two elements rounded to
// nearest; `kQuickRounding`: there are `rounded` and `high_halves`, which do it in fewer instructions within a range.

template <Rounding kRounding>
struct BF16 {
  using Storage = BFloat16;
  // The mean of log2(x / trunc(x)) over 7 mantissa bits.
  static constexpr float gain = kRounding == Rounding::kTruncate ? 0.0040600f : 0.f;
  static constexpr float headroom = 0.f, limit = 0x1p40f;

  FW_METHOD static F32x8 multiply(Fragment a, Fragment b, F32x8 c) { return wmma_bf16(a, b, c); }
  FW_METHOD static F32x8 multiply(Fragment a, Fragment b) { return wmma_bf16(a, b); }
  FW_METHOD static F32x8 multiply_keeping(Fragment a, Fragment b, F32x8 c) { return wmma_bf16_keeping(a, b, c); }

  FW_METHOD static uint32_t high_halves(float a, float b) { return permute_bytes(bits_of(b), bits_of(a), 0x07060302); }

  FW_METHOD static uint32_t rounded_bits(float x) { return bits_of(x) + 0x7fff + (bits_of(x) >> 16 & 1); }
  FW_METHOD static uint32_t pack(float a, float b) {
    return permute_bytes(rounded_bits(b), rounded_bits(a), 0x07060302);
  }

  // Neither generation converts to bf16. Exact rounding to nearest even in two pairable instructions: with x = m * u, m
  // an integer of 24 bits, and g = 65536 u the unit of bf16, 65536 x is a multiple of g, and y = -65535 x rounds to a
  // multiple of g in the binade of 65536 x, so that 65536 x + y is x rounded to a multiple of g. In a tie m is even,
  // hence so is what is rounded to. In the binade below, where y's unit is g / 2, x is within g / 512 of a power of
  // two, which it rounds to. For |x| < 2^111; of what is larger the result is x rounded, or not finite.
  // Times kFactor, a power of two or minus one.
  static constexpr bool kQuickRounding = true;
  template <int kFactor = 1, int N>
  FW_METHOD static Vec<float, N> rounded(Vec<float, N> x) {
    Vec<float, N> y = x * here(-65535.f * kFactor);
    hold(y);
    schedule_fence();
    FW_UNROLL for (int r = 0; r < N; ++r) y[r] = __builtin_fmaf(x[r], 65536.f * kFactor, y[r]);
    hold(y);
    schedule_fence();
    return y;
  }

  template <int kFactor = 1, int N>
  FW_METHOD static Vec<float, N> packable(Vec<float, N> x) {
    if constexpr (kRounding == Rounding::kNearest) return rounded<kFactor>(x);
    return x * float(kFactor);
  }
  template <int kFactor = 1>
  FW_METHOD static void pack_weights(F32x8 x, U32x4& out) {
    x = packable<kFactor>(x);
    FW_UNROLL for (int r = 0; r < 4; ++r) out[r] = high_halves(x[2 * r], x[2 * r + 1]);
  }
  template <int kFactor = 1>
  FW_METHOD static uint32_t pack_weights(F32x2 x) {
    x = packable<kFactor>(x);
    return high_halves(x[0], x[1]);
  }
};

struct F16 {
  using Storage = _Float16;
  static constexpr bool kQuickRounding = false;
  static constexpr float gain = 0.f;
  // Weights of 2^-32 of the reference's are still subnormal halves rather than 0.
  static constexpr float headroom = 8.f, limit = 32768.f;

  FW_METHOD static F32x8 multiply(Fragment a, Fragment b, F32x8 c) { return wmma_f16(a, b, c); }
  FW_METHOD static F32x8 multiply(Fragment a, Fragment b) { return wmma_f16(a, b); }
  FW_METHOD static F32x8 multiply_keeping(Fragment a, Fragment b, F32x8 c) { return wmma_f16_keeping(a, b, c); }

  FW_METHOD static uint32_t pack(float a, float b) {
    return __builtin_bit_cast(uint32_t, F16x2{_Float16(a), _Float16(b)});
  }
  template <int kFactor = 1>
  FW_METHOD static void pack_weights(F32x8 x, U32x4& out) {
    if (kFactor != 1) x *= float(kFactor);
    FW_UNROLL for (int r = 0; r < 4; ++r) out[r] = pack(x[2 * r], x[2 * r + 1]);
  }
  template <int kFactor = 1>
  FW_METHOD static uint32_t pack_weights(F32x2 x) {
    if (kFactor != 1) x *= float(kFactor);
    return pack(x[0], x[1]);
  }
};

// That of a row of kernels.def.
template <uint32_t kType, uint32_t kNeeds>
struct ElementOf;
template <uint32_t kNeeds>
struct ElementOf<kRowF16, kNeeds> {
  using Type = F16;
};
template <uint32_t kNeeds>
struct ElementOf<kRowBF16, kNeeds> {
  using Type = BF16<kNeeds & kNeedsFastRounding ? Rounding::kTruncate : Rounding::kNearest>;
};

}  // namespace flashwave

// Sums of products as AMD's matrix cores make them, bit for bit.
//
// Source of the facts: P. Xie et al., "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores"
// (arXiv 2511.10909) and the code published with it (for CDNA1); the authors report bitwise agreement with the hardware
// on over a million cases. What it covers:
//
//   inputs          gfx908 (CDNA1)        gfx90a (CDNA2)                 gfx942 (CDNA3)
//   f32, f64        chain of fma          chain of fma                   chain of fma
//   f16             exact, 4 at a time    pairwise, 4 at a time          truncated, 8 at a time
//   bf16 (_1k)                            pairwise, 4 at a time          truncated, 8 at a time
//   bf16 (first)    exact, 2 at a time    pairwise, 2 at a time
//   xf32                                                                 truncated, 4 at a time
//   fp8, bf8                                                             truncated in pairs, 16 at a time
//
// Nothing is published for gfx950 (CDNA4), for RDNA3 and RDNA4, or for sparse instructions: they use the chain.
// The sign and payload of NaN results are not modelled.
#include <algorithm>
#include <cmath>
#include <limits>

#include "isa/matrix.h"

namespace emu {

std::atomic<MatrixNumerics> matrix_numerics_mode{MatrixNumerics::chain};

void set_matrix_numerics(MatrixNumerics numerics) { matrix_numerics_mode.store(numerics, std::memory_order_relaxed); }

namespace matrix {
namespace {

constexpr int min_exponent(Element type) {
  if (type == Element::f16) return -14;
  return size_of(type) == 8 ? 1 - small_float(type).bias : -126;
}

// value = significand * 2^(exponent - 23), |significand| < 2^24, exponent at least that of the type's normal numbers.
struct Parts {
  i64 significand;
  int exponent;
};
Parts parts_of(float value, int min_exponent) {
  const u32 bits = bits_of(value);
  const int biased = static_cast<int>(bits >> 23 & 0xff);
  Parts parts{static_cast<i64>(bits & 0x7fffff), biased - 127};
  if (biased == 0) {
    parts.exponent = -126;
  } else {
    parts.significand |= 1 << 23;
  }
  if (parts.exponent < min_exponent) {
    // A denormal of the narrow type: the bits shifted out are zeros, it had fewer to begin with.
    const int shift = min_exponent - parts.exponent;
    parts.significand = shift > 23 ? 0 : parts.significand >> shift;
    parts.exponent = min_exponent;
  }
  if (bits >> 31) parts.significand = -parts.significand;
  return parts;
}

i64 shift_rounding_down(i64 value, int left) {
  if (left >= 0) return value * (i64{1} << left);
  return value >> (left < -63 ? 63 : -left);
}
i64 shift_rounding_to_zero(i64 value, int right) {
  if (right > 62) return 0;
  return value < 0 ? -(-value >> right) : value >> right;
}
float to_f32(i64 value, int exponent) { return static_cast<float>(std::ldexp(static_cast<double>(value), exponent)); }

// NaN and infinity among the terms: the sum as IEEE has it.
bool special_sum(const float* a, const float* b, int count, float c, float& sum) {
  double total = c;
  for (int k = 0; k < count; ++k) total += static_cast<double>(a[k]) * static_cast<double>(b[k]);
  sum = static_cast<float>(total);
  return !std::isfinite(total);
}

// Products aligned to the largest exponent among them, cut off after 24 bits of fraction, added: sum * 2^(exponent-24).
struct Aligned {
  i64 sum;
  int exponent;
};
Aligned align_products(const DotModel& model, const float* a, const float* b, int count, int step) {
  Parts product[16];
  int terms = 0, largest = -126 * 3;
  for (int k = 0; k < count; k += step) {
    const Parts x = parts_of(a[k], model.a_min_exponent), y = parts_of(b[k], model.b_min_exponent);
    Parts& p = product[terms++];
    p = {x.significand * y.significand, x.exponent + y.exponent};
    if (p.significand == 0) p.exponent = -126;
    largest = std::max(largest, p.exponent);
  }
  i64 sum = 0;
  for (int t = 0; t < terms; ++t) {
    // The product of significands has 46 bits of fraction.
    sum += shift_rounding_to_zero(product[t].significand, 46 - 24 + largest - product[t].exponent);
  }
  return {sum, largest};
}

// Adds C to aligned products: the products keep 31 bits of fraction, C keeps 24, both rounded down.
float add_accumulator(Aligned products, float c, bool drops_small_c) {
  const Parts accumulator = parts_of(c, -126);
  const int exponent = std::max(products.exponent, accumulator.exponent);
  i64 sum = shift_rounding_down(products.sum, 31 - 24 + products.exponent - exponent);
  if (!drops_small_c || accumulator.exponent >= exponent - 25) {
    sum += shift_rounding_down(accumulator.significand, 24 - 23 + accumulator.exponent - exponent) * (1 << 7);
  }
  return to_f32(sum, exponent - 31);
}

float dot_truncated(const DotModel& model, const float* a, const float* b, int count, float c) {
  float special;
  if (special_sum(a, b, count, c, special)) return special;
  bool positive = false, negative = false;  // products past the range of f32
  for (int k = 0; k < count; ++k) {
    const double product = static_cast<double>(a[k]) * static_cast<double>(b[k]);
    positive |= product >= 0x1p128;
    negative |= product <= -0x1p128;
  }
  if (positive && negative) return std::numeric_limits<float>::quiet_NaN();
  if (positive || negative) return positive ? HUGE_VALF : -HUGE_VALF;
  return add_accumulator(align_products(model, a, b, count, 1), c, false);
}

// 8-bit inputs: even and odd products are summed apart, then put together rounding down.
float dot_truncated_pairs(const DotModel& model, const float* a, const float* b, int count, float c) {
  float special;
  if (special_sum(a, b, count, c, special)) return special;
  const Aligned even = align_products(model, a, b, count, 2), odd = align_products(model, a + 1, b + 1, count - 1, 2);
  const int exponent = std::max(even.exponent, odd.exponent);
  const i64 sum =
      shift_rounding_down(even.sum, even.exponent - exponent) + shift_rounding_down(odd.sum, odd.exponent - exponent);
  return add_accumulator({sum, exponent}, c, true);
}

float flushed(float value) { return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value; }

// Every product and every sum is rounded to f32, denormals to zero.
float dot_pairwise(const float* a, const float* b, int count, float c) {
  float pair[2] = {0, 0};
  for (int k = 0; k < count; k += 2) pair[k / 2] = flushed(flushed(a[k] * b[k]) + flushed(a[k + 1] * b[k + 1]));
  return flushed(c + (count == 4 ? flushed(pair[0] + pair[1]) : pair[0]));
}

// The exact sum rounded once. The terms are exact in f64; their sum is kept as f64 numbers that do not overlap
// (Shewchuk, "Adaptive Precision Floating-Point Arithmetic", 1997), and rounded to odd before the last rounding.
float dot_exact(const float* a, const float* b, int count, float c) {
  float special;
  if (special_sum(a, b, count, c, special)) return special;
  double part[5];
  int parts = 0;
  for (int t = 0; t <= count; ++t) {
    double rest = t < count ? static_cast<double>(a[t]) * static_cast<double>(b[t]) : static_cast<double>(c);
    for (int p = 0; p < parts; ++p) {
      const double sum = part[p] + rest;
      const double from_rest = sum - part[p];
      part[p] = (part[p] - (sum - from_rest)) + (rest - from_rest);
      rest = sum;
    }
    part[parts++] = rest;
  }
  double top = part[parts - 1], below = 0;
  for (int p = parts - 2; p >= 0; --p) {
    const double sum = top + part[p];
    const double lost = part[p] - (sum - top);
    top = sum;
    if (lost != 0) {
      below = lost;
      break;
    }
  }
  if (below != 0 && !(bits_of(top) & 1)) top = std::nextafter(top, below > 0 ? HUGE_VAL : -HUGE_VAL);
  return static_cast<float>(top);
}

}  // namespace

DotModel dot_model(Element a, Element b, bool low_rate, int cdna) {
  using Kind = DotModel::Kind;
  DotModel model{Kind::chain, 1, min_exponent(a), min_exponent(b)};
  const bool half = a == Element::f16 || a == Element::bf16;
  if (half && cdna == 1) {
    model.kind = Kind::exact;
    model.group = a == Element::f16 ? 4 : 2;
  } else if (half && cdna == 2) {
    model.kind = Kind::pairwise;
    model.group = low_rate ? 2 : 4;
  } else if (half && cdna == 3) {
    model.kind = Kind::truncated;
    model.group = 8;
  } else if (a == Element::xf32 && cdna == 3) {
    model.kind = Kind::truncated;
    model.group = 4;
  } else if ((a == Element::fp8_fnuz || a == Element::bf8_fnuz) && cdna == 3) {
    model.kind = Kind::truncated_pairs;
    model.group = 16;
  }
  return model;
}

float dot(const DotModel& model, const float* a, const float* b, int count, float c) {
  using Kind = DotModel::Kind;
  if (model.kind == Kind::pairwise && std::fabs(c) < 0x1p-126f) c = 0.0f;
  const int group = std::min(model.group, count);
  for (int k = 0; k < count; k += group) {
    switch (model.kind) {
      case Kind::chain:
        c = std::fma(a[k], b[k], c);
        break;
      case Kind::exact:
        c = dot_exact(a + k, b + k, group, c);
        break;
      case Kind::pairwise:
        c = dot_pairwise(a + k, b + k, group, c);
        break;
      case Kind::truncated:
        c = dot_truncated(model, a + k, b + k, group, c);
        break;
      case Kind::truncated_pairs:
        c = dot_truncated_pairs(model, a + k, b + k, group, c);
        break;
    }
  }
  return c;
}

}  // namespace matrix
}  // namespace emu

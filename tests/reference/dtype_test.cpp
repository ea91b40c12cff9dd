// kernels/common/dtype.h against the compiler's half and against arithmetic that has nothing to do with bit patterns.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/common/dtype.h"
#include "tests/reference/oracle.h"

namespace {

using flashwave::BFloat16;
using flashwave::from_float;
using flashwave::Half;
using flashwave::to_float;

// Bits of x as the oracle rounds it.
uint16_t expected_bfloat16(float x) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(oracle::quantize(x, oracle::Type::kBF16))) >>
                               16);
}

void expect_conversions(float x) {
  if (std::isnan(x)) {
    EXPECT_TRUE(std::isnan(to_float(from_float<Half>(x))));
    EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(x))));
    return;
  }
  ASSERT_EQ(from_float<Half>(x).bits, std::bit_cast<uint16_t>(static_cast<_Float16>(x))) << std::hexfloat << x;
  ASSERT_EQ(to_float(from_float<Half>(x)), static_cast<float>(oracle::quantize(x, oracle::Type::kF16)))
      << std::hexfloat << x;
  ASSERT_EQ(from_float<BFloat16>(x).bits, expected_bfloat16(x)) << std::hexfloat << x;
}

TEST(DType, EveryHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Half h{static_cast<uint16_t>(bits)};
    const float f = to_float(h);
    const float compiler = static_cast<float>(std::bit_cast<_Float16>(h.bits));
    if (std::isnan(compiler)) {
      ASSERT_TRUE(std::isnan(f)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<Half>(f)))) << bits;
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(f), std::bit_cast<uint32_t>(compiler)) << bits;  // signs of zero too
    ASSERT_EQ(from_float<Half>(f).bits, h.bits);
  }
}

TEST(DType, EveryBFloat16) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    const int exponent = static_cast<int>((bits >> 7) & 255), mantissa = static_cast<int>(bits & 127);
    const float f = to_float(x);
    if (exponent == 255 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(f)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<BFloat16>(f)))) << bits;
      continue;
    }
    const double magnitude = exponent == 255 ? std::numeric_limits<double>::infinity()
                             : exponent == 0 ? std::ldexp(mantissa, -133)
                                             : std::ldexp(128 + mantissa, exponent - 134);
    ASSERT_EQ(static_cast<double>(f), bits >> 15 ? -magnitude : magnitude) << bits;
    ASSERT_EQ(std::signbit(f), (bits >> 15) != 0) << bits;
    ASSERT_EQ(from_float<BFloat16>(f).bits, x.bits);
  }
}

TEST(DType, RandomFloatsRoundToNearestEven) {
  std::mt19937 rng(17);
  for (int n = 0; n < 2'000'000; ++n) expect_conversions(std::bit_cast<float>(static_cast<uint32_t>(rng())));
  // Most random patterns are far outside half's range: also numbers within it.
  std::uniform_real_distribution<float> exponent(-27, 18);
  for (int n = 0; n < 1'000'000; ++n) expect_conversions((n % 2 ? 1 : -1) * std::exp2(exponent(rng)));
}

// Every pair of neighbours: their middle, and the floats next to it.
template <class T>
void expect_ties(uint32_t last_finite) {
  for (uint32_t bits = 0; bits < last_finite; ++bits) {
    const float low = to_float(T{static_cast<uint16_t>(bits)}), high = to_float(T{static_cast<uint16_t>(bits + 1)});
    const float middle = low + (high - low) / 2;
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)}) {
      expect_conversions(x);
      expect_conversions(-x);
    }
  }
}

TEST(DType, HalfTies) { expect_ties<Half>(0x7BFF); }
TEST(DType, BFloat16Ties) { expect_ties<BFloat16>(0x7F7F); }

TEST(DType, Edges) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, infinity, -infinity, 65504.0f, 65519.996f, 65520.0f, 65536.0f, 0x1p-24f, 0x1p-25f,
                        0x1.000002p-25f, 0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::denorm_min(), 0x1.fep127f, 0x1.ffp127f}) {
    expect_conversions(x);
    expect_conversions(-x);
  }
  EXPECT_EQ(to_float(from_float<Half>(65520.0f)), infinity);
  EXPECT_EQ(to_float(from_float<BFloat16>(std::numeric_limits<float>::max())), infinity);
  for (const uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFF800001u, 0x7FFFFFFFu}) {
    expect_conversions(std::bit_cast<float>(nan));
  }
}

}  // namespace

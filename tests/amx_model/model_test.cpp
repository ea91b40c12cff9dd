// The model of the tile unit against plain sums, and what the kernels for fp16 on tiles do with numbers at the ends of
// its range. `flashwave_amx_model check` runs the conformance suites on the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/isa.h"
#include "device/cpu/cpu_info.h"
#include "flashwave/flashwave.h"
#include "kernels/common/dtype.h"
#include "tests/amx_model/words.h"

namespace flashwave {
namespace {

class TileModel : public testing::Test {
 protected:
  void SetUp() override {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    if ((detected_isa() & kIsaAmxFp16) == 0) GTEST_SKIP() << "this CPU has no AVX512_BF16 or no BMI2";
  }
};
using TileModelDeathTest = TileModel;

uint16_t bits(bool fp16, float x) { return fp16 ? from_float<Half>(x).bits : from_float<BFloat16>(x).bits; }

// Small integers: no sum is rounded, so that every order of summation gives the same.
TEST_F(TileModel, ProductsAreExactSums) {
  for (const bool fp16 : {false, true}) {
    std::mt19937 random(7);
    float a[16][32], b[32][16], c[16][16], expected[16][16];
    uint16_t a_bits[16][32], b_bits[16][16][2];
    for (auto& row : a) {
      for (float& x : row) x = float(int(random() % 17) - 8);
    }
    for (auto& row : b) {
      for (float& x : row) x = float(int(random() % 17) - 8) / 4;
    }
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        c[m][n] = expected[m][n] = float(m - n);
        for (int k = 0; k < 32; ++k) expected[m][n] += a[m][k] * b[k][n];
      }
      for (int k = 0; k < 32; ++k) a_bits[m][k] = bits(fp16, a[m][k]), b_bits[k / 2][m][k % 2] = bits(fp16, b[k][m]);
    }
    model_product(fp16, a_bits[0], b_bits[0][0], c[0]);
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) EXPECT_EQ(c[m][n], expected[m][n]) << fp16 << " " << m << " " << n;
    }
  }
}

// Intel SDM: TDPBF16PS takes subnormal numbers as 0, TDPFP16PS does not; both flush sums.
TEST_F(TileModel, SubnormalNumbers) {
  uint16_t a[16][32] = {}, b[16][16][2] = {};
  float c[16][16] = {};
  b[0][0][0] = bits(false, 1.f);
  a[0][0] = 0x0040, a[1][0] = bits(false, 0x1p-126f);  // 2^-127 and the smallest normal number of bf16
  model_product(false, a[0], b[0][0], c[0]);
  EXPECT_EQ(c[0][0], 0.f);
  EXPECT_EQ(c[1][0], 0x1p-126f);
  b[0][0][0] = bits(true, 1.f);
  a[0][0] = 0x0001, a[1][0] = 0;
  c[0][0] = 0.f, c[1][0] = 0x1p-127f;
  model_product(true, a[0], b[0][0], c[0]);
  EXPECT_EQ(c[0][0], 0x1p-24f);
  EXPECT_EQ(c[1][0], 0.f);
}

TEST_F(TileModelDeathTest, WhatTheUnitRefusesEndsTheProgram) {
  EXPECT_DEATH(model_product_without_configuration(), "nobody configured");
  EXPECT_DEATH(model_product_of_other_sizes(), "cannot be multiplied");
  EXPECT_DEATH(model_configuration_twice(), "configured twice");
}

// ---- fp16 --------------------------------------------------------------------------------------------------------

constexpr int64_t kQueries = 90, kKeys = 150, kDim = 64;

// Forward and backward with queries, values and dO times powers of two, all of fp16's 11 bits in use; the gradients in
// fp32.
struct Results {
  std::vector<float> lse, dq, dk, dv;
  std::vector<uint16_t> o;
  std::string forward, backward;
};
using Numbers = std::vector<uint16_t>;
Results attention(float q_scale, float v_scale, float d_o_scale, const char* forward_kernel = nullptr,
                  const char* backward_kernel = nullptr, void (*change)(Numbers& q, Numbers& k, Numbers& v) = nullptr) {
  std::mt19937 random(3);
  const auto numbers = [&](int64_t rows, float scale) {
    Numbers x(size_t(rows * kDim));
    for (uint16_t& n : x) n = bits(true, float(int(random() % 4097) - 2048) / 1024 * scale);
    return x;
  };
  const auto of = [](auto& x, fw_dtype dtype, int64_t columns) {
    fw_tensor t{};
    t.data = x.data(), t.dtype = dtype;
    t.stride[0] = int64_t(x.size()), t.stride[1] = t.stride[2] = columns, t.stride[3] = 1;
    return t;
  };
  Numbers q = numbers(kQueries, q_scale), k = numbers(kKeys, 1), v = numbers(kKeys, v_scale);
  Numbers d_o = numbers(kQueries, d_o_scale);
  if (change != nullptr) change(q, k, v);
  Results r{std::vector<float>(kQueries),
            std::vector<float>(q.size()),
            std::vector<float>(k.size()),
            std::vector<float>(v.size()),
            Numbers(q.size()),
            "",
            ""};
  fw_attention a;
  fw_gradients g;
  fw_exec exec;
  fw_report report{};
  fw_attention_init(&a, sizeof a), fw_gradients_init(&g, sizeof g), fw_exec_init(&exec, sizeof exec);
  report.struct_size = sizeof report, exec.report = &report;
  a.batch = a.heads_q = a.heads_k = 1, a.seqlen_q = kQueries, a.seqlen_k = kKeys, a.dim_qk = a.dim_v = kDim;
  a.q = of(q, FW_F16, kDim), a.k = of(k, FW_F16, kDim), a.v = of(v, FW_F16, kDim), a.o = of(r.o, FW_F16, kDim);
  a.lse = of(r.lse, FW_F32, 1), a.lse.stride[3] = 0;
  g.d_o = of(d_o, FW_F16, kDim), g.dq = of(r.dq, FW_F32, kDim), g.dk = of(r.dk, FW_F32, kDim);
  g.dv = of(r.dv, FW_F32, kDim);
  fw_device* device = nullptr;
  EXPECT_EQ(fw_device_open("cpu", &device), FW_OK);
  exec.force_kernel = forward_kernel;
  EXPECT_EQ(fw_forward(device, &a, &exec), FW_OK) << fw_last_error();
  r.forward = report.kernel;
  exec.force_kernel = backward_kernel;
  EXPECT_EQ(fw_backward(device, &a, &g, &exec), FW_OK) << fw_last_error();
  r.backward = report.kernel;
  return r;
}

void expect_multiples(const std::vector<float>& x, const std::vector<float>& y, float factor) {
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i] * factor, y[i]) << i;
}
float largest_difference(const std::vector<float>& x, const std::vector<float>& y) {
  float largest = 0;
  for (size_t i = 0; i < x.size(); ++i)
    largest = std::max(largest, std::isfinite(x[i]) ? std::fabs(x[i] - y[i]) : INFINITY);
  return largest;
}
float largest(const std::vector<float>& x) { return largest_difference(x, std::vector<float>(x.size())); }

class AmxFp16 : public TileModel {};

// dS = P (dP - delta) has the range of dO times V, which is not that of fp16: dP is 2^28 in one of these and 2^-24 in
// another. It is made to fit by a power of two, so that not a bit of the gradients depends on it.
TEST_F(AmxFp16, GradientsAreMultiplesOfDO) {
  const Results one = attention(1, 1, 1);
  ASSERT_TRUE(one.backward.starts_with("amx_fp16_bwd")) << one.backward;
  for (const float factor : {0x1p-12f, 0x1p-3f, 0x1p12f}) {
    const Results other = attention(1, 1, factor);
    expect_multiples(one.dq, other.dq, factor);
    expect_multiples(one.dk, other.dk, factor);
    expect_multiples(one.dv, other.dv, factor);
  }
  const Results large = attention(1, 0x1p12f, 0x1p12f);
  expect_multiples(one.dv, large.dv, 0x1p12f);
  EXPECT_TRUE(std::isfinite(largest(large.dk)));
  EXPECT_GT(largest(large.dk), 0.f);
}

// Scores of hundreds, where |q||k| proves nothing and the maximum is taken.
TEST_F(AmxFp16, LargeScores) {
  for (const float scale : {0.f, 1.f, 64.f, 1024.f}) {
    const Results tiles = attention(scale, 1, 1);
    ASSERT_TRUE(tiles.forward.starts_with("amx_fp16_fwd")) << tiles.forward;
    ASSERT_TRUE(tiles.backward.starts_with("amx_fp16_bwd")) << tiles.backward;
    const Results fp32 = attention(scale, 1, 1, "avx512_fwd_m32n96", "avx512_bwd_m32n96");
    EXPECT_LT(largest_difference(tiles.lse, fp32.lse), 1e-4f * (1 + largest(fp32.lse) / 16)) << scale;
    for (const auto& [of_tiles, of_fp32] :
         {std::pair{&tiles.dq, &fp32.dq}, {&tiles.dk, &fp32.dk}, {&tiles.dv, &fp32.dv}}) {
      EXPECT_LT(largest_difference(*of_tiles, *of_fp32), 2e-3f * largest(*of_fp32) + 1e-6f) << scale;
    }
    for (size_t i = 0; i < tiles.o.size(); ++i) {
      ASSERT_NEAR(to_float(Half{tiles.o[i]}), to_float(Half{fp32.o[i]}), 2e-3f) << scale << " " << i;
    }
  }
}

// ---- fp16 in two parts on tiles of bf16 ----------------------------------------------------------------------------

class AmxSplit : public TileModel {
 protected:
  static Results on_tiles(float q_scale, float v_scale, void (*change)(Numbers&, Numbers&, Numbers&) = nullptr) {
    return attention(q_scale, v_scale, 1, "amx_split_fwd_m32n128", "avx512_bwd_m32n96", change);
  }
  static Results in_fp32(float q_scale, float v_scale, void (*change)(Numbers&, Numbers&, Numbers&) = nullptr) {
    return attention(q_scale, v_scale, 1, "avx512_fwd_m32n96", "avx512_bwd_m32n96", change);
  }
};

// The products lose 2^-18 of a factor where the low parts are there, 2^-9 where one of them is not: the bounds lie far
// below what a kernel without them reaches.
TEST_F(AmxSplit, AsGoodAsFp32) {
  for (const float q_scale : {0.f, 0x1p-10f, 1.f, 64.f}) {
    for (const float v_scale : {0x1p-14f, 1.f, 0x1p14f}) {
      const Results tiles = on_tiles(q_scale, v_scale), fp32 = in_fp32(q_scale, v_scale);
      const float scores = largest(fp32.lse) + 1;
      EXPECT_LT(largest_difference(tiles.lse, fp32.lse), 4e-6f * scores) << q_scale;
      for (size_t i = 0; i < tiles.o.size(); ++i) {
        const float o = to_float(Half{fp32.o[i]});
        const float unit = std::max(std::fabs(o) * 0x1p-10f, 0x1p-24f);  // o is rounded to fp16
        ASSERT_NEAR(to_float(Half{tiles.o[i]}), o, unit + v_scale * 8e-6f * scores) << q_scale << " " << v_scale;
      }
    }
  }
}

// An infinity has no low part, and infinity times 0 is NaN: such products are made of whole numbers.
TEST_F(AmxSplit, InfinitiesAndNaNsAreThoseOfFp32) {
  const auto expect_same = [](void (*change)(Numbers&, Numbers&, Numbers&)) {
    const Results tiles = on_tiles(1, 1, change), fp32 = in_fp32(1, 1, change);
    int finite = 0, infinite = 0;
    for (size_t i = 0; i < tiles.o.size(); ++i) {
      const float x = to_float(Half{tiles.o[i]}), y = to_float(Half{fp32.o[i]});
      EXPECT_EQ(std::isnan(x), std::isnan(y)) << i;
      if (std::isnan(y)) continue;
      std::isinf(y) ? ++infinite : ++finite;
      EXPECT_TRUE(x == y || std::fabs(x - y) < 1e-3f) << i << ": " << x << " " << y;
    }
    return std::pair(finite, infinite);
  };
  // An infinite value reaches one column, whatever the weight.
  EXPECT_EQ(expect_same([](Numbers&, Numbers&, Numbers& v) { v[70 * kDim + 5] = bits(true, -INFINITY); }),
            std::pair(int(kQueries * (kDim - 1)), int(kQueries)));
  // A score of minus infinity hides a key, that of plus infinity makes NaN of its row. Numbers of few bits have no low
  // part.
  const auto [finite, none] = expect_same([](Numbers& q, Numbers& k, Numbers&) {
    for (int64_t i = 0; i < kQueries; ++i) q[size_t(i * kDim + 9)] = bits(true, i % 3 == 0 ? 0.5f : -0.5f);
    k[40 * kDim + 9] = bits(true, INFINITY);
  });
  EXPECT_EQ(finite, kQueries * 2 / 3 * kDim);
  EXPECT_EQ(none, 0);
  const auto [others, no_more] = expect_same(
      [](Numbers& q, Numbers&, Numbers& v) { q[13 * kDim] = bits(true, INFINITY), v[3] = bits(true, NAN); });
  EXPECT_EQ(others, (kQueries - 1) * (kDim - 1));
  EXPECT_EQ(no_more, 0);
}

// Both backwards get o and lse of one forward. Without low parts the error would be 2^-9.
TEST_F(AmxSplit, GradientsAsGoodAsFp32) {
  for (const float q_scale : {0x1p-6f, 1.f, 16.f}) {
    for (const float v_scale : {0x1p-14f, 1.f, 0x1p10f}) {
      for (const float d_o_scale : {0x1p-12f, 1.f}) {
        const Results tiles = attention(q_scale, v_scale, d_o_scale, "avx512_fwd_m32n96", "amx_split_bwd_m256n128");
        const Results fp32 = attention(q_scale, v_scale, d_o_scale, "avx512_fwd_m32n96", "avx512_bwd_m32n96");
        for (const auto& [x, y] : {std::pair{&tiles.dq, &fp32.dq}, {&tiles.dk, &fp32.dk}, {&tiles.dv, &fp32.dv}}) {
          EXPECT_GT(largest(*y), 0.f);
          EXPECT_LT(largest_difference(*x, *y), 1e-4f * largest(*y)) << q_scale << " " << v_scale << " " << d_o_scale;
        }
      }
    }
  }
}

// A weight of a hidden key is 0 here and 2^-126 in fp32, so that its product with an infinity is NaN or infinite.
TEST_F(AmxSplit, GradientsAreFiniteWhereThoseOfFp32Are) {
  for (void (*const change)(Numbers&, Numbers&, Numbers&) :
       {+[](Numbers& q, Numbers&, Numbers&) { q[13 * kDim] = bits(true, INFINITY); },
        +[](Numbers&, Numbers& k, Numbers&) { k[40 * kDim + 9] = bits(true, -INFINITY); },
        +[](Numbers&, Numbers&, Numbers& v) { v[70 * kDim + 5] = bits(true, NAN); }}) {
    const Results tiles = attention(1, 1, 1, "avx512_fwd_m32n96", "amx_split_bwd_m256n128", change);
    const Results fp32 = attention(1, 1, 1, "avx512_fwd_m32n96", "avx512_bwd_m32n96", change);
    int finite = 0;
    for (const auto& [x, y] : {std::pair{&tiles.dq, &fp32.dq}, {&tiles.dk, &fp32.dk}, {&tiles.dv, &fp32.dv}}) {
      for (size_t i = 0; i < x->size(); ++i) {
        const float a = (*x)[i], b = (*y)[i];
        ASSERT_TRUE(std::isfinite(b) ? std::fabs(a - b) < 1e-2f : !std::isfinite(a)) << i << ": " << a << " " << b;
        finite += std::isfinite(b);
      }
    }
    EXPECT_GT(finite, 0);
  }
}

// The ends of fp16's range: 65504 is above the largest number of fp16 in 8 bits, 2^-24 is the smallest.
TEST_F(AmxSplit, LargestAndSmallestNumbers) {
  const auto extremes = [](Numbers& q, Numbers& k, Numbers& v) {
    for (uint16_t& x : q) x = 0;
    for (uint16_t& x : k) x = bits(true, 1.f);
    for (size_t i = 0; i < v.size(); ++i) v[i] = i % 2 ? 0x7BFF : 0x0001;
  };
  const Results tiles = on_tiles(1, 1, extremes);
  for (size_t i = 0; i < tiles.o.size(); ++i) ASSERT_EQ(tiles.o[i], i % 2 ? 0x7BFF : 0x0001) << i;
}

}  // namespace
}  // namespace flashwave

// Sums of products as the matrix cores make them: values worked out by hand from the published models (the table in
// isa/mfma_numerics.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/opcode.h"
#include "core/wave.h"
#include "isa/matrix.h"
#include "operands.h"

namespace {
using namespace emu;
using emu_test::vgprs;
using matrix::dot;
using matrix::dot_model;
using matrix::Element;

TEST(MatrixNumerics, Gfx908SumsFourProductsExactlyAndRoundsOnce) {
  const auto model = dot_model(Element::f16, Element::f16, false, 1);
  // 2^12 * 2^12 + 2^-1 * 2^-1 + 1 * 2^-5 - 2^12 * 2^12: only the small ones are left.
  const float a[4] = {4096, 0.5f, 1, -4096}, b[4] = {4096, 0.5f, 0x1p-5f, 4096};
  EXPECT_EQ(dot(model, a, b, 4, 0), 0.25f + 0x1p-5f);
  // Halfway between neighbours of 2^24 but for a term far below: rounds away from even.
  const float x[4] = {4096, 1, 0x1p-14f, 0}, y[4] = {4096, 1, 0x1p-14f, 0};
  EXPECT_EQ(dot(model, x, y, 4, 0), 0x1p24f + 2);
  const float z[4] = {4096, 1, 0, 0};
  EXPECT_EQ(dot(model, z, y, 4, 0), 0x1p24f);
}

TEST(MatrixNumerics, Gfx90aRoundsEverySumAndFlushesDenormals) {
  const auto model = dot_model(Element::f16, Element::f16, false, 2);
  // (2^24 + 1) + (1 + 0) loses both ones, (2^24 + 0) + (1 + 1) does not.
  const float a[4] = {4096, 1, 1, 1}, b[4] = {4096, 1, 1, 0};
  EXPECT_EQ(dot(model, a, b, 4, 0), 0x1p24f);
  const float c[4] = {4096, 0, 1, 1};
  EXPECT_EQ(dot(model, c, c, 4, 0), 0x1p24f + 2);
  const auto slow = dot_model(Element::bf16, Element::bf16, true, 2);
  const float tiny[2] = {0x1p-70f, 0}, small[2] = {0x1p-60f, 0};
  EXPECT_EQ(dot(slow, tiny, small, 2, 0), 0.0f);                // 2^-130 is a denormal
  EXPECT_EQ(dot(slow, small, small, 2, 0x1p-130f), 0x1p-120f);  // so is C
}

TEST(MatrixNumerics, Gfx942CutsProductsOffBelowTheLargest) {
  const auto model = dot_model(Element::f16, Element::f16, false, 3);
  float a[8] = {1, 0x1p-12f}, b[8] = {1, 0x1p-12f};
  EXPECT_EQ(dot(model, a, b, 8, -1), 0x1p-24f);  // 24 bits of fraction are kept
  b[1] = 0x1p-13f;
  EXPECT_EQ(dot(model, a, b, 8, -1), 0.0f);
  b[1] = -0x1p-13f;
  EXPECT_EQ(dot(model, a, b, 8, -1), 0.0f);  // towards zero, either sign
  // C is rounded down: a tiny negative C takes a unit of 2^-24 away from 1.
  float one[8] = {1};
  EXPECT_EQ(dot(model, one, one, 8, 0x1p-40f), 1.0f);
  EXPECT_EQ(dot(model, one, one, 8, -0x1p-40f), 1.0f - 0x1p-24f);
  // Groups of eight: what is lost in one group is not made up for in the next.
  float twice_a[16] = {1, 0x1p-13f}, twice_b[16] = {1, 0x1p-12f};
  twice_a[8] = twice_b[8] = 0x1p-12f;
  EXPECT_EQ(dot(model, twice_a, twice_b, 16, -1), 0x1p-24f);
}

TEST(MatrixNumerics, Gfx942SumsEightBitProductsInPairs) {
  const auto model = dot_model(Element::fp8_fnuz, Element::fp8_fnuz, false, 3);
  float a[16] = {}, b[16] = {};
  a[0] = b[0] = 1;
  EXPECT_EQ(dot(model, a, b, 16, -0x1p-40f), 1.0f);  // unlike 16-bit inputs: so small a C is dropped
  a[1] = b[1] = 2;
  a[2] = -3;
  b[2] = 1;
  EXPECT_EQ(dot(model, a, b, 16, 0.5f), 2.5f);
}

TEST(MatrixNumerics, InfinitiesAndNaNsComeThrough) {
  const float inf = HUGE_VALF;
  for (const int cdna : {1, 2, 3}) {
    const auto model = dot_model(Element::f16, Element::f16, false, cdna);
    const float a[4] = {inf, 1, 1, 1}, b[4] = {1, 1, 1, 1}, c[4] = {0, 1, 1, 1}, d[4] = {-1, 1, 1, 1};
    EXPECT_EQ(dot(model, a, b, 4, 0), inf);
    EXPECT_EQ(dot(model, a, d, 4, 0), -inf);
    EXPECT_TRUE(std::isnan(dot(model, a, c, 4, 0)));
    EXPECT_TRUE(std::isnan(dot(model, a, b, 4, -inf)));
  }
}

constexpr int kD = 4, kA = 64, kB = 96;

struct OneByOne {  // all elements of A, of B and of C the same, 32x32x8
  std::unique_ptr<Wave> wave = std::make_unique<Wave>();
  Instruction in;
  OneByOne(const char* target, const char* name, u32 a, u32 b) {
    std::fill_n(&wave->vgpr[0][0], kVectorRegisters * kLanes, 0u);
    wave->target = find_target(target);
    std::fill_n(&wave->vgpr[kA][0], 2 * kLanes, a);
    std::fill_n(&wave->vgpr[kB][0], 2 * kLanes, b);
    const auto rows = mfma_opcodes();
    const auto row =
        std::find_if(rows.begin(), rows.end(), [name](const Opcode& o) { return !std::strcmp(o.name, name); });
    in.execute = row->execute;
    in.dest_count = 1;
    in.operand_count = 4;
    in.operand[0] = in.operand[3] = vgprs(kD, 16);
    in.operand[1] = vgprs(kA, 2);
    in.operand[2] = vgprs(kB, 2);
    EXPECT_EQ(row->bind(in, *wave->target), "");
  }
  float result(float c) {
    std::fill_n(&wave->vgpr[kD][0], 16 * kLanes, bits_of(c));
    in.execute(*wave, in);
    return as_f32(wave->vgpr[kD][0]);
  }
};

TEST(MatrixNumerics, InstructionsFollowTheMode) {
  // k even: 1 * 1, k odd: 2^-12 * 2^-13. Of a chain from -4 the last small product is left; gfx942
  // cuts all of them off.
  OneByOne run("gfx942", "v_mfma_f32_32x32x8_f16", 0x0c003c00, 0x08003c00);
  EXPECT_EQ(run.result(-4), 0x1p-25f);
  set_matrix_numerics(MatrixNumerics::hardware);
  EXPECT_EQ(run.result(-4), 0.0f);
  set_matrix_numerics(MatrixNumerics::chain);
  EXPECT_EQ(run.result(-4), 0x1p-25f);
}

// gfx90a takes 16-bit denormals as zero whatever the mode, gfx942 does not.
TEST(MatrixNumerics, DenormalInputsByTarget) {
  EXPECT_EQ(OneByOne("gfx90a", "v_mfma_f32_32x32x8f16", 0x00010001, 0x3c003c00).result(0), 0.0f);
  EXPECT_EQ(OneByOne("gfx942", "v_mfma_f32_32x32x8_f16", 0x00010001, 0x3c003c00).result(0), 8 * 0x1p-24f);
}

}  // namespace

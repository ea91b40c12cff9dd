// What the matrix instructions share: the types of their elements, and how sums are rounded.
#pragma once

#include <atomic>

#include "core/bits.h"

namespace emu {

// How sums of products are rounded. `chain`: one fused multiply-add after the other in f32, k ascending: fast, and
// within the rounding of the hardware. `hardware`: bit for bit what the hardware does where that has been published
// (see mfma_numerics.cpp for which forms), the chain elsewhere. For the whole process; instructions already executing
// may still use the old mode.
enum class MatrixNumerics : u8 { chain, hardware };
void set_matrix_numerics(MatrixNumerics numerics);
extern std::atomic<MatrixNumerics> matrix_numerics_mode;
inline MatrixNumerics matrix_numerics() { return matrix_numerics_mode.load(std::memory_order_relaxed); }

namespace matrix {

// fp8, bf8: OCP E4M3 and E5M2; _fnuz: gfx942's. fp6: E2M3, bf6: E3M2, fp4: E2M1. xf32: f32 of which 10 bits of
// fraction are used.
enum class Element : u8 { f64, f32, xf32, f16, bf16, fp8, bf8, fp8_fnuz, bf8_fnuz, fp6, bf6, fp4, i8, u8, i4, u4 };

constexpr int size_of(Element type) {
  switch (type) {
    case Element::f64:
      return 64;
    case Element::f32:
    case Element::xf32:
      return 32;
    case Element::f16:
    case Element::bf16:
      return 16;
    case Element::fp6:
    case Element::bf6:
      return 6;
    case Element::fp4:
    case Element::i4:
    case Element::u4:
      return 4;
    default:
      return 8;
  }
}
constexpr bool is_integer(Element type) {
  return type == Element::i8 || type == Element::u8 || type == Element::i4 || type == Element::u4;
}

// Floats of up to 8 bits: sign, exponent, fraction.
struct SmallFloat {
  int exponent_bits, fraction_bits, bias;
};
constexpr SmallFloat small_float(Element type) {
  switch (type) {
    case Element::fp8:
      return {4, 3, 7};
    case Element::fp8_fnuz:
      return {4, 3, 8};
    case Element::bf8:
      return {5, 2, 15};
    case Element::bf8_fnuz:
      return {5, 2, 16};
    case Element::fp6:
      return {2, 3, 1};
    case Element::bf6:
      return {3, 2, 3};
    default:
      return {2, 1, 1};  // fp4
  }
}
// --- sums as the hardware makes them (mfma_numerics.cpp) -------------------------------------------------------------
struct DotModel {
  enum class Kind : u8 { chain, exact, pairwise, truncated, truncated_pairs } kind = Kind::chain;
  int group = 1;                                     // products summed at a time
  int a_min_exponent = -126, b_min_exponent = -126;  // of normal numbers of the input types
};
// What is known for inputs of type A and B on CDNA generation `cdna`; `low_rate`: the bf16 forms without _1k.
DotModel dot_model(Element a, Element b, bool low_rate, int cdna);
float dot(const DotModel& model, const float* a, const float* b, int count, float c);

}  // namespace matrix
}  // namespace emu

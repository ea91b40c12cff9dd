// Scalar floating point (gfx12): SOP1, SOP2 and SOPC on f32 and f16. RDNA4 ISA guide, "SALU floating point".
#include <cmath>
#include <limits>
#include <vector>

#include "isa/scalar_op.h"

namespace emu {
namespace {

float quiet(float nan) { return as_f32(bits_of(nan) | 0x400000); }
bool is_nan(float a) { return a != a; }
bool less(float a, float b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }  // -0 < +0

// "Num": a NaN loses against a number. The others: a NaN wins.
float min_num(float a, float b) { return is_nan(a) ? (is_nan(b) ? quiet(a) : b) : is_nan(b) || less(a, b) ? a : b; }
float max_num(float a, float b) { return is_nan(a) ? (is_nan(b) ? quiet(a) : b) : is_nan(b) || less(b, a) ? a : b; }
float minimum(float a, float b) { return is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : less(a, b) ? a : b; }
float maximum(float a, float b) { return is_nan(a) ? quiet(a) : is_nan(b) ? quiet(b) : less(b, a) ? a : b; }

// A sum of products of f16 is exact enough in double; rounding it to odd first keeps the last rounding the only one.
float narrow_to_odd(double value) {
  const float near = static_cast<float>(value);
  if (static_cast<double>(near) == value || is_nan(near) || std::isinf(near) || (bits_of(near) & 1)) return near;
  const bool up = std::abs(value) > std::abs(static_cast<double>(near));
  return as_f32(up ? bits_of(near) + 1 : bits_of(near) - 1);
}

u32 f16_toward_zero(float value) {
  u32 bits = f16_of_f32(value);
  if (std::abs(f32_of_f16(bits)) > std::abs(value)) --bits;
  return bits;
}
i32 to_i32(float a) {
  if (is_nan(a)) return 0;
  if (a >= 0x1p31f) return std::numeric_limits<i32>::max();
  return a <= -0x1p31f ? std::numeric_limits<i32>::min() : static_cast<i32>(a);
}
u32 to_u32(float a) {
  if (!(a > 0)) return 0;
  return a >= 0x1p32f ? ~0u : static_cast<u32>(a);
}

Opcode row(const char* name, Handler handler, const char* signature, u32 flags = 0) {
  return {name, handler, Class::scalar, signature, 0, flags};
}

#define EMU_FLOAT1(name, expression)                                            \
  row(name "_f32", scalar<[](float a) -> float { return expression; }>, "f=f"), \
      row(name "_f16", scalar<[](Float16 in) -> Float16 {                       \
            const float a = in.value;                                           \
            return {expression};                                                \
          }>,                                                                   \
          "h=h")
#define EMU_FLOAT2(name, expression)                                                      \
  row(name "_f32", scalar<[](float a, float b) -> float { return expression; }>, "f=ff"), \
      row(name "_f16", scalar<[](Float16 in0, Float16 in1) -> Float16 {                   \
            const float a = in0.value, b = in1.value;                                     \
            return {expression};                                                          \
          }>,                                                                             \
          "h=hh")
#define EMU_COMPARE(name, expression)                                                                        \
  row("s_cmp_" name "_f32", scalar<[](float a, float b) -> bool { return expression; }>, "=ff", kWritesScc), \
      row("s_cmp_" name "_f16", scalar<[](Float16 in0, Float16 in1) -> bool {                                \
            const float a = in0.value, b = in1.value;                                                        \
            return expression;                                                                               \
          }>,                                                                                                \
          "=hh", kWritesScc)

}  // namespace

std::span<const Opcode> scalar_float_opcodes() {
  static const std::vector<Opcode> rows = {
      EMU_FLOAT2("s_add", a + b),
      EMU_FLOAT2("s_sub", a - b),
      EMU_FLOAT2("s_mul", a * b),
      EMU_FLOAT2("s_min_num", min_num(a, b)),
      EMU_FLOAT2("s_max_num", max_num(a, b)),
      EMU_FLOAT2("s_minimum", minimum(a, b)),
      EMU_FLOAT2("s_maximum", maximum(a, b)),
      EMU_FLOAT1("s_ceil", __builtin_ceilf(a)),
      EMU_FLOAT1("s_floor", __builtin_floorf(a)),
      EMU_FLOAT1("s_trunc", __builtin_truncf(a)),
      EMU_FLOAT1("s_rndne", __builtin_roundevenf(a)),
      row("s_fmac_f32", scalar<[](Old<float> c, float a, float b) { return std::fma(a, b, c.value); }>, "f=ff",
          kReadsDest),
      row("s_fmac_f16", scalar<[](Old<Float16> c, Float16 a, Float16 b) -> Float16 {
            return {narrow_to_odd(std::fma(static_cast<double>(a.value), static_cast<double>(b.value),
                                           static_cast<double>(c.value.value)))};
          }>,
          "h=hh", kReadsDest),
      // Printed in the order multiplicand, multiplier, addend: the constant is the last or the middle one.
      row("s_fmaak_f32", scalar<[](float a, float b, float c) { return std::fma(a, b, c); }>, "f=fff"),
      row("s_fmamk_f32", scalar<[](float a, float b, float c) { return std::fma(a, b, c); }>, "f=fff"),

      row("s_cvt_f32_i32", scalar<[](i32 a) { return static_cast<float>(a); }>, "f=u"),
      row("s_cvt_f32_u32", scalar<[](u32 a) { return static_cast<float>(a); }>, "f=u"),
      row("s_cvt_i32_f32", scalar<[](float a) { return to_i32(a); }>, "u=f"),
      row("s_cvt_u32_f32", scalar<[](float a) { return to_u32(a); }>, "u=f"),
      row("s_cvt_f16_f32", scalar<[](float a) { return Float16{a}; }>, "h=f"),
      row("s_cvt_f32_f16", scalar<[](Float16 a) { return a.value; }>, "f=h"),
      row("s_cvt_hi_f32_f16", scalar<[](u32 a) { return f32_of_f16(a >> 16); }>, "f=u"),
      row("s_cvt_pk_rtz_f16_f32",
          scalar<[](float a, float b) { return f16_toward_zero(a) | f16_toward_zero(b) << 16; }>, "H=ff"),

      EMU_COMPARE("lt", a < b),
      EMU_COMPARE("eq", a == b),
      EMU_COMPARE("le", a <= b),
      EMU_COMPARE("gt", a > b),
      EMU_COMPARE("lg", a < b || a > b),
      EMU_COMPARE("ge", a >= b),
      EMU_COMPARE("o", !is_nan(a) && !is_nan(b)),
      EMU_COMPARE("u", is_nan(a) || is_nan(b)),
      EMU_COMPARE("nge", !(a >= b)),
      EMU_COMPARE("nlg", !(a < b || a > b)),
      EMU_COMPARE("ngt", !(a > b)),
      EMU_COMPARE("nle", !(a <= b)),
      EMU_COMPARE("neq", !(a == b)),
      EMU_COMPARE("nlt", !(a < b)),
  };
  return rows;
}

}  // namespace emu

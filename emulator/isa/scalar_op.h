// How a scalar instruction is written: as a function of plain values. The types of its parameters say what is read,
// the type of its result says what is written.
#pragma once

#include <tuple>
#include <type_traits>

#include "isa/lanes.h"

namespace emu {

// --- parameters that are not printed sources, and results with more than a value -----------------------------------
struct SccIn {
  bool value;
};
struct Simm16 {  // the constant of SOPK; printed unsigned, meant sign-extended
  i32 value;
};
template <class T>
struct Old {  // the destination before the instruction
  T value;
};
struct Float16 {  // 16 bits of a register holding an f16; F sees it widened, its result is rounded once
  float value;
};
template <class T>
struct WithScc {
  T value;
  bool scc;
};

template <class T>
constexpr bool kIsOld = false;
template <class T>
constexpr bool kIsOld<Old<T>> = true;
template <class T>
constexpr bool kIsWithScc = false;
template <class T>
constexpr bool kIsWithScc<WithScc<T>> = true;

inline float flush_denormal(float value) {
  return __builtin_fabsf(value) < 0x1p-126f ? __builtin_copysignf(0.0f, value) : value;
}
inline float flush_f16_denormal(float value) {
  return __builtin_fabsf(value) < 0x1p-14f ? __builtin_copysignf(0.0f, value) : value;
}

// A 32-bit literal of a signed 64-bit operand is sign-extended; it is kept as printed.
inline i64 signed64(u64 value, const Operand& o) {
  return o.is_constant() && value >> 32 == 0 ? static_cast<i32>(value) : static_cast<i64>(value);
}

template <class T>
T read_scalar(const Wave& w, const Operand& o) {
  if constexpr (std::is_same_v<T, float>) {
    const float value = as_f32(scalar32(w, o));
    return w.flush_f32 ? flush_denormal(value) : value;
  } else if constexpr (std::is_same_v<T, Float16>) {
    const float value = f32_of_f16(scalar32(w, o) & 0xffff);
    return {w.flush_f16_f64 ? flush_f16_denormal(value) : value};
  } else if constexpr (std::is_same_v<T, i64>) {
    return signed64(scalar64(w, o), o);
  } else if constexpr (sizeof(T) == 8) {
    return static_cast<T>(scalar64(w, o));
  } else {
    return static_cast<T>(scalar32(w, o));
  }
}

template <class T>
void write_scalar(Wave& w, const Instruction& in, T result) {
  if constexpr (kIsWithScc<T>) {
    w.scc = result.scc;
    write_scalar(w, in, result.value);
  } else if constexpr (std::is_same_v<T, bool>) {
    w.scc = result;
  } else if constexpr (std::is_same_v<T, float>) {
    set_scalar32(w, in.operand[0], bits_of(w.flush_f32 ? flush_denormal(result) : result));
  } else if constexpr (std::is_same_v<T, Float16>) {
    // The upper half becomes zero, as RDNA4 says of the V_S_*_F16 instructions.
    float value = f32_of_f16(f16_of_f32(result.value));
    if (w.flush_f16_f64) value = flush_f16_denormal(value);
    set_scalar32(w, in.operand[0], f16_of_f32(value));
  } else if constexpr (sizeof(T) == 8) {
    set_scalar64(w, in.operand[0], static_cast<u64>(result));
  } else {
    set_scalar32(w, in.operand[0], static_cast<u32>(result));
  }
}

struct ScalarReader {
  const Wave& w;
  const Instruction& in;
  int next = 0;

  template <class T>
  T take() {
    if constexpr (std::is_same_v<T, SccIn>) {
      return {w.scc};
    } else if constexpr (std::is_same_v<T, Simm16>) {
      return {in.simm16};
    } else if constexpr (kIsOld<T>) {
      return {read_scalar<decltype(T::value)>(w, in.operand[0])};
    } else {
      return read_scalar<T>(w, in.source(next++));
    }
  }
};

template <auto F, class L, class R, class... A>
void run_scalar(Wave& w, const Instruction& in, R (L::*)(A...) const) {
  ScalarReader reader{w, in};
  const std::tuple<A...> arguments{reader.take<A>()...};  // braces: in order
  write_scalar(w, in, std::apply(F, arguments));
}

// The handler of a function.
template <auto F>
void scalar(Wave& w, const Instruction& in) {
  using Function = std::remove_cvref_t<decltype(F)>;
  run_scalar<F>(w, in, &Function::operator());
}

std::span<const Opcode> scalar_int_opcodes();
std::span<const Opcode> scalar_exec_opcodes();
std::span<const Opcode> scalar_float_opcodes();

}  // namespace emu

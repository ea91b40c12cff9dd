// The operations of LDS and memory atomics: new value from the old one and the instruction's data, as bits.
#pragma once

#include "core/target.h"
#include "core/wave.h"

namespace emu::atomics {

// What a float addition does with denormals.
struct FloatMode {
  bool flush = false;
};

inline u32 flushed(u32 bits) { return (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits; }

template <class T>
struct Add {
  static T apply(T old, T data, FloatMode) { return old + data; }
};
template <class T>
struct Sub {
  static T apply(T old, T data, FloatMode) { return old - data; }
};
template <class T>
struct ReverseSub {
  static T apply(T old, T data, FloatMode) { return data - old; }
};
// Up to `data`, then 0; down to 0, then `data`.
template <class T>
struct Increment {
  static T apply(T old, T data, FloatMode) { return old >= data ? 0 : old + 1; }
};
template <class T>
struct Decrement {
  static T apply(T old, T data, FloatMode) { return old == 0 || old > data ? data : old - 1; }
};
template <class T>
struct Min {
  static T apply(T old, T data, FloatMode) { return data < old ? data : old; }
};
template <class T>
struct Max {
  static T apply(T old, T data, FloatMode) { return data > old ? data : old; }
};
template <class T>
struct And {
  static T apply(T old, T data, FloatMode) { return old & data; }
};
template <class T>
struct Or {
  static T apply(T old, T data, FloatMode) { return old | data; }
};
template <class T>
struct Xor {
  static T apply(T old, T data, FloatMode) { return old ^ data; }
};
template <class T>
struct Swap {
  static T apply(T, T data, FloatMode) { return data; }
};
// gfx12 sub_clamp, gfx11 csub: not below 0. cond_sub: only if the result is not negative.
struct SubClamp {
  static u32 apply(u32 old, u32 data, FloatMode) { return old < data ? 0 : old - data; }
};
struct CondSub {
  static u32 apply(u32 old, u32 data, FloatMode) { return old >= data ? old - data : old; }
};

struct AddF32 {
  static u32 apply(u32 old, u32 data, FloatMode mode) {
    if (!mode.flush) return bits_of(as_f32(old) + as_f32(data));
    return flushed(bits_of(as_f32(flushed(old)) + as_f32(flushed(data))));
  }
};
struct AddF64 {
  static u64 apply(u64 old, u64 data, FloatMode) { return bits_of(as_f64(old) + as_f64(data)); }
};
// A number wins over a NaN, and -0 is below +0.
template <class F, bool kMax>
struct FloatMinMax {
  using Bits = decltype(bits_of(F{}));
  static F value(Bits bits) { return std::bit_cast<F>(bits); }
  static Bits apply(Bits old, Bits data, FloatMode) {
    const F a = value(old), b = value(data);
    if (a != a) return data;
    if (b != b) return old;
    if (a == b) return kMax ? old & data : old | data;  // differ in the sign of a zero at most
    return (b < a) != kMax ? data : old;
  }
};
template <class Widen, class Narrow>
inline u32 packed_sum(u32 old, u32 data, Widen widen, Narrow narrow) {
  const u32 low = narrow(widen(old & 0xffff) + widen(data & 0xffff));
  const u32 high = narrow(widen(old >> 16) + widen(data >> 16));
  return low | high << 16;
}
// One rounding: sums of two 16-bit floats in f32 round to the same 16 bits as the exact sums do.
struct PackedAddF16 {
  static u32 apply(u32 old, u32 data, FloatMode) { return packed_sum(old, data, f32_of_f16, f16_of_f32); }
};
struct PackedAddBf16 {
  static u32 apply(u32 old, u32 data, FloatMode) { return packed_sum(old, data, f32_of_bf16, bf16_of_f32); }
};

}  // namespace emu::atomics

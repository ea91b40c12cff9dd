// 16x16 matrix words, one interface for CDNA (MFMA) and RDNA (WMMA): D = A * B + C with A of 16 x kDepth, B of
// kDepth x 16 elements of 16 bits, C and D of 16 x 16 floats, spread over the wave in groups of 16 lanes.
//
//   A       lane holds row lane & 15, slots (group, 0 .. kElements-1) of the contraction
//   B       lane holds column lane & 15, the same slots
//   C, D    lane holds column lane & 15, rows accumulator_row(group, 0 .. kRegisters-1)
//
// Which index of the contraction lies in which slot is up to the caller, as long as A and B agree; so is which row of A
// lies in which lane. Fed with row_of_lane(), the accumulator's register r holds row kRegisters * group + r everywhere,
// and kElements / kRegisters accumulators, converted, are an operand without a move between lanes.
//
// Layouts: AMD's matrix instruction calculator; ISA guides of CDNA3 (section 7.1), RDNA3 and RDNA4 (section 7.9).
#pragma once

#include "kernels/amd/gpu.h"

namespace flashwave {

inline constexpr int kGroups = kWave / 16;
inline constexpr int kRegisters = 256 / kWave;
#if defined(__GFX9__) && !defined(__gfx950__)
inline constexpr int kElements = 4;
#else
inline constexpr int kElements = 8;
#endif
inline constexpr int kDepth = kGroups * kElements;

using Accumulator = Vec<float, kRegisters>;
using Operand = Vec<uint32_t, kElements / 2>;

// `hold`, except for matrix operands of CDNA, which may be in accumulation registers.
template <class X>
FW_DEVICE void hold_operand([[maybe_unused]] X& x) {
#if defined(__GFX9__)
  if constexpr (sizeof(X) == 4) hold(x);
#else
  hold(x);
#endif
}

FW_DEVICE int group_index() { return lane_index() / 16; }

FW_DEVICE int accumulator_row([[maybe_unused]] int group, int r) {
#if defined(__GFX11__)
  return 2 * r + group;
#else
  return kRegisters * group + r;
#endif
}

// Row to feed in lane i of A so that register r of the accumulator holds row kRegisters * group + r.
FW_DEVICE constexpr int row_of_lane(int i) {
#if defined(__GFX11__)
  return 8 * (i & 1) + (i >> 1);
#else
  return i;
#endif
}
FW_DEVICE int lane_of_row(int row) { return accumulator_row(row / kRegisters, row % kRegisters); }

#if !defined(__GFX9__)
// x of the lane 16 away. The switches say that the former content of the result does not matter.
FW_DEVICE uint32_t other_half(uint32_t x) {
  return __builtin_amdgcn_permlanex16(0, x, 0x76543210, 0xFEDCBA98, true, true);
}
#endif

// x of the lane with the same column in another group, 16 or (CDNA) 32 lanes away.
FW_DEVICE float other_group(float x, [[maybe_unused]] int distance) {
#if defined(__GFX9__)
  const int from = (lane_index() ^ distance) * 4;
  return float_of(__builtin_amdgcn_ds_bpermute(from, bits_of(x)));
#else
  return float_of(other_half(bits_of(x)));
#endif
}
FW_DEVICE float max_of_groups(float x) {
  FW_UNROLL for (int distance = 16; distance < kWave; distance *= 2) {
    x = __builtin_fmaxf(x, other_group(x, distance));
  }
  return x;
}
FW_DEVICE float sum_of_groups(float x) {
  FW_UNROLL for (int distance = 16; distance < kWave; distance *= 2) x += other_group(x, distance);
  return x;
}
FW_DEVICE uint32_t from_lane(int lane, uint32_t x) { return __builtin_amdgcn_ds_bpermute(lane * 4, x); }

FW_DEVICE bool any_lane(bool x) {
#if defined(__GFX9__)
  return __builtin_amdgcn_ballot_w64(x) != 0;
#else
  return __builtin_amdgcn_ballot_w32(x) != 0;
#endif
}

// An operand as the instruction wants it. gfx11 wants all 16 slots in both halves of the wave; make it once for an
// operand that is used more than once.
#if defined(__GFX11__)
using WideOperand = Vec<uint32_t, 8>;
FW_DEVICE WideOperand widen(Operand x) {
  const bool upper = lane_index() >= 16;
  WideOperand wide;
  FW_UNROLL for (int i = 0; i < 4; ++i) {
    const uint32_t other = other_half(x[i]);
    wide[i] = upper ? other : x[i];
    wide[4 + i] = upper ? x[i] : other;
  }
  return wide;
}
#else
using WideOperand = Operand;
FW_DEVICE WideOperand widen(Operand x) { return x; }
#endif

// T: _Float16 or __bf16.
#if defined(__GFX11__)
template <class T>
FW_DEVICE Accumulator multiply_add(WideOperand a, WideOperand b, Accumulator c) {
  if constexpr (__is_same(T, _Float16)) {
    using X = Vec<_Float16, 16>;
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(X, a), __builtin_bit_cast(X, b), c);
  } else {
    using X = Vec<short, 16>;
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(X, a), __builtin_bit_cast(X, b), c);
  }
}
template <class T>
FW_DEVICE Accumulator multiply_add(Operand a, WideOperand b, Accumulator c) {
  return multiply_add<T>(widen(a), b, c);
}
#else
template <class T>
FW_DEVICE Accumulator multiply_add(Operand a, WideOperand b, Accumulator c) {
  constexpr bool kHalf = __is_same(T, _Float16);
#if defined(__gfx950__)
  using X = Vec<T, 8>;
  const X x = __builtin_bit_cast(X, a), y = __builtin_bit_cast(X, b);
  if constexpr (kHalf) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(x, y, c, 0, 0, 0);
  } else {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(x, y, c, 0, 0, 0);
  }
#elif defined(__GFX9__)
  if constexpr (kHalf) {
    using X = Vec<_Float16, 4>;
    return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(X, a), __builtin_bit_cast(X, b), c, 0, 0, 0);
  } else {
#if defined(__gfx908__)  // bf16 only 8 deep: half of the slots at a time
    using X = Vec<short, 2>;
    FW_UNROLL for (int i = 0; i < 2; ++i) {
      const uint32_t x = a[i], y = b[i];  // clang 22 takes element 0 in a bit cast of a[i] itself
      c = __builtin_amdgcn_mfma_f32_16x16x8bf16(__builtin_bit_cast(X, x), __builtin_bit_cast(X, y), c, 0, 0, 0);
    }
    return c;
#else
    using X = Vec<short, 4>;
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(X, a), __builtin_bit_cast(X, b), c, 0, 0, 0);
#endif
  }
#else
  if constexpr (kHalf) {
    using X = Vec<_Float16, 8>;
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(X, a), __builtin_bit_cast(X, b), c);
  } else {
    using X = Vec<short, 8>;
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(X, a), __builtin_bit_cast(X, b), c);
  }
#endif
}
#endif

// Two floats to one register, to nearest even.
template <class T>
FW_DEVICE uint32_t pack(float lo, float hi) {
  using X = Vec<T, 2>;
  return __builtin_bit_cast(uint32_t, __builtin_convertvector((F32x2{lo, hi}), X));
}

}  // namespace flashwave

// What differs between RDNA3 (gfx11) and RDNA4 (gfx12), and everything that must be said to the compiler rather than in
// C++: WMMA, exchange between lanes, values held in place. Sections refer to AMD's "RDNA3" and "RDNA4 Instruction Set
// Architecture" manuals.
#pragma once

#include "kernels/amd/gpu.h"

namespace flashwave {

using U32x8 = Vec<uint32_t, 8>;
using I16x8 = Vec<int16_t, 8>;
using U16x8 = Vec<uint16_t, 8>;
using I16x16 = Vec<int16_t, 16>;
using F16x8 = Vec<_Float16, 8>;
using F16x16 = Vec<_Float16, 16>;

// A 16 x 16 operand of WMMA; lane & 15 is its row (A) or column (B), `half` = lane >> 4. RDNA3 wants all 16 elements of
// the contraction in both halves ("Wave Matrix Multiply Accumulate", A and B replicated), RDNA4 8 of them in each. An
// accumulator's register r is row 2r + half on RDNA3 and 8 half + r on RDNA4.
#if defined(__GFX12__)
inline constexpr bool kRdna4 = true;
using Fragment = U32x4;
inline constexpr int kRowsOfRegister = 1, kRowsOfHalf = 8;
#else
inline constexpr bool kRdna4 = false;
using Fragment = U32x8;
inline constexpr int kRowsOfRegister = 2, kRowsOfHalf = 1;
#endif

// 512 bytes in LDS: 16-byte unit u * 16 + i is row i, elements 8u .. 8u+7 of the contraction.
inline constexpr int kFragmentBytes = 512;

FW_DEVICE U32x8 joined(U32x4 a, U32x4 b) { return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7); }

FW_DEVICE F32x8 wmma_bf16(Fragment a, Fragment b, F32x8 c) {
#if defined(__GFX12__)
  return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(I16x8, a), __builtin_bit_cast(I16x8, b),
                                                           c);
#else
  return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(I16x16, a), __builtin_bit_cast(I16x16, b), c);
#endif
}

FW_DEVICE F32x8 wmma_f16(Fragment a, Fragment b, F32x8 c) {
#if defined(__GFX12__)
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(F16x8, a), __builtin_bit_cast(F16x8, b),
                                                          c);
#else
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(F16x16, a), __builtin_bit_cast(F16x16, b), c);
#endif
}

// C stays as it is: the compiler would copy it to where the result goes.
FW_DEVICE F32x8 wmma_bf16_keeping(Fragment a, Fragment b, F32x8 c) {
  F32x8 d;
  asm("v_wmma_f32_16x16x16_bf16 %0, %1, %2, %3" : "=&v"(d) : "v"(a), "v"(b), "v"(c));
  return d;
}
FW_DEVICE F32x8 wmma_f16_keeping(Fragment a, Fragment b, F32x8 c) {
  F32x8 d;
  asm("v_wmma_f32_16x16x16_f16 %0, %1, %2, %3" : "=&v"(d) : "v"(a), "v"(b), "v"(c));
  return d;
}

// With C = 0. RDNA3: the compiler would copy eight zeros from scalar registers that it keeps for them.
#if defined(__GFX12__)
FW_DEVICE F32x8 wmma_bf16(Fragment a, Fragment b) { return wmma_bf16(a, b, F32x8(0.f)); }
FW_DEVICE F32x8 wmma_f16(Fragment a, Fragment b) { return wmma_f16(a, b, F32x8(0.f)); }
#else
FW_DEVICE F32x8 wmma_bf16(Fragment a, Fragment b) {
  F32x8 d;
  asm("v_wmma_f32_16x16x16_bf16 %0, %1, %2, 0" : "=&v"(d) : "v"(a), "v"(b));
  return d;
}
FW_DEVICE F32x8 wmma_f16(Fragment a, Fragment b) {
  F32x8 d;
  asm("v_wmma_f32_16x16x16_f16 %0, %1, %2, 0" : "=&v"(d) : "v"(a), "v"(b));
  return d;
}
#endif

#if defined(__GFX12__)
// global_load_tr_b128: each group of 8 lanes reads 8 rows of 8 elements, 16 bytes a lane, and lane i of the group
// receives element i of each row. `base` is uniform. The address must be a multiple of 16; nothing checks a range.
FW_DEVICE U32x4 load_transposed(const char* base, uint32_t offset) {
  using Source = __attribute__((address_space(1))) I16x8;
  return __builtin_bit_cast(U32x4, __builtin_amdgcn_global_load_tr_b128_v8i16((Source*)(base + offset)));
}
#endif

// The value of lane ^ 16 (v_permlanex16_b32, identity selectors).
FW_DEVICE float other_half(float x) {
  return float_of(__builtin_amdgcn_permlanex16(bits_of(x), bits_of(x), 0x76543210, 0xfedcba98, true, false));
}

FW_DEVICE uint32_t ballot(bool x) { return __builtin_amdgcn_ballot_w32(x); }
// Whether this lane's bit is set, of a uniform number.
FW_DEVICE bool in_lanes(uint32_t lanes) { return __builtin_amdgcn_inverse_ballot_w32(lanes); }

// A uniform float for good: arithmetic on it is vector arithmetic before RDNA3.5, so the result comes back explicitly.
FW_DEVICE float uniform(float x) {
  hold(x);
  return float_of(uniform(int32_t(bits_of(x))));
}
// The same of the result of scalar arithmetic, which RDNA4 has.
FW_DEVICE float in_scalar(float x) { return kRdna4 ? here(x) : uniform(x); }

// sum += a * b by instructions that can be paired, v_fmac_f32: of elements that are still part of a vector the compiler
// makes v_fma_f32, which cannot.
template <int N>
FW_DEVICE void add_products(Vec<float, N>& sum, const Vec<float, N>& a, const Vec<float, N>& b) {
  FW_UNROLL for (int r = 0; r < N; ++r) {
    float one = sum[r];
    hold(one);
    sum[r] = __builtin_fmaf(a[r], b[r], one);
  }
  hold(sum);
}
// x += x * b
template <int N>
FW_DEVICE void add_share(Vec<float, N>& x, const Vec<float, N>& b) {
  FW_UNROLL for (int r = 0; r < N; ++r) {
    float one = x[r];
    hold(one);
    x[r] = __builtin_fmaf(one, b[r], one);
  }
  hold(x);
}
template <int N>
FW_DEVICE void add_products(Vec<float, N>& sum, const Vec<float, N>& a, float b) {
  FW_UNROLL for (int r = 0; r < N; ++r) {
    float one = sum[r];
    hold(one);
    sum[r] = __builtin_fmaf(a[r], b, one);
  }
  hold(sum);
}

// LDS writes of this wave come before its later reads: the unit works in order, only the compiler must know.
FW_DEVICE void wave_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront", "local"); }

}  // namespace flashwave

// The words of a GPU on the host, as far as the shared pieces use them: for the CPU kernels and for unit tests.
// Builtins and not <cmath>: a function of std that stays out of line in a file compiled for AVX-512 could become every
// file's.
#pragma once

#include "kernels/abi/params.h"
#include "kernels/common/dtype.h"

#define FW_DEVICE static inline
#define FW_METHOD inline
#if defined(__clang__)
#define FW_UNROLL _Pragma("clang loop unroll(full)")
#define FW_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else  // GCC, for those who build from source: correct, but what clang makes of these files is what was measured
#define FW_UNROLL _Pragma("GCC unroll 32")
#define FW_NO_UNROLL _Pragma("GCC unroll 1")
#endif

namespace flashwave {

using abi::Params;

inline constexpr float kInf = __builtin_inff(), kLargest = 3.40282347e38f;
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

FW_DEVICE const Params& parameters_again(const Params& params) { return params; }
FW_DEVICE void schedule_fence() {}
FW_DEVICE uint64_t either(const uint64_t* at, int i, const uint64_t& otherwise) { return at ? at[i] : otherwise; }

FW_DEVICE float exp2_fast(float x) { return __builtin_exp2f(x); }
FW_DEVICE float log2_fast(float x) { return __builtin_log2f(x); }
FW_DEVICE float rcp_fast(float x) { return 1.f / x; }
FW_DEVICE float scaled_by_power(float x, int n) { return __builtin_ldexpf(x, n); }

FW_DEVICE float float_of_half(uint16_t x) { return to_float(Half{x}); }
FW_DEVICE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FW_DEVICE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

// A wave of one lane.
template <class Op>
FW_DEVICE float wave_reduce(float x, Op) {
  return x;
}

}  // namespace flashwave

#include "core/cpu.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/bits.h"

namespace emu {
namespace {

#ifdef __x86_64__
// Sums in which each of the two steps is rounded, one product is below the last bit of the other, or all is 0.
__attribute__((target("avx512f,avx512bf16"))) bool bf16_products_are_chains() {
  constexpr u32 kOne = 0x3f80, kMinus = 0xbf80, kThird = 0x3eab, kSmall = 0x3380 /* 2^-24 */, kMinusZero = 0x8000;
  struct Case {
    u32 a[2], b[2];  // the first of each is the high half
    float c;
  };
  constexpr Case kCases[] = {{{kOne, kSmall}, {kOne, kOne}, 0.0f},
                             {{kSmall, kOne}, {kOne, kOne}, 0.0f},
                             {{kSmall, kSmall}, {kOne, kOne}, 1.0f},
                             {{kSmall, kSmall}, {kOne, kMinus}, 1.0f + 0x1p-23f},
                             {{kOne, kMinus}, {kThird, kThird}, 0x1.fffffep23f},
                             {{kThird, kThird}, {kThird, kMinus}, 0x1.234566p-3f},
                             {{kThird, kThird}, {kMinus, kThird}, -0x1.876542p-1f},
                             {{kOne, kOne}, {kThird, kMinus}, -0x1.565656p+2f},
                             {{kMinusZero, kMinusZero}, {kOne, kOne}, -0.0f},
                             {{kMinusZero, 0}, {kOne, kOne}, -0.0f},
                             {{kOne, kMinus}, {kOne, kOne}, -0.0f}};
  for (const Case& x : kCases) {
    const __m512i a = _mm512_set1_epi32(static_cast<i32>(x.a[0] << 16 | x.a[1]));
    const __m512i b = _mm512_set1_epi32(static_cast<i32>(x.b[0] << 16 | x.b[1]));
    const __m512 sum = _mm512_dpbf16_ps(_mm512_set1_ps(x.c), (__m512bh)a, (__m512bh)b);
    float chain = x.c;
    for (int i = 0; i < 2; ++i) chain = std::fma(as_f32(x.a[i] << 16), as_f32(x.b[i] << 16), chain);
    if (bits_of(_mm512_cvtss_f32(sum)) != bits_of(chain)) return false;
  }
  return true;
}
#endif

}  // namespace

bool cpu_has_avx512() {
#ifdef __x86_64__
  static const bool has = [] {
    const char* wanted = std::getenv("FLASHWAVE_EMU_AVX512");
    return !(wanted && std::strcmp(wanted, "0") == 0) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi");
  }();
  return has;
#else
  return false;
#endif
}

bool cpu_has_bf16_products() {
#ifdef __x86_64__
  static const bool has = cpu_has_avx512() && __builtin_cpu_supports("avx512bf16") && bf16_products_are_chains();
  return has;
#else
  return false;
#endif
}

}  // namespace emu

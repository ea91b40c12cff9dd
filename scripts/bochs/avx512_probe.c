// Shows that AVX-512 code really executes here: asks CPUID and XGETBV, checks one masked fused multiply-add lane by
// lane, then runs as many million unmasked ones as the argument says (to be timed from outside: the guest's clock
// follows emulated instructions). Prints one line each; exit status 0 only when all is right.
#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int cpu_has_avx512(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 0xe6) != 0xe6) return 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
  const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  return (b & wanted) == wanted;
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), noinline)) static int fma_is_right(void) {
  float x[16], y[16], z[16], out[16];
  for (int i = 0; i < 16; ++i) x[i] = 0.5f + i, y[i] = 3.0f - i, z[i] = 0.25f * i;
  const __mmask16 mask = 0xa5c3;
  _mm512_storeu_ps(out, _mm512_mask_fmadd_ps(_mm512_loadu_ps(x), mask, _mm512_loadu_ps(y), _mm512_loadu_ps(z)));
  for (int i = 0; i < 16; ++i) {
    const float want = (mask >> i & 1) ? x[i] * y[i] + z[i] : x[i];  // exact in fp32
    if (out[i] != want) {
      printf("lane %d: got %g, want %g\n", i, out[i], want);
      return 0;
    }
  }
  return 1;
}

__attribute__((target("avx512f"), noinline)) static float fma_loop(int64_t iterations) {
  __m512 sum[8];
  for (int i = 0; i < 8; ++i) sum[i] = _mm512_set1_ps(1.0f + i);
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.5f);
  for (int64_t n = 0; n < iterations; ++n) {
    for (int i = 0; i < 8; ++i) sum[i] = _mm512_fmadd_ps(sum[i], factor, term);
  }
  float total = 0;
  for (int i = 0; i < 8; ++i) total += _mm512_reduce_add_ps(sum[i]);
  return total;
}

int main(int argc, char **argv) {
  const int present = cpu_has_avx512();
  printf("CPUID and XGETBV: AVX-512 F, BW, DQ, VL %s\n", present ? "usable" : "NOT usable");
  if (!present) return 1;
  const int right = fma_is_right();
  printf("masked 512-bit FMA: %s\n", right ? "right" : "WRONG");
  const int64_t millions = argc > 1 ? atoi(argv[1]) : 1;
  const float total = fma_loop(millions * 125000);
  printf("%lld million 512-bit FMAs done (sum %g)\n", (long long)millions, total);
  return right && total > 0 ? 0 : 1;
}

// A product of pairs of bf16, which AVX-512 by itself does not have.
#include <immintrin.h>

extern "C" __m512 product(__m512 sum, __m512bh a, __m512bh b) { return _mm512_dpbf16_ps(sum, a, b); }

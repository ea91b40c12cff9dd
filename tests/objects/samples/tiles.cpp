// Miniature tile kernels: sound, or with one fault each.
#include <immintrin.h>

namespace {
struct alignas(64) Config {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short bytes_per_row[16] = {64, 64, 64};
  unsigned char rows[16] = {16, 16, 16};
};

__attribute__((noinline)) void multiply(const void* a, const void* b, float* c) {
  _tile_loadd(1, a, 64);
  _tile_loadd(2, b, 64);
  _tile_zero(0);
  _tile_dpbf16ps(0, 1, 2);
#ifndef APART
  _mm512_storeu_ps(c + 256, _mm512_scalef_ps(_mm512_loadu_ps(c + 256), _mm512_loadu_ps(c + 272)));
#endif
  _tile_stored(0, c, 64);
}
}  // namespace

extern "C" void product(const void* a, const void* b, float* c, bool early) {
#ifndef UNCONFIGURED
  const Config config;
  _tile_loadconfig(&config);
#endif
#ifdef ON_STACK
  alignas(64) float copy[256];
  _tile_zero(0);
  _tile_stored(0, copy, 64);
  asm volatile("" ::"m"(copy));
#endif
  multiply(a, b, c);
#ifdef UNRELEASED
  if (early) {
    c[0] = 1;
    asm volatile("" ::: "memory");
    return;
  }
#endif
#ifndef UNCONFIGURED
  _tile_release();
#endif
}

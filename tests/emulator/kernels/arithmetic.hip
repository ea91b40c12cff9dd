// Wide integers, double precision, halves and packed values; results are compared with exact ones.
#include "gpu.h"

KERNEL void wide(const long* a, const long* b, ulong* out) {
  const int i = global_x();
  const long x = a[i], y = b[i];
  const ulong u = (ulong)x, v = (ulong)y;
  ulong* o = out + 16 * i;
  const int shift = (int)(y & 63);
  o[0] = u + v;
  o[1] = u - v;
  o[2] = u * v;
  o[3] = (ulong)(((unsigned __int128)u * v) >> 64);
  o[4] = (ulong)(((__int128)x * y) >> 64);
  o[5] = u / (v | 1);
  o[6] = u % (v | 1);
  o[7] = (ulong)((x >> 1) / (y | 1));
  o[8] = (ulong)((x >> 1) % (y | 1));
  o[9] = u << shift;
  o[10] = u >> shift;
  o[11] = (ulong)(x >> shift);
  o[12] = (ulong)(x < y) | (ulong)(u < v) << 1 | (ulong)(x == y) << 2;
  o[13] =
      (ulong)__builtin_popcountl(u) | (ulong)__builtin_clzl(u | 1) << 8 | (ulong)__builtin_ctzl(u | 1ul << 63) << 16;
  o[14] = __builtin_bitreverse64(u);
  o[15] = __builtin_bswap64(u);
}
KERNEL void narrow(const int* a, const int* b, uint* out) {
  const int i = global_x();
  const int x = a[i], y = b[i];
  const uint u = (uint)x, v = (uint)y;
  uint* o = out + 16 * i;
  o[0] = u * v;
  o[1] = (uint)(((ulong)u * v) >> 32);
  o[2] = (uint)(((long)x * y) >> 32);
  o[3] = u / (v | 1);
  o[4] = u % (v | 1);
  o[5] = (uint)((x >> 1) / (y | 1));
  o[6] = (uint)((x >> 1) % (y | 1));
  o[7] = __builtin_bitreverse32(u);
  o[8] = (uint)__builtin_popcount(u) | (uint)__builtin_clz(u | 1) << 8 | (uint)__builtin_ctz(u | 1u << 31) << 16;
  o[9] = __builtin_rotateleft32(u, v & 31);
  o[10] = (uint)__builtin_elementwise_add_sat(x, y);
  o[11] = __builtin_elementwise_sub_sat(u, v);
  o[12] = (uint)((short)x * (short)y) + (ushort)(u + v);
  o[13] = (uint)(signed char)x * 3u + (uchar)(v >> 3) + ((u >> 5) & 0x3ff);
  o[14] = (uint)__builtin_elementwise_min(__builtin_elementwise_max(x, -1000), 1000) + __builtin_elementwise_min(u, v);
  o[15] = (u & v) | (~u & (v >> 3)) ^ 0x5a5a5a5a;
}
KERNEL void doubles(const double* a, const double* b, const double* c, double* out) {
  const int i = global_x();
  const double x = a[i], y = b[i], z = c[i];
  double* o = out + 16 * i;
  o[0] = x + y;
  o[1] = x * y;
  o[2] = __builtin_fma(x, y, z);
  o[3] = x / y;
  o[4] = __builtin_sqrt(__builtin_fabs(x));
  o[5] = __builtin_floor(x);
  o[6] = __builtin_trunc(y);
  o[7] = __builtin_rint(z);
  o[8] = __builtin_fmin(x, y);
  o[9] = __builtin_fmax(y, z);
  o[10] = (double)(float)x;
  o[11] = (double)(int)(y);
  o[12] = (double)(long)(z * 1e6);
  o[13] = (double)(ulong)(__builtin_fabs(x) * 1e6);
  o[14] = x < y ? x - z : __builtin_ceil(y);
  o[15] = __builtin_copysign(x, z);
}
KERNEL void floats(const float* a, const float* b, const float* c, float* out) {
  const int i = global_x();
  const float x = a[i], y = b[i], z = c[i];
  float* o = out + 16 * i;
  o[0] = x + y;
  o[1] = x * y;
  o[2] = __builtin_fmaf(x, y, z);
  o[3] = x / y;
  o[4] = __builtin_sqrtf(__builtin_fabsf(x));
  o[5] = __builtin_floorf(x);
  o[6] = __builtin_truncf(y);
  o[7] = __builtin_rintf(z);
  o[8] = __builtin_fminf(x, y);
  o[9] = __builtin_fmaxf(y, z);
  o[10] = (float)(half)x;
  o[11] = (float)(int)y;
  o[12] = (float)(long)(z * 1e6f);
  o[13] = (float)(uint)__builtin_fabsf(x);
  o[14] = __builtin_ceilf(y);
  o[15] = __builtin_copysignf(x, z);
}
KERNEL void halves(const half* a, const half* b, const half* c, half* out) {
  const int i = global_x();
  const half x = a[i], y = b[i], z = c[i];
  half* o = out + 12 * i;
  o[0] = x + y;
  o[1] = x - y;
  o[2] = x * y;
  o[3] = __builtin_fmaf16(x, y, z);
  o[4] = x / y;
  o[5] = __builtin_sqrtf16(__builtin_fabsf16(x));
  o[6] = __builtin_floorf16(x);
  o[7] = (half)(int)y;
  o[8] = (half)(short)z;
  o[9] = x < y ? z : -z;
  o[10] = __builtin_fminf16(x, y);
  o[11] = (half)(float)((float)x + (float)y * (float)z);
}
KERNEL void packed(const half2* a, const half2* b, const short2* c, const short2* d, half2* out, short2* out_int) {
  const int i = global_x();
  const half2 x = a[i], y = b[i];
  half2* o = out + 6 * i;
  o[0] = x + y;
  o[1] = x * y;
  o[2] = __builtin_elementwise_fma(x, y, x);
  o[3] = __builtin_elementwise_max(x, y);
  o[4] = x.yx - y;
  o[5] = half2{x.x, y.y} * -y;
  const short2 p = c[i], q = d[i];
  short2* r = out_int + 8 * i;
  r[0] = p + q;
  r[1] = p - q;
  r[2] = p * q + p;
  r[3] = __builtin_elementwise_min(p, q);
  r[4] = __builtin_elementwise_max(p.yx, q);
  r[5] = p << (q & 15);
  r[6] = p >> (q & 15);
  r[7] = __builtin_elementwise_add_sat(p, q);
}
// f32 to bf16 and back, as the compiler lowers it on each target.
KERNEL void brains(const float* a, const float* b, float* out, __bf16* stored) {
  const int i = global_x();
  const __bf16 x = (__bf16)a[i], y = (__bf16)b[i];
  out[3 * i] = (float)x;
  out[3 * i + 1] = (float)(x * y);
  out[3 * i + 2] = (float)(x + y);
  stored[i] = (__bf16)(a[i] * b[i]);
}

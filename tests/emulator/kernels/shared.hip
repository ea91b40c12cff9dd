// Data moved through LDS: transposes, scans, memory whose size the launch gives.
#include "gpu.h"

KERNEL void transpose(const float* in, float* out, int rows, int columns) {
  SHARED float tile[32][33];
  const int x = group_x() * 32 + thread_x(), y = group_y() * 32 + thread_y();
  for (int i = 0; i < 32; i += 8) {
    if (x < columns && y + i < rows) tile[thread_y() + i][thread_x()] = in[(y + i) * columns + x];
  }
  barrier();
  const int x2 = group_y() * 32 + thread_x(), y2 = group_x() * 32 + thread_y();
  for (int i = 0; i < 32; i += 8) {
    if (x2 < rows && y2 + i < columns) out[(y2 + i) * rows + x2] = tile[thread_x()][thread_y() + i];
  }
}

KERNEL void transpose_half(const half* in, half* out, int rows, int columns) {
  SHARED half tile[64][68];
  const int t = thread_x();
  const half* from = in + group_y() * 64 * columns + group_x() * 64;
  for (int i = t; i < 64 * 8; i += 256) {
    const half8 v = *(const half8*)(from + i / 8 * columns + i % 8 * 8);
    *(half4*)&tile[i / 8][i % 8 * 8] = v.lo;
    *(half4*)&tile[i / 8][i % 8 * 8 + 4] = v.hi;
  }
  barrier();
  half* to = out + group_x() * 64 * rows + group_y() * 64;
  for (int i = t; i < 64 * 8; i += 256) {
    half8 v;
    for (int j = 0; j < 8; j++) v[j] = tile[i % 8 * 8 + j][i / 8];
    *(half8*)(to + i / 8 * rows + i % 8 * 8) = v;
  }
}

// Inclusive, Hillis-Steele, two buffers.
KERNEL void scan(const int* in, int* out) {
  SHARED int buffer[2][256];
  const int t = thread_x();
  int now = 0;
  buffer[0][t] = in[global_x()];
  for (int step = 1; step < 256; step *= 2) {
    barrier();
    int x = buffer[now][t];
    if (t >= step) x += buffer[now][t - step];
    now ^= 1;
    buffer[now][t] = x;
  }
  out[global_x()] = buffer[now][t];
}

// Exclusive, Blelloch, in place, 64-bit.
KERNEL void scan_exclusive(const long* in, long* out) {
  SHARED long values[512];
  const int t = thread_x(), base = group_x() * 512;
  values[2 * t] = in[base + 2 * t];
  values[2 * t + 1] = in[base + 2 * t + 1];
  int gap = 1;
  for (int d = 256; d > 0; d /= 2, gap *= 2) {
    barrier();
    if (t < d) values[gap * (2 * t + 2) - 1] += values[gap * (2 * t + 1) - 1];
  }
  if (t == 0) values[511] = 0;
  for (int d = 1; d < 512; d *= 2) {
    gap /= 2;
    barrier();
    if (t < d) {
      const long left = values[gap * (2 * t + 1) - 1];
      values[gap * (2 * t + 1) - 1] = values[gap * (2 * t + 2) - 1];
      values[gap * (2 * t + 2) - 1] += left;
    }
  }
  barrier();
  out[base + 2 * t] = values[2 * t];
  out[base + 2 * t + 1] = values[2 * t + 1];
}

extern SHARED int dynamic[];
KERNEL void reverse_dynamic(const int* in, int* out, int n) {
  for (int i = thread_x(); i < n; i += group_size()) dynamic[i] = in[i];
  barrier();
  for (int i = thread_x(); i < n; i += group_size()) out[i] = dynamic[n - 1 - i];
}

// Static and dynamic together: the dynamic part comes after.
KERNEL void both_kinds(const int* in, int* out) {
  SHARED int fixed[64];
  const int t = thread_x();
  fixed[t] = in[t];
  dynamic[t] = in[t] * 10;
  barrier();
  out[t] = fixed[63 - t] + dynamic[(t + 1) & 63];
}

// Every width of LDS access, through bytes written by another lane.
KERNEL void lds_widths(const uint* in, uint* out) {
  SHARED __attribute__((aligned(16))) uchar bytes[64 * 32];
  const int t = thread_x(), other = 63 - t;
  const uint x = in[t];
  uchar* mine = bytes + t * 32;
  mine[0] = (uchar)x;
  mine[1] = (uchar)(x >> 8);
  *(ushort*)(mine + 2) = (ushort)(x >> 16);
  *(uint*)(mine + 4) = x * 3;
  *(ulong*)(mine + 8) = (ulong)x << 20;
  *(int4*)(mine + 16) = int4{(int)x, (int)x + 1, (int)x + 2, (int)x + 3};
  barrier();
  const uchar* theirs = bytes + other * 32;
  uint sum = *(const uint*)theirs;
  sum = sum * 31 + (uint)(int)*(const signed char*)(theirs + 4);
  sum = sum * 31 + theirs[5];
  sum = sum * 31 + (uint)(int)*(const short*)(theirs + 6);
  sum = sum * 31 + *(const ushort*)(theirs + 8);
  sum = sum * 31 + (uint)(*(const ulong*)(theirs + 8) >> 16);
  const int4 v = *(const int4*)(theirs + 16);
  sum = sum * 31 + (uint)v.x + (uint)v.y * 5 + (uint)v.z * 7 + (uint)v.w * 11;
  out[t] = sum;
}

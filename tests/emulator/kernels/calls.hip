// Calls, recursion, function pointers, and private memory that registers cannot hold.
#include "gpu.h"

DEVICE NOINLINE int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
KERNEL void recursion(const int* in, int* out) { out[global_x()] = fibonacci(in[global_x()]); }

DEVICE NOINLINE bool is_odd(int n);
DEVICE NOINLINE bool is_even(int n) { return n == 0 || is_odd(n - 1); }
DEVICE NOINLINE bool is_odd(int n) { return n != 0 && is_even(n - 1); }
KERNEL void mutual(const int* in, int* out) { out[global_x()] = is_even(in[global_x()]); }

// Depth of recursion differs by lane, with a live array in every frame.
DEVICE NOINLINE int nested_sum(const int* values, int depth) {
  int local[4];
  for (int i = 0; i < 4; i++) local[i] = values[(i + depth) & 3] + depth;
  return depth == 0 ? local[0] : nested_sum(local, depth - 1) + local[depth & 3];
}
KERNEL void deep(const int* in, int* out) {
  const int x = in[global_x()];
  const int values[4] = {x, x + 1, x * 2, -x};
  out[global_x()] = nested_sum(values, x & 7);
}

DEVICE NOINLINE int add_three(int x) { return x + 3; }
DEVICE NOINLINE int times_five(int x) { return x * 5; }
DEVICE NOINLINE int squared(int x) { return x * x; }
DEVICE NOINLINE int negated(int x) { return -x; }
typedef int (*Function)(int);
DEVICE Function functions[4] = {add_three, times_five, squared, negated};
// A different function in every lane.
KERNEL void pointers(const int* in, const int* which, int* out) {
  const int i = global_x();
  int x = in[i];
  for (int k = 0; k < 3; k++) x = functions[(which[i] + k) & 3](x);
  out[i] = x;
}
struct Shape {
  DEVICE virtual int area(int x) const { return x; }
};
struct Square : Shape {
  DEVICE int area(int x) const override { return x * x; }
};
struct Bar : Shape {
  int height;
  DEVICE explicit Bar(int h) : height(h) {}
  DEVICE int area(int x) const override { return x * height; }
};
KERNEL void virtual_calls(const int* in, int* out) {
  const int i = global_x(), x = in[i];
  Square square;
  Bar bar(7);
  Shape plain;
  const Shape* shape = x % 3 == 0 ? (const Shape*)&square : x % 3 == 1 ? (const Shape*)&bar : &plain;
  out[i] = shape->area(x);
}

struct Many {
  int a[6];
  double d;
  char c;
};
DEVICE NOINLINE Many permute(Many m, int by, float f, long l, short s, half h, Many other) {
  Many r = m;
  for (int i = 0; i < 6; i++) r.a[i] = m.a[(i + by) % 6] + other.a[i];
  r.d = m.d * (double)f + (double)l + (double)s + (double)(float)h;
  r.c = (char)(m.c + other.c);
  return r;
}
KERNEL void big_arguments(const int* in, double* out) {
  const int i = global_x(), x = in[i];
  Many m, n;
  for (int k = 0; k < 6; k++) {
    m.a[k] = x + k;
    n.a[k] = k * k;
  }
  m.d = x * 0.5;
  n.d = 0;
  m.c = 3;
  n.c = (char)(x & 3);
  const Many r = permute(m, x & 7, 2.f, 1000, -5, (half)0.25f, n);
  double sum = r.d + r.c;
  for (int k = 0; k < 6; k++) sum += r.a[k] * (k + 1);
  out[i] = sum;
}

// Arrays indexed by data: scratch memory of every width.
KERNEL void private_arrays(const uint* in, uint* out) {
  const int i = global_x();
  uint words[40];
  uchar bytes[24];
  ushort shorts[12];
  ulong longs[8];
  uint x = in[i];
  for (int k = 0; k < 40; k++) words[k] = x * k;
  for (int k = 0; k < 24; k++) bytes[k] = (uchar)(x + k);
  for (int k = 0; k < 12; k++) shorts[k] = (ushort)(x ^ k);
  for (int k = 0; k < 8; k++) longs[k] = (ulong)x << k;
  uint sum = 0;
  for (int k = 0; k < 16; k++) {
    x = x * 1664525u + 1013904223u;
    words[(x >> 8) % 40] += k;
    bytes[(x >> 5) % 24] ^= (uchar)k;
    shorts[(x >> 9) % 12] += (ushort)k;
    longs[(x >> 11) % 8] -= x;
    sum = sum * 33 + words[(x >> 16) % 40] + bytes[(x >> 17) % 24] + shorts[(x >> 18) % 12] +
          (uint)(longs[(x >> 19) % 8] >> 7) + (uint)(int)(signed char)bytes[(x >> 20) % 24] +
          (uint)(int)(short)shorts[(x >> 21) % 12];
  }
  out[i] = sum;
}
// A pointer that may be private, shared or global: flat addresses.
DEVICE NOINLINE int load_flat(const int* p) { return *p; }
DEVICE NOINLINE void store_flat(int* p, int value) { *p = value; }
KERNEL void flat(int* in, int* out) {
  SHARED int shared[64];
  const int t = thread_x(), i = global_x();
  int local[2] = {in[i] * 2, 5};
  shared[t] = in[i] * 3;
  int* p = t % 3 == 0 ? &in[i] : t % 3 == 1 ? &shared[t] : &local[t & 1];
  const int before = load_flat(p);
  store_flat(p, before + 1);
  out[i] = before * 1000 + load_flat(p) + local[0] + shared[t];
}

// Atomic operations on LDS and on memory, all widths; with and without the old value.
#include "gpu.h"

#define RELAXED_DEVICE __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE
#define RELAXED_GROUP __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP

KERNEL void histogram(const uchar* in, uint* out, int n) {
  SHARED uint bins[256];
  for (int i = thread_x(); i < 256; i += group_size()) bins[i] = 0;
  barrier();
  for (int i = global_x(); i < n; i += group_size() * 2) __scoped_atomic_fetch_add(&bins[in[i]], 1u, RELAXED_GROUP);
  barrier();
  for (int i = thread_x(); i < 256; i += group_size()) __scoped_atomic_fetch_add(&out[i], bins[i], RELAXED_DEVICE);
}

// Each operation on its own cell; the final values do not depend on the order.
KERNEL void int_cells(const int* in, int* cells) {
  const int x = in[global_x()];
  __scoped_atomic_fetch_add(&cells[0], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_sub(&cells[1], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_min(&cells[2], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_max(&cells[3], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_min((uint*)&cells[4], (uint)x, RELAXED_DEVICE);
  __scoped_atomic_fetch_max((uint*)&cells[5], (uint)x, RELAXED_DEVICE);
  __scoped_atomic_fetch_and(&cells[6], x | 0xff0, RELAXED_DEVICE);
  __scoped_atomic_fetch_or(&cells[7], x & 0xff0f, RELAXED_DEVICE);
  __scoped_atomic_fetch_xor(&cells[8], x, RELAXED_DEVICE);
}
KERNEL void long_cells(const long* in, long* cells) {
  const long x = in[global_x()];
  __scoped_atomic_fetch_add(&cells[0], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_sub(&cells[1], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_min(&cells[2], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_max(&cells[3], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_min((ulong*)&cells[4], (ulong)x, RELAXED_DEVICE);
  __scoped_atomic_fetch_max((ulong*)&cells[5], (ulong)x, RELAXED_DEVICE);
  __scoped_atomic_fetch_and(&cells[6], x | 0xff0, RELAXED_DEVICE);
  __scoped_atomic_fetch_or(&cells[7], x & 0xff0f, RELAXED_DEVICE);
  __scoped_atomic_fetch_xor(&cells[8], x, RELAXED_DEVICE);
}
KERNEL void lds_cells(const int* in, int* out, long* out_long) {
  SHARED int cells[9];
  SHARED long longs[6];
  const int t = thread_x(), x = in[t];
  if (t < 9) cells[t] = 0;
  if (t < 6) longs[t] = 0;
  barrier();
  __scoped_atomic_fetch_add(&cells[0], x, RELAXED_GROUP);
  __scoped_atomic_fetch_sub(&cells[1], x, RELAXED_GROUP);
  __scoped_atomic_fetch_min(&cells[2], x, RELAXED_GROUP);
  __scoped_atomic_fetch_max(&cells[3], x, RELAXED_GROUP);
  __scoped_atomic_fetch_min((uint*)&cells[4], (uint)x, RELAXED_GROUP);
  __scoped_atomic_fetch_max((uint*)&cells[5], (uint)x, RELAXED_GROUP);
  __scoped_atomic_fetch_and(&cells[6], x, RELAXED_GROUP);
  __scoped_atomic_fetch_or(&cells[7], x, RELAXED_GROUP);
  __scoped_atomic_fetch_xor(&cells[8], x, RELAXED_GROUP);
  __scoped_atomic_fetch_add(&longs[0], (long)x << 8, RELAXED_GROUP);
  __scoped_atomic_fetch_min(&longs[1], (long)x << 8, RELAXED_GROUP);
  __scoped_atomic_fetch_max(&longs[2], (long)x << 8, RELAXED_GROUP);
  __scoped_atomic_fetch_or(&longs[3], (long)x << 8, RELAXED_GROUP);
  __scoped_atomic_fetch_xor(&longs[4], (long)x << 8, RELAXED_GROUP);
  __scoped_atomic_fetch_sub(&longs[5], (long)x << 8, RELAXED_GROUP);
  barrier();
  if (t < 9) out[t] = cells[t];
  if (t < 6) out_long[t] = longs[t];
}

// The old values are a permutation of 0..n-1.
KERNEL void tickets(uint* counter, uint* taken, uint* shared_taken) {
  SHARED uint next;
  if (thread_x() == 0) next = 0;
  barrier();
  taken[global_x()] = __scoped_atomic_fetch_add(counter, 1u, RELAXED_DEVICE);
  shared_taken[global_x()] = __scoped_atomic_fetch_add(&next, 1u, RELAXED_GROUP);
}
// A lock-free stack of indices by compare and swap, and a swap.
KERNEL void chain(int* head, int* next, long* wide, long* wide_seen) {
  const int i = global_x();
  int seen = __scoped_atomic_load_n(head, RELAXED_DEVICE);
  do {
    next[i] = seen;
  } while (!__scoped_atomic_compare_exchange_n(head, &seen, i, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED,
                                               __MEMORY_SCOPE_DEVICE));
  wide_seen[i] = __scoped_atomic_exchange_n(wide, (long)i << 32 | i, RELAXED_DEVICE);
}

// Float sums: values are small integers, so that every order gives the same. The attributes allow the hardware's
// instructions, which ignore the rounding mode and flush denormals.
KERNEL void float_cells(const float* in, float* cells, double* doubles, float* shared_sum, double* shared_double) {
  SHARED float sum;
  SHARED double wide;
  if (thread_x() == 0) {
    sum = 0;
    wide = 0;
  }
  barrier();
  const float x = in[global_x()];
  [[clang::atomic(no_remote_memory, no_fine_grained_memory, ignore_denormal_mode)]] {
    __scoped_atomic_fetch_add(&cells[0], x, RELAXED_DEVICE);
    __scoped_atomic_fetch_min(&cells[1], x, RELAXED_DEVICE);
    __scoped_atomic_fetch_max(&cells[2], x, RELAXED_DEVICE);
    __scoped_atomic_fetch_add(&doubles[0], (double)x, RELAXED_DEVICE);
    __scoped_atomic_fetch_min(&doubles[1], (double)x, RELAXED_DEVICE);
    __scoped_atomic_fetch_max(&doubles[2], (double)x, RELAXED_DEVICE);
    __scoped_atomic_fetch_add(&sum, x, RELAXED_GROUP);
    __scoped_atomic_fetch_add(&wide, (double)x, RELAXED_GROUP);
  }
  barrier();
  if (thread_x() == 0) {
    shared_sum[group_x()] = sum;
    shared_double[group_x()] = wide;
  }
}
// The same without the permission: loops of compare and swap.
KERNEL void float_loops(const float* in, float* cells) {
  const float x = in[global_x()];
  __scoped_atomic_fetch_add(&cells[0], x, RELAXED_DEVICE);
  __scoped_atomic_fetch_max(&cells[1], x, RELAXED_DEVICE);
}

#if !defined(__GFX11__) && !defined(__gfx908__)
KERNEL void packed_cells(const float* in, half2* sums, half2* shared_sums) {
  typedef half2 __attribute__((address_space(1))) * Memory;
  SHARED half2 sum;
  if (thread_x() == 0) sum = half2{0, 0};
  barrier();
  const float x = in[global_x()];
  const half2 pair = {(half)x, (half)-x};
  __builtin_amdgcn_global_atomic_fadd_v2f16((Memory)sums, pair);
#if defined(CDNA3_ON) || defined(__GFX12__)
  __builtin_amdgcn_ds_atomic_fadd_v2f16((half2 __attribute__((address_space(3)))*)&sum, pair);
#endif
  barrier();
  if (thread_x() == 0) shared_sums[group_x()] = sum;
}
#endif
#if defined(CDNA3_ON) || defined(__GFX12__)
KERNEL void packed_bf16_cells(const float* in, short2* sums, short2* shared_sums) {
  typedef short2 __attribute__((address_space(1))) * Memory;
  SHARED short2 sum;
  if (thread_x() == 0) sum = short2{0, 0};
  barrier();
  const float x = in[global_x()];
  const short2 pair = {(short)(bits_as<uint>(x) >> 16), (short)(bits_as<uint>(-x) >> 16)};
  __builtin_amdgcn_global_atomic_fadd_v2bf16((Memory)sums, pair);
  __builtin_amdgcn_ds_atomic_fadd_v2bf16((short2 __attribute__((address_space(3)))*)&sum, pair);
  barrier();
  if (thread_x() == 0) shared_sums[group_x()] = sum;
}
#endif

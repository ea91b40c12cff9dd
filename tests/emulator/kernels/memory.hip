// Memory operations of every width, structures as arguments, constants, buffers with a range.
#include "gpu.h"

KERNEL void bytes_and_shorts(const signed char* a, const uchar* b, const short* c, const ushort* d, int* sum,
                             uchar* out_byte, short* out_short) {
  const int i = global_x();
  sum[i] = a[i] + b[i] * 2 + c[i] * 3 + d[i] * 5;
  out_byte[i] = (uchar)(a[i] ^ b[i]);
  out_short[i] = (short)(c[i] - d[i]);
}
typedef int int3 __attribute__((ext_vector_type(3)));
struct __attribute__((packed)) Unaligned {
  char tag;
  int value;
  short extra;
  double number;
};
KERNEL void widths(const int* in, int* out, const Unaligned* odd, double* numbers) {
  const int i = global_x();
  const int4 v = ((const int4*)in)[i];
  const int2 w = ((const int2*)in)[i];
  struct Three {
    int x, y, z;
  };
  const Three t = ((const Three*)in)[i];
  ((int4*)out)[3 * i] = v + 1;
  ((int4*)out)[3 * i + 1] = int4{w.x, w.y, t.x, t.y};
  ((int4*)out)[3 * i + 2] = int4{t.z, odd[i].tag, odd[i].value, odd[i].extra};
  numbers[i] = odd[i].number;
}
struct Inner {
  short a;
  char b[5];
};
struct Arguments {
  int count;
  Inner inner[2];
  float scale;
  const float* values;
  long bias;
  half small;
};
KERNEL void structures(Arguments by_value, char tag, double weight, Inner second, float* out) {
  const int i = global_x();
  if (i >= by_value.count) return;
  out[i] = by_value.values[i] * by_value.scale + (float)by_value.bias + (float)by_value.small +
           (float)by_value.inner[1].b[i % 5] + (float)by_value.inner[0].a + (float)tag + (float)weight +
           (float)second.b[4];
}

CONSTANT int table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
CONSTANT float settable[8];
DEVICE int counter = 40;
DEVICE int zeros[4];
DEVICE int* pointer_to_counter = &counter;
KERNEL void globals(const int* in, float* out) {
  const int i = global_x();
  out[i] = (float)table[in[i] & 15] * settable[i & 7] + (float)zeros[i & 3];
  if (i == 0) *pointer_to_counter += 2;
}

// Loads past the end give 0 and stores there vanish.
KERNEL void buffers(int* in, int* out, int in_bytes, int out_bytes) {
#if defined(__GFX11__)
  const int flags = 0x31014000;
#elif defined(__GFX12__)
  const int flags = 0x31014000;
#else
  const int flags = 0x00027000;
#endif
  const __amdgpu_buffer_rsrc_t from = __builtin_amdgcn_make_buffer_rsrc(in, 0, in_bytes, flags);
  const __amdgpu_buffer_rsrc_t to = __builtin_amdgcn_make_buffer_rsrc(out, 0, out_bytes, flags);
  typedef unsigned int uint4 __attribute__((ext_vector_type(4)));
  typedef unsigned int uint2 __attribute__((ext_vector_type(2)));
  const int i = global_x();
  const int x = (int)__builtin_amdgcn_raw_buffer_load_b32(from, i * 4, 0, 0);
  const uint4 four = __builtin_amdgcn_raw_buffer_load_b128(from, i * 16, 16, 0);
  const uint2 two = __builtin_amdgcn_raw_buffer_load_b64(from, i * 8 + 8, 0, 0);
  const ushort s = __builtin_amdgcn_raw_buffer_load_b16(from, i * 2, 4, 0);
  const uchar b = __builtin_amdgcn_raw_buffer_load_b8(from, i, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b32((uint)x + four.x + four.w * 3 + two.y * 5 + s + b, to, i * 4, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b8(b, to, i, 1024, 0);
  __builtin_amdgcn_raw_buffer_store_b16(s, to, i * 2, 2048, 0);
  __builtin_amdgcn_raw_buffer_store_b128(four, to, i * 16, 4096, 0);
}
KERNEL void nontemporal(const float* in, float* out, volatile int* flags) {
  const int i = global_x();
  __builtin_nontemporal_store(__builtin_nontemporal_load(in + i) * 2.f, out + i);
  flags[i] = flags[i] + 1;
  __scoped_atomic_store_n(flags + i, __scoped_atomic_load_n(flags + i, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) + 1,
                          __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
}

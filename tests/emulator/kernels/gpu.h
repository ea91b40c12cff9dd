// What HIP's headers would give, as far as these kernels need it: clang's own attributes and builtins.
#pragma once

#define KERNEL extern "C" __attribute__((global))
#define DEVICE __attribute__((device))
#define SHARED __attribute__((shared))
#define CONSTANT __attribute__((constant))
#define NOINLINE __attribute__((noinline))
#define BLOCK(n) __attribute__((amdgpu_flat_work_group_size(n, n)))

#ifdef __GFX9__
#define WAVE 64
#else
#define WAVE 32
#endif
#if defined(__gfx942__) || defined(__gfx950__)
#define CDNA3_ON 1
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef int int2 __attribute__((ext_vector_type(2)));
typedef int int4 __attribute__((ext_vector_type(4)));
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));
typedef float float8 __attribute__((ext_vector_type(8)));
typedef float float16 __attribute__((ext_vector_type(16)));
typedef short short2 __attribute__((ext_vector_type(2)));
typedef short short4 __attribute__((ext_vector_type(4)));
typedef short short8 __attribute__((ext_vector_type(8)));
typedef short short16 __attribute__((ext_vector_type(16)));
typedef half half2 __attribute__((ext_vector_type(2)));
typedef half half4 __attribute__((ext_vector_type(4)));
typedef half half8 __attribute__((ext_vector_type(8)));
typedef half half16 __attribute__((ext_vector_type(16)));
typedef __bf16 bfloat2 __attribute__((ext_vector_type(2)));
typedef __bf16 bfloat4 __attribute__((ext_vector_type(4)));
typedef __bf16 bfloat8 __attribute__((ext_vector_type(8)));

DEVICE inline int thread_x() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE inline int thread_y() { return __builtin_amdgcn_workitem_id_y(); }
DEVICE inline int thread_z() { return __builtin_amdgcn_workitem_id_z(); }
DEVICE inline int group_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE inline int group_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE inline int group_z() { return __builtin_amdgcn_workgroup_id_z(); }
DEVICE inline int group_size() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE inline int global_x() { return group_x() * group_size() + thread_x(); }
DEVICE inline int lane_id() {
#if WAVE == 64
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
#else
  return __builtin_amdgcn_mbcnt_lo(~0u, 0);
#endif
}
DEVICE inline void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

template <class To, class From>
DEVICE inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}
// The value of x in another lane.
template <class T>
DEVICE inline T shuffle(T x, int from) {
  return bits_as<T>(__builtin_amdgcn_ds_bpermute(from << 2, bits_as<int>(x)));
}

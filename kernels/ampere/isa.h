// The instructions of NVIDIA GPUs from Ampere (sm_80) on that C++ has no word for. Sections are those of the PTX ISA
// manual. Nothing here knows about attention.
#pragma once

#include "kernels/common/dtype.h"
#include "kernels/nvidia/gpu.h"

namespace flashwave {

// 8 elements of 16 bits: what one lane reads or writes at a time.
struct alignas(16) Bytes16 {
  uint32_t word[4];
};

FW_DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// "cp.async": 16 bytes to shared memory, past L1; 16 zeros and no read of `global` where !exists. Each thread's copies
// form groups, which complete in order. (A prefetch of 256 bytes instead of 128 costs 8 % when decoding.)
FW_DEVICE void copy_async(uint32_t shared, const void* global, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(exists ? 16 : 0)
               : "memory");
}
FW_DEVICE void close_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// At most `kPending` of this thread's groups are still on their way afterwards.
template <int kPending>
FW_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// "ldmatrix": four 8x8 matrices of 16-bit elements. Lanes 8i .. 8i+7 give the addresses of the rows of matrix i; lane
// 4r + c receives elements 2c, 2c+1 of row r (transposed: of column r).
FW_DEVICE void load_matrices(uint32_t (&x)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared)
               : "memory");
}
FW_DEVICE void load_matrices_transposed(uint32_t (&x)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared)
               : "memory");
}
// "movmatrix": transposes an 8x8 matrix held by the warp as ldmatrix leaves it.
FW_DEVICE uint32_t transposed_matrix(uint32_t x) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(x));
  return result;
}

// "mma.m16n8k16", fp32 accumulation: d += A B. With lane = 4r + c, A (16x16): a[0] row r, columns 2c, 2c+1; a[1] row
// r + 8; a[2], a[3] the same, columns + 8. B (16x8): b0 column r, rows 2c, 2c+1; b1 rows + 8. D (16x8): d[0], d[1] row r,
// columns 2c, 2c+1; d[2], d[3] row r + 8.
template <class T>
FW_DEVICE void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (__is_same(T, BFloat16)) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// "cvt", to nearest even: two numbers in a word, `low` in its low half.
template <class T>
FW_DEVICE uint32_t pack(float low, float high) {
  uint32_t result;
  if constexpr (__is_same(T, BFloat16)) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}
template <class T>
FW_DEVICE void unpack(uint32_t x, float& low, float& high) {
  if constexpr (__is_same(T, BFloat16)) {
    low = float_of(x << 16), high = float_of(x & 0xFFFF0000u);
  } else {
    low = float_of_half(uint16_t(x)), high = float_of_half(uint16_t(x >> 16));
  }
}

// "ld", "st": memory that is touched once. Reads must not depend on writes of this launch.
FW_DEVICE Bytes16 load_once(const void* p) {
  Bytes16 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "l"(p));
  return x;
}
FW_DEVICE void store_once(void* p, const Bytes16& x) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]),
               "r"(x.word[3])
               : "memory");
}

// "ld.acquire", "st.release": what was written before a release is seen after an acquire that reads its value, on the
// whole GPU.
FW_DEVICE uint64_t load_acquire(const uint64_t* p) {
  uint64_t x;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
  return x;
}
FW_DEVICE void store_release(uint64_t* p, uint64_t x) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}

// "griddepcontrol" (sm_90): the launch before has finished and its writes are seen; the launch after may begin to start.
// Nothing without the launch attribute of programmatic stream serialization.
FW_DEVICE void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
FW_DEVICE void let_next_launch_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace flashwave

// Instructions of NVIDIA GPUs from sm_75 on that kernels of this folder use: asynchronous copies, ldmatrix, mma.sync,
// conversions. PTX ISA 9.0, the section named at each.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/nvidia/gpu.h"

namespace flashwave {

// sm_75 (Turing) copies through registers, multiplies 8 deep and knows no bf16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define FW_SM80 1
inline constexpr bool kAsyncCopies = true;
#else
#define FW_SM80 0
inline constexpr bool kAsyncCopies = false;
#endif

// task_index() as a new value to the compiler: what follows from it is computed again, not kept in registers.
FW_DEVICE uint32_t task_index_again() {
  uint32_t x, y;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
  return y * uint32_t(abi::kTasksPerRow) + x;
}

// 9.7.13.12 redux.sync: over the lanes of a warp, all of which must be active; the same in each.
#if FW_SM80
FW_DEVICE int lowest_of_lanes(int x) { return __reduce_min_sync(kAllLanes, x); }
FW_DEVICE int highest_of_lanes(int x) { return __reduce_max_sync(kAllLanes, x); }
FW_DEVICE int sum_of_lanes(int x) { return __reduce_add_sync(kAllLanes, x); }
#endif

FW_DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// 9.7.9.25.3.1 cp.async: 16 bytes to shared memory around the L1 cache; zeros, and nothing read, if not valid.
FW_DEVICE void copy_async(uint32_t to, const void* from, bool valid) {
#if FW_SM80
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
#endif
}
// The same of what nobody reads again: it is the first to leave the L2 cache (9.7.9.14 createpolicy), so that it does
// not take the place of what is on its way.
FW_DEVICE void copy_async_once(uint32_t to, const void* from, bool valid) {
#if FW_SM80
  uint64_t first_to_leave;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first_to_leave));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0), "l"(first_to_leave)
               : "memory");
#endif
}
// 9.7.9.25.3.2 cp.async.commit_group, 9.7.9.25.3.3 cp.async.wait_group: until at most kLeft groups are under way.
FW_DEVICE void commit_copies() {
#if FW_SM80
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kLeft>
FW_DEVICE void wait_copies() {
#if FW_SM80
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

FW_DEVICE void store_shared(uint32_t to, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
FW_DEVICE void store_shared(uint32_t to, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
FW_DEVICE uint4 load_shared(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from));
  return x;
}

// 9.7.14.5.15 ldmatrix: four 8x8 matrices of 16-bit elements; lanes 8i .. 8i+7 name the rows of matrix i, register i is
// elements 2(lane % 4), +1 of row lane / 4 of it, or of its transpose.
FW_DEVICE void load_matrices(uint32_t (&x)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from));
}
FW_DEVICE void load_matrices_transposed(uint32_t (&x)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from));
}

// 9.7.14.5.8 mma.m16n8k16: d += a b. Lane 4g + c holds of d (16 x 8) rows g and g + 8, columns 2c and 2c + 1, in this
// order; of a (16 x 16) register r is row g + 8(r % 2), columns 2c + 8(r / 2), +1; b0, b1 (16 x 8) are rows 2c, +1 and
// 2c + 8, +1 of column g. An accumulator as it is, rounded, makes half of an a: columns 0-7, or 8-15.
struct F16 {
  FW_METHOD static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if FW_SM80
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    // The operands of the two halves of k lie where m16n8k8 (9.7.14.5.7) wants them.
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
  }
  // Two numbers rounded to nearest even, the first in the low half (9.7.9.21 cvt).
  FW_METHOD static uint32_t pack(float low, float high) {
#if FW_SM80
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
#else
    return half_of_float(low) | uint32_t{half_of_float(high)} << 16;
#endif
  }
};

#if FW_SM80
struct BF16 {
  FW_METHOD static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  FW_METHOD static uint32_t pack(float low, float high) {
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
};
#endif

// 9.7.14.5.17 movmatrix: transposes an 8x8 matrix that the warp holds as ldmatrix leaves it.
FW_DEVICE uint32_t transposed_matrix(uint32_t x) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(x));
  return result;
}

// 9.7.9.8 ld, 9.7.9.11 st: memory that is touched once. What is read must not be written by the same launch.
FW_DEVICE uint4 load_once(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}
FW_DEVICE void store_once(void* p, uint4 x) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
// A new value to the compiler: what follows from it is computed where it is used, not kept through a loop (as in
// kernels/amd/gpu.h).
FW_DEVICE int here(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// 9.7.13.1 bar.sync: until `threads` threads have called it with this number; 0 is the workgroup's own.
FW_DEVICE void barrier_of(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// What was written before a release is seen after an acquire that reads its value, on the whole GPU (8.7 release and
// acquire patterns).
FW_DEVICE uint64_t load_acquire(const uint64_t* p) {
  uint64_t x;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
  return x;
}
FW_DEVICE void store_release(uint64_t* p, uint64_t x) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}
// Of two workgroups that each write, fence and read what the other writes, one reads it (8.8.3 Fence-SC order).
FW_DEVICE void fence_all() { asm volatile("fence.sc.gpu;" ::: "memory"); }

// Two 16-bit numbers of a word.
FW_DEVICE void unpack(F16, uint32_t x, float& low, float& high) {
  low = float_of_half(uint16_t(x)), high = float_of_half(uint16_t(x >> 16));
}
#if FW_SM80
FW_DEVICE void unpack(BF16, uint32_t x, float& low, float& high) {
  low = float_of(x << 16), high = float_of(x & 0xFFFF0000u);
}
#endif

// The words for a row's element type (RowDtype in kernels/abi/features.h).
template <uint32_t kDtypes>
struct ElementFor {
  using Type = F16;
};
#if FW_SM80
template <>
struct ElementFor<kRowBF16> {
  using Type = BF16;
};
#endif
template <uint32_t kDtypes>
using ElementOf = typename ElementFor<kDtypes>::Type;

}  // namespace flashwave

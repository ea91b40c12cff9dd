// The words every NVIDIA GPU kernel is written in: attributes, ids, barriers, bare instructions. Two compilers read it:
// nvcc, for kernels of one generation, and clang without CUDA's headers, for those that AMD GPUs share
// (kernels/generic). Instructions of one generation are in its isa.h.
#pragma once

#include "kernels/abi/gpu_launch.h"
#include "kernels/common/platform.h"

// FW_DEVICE: a function of the kernels alone. FW_KERNEL(threads): an entry point. FW_ARGUMENTS: its parameter, read
// where it lies in constant memory and not copied (PTX ISA, "Kernel Function Parameters"). FW_NAME: what a kernel that
// AMD GPUs have too is called here.
#define FW_DEVICE static inline __attribute__((device, always_inline))
#define FW_METHOD __attribute__((device, always_inline)) inline
#define FW_SHARED __attribute__((shared))
#define FW_UNROLL _Pragma("unroll")
#define FW_NAME(name) nvidia_##name
#if defined(__clang__)
#define FW_NO_UNROLL _Pragma("nounroll")
#define FW_KERNEL(threads) extern "C" __attribute__((global, launch_bounds(threads))) void
#define FW_ARGUMENTS(args) const __attribute__((grid_constant)) GpuArguments args
#else
#define FW_NO_UNROLL _Pragma("unroll 1")
#define FW_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define FW_ARGUMENTS(args) const __grid_constant__ GpuArguments args
#endif

namespace flashwave {

using abi::GpuArguments;
using abi::Params;
using abi::Schedule;

inline constexpr float kInf = __builtin_inff(), kLargest = 3.40282347e38f;
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
inline constexpr int kWave = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

#if defined(__clang__)
template <class T, int N>
using Vec = T __attribute__((ext_vector_type(N)));
using F32x4 = Vec<float, 4>;

FW_DEVICE int thread_index() { return __nvvm_read_ptx_sreg_tid_x(); }
FW_DEVICE int block_index_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
FW_DEVICE int block_index_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
FW_DEVICE void workgroup_barrier() { __syncthreads(); }
FW_DEVICE void wave_barrier() { __nvvm_bar_warp_sync(kAllLanes); }
FW_DEVICE float exchange(float x, int lanes_apart) { return __nvvm_shfl_sync_bfly_f32(kAllLanes, x, lanes_apart, 31); }
FW_DEVICE float product_rounded(float a, float b) { return __nvvm_mul_rn_f(a, b); }
#else
FW_DEVICE int thread_index() { return int(threadIdx.x); }
FW_DEVICE int block_index_x() { return int(blockIdx.x); }
FW_DEVICE int block_index_y() { return int(blockIdx.y); }
// What this workgroup wrote to memory before is visible to all of it after.
FW_DEVICE void workgroup_barrier() { __syncthreads(); }
// The same for the lanes of a wave, which need not run in step.
FW_DEVICE void wave_barrier() { __syncwarp(); }
// The value of the lane whose number differs by exactly these bits. All lanes must be active.
FW_DEVICE float exchange(float x, int lanes_apart) { return __shfl_xor_sync(kAllLanes, x, lanes_apart); }
// Never fused with a sum.
FW_DEVICE float product_rounded(float a, float b) { return __fmul_rn(a, b); }
// a b + c, rounded once.
FW_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FW_DEVICE uint32_t grid_size_x() { return gridDim.x; }

// Between the lanes of a wave, all of which must be active (CUDA Programming Guide, "Warp Shuffle Functions", "Warp
// Vote Functions"). from_lane_before: the lanes that have none so far before them keep their own.
FW_DEVICE uint32_t exchange(uint32_t x, int lanes_apart) { return __shfl_xor_sync(kAllLanes, x, lanes_apart); }
template <class T>
FW_DEVICE T from_lane(T x, int lane) {
  return __shfl_sync(kAllLanes, x, lane);
}
template <class T>
FW_DEVICE T from_lane_before(T x, int lanes_apart) {
  return __shfl_up_sync(kAllLanes, x, lanes_apart);
}
FW_DEVICE uint32_t lanes_where(bool x) { return __ballot_sync(kAllLanes, x); }
FW_DEVICE bool any_lane(bool x) { return __any_sync(kAllLanes, x); }
FW_DEVICE bool all_lanes(bool x) { return __all_sync(kAllLanes, x); }

// Between the threads of a workgroup, each of which must call it: a barrier that carries a bit.
FW_DEVICE bool any_thread(bool x) { return __syncthreads_or(x); }
FW_DEVICE bool all_threads(bool x) { return __syncthreads_and(x); }

// Whoever on the GPU sees what this thread writes after it sees also what it wrote before.
FW_DEVICE void memory_fence() { __threadfence(); }
// The value before; no order of other accesses follows from it.
FW_DEVICE uint32_t fetch_add(uint32_t* counter, uint32_t x) { return atomicAdd(counter, x); }
// `to` in place of `from`, and whether that is what was there.
FW_DEVICE bool replace(uint64_t* at, uint64_t from, uint64_t to) {
  using Word = unsigned long long;
  return atomicCAS(reinterpret_cast<Word*>(at), Word{from}, Word{to}) == from;
}

// Bytes of the 8 of (high, low), the lowest of low being number 0: one for each digit of the selector.
FW_DEVICE uint32_t permute_bytes(uint32_t high, uint32_t low, uint32_t selector) {
  return __byte_perm(low, high, selector);
}
FW_DEVICE uint32_t rotated_left(uint32_t x, int bits) { return __funnelshift_l(x, x, bits); }
FW_DEVICE int lowest_bit(uint32_t x) { return __ffs(int(x)) - 1; }  // -1 of 0

// Memory that nobody writes while the kernel runs; and what other workgroups have written, which L1 may have an old
// copy of.
template <class T>
FW_DEVICE T load_constant(const T* at) {
  return __ldg(at);
}
template <class T>
FW_DEVICE T load_around_l1(const T* at) {
  return __ldcg(at);
}
#endif

FW_DEVICE int lane_index() { return thread_index() % kWave; }
FW_DEVICE int wave_index() { return thread_index() / kWave; }

#if !defined(__clang__)
// The sum over the lanes up to this one.
template <class T>
FW_DEVICE T prefix_sum(T x) {
  FW_UNROLL for (int apart = 1; apart < kWave; apart *= 2) {
    const T before = from_lane_before(x, apart);
    if (lane_index() >= apart) x += before;
  }
  return x;
}
#endif

// What this workgroup is to do; `tasks` or more: nothing.
FW_DEVICE int64_t task_index() { return int64_t{block_index_y()} * abi::kTasksPerRow + block_index_x(); }

// The kernel's argument lies in constant memory and is read where it is used (FW_ARGUMENTS); see kernels/amd/gpu.h.
FW_DEVICE const GpuArguments& arguments_in_memory(const GpuArguments& args) { return args; }
FW_DEVICE const Params& parameters_again(const Params& params) { return params; }
FW_DEVICE void schedule_fence() {}  // ptxas minds registers by itself

// A function of three bits, of all bits of a word: kTable is what it makes of 0xF0, 0xCC and 0xAA. 0x96: exclusive or.
template <int kTable>
FW_DEVICE uint32_t logic(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t x;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(x) : "r"(a), "r"(b), "r"(c), "n"(kTable));
  return x;
}
template <uint32_t kFactor>
FW_DEVICE void wide_product(uint32_t x, uint32_t& low, uint32_t& high) {
  asm("{.reg .b64 x; mul.wide.u32 x, %2, %3; mov.b64 {%0, %1}, x;}" : "=r"(low), "=r"(high) : "r"(x), "n"(kFactor));
}

// at[i], or `otherwise`, a kernel's argument, where there is no `at`. A load under a predicate: no branch.
FW_DEVICE uint64_t either(const uint64_t* at, int i, const uint64_t& otherwise) {
  uint64_t result = otherwise;
  asm("{ .reg .pred there; setp.ne.u64 there, %1, 0; @there ld.u64 %0, [%2]; }" : "+l"(result) : "l"(at), "l"(at + i));
  return result;
}

// A counter in memory that workgroups wait for and raise (PTX ISA, "Release and Acquire Patterns").
FW_DEVICE void wait_until_equal(const int* counter, int value) {
  int x;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
  } while (x != value);
}
FW_DEVICE void raise(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

// Bare instructions (PTX ISA, "Floating Point Instructions"): ex2 and rcp to 1 ulp or little more, lg2 (base 2) to
// 2^-22 where the result is small; denormals flushed.
FW_DEVICE float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
FW_DEVICE float log2_fast(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
FW_DEVICE float rcp_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// fp16, as its bits, to and from fp32 (to nearest even).
FW_DEVICE float float_of_half(uint16_t x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x));
  return result;
}
FW_DEVICE uint16_t half_of_float(float x) {
  uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  return result;
}

FW_DEVICE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FW_DEVICE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

// x * 2^n for x near 1, n >= -252: two factors, since one need not be a number when the result is.
FW_DEVICE float scaled_by_power(float x, int n) {
  const int most = n < 254 ? n : 254, half = most >> 1;
  return x * float_of(uint32_t(127 + half) << 23) * float_of(uint32_t(127 + most - half) << 23);
}

// Over all lanes of the wave, which must be active; the same in each.
template <class Op>
FW_DEVICE float wave_reduce(float x, Op op) {
  FW_UNROLL for (int apart = 1; apart < kWave; apart *= 2) x = op(x, exchange(x, apart));
  return x;
}

}  // namespace flashwave

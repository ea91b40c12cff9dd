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
#endif

FW_DEVICE int lane_index() { return thread_index() % kWave; }
FW_DEVICE int wave_index() { return thread_index() / kWave; }

// What this workgroup is to do; `tasks` or more: nothing.
FW_DEVICE int64_t task_index() { return int64_t{block_index_y()} * abi::kTasksPerRow + block_index_x(); }

// The kernel's argument lies in constant memory and is read where it is used (FW_ARGUMENTS); see kernels/amd/gpu.h.
FW_DEVICE const GpuArguments& arguments_in_memory(const GpuArguments& args) { return args; }
FW_DEVICE const Params& parameters_again(const Params& params) { return params; }

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

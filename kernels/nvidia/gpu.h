// The words every NVIDIA GPU kernel is written in: attributes, ids, bare instructions. Needs no CUDA header; what one
// generation alone has (wgmma, mma.sync, asynchronous copies) is in its isa.h.
#pragma once

#include "kernels/abi/gpu_launch.h"
#include "kernels/common/platform.h"

// FW_DEVICE: a function of the kernels alone. FW_KERNEL(threads): an entry point.
#define FW_DEVICE static inline __device__ __attribute__((always_inline))
#define FW_METHOD __device__ __attribute__((always_inline)) inline
#define FW_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define FW_SHARED __shared__
#define FW_UNROLL _Pragma("unroll")
#define FW_NO_UNROLL _Pragma("unroll 1")

namespace flashwave {

using abi::GpuArguments;
using abi::Params;
using abi::Schedule;

inline constexpr int kWave = 32;
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

FW_DEVICE int thread_index() { return int(threadIdx.x); }
FW_DEVICE int lane_index() { return thread_index() & (kWave - 1); }
FW_DEVICE int wave_index() { return thread_index() / kWave; }

// What this block is to do; `tasks` or more: nothing.
FW_DEVICE int64_t task_index() { return int64_t{blockIdx.y} * abi::kTasksPerRow + blockIdx.x; }

// Bare instructions (MUFU), denormals flushed: PTX ISA, "Floating Point Instructions": 2 ulp, 1 ulp.
FW_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FW_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FW_DEVICE float rcp_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace flashwave

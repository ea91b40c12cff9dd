// The words every AMD GPU kernel is written in: attributes, vector types, ids, buffer descriptors, waits. Needs no ROCm
// header (the kernels are compiled with -nogpuinc -nogpulib); builtins of one architecture family are in its isa.h.
#pragma once

#include "kernels/abi/gpu_launch.h"
#include "kernels/common/platform.h"

// FW_DEVICE: a function of the kernels alone. FW_KERNEL(threads): an entry point; without the work group size clang
// plans for 1024 work-items, which costs registers. FW_ARGUMENTS: its parameter. FW_NAME: what a kernel that NVIDIA
// GPUs have too is called here.
#define FW_DEVICE static inline __attribute__((device, always_inline))
#define FW_METHOD __attribute__((device, always_inline)) inline
#define FW_KERNEL(threads) \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads), visibility("protected"))) void
#define FW_SHARED __attribute__((shared))
#define FW_ARGUMENTS(args) [[maybe_unused]] GpuArguments args
#define FW_NAME(name) amd_##name
#define FW_UNROLL _Pragma("unroll")
#define FW_NO_UNROLL _Pragma("nounroll")

namespace flashwave {

using abi::GpuArguments;
using abi::Params;
using abi::Schedule;

template <class T, int N>
using Vec = T __attribute__((ext_vector_type(N)));
using U32x2 = Vec<uint32_t, 2>;
using U32x4 = Vec<uint32_t, 4>;
using F32x2 = Vec<float, 2>;
using F32x4 = Vec<float, 4>;
using F32x8 = Vec<float, 8>;
using F32x16 = Vec<float, 16>;
using F16x2 = Vec<_Float16, 2>;
using BF16x2 = Vec<__bf16, 2>;

inline constexpr float kInf = __builtin_inff(), kLargest = 3.40282347e38f;
inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

#if defined(__GFX9__)
inline constexpr int kWave = 64;
#else
inline constexpr int kWave = 32;
#endif

FW_DEVICE int thread_index() { return int(__builtin_amdgcn_workitem_id_x()); }
FW_DEVICE int lane_index() { return thread_index() & (kWave - 1); }
// Uniform: in a scalar register.
FW_DEVICE int wave_index() { return __builtin_amdgcn_readfirstlane(thread_index() / kWave); }

// What this workgroup is to do; `tasks` or more: nothing.
FW_DEVICE int64_t task_index() {
  return int64_t{__builtin_amdgcn_workgroup_id_y()} * abi::kTasksPerRow + __builtin_amdgcn_workgroup_id_x();
}

// The kernel's argument, read from memory where it is used. By its name clang reads all of it at the start, and spills.
FW_DEVICE const GpuArguments& arguments_in_memory() {
  using Constant = const __attribute__((address_space(4))) GpuArguments;
  return *(const GpuArguments*)(Constant*)__builtin_amdgcn_kernarg_segment_ptr();
}

// The same in a kernel that NVIDIA GPUs have too.
FW_DEVICE const GpuArguments& arguments_in_memory(const GpuArguments&) { return arguments_in_memory(); }

// Empty assembly that claims to change its operand: the compiler does not know that it is the same.
//
// `hold`: what computes x comes before, what uses x after, and x is in vector registers in between. Otherwise clang
// hoists what follows from loop-invariant values out of loops, rare arithmetic out of its branch, and sinks matrix
// instructions into later blocks. On a vector it also keeps the elements in consecutive registers, as RDNA's paired
// instructions (VOPD) need.
template <class T>
FW_DEVICE void hold(T& x) {
  asm volatile("" : "+v"(x));
}
FW_DEVICE void hold(Vec<float, 1>& x) {  // not a type that assembly takes
  float only = x[0];
  hold(only);
  x[0] = only;
}
// `here`: a uniform value, in a scalar register; what follows from it is computed where it is used, not kept through a
// loop.
template <class T>
FW_DEVICE T here(T x) {
  asm volatile("" : "+s"(x));
  return x;
}

template <class A, class B, class C, class D>
FW_DEVICE void all_here(A& a, B& b, C& c, D& d) {
  asm volatile("" : "+s"(a), "+s"(b), "+s"(c), "+s"(d));
}

// The kernel's argument, read anew: the compiler would read all of it before the loops and run out of scalar registers.
#define FW_CONSTANT __attribute__((address_space(4)))
FW_DEVICE const FW_CONSTANT GpuArguments& arguments_again() {
  return *here((const FW_CONSTANT GpuArguments*)__builtin_amdgcn_kernarg_segment_ptr());
}
FW_DEVICE const Params& parameters_again() { return *(const Params*)&arguments_again().params; }
// The same in a kernel that NVIDIA GPUs have too. Not volatile: these kernels may move it.
FW_DEVICE const Params& parameters_again(const Params&) {
  auto at = (const FW_CONSTANT Params*)__builtin_amdgcn_kernarg_segment_ptr();
  asm("" : "+s"(at));
  return *(const Params*)at;
}
static_assert(offsetof(GpuArguments, params) == 0);

// A scalar load: the address is uniform, and nobody writes there while the kernel runs. The compiler cannot prove the
// latter behind a barrier, and loads through the vector unit otherwise.
template <class T>
FW_DEVICE T load_uniform(const T* at) {
  return *reinterpret_cast<const __attribute__((address_space(4))) T*>(reinterpret_cast<uintptr_t>(at));
}

// at[i], or `otherwise`, a kernel's argument in memory, where there is no `at`. One of two addresses: no branch.
FW_DEVICE uint64_t either(const uint64_t* at, int i, const uint64_t& otherwise) {
  return load_uniform(at ? at + i : &otherwise);
}

// Bare instructions: v_exp_f32, v_log_f32 (base 2) and v_rcp_f32, 1 ulp, denormals flushed.
FW_DEVICE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
FW_DEVICE float log2_fast(float x) { return __builtin_amdgcn_logf(x); }
FW_DEVICE float rcp_fast(float x) { return __builtin_amdgcn_rcpf(x); }

FW_DEVICE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
FW_DEVICE float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

FW_DEVICE float scaled_by_power(float x, int n) { return __builtin_amdgcn_ldexpf(x, n); }  // x * 2^n

// Never fused with a sum: the compiler may not look through this. Under -ffp-contract=fast a pragma does not keep it
// from fusing.
FW_DEVICE float product_rounded(float a, float b) {
  float product = a * b;
  asm("" : "+v"(product));
  return product;
}

// fp16, as its bits, to and from fp32 (to nearest even).
FW_DEVICE float float_of_half(uint16_t x) { return float(__builtin_bit_cast(_Float16, x)); }
FW_DEVICE uint16_t half_of_float(float x) { return __builtin_bit_cast(uint16_t, _Float16(x)); }

// x, known to be the same in all lanes, in scalar registers.
FW_DEVICE int32_t uniform(int32_t x) { return __builtin_amdgcn_readfirstlane(x); }
FW_DEVICE int64_t uniform(int64_t x) {
  return int64_t{uniform(int32_t(x >> 32))} << 32 | uint32_t(uniform(int32_t(x)));
}

// v_perm_b32: bytes 0..3 of the selector pick from {lo: 0..3, hi: 4..7}.
FW_DEVICE uint32_t permute_bytes(uint32_t hi, uint32_t lo, uint32_t selector) {
  return __builtin_amdgcn_perm(hi, lo, selector);
}

// A raw buffer: reads at or past `bytes` give 0, writes there are dropped. Both must be uniform.
using Buffer = __amdgpu_buffer_rsrc_t;
#if defined(__GFX9__)
inline constexpr int kBufferFormat = 0x00027000;  // dword elements, as the hardware's default descriptor of gfx9
#elif defined(__GFX10__)
inline constexpr int kBufferFormat = 0x31014000;
#elif defined(__GFX11__)
inline constexpr int kBufferFormat = 0x31004000;
#else
inline constexpr int kBufferFormat = 0x31004000;
#endif
FW_DEVICE Buffer make_buffer(const void* data, uint32_t bytes) {
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(data), 0, bytes, kBufferFormat);
}
// 16, 8, 4 or 2 bytes at an offset of this lane. kNowhere is past the end of every buffer: reads 0, writes nothing.
inline constexpr uint32_t kNowhere = 0x80000000u;
FW_DEVICE U32x4 buffer_load16(Buffer b, uint32_t at) { return __builtin_amdgcn_raw_buffer_load_b128(b, at, 0, 0); }
FW_DEVICE U32x2 buffer_load8(Buffer b, uint32_t at) { return __builtin_amdgcn_raw_buffer_load_b64(b, at, 0, 0); }
FW_DEVICE uint32_t buffer_load4(Buffer b, uint32_t at) { return __builtin_amdgcn_raw_buffer_load_b32(b, at, 0, 0); }
FW_DEVICE uint16_t buffer_load2(Buffer b, uint32_t at) { return __builtin_amdgcn_raw_buffer_load_b16(b, at, 0, 0); }
FW_DEVICE void buffer_store16(Buffer b, uint32_t at, U32x4 x) {
  __builtin_amdgcn_raw_buffer_store_b128(x, b, at, 0, 0);
}
FW_DEVICE void buffer_store4(Buffer b, uint32_t at, uint32_t x) {
  __builtin_amdgcn_raw_buffer_store_b32(x, b, at, 0, 0);
}

// Adds to memory, in any order with what other workgroups add. Nothing where the offset is past the end.
FW_DEVICE void add_to_memory(Buffer buffer, uint32_t offset, float x) {
  __builtin_amdgcn_raw_ptr_buffer_atomic_fadd_f32(x, buffer, int(offset), 0, 0);
}

// Past the caches: 16 bytes that nobody reads again.
FW_DEVICE U32x4 load_once(const void* from) { return __builtin_nontemporal_load(static_cast<const U32x4*>(from)); }
FW_DEVICE void store_once(void* to, U32x4 x) { __builtin_nontemporal_store(x, static_cast<U32x4*>(to)); }

// Everything this workgroup wrote to LDS before is visible to all of it after. Global memory is not waited for.
FW_DEVICE void workgroup_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// As workgroup_barrier, for what was written to memory too.
FW_DEVICE void workgroup_barrier_with_memory() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The lanes of a wave run in step: what one wrote, the others read.
FW_DEVICE void wave_barrier() {}

template <int kControl>
FW_DEVICE float dpp(float x) {
  return float_of(__builtin_amdgcn_update_dpp(0, int(bits_of(x)), kControl, 0xF, 0xF, true));
}
FW_DEVICE float sixteen_lanes_away(float x) {  // of lane ^ 16
  return float_of(__builtin_amdgcn_ds_swizzle(int(bits_of(x)), 0x401F));
}
FW_DEVICE float lane_value(float x, int lane) { return float_of(__builtin_amdgcn_readlane(int(bits_of(x)), lane)); }

// Over all lanes of the wave, which must be active; uniform. DPP inside rows of 16, then across them.
template <class Op>
FW_DEVICE float wave_reduce(float x, Op op) {
  x = op(x, dpp<0xB1>(x));   // quad_perm [1,0,3,2]
  x = op(x, dpp<0x4E>(x));   // quad_perm [2,3,0,1]
  x = op(x, dpp<0x141>(x));  // row_half_mirror
  x = op(x, dpp<0x140>(x));  // row_mirror
  float all = op(lane_value(x, 0), lane_value(x, 16));
  if constexpr (kWave == 64) all = op(all, op(lane_value(x, 32), lane_value(x, 48)));
  return all;
}

// No instruction moves across.
FW_DEVICE void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }

}  // namespace flashwave

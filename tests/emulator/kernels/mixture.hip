// For bench/emulator_speed.py: the mixture of an attention kernel's loop (LDS reads, a matrix instruction, vector and
// transcendental instructions, waits) around each kind of matrix instruction. What it computes means nothing.
#include "gpu.h"

namespace {

typedef int int8v __attribute__((ext_vector_type(8)));

template <class Fragment>
DEVICE Fragment read(const int4* tile, int at) {
  constexpr int kWords = sizeof(Fragment) / 16 ? sizeof(Fragment) / 16 : 1;
  return *reinterpret_cast<const Fragment*>(tile + (at & (1024 / kWords - 1)) * kWords);
}

// gfx11 wants the same in lanes 16 to 31 as in lanes 0 to 15.
#ifdef __GFX11__
DEVICE int place() { return thread_x() & ~16; }
#else
DEVICE int place() { return thread_x(); }
#endif

template <class Form>
DEVICE void mixture(float* out, const int4* in, int rounds) {
  SHARED static int4 tile[1024];
  for (int i = thread_x(); i < 1024; i += group_size()) tile[i] = in[i];
  barrier();
  typename Form::Accumulator sum = {};
  float scale = 1.0f, total = 0.0f;
  for (int r = 0; r < rounds; ++r) {
    const auto b = read<typename Form::Fragment>(tile, r + place());
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = Form::multiply(read<typename Form::Fragment>(tile, 64 * i + r + place()), b, sum);
      scale = __builtin_amdgcn_exp2f(scale * 0.25f - 1.0f);
      total = __builtin_fmaf(total, scale, 0.5f);
      total = __builtin_fmaxf(total, scale + i);
    }
    total += sum[r & 3];
  }
  out[global_x()] = total + sum[0];
}

#define FORM(name, fragment, accumulator, call)                                       \
  struct name {                                                                       \
    typedef fragment Fragment;                                                        \
    typedef accumulator Accumulator;                                                  \
    DEVICE static Accumulator multiply(Fragment a, Fragment b, Accumulator c) { return call; } \
  };
#define KERNEL_OF(name, form) \
  KERNEL BLOCK(4 * WAVE) void name(float* out, const int4* in, int rounds) { mixture<form>(out, in, rounds); }

#ifdef __GFX9__
FORM(F16, half4, float16, __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0))
#ifdef CDNA3_ON
FORM(Fp8, long, float16, __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(a, b, c, 0, 0, 0))
FORM(SmallFp8, long, float4, __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, 0, 0, 0))
#endif
#ifdef __gfx950__
FORM(DeepF16, half8, float16, __builtin_amdgcn_mfma_f32_32x32x16_f16(a, b, c, 0, 0, 0))
FORM(DeepBf16, bfloat8, float4, __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0))
FORM(DeepFp8, int8v, float16, __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(a, b, c, 0, 0, 0, 0, 0, 0))
#endif
#elif defined(__GFX11__)
FORM(F16, half16, float8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c))
#else
FORM(F16, half8, float8, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c))
FORM(Fp8, int2, float8, __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(a, b, c))
#endif

}  // namespace

KERNEL_OF(mix_f16, F16)
#if defined(CDNA3_ON) || defined(__GFX12__)
KERNEL_OF(mix_fp8, Fp8)
#endif
#ifdef CDNA3_ON
KERNEL_OF(mix_fp8_16x16, SmallFp8)
#endif
#ifdef __gfx950__
KERNEL_OF(mix_f16_deep, DeepF16)
KERNEL_OF(mix_bf16_deep_16x16, DeepBf16)
KERNEL_OF(mix_f8f6f4, DeepFp8)
#endif

// C = A B through LDS: plain arithmetic, and every target's matrix instructions. A is M x K and B is K x N, row-major;
// sizes are multiples of the tile.
#include "gpu.h"

KERNEL BLOCK(256) void gemm_f32(const float* a, const float* b, float* c, int n, int k) {
  SHARED float as[16][17], bs[16][17];
  const int x = thread_x() % 16, y = thread_x() / 16;
  const int row = group_y() * 16 + y, column = group_x() * 16 + x;
  float sum = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    as[y][x] = a[row * k + k0 + x];
    bs[y][x] = b[(k0 + y) * n + column];
    barrier();
    for (int i = 0; i < 16; i++) sum = __builtin_fmaf(as[y][i], bs[i][x], sum);
    barrier();
  }
  c[row * n + column] = sum;
}

KERNEL BLOCK(256) void gemm_f64(const double* a, const double* b, double* c, int n, int k) {
  SHARED double as[16][17], bs[16][17];
  const int x = thread_x() % 16, y = thread_x() / 16;
  const int row = group_y() * 16 + y, column = group_x() * 16 + x;
  double sum = 0;
  for (int k0 = 0; k0 < k; k0 += 16) {
    as[y][x] = a[row * k + k0 + x];
    bs[y][x] = b[(k0 + y) * n + column];
    barrier();
    for (int i = 0; i < 16; i++) sum = __builtin_fma(as[y][i], bs[i][x], sum);
    barrier();
  }
  c[row * n + column] = sum;
}

// How one matrix instruction lays its 16x16 (or 32x32) tiles over the lanes. A and B fragments: row (column) lane %
// kRows, `kFragment` consecutive values of k from first_k(lane). C: column lane % kRows, row row_of(lane, i).
#define STRIPED(ROWS, DEPTH, FRAGMENT, OUTPUTS)                                                \
  static constexpr int kRows = ROWS, kDepth = DEPTH, kFragment = FRAGMENT, kOutputs = OUTPUTS; \
  DEVICE static int first_k(int lane) { return lane / ROWS * FRAGMENT; }

struct RowsOf4 {  // CDNA: blocks of four rows
  DEVICE static int row_of(int lane, int i) { return 4 * (lane / 16) + i; }
};
struct RowsOf4In32 {
  DEVICE static int row_of(int lane, int i) { return 8 * (i / 4) + 4 * (lane / 32) + i % 4; }
};

// One wave per tile of C; A and B^T staged in LDS.
template <class Op, class In, class Out>
DEVICE inline void gemm_tile(const In* a, const In* b, Out* c, int n, int k) {
  constexpr int T = Op::kRows, D = Op::kDepth, F = Op::kFragment;
  SHARED In as[T][D], bs[T][D];
  const int lane = thread_x(), r = lane % T, tile_row = group_y() * T, tile_column = group_x() * T;
  typename Op::Accumulator sum = {};
  for (int k0 = 0; k0 < k; k0 += D) {
    for (int i = lane; i < T * D; i += WAVE) {
      as[i / D][i % D] = a[(tile_row + i / D) * k + k0 + i % D];
      bs[i % T][i / T] = b[(k0 + i / T) * n + tile_column + i % T];
    }
    barrier();
    typename Op::Fragment fa, fb;
    __builtin_memcpy(&fa, &as[r][Op::first_k(lane)], F * sizeof(In));
    __builtin_memcpy(&fb, &bs[r][Op::first_k(lane)], F * sizeof(In));
    sum = Op::multiply(fa, fb, sum);
    barrier();
  }
  for (int i = 0; i < Op::kOutputs; i++) c[(tile_row + Op::row_of(lane, i)) * n + tile_column + r] = sum[i];
}
#define GEMM(name, Op, In, Out) \
  KERNEL BLOCK(WAVE) void name(const In* a, const In* b, Out* c, int n, int k) { gemm_tile<Op>(a, b, c, n, k); }

#ifdef __GFX9__
struct Mfma16F16 : RowsOf4 {
  STRIPED(16, 16, 4, 4)
  typedef half4 Fragment;
  typedef float4 Accumulator;
  DEVICE static float4 multiply(half4 a, half4 b, float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
  }
};
struct Mfma32F16 : RowsOf4In32 {
  STRIPED(32, 8, 4, 16)
  typedef half4 Fragment;
  typedef float16 Accumulator;
  DEVICE static float16 multiply(half4 a, half4 b, float16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
  }
};
struct Mfma16F32 : RowsOf4 {
  STRIPED(16, 4, 1, 4)
  typedef float Fragment;
  typedef float4 Accumulator;
  DEVICE static float4 multiply(float a, float b, float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0);
  }
};
struct Mfma32F32 : RowsOf4In32 {
  STRIPED(32, 2, 1, 16)
  typedef float Fragment;
  typedef float16 Accumulator;
  DEVICE static float16 multiply(float a, float b, float16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x2f32(a, b, c, 0, 0, 0);
  }
};
GEMM(gemm_f16, Mfma16F16, half, float)
GEMM(gemm_f16_32, Mfma32F16, half, float)
GEMM(gemm_f32_matrix, Mfma16F32, float, float)
GEMM(gemm_f32_matrix_32, Mfma32F32, float, float)
#ifdef __gfx908__
struct Mfma16Bf16 : RowsOf4 {
  STRIPED(16, 8, 2, 4)
  typedef short2 Fragment;
  typedef float4 Accumulator;
  DEVICE static float4 multiply(short2 a, short2 b, float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x8bf16(a, b, c, 0, 0, 0);
  }
};
#else
struct Mfma16Bf16 : RowsOf4 {
  STRIPED(16, 16, 4, 4)
  typedef short4 Fragment;
  typedef float4 Accumulator;
  DEVICE static float4 multiply(short4 a, short4 b, float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
  }
};
struct Mfma32Bf16 : RowsOf4In32 {
  STRIPED(32, 8, 4, 16)
  typedef short4 Fragment;
  typedef float16 Accumulator;
  DEVICE static float16 multiply(short4 a, short4 b, float16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, 0, 0, 0);
  }
};
GEMM(gemm_bf16_32, Mfma32Bf16, short, float)
typedef double double4 __attribute__((ext_vector_type(4)));
struct Mfma16F64 {
  STRIPED(16, 4, 1, 4)
  typedef double Fragment;
  typedef double4 Accumulator;
  DEVICE static int row_of(int lane, int i) { return lane / 16 + 4 * i; }
  DEVICE static double4 multiply(double a, double b, double4 c) {
    return __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, c, 0, 0, 0);
  }
};
GEMM(gemm_f64_matrix, Mfma16F64, double, double)
#endif
GEMM(gemm_bf16, Mfma16Bf16, short, float)
#ifdef CDNA3_ON
struct Mfma16I8 : RowsOf4 {
  STRIPED(16, 32, 8, 4)
  typedef long Fragment;
  typedef int4 Accumulator;
  DEVICE static int4 multiply(long a, long b, int4 c) {
    return __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, 0, 0, 0);
  }
};
struct Mfma16Fp8 : RowsOf4 {
  STRIPED(16, 32, 8, 4)
  typedef long Fragment;
  typedef float4 Accumulator;
  DEVICE static float4 multiply(long a, long b, float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, 0, 0, 0);
  }
};
struct Mfma32Bf8 : RowsOf4In32 {
  STRIPED(32, 16, 8, 16)
  typedef long Fragment;
  typedef float16 Accumulator;
  DEVICE static float16 multiply(long a, long b, float16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_bf8_bf8(a, b, c, 0, 0, 0);
  }
};
GEMM(gemm_fp8, Mfma16Fp8, uchar, float)
GEMM(gemm_bf8_32, Mfma32Bf8, uchar, float)
#else
struct Mfma16I8 : RowsOf4 {
  STRIPED(16, 16, 4, 4)
  typedef int Fragment;
  typedef int4 Accumulator;
  DEVICE static int4 multiply(int a, int b, int4 c) { return __builtin_amdgcn_mfma_i32_16x16x16i8(a, b, c, 0, 0, 0); }
};
#endif
GEMM(gemm_i8, Mfma16I8, signed char, int)
#ifdef __gfx950__
struct Mfma16F16Deep : RowsOf4 {
  STRIPED(16, 32, 8, 4)
  typedef half8 Fragment;
  typedef float4 Accumulator;
  DEVICE static float4 multiply(half8 a, half8 b, float4 c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
  }
};
struct Mfma32Bf16Deep : RowsOf4In32 {
  STRIPED(32, 16, 8, 16)
  typedef bfloat8 Fragment;
  typedef float16 Accumulator;
  DEVICE static float16 multiply(bfloat8 a, bfloat8 b, float16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_bf16(a, b, c, 0, 0, 0);
  }
};
GEMM(gemm_f16_deep, Mfma16F16Deep, half, float)
GEMM(gemm_bf16_deep, Mfma32Bf16Deep, short, float)
#endif
#endif

#ifdef __GFX11__
struct Rows11 {  // lanes 16..31 repeat the fragments of lanes 0..15
  static constexpr int kRows = 16, kDepth = 16, kFragment = 16, kOutputs = 8;
  DEVICE static int first_k(int) { return 0; }
  DEVICE static int row_of(int lane, int i) { return 2 * i + lane / 16; }
};
struct Wmma16F16 : Rows11 {
  typedef half16 Fragment;
  typedef float8 Accumulator;
  DEVICE static float8 multiply(half16 a, half16 b, float8 c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c);
  }
};
struct Wmma16Bf16 : Rows11 {
  typedef short16 Fragment;
  typedef float8 Accumulator;
  DEVICE static float8 multiply(short16 a, short16 b, float8 c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c);
  }
};
typedef int int8v __attribute__((ext_vector_type(8)));
struct Wmma16I8 : Rows11 {
  typedef int4 Fragment;
  typedef int8v Accumulator;
  DEVICE static int8v multiply(int4 a, int4 b, int8v c) {
    return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a, true, b, c, false);
  }
};
#endif
#ifdef __GFX12__
struct Rows12 {
  STRIPED(16, 16, 8, 8)
  DEVICE static int row_of(int lane, int i) { return 8 * (lane / 16) + i; }
};
struct Wmma16F16 : Rows12 {
  typedef half8 Fragment;
  typedef float8 Accumulator;
  DEVICE static float8 multiply(half8 a, half8 b, float8 c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
  }
};
struct Wmma16Bf16 : Rows12 {
  typedef short8 Fragment;
  typedef float8 Accumulator;
  DEVICE static float8 multiply(short8 a, short8 b, float8 c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c);
  }
};
typedef int int8v __attribute__((ext_vector_type(8)));
struct Wmma16I8 : Rows12 {
  typedef int2 Fragment;
  typedef int8v Accumulator;
  DEVICE static int8v multiply(int2 a, int2 b, int8v c) {
    return __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, a, true, b, c, false);
  }
};
struct Wmma16Fp8 : Rows12 {
  typedef int2 Fragment;
  typedef float8 Accumulator;
  DEVICE static float8 multiply(int2 a, int2 b, float8 c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(a, b, c);
  }
};
struct Wmma16Bf8 : Rows12 {
  typedef int2 Fragment;
  typedef float8 Accumulator;
  DEVICE static float8 multiply(int2 a, int2 b, float8 c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_bf8_bf8_w32_gfx12(a, b, c);
  }
};
GEMM(gemm_fp8, Wmma16Fp8, uchar, float)
GEMM(gemm_bf8, Wmma16Bf8, uchar, float)
#endif
#ifndef __GFX9__
GEMM(gemm_f16, Wmma16F16, half, float)
GEMM(gemm_bf16, Wmma16Bf16, short, float)
GEMM(gemm_i8, Wmma16I8, signed char, int)
#endif

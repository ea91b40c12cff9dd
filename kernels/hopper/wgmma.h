// The warpgroup matrix instructions (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"): one function per
// number of columns N and element type, since each accumulator is an operand of its own.
//
// D[64][N] += A[64][16] B[16][N] in fp32. A thread of the warpgroup (lane, warp) holds D[16 warp + lane / 4 + 8 i][8 j
// + 2 (lane % 4) + e] in d[4 j + 2 i + e], and of A, in 16-bit pairs, rows as above and columns 2 (lane % 4) + 8 (x /
// 2) in a[x], i = x % 2: accumulators 8 k .. 8 k + 7 of a product, packed, are the A operand of step k of the next one.
#pragma once

#include "kernels/nvidia/gpu.h"

namespace flashwave {

struct BF16;
struct F16;

// A from shared memory or from registers, B from shared memory; accumulate = 0: D = A B. In shared memory the reduction
// is contiguous ("K-major"), or with kAlongM or kAlongN the other dimension ("MN-major").
template <class Element, int N>
struct Wgmma;

#define FW_ACC8(d, i)                                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FW_ACC16(d, i) FW_ACC8(d, i), FW_ACC8(d, i + 8)
#define FW_ACC32(d, i) FW_ACC16(d, i), FW_ACC16(d, i + 16)
#define FW_ACC64(d, i) FW_ACC32(d, i), FW_ACC32(d, i + 32)

#define FW_REG0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FW_REG8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define FW_REG16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define FW_REG24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define FW_REG32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define FW_REG40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define FW_REG48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define FW_REG56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define FW_REG64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define FW_REG72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define FW_REG80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define FW_REG88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define FW_REG96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define FW_REG104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define FW_REG112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define FW_REG120 "%120, %121, %122, %123, %124, %125, %126, %127"

// registers: the list of operands of D in the instruction; outputs: the same for the compiler; i0 .. i6: operands after
// them.
#define FW_WGMMA(Element, type, N, registers, outputs, i0, i1, i2, i3, i4, i5, i6)                                     \
  template <>                                                                                                          \
  struct Wgmma<Element, N> {                                                                                           \
    template <int kAlongM = 0, int kAlongN = 0>                                                                        \
    FW_METHOD static void shared_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {                   \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i2                                                               \
                   ", 0;\n"                                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" registers "}, %" #i0 ", %" #i1 \
                   ", p, 1, 1, %" #i3 ", %" #i4 ";}\n"                                                                 \
                   : FW_JOIN outputs                                                                                   \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(kAlongM), "n"(kAlongN));                                     \
    }                                                                                                                  \
    template <int kAlongN = 1>                                                                                         \
    FW_METHOD static void registers_shared(float (&d)[N / 2], const uint32_t* a, uint64_t b, int accumulate) {         \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i5                                                               \
                   ", 0;\n"                                                                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" registers "}, {%" #i0          \
                   ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i6 ";}\n"                                  \
                   : FW_JOIN outputs                                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kAlongN));               \
    }                                                                                                                  \
  };
#define FW_JOIN(...) __VA_ARGS__
#define FW_WGMMA_BOTH(...) FW_WGMMA(BF16, "bf16", __VA_ARGS__) FW_WGMMA(F16, "f16", __VA_ARGS__)

FW_WGMMA_BOTH(32, FW_REG0 ", " FW_REG8, (FW_ACC16(d, 0)), 16, 17, 18, 19, 20, 21, 22)
FW_WGMMA_BOTH(64, FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24, (FW_ACC32(d, 0)), 32, 33, 34, 35, 36, 37, 38)
FW_WGMMA_BOTH(72, FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24 ", %32, %33, %34, %35",
              (FW_ACC32(d, 0), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])), 36, 37, 38, 39, 40, 41, 42)
FW_WGMMA_BOTH(80, FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24 ", " FW_REG32, (FW_ACC32(d, 0), FW_ACC8(d, 32)), 40,
              41, 42, 43, 44, 45, 46)
FW_WGMMA_BOTH(96, FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24 ", " FW_REG32 ", " FW_REG40,
              (FW_ACC32(d, 0), FW_ACC16(d, 32)), 48, 49, 50, 51, 52, 53, 54)
FW_WGMMA_BOTH(112, FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24 ", " FW_REG32 ", " FW_REG40 ", " FW_REG48,
              (FW_ACC32(d, 0), FW_ACC16(d, 32), FW_ACC8(d, 48)), 56, 57, 58, 59, 60, 61, 62)
FW_WGMMA_BOTH(128,
              FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24 ", " FW_REG32 ", " FW_REG40 ", " FW_REG48 ", " FW_REG56,
              (FW_ACC64(d, 0)), 64, 65, 66, 67, 68, 69, 70)
FW_WGMMA_BOTH(192,
              FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24 ", " FW_REG32 ", " FW_REG40 ", " FW_REG48 ", " FW_REG56
                      ", " FW_REG64 ", " FW_REG72 ", " FW_REG80 ", " FW_REG88,
              (FW_ACC64(d, 0), FW_ACC32(d, 64)), 96, 97, 98, 99, 100, 101, 102)
FW_WGMMA_BOTH(256,
              FW_REG0 ", " FW_REG8 ", " FW_REG16 ", " FW_REG24 ", " FW_REG32 ", " FW_REG40 ", " FW_REG48 ", " FW_REG56
                      ", " FW_REG64 ", " FW_REG72 ", " FW_REG80 ", " FW_REG88 ", " FW_REG96 ", " FW_REG104
                      ", " FW_REG112 ", " FW_REG120,
              (FW_ACC64(d, 0), FW_ACC64(d, 64)), 128, 129, 130, 131, 132, 133, 134)

#undef FW_WGMMA_BOTH
#undef FW_WGMMA
#undef FW_JOIN
#undef FW_REG0
#undef FW_REG8
#undef FW_REG16
#undef FW_REG24
#undef FW_REG32
#undef FW_REG40
#undef FW_REG48
#undef FW_REG56
#undef FW_REG64
#undef FW_REG72
#undef FW_REG80
#undef FW_REG88
#undef FW_REG96
#undef FW_REG104
#undef FW_REG112
#undef FW_REG120
#undef FW_ACC64
#undef FW_ACC32
#undef FW_ACC16
#undef FW_ACC8

}  // namespace flashwave

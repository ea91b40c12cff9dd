// Instruction sets a kernel may require and a device may offer, as bits.
#pragma once

#include <cstdint>

namespace flashwave {

enum Isa : uint32_t {
  kIsaNone = 0,
  kIsaAvx2 = 1u << 0,    // AVX2, FMA and F16C
  kIsaAvx512 = 1u << 1,  // AVX-512 F, BW, DQ and VL
  kIsaAmd = 1u << 2,     // an AMD GPU that code is compiled for
  // Matrix instructions of AMD's data centre GPUs; each generation has those of the ones before.
  kIsaCdna = 1u << 3,   // MI100 (gfx908)
  kIsaCdna2 = 1u << 4,  // MI200 (gfx90a)
  kIsaCdna3 = 1u << 5,  // MI300 (gfx942)
  kIsaCdna4 = 1u << 6,  // MI350 (gfx950)
  // Those of AMD's graphics cards; the two differ in their register layouts.
  kIsaRdna3 = 1u << 7,   // gfx11
  kIsaRdna4 = 1u << 8,   // gfx12
  kIsaGfx908 = 1u << 9,  // MI100 alone: accumulators live in registers of their own
  // NVIDIA's GPUs by compute capability.
  kIsaSm75 = 1u << 10,  // 7.5 (Turing) or later: fp16 matrix instructions
  kIsaSm80 = 1u << 11,  // 8.0 (Ampere) or later: bf16 too, asynchronous copies
  kIsaSm90 = 1u << 12,  // 9.0 (Hopper) alone: warpgroup matrix instructions, tensor memory accelerator
  kIsaAmx = 1u << 13,   // CPU: AMX tiles with bf16 products, AVX512_BF16 and BMI2; the operating system grants tiles
};

// Those that kernels of CPUs are compiled for, on this kind of machine.
#if defined(__x86_64__)
inline constexpr uint32_t kCompiledCpuIsa = kIsaAvx2 | kIsaAvx512 | kIsaAmx;
#else
inline constexpr uint32_t kCompiledCpuIsa = kIsaNone;
#endif

}  // namespace flashwave

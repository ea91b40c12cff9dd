// Instructions that the backward uses beside those of kernels/nvidia/isa.h. PTX ISA 9.0.
#pragma once

#include "kernels/nvidia/isa.h"

namespace flashwave {

FW_DEVICE float load_shared_float(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
  return x;
}

// 9.7.13.6 red: a sum in the L2 cache, which nobody waits for.
FW_DEVICE void add_to_memory(float* to, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

}  // namespace flashwave

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

// A counter that CTAs wait for and raise (8.7 release and acquire patterns).
FW_DEVICE void wait_until_equal(const int* counter, int value) {
  int x;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
  } while (x != value);
}
FW_DEVICE void raise(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}

}  // namespace flashwave

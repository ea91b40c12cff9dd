// Short divisions. What a workgroup does once runs from a cold instruction cache, at some 8
// cycles an instruction (NOTES-decode.md): there every instruction counts.
#pragma once

#include "kernels/nvidia/isa.h"

namespace flashwave {

// x / by, rounded down; 0 <= x < 2^21: 1 / (2 by) is more than the error of the product.
FW_DEVICE int small_quotient(int x, float reciprocal) { return int((float(x) + 0.5f) * reciprocal); }
FW_DEVICE int quotient(int x, int by) {
  if (__builtin_expect(x < 1 << 21, 1)) return small_quotient(x, rcp_fast(float(by)));
  return int(uint32_t(x) / uint32_t(by));
}

// The same for all lanes, and the compiler knows it.
FW_DEVICE int warp_index() { return from_lane(int(uint32_t(thread_index()) / kWave), 0); }

}  // namespace flashwave

// Instruction sets a kernel may require and a device may offer, as bits.
#pragma once

#include <cstdint>

namespace flashwave {

enum Isa : uint32_t {
  kIsaNone = 0,
  kIsaAvx2 = 1u << 0,    // AVX2, FMA and F16C
  kIsaAvx512 = 1u << 1,  // AVX-512 F, BW, DQ and VL
};

}  // namespace flashwave

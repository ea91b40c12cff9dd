// Bits and lanes: masks made of a condition per lane, masks taken apart, bits counted.
#pragma once

#include "isa/lanes.h"

namespace emu {

// Bit l of the result is f(l). Written as a reduction over 32 lanes at a time so that it vectorises.
template <class F>
inline u64 lane_bits(const Wave& w, F f) {
  u64 result = 0;
  for (int base = 0; base < w.lanes; base += 32) {
    u32 bits = 0;
    for (int l = 0; l < 32; ++l) bits |= f(base + l) ? 1u << l : 0;
    result |= static_cast<u64>(bits) << base;
  }
  return result;
}

// The lanes of a mask that is read, as 0 or 1 each.
struct MaskLanes {
  u32 half[2];
  explicit MaskLanes(u64 mask) : half{static_cast<u32>(mask), static_cast<u32>(mask >> 32)} {}
  u32 operator[](int lane) const { return half[lane >> 5] >> (lane & 31) & 1; }
};

// std::popcount keeps a loop over lanes from becoming vector code; these sums do not.
constexpr u32 count_ones(u32 a) {
  a -= a >> 1 & 0x55555555;
  a = (a & 0x33333333) + (a >> 2 & 0x33333333);
  a = (a + (a >> 4)) & 0x0f0f0f0f;
  return a * 0x01010101 >> 24;
}

}  // namespace emu

// Bits and lanes: masks made of a condition per lane, masks taken apart, bits counted.
#pragma once

#include "isa/lanes.h"

namespace emu {

// Bit l of the result is f(l, bit l of `given`). Written as a reduction over 32 lanes at a time so that it vectorises.
template <class F>
inline u64 lane_bits_from(const Wave& w, u64 given, F f) {
  u64 result = 0;
  for (int base = 0; base < w.lanes; base += 32) {
    const u32 given_bits = static_cast<u32>(given >> base);
    u32 bits = 0;
    for (int l = 0; l < 32; ++l) bits |= f(base + l, given_bits >> l & 1) ? 1u << l : 0;
    result |= static_cast<u64>(bits) << base;
  }
  return result;
}
template <class F>
inline u64 lane_bits(const Wave& w, F f) {
  return lane_bits_from(w, 0, [&](int l, u32) { return f(l); });
}
// for_lanes with the lane's bit of a mask as second argument, 0 or 1.
template <class F>
inline void for_lanes_and_bits(const Wave& w, u64 given, F f) {
  for (int base = 0; base < w.lanes; base += 32) {
    const u32 bits = static_cast<u32>(given >> base);
    for (int l = 0; l < 32; ++l) f(base + l, bits >> l & 1);
  }
}

// A 64-bit source that takes no sign modifiers.
inline u64 joined(const Source64& source, int lane) {
  return source.low[lane] | static_cast<u64>(source.high[lane]) << 32;
}

// std::popcount keeps a loop over lanes from becoming vector code; these sums do not.
constexpr u32 count_ones(u32 a) {
  a -= a >> 1 & 0x55555555;
  a = (a & 0x33333333) + (a >> 2 & 0x33333333);
  a = (a + (a >> 4)) & 0x0f0f0f0f;
  return a * 0x01010101 >> 24;
}

}  // namespace emu

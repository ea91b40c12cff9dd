// Short names for machine words and the casts between them.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace emu {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;
using f16 = _Float16;

constexpr float as_f32(u32 bits) { return std::bit_cast<float>(bits); }
constexpr u32 bits_of(float value) { return std::bit_cast<u32>(value); }
inline double as_f64(u64 bits) { return std::bit_cast<double>(bits); }
inline u64 bits_of(double value) { return std::bit_cast<u64>(value); }
inline float f32_of_f16(u32 bits) { return static_cast<float>(std::bit_cast<f16>(static_cast<u16>(bits))); }
inline u32 f16_of_f32(float value) { return std::bit_cast<u16>(static_cast<f16>(value)); }
inline float f32_of_bf16(u32 bits) { return as_f32(bits << 16); }
// Nearest, ties to even; a NaN stays one.
inline u32 bf16_of_f32(float value) {
  const u32 bits = bits_of(value);
  if (value != value) return (bits >> 16 | 0x40) & 0xffff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline u64 load64(const u32* words) {
  u64 value;
  std::memcpy(&value, words, 8);
  return value;
}
inline void store64(u32* words, u64 value) { std::memcpy(words, &value, 8); }

}  // namespace emu

#include "dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace flashwave::cli {
namespace {

uint16_t bf16_bits(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return uint16_t((u >> 16) | 0x40u);
  const uint32_t half_below_even = 0x7FFFu + ((u >> 16) & 1u);
  return uint16_t((u + half_below_even) >> 16);
}

float bf16_value(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// 2^exponent, for normal numbers. std::ldexp and std::ilogb give the same, but are calls, one for each element.
float power_of_two(int exponent) { return std::bit_cast<float>(uint32_t(exponent + 127) << 23); }
int exponent_of(float normal) { return int(std::bit_cast<uint32_t>(normal) >> 23) - 127; }  // not negative

// By arithmetic: scale so that one unit in the last place is 1, round with the current (nearest even) mode, scale back.
uint16_t f16_bits(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000u : 0u;
  if (std::isnan(value)) return uint16_t(sign | 0x7E00u);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return uint16_t(sign | 0x7C00u);
  const int exponent = magnitude < 0x1p-14f ? -14 : exponent_of(magnitude);
  const float units = std::nearbyint(magnitude * power_of_two(10 - exponent));  // 0..2048
  // A full 2048 carries into the exponent field by itself; subnormals (units < 1024) have field 0.
  const uint32_t field = exponent == -14 && units < 1024.0f ? 0u : uint32_t(exponent + 15);
  return uint16_t(sign | ((field << 10) + uint32_t(units) - (field ? 1024u : 0u)));
}

float f16_value(uint16_t bits) {
  const int field = (bits >> 10) & 31, fraction = bits & 0x3FF;
  float magnitude;
  if (field == 31) {
    magnitude = fraction ? std::bit_cast<float>(0x7F800000u | (uint32_t(fraction) << 13)) : HUGE_VALF;
  } else if (field == 0) {
    magnitude = float(fraction) * 0x1p-24f;
  } else {
    magnitude = float(fraction + 1024) * power_of_two(field - 25);
  }
  return bits & 0x8000u ? -magnitude : magnitude;
}

}  // namespace

const char* dtype_name(fw_dtype type) {
  switch (type) {
    case FW_F16:
      return "f16";
    case FW_BF16:
      return "bf16";
    case FW_F32:
      return "f32";
    default:
      return "none";
  }
}

bool parse_dtype(std::string_view text, fw_dtype* type) {
  for (const fw_dtype t : {FW_F16, FW_BF16, FW_F32}) {
    if (text == dtype_name(t)) return *type = t, true;
  }
  return false;
}

int dtype_mantissa_bits(fw_dtype type) { return type == FW_F32 ? 23 : type == FW_BF16 ? 7 : 10; }

float round_to(float value, fw_dtype type) {
  switch (type) {
    case FW_BF16:
      return bf16_value(bf16_bits(value));
    case FW_F16:
      return f16_value(f16_bits(value));
    default:
      return value;
  }
}

void store(const float* values, size_t count, fw_dtype type, void* bytes) {
  if (type == FW_F32) {
    if (count != 0) std::memcpy(bytes, values, count * sizeof(float));  // of no elements there is no address
    return;
  }
  auto* out = static_cast<uint16_t*>(bytes);
  for (size_t i = 0; i < count; ++i) out[i] = type == FW_BF16 ? bf16_bits(values[i]) : f16_bits(values[i]);
}

void load(const void* bytes, size_t count, fw_dtype type, float* values) {
  if (type == FW_F32) {
    if (count != 0) std::memcpy(values, bytes, count * sizeof(float));
    return;
  }
  const auto* in = static_cast<const uint16_t*>(bytes);
  for (size_t i = 0; i < count; ++i) values[i] = type == FW_BF16 ? bf16_value(in[i]) : f16_value(in[i]);
}

uint32_t poison_bits(fw_dtype type) {
  switch (type) {
    case FW_F32:
      return 0x7FDBDBDBu;
    case FW_BF16:
      return 0x7FDBu;
    default:
      return 0x7EDBu;
  }
}

void fill_poison(size_t count, fw_dtype type, void* elements) {
  if (type == FW_F32) {
    std::fill_n(static_cast<uint32_t*>(elements), count, poison_bits(type));
  } else {
    std::fill_n(static_cast<uint16_t*>(elements), count, uint16_t(poison_bits(type)));
  }
}

bool is_poison(const void* elements, size_t index, fw_dtype type) {
  if (type == FW_F32) return static_cast<const uint32_t*>(elements)[index] == poison_bits(type);
  return static_cast<const uint16_t*>(elements)[index] == poison_bits(type);
}

}  // namespace flashwave::cli

// The three element types as the command line sees them: names, sizes, exact conversion to and from float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flashwave/flashwave.h"

namespace flashwave::cli {

const char* dtype_name(fw_dtype type);  // "f32", "bf16", "f16"
bool parse_dtype(std::string_view text, fw_dtype* type);
inline size_t dtype_size(fw_dtype type) { return type == FW_F32 ? 4 : 2; }
int dtype_mantissa_bits(fw_dtype type);  // without the hidden one: 23, 7, 10

float round_to(float value, fw_dtype type);  // nearest even, NaN stays NaN
void store(const float* values, size_t count, fw_dtype type, void* bytes);
void load(const void* bytes, size_t count, fw_dtype type, float* values);

// A NaN no kernel produces by itself: outputs are filled with it, so an element never written is recognised.
uint32_t poison_bits(fw_dtype type);
void fill_poison(size_t count, fw_dtype type, void* elements);
bool is_poison(const void* elements, size_t index, fw_dtype type);

}  // namespace flashwave::cli

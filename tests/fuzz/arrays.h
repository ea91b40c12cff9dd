// What memory a call may touch, worked out from the words of flashwave.h alone and in 128-bit arithmetic: a second
// opinion on the library's own checks.
#pragma once

#include <cstdint>
#include <vector>

#include "flashwave/flashwave.h"

namespace fuzz {

struct Array {
  const char* name;
  char* data;
  int64_t extent[4];
  int64_t stride[4];  // elements
  int32_t dtype;      // fw_dtype; FW_DTYPE_NONE: int32
  bool written;

  int64_t element() const { return dtype == FW_F16 || dtype == FW_BF16 ? 2 : 4; }
  bool empty() const;
  // Does every element lie in [begin, end)?
  bool inside(const char* begin, const char* end) const;
};

std::vector<Array> arrays_of(const fw_attention& a, const fw_gradients* g);  // g = nullptr: a forward

// body(address) for each element.
template <class Body>
void for_each_element(const Array& array, Body&& body) {
  if (array.empty()) return;
  const int64_t* s = array.stride;
  for (int64_t i = 0; i < array.extent[0]; ++i)
    for (int64_t j = 0; j < array.extent[1]; ++j)
      for (int64_t k = 0; k < array.extent[2]; ++k)
        for (int64_t l = 0; l < array.extent[3]; ++l)
          body(array.data + (i * s[0] + j * s[1] + k * s[2] + l * s[3]) * array.element());
}

float load(const char* address, int32_t dtype);
void store(char* address, int32_t dtype, float value);

}  // namespace fuzz

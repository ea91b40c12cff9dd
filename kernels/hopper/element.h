// The element type of a row of kernels.def.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/hopper/isa.h"

namespace flashwave {

template <uint32_t kDtypes>
struct ElementOf {
  using Type = BF16;
};
template <>
struct ElementOf<kRowF16> {
  using Type = F16;
};

}  // namespace flashwave

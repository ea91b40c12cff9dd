// The element type of a row of kernels.def.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/cdna/isa.h"

namespace flashwave {

template <uint32_t kDtypes, uint32_t kNeeds>
struct ElementOf {
  using Type = BF16<(kNeeds & kNeedsFastRounding) != 0 ? Rounding::kTruncate : Rounding::kNearestEven>;
};
template <uint32_t kNeeds>
struct ElementOf<kRowF16, kNeeds> {
  using Type = F16;
};

}  // namespace flashwave

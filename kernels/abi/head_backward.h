// The kernels of a backward that have a whole head in a workgroup: no passes before or after them, so they say
// themselves how many queries the blocks of lse and delta have (kernels/abi/backward_blocks.h).
#pragma once

#include <cstdint>

namespace flashwave::abi {

// At most; as many as pass by at a time, if those are fewer.
inline constexpr int32_t kHeadBlock = 32;

}  // namespace flashwave::abi

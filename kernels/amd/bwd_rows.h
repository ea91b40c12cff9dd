// Rows of keys as a backward finds them.
#pragma once

#include "kernels/amd/gpu.h"
#include "kernels/common/sequence.h"

namespace flashwave {

// Element offset of a row of k, v, dk or dv: key_offset without its branch for pages, which a backward is never given.
// The branch would be a tenth to a sixth of a kernel.
FW_DEVICE int64_t stored_offset(const abi::Tensor& t, const Sequence& s, int64_t key, int64_t head) {
  return s.k_batch * t.stride[0] + (s.k_row + key) * t.stride[1] + head * t.stride[2];
}

}  // namespace flashwave

// One tensor map: what a TMA (tensor memory accelerator, compute capability 9.0) knows about a tensor. The host
// describes it in plain numbers; src/device/cuda encodes them (cuTensorMapEncodeTiled: 16-bit elements, no interleave,
// 128-byte swizzle, zeros out of bounds) and passes the maps with the arguments. Which tensors a
// kernel wants mapped is kernels/abi/tensor_maps.h.
#pragma once

#include <cstdint>

namespace flashwave::abi {

struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64);

inline constexpr uint32_t kTensorMapRank = 5;
struct TensorMapDescription {
  const char* tensor;  // its name, for messages
  uint64_t base;       // address
  uint64_t dims[kTensorMapRank];
  uint64_t strides[kTensorMapRank - 1];  // bytes, of dims[1] on
  uint32_t box[kTensorMapRank];
  uint32_t l2_bytes;  // that the L2 cache reads at a time: 128 or 256
};

}  // namespace flashwave::abi

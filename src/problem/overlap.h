// Whether two strided tensors share memory: exact for tensors cut out of one buffer (packed qkv, kv, dqkv).
#pragma once

#include <cstdint>

#include "problem/views.h"

namespace flashwave {

struct Footprint {
  const View* view;
  uintptr_t begin, end;  // bytes from the first element to the end of the last
};

enum class Overlap { kDisjoint, kShared, kUndecided };

// Strides must not be negative. kUndecided only for interleaved tensors whose strides have little in common.
Overlap overlap_of(const Footprint& x, const Footprint& y);

}  // namespace flashwave

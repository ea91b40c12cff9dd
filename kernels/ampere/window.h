// The mask in 32 bits.
#pragma once

#include "kernels/ampere/isa.h"

namespace flashwave {

// A query on diagonal d sees keys d - left .. d + right; sides without limit are far, but fit beside a position.
struct Window {
  int left, right;

  FW_METHOD explicit Window(const Params& p) {
    constexpr int64_t kFar = 1 << 30;
    left = int(p.window_left < kFar ? p.window_left : kFar);
    right = int(p.window_right < kFar ? p.window_right : kFar);
  }
  FW_METHOD int first(int diagonal) const { return max(diagonal - left, 0); }
  // May be less than first().
  FW_METHOD int end(int diagonal, int keys) const { return min(diagonal + right + 1, keys); }
};

}  // namespace flashwave

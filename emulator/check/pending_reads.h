// Reads of LDS that may not have returned yet.
#pragma once

#include <algorithm>

#include "core/wave.h"

namespace emu {

// A read of LDS, kept while it may not have returned: a direct-to-LDS load comes by another way than the LDS unit's, so
// nothing but a wait orders the two.
struct PendingRead {
  u32 sequence = 0, signals = 0;
  u32 bytes = 0;
  u64 lanes = 0;
  u32 address[kLanes];

  bool overlaps(const u32* other, u64 other_lanes, u32 other_bytes) const {
    u32 first = ~0u, end = 0;
    for (u64 left = lanes; left; left &= left - 1) {
      const u32 mine = address[__builtin_ctzll(left)];
      first = std::min(first, mine);
      end = std::max(end, mine + bytes);
    }
    for (; other_lanes; other_lanes &= other_lanes - 1) {
      const u32 begin = other[__builtin_ctzll(other_lanes)];
      if (begin >= end || begin + other_bytes <= first) continue;
      for (u64 left = lanes; left; left &= left - 1) {
        const u32 mine = address[__builtin_ctzll(left)];
        if (mine < begin + other_bytes && begin < mine + bytes) return true;
      }
    }
    return false;
  }
};

// The latest reads of a wave. The hardware has at most 63 instructions in flight, some of which read twice.
struct ReadHistory {
  static constexpr u32 kKept = 128;
  PendingRead read[kKept];
  u32 count = 0;
};

}  // namespace emu

// Reads of LDS that may not have returned yet.
#pragma once

#include <algorithm>

#include "core/wave.h"

namespace emu {

// A read of LDS, kept while it may not have returned: a direct-to-LDS load comes by another way than the LDS unit's, so
// nothing but a wait orders the two.
struct LdsRow {  // what one instruction accesses
  const u32* address = nullptr;
  u64 lanes = 0;
  u32 bytes = 0;
  u32 first = ~0u, end = 0;  // the lowest address, and one past the highest

  LdsRow(const u32* a, u64 active, u32 size, const Wave& wave) : address(a), lanes(active), bytes(size) {
    u32 last = 0;
    if (active == wave.full_mask) {  // in vector code
      for (int l = 0; l < wave.lanes; ++l) {
        first = std::min(first, a[l]);
        last = std::max(last, a[l]);
      }
    } else {
      for (u64 left = active; left; left &= left - 1) {
        first = std::min(first, a[__builtin_ctzll(left)]);
        last = std::max(last, a[__builtin_ctzll(left)]);
      }
    }
    end = last + size;
  }
};

struct PendingRead {
  u32 sequence = 0, signals = 0;
  u32 bytes = 0, first = 0, end = 0;
  u64 lanes = 0;
  u32 address[kLanes];

  bool overlaps(const LdsRow& other) const {
    if (other.first >= end || other.end <= first) return false;
    for (u64 theirs = other.lanes; theirs; theirs &= theirs - 1) {
      const u32 begin = other.address[__builtin_ctzll(theirs)];
      if (begin >= end || begin + other.bytes <= first) continue;
      for (u64 left = lanes; left; left &= left - 1) {
        const u32 mine = address[__builtin_ctzll(left)];
        if (mine < begin + other.bytes && begin < mine + bytes) return true;
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

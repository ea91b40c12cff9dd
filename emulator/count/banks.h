// LDS bank conflicts.
#pragma once

#include "core/access.h"

namespace emu {

struct LdsClocks {
  u32 cycles = 0, ideal = 0;
};

// Of one access of `bytes` per lane; ds_read2 and its like are two accesses.
LdsClocks lds_clocks(const Target& target, int wave_lanes, const u32* address, u64 lanes, u32 bytes, AccessKind kind);

}  // namespace emu

// How many waves of a kernel fit on the hardware at a time.
#pragma once

#include "core/program.h"

namespace emu::hip {

struct Occupancy {
  u32 vgprs = 0;           // allocated to a wave, AGPRs included where they share the file
  u32 waves_per_simd = 0;  // that registers allow
  u32 blocks_per_cu = 0;   // that registers, LDS and the wave slots allow together; 0: the workgroup does not fit
  const char* limit = "";  // what allows no more: "waves", "vgprs", "sgprs", "lds"
};

Occupancy occupancy(const Target& target, const Kernel& kernel, u32 block_size, size_t dynamic_lds);

}  // namespace emu::hip

// How the numbers of a query, its LSE and delta, lie in a block (kernels/abi/backward_blocks.h) as the kernels of a
// family read them. CDNA: as they are. RDNA: negative, since they are where the accumulators of S and dP start, and
// inside 16 rows in the order of an accumulator's registers: RDNA3's has even rows in one half of a wave and odd ones
// in the other.
#pragma once

#include "kernels/amd/gpu.h"
#include "kernels/common/score.h"

namespace flashwave {

#if defined(__GFX9__)
inline constexpr bool kMinusNumbers = false;
#else
inline constexpr bool kMinusNumbers = true;
#endif

FW_DEVICE int row_place(int row) {
#if defined(__GFX11__)
  return (row & ~15) | (row & 1) << 3 | (row >> 1 & 7);
#else
  return row;
#endif
}

// lse: natural, -inf where a row sees no key or does not exist: its weights are then 0.
FW_DEVICE float lse_number(const GpuArguments& args, float lse) {
  const float x = lse == -kInf ? kInf : args.schedule.lse_by_scale ? lse / args.params.softmax_scale : in_log2(lse);
  return kMinusNumbers ? -x : x;
}
// In units of log2, from the number.
FW_DEVICE float lse_of_number(const GpuArguments& args, float number) {
  const float x = kMinusNumbers ? -number : number;
  return args.schedule.lse_by_scale ? x * (args.params.softmax_scale * kLog2e) : x;
}
FW_DEVICE float delta_number(float delta) { return kMinusNumbers ? -delta : delta; }

}  // namespace flashwave

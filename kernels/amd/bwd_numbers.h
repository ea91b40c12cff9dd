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

// RDNA: what dropout scales weights up by, 1 / (1 - p), is in their exponent, and 1 - p in delta, so that no score is
// multiplied.
FW_DEVICE float kept_share(const Params& p) { return kMinusNumbers && p.dropout_threshold ? 1.f - p.dropout_p : 1.f; }
// RDNA: up to this softcap tanh is 1 - 2 / (1 + exp(2 x)), with an error of 1e-7 of the cap however small the score,
// far below the rounding of the weights. What the 1 adds to a score is in lse.
inline constexpr float kQuickSoftcap = 64.f;
FW_DEVICE float added_exponent(const Params& p) {
  const float cap = p.softcap > 0.f && p.softcap <= kQuickSoftcap ? p.softcap * kLog2e : 0.f;
  return cap - log2_fast(kept_share(p));
}

// lse: natural, -inf where a row sees no key or does not exist: its weights are then 0. by_scale: Schedule's
// lse_by_scale, or what a kernel knows it to be: RDNA's rows without modifiers have it, no others.
FW_DEVICE float lse_number(const Params& p, float lse, bool by_scale) {
  if (by_scale) {  // no dropout
    const float x = lse == -kInf ? kInf : lse / p.softmax_scale;
    return kMinusNumbers ? -x : x;
  }
  const float x = lse == -kInf ? kInf : in_log2(lse);
  return kMinusNumbers ? added_exponent(p) - x : x;
}
// In units of log2, from the number.
FW_DEVICE float lse_of_number(const Params& p, float number, bool by_scale) {
  if (by_scale) return (kMinusNumbers ? -number : number) * (p.softmax_scale * kLog2e);
  return kMinusNumbers ? added_exponent(p) - number : number;
}
FW_DEVICE float delta_number(const Params& p, float delta) { return kMinusNumbers ? -delta * kept_share(p) : delta; }
FW_DEVICE float delta_of_number(const Params& p, float number) {
  return kMinusNumbers ? -number * (1.f / kept_share(p)) : number;
}

}  // namespace flashwave

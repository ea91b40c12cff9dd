// The end of a row: sinks, normalisation, log of the sum. Shared by kernels that finish rows themselves and by the one
// that combines parts.
#pragma once

#include "kernels/common/gpu.h"
#include "kernels/common/score.h"

namespace flashwave {

// Weights are exp2(s - m); no key seen: m = -inf, l = 0. A reference that nothing is subtracted from stays finite.
FW_DEVICE float reference_of(float m) { return m == -kInf ? 0.f : m; }

struct RowEnd {
  float scale;  // of the unnormalised O
  float lse;
};

FW_DEVICE RowEnd finish_row(const Params& p, int32_t head, float m, float l) {
  const float sink = p.sinks ? p.sinks[head] * kLog2e : -kInf;
  const float reference = reference_of(__builtin_fmaxf(m, sink));
  const float weight = exp2_fast(m - reference);
  const float total = l * weight + exp2_fast(sink - reference);
  if (total == 0.f) return {0.f, -kInf};
  return {weight / ((1.f - p.dropout_p) * total), from_log2(reference + log2_fast(total))};
}

}  // namespace flashwave

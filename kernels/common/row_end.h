// The end of a row: sinks, normalisation, log of the sum. Shared by kernels that finish rows themselves and by the one
// that combines parts.
#pragma once

#include "kernels/common/accurate.h"
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

// Two results with the natural logarithms of their sums become one: keep times the first and add times the second. A
// factor of 0 says that a result, which may be anything, is not to be read.
struct MergedRow {
  float keep, add, lse;
};
FW_DEVICE MergedRow merged(float first, float second) {
  if (second == -kInf) return {first == -kInf ? 0.f : 1.f, 0.f, first};
  if (first == -kInf) return {0.f, 1.f, second};
  const float top = __builtin_fmaxf(first, second);
  const float keep = exp_accurate(first - top), add = exp_accurate(second - top), sum = keep + add;
  return {keep / sum, add / sum, top + log_accurate(sum)};
}

}  // namespace flashwave

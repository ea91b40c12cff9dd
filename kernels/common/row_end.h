// The end of a row: sink, normalisation, a row that sees nothing, log of the sum, dropout's 1 / (1 - p). For every
// kernel that finishes rows, on GPUs and CPUs, and for those that combine parts.
#pragma once

#include "kernels/common/accurate.h"
#include "kernels/common/gpu.h"
#include "kernels/common/score.h"

namespace flashwave {

// Weights are exp2(s - m). Of a row that has seen no key m may be -inf: the reference that is subtracted stays finite.
FW_DEVICE float reference_of(float m) { return m == -kInf ? 0.f : m; }

// The score of a key of value 0 that the row has besides its own, in units of log2.
FW_DEVICE float sink_of(const Params& p, int32_t head) { return p.sinks ? p.sinks[head] * kLog2e : -kInf; }

// What the weights that dropout leaves are multiplied by.
FW_DEVICE float scale_of_kept(const Params& p) { return rcp_fast(1.f - p.dropout_p); }

// l: the sum of the weights, the sink's among them. weight: what O is to be multiplied by besides. Without a key the
// results are 0 and -inf; a NaN in the sum is one in both. kBias: there may be a bias.
FW_DEVICE float scale_of_row(float l, float weight = 1.f) { return l == 0.f ? 0.f : weight * rcp_fast(l); }
template <bool kBias = true>
FW_DEVICE float lse_of_row(float m, float l) {
  return from_log2<kBias>(m + log2_fast(l));
}

struct RowEnd {
  float scale;  // of the unnormalised O
  float lse;
};
template <bool kBias = true>
FW_DEVICE RowEnd end_of_row(float m, float l, float weight = 1.f) {
  return {scale_of_row(l, weight), lse_of_row<kBias>(m, l)};
}

// l: the sum of the keys' weights alone. No key seen: l = 0, and m = -inf or below every score.
template <bool kBias = true, bool kDropout = kBias>
FW_DEVICE RowEnd finish_row(const Params& p, int32_t head, float m, float l) {
  float weight = 1.f;
  if (p.sinks) {
    const float sink = sink_of(p, head), reference = reference_of(__builtin_fmaxf(m, sink));
    weight = exp2_fast(m - reference);
    l = l * weight + exp2_fast(sink - reference);
    m = reference;
  }
  if (kDropout) weight *= scale_of_kept(p);
  return end_of_row<kBias>(m, l, weight);
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

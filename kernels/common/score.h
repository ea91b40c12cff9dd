// What may happen to a score between q.k and the softmax, and to a weight after it: softcap, bias, ALiBi, dropout
// (docs/semantics.md). Every switch is uniform, so a launch pays only for what it asks for.
#pragma once

#include "kernels/common/dtype.h"
#include "kernels/common/gpu.h"
#include "kernels/common/philox.h"
#include "kernels/common/sequence.h"

namespace flashwave {

// Near 0 the difference of exponentials would cancel, hence the polynomial (minimax on |x| < 0.625, the coefficients of
// Cephes' tanhf).
FW_DEVICE float tanh_of(float x) {
  const float z = x * x;
  float r = -5.70498872745e-3f;
  r = r * z + 2.06390887954e-2f;
  r = r * z - 5.37397155531e-2f;
  r = r * z + 1.33314422036e-1f;
  r = r * z - 3.33332819422e-1f;
  const float small = r * z * x + x;
  const float large = 1.f - 2.f * rcp_fast(1.f + exp2_fast(__builtin_fabsf(x) * (2.f * kLog2e)));
  return __builtin_fabsf(x) < 0.625f ? small : __builtin_copysignf(large, x);
}

FW_DEVICE float bias_at(const Params& p, int64_t offset) {
  switch (p.bias.dtype) {
    case abi::kF16:
      return float_of_half(static_cast<const uint16_t*>(p.bias.data)[offset]);
    case abi::kBF16:
      return to_float(static_cast<const BFloat16*>(p.bias.data)[offset]);
    default:
      return static_cast<const float*>(p.bias.data)[offset];
  }
}

// A score or a bias times log2(e). What is finite stays finite: a bias of -kLargest, torch.finfo(float32).min, is how
// some programs hide keys, and a row that has no other keys is their mean, not a row that sees nothing. The second
// term is -kLargest for every finite x and NaN for -inf and NaN, of which fmaxf takes the first. (A comparison, or a
// factor other than 0, would need scalar registers, and CDNA's loop has none left.)
FW_DEVICE float in_log2(float x) { return __builtin_fmaxf(x * kLog2e, __builtin_fmaf(x, 0.f, -kLargest)); }

// The log-sum-exp of a row from units of log2; what in_log2 has cut off is given back.
template <bool kModified = true>  // false: no bias, nothing was cut off
FW_DEVICE float from_log2(float x) {
  return kModified && x <= -kLargest ? x : x * kLn2;
}

// What the random numbers of a launch have in common, of the seed and the offset wherever those lie (philox.h). To be
// asked for once before the numbers of a tile: registers that hold it through the whole loop are scarce.
struct DropoutKey {
  uint32_t low, high, counter;
};
FW_DEVICE DropoutKey dropout_key(const Params& params) {
  const Params& p = parameters_again(params);  // in memory: `either` may take the address of a field
  const uint64_t seed = either(p.dropout_state, 0, p.dropout_seed);
  const uint64_t offset = either(p.dropout_state, 1, p.dropout_offset);
  return {uint32_t(seed), uint32_t(seed >> 32) ^ uint32_t(offset >> 32), uint32_t(offset)};
}

// Of the numbers of 8 keys, that of one. Selects, since an array with a run-time index would go to scratch memory.
FW_DEVICE uint32_t dropout_number(const Philox4& r, uint32_t key) {
  const uint32_t low = key & 2 ? r.word[1] : r.word[0], high = key & 2 ? r.word[3] : r.word[2];
  const uint32_t word = key & 4 ? high : low;
  return key & 1 ? word >> 16 : word & 0xFFFFu;
}

// The scores of one row (query i of head h of a sequence).
struct ScoreRow {
  const Params& p;
  float slope;       // ALiBi; 0 without
  int64_t diagonal;  // key on the diagonal
  int64_t bias;      // offset of key 0
  uint32_t batch_head, query;
  uint32_t first_key = 0;  // as dropout counts keys

  FW_METHOD ScoreRow(const Params& params, const Sequence& seq, int32_t h, int64_t i)
      : p(params),
        slope(params.alibi_slopes ? params.alibi_slopes[seq.b * params.alibi_batch_stride + h] : 0.f),
        diagonal(i + seq.keys - seq.queries),
        bias(seq.b * params.bias.stride[0] + h * params.bias.stride[1] + i * params.bias.stride[2]),
        batch_head(uint32_t(seq.b * params.heads_q + h)),
        query(uint32_t(i)) {}

  // For kernels that honour positions.
  FW_METHOD static ScoreRow placed(const Params& params, const Sequence& seq, int32_t h, int64_t i) {
    ScoreRow row(params, seq, h, i);
    row.diagonal = diagonal_of(params, seq, i);
    row.batch_head = dropout_head(params, seq, h);
    row.query += params.position_q;
    row.first_key = params.position_k;
    return row;
  }

  // q.k -> score; cap_gradient: its derivative by softmax_scale * q.k. key must exist (a bias is read).
  FW_METHOD float score(float dot, int64_t key, float& cap_gradient) const {
    float s = dot * p.softmax_scale;
    cap_gradient = 1.f;
    if (p.softcap > 0) {
      const float t = tanh_of(s / p.softcap);
      s = p.softcap * t;
      cap_gradient = 1.f - t * t;
    }
    if (p.bias.data) s += bias_at(p, bias + key * p.bias.stride[3]);
    if (p.alibi_slopes) s -= slope * distance(key);
    return s;
  }

  // The score in units of log2: the weight is exp2 of it.
  FW_METHOD float modified(float dot, int64_t key) const {
    float cap_gradient;
    const float s = score(dot, key, cap_gradient);
    return p.bias.data ? in_log2(s) : s * kLog2e;
  }

  // From the diagonal. Lengths fit 32 bits, and so does this.
  FW_METHOD float distance(int64_t key) const {
    const int32_t d = int32_t(diagonal - key);
    return float(d < 0 ? -d : d);
  }

  // The 16-bit numbers of keys 8g .. 8g+7, two to a word: an element is dropped iff its number is below the threshold.
  FW_METHOD Philox4 dropout_group(const DropoutKey& key, int64_t g) const {
    return philox({{uint32_t(g), query, batch_head, key.counter}}, key.low, key.high);
  }

  // One key by itself.
  FW_METHOD bool dropped(const DropoutKey& dropout, int64_t key_of_piece) const {
    const int64_t key = key_of_piece + first_key;
    return dropout_number(dropout_group(dropout, key / kKeysPerPhilox), uint32_t(key)) < p.dropout_threshold;
  }
};

}  // namespace flashwave

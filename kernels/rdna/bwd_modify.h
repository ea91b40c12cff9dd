// Score modifiers and dropout in the backward, on an accumulator of scores: a lane has one row of the kept tensor and
// rows of the streamed one in its registers (bwd_config.h), of which there are N here. Every switch is uniform.
#pragma once

#include "kernels/common/score.h"
#include "kernels/rdna/bwd_config.h"

namespace flashwave {

template <class C, int N>
struct Modifiers {
  using Scores = Vec<float, N>;
  const Params& p;  // in memory: read where it is used
  const int batch, head, queries, keys;
  const int kept, first;  // this lane's kept row; the streamed row of its register 0
  const int lane;

  FW_METHOD static int step(int r) { return kRowsOfRegister * r; }
  // a.x -> scores in units of log2. cap_gradients: their derivatives by softmax_scale * a.x, written if there is a
  // softcap.
  FW_METHOD void scores(Scores& s, Scores& cap_gradients) const {
    const float scale = p.softmax_scale, cap = p.softcap;
    if (cap > 0.f) {
      Scores t;
      if (cap <= kQuickCap) {
        t = s * (2.f * kLog2e * scale / cap);
        FW_UNROLL for (int r = 0; r < N; ++r) t[r] = exp2_fast(t[r]);
        t += 1.f;
        FW_UNROLL for (int r = 0; r < N; ++r) t[r] = rcp_fast(t[r]);
        FW_UNROLL for (int r = 0; r < N; ++r) t[r] = __builtin_fmaf(t[r], -2.f, 1.f);
      } else {
        FW_UNROLL for (int r = 0; r < N; ++r) {
          t[r] = tanh_of(s[r] * (scale / cap));
          if (r % 2) schedule_fence();
        }
      }
      FW_UNROLL for (int r = 0; r < N; ++r) cap_gradients[r] = __builtin_fmaf(-t[r], t[r], 1.f);
      s = t * (cap * kLog2e);
    } else {
      s *= scale * kLog2e;
    }
    if (p.bias.data) {
      switch (p.bias.dtype) {
        case abi::kF16:
          add_bias<_Float16>(s);
          break;
        case abi::kBF16:
          add_bias<BFloat16>(s);
          break;
        default:
          add_bias<float>(s);
      }
    }
    if (p.alibi_slopes) {
      const float slope = p.alibi_slopes[batch * p.alibi_batch_stride + head] * kLog2e;
      const int diagonal = keys - queries + (C::kKeepsKeys ? first - kept : kept - first);
      const float distance = float(diagonal), forward = C::kKeepsKeys ? kRowsOfRegister : -kRowsOfRegister;
      FW_UNROLL for (int r = 0; r < N; ++r) {
        s[r] = __builtin_fmaf(-slope, __builtin_fabsf(distance + forward * float(r)), s[r]);
      }
    }
  }
  // Up to this softcap tanh is made of one exponential: its error, 1e-7 of the cap however small the score, is then far
  // below the rounding of the weights.
  static constexpr float kQuickCap = 64.f;

  // Pairs that do not exist take the bias of the last row: their weights are 0.
  template <class T>
  FW_METHOD void add_bias(Scores& s) const {
    const abi::Tensor& bias = p.bias;
    const T* const data = static_cast<const T*>(bias.data) + batch * bias.stride[0] + head * bias.stride[1];
    const int kept_end = (C::kKeepsKeys ? keys : queries) - 1, end = (C::kKeepsKeys ? queries : keys) - 1;
    const int64_t stride = bias.stride[C::kKeepsKeys ? 2 : 3];
    const T* const mine = data + (kept < kept_end ? kept : kept_end) * bias.stride[C::kKeepsKeys ? 3 : 2];
    FW_UNROLL for (int r = 0; r < N; ++r) {
      const int row = first + step(r) < end ? first + step(r) : end;
      s[r] += in_log2(value(mine[row * stride]));
      if (r % 4 == 3) schedule_fence();
    }
  }
  FW_METHOD static float value(float x) { return x; }
  FW_METHOD static float value(_Float16 x) { return float(x); }
  FW_METHOD static float value(BFloat16 x) { return to_float(x); }

  FW_METHOD bool drops() const { return p.dropout_threshold != 0; }
  // Bit r: the pair of register r is not dropped.
  FW_METHOD uint32_t kept_pairs() const {
    const DropoutKey key = dropout_key(p);
    const uint32_t batch_head = uint32_t(batch * p.heads_q + head), threshold = p.dropout_threshold;
    const auto group = [&](int query, int number) {
      return philox({{uint32_t(number), uint32_t(query), batch_head, key.counter}}, key.low, key.high);
    };
    uint32_t bits = 0;
    if constexpr (C::kKeepsKeys) {
      // Eight lanes share the numbers of their eight keys: lane r of them makes those of the query of register r.
      const Philox4 numbers = group(first + step(lane & (N - 1)), kept / kKeysPerPhilox);
      uint32_t of_query = 0;
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        of_query |= uint32_t((numbers.word[i] & 0xFFFF) >= threshold) << 2 * i;
        of_query |= uint32_t(numbers.word[i] >> 16 >= threshold) << (2 * i + 1);
      }
      broadcast_in_eight<N>(of_query, [&](int r, uint32_t x) { bits |= (x >> (lane & 7) & 1) << r; });
    } else if constexpr (N == 8) {
      // RDNA4: a half of the wave has 8 consecutive keys. RDNA3: the even or the odd ones of 16.
      constexpr int kGroups = kRdna4 ? 1 : 2, kEach = 8 / kGroups;
      FW_UNROLL for (int g = 0; g < kGroups; ++g) {
        const Philox4 numbers = group(kept, first / kKeysPerPhilox + g);
        FW_UNROLL for (int i = 0; i < kEach; ++i) {
          const uint32_t word = numbers.word[kRdna4 ? i / 2 : i];
          const bool upper = kRdna4 ? i & 1 : lane >> 4;
          bits |= uint32_t((upper ? word >> 16 : word & 0xFFFF) >= threshold) << (g * kEach + i);
        }
      }
    } else {
      const ScoreRow row(p, {batch, 0, 0, 0, 0, queries, keys}, head, kept);
      FW_UNROLL for (int r = 0; r < N; ++r) bits |= uint32_t(!row.dropped(key, first + step(r))) << r;
    }
    return bits;
  }
};

}  // namespace flashwave

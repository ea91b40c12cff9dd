// lse and delta of a tile's queries, on their way into S and dP.
//
// kStarts: -lse / scale and -delta are what the accumulators of S and dP start with, so a score takes no subtraction.
// Each wave keeps the numbers of a tile in LDS for itself, without a barrier, and reads them into registers as an
// accumulator has its rows.
//
// Otherwise, where scores are changed before lse is subtracted or LDS has no time: one register each, in which lane n
// of 16 has the number of accumulator register n, and gives it by a DPP operand.
#pragma once

#include "kernels/cdna/bwd_config.h"

namespace flashwave {

template <class C, bool kStarts = C::kStarts>
struct BackwardNumbers {
  float scale;  // softmax_scale * log2(e)
  float next_lse[C::kSets], next_delta[C::kSets];
  float lse, delta;  // of 16 queries, by lane
  uint32_t source;

  FW_METHOD void set_addresses(uint32_t, int lane, int) {
    source = (8 * (lane >> 2 & 3) + (lane & 3) + 4 * (lane >> 5)) * 4;
    hold(source);
  }
  FW_METHOD void set_scale(float softmax_scale) { scale = softmax_scale * kLog2e; }

  template <int kSet>
  FW_METHOD void load(Buffer tile) {
    next_lse[kSet] = float_of(buffer_load4(tile, source));
    next_delta[kSet] = float_of(buffer_load4(tile, source, uint32_t(abi::backward_delta_at(kQueryTile))));
  }
  FW_METHOD void begin() {
    // Waited for here: clang 22 forgets a load that more operations follow than a wait can count.
    lse = next_lse[1], delta = next_delta[1];
    hold(lse), hold(delta);
  }
  // Numbers of a tile that is not there are 0; it must have no weights.
  FW_METHOD void next(int set, bool exists) { lse = next_lse[set] + (exists ? 0.f : kInf), delta = next_delta[set]; }

  FW_METHOD float scaled(float s, float key_bias) const {
    return C::kModified ? s + key_bias : __builtin_fmaf(s, scale, key_bias);
  }
  // Not right behind what computes x: an operand of DPP takes wait states.
  template <int kRegister>
  FW_METHOD float exponent(float x) const {
    return x - of_sixteen<kRegister>(lse);
  }
  template <int kRegister>
  FW_METHOD float difference(float dp) const {
    return dp - of_sixteen<kRegister>(delta);
  }
};

template <class C>
struct BackwardNumbers<C, true> {
  float scale, factor;
  float next_numbers;  // lane l: lse of query l, or delta of query l - 32
  F32x16 next_s;
  uint32_t source, to, from;

  FW_METHOD void set_addresses(uint32_t lds, int lane, int wave) {
    const uint32_t own = lds + C::kNumbers + wave * C::kWaveNumbers;
    source = lane * 4, to = own + lane * 4, from = own + (lane >> 5) * 16;
    static_assert(abi::backward_delta_at(kQueryTile) == 32 * 4 && kQueryTile == 32);
    hold(source), hold(to), hold(from);  // each in one register: clang would keep what it is the sum of
  }
  FW_METHOD void set_scale(float softmax_scale) {
    // Beside lse / scale, scores lose what 2^-100 of them is; and the quotient is finite where the scale is 0.
    constexpr float kLeast = 0x1p-100f;
    scale = softmax_scale * kLog2e;
    if (__builtin_fabsf(scale) < kLeast) scale = kLeast;
    factor = lane_index() < 32 ? -1.f / scale : -1.f;
  }

  template <int kSet>
  FW_METHOD void load(Buffer tile) {
    next_numbers = float_of(buffer_load4(tile, source));
  }
  FW_METHOD void share() const { lds_write4(to, bits_of(next_numbers * factor)); }
  FW_METHOD void begin() {
    share();
    FW_UNROLL for (int i = 0; i < 4; ++i) start_next_s(i);
  }
  // A tile that is not there has weights of 1 for queries and gradients of 0.
  FW_METHOD void next(int, bool) {}

  // Registers 4i to 4i + 3.
  FW_METHOD void start_next_s(int i) { start(next_s, i, 0); }
  FW_METHOD void start_dp(F32x16& dp, int i) const { start(dp, i, kQueryTile * 4); }

  FW_METHOD float scaled(float s, float key_bias) const { return __builtin_fmaf(s, scale, key_bias); }
  FW_METHOD F32x2 scaled(F32x2 s, float key_bias) const {
    return __builtin_elementwise_fma(s, F32x2(scale), F32x2(key_bias));
  }
  template <int kRegister>
  FW_METHOD float exponent(float x) const {
    return x;
  }
  template <int kRegister>
  FW_METHOD float difference(float dp) const {
    return dp;
  }

 private:
  FW_METHOD void start(F32x16& x, int i, uint32_t number) const {
    const U32x4 four = lds_read16(from + number + 32 * i);
    FW_UNROLL for (int e = 0; e < 4; ++e) x[4 * i + e] = float_of(four[e]);
  }
};

}  // namespace flashwave

// Score modifiers and dropout in the backward, on an accumulator of scores: a lane has one row of the kept tensor and
// rows of the streamed one in its registers (bwd_config.h), of which there are N here. Every switch is uniform, and
// what is the same for all tiles is computed before the loop.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/common/score.h"
#include "kernels/rdna/bwd_config.h"

namespace flashwave {

inline constexpr int kNearBits = 24;  // of a row of a bias in elements: 16 of them are within reach of an offset

// Pairs that are not dropped: of each register, the lanes, uniform; or of a lane, the registers, which takes no scalar
// registers.
template <int N>
struct KeptPairs {
  uint32_t lanes[N];
  uint32_t registers;

  FW_METHOD void to_registers() {
    registers = 0;
    FW_UNROLL for (int r = 0; r < N; ++r) registers |= in_lanes(lanes[r]) ? 1u << r : 0;
    hold(registers);
  }
};

// Of Philox's numbers for a tile, what follows from the kept rows alone, and from those that pass by.
using DropoutTable = PhiloxTable<>;
template <bool kKeepsKeys>
struct DropoutParts {
  using Kept = DropoutTable::Column;
  using Passing = DropoutTable::Row;
};
template <>
struct DropoutParts<false> {
  using Kept = DropoutTable::Row;
  using Passing = DropoutTable::Column;
};
template <class C>
using DropoutOfKept = typename DropoutParts<C::kKeepsKeys>::Kept;
template <class C>
using DropoutOfPassing = typename DropoutParts<C::kKeepsKeys>::Passing;
FW_DEVICE void hold(DropoutTable::Row& x) { hold(x.low), hold(x.high); }
FW_DEVICE void hold(DropoutTable::Column& x) { hold(x.third), hold(x.after0), hold(x.after2), hold(x.after3); }
template <class C, int kTiles>
FW_DEVICE void draw_numbers(const DropoutTable& table, const DropoutOfKept<C> (&kept)[kTiles],
                            const DropoutOfPassing<C>& passing, Philox4 (&numbers)[kTiles]) {
  DropoutOfPassing<C> each[kTiles];
  FW_UNROLL for (int w = 0; w < kTiles; ++w) each[w] = passing;
  if constexpr (C::kKeepsKeys)
    table.numbers(each, kept, numbers);
  else
    table.numbers(kept, each, numbers);
}

// Of a launch, uniform.
struct ModifierFactors {
  float scale;            // a.x to log2
  float cap_in, cap_out;  // softcap: a.x to twice the argument of tanh, in log2; tanh to log2
  float most;             // log2 of what weights are scaled up by, as some are dropped (bwd_numbers.h)

  FW_METHOD void start(const Params& p) {
    scale = uniform(p.softmax_scale * kLog2e);
    const bool caps = p.softcap > 0.f;
    cap_in = uniform(caps ? 2.f * kLog2e * p.softmax_scale / p.softcap : 0.f);
    cap_out = uniform(p.softcap * kLog2e);
    most = uniform(-log2_fast(1.f - p.dropout_p));
  }
};

// Which modifiers there are. A loop is compiled for each of them alone, without branches, whose sides would meet with
// copies of accumulators, and one for all else.
// Bits as in kernels/abi/features.h, a bias by its kind: of fp32, of the type of Q; of another one, or rows far apart.
// A softcap that is not a quick one has two bits.
inline constexpr uint32_t kFloatBias = 1u << 28, kOwnBias = 1u << 29, kOtherBias = 1u << 30, kExactCap = 1u << 31;
inline constexpr uint32_t kAnyModifiers = ~0u;
template <class T>
FW_DEVICE uint32_t modifiers_of(const Params& p) {
  uint32_t all = 0;
  if (p.alibi_slopes) all |= kAlibi;
  if (int(bits_of(p.softcap)) > 0) all |= kSoftcap;
  if (int(bits_of(p.softcap)) > int(bits_of(kQuickSoftcap))) all |= kExactCap;
  if (p.dropout_threshold) all |= kDropout;
  if (p.bias.data) {
    const bool near = uint64_t(p.bias.stride[2] | p.bias.stride[3]) >> kNearBits == 0;
    constexpr int kOwn = __is_same(typename T::Storage, _Float16) ? abi::kF16 : abi::kBF16;
    all |= !near ? kOtherBias : p.bias.dtype == abi::kF32 ? kFloatBias : p.bias.dtype == kOwn ? kOwnBias : kOtherBias;
  }
  return all;
}

template <class T, class C, int N, uint32_t kModifiers>
struct Modifiers {
  using Scores = Vec<float, N>;
  using Raw = Vec<uint32_t, N>;  // of a bias, as loaded
  static constexpr uint32_t kBiases = kFloatBias | kOwnBias | kOtherBias;
  static constexpr bool kAny = kModifiers == kAnyModifiers;
  const Params& p;  // in memory: read where it is used
  const ModifierFactors& factors;
  const int batch, head, queries, keys;
  const int kept0, now;      // the tile's first kept row and streamed row
  const int first_register;  // of N in the accumulator
  const int lane;

  FW_METHOD bool has_alibi() const { return kAny ? p.alibi_slopes != nullptr : (kModifiers & kAlibi) != 0; }
  FW_METHOD bool caps() const { return kAny ? int(bits_of(p.softcap)) > 0 : (kModifiers & kSoftcap) != 0; }
  FW_METHOD bool drops() const { return kAny ? p.dropout_threshold != 0 : (kModifiers & kDropout) != 0; }
  FW_METHOD bool is_biased() const { return kAny ? p.bias.data != nullptr : (kModifiers & kBiases) != 0; }

  FW_METHOD static int step(int r) { return kRowsOfRegister * r; }
  FW_METHOD int kept() const { return kept0 + (lane & 15); }
  // The streamed row of register 0, counted from the tile's first.
  FW_METHOD int first() const { return kRowsOfHalf * (lane >> 4) + kRowsOfRegister * first_register; }

  // ------------------------------------------------------------------------------------------------------------ ALiBi
  // A lane has one lse if queries are kept.
  using Lse = Vec<float, C::kKeepsKeys ? N : 1>;
  FW_METHOD static Scores in_registers(const Lse& x) {
    if constexpr (C::kKeepsKeys)
      return x;
    else
      return Scores(x[0]);
  }
  FW_METHOD void add_alibi(Scores& sum) const {
    const float slope = load_uniform(p.alibi_slopes + batch * p.alibi_batch_stride + head) * kLog2e;
    const int shift = keys - queries + (C::kKeepsKeys ? now - kept0 : kept0 - now);
    const int from_first = first() - (lane & 15);
    const float distance = float(shift + (C::kKeepsKeys ? from_first : -from_first));
    constexpr float kForward = C::kKeepsKeys ? kRowsOfRegister : -kRowsOfRegister;
    const bool crosses = shift < 15 && shift > -15;
    if (__builtin_expect(crosses, 0)) {
      hold(sum);
      FW_UNROLL for (int r = 0; r < N; ++r) {
        sum[r] = __builtin_fmaf(-slope, __builtin_fabsf(distance + kForward * float(r)), sum[r]);
      }
      hold(sum);
    } else {  // the tile is on one side of the diagonal
      hold(sum);
      const float down = shift > 0 ? -slope : slope;
      Scores away;
      away[0] = product_rounded(distance, down);
      float by = down * kForward;
      away[1] = away[0] + by;
      FW_UNROLL for (int have = 2; have < N; have *= 2) {
        by = in_scalar(by + by);
        FW_UNROLL for (int r = 0; r < have; ++r) away[have + r] = away[r] + by;
      }
      sum += away;
      hold(sum);
    }
  }

  // ------------------------------------------------------------------------------------------------------------- bias
  // Rows of it are near: rows that are not there read 0, or what is there instead; their weights are 0.
  template <class E>
  FW_METHOD Raw load_near() const {
    const abi::Tensor& bias = p.bias;
    const int64_t along = bias.stride[C::kKeepsKeys ? 3 : 2] * int64_t{sizeof(E)};  // kept rows, bytes
    const int64_t across = bias.stride[C::kKeepsKeys ? 2 : 3] * int64_t{sizeof(E)};
    const char* const data = static_cast<const char*>(bias.data) +
                             (batch * bias.stride[0] + head * bias.stride[1]) * int64_t{sizeof(E)} + kept0 * along +
                             now * across;
    const int rows = (C::kKeepsKeys ? queries : keys) - now, kept_rows = (C::kKeepsKeys ? keys : queries) - kept0;
    const int last = (rows < 16 ? rows : 16) - 1, kept_last = (kept_rows < 16 ? kept_rows : 16) - 1;
    const int bytes = kept_last < 0 ? 0 : last * int(across) + kept_last * int(along) + int(sizeof(E));
    const uint32_t at = uint32_t(lane & 15) * uint32_t(along) + uint32_t(first()) * uint32_t(across);
    Raw x;
    FW_UNROLL for (int r = 0; r < N; ++r) {
      const int skipped = step(r) * int(across);
      const Buffer b = make_buffer(data + skipped, bytes > skipped ? bytes - skipped : 0);
      x[r] = sizeof(E) == 4 ? buffer_load4(b, at) : buffer_load2(b, at);
    }
    return x;
  }
  // Any bias.
  template <class E>
  FW_METHOD Raw load_far() const {
    const abi::Tensor& bias = p.bias;
    const int kept_end = (C::kKeepsKeys ? keys : queries) - 1, end = (C::kKeepsKeys ? queries : keys) - 1;
    const int64_t stride = bias.stride[C::kKeepsKeys ? 2 : 3];
    const E* const mine = static_cast<const E*>(bias.data) + batch * bias.stride[0] + head * bias.stride[1] +
                          (kept() < kept_end ? kept() : kept_end) * bias.stride[C::kKeepsKeys ? 3 : 2];
    Raw x;
    FW_UNROLL for (int r = 0; r < N; ++r) {
      const int row = now + first() + step(r);
      x[r] = mine[(row < end ? row : end) * stride];
      if (r % 4 == 3) schedule_fence();
    }
    return x;
  }
  // Of the modifiers that a loop is compiled for; to be loaded before it is needed.
  FW_METHOD Raw load_bias() const {
    if constexpr (kModifiers == kFloatBias)
      return load_near<float>();
    else if constexpr (kModifiers == kOwnBias)
      return load_near<uint16_t>();
    else
      return Raw{};
  }
  FW_METHOD Scores bias_of(Raw raw) const {
    constexpr bool kHalves = __is_same(typename T::Storage, _Float16);
    if constexpr (kModifiers == kFloatBias) {
      return __builtin_bit_cast(Scores, raw);
    } else if constexpr (kModifiers == kOwnBias) {
      return kHalves ? from_f16(raw) : from_bf16(raw);
    } else {
      const int type = p.bias.dtype;
      if (type == abi::kF32) return __builtin_bit_cast(Scores, load_far<uint32_t>());
      raw = load_far<uint16_t>();
      return type == abi::kF16 ? from_f16(raw) : from_bf16(raw);
    }
  }
  FW_METHOD static Scores from_bf16(Raw x) { return __builtin_bit_cast(Scores, x << 16); }
  FW_METHOD static Scores from_f16(Raw x) {
    Scores y;
    FW_UNROLL for (int r = 0; r < N; ++r) y[r] = float_of_half(uint16_t(x[r]));
    return y;
  }
  // Finite numbers stay finite in units of log2 (in_log2).
  FW_METHOD static void keep_finite(Scores& bias) {
    FW_UNROLL for (int r = 0; r < N; ++r) {
      const bool finite = __builtin_fabsf(bias[r]) <= kLargest;
      bias[r] = finite ? __builtin_fmaxf(bias[r], -kLargest * kLn2 * 0.999999f) : bias[r];
    }
  }

  // ----------------------------------------------------------------------------------------------------------- scores
  // a.x -> (tanh(x) - 1) / 2 = -1 / (1 + exp(2 x)), x = softmax_scale * a.x / softcap. Of this y, tanh is 1 + 2 y, and
  // its derivative -4 y (1 + y).
  FW_METHOD Scores below_cap(const Scores& s) const {
    Scores y = s * factors.cap_in;
    hold(y);
    FW_UNROLL for (int r = 0; r < N; ++r) y[r] = exp2_fast(y[r]);
    hold(y);
    y = -1.f - y;
    hold(y);
    FW_UNROLL for (int r = 0; r < N; ++r) y[r] = rcp_fast(y[r]);
    hold(y);
    return y;
  }
  // a.x -> tanh(x), less the 1 that lse has if the cap is a quick one (bwd_numbers.h), and its derivative.
  FW_METHOD void cap(Scores& s, Scores& gradients) const {
    hold(s);
    if (__builtin_expect(bits_of(p.softcap) > bits_of(kQuickSoftcap), 0)) {
      FW_UNROLL for (int r = 0; r < N; ++r) {
        s[r] = tanh_of(s[r] * (factors.cap_in * (0.5f * kLn2)));
        if (r % 2) schedule_fence();
      }
      FW_UNROLL for (int r = 0; r < N; ++r) gradients[r] = __builtin_fmaf(-s[r], s[r], 1.f);
    } else {
      const Scores y = below_cap(s);
      s = 2.f * y;
      gradients = (1.f + y) * (-4.f * y);
    }
    hold(s);
    hold(gradients);
  }

  // ---------------------------------------------------------------------------------------------------------- dropout
  // Keys kept: eight lanes share the numbers of their eight keys, lane r of them has those of the query of register
  // r. Queries kept: RDNA4: a half of the wave has 8 consecutive keys; RDNA3: a half makes the numbers of the first
  // or of the last 8 of 16, of which each half has the even or the odd ones. Of two registers: RDNA4: a word has the
  // numbers of both; RDNA3: each half has one number of a word for each.
  FW_METHOD DropoutTable table() const {
    const DropoutKey key = dropout_key(p);
    // `here`: the keys of all rounds, computed before the loop, would take registers that there are not.
    return {here(key.low), here(key.high), key.counter, uint32_t(batch * p.heads_q + head)};
  }
  FW_METHOD DropoutOfKept<C> of_kept(const DropoutTable& table) const {
    const uint32_t row = uint32_t(kept());
    if constexpr (C::kKeepsKeys)
      return table.column(row / kKeysPerPhilox);
    else
      return table.row(row);
  }
  FW_METHOD DropoutOfPassing<C> of_passing(const DropoutTable& table) const {
    const int half = lane >> 4;
    if constexpr (C::kKeepsKeys)
      return table.row(uint32_t(now + (kRowsOfHalf * half + step(lane & (N - 1))) + step(first_register)));
    else
      return table.column(uint32_t(now / kKeysPerPhilox + (N == 8 || kRdna4 ? half : first_register / 4)));
  }
  FW_METHOD KeptPairs<N> kept_pairs(const Philox4& numbers) const {
    const uint32_t threshold = p.dropout_threshold - 1;
    const auto limit = here(uint16_t(threshold));
    // Known as two halves only: the comparison of a low one has 16 bits, and takes it where it is.
    using Halves = Vec<uint16_t, 2>;
    const auto halves = [](uint32_t word) {
      auto both = __builtin_bit_cast(Halves, word);
      hold(both);
      return both;
    };
    const auto low_kept = [&](Halves word) { return ballot(word[0] > limit); };
    const auto high_kept = [&](Halves word) {
      return ballot(__builtin_bit_cast(uint32_t, word) > (threshold << 16 | 0xffff));
    };
    KeptPairs<N> kept_lanes;
    uint32_t (&lanes)[N] = kept_lanes.lanes;
    if constexpr (N == 8) {
      uint32_t of_key[8];
      FW_UNROLL for (int j = 0; j < 8; j += 2) {
        const Halves word = halves(numbers.word[j / 2]);
        of_key[j] = low_kept(word), of_key[j + 1] = high_kept(word);
      }
      if constexpr (C::kKeepsKeys) transpose_bits(of_key);
      FW_UNROLL for (int r = 0; r < N; ++r) {
        if constexpr (C::kKeepsKeys || kRdna4) {
          lanes[r] = of_key[r];
        } else {
          const uint32_t even = of_key[r % 4 * 2], odd = of_key[r % 4 * 2 + 1];
          lanes[r] = r < 4 ? (even & 0xffff) | odd << 16 : even >> 16 | (odd & 0xffff0000);
        }
      }
    } else if constexpr (C::kKeepsKeys) {
      // Two lanes have the same pair of keys, which share a word, and one of the two queries each.
      static_assert(N == 2);
      const bool second = in_lanes(0xcccccccc), upper = in_lanes(0xf0f0f0f0);
      const uint32_t words[2] = {second ? numbers.word[1] : numbers.word[0],
                                 second ? numbers.word[3] : numbers.word[2]};
      const Halves word = halves(upper ? words[1] : words[0]);
      const uint32_t low = low_kept(word), high = high_kept(word);
      constexpr uint32_t kEven = 0x55555555;
      lanes[0] = (low & kEven) | (high & kEven) << 1;
      lanes[1] = (low & ~kEven) >> 1 | (high & ~kEven);
    } else if constexpr (kRdna4) {
      const uint32_t low = first_register & 2 ? numbers.word[1] : numbers.word[0];
      const uint32_t high = first_register & 2 ? numbers.word[3] : numbers.word[2];
      const Halves word = halves(first_register & 4 ? high : low);
      lanes[0] = low_kept(word), lanes[1] = high_kept(word);
    } else {
      // Constant indexes on either side, or clang 22 chooses between addresses, and the numbers go to memory.
      const bool second = first_register & 2;
      const uint32_t words[2] = {second ? numbers.word[2] : numbers.word[0],
                                 second ? numbers.word[3] : numbers.word[1]};
      FW_UNROLL for (int r = 0; r < 2; ++r) {
        const Halves word = halves(words[r]);
        lanes[r] = (low_kept(word) & 0xffff) | (high_kept(word) & 0xffff0000);
      }
    }
    return kept_lanes;
  }
  // Of the 8 x 8 bits in each byte of 8 words: bit i of word j becomes bit j of word i. Scalar.
  FW_METHOD static void transpose_bits(uint32_t (&x)[8]) {
    const auto swap = [](auto& a, auto& b, int by, auto mask) {
      const auto t = (a >> by ^ b) & mask;
      b ^= t;
      a ^= t << by;
    };
    uint64_t pairs[4];
    FW_UNROLL for (int i = 0; i < 4; ++i) pairs[i] = x[2 * i] | uint64_t{x[2 * i + 1]} << 32;
    FW_UNROLL for (int i = 0; i < 2; ++i) swap(pairs[i], pairs[i + 2], 4, uint64_t{0x0f0f0f0f0f0f0f0f});
    FW_UNROLL for (int i = 0; i < 4; i += 2) swap(pairs[i], pairs[i + 1], 2, uint64_t{0x3333333333333333});
    FW_UNROLL for (int i = 0; i < 4; ++i) {
      x[2 * i] = uint32_t(pairs[i]), x[2 * i + 1] = uint32_t(pairs[i] >> 32);
      swap(x[2 * i], x[2 * i + 1], 1, uint32_t{0x55555555});
    }
  }
};

}  // namespace flashwave

// The dropout mask: Philox-4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a pure
// function of (seed, offset, batch, head, query, key), so every device and both directions see the same mask.
//
// One call gives the 16-bit numbers of 8 consecutive keys of one query:
//   counter = (key / 8, query, batch * heads_q + head, low half of offset)
//   key     = (low half of seed, high half of seed ^ high half of offset)
//   key j takes half (j % 2) of word (j % 8) / 2, low half first.
// The element is dropped iff its number is below round(dropout_p * 65536).
#pragma once

#include <cstdint>

#include "kernels/common/platform.h"

namespace flashwave {

struct Philox4 {
  uint32_t word[4];
};

inline constexpr uint32_t kPhiloxMul0 = 0xD2511F53u, kPhiloxMul1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 7;  // docs/decisions/0003
inline constexpr int kKeysPerPhilox = 8;

FW_FN Philox4 philox(Philox4 counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
#if defined(__AMDGCN__)  // unrolled, the keys of all rounds would be scalars that live through the loop of the kernel
#pragma clang loop unroll(disable)
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxMul0} * c0, b = uint64_t{kPhiloxMul1} * c2;
    const uint32_t n0 = uint32_t(b >> 32) ^ c1 ^ key0, n2 = uint32_t(a >> 32) ^ c3 ^ key1;
    c1 = uint32_t(b), c3 = uint32_t(a), c0 = n0, c2 = n2;
    key0 += kPhiloxWeyl0, key1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// Many calls of a head, whose counters differ in query and group of keys alone: of the six products of the first three
// rounds one depends on the query alone and three on the group alone, so that a call with its row and its column at
// hand has 9 of 14 left. Words: product<factor>(x, low, high) and xor3(a, b, c), for those who name the instructions.
struct PlainWords {
  template <uint32_t kFactor>
  FW_FN static void product(uint32_t x, uint32_t& low, uint32_t& high) {
    const uint64_t y = uint64_t{kFactor} * x;
    low = uint32_t(y), high = uint32_t(y >> 32);
  }
  FW_FN static uint32_t xor3(uint32_t a, uint32_t b, uint32_t c) { return a ^ b ^ c; }
};

template <class Words = PlainWords>
struct PhiloxTable {
  static constexpr int kShared = 3;  // rounds
  struct Row {
    uint32_t low, high;  // the first product of round 2
  };
  struct Column {
    uint32_t third, after0, after2, after3;  // of counter word 2 before round 3; of words 0, 2, 3 behind it
  };

  uint32_t key0, key1, counter, low, high;  // low, high: the second product of round 1

  FW_FN PhiloxTable(uint32_t k0, uint32_t k1, uint32_t last_counter, uint32_t head)
      : key0(k0), key1(k1), counter(last_counter) {
    Words::template product<kPhiloxMul1>(head, low, high);
  }
  FW_FN Row row(uint32_t query) const {
    Row r;
    Words::template product<kPhiloxMul0>(Words::xor3(query, high, key0), r.low, r.high);
    return r;
  }
  FW_FN Column column(uint32_t group) const {
    uint32_t low0, high0, low1, high1, low2, high2;
    Words::template product<kPhiloxMul0>(group, low0, high0);
    Words::template product<kPhiloxMul1>(Words::xor3(high0, counter, key1), low1, high1);
    Words::template product<kPhiloxMul0>(Words::xor3(high1, low, key0 + kPhiloxWeyl0), low2, high2);
    return {low0 ^ (key1 + kPhiloxWeyl1), low1 ^ (key0 + 2 * kPhiloxWeyl0), high2 ^ (key1 + 2 * kPhiloxWeyl1), low2};
  }
  // Side by side, since a round waits for the one before.
  template <int kCalls>
  FW_FN void numbers(const Row (&rows)[kCalls], const Column (&columns)[kCalls], Philox4 (&r)[kCalls]) const {
    for (int i = 0; i < kCalls; ++i) {
      uint32_t low1, high1;
      Words::template product<kPhiloxMul1>(rows[i].high ^ columns[i].third, low1, high1);
      r[i] = {{high1 ^ columns[i].after0, low1, rows[i].low ^ columns[i].after2, columns[i].after3}};
    }
    for (int round = kShared; round < kPhiloxRounds; ++round) {
      const uint32_t k0 = key0 + uint32_t(round) * kPhiloxWeyl0, k1 = key1 + uint32_t(round) * kPhiloxWeyl1;
      for (int i = 0; i < kCalls; ++i) {
        uint32_t low0, high0, low1, high1;
        Words::template product<kPhiloxMul0>(r[i].word[0], low0, high0);
        Words::template product<kPhiloxMul1>(r[i].word[2], low1, high1);
        r[i] = {{Words::xor3(high1, r[i].word[1], k0), low1, Words::xor3(high0, r[i].word[3], k1), low0}};
      }
    }
  }
};

FW_FN uint32_t dropout_bits(uint64_t seed, uint64_t offset, uint32_t batch_head, uint32_t query, uint32_t key) {
  const Philox4 r = philox({{key / kKeysPerPhilox, query, batch_head, uint32_t(offset)}}, uint32_t(seed),
                           uint32_t(seed >> 32) ^ uint32_t(offset >> 32));
  return (r.word[key % kKeysPerPhilox / 2] >> (16 * (key % 2))) & 0xFFFFu;
}

}  // namespace flashwave

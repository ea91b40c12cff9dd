// The dropout mask: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a pure
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
inline constexpr int kPhiloxRounds = 10;
inline constexpr int kKeysPerPhilox = 8;

FW_FN Philox4 philox(Philox4 counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t a = uint64_t{kPhiloxMul0} * c0, b = uint64_t{kPhiloxMul1} * c2;
    const uint32_t n0 = uint32_t(b >> 32) ^ c1 ^ key0, n2 = uint32_t(a >> 32) ^ c3 ^ key1;
    c1 = uint32_t(b), c3 = uint32_t(a), c0 = n0, c2 = n2;
    key0 += kPhiloxWeyl0, key1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

FW_FN uint32_t dropout_bits(uint64_t seed, uint64_t offset, uint32_t batch_head, uint32_t query, uint32_t key) {
  const Philox4 r = philox({{key / kKeysPerPhilox, query, batch_head, uint32_t(offset)}}, uint32_t(seed),
                           uint32_t(seed >> 32) ^ uint32_t(offset >> 32));
  return (r.word[key % kKeysPerPhilox / 2] >> (16 * (key % 2))) & 0xFFFFu;
}

}  // namespace flashwave

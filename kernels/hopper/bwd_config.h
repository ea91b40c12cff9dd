// What follows from a row of the backward's kernels: tiles, the map of shared memory, registers.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/hopper/config.h"

namespace flashwave {

// kTileK: keys of a CTA. 128: each of the two key warpgroups has 64 of them. 64 ("wide"): both have all of them and
// half of the columns of dK and dV each. kCtas = 2: a pair of CTAs, a cluster, walks along the queries together.
template <class ElementType, int kDim_, int kTileQ_, int kTileK_, int kCtas_, Scores kScores_, bool kAlone_>
struct BackwardConfig {
  using Element = ElementType;
  static constexpr int kDim = kDim_, kTileQ = kTileQ_, kTileK = kTileK_, kCtas = kCtas_;
  static constexpr bool kPair = kCtas == 2, kWide = kTileK == 64;
  static constexpr bool kModified = kScores_ == Scores::kModified, kBias = kScores_ == Scores::kBias;
  static_assert(kModified || kBias || kScores_ == Scores::kPlain);
  static constexpr bool kAlone = kAlone_;  // one tile has all keys: dQ is written and not added
  static_assert(kCtas == 1 || kCtas == 2);
  static_assert(!kAlone || (kTileK == 128 && kTileQ == 64));
  static_assert(!kWide || (kPair && kTileQ == 64 && kDim >= 128));  // what is built
  static_assert(kWide || (kTileK == 128 && (kTileQ * kDim == 8192 || (kTileQ == 64 && kDim == 64))));
  static_assert(kWide || !(kModified || kBias) || (kTileQ == 64 && kDim == 64));
  static constexpr int kThreads = 4 * kWarpgroup;  // one that copies, two for the keys, one for dQ
  static constexpr int kPairKeys = kCtas * kTileK;

  // dQ is formed as its transpose, with K^T in registers.
  static constexpr bool kTransposedDq = !kWide && kTileQ == 128;
  // dS = P (dP - delta) by a product of rounded factors: 40 % fewer instructions for one rounding more.
  static constexpr bool kShortProduct = kTransposedDq && Element::kWideRange;
  // Dim 64 by 64 queries leaves registers for the copies, which otherwise spill.
  static constexpr bool kRoomy = !kWide && kTileQ == 64 && kDim == 64;
  static constexpr int kCopyRegisters = kRoomy ? 64 : 32, kDqRegisters = kTransposedDq ? 96 : 64;
  static constexpr int kKeyRegisters = kTransposedDq || kRoomy ? 192 : 208;
  static constexpr uint32_t kPace =
      kTransposedDq || kPair ? 64 : 32;  // clocks between the sums that are sent to memory

  // Tiles in shared memory are panels of 64 columns; those of K and V also are halves of 64 keys.
  static constexpr int kPanels = kDim / kPanel, kBoxBytes = 64 * kPanelRowBytes;
  static constexpr int kHalfBytes = kPanels * kBoxBytes, kKeyBytes = kTileK / 64 * kHalfBytes;
  static constexpr int kQueryBytes = kTileQ * kPanelRowBytes * kPanels, kDsBytes = kTileQ * kTileK * 2;
  static constexpr int kRowBytes = kTileQ * 4;                        // of lse or delta
  static constexpr int kBiasBytes = kBias ? kTileQ * kTileK * 2 : 0;  // panels of 64 keys, rows of queries; with Q
  static constexpr bool kLean = kWide && kDim == 256;
  static constexpr int kQStages = kLean ? 2 : kRoomy ? 4 : 3, kDoStages = kLean ? 1 : kPair ? 2 : kRoomy ? 4 : 3;
  static constexpr int kKSlots = 2;  // single CTAs: this tile's and the next one's; pairs: this CTA's and the other's
  static constexpr int kVSlots =
      kRoomy && !kPair ? 2 : 1;  // tiles of few queries are short: the next one's comes early

  static constexpr uint32_t kTaskBytes =
      48 + 2 * 16;  // BackwardTask, and what each key warpgroup has of it (BlockRange)
  static constexpr uint32_t kK = kSharedBase, kV = kK + kKSlots * kKeyBytes, kQ = kV + kVSlots * kKeyBytes,
                            kDo = kQ + kQStages * kQueryBytes, kDs = kDo + kDoStages * kQueryBytes,
                            kIn = kDs + 2 * kDsBytes,  // dS of the other CTA
      kP = kIn + (kCtas - 1) * kDsBytes, kBiases = kP + (kWide ? kDsBytes : 0), kLse = kBiases + kQStages * kBiasBytes,
                            kDelta = kLse + kQStages * kRowBytes, kTasks = kDelta + kDoStages * kRowBytes;
  // Barriers, 8 bytes each: full and free.
  static constexpr uint32_t kKFull = kTasks + 2 * kTaskBytes, kKFree = kKFull + 16, kVFull = kKFree + 16,
                            kVFree = kVFull + 8 * kVSlots, kQFull = kVFree + 8 * kVSlots,
                            kQFree = kQFull + 8 * kQStages, kDoFull = kQFree + 8 * kQStages,
                            kDoFree = kDoFull + 8 * kDoStages, kDsFull = kDoFree + 8 * kDoStages,
                            kDsFree = kDsFull + 32, kInFull = kDsFree + 16, kTaskFull = kInFull + 16,
                            kTaskFree = kTaskFull + 16, kMayAdd = kTaskFree + 16, kAdded = kMayAdd + 16,
                            kTold = kAdded + 16, kFirst = kTold + 16, kEnd = kFirst + 8;
  static constexpr uint32_t kAsk = kPair ? kMayAdd : kInFull;  // where the other kind has one that this has not
  static constexpr int kSharedBytes = kEnd - kSharedBase;
  static_assert(kSharedBytes <= 232448);

  static constexpr int64_t kBlockBytes = abi::backward_block_bytes(kTileQ, kDim);

  // Of a tile that begins with `key`: the first of a key warpgroup's 64.
  FW_METHOD static int first_key(int key, uint32_t cta, int w) {
    return key + int(cta) * kTileK + (kWide ? 0 : w * 64);
  }

  // Addresses of a CTA of a cluster have its rank in the top byte.
  FW_METHOD static uint32_t here(uint32_t rank) { return kPair ? rank << 24 : 0; }
};

// A place in a ring of slots, and the parity of its use.
template <int kSlots>
struct Ring {
  uint32_t slot = 0, parity = 0;
  FW_METHOD void step() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

}  // namespace flashwave

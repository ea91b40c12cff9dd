// What follows from a row of kernels.def: tiles, the map of shared memory, registers.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/hopper/isa.h"

namespace flashwave {

// What a kernel can do to scores: nothing, one modifier or dropout alone, all of them.
enum class Scores { kPlain, kCapped, kAlibi, kBias, kDropped, kModified };
constexpr Scores scores_of(uint32_t features) {  // of a row of kernels.def
  switch (features & kScoreModifiers) {
    case 0:
      return Scores::kPlain;
    case kSoftcap:
      return Scores::kCapped;
    case kAlibi:
      return Scores::kAlibi;
    case kBias:
      return Scores::kBias;
    case kDropout:
      return Scores::kDropped;
    default:
      return Scores::kModified;
  }
}

template <class ElementType, int kDimQk_, int kDimV_, int kTileQ_, int kTileK_, int kThreads_, Scores kScores_,
          bool kSumByMma_, bool kPacked_>
struct ForwardConfig {
  using Element = ElementType;
  static constexpr int kDimQk = kDimQk_, kDimV = kDimV_;  // of the products: smaller head dims are padded with zeros
  static constexpr int kTileQ = kTileQ_, kTileK = kTileK_, kThreads = kThreads_;
  static constexpr bool kPlain = kScores_ == Scores::kPlain || kScores_ == Scores::kDropped;  // scores as they come
  static constexpr bool kModified = kScores_ == Scores::kModified;
  static constexpr bool kCapped = kScores_ == Scores::kCapped, kAlibi = kScores_ == Scores::kAlibi;
  static constexpr bool kBias = kScores_ == Scores::kBias;
  static constexpr bool kDropout = kScores_ == Scores::kDropped || kModified;
  // Row sums are one more column of the second product, of ones: that saves an addition per score, but they are the
  // sums of rounded weights, too rough for LSE.
  static constexpr bool kSumByMma = kSumByMma_;
  // A tile has rows of several heads, and the keys may be attended to in parts (src/plan/schedule_gpu.cpp).
  static constexpr bool kPacked = kPacked_;
  static_assert(!kPacked || (kScores_ == Scores::kPlain && !kSumByMma));
  static constexpr int kConsumers = kTileQ / kWarpgroup * 2 + kTileQ % kWarpgroup / 64;  // warpgroups, 64 queries each
  static_assert(kTileQ == 64 * kConsumers && kThreads == kWarpgroup * (kConsumers + 1));
  static_assert(kTileK % 16 == 0 && kDimQk % 16 == 0 && kDimV % 16 == 0 && kDimV <= kDimQk);

  // Two buffers for the weights of a block: those of the next are made while the second product still reads the first.
  static constexpr bool kTwoWeights = !kModified && kConsumers == 2 && kDimV / 2 + kTileK <= 200;
  static constexpr int kColumns = kDimV + (kSumByMma ? 8 : 0);  // of the second product
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160, kProducerRegisters = kConsumers == 2 ? 40 : 32;

  // Tiles in shared memory are panels of 64 columns.
  static constexpr int kPanelsQk = (kDimQk + kPanel - 1) / kPanel, kPanelsV = (kDimV + kPanel - 1) / kPanel;
  static constexpr int kQBytes = 64 * kPanelRowBytes * kPanelsQk;  // one warpgroup's queries
  static constexpr int kKBytes = kTileK * kPanelRowBytes * kPanelsQk, kVBytes = kTileK * kPanelRowBytes * kPanelsV;
  // A block of the bias, for all consumers: as a tile of queries whose columns are keys.
  static constexpr int kPanelsBias = kBias ? kTileK / kPanel : 0, kBiasStages = kBias ? 2 : 0;
  static constexpr int kBiasRowsBytes = 64 * kPanelRowBytes * kPanelsBias, kBiasBytes = kConsumers * kBiasRowsBytes;
  static_assert(!kBias || kTileK % kPanel == 0);
  // ALiBi where instructions are scarcer than matrix operations: the numbers of the keys of a block, a row of 16 bytes
  // each, are B of a product whose A has the slope, and zeros for columns 8 to 15, where it reads the rows of the 8
  // keys after (Consumer::store_slopes: for each consumer).
  static constexpr bool kSlopeByMma = kAlibi && kDimQk == 64;
  static constexpr int kNumbersBytes = kSlopeByMma ? (kTileK + 8) * 16 : 0, kSlopeBytes = kSlopeByMma ? 4 * 128 : 0;
  static constexpr int kMostBytes = 232448;  // "Technical Specifications per Compute Capability": 227 KB
  static constexpr int kOtherBytes =
      1024 + (kSumByMma ? 2048 : 0) + kBiasStages * kBiasBytes + kNumbersBytes + kConsumers * kSlopeBytes;
  static constexpr bool fits(int q_slots, int stages) {
    return q_slots * kConsumers * kQBytes + stages * (kKBytes + kVBytes) + kOtherBytes <= kMostBytes;
  }
  // Packed: hardly a workgroup has a second task, and the time is that of reading keys.
  static constexpr int kStages = kPacked ? (fits(1, 4) ? 4 : fits(1, 3) ? 3 : 2) : fits(2, 4) ? 4 : 2;
  static constexpr int kQSlots = !kPacked && fits(2, kStages) ? 2 : 1;
  static_assert(fits(kQSlots, kStages));

  static constexpr uint32_t kQ = kSharedBase, kK = kQ + kQSlots * kConsumers * kQBytes, kV = kK + kStages * kKBytes,
                            kBiases = kV + kStages * kVBytes, kOnes = kBiases + kBiasStages * kBiasBytes,
                            kNumbers = kOnes + (kSumByMma ? 2048 : 0), kSlopes = kNumbers + kNumbersBytes,
                            kTasks = kSlopes + kConsumers * kSlopeBytes;
  // Barriers, 8 bytes each: K, V, Q, the task and the bias have come / may be overwritten; the next task is wanted.
  static constexpr uint32_t kKFull = kTasks + 2 * 32, kKFree = kKFull + 8 * kStages, kVFull = kKFree + 8 * kStages,
                            kVFree = kVFull + 8 * kStages, kQFull = kVFree + 8 * kStages,
                            kQFree = kQFull + 8 * kQSlots * kConsumers, kTaskFull = kQFree + 8 * kQSlots * kConsumers,
                            kTaskFree = kTaskFull + 16, kAsk = kTaskFree + 16, kBiasFull = kAsk + 8,
                            kBiasFree = kBiasFull + 8 * kBiasStages, kEnd = kBiasFree + 8 * kBiasStages;
  static constexpr int kSharedBytes = kEnd - kSharedBase;
  static_assert(kSharedBytes <= kMostBytes);
};

// Of a warpgroup's 64 rows, so many are queries of one head: row r is query r % head_rows of head r / head_rows. The
// heads of a tile are a power of two.
template <class C>
FW_DEVICE int head_rows(const abi::Schedule& schedule) {
  return C::kPacked ? 64 >> lowest_bit(schedule.heads_per_task) : 64;
}

// Named barriers: 0 is __syncthreads.
FW_DEVICE constexpr int turn_barrier(int consumer) { return 1 + consumer; }
FW_DEVICE constexpr int warpgroup_barrier(int consumer) { return 8 + consumer; }

// A ring of slots, gone through in step by the producer and the consumers: slot and parity of its n-th use.
template <int kSlots>
FW_DEVICE uint32_t slot_of(uint32_t n) {
  return n % kSlots;
}
template <int kSlots>
FW_DEVICE uint32_t parity_of(uint32_t n) {
  return n / kSlots & 1;
}

}  // namespace flashwave

// What a row of kernels/*/kernels.def can say about a kernel. Plain constants: kernels read them at compile time, the
// catalog and the plan at run time.
#pragma once

#include <cstdint>

namespace flashwave {

// What a problem can ask for beyond plain attention. A row lists what its kernel honours; the rest is refused.
enum Feature : uint32_t {
  kMask = 1u << 0,         // causal or window
  kGqa = 1u << 1,          // heads_q != heads_k
  kVarlen = 1u << 2,       // cu_seqlens
  kSeqused = 1u << 3,      // seqused_k
  kLeftpad = 1u << 4,      // leftpad_k
  kCacheIndex = 1u << 5,   // cache_batch_idx
  kPaged = 1u << 6,        // block_table
  kUnequalDims = 1u << 7,  // dim_qk != dim_v
  kSoftcap = 1u << 8,
  kAlibi = 1u << 9,
  kBias = 1u << 10,
  kSinks = 1u << 11,
  kDropout = 1u << 12,
  kProbs = 1u << 13,    // softmax matrix out
  kDLse = 1u << 14,     // incoming gradient of LSE
  kDBias = 1u << 15,    // gradient of bias wanted
  kDSinks = 1u << 16,   // gradient of sinks wanted
  kDSlopes = 1u << 17,  // gradient of alibi_slopes wanted
  // Pieces of longer sequences, where that is more than another window (src/problem/positions.cpp).
  kPositions = 1u << 18,
  kFloatOut = 1u << 19,        // o in fp32, q in 16 bits
  kFloatGradients = 1u << 20,  // dq, dk or dv in fp32, q in 16 bits
  kNoFeatures = 0,
  kAllFeatures = (1u << 21) - 1,
};
// Those that change scores or weights, and those that only say which rows and keys there are.
inline constexpr uint32_t kScoreFeatures = kSoftcap | kAlibi | kBias | kSinks | kDropout;
// Of them, those that take work for each score: sinks do not.
inline constexpr uint32_t kScoreModifiers = kSoftcap | kAlibi | kBias | kDropout;
inline constexpr uint32_t kLayoutFeatures =
    kMask | kGqa | kVarlen | kSeqused | kLeftpad | kCacheIndex | kPaged | kUnequalDims;

// Element types a kernel takes: bit (1 << abi::DType).
enum RowDtype : uint32_t { kRowF16 = 1u << 1, kRowBF16 = 1u << 2, kRowF32 = 1u << 3, kRowAll = 7u << 1 };

// What a kernel asks of the data.
enum Needs : uint32_t {
  kNeedsNothing = 0,
  kNeedsPositiveScale = 1u << 0,  // softmax_scale > 0
  kNeedsDwords = 1u << 1,         // q, k, v, o: rows at multiples of 4 bytes, even head dims
  kNeeds16Bytes = 1u << 2,        // q, k, v, o: rows at multiples of 16 bytes, head dims multiples of 16 bytes
  kNeedsPagesOf64 = 1u << 3,      // block_table: page_size a multiple of 64
  kNeedsFastRounding = 1u << 4,   // the caller's leave to round weights towards zero
  kNeeds8Columns = 1u << 5,       // head dims of 8 or more
  kNeedsNearRows = 1u << 7,       // the rows of one tile lie within 2^31 bytes: offsets in it have 32 bits
  kNeedsTensorMaps = 1u << 8,     // q, k, v, o described by tensor maps: as kNeeds16Bytes
  kNeedsPagesOf8 = 1u << 10,      // block_table: page_size a multiple of 8
  kNeedsGradientMaps = 1u << 16,  // q, k, v, d_o described by tensor maps; o, dq, dk, dv: as kNeeds16Bytes
  kNeedsUnpaddedPages = 1u << 9,  // block_table: no left pad
  kNeedsSoftcap = 1u << 22,       // softcap > 0
  kNeedsAlibi = 1u << 25,         // alibi_slopes are given
  // There is a bias, described by a tensor map: of the type of q, keys side by side, rows at multiples of 16 bytes.
  kNeedsBiasMap = 1u << 26,
  kNeedsNoLse = 1u << 11,         // lse is not asked for
  kNeedsFewRows = 1u << 12,       // at most kFewRows rows: queries times the query heads that share a key head
  kNeedsAnyOrder = 1u << 17,      // the caller's leave to make sums in any order: FW_DETERMINISTIC is not set
  kNeedsGradientRows = 1u << 18,  // q, k, v, o, d_o, dq, dk, dv: as kNeeds16Bytes
  // What is prepared for the kernel has LSE divided by softmax_scale, the unit of q.k; softmax_scale >= kLeastScale.
  kTakesLseByScale = 1u << 19,
  // Sums of dQ in any order; with FW_DETERMINISTIC one workgroup after the other has the tiles of keys of a head, and
  // it takes heads enough to keep the GPU busy, unless the kernel is forced by name.
  kOrdersByHeads = 1u << 23,
  // Not a need: the kernel waits by itself for the one before it, so that it can be started sooner.
  kStartsEarly = 1u << 24,
  // Nor this: the largest seqlen_q is what the kernel is made for; it takes more where only slower ones are left.
  kPrefersFewQueries = 1u << 6,
  // Nor this: made for at most max_seqlen_q rows that see a tile of keys, four times as many with a mask, and without
  // one for sums in any order; it takes more, and makes them in order, where it is forced by name.
  kPrefersShortColumns = 1u << 15,
  // Nor this: made for more than kVeryFewRows rows; forced by name it takes fewer.
  kPrefersSeveralRows = 1u << 13,
  // Nor this: made for more than kFewRows rows, which fill no more than half of its vectors; forced by name it takes
  // fewer.
  kPrefersManyRows = 1u << 27,
  // Nor this: made for blocks of queries too few to fill the GPU; forced by name it takes any number.
  kPrefersFewBlocks = 1u << 20,
  // Nor this: made for at most kFewRows rows, or kVeryFewRows of head dims above 128, where the GPU has a kernel by
  // Work::kPackedSplits for more; else, and forced by name, it takes any number.
  kPrefersFewRows = 1u << 21,
  // Nor this: the slow path of its device, which takes any problem, is tried last, and uses no matrix unit or vector
  // tile. FW_NO_SLOW_PATH excludes it.
  kIsSlowPath = 1u << 14,
};

inline constexpr float kLeastScale = 1e-30f;           // see kTakesLseByScale: the quotient fits fp32
inline constexpr int kFewRows = 16, kVeryFewRows = 4;  // see kNeedsFewRows, kPrefers...Rows

// How the work of a GPU kernel is cut into workgroups (src/plan/schedule_gpu.cpp).
enum class Work : uint8_t {
  kQueryBlocks,   // tile_q queries of one head
  kPackedRows,    // tile_q rows (query, head of the group) of one key head, for one part of the keys
  kStreams,       // tile_q (sequence, query, key head) each
  kRows,          // one query row of all heads: pre-passes and rotary embedding
  kPersistent,    // one workgroup for each compute unit, which takes blocks of tile_q queries of one head until none is
                  // left
  kPackedSplits,  // the same for tile_q rows of several heads that share a key head, and one part of the keys; in the
                  // order of their numbers
  kKeyTiles,      // one workgroup for each compute unit, which takes tiles of tile_k keys of one key head until none is
                  // left
  kKeyPairs,      // the same by pairs of workgroups, a cluster
  kKeyBlocks,     // tile_k rows of k and v of one key head
  kKeySums,       // the same by kernels that always add to sums of dQ, in order where that is asked for
  kAnyBlocks,     // blocks of queries of one head, of the size that the schedule says: passes of a backward
  kLine,          // one workgroup for each compute unit, with an equal share of all keys (kernels/abi/decode_line.h)
};

}  // namespace flashwave

// Lists of kernels are short because one line makes the row of bf16 and that of fp16, and pastes their names from its
// numbers:
//
//   #define FW_MY_ROW(type, dtypes, dims, tile_q, tile_k) \
//     FW_EXPAND(FW_AMD_KERNEL, my_fwd, my_fwd_##type##_d##dims##_m##tile_q##n##tile_k, ..., FW_DIMS_##dims, ...)
//   FW_PAIR(FW_MY_ROW, 192v128, 128, 64)
#define FW_PAIR(row, ...) row(bf16, kRowBF16, __VA_ARGS__) row(f16, kRowF16, __VA_ARGS__)
#define FW_EXPAND(macro, ...) macro(__VA_ARGS__)
// Head dims by what names call them: the largest dim_qk and dim_v.
#define FW_DIMS_64 64, 64
#define FW_DIMS_96 96, 96
#define FW_DIMS_128 128, 128
#define FW_DIMS_192 192, 192
#define FW_DIMS_192v128 192, 128
#define FW_DIMS_256 256, 256
#define FW_DIMS_512 512, 512

// The kernels that exist: one row each, expanded from kernels/*/variants.def, in the order they are tried.
#pragma once

#include <cstdint>
#include <span>

#include "base/isa.h"

namespace flashwave {

enum class Op : uint8_t { kForward, kBackward, kAppend, kRotary };
const char* op_name(Op op);  // "forward", "backward", "append", "rotary"

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
  kNoFeatures = 0,
  kAllFeatures = (1u << 18) - 1,
};
const char* feature_name(Feature feature);  // as the user knows it: "alibi_slopes", "block_table", ...

struct KernelRow {
  const char* name;    // symbol = catalog row = CLI name = test name
  const char* device;  // kind of device it runs on: "cpu", "cuda", "hip"
  uint32_t isa;        // Isa bits it needs
  Op op;
  uint32_t dtypes;       // bit (1 << fw_dtype) for each it takes
  int32_t max_dim;       // largest dim_qk and dim_v
  int32_t max_seqlen_q;  // 0 = no limit
  int32_t tile_q, tile_k;
  uint32_t features;  // Feature bits it honours
  bool only_forced;   // never chosen, only forced by name
};

std::span<const KernelRow> catalog();

}  // namespace flashwave

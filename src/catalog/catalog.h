// The kernels that exist: one row each, expanded from kernels/registry.def, in the order they are tried.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/isa.h"
#include "base/kernel.h"
#include "kernels/abi/features.h"

namespace flashwave {

// More bits of Needs (kernels/abi/features.h), which only kernels of CPUs have: that header is read by the kernels of
// all GPUs. Neither is a need; forced by name such a kernel takes everything else. Made for more than kShort keys, and
// in a backward as many rows.
inline constexpr uint32_t kPrefersLongSequences = 1u << 28;
// Made for scores that nothing modifies or drops, others with head dims above kNarrow only.
inline constexpr uint32_t kPrefersPlainScores = 1u << 29;
inline constexpr int kShort = 128, kNarrow = 96;
static_assert(kPrefersManyRows < kPrefersLongSequences);

// kAppend runs before a forward, kCombine after one; kGradients after the first kernel of the slow path's backward,
// kPrepare before and kFinish (dQ), kDBias, kDSlopes and kSums (of sinks and slopes) after that of the others
// (kernels/abi/backward_blocks.h). kDq takes the place of kFinish where no sums are made by several workgroups: it
// computes dQ by itself. kMerge also runs after a forward that adds to what is there. kConvert runs before and after a
// kernel whose element type is not that of the tensors. kFill runs before all others, for rows of no sequence.
enum class Op : uint8_t {
  kForward,
  kBackward,
  kAppend,
  kRotary,
  kMerge,
  kCombine,
  kGradients,
  kPrepare,
  kFinish,
  kSums,
  kDq,
  kDBias,
  kDSlopes,
  kConvert,
  kFill
};
const char* op_name(Op op);  // "forward", "backward", "append", ...
// Whether a kernel of this operation can be chosen, or only accompanies one that is.
constexpr bool can_be_chosen(Op op) {
  return op == Op::kForward || op == Op::kBackward || op == Op::kRotary || op == Op::kMerge;
}

std::string isa_names(uint32_t isa);        // of Isa bits: "AVX2 (with FMA and F16C) and ..."
const char* feature_name(Feature feature);  // as the user knows it: "alibi_slopes", "block_table", ...

struct KernelRow : Kernel {
  const char* device;  // kind of device it runs on: "cpu", "cuda", "hip"
  uint32_t isa;        // Isa bits it needs
  Op op;
  uint32_t dtypes;  // RowDtype bits
  int32_t max_dim_qk, max_dim_v;
  int32_t max_seqlen_q, max_seqlen_k;  // 0 = no limit
  int32_t tile_q, tile_k;
  uint32_t features;  // Feature bits it honours
  uint32_t needs;     // Needs bits
  Work work;
  bool only_forced;  // never chosen, only forced by name
};

std::span<const KernelRow> catalog();
std::span<const KernelRow> catalog_of(std::string_view device);  // the rows of one kind of device

constexpr bool is_slow_path(const KernelRow& row) { return (row.needs & kIsSlowPath) != 0; }

}  // namespace flashwave

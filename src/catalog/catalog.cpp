#include "catalog/catalog.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "flashwave/flashwave.h"

namespace flashwave {

#define FW_CPU_KERNEL(name, ...) void name(const abi::Params&, const abi::CpuLaunch&);
#include "kernels/registry.def"

namespace {

constexpr int32_t kAllDims = 512;
static_assert(kRowF16 == 1u << FW_F16 && kRowBF16 == 1u << FW_BF16 && kRowF32 == 1u << FW_F32);

// Rows of one kind of device stand side by side, in the order in which they are tried.
constexpr KernelRow kRows[] = {
// `if constexpr` keeps the linker from looking for kernels that are not compiled here.
#define FW_CPU_KERNEL(name, isa, op, dtypes, max_seqlen_q, tile_q, tile_k, features, needs, only_forced) \
  {{#name, "", 0, 0,                                                                                     \
    []() -> CpuFunction {                                                                                \
      if constexpr ((uint32_t{isa} & ~kCompiledCpuIsa) == 0) return &name;                               \
      return nullptr;                                                                                    \
    }()},                                                                                                \
   "cpu",                                                                                                \
   isa,                                                                                                  \
   Op::op,                                                                                               \
   dtypes,                                                                                               \
   kAllDims,                                                                                             \
   kAllDims,                                                                                             \
   max_seqlen_q,                                                                                         \
   0,                                                                                                    \
   tile_q,                                                                                               \
   tile_k,                                                                                               \
   features,                                                                                             \
   needs,                                                                                                \
   Work::kQueryBlocks,                                                                                   \
   only_forced},
#include "kernels/registry.def"

#define FW_GPU_KERNEL(device, source, name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, \
                      threads, lds_bytes, features, needs, work)                                                \
  {{#name, #source, threads, lds_bytes},                                                                        \
   device,                                                                                                      \
   isa,                                                                                                         \
   Op::op,                                                                                                      \
   dtypes,                                                                                                      \
   dim_qk,                                                                                                      \
   dim_v,                                                                                                       \
   seqlen_q,                                                                                                    \
   seqlen_k,                                                                                                    \
   tile_q,                                                                                                      \
   tile_k,                                                                                                      \
   features,                                                                                                    \
   needs,                                                                                                       \
   Work::work,                                                                                                  \
   false},
#if FLASHWAVE_AMD_KERNELS
// The kernels of AMD GPUs declare what memory their workgroups share.
#define FW_AMD_KERNEL(source, name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads,     \
                      features, needs, work)                                                                         \
  FW_GPU_KERNEL("hip", source, name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, 0, \
                features, needs, work)
#include "kernels/registry.def"
#endif
#if FLASHWAVE_NVIDIA_KERNELS
#define FW_NVIDIA_KERNEL(...) FW_GPU_KERNEL("cuda", __VA_ARGS__)
#include "kernels/registry.def"
#endif
#undef FW_GPU_KERNEL
};

// By hashes (FNV-1a), sorted: compilers limit how long they compute.
consteval bool names_are_unique() {
  std::array<uint64_t, std::size(kRows)> hashes;
  for (size_t i = 0; i < hashes.size(); ++i) {
    hashes[i] = 0xcbf29ce484222325;
    for (const char* c = kRows[i].name; *c != 0; ++c) {
      hashes[i] = (hashes[i] ^ static_cast<unsigned char>(*c)) * 0x100000001b3;
    }
  }
  std::sort(hashes.begin(), hashes.end());
  return std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end();
}
static_assert(names_are_unique(), "two rows of kernels/*/kernels.def have one name");

// Where the rows of one kind of device stand: side by side.
struct Range {
  size_t begin, end;
};
constexpr Range range_of(std::string_view device) {
  size_t begin = 0;
  while (begin < std::size(kRows) && kRows[begin].device != device) ++begin;
  size_t end = begin;
  while (end < std::size(kRows) && kRows[end].device == device) ++end;
  return {begin, end};
}
constexpr Range kCpu = range_of("cpu"), kHip = range_of("hip"), kCuda = range_of("cuda");
static_assert(kCpu.end - kCpu.begin + kHip.end - kHip.begin + kCuda.end - kCuda.begin == std::size(kRows),
              "rows of one kind of device must stand side by side");

}  // namespace

std::span<const KernelRow> catalog() { return kRows; }

std::span<const KernelRow> catalog_of(std::string_view device) {
  const Range range = device == "cpu" ? kCpu : device == "cuda" ? kCuda : device == "hip" ? kHip : Range{0, 0};
  return std::span(kRows).subspan(range.begin, range.end - range.begin);
}

const char* op_name(Op op) {
  switch (op) {
    case Op::kForward:
      return "forward";
    case Op::kBackward:
      return "backward";
    case Op::kAppend:
      return "append";
    case Op::kRotary:
      return "rotary";
    case Op::kMerge:
      return "merge";
    case Op::kCombine:
      return "combine";
    case Op::kGradients:
      return "gradients";
    case Op::kPrepare:
      return "prepare";
    case Op::kFinish:
      return "finish";
    case Op::kSums:
      return "sums";
    case Op::kDq:
      return "compute dq";
    case Op::kDBias:
      return "compute d_bias";
    case Op::kDSlopes:
      return "compute d_slopes";
    case Op::kConvert:
      return "convert";
    case Op::kFill:
      return "fill";
  }
  return "?";
}

std::string isa_names(uint32_t isa) {
  std::string names;
  const auto add = [&](Isa bit, const char* words) {
    if (isa & bit) names += (names.empty() ? "" : " and ") + std::string(words);
  };
#define FW_ISA(name, words) add(name, words);
#include "kernels/registry.def"
  return names;
}

const char* feature_name(Feature feature) {
  switch (feature) {
    case kMask:
      return "causal or window";
    case kGqa:
      return "heads_q != heads_k";
    case kVarlen:
      return "cu_seqlens";
    case kSeqused:
      return "seqused_k";
    case kLeftpad:
      return "leftpad_k";
    case kCacheIndex:
      return "cache_batch_idx";
    case kPaged:
      return "block_table";
    case kUnequalDims:
      return "dim_qk != dim_v";
    case kSoftcap:
      return "softcap";
    case kAlibi:
      return "alibi_slopes";
    case kBias:
      return "bias";
    case kSinks:
      return "sinks";
    case kDropout:
      return "dropout_p";
    case kProbs:
      return "probs";
    case kDLse:
      return "d_lse";
    case kDBias:
      return "d_bias";
    case kDSinks:
      return "d_sinks";
    case kDSlopes:
      return "d_slopes";
    case kPositions:
      return "position_q and position_k";
    case kFloatOut:
      return "o in fp32";
    case kFloatGradients:
      return "dq, dk or dv in fp32";
    case kNoFeatures:
    case kAllFeatures:
      break;
  }
  return "?";
}

}  // namespace flashwave

// Entry points of the backward from rows of kernels.def: FW_RDNA_BWD_ENTRY(name, ...) makes one if the row is of the
// generation being compiled.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/common/part.h"
#include "kernels/rdna/bwd_head.h"
#include "kernels/rdna/bwd_wide.h"
#include "kernels/rdna/element.h"
#include "kernels/rdna/generation.h"

namespace flashwave {
namespace {

// The loop of a head dim, and what follows from the row.
template <class T, Gradients kGradients, int kDim, int kKept, int kThreads, bool kModified>
struct BackwardLoop {
  using Tiles = BackwardConfig<kGradients, kDim, kKept, kThreads, kModified>;
  FW_METHOD static void run(const GpuArguments& args, char* lds) { Backward<T, Tiles>(args, lds).run(args); }
};
template <class T, int kDim, int kKept, int kThreads, bool kModified>
struct BackwardLoop<T, Gradients::kOfHead, kDim, kKept, kThreads, kModified> {
  using Tiles = BackwardConfig<Gradients::kOfHead, kDim, kKept, kThreads, kModified>;
  FW_METHOD static void run(const GpuArguments& args, char* lds) { backward_head<T, Tiles>(args, lds); }
};
template <class T, Gradients kGradients, int kKept, int kThreads, bool kModified>
struct BackwardLoop<T, kGradients, 256, kKept, kThreads, kModified> {
  using Tiles = WideConfig<kGradients, 256, kKept, kThreads, kModified>;
  FW_METHOD static void run(const GpuArguments& args, char* lds) { WideBackward<T, Tiles>(args, lds).run(args); }
};

}  // namespace

// What a row computes, and which of its tiles is kept, follows from its operation and how it is dealt out.
#define FW_RDNA_KEEPS_kBackward(tile_q, tile_k) tile_k
#define FW_RDNA_KEEPS_kDq(tile_q, tile_k) tile_q
#define FW_RDNA_GRADIENTS_kBackward_kKeyBlocks(needs) ((needs) & kNeedsAnyOrder ? Gradients::kAll : Gradients::kOfKeys)
#define FW_RDNA_GRADIENTS_kBackward_kQueryBlocks(needs) Gradients::kOfHead
#define FW_RDNA_GRADIENTS_kDq_kQueryBlocks(needs) Gradients::kOfQueries

#define FW_RDNA_BWD_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, features, \
                          needs, work)                                                                                 \
  FW_FOR_##isa(                                                                                                        \
      __attribute__((amdgpu_waves_per_eu(threads / 64, threads / 64))) FW_KERNEL(threads) name(FW_ARGUMENTS(args)) {   \
        using Loop = BackwardLoop<ElementOf<dtypes, needs>::Type, FW_RDNA_GRADIENTS_##op##_##work(needs), dim_qk,      \
                                  FW_RDNA_KEEPS_##op(tile_q, tile_k), threads, ((features) & kScoreModifiers) != 0>;   \
        FW_SHARED U32x4 lds[Loop::Tiles::kLdsBytes / 16];                                                              \
        Loop::run(arguments_in_memory(), reinterpret_cast<char*>(lds));                                                \
      })
#define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_RDNA_BWD_ENTRY)(__VA_ARGS__)

}  // namespace flashwave

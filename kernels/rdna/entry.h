// Entry points from rows of kernels.def: FW_RDNA_ENTRY(name, ...) makes one if the row is of the generation being
// compiled.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/common/part.h"
#include "kernels/rdna/element.h"
#include "kernels/rdna/fwd.h"
#include "kernels/rdna/generation.h"

namespace flashwave {

#define FW_RDNA_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, features, \
                      needs, work)                                                                                 \
  FW_FOR_##isa(__attribute__((amdgpu_waves_per_eu(threads / 64, threads / 64))) FW_KERNEL(threads)                 \
                   name(GpuArguments args) {                                                                       \
                     using Tiles = Config<dim_qk, dim_v, tile_q, tile_k, threads>;                                 \
                     FW_SHARED U32x4 lds[Tiles::kLdsBytes / 16];                                                   \
                     Forward<ElementOf<dtypes, needs>::Type, Tiles, ((features) & kScoreFeatures) != 0>(           \
                         args, reinterpret_cast<char*>(lds))                                                       \
                         .run();                                                                                   \
                   })
#define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_RDNA_ENTRY)(__VA_ARGS__)

}  // namespace flashwave

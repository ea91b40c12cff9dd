// From a row of kernels.def to a kernel.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/common/part.h"
#include "kernels/hopper/element.h"
#include "kernels/hopper/fwd.h"

#define FW_HOPPER_FORWARD(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads,           \
                          lds_bytes, features, needs, work)                                                            \
  extern "C" __global__ void __launch_bounds__(threads, 1)                                                             \
      name(const __grid_constant__ flashwave::GpuArguments args, const __grid_constant__ flashwave::TensorMaps maps) { \
    using namespace flashwave;                                                                                         \
    using Config =                                                                                                     \
        ForwardConfig<ElementOf<(dtypes)>::Type, dim_qk, dim_v, tile_q, tile_k, threads, scores_of(features),          \
                      ((needs) & kNeedsNoLse) != 0, Work::work == Work::kPackedSplits>;                                \
    static_assert(Config::kSharedBytes == lds_bytes);                                                                  \
    forward<Config>(args, maps);                                                                                       \
  }
#define FW_NVIDIA_KERNEL(source, ...) FW_IN_PART(source, FW_HOPPER_FORWARD)(__VA_ARGS__)

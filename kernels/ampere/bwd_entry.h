// Entry points from the backward's rows of kernels.def: FW_AMPERE_BACKWARD(name, ...) makes one if the target has the
// row's instructions.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/ampere/bwd.h"
#include "kernels/ampere/bwd_bias.h"
#include "kernels/ampere/bwd_frame.h"
#include "kernels/common/part.h"

#define FW_AMPERE_BACKWARD(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, \
                           lds_bytes, features, needs, work)                                                  \
  FW_FOR_##isa(FW_AMPERE_##op(name, dtypes, dim_qk, tile_q, tile_k, threads, lds_bytes, features))
#define FW_AMPERE_kBackward(name, dtypes, dim, tile_q, tile_k, threads, lds_bytes, features)            \
  using Tiles_##name = BackwardConfig<dim, tile_q, tile_k, threads, lds_bytes>;                         \
  extern "C" __global__ void __launch_bounds__(threads, Tiles_##name::kCtas) name(FW_ARGUMENTS(args)) { \
    Backward<ElementOf<dtypes>, Tiles_##name, ((features) & kScoreModifiers) != 0> backward(            \
        args, shared_address(dynamic_shared));                                                          \
    backward.run();                                                                                     \
  }
#define FW_AMPERE_kDBias(name, dtypes, dim, tile_q, tile_k, threads, lds_bytes, features)               \
  using Tiles_##name = BackwardConfig<dim, tile_q, tile_k, threads, lds_bytes>;                         \
  extern "C" __global__ void __launch_bounds__(threads, Tiles_##name::kCtas) name(FW_ARGUMENTS(args)) { \
    BiasGradient<ElementOf<dtypes>, Tiles_##name> gradient(args, shared_address(dynamic_shared));       \
    if (task_index() < args.schedule.tasks) gradient.run();                                             \
  }
#define FW_AMPERE_FRAME_PASS(name, threads, pass)                                  \
  extern "C" __global__ void __launch_bounds__(threads) name(FW_ARGUMENTS(args)) { \
    static_assert(kFrameThreads == threads);                                       \
    if (task_index() < args.schedule.tasks) pass(args);                            \
  }
#define FW_AMPERE_kPrepare(name, dtypes, dim, tile_q, tile_k, threads, lds_bytes, features) \
  FW_AMPERE_FRAME_PASS(name, threads, prepare)
#define FW_AMPERE_kFinish(name, dtypes, dim, tile_q, tile_k, threads, lds_bytes, features) \
  FW_AMPERE_FRAME_PASS(name, threads, finish)
#define FW_AMPERE_kSums(name, dtypes, dim, tile_q, tile_k, threads, lds_bytes, features) \
  FW_AMPERE_FRAME_PASS(name, threads, sums)
#define FW_NVIDIA_KERNEL(source, ...) FW_IN_PART(source, FW_AMPERE_BACKWARD)(__VA_ARGS__)

// Entry points from rows of kernels.def: FW_AMPERE_ENTRY(name, ...) makes one if the target has the row's
// instructions.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/ampere/fwd.h"
#include "kernels/common/part.h"

namespace flashwave {
#define FW_AMPERE_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, lds_bytes, \
                        features, needs, work)                                                                        \
  FW_FOR_##isa(                                                                                                       \
      using Tiles_##name = Config<dim_qk, dim_v, tile_q, tile_k, threads, lds_bytes>;                                 \
      extern "C" __global__ void __launch_bounds__(threads, Tiles_##name::kCtas) name(FW_ARGUMENTS(args)) {           \
        Forward<ElementOf<dtypes>, Tiles_##name, ((features) & (kSoftcap | kAlibi | kBias | kDropout)) != 0> forward( \
            args.params, shared_address(dynamic_shared));                                                             \
        if (forward.choose_task(args.schedule)) forward.run();                                                        \
      })
#define FW_NVIDIA_KERNEL(source, ...) FW_IN_PART(source, FW_AMPERE_ENTRY)(__VA_ARGS__)

}  // namespace flashwave

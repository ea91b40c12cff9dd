// From a row of kernels.def to a kernel.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/cdna/element.h"
#include "kernels/cdna/fwd.h"
#include "kernels/cdna/tasks.h"
#include "kernels/common/part.h"

namespace flashwave {

template <class C>
FW_DEVICE void forward(const GpuArguments& args, uint32_t lds) {
  const Params& p = args.params;
  const int64_t index = task_index();
  if (index >= args.schedule.tasks) return;
  const ForwardTask task = forward_task(p, uint32_t(index), uint32_t(args.schedule.tasks), C::kTileQ);
  const Sequence seq = sequence_of(p, task.batch);
  const int64_t query = int64_t{task.block} * C::kTileQ;
  if (query < seq.queries) Forward<C>(p, seq, task.head, int(query), lds).run(int(query));
}

}  // namespace flashwave

#define FW_CDNA_FORWARD(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, features, \
                        needs, work)                                                                                 \
  FW_KERNEL(threads) name([[maybe_unused]] flashwave::GpuArguments args) {                                           \
    using namespace flashwave;                                                                                       \
    using Config = ForwardConfig<ElementOf<(dtypes), (needs)>::Type, dim_qk, dim_v, tile_q, tile_k, threads,         \
                                 ((features) & kScoreModifiers) != 0>;                                               \
    FW_SHARED U32x4 lds[Config::kLdsBytes / 16];                                                                     \
    forward<Config>(arguments_in_memory(), uint32_t(reinterpret_cast<uintptr_t>((FW_LDS U32x4*)lds)));               \
  }
#define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_CDNA_FORWARD)(__VA_ARGS__)

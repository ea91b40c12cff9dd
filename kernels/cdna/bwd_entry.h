// From a row of the backward in kernels.def to a kernel.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/cdna/bwd.h"
#include "kernels/cdna/bwd_dq.h"
#include "kernels/cdna/bwd_head.h"
#include "kernels/cdna/element.h"
#include "kernels/cdna/tasks.h"
#include "kernels/common/part.h"

namespace flashwave {

// Lengths and places may come through the vector unit, but addresses and loops that follow from them are scalar.
FW_DEVICE Sequence uniform(const Sequence& s) {
  return {uniform(s.b),     uniform(s.q_batch), uniform(s.q_row), uniform(s.k_batch),
          uniform(s.k_row), uniform(s.queries), uniform(s.keys)};
}

// The tiles of keys of a head are dealt out to so many workgroups. As many as there are tiles; but where dQ is summed
// in a fixed order, a workgroup has several, one after the other, and sums of its own.
template <class C>
FW_DEVICE uint32_t key_chains(const GpuArguments& args) {
  if (C::kFused && args.schedule.in_order) return uint32_t(args.schedule.splits) / C::kSumsOfTile;
  return (uint32_t(args.params.seqlen_k) + C::kTileK - 1) / C::kTileK;
}

// The tile of keys that is `further` rows behind the workgroup's first; whether it is there. Everything follows from
// the arguments anew: scalar registers are few.
template <class C>
FW_DEVICE bool backward_tile(const GpuArguments& args, uint32_t lds, int further) {
  const Params& p = args.params;
  const KeyTask task = key_task(p, uint32_t(task_index()), uint32_t(args.schedule.tasks), key_chains<C>(args));
  const Sequence seq = uniform(sequence_of(p, task.batch));
  const int first = task.tile * C::kTileK + further, left = stored_rows(p, task.batch) - first;
  if (left <= 0) return false;
  const int rows = left < C::kTileK ? left : C::kTileK;
  Backward<C>(p, seq, task.head, first - left_pad(p, task.batch)).run(args, lds, rows, task.tile);
  return true;
}

template <class C>
FW_DEVICE void backward(const GpuArguments& args, uint32_t lds) {
  if (task_index() >= args.schedule.tasks || args.params.seqlen_k == 0) return;
  if constexpr (!C::kFused) {
    backward_tile<C>(args, lds, 0);
    return;
  }
  int further = 0;
  while (backward_tile<C>(*(const GpuArguments*)&arguments_again(), lds, further)) {
    if (!arguments_again().schedule.in_order) return;
    // The last reads of LDS, before the next tile is written there; and sums, which another wave may go on with.
    wait_for_memory<0>();
    workgroup_barrier();
    further += int(key_chains<C>(*(const GpuArguments*)&arguments_again())) * C::kTileK;
  }
}

template <class C>
FW_DEVICE void backward_dq(const GpuArguments& args, uint32_t lds) {
  const Params& p = args.params;
  const int64_t index = task_index();
  if (index >= args.schedule.tasks || p.seqlen_q == 0) return;
  const ForwardTask task = forward_task(p, uint32_t(index), uint32_t(args.schedule.tasks), C::kTileQ);
  const Sequence seq = uniform(sequence_of(p, task.batch));
  const int first = task.block * C::kTileQ;
  if (first < seq.queries) BackwardDq<C>(p, seq, task.head, first).run(args, lds, first);
}

template <class K, class Q>
FW_DEVICE void backward_heads(const GpuArguments& args, uint32_t lds) {
  const Params& p = args.params;
  const int64_t index = task_index();
  if (index >= args.schedule.tasks) return;
  const int batch = int(uint32_t(index) / uint32_t(p.heads_q)), head = int(index) - batch * p.heads_q;
  backward_head<K, Q>(args, uniform(sequence_of(p, batch)), batch, head, lds);
}

}  // namespace flashwave

// Waves of a SIMD, which share its registers.
#define FW_CDNA_WAVES(waves) __attribute__((amdgpu_waves_per_eu(waves, waves)))
#define FW_CDNA_BACKWARD(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, features, \
                         needs, work)                                                                                 \
  FW_CDNA_##op##_##work(name, dtypes, dim_qk, dim_v, tile_q, tile_k, threads, features, needs)
#define FW_CDNA_kBackward_kKeyBlocks(name, dtypes, dim_qk, dim_v, tile_q, tile_k, threads, features, needs) \
  FW_KERNEL(threads) FW_CDNA_WAVES(1) name([[maybe_unused]] flashwave::GpuArguments args) {                 \
    using namespace flashwave;                                                                              \
    using Config = BackwardConfig<ElementOf<(dtypes), (needs)>::Type, dim_qk, dim_v, tile_k, threads,       \
                                  ((needs) & kOrdersByHeads) != 0, ((features) & kScoreModifiers) != 0>;    \
    static_assert((tile_q) == kQueryTile);                                                                  \
    FW_SHARED U32x4 lds[Config::kLdsBytes / 16];                                                            \
    backward<Config>(arguments_in_memory(), uint32_t(reinterpret_cast<uintptr_t>((FW_LDS U32x4*)lds)));     \
  }
#define FW_CDNA_kDq_kQueryBlocks(name, dtypes, dim_qk, dim_v, tile_q, tile_k, threads, features, needs)    \
  FW_KERNEL(threads) FW_CDNA_WAVES((threads) / 256) name([[maybe_unused]] flashwave::GpuArguments args) {  \
    using namespace flashwave;                                                                             \
    using Config = DqConfig<ElementOf<(dtypes), (needs)>::Type, dim_qk, dim_v, tile_q, threads,            \
                            ((features) & kScoreModifiers) != 0>;                                          \
    static_assert((tile_k) == kDqTile);                                                                    \
    FW_SHARED U32x4 lds[Config::kLdsBytes / 16];                                                           \
    backward_dq<Config>(arguments_in_memory(), uint32_t(reinterpret_cast<uintptr_t>((FW_LDS U32x4*)lds))); \
  }
#define FW_CDNA_kBackward_kQueryBlocks(name, dtypes, dim_qk, dim_v, tile_q, tile_k, threads, features, needs)        \
  FW_KERNEL(threads) FW_CDNA_WAVES(1) name([[maybe_unused]] flashwave::GpuArguments args) {                          \
    using namespace flashwave;                                                                                       \
    using Element = ElementOf<(dtypes), (needs)>::Type;                                                              \
    using Keys = BackwardConfig<Element, dim_qk, dim_v, tile_k, threads, false, false>;                              \
    using Queries = DqConfig<Element, dim_qk, dim_v, tile_k, threads, false>;                                        \
    constexpr int kBytes = Keys::kLdsBytes > Queries::kLdsBytes ? Keys::kLdsBytes : Queries::kLdsBytes;              \
    FW_SHARED U32x4 lds[kBytes / 16];                                                                                \
    backward_heads<Keys, Queries>(arguments_in_memory(), uint32_t(reinterpret_cast<uintptr_t>((FW_LDS U32x4*)lds))); \
  }
#define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_CDNA_BACKWARD)(__VA_ARGS__)

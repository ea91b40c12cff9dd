// From a row of kernels.def to a kernel.
#pragma once

#include "kernels/abi/features.h"
#include "kernels/common/part.h"
#include "kernels/hopper/bwd_dq.h"
#include "kernels/hopper/bwd_frame.h"
#include "kernels/hopper/bwd_wide.h"
#include "kernels/hopper/element.h"

namespace flashwave {

template <class C>
FW_DEVICE void start_barriers(uint32_t here) {
  for (uint32_t i = 0; i < 16; i += 8) {
    barrier_init(here + C::kKFull + i, 1), barrier_init(here + C::kKFree + i, 6 * C::kCtas);
    barrier_init(here + C::kDsFull + i, 4), barrier_init(here + C::kDsFull + 16 + i, 4);
    barrier_init(here + C::kDsFree + i, 1), barrier_init(here + C::kInFull + i, 1);
    barrier_init(here + C::kTaskFull + i, 1), barrier_init(here + C::kTaskFree + i, kTaskReaders<C>);
    barrier_init(here + C::kMayAdd + i, 1), barrier_init(here + C::kAdded + i, kWarpgroup / kWave);
    barrier_init(here + C::kTold + i, 1);
  }
  for (uint32_t i = 0; i < C::kVSlots; ++i)
    barrier_init(here + C::kVFull + 8 * i, 1), barrier_init(here + C::kVFree + 8 * i, 2);
  for (uint32_t i = 0; i < C::kQStages; ++i)
    barrier_init(here + C::kQFull + 8 * i, 1), barrier_init(here + C::kQFree + 8 * i, 8 * C::kCtas);
  for (uint32_t i = 0; i < C::kDoStages; ++i)
    barrier_init(here + C::kDoFull + 8 * i, 1), barrier_init(here + C::kDoFree + 8 * i, 8 * C::kCtas);
  barrier_init_done();
}

template <class C>
FW_DEVICE void backward(const GpuArguments& args, const TensorMaps& maps) {
  const uint32_t rank = C::kPair ? cluster_rank() : 0, here = C::here(rank);
  check_shared_base(here);
  const int warpgroup = from_lane(thread_index() / kWarpgroup, 0);
  if (thread_index() == 0) start_barriers<C>(here);
  let_next_start();
  wait_for_kernel_before();
  if constexpr (C::kPair) {
    cluster_barrier();
  } else {
    workgroup_barrier();
  }
  if (warpgroup == 0) {
    give_registers<C::kCopyRegisters>();
    BackwardProducer<C> producer(args, maps, rank);
    const bool in_order = args.schedule.in_order != 0;
    if (wave_index() == 0) producer.run();
    if (wave_index() == 1) producer.hand_out(reinterpret_cast<uint32_t*>(args.shared), in_order);
    if constexpr (C::kPair) {
      if (wave_index() == 2) producer.send();
    } else if constexpr (!C::kAlone) {
      if (wave_index() == 2) producer.let_add(in_order);
    }
    if (!C::kAlone && wave_index() == 3) producer.tell(in_order);
  } else if (warpgroup == 3) {
    give_registers<C::kDqRegisters>();
    QueryGradients<C>(args, rank).run();
  } else {
    take_registers<C::kKeyRegisters>();
    if constexpr (C::kWide) {
      for_each_tile<C>(WideKeys<C>(args.params, warpgroup - 1, rank));
    } else {
      for_each_tile<C>(NarrowKeys<C>(args.params, warpgroup - 1, rank));
    }
  }
  // Shared memory that the other CTA may still write must stay.
  if constexpr (C::kPair) {
    wave_barrier();
    cluster_barrier();
  }
}

}  // namespace flashwave

// tile_k: keys of a workgroup, or of a pair of them.
#define FW_HOPPER_BACKWARD(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, \
                           lds_bytes, features, needs, work)                                                  \
  FW_HOPPER_##op(name, dtypes, dim_qk, seqlen_k, tile_q, tile_k, threads, lds_bytes, features, work)
#define FW_HOPPER_kBackward(name, dtypes, dim, seqlen_k, tile_q, tile_k, threads, lds_bytes, features, work)           \
  extern "C" __global__ void FW_HOPPER_##work __launch_bounds__(threads, 1)                                            \
      name(const __grid_constant__ flashwave::GpuArguments args, const __grid_constant__ flashwave::TensorMaps maps) { \
    using namespace flashwave;                                                                                         \
    constexpr int kCtas = Work::work == Work::kKeyPairs ? 2 : 1;                                                       \
    using Config = BackwardConfig<ElementOf<(dtypes)>::Type, dim, tile_q, (tile_k) / kCtas, kCtas,                     \
                                  scores_of(features), ((seqlen_k) > 0)>;                                              \
    static_assert(Config::kSharedBytes == lds_bytes && Config::kThreads == threads);                                   \
    backward<Config>(args, maps);                                                                                      \
  }
#define FW_HOPPER_kKeyTiles
#define FW_HOPPER_kKeyPairs __cluster_dims__(2, 1, 1)
#define FW_HOPPER_kPrepare(name, dtypes, dim, seqlen_k, tile_q, tile_k, threads, lds_bytes, features, work)          \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ flashwave::GpuArguments args) { \
    using namespace flashwave;                                                                                       \
    using Frame = BackwardFrame<ElementOf<(dtypes)>::Type, dim, tile_q>;                                             \
    static_assert(Frame::kThreads == threads);                                                                       \
    Frame::prepare(args);                                                                                            \
  }
#define FW_HOPPER_kFinish(name, dtypes, dim, seqlen_k, tile_q, tile_k, threads, lds_bytes, features, work)           \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ flashwave::GpuArguments args) { \
    using namespace flashwave;                                                                                       \
    BackwardFrame<ElementOf<(dtypes)>::Type, dim, tile_q>::finish<(tile_q) == 128>(args);                            \
  }
#define FW_HOPPER_kSums(name, dtypes, dim, seqlen_k, tile_q, tile_k, threads, lds_bytes, features, work)             \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ flashwave::GpuArguments args) { \
    flashwave::BackwardFrame<flashwave::BF16, dim, tile_q>::sinks(args);                                             \
  }
#define FW_NVIDIA_KERNEL(source, ...) FW_IN_PART(source, FW_HOPPER_BACKWARD)(__VA_ARGS__)

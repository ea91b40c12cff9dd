// A whole head in one workgroup, for short sequences: lse and delta, dK and dV (bwd.h), dQ (bwd_dq.h), one after the
// other. One launch, no sums in memory, the same bits in every run. Seven products in place of five, but nothing is
// prepared or finished by other launches, which is most of the time of such calls.
#pragma once

#include "kernels/abi/head_backward.h"
#include "kernels/amd/bwd_prepare.h"
#include "kernels/cdna/bwd.h"
#include "kernels/cdna/bwd_dq.h"

namespace flashwave {

template <class Element>
struct StorageOf {
  using Type = BFloat16;
};
template <>
struct StorageOf<F16> {
  using Type = _Float16;
};

// K, Q: what the kernels of dK and dV, and of dQ, are made from.
template <class K, class Q>
FW_DEVICE void backward_head(const GpuArguments& args, const Sequence& seq, int batch, int head, uint32_t lds) {
  static_assert(abi::kHeadBlock == kQueryTile && K::kThreads == kPrepareThreads && Q::kThreads == kPrepareThreads);
  const Params& p = args.params;
  const int queries = int(seq.queries);
  Block block(args, 0);
  block.batch = batch, block.head = head;
  // A sequence without queries has a block that its keys may read.
  for (block.block = 0; block.block == 0 || block.first_row() < queries; ++block.block) {
    prepare_block<typename StorageOf<typename K::Element>::Type>(args.params, block, seq, false);
  }
  workgroup_barrier_with_memory();
  const int stored = uniform(stored_rows(p, batch)), padding = uniform(left_pad(p, batch));
  FW_NO_UNROLL for (int first = 0; first < stored; first += K::kTileK) {
    const int rows = stored - first < K::kTileK ? stored - first : K::kTileK;
    Backward<K>(p, seq, head, first - padding).run(args, lds, rows, 0);
    workgroup_barrier();  // the last reads of LDS, before others are written there
  }
  if (!p.dq.data) return;
  FW_NO_UNROLL for (int first = 0; first < queries; first += Q::kTileQ) {
    BackwardDq<Q>(p, seq, head, first).run(args, lds, first);
    workgroup_barrier();
  }
}

}  // namespace flashwave

// The warps that draw dropout's random numbers for the key warpgroups of a CTA. They have no scores to wait for, and
// the key warpgroups' own instructions are what limits these kernels.
#pragma once

#include "kernels/hopper/bwd_modify.h"
#include "kernels/hopper/bwd_producer.h"

namespace flashwave {

// draw: which of the kDrawWarps warps this is. They take turns at the 8 warps of the key warpgroups, whose words they
// make as those would.
template <class C>
FW_DEVICE void draw_bits(const Params& p, int draw) {
  const int lane = lane_index(), group = p.heads_q / p.heads_k;
  uint32_t count = 0;
  int warp = draw;  // the next, of the block at hand
  for (uint32_t n = 0;; ++n) {
    const uint32_t task_at = wait_backward_task<C>(0, n);
    const BackwardTask task = load_backward_task(task_at);
    if (uniform(task.key) < 0) break;
    const int first = uniform(task.first_query_block), end = first + uniform(task.blocks);
    if (p.dropout_threshold) {
      FW_NO_UNROLL for (int g = 0; g < group; ++g) {
        FW_NO_UNROLL for (int block = first; block < end; ++block, ++count, warp -= 8) {
          const uint32_t slot = count & 1;
          FW_NO_UNROLL for (; warp < 8; warp += C::kDrawWarps) {
            const uint32_t bits =
                Modified<C, C::kTileQ / 2>::draw(p, task, task.head * group + g, block * C::kTileQ,
                                                 C::first_key(task.key, 0, warp / 4), warp % 4 * 32 + lane);
            barrier_wait(C::kBitsFree + 8 * slot, (count >> 1 & 1) ^ 1);
            store_shared(C::kBits + slot * C::kBitsBytes + warp * 128 + lane * 4, bits);
            __syncwarp();
            if (lane == 0) barrier_arrive(C::kBitsFull + 8 * slot);
          }
        }
      }
    }
    release_backward_task<C>(n);
  }
}

}  // namespace flashwave

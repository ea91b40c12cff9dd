// A block of queries of one head in the memory that the kernels of a backward share (kernels/abi/backward_blocks.h).
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/abi/score_gradients.h"
#include "kernels/amd/bwd_numbers.h"

namespace flashwave {

struct Block {
  const GpuArguments& args;
  const int tile_q;
  int32_t block, head, batch;

  // From the number of its task: blocks vary fastest, then heads.
  FW_METHOD Block(const GpuArguments& arguments, int64_t task)
      : args(arguments), tile_q(arguments.schedule.rows_per_task) {
    const int64_t blocks = args.params.seqlen_q > 0 ? (args.params.seqlen_q + tile_q - 1) / tile_q : 1;
    block = int32_t(task % blocks), head = int32_t(task / blocks % args.params.heads_q);
    batch = int32_t(task / blocks / args.params.heads_q);
  }
  FW_METHOD int first_row() const { return block * tile_q; }
  FW_METHOD char* data() const {
    const int64_t number = abi::backward_first_block(args.params, batch, tile_q) + block;
    return args.shared + abi::kBackwardHeaderBytes +
           (number * args.params.heads_q + head) * abi::backward_block_bytes(tile_q, args.schedule.dq_columns);
  }
  FW_METHOD float* lse() const { return reinterpret_cast<float*>(data()); }
  FW_METHOD float* delta() const { return reinterpret_cast<float*>(data() + abi::backward_delta_at(tile_q)); }
  FW_METHOD float* dq() const { return reinterpret_cast<float*>(data() + abi::backward_dq_at(tile_q)); }
};

// The parts of d_slopes of one head, one for each tile of queries (kernels/abi/score_gradients.h).
FW_DEVICE float* slope_parts_of(const GpuArguments& args, int32_t batch, int32_t head) {
  const Params& p = args.params;
  char* const end = args.shared + args.schedule.workspace_bytes;
  return reinterpret_cast<float*>(end) - abi::slope_parts(p) +
         (int64_t{batch} * p.heads_q + head) * abi::score_tiles(p.seqlen_q);
}

}  // namespace flashwave

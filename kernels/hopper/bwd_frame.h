// The passes before and after the main kernel of a backward (bwd.h), one workgroup for each block of queries of a head.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/common/key_tiles.h"
#include "kernels/common/score.h"
#include "kernels/common/sequence.h"
#include "kernels/hopper/isa.h"

namespace flashwave {

// A block of queries, from the number of its task: blocks vary fastest, then heads.
struct FrameTask {
  int32_t block, head, batch;
  FW_METHOD FrameTask(const Params& p, int64_t task, int tile_q) {
    const int64_t blocks = max((p.seqlen_q + tile_q - 1) / tile_q, 1);
    block = int32_t(task % blocks), head = int32_t(task / blocks % p.heads_q);
    batch = int32_t(task / blocks / p.heads_q);
  }
};

template <class Element, int kDim, int kTileQ>
struct BackwardFrame {
  static constexpr int kThreads = 256;
  static constexpr int64_t kBlockBytes = abi::backward_block_bytes(kTileQ, kDim);

  FW_METHOD static char* block_of(const GpuArguments& args, const FrameTask& task) {
    const int64_t block = abi::backward_first_block(args.params, task.batch, kTileQ) + task.block;
    return args.shared + abi::kBackwardHeaderBytes + (block * args.params.heads_q + task.head) * kBlockBytes;
  }

  // lse and delta of each row, sums of 0 where the first tile does not store its own, and dQ of queries that see no
  // key. A sequence without queries has a block that the tiles of its keys may read. The sums come first: nothing is
  // waited for in between.
  FW_METHOD static void prepare(const GpuArguments& args) {
    const Params& p = args.params;
    let_next_start();
    wait_for_kernel_before();
    if (task_index() >= args.schedule.tasks) return;
    if (task_index() == 0 && thread_index() == 0) *reinterpret_cast<uint32_t*>(args.shared) = 0;  // tiles taken
    const FrameTask task(p, task_index(), kTileQ);
    const Sequence seq = sequence_of(p, task.batch);
    const int first = task.block * kTileQ;
    if (task.block > 0 && first >= seq.queries) return;
    char* const block = block_of(args, task);
    if (args.schedule.dq_columns > 0) {
      float4* const dq = reinterpret_cast<float4*>(block + abi::backward_dq_at(kTileQ)) + thread_index();
      FW_UNROLL for (int i = 0; i < kTileQ * kDim / 4 / kThreads; ++i) dq[i * kThreads] = make_float4(0, 0, 0, 0);
    }
    constexpr int kLanes = kDim / 8, kRows = kThreads / kLanes;  // lanes of a row, rows at a time
    const int column = thread_index() % kLanes * 8;
    const bool unseen = no_key_seen(p, seq, first);
    FW_UNROLL for (int i = 0; i < kTileQ / kRows; ++i) {
      const int in_block = i * kRows + thread_index() / kLanes, row = first + in_block;
      float sum = 0.f;
      if (row < seq.queries && column < p.dim_v) {
        const uint4 d_o = eight(p.d_o, seq, row, task.head, column);
        const uint32_t b[] = {d_o.x, d_o.y, d_o.z, d_o.w};
        if (p.o.dtype == abi::kF32) {
          const float* const a = static_cast<const float*>(p.o.data) + query_offset(p.o, seq, row, task.head) + column;
          FW_UNROLL for (int j = 0; j < 4; ++j) sum +=
              a[2 * j] * Element::low(b[j]) + a[2 * j + 1] * Element::high(b[j]);
        } else {
          const uint4 o = eight(p.o, seq, row, task.head, column);
          const uint32_t a[] = {o.x, o.y, o.z, o.w};
          FW_UNROLL for (int j = 0; j < 4; ++j) sum +=
              Element::low(a[j]) * Element::low(b[j]) + Element::high(a[j]) * Element::high(b[j]);
        }
      }
      if (unseen && p.dq.data && row < seq.queries && column < p.dim_qk)
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.dq.data) + query_offset(p.dq, seq, row, task.head) +
                                  column) = make_uint4(0, 0, 0, 0);
      FW_UNROLL for (int apart = 1; apart < kLanes; apart *= 2) sum += exchange(sum, apart);
      if (thread_index() % kLanes != 0) continue;
      float lse = -kInf;
      if (row < seq.queries) {
        lse = static_cast<const float*>(p.lse.data)[query_offset(p.lse, seq, row, task.head)];
        if (p.d_lse.data) sum -= static_cast<const float*>(p.d_lse.data)[query_offset(p.d_lse, seq, row, task.head)];
      }
      float* const numbers = reinterpret_cast<float*>(block) + abi::backward_row_place(in_block);
      numbers[0] = lse == -kInf ? kInf : in_log2(lse);
      numbers[kTileQ] = row < seq.queries ? sum : 0.f;
    }
    if (thread_index() == 0) *reinterpret_cast<int2*>(block + abi::backward_turn_at(kTileQ)) = make_int2(0, 0);
  }

  // The gradient of a head's sink: each row gives it - e^(sink - lse) delta. A task is a head; the same order of sums
  // in every run.
  FW_METHOD static void sinks(const GpuArguments& args) {
    const Params& p = args.params;
    if (task_index() >= args.schedule.tasks) return;
    FrameTask task(p, 0, kTileQ);
    task.head = int32_t(task_index());
    const float sink = p.sinks[task.head] * kLog2e;
    float sum = 0.f;
    for (task.batch = 0; task.batch < p.batch; ++task.batch) {
      const int rows = int(sequence_of(p, task.batch).queries);
      task.block = 0;
      const char* const first = block_of(args, task);
      for (int row = thread_index(); row < (rows + kTileQ - 1) / kTileQ * kTileQ; row += kThreads) {
        const float* const numbers =
            reinterpret_cast<const float*>(first + int64_t{row / kTileQ} * p.heads_q * kBlockBytes) + row % kTileQ;
        sum -= exp2_fast(sink - numbers[0]) * numbers[kTileQ];
      }
    }
    __shared__ float sums[kThreads / kWave];
    sum = wave_reduce(sum, [](float a, float b) { return a + b; });
    if (lane_index() == 0) sums[wave_index()] = sum;
    workgroup_barrier();
    if (thread_index() != 0) return;
    for (int wave = 1; wave < kThreads / kWave; ++wave) sum += sums[wave];
    p.d_sinks[task.head] = sum;
  }

  // dQ in rows from the order of the registers, scaled. kTransposed: the main kernel forms dQ^T. The last blocks go
  // first: the L2 cache still has their sums.
  template <bool kTransposed>
  FW_METHOD static void finish(const GpuArguments& args) {
    __shared__ __align__(16) uint16_t tile[kTileQ][kDim + 8];
    const Params& p = args.params;
    wait_for_kernel_before();
    if (task_index() >= args.schedule.tasks) return;
    const FrameTask task(p, args.schedule.tasks - 1 - task_index(), kTileQ);
    const Sequence seq = sequence_of(p, task.batch);
    const int first = task.block * kTileQ;
    if (first >= seq.queries || no_key_seen(p, seq, first)) return;
    const float scale = p.softmax_scale;
    // A warpgroup's order: 512 floats hold 8 columns of 64 rows, four to a thread (wgmma.h).
    const int thread = thread_index() % kWarpgroup, half = thread_index() / kWarpgroup;
    const float4* const sums =
        reinterpret_cast<const float4*>(block_of(args, task) + abi::backward_dq_at(kTileQ)) + thread;
    FW_UNROLL for (int i = 0; i < kTileQ * kDim / 512; i += 2) {
      const float4 x = sums[(i + half) * kWarpgroup];
      const int row = thread / 32 * 16 + thread % 32 / 4, column = (i + half) * 8 + thread % 4 * 2;
      const uint32_t upper = Element::pack(x.x * scale, x.y * scale), lower = Element::pack(x.z * scale, x.w * scale);
      if constexpr (kTransposed) {
        tile[column][row] = uint16_t(upper), tile[column + 1][row] = uint16_t(upper >> 16);
        tile[column][row + 8] = uint16_t(lower), tile[column + 1][row + 8] = uint16_t(lower >> 16);
      } else {
        *reinterpret_cast<uint32_t*>(&tile[row][column]) = upper;
        *reinterpret_cast<uint32_t*>(&tile[row + 8][column]) = lower;
      }
    }
    workgroup_barrier();
    for (int i = thread_index(); i < kTileQ * kDim / 8; i += kThreads) {
      const int row = i / (kDim / 8), column = i % (kDim / 8) * 8;
      if (first + row >= seq.queries || column >= p.dim_qk) continue;
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.dq.data) + query_offset(p.dq, seq, first + row, task.head) +
                                column) = *reinterpret_cast<const uint4*>(&tile[row][column]);
    }
  }

 private:
  // By the queries of the block from `first` on, of which no tile of keys takes notice then.
  FW_METHOD static bool no_key_seen(const Params& p, const Sequence& seq, int first) {
    return key_tiles(edges_of(p, seq), int32_t(seq.keys), first, first + kTileQ, kTileQ).end == 0;
  }
  FW_METHOD static uint4 eight(const abi::Tensor& t, const Sequence& seq, int row, int head, int column) {
    return *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(t.data) + query_offset(t, seq, row, head) +
                                           column);
  }
};

}  // namespace flashwave

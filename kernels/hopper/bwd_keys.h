// What the two kinds of key warpgroups (bwd.h, bwd_wide.h) share: which queries see their keys, and storing dK and dV.
#pragma once

#include "kernels/hopper/bwd_producer.h"

namespace flashwave {

// Scores of keys that a query does not see become -inf. In s[4 j + 2 i + e] a thread has key first + thread / 32 * 16 +
// thread % 32 / 4 + 8 i and query `query` + thread % 4 * 2 + 8 j + e. The task is read where it lies: registers are
// scarce.
template <int N>
FW_DEVICE void mask_unseen(float (&s)[N], uint32_t task_at, int first, int query, int thread) {
  const BackwardTask t = load_backward_task(task_at);
  const int key = first + thread / 32 * 16 + thread % 32 / 4, column = query + thread % 4 * 2;
  const int least0 = key >= t.keys ? kFarEdge : key - t.right_edge - column;
  const int least1 = key + 8 >= t.keys ? kFarEdge : key + 8 - t.right_edge - column;
  FW_UNROLL for (int j = 0; j < N / 4; ++j) {
    FW_UNROLL for (int e = 0; e < 2; ++e) {
      if (8 * j + e < least0) s[4 * j + e] = -kInf;
      if (8 * j + e < least1) s[4 * j + 2 + e] = -kInf;
    }
  }
  if (t.left_edge == -kFarEdge) return;
  const int most0 = key - t.left_edge - column, most1 = most0 + 8;
  FW_UNROLL for (int j = 0; j < N / 4; ++j) {
    FW_UNROLL for (int e = 0; e < 2; ++e) {
      if (8 * j + e > most0) s[4 * j + e] = -kInf;
      if (8 * j + e > most1) s[4 * j + 2 + e] = -kInf;
    }
  }
}

// The first block of which some query sees keys from `first` on.
template <class C>
FW_DEVICE int first_seeing(uint32_t task_at, int first) {
  return uniform(max(first - load_backward_task(task_at).right_edge, 0) / C::kTileQ);
}

// The blocks of queries of a task as one key warpgroup goes through them, head by head of the group. Their range is
// read again at every step, since dims 128 and 256 have no registers for it; dim 64 has, and no time.
template <class C>
struct BlockWalk {
  static constexpr bool kKept = C::kTransposedDq && !C::kPair;
  const uint32_t range_at;
  BlockRange kept;
  int block, left, head;
  bool masked;  // some query of the block does not see some key

  FW_METHOD BlockWalk(const Params& p, uint32_t task_at, int w) : range_at(task_at + 48 + 16 * w) {
    const BackwardTask task = load_backward_task(task_at);
    left = uniform(task.blocks) * (p.heads_q / p.heads_k);
    head = uniform(task.head) * (p.heads_q / p.heads_k);
    block = uniform(task.first_query_block) - 1;
    if constexpr (kKept) {
      const BlockRange range = load();
      kept = {uniform(range.all_first), uniform(range.all_last), uniform(range.first), uniform(range.end)};
    }
    step();
  }
  FW_METHOD void step() {
    const BlockRange range = kKept ? kept : load();
    if (++block == range.end) block = range.first, ++head;
    masked = block < range.all_first || block > range.all_last;
  }

 private:
  FW_METHOD BlockRange load() const {
    const int4 x = load_shared4(range_at);
    return {x.x, x.y, x.z, x.w};
  }
};

// Columns `column` .. `column` + N - 1 of dK or dV of 64 keys from `first` on, straight from registers: the four lanes
// that share a row exchange their columns for 8 in a row each.
template <class C, int N>
FW_DEVICE void store_keys(const Params& p, const abi::Tensor& t, int dim, const BackwardTask& task, int first,
                          int column, const float (&d)[N / 2], float factor, int thread) {
  if (!t.data) return;
  const Sequence seq = sequence_of(p, task.batch);
  const int row = first + thread / 32 * 16 + thread % 32 / 4, place = thread % 4;
  uint16_t* const rows = static_cast<uint16_t*>(t.data) + key_offset(p, t, seq, row, task.head) + column + 8 * place;
  FW_UNROLL for (int k = 0; k < N / 32; ++k) {
    FW_UNROLL for (int i = 0; i < 2; ++i) {
      uint32_t x[4];
      FW_UNROLL for (int j = 0; j < 4; ++j) x[j] =
          C::Element::pack(d[16 * k + 4 * j + 2 * i] * factor, d[16 * k + 4 * j + 2 * i + 1] * factor);
      transpose_quad(x, place);
      if (row + 8 * i < task.rows && column + 32 * k + 8 * place < dim)
        *reinterpret_cast<uint4*>(rows + 8 * i * t.stride[1] + 32 * k) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
}

// Zeros for the rows first .. end - 1, which may be negative: those of the left pad.
FW_DEVICE void store_zeros(const Params& p, const abi::Tensor& t, int dim, const BackwardTask& task, int first, int end,
                           int thread) {
  if (!t.data) return;
  const Sequence seq = sequence_of(p, task.batch);
  const int units = dim / 8;
  for (int i = thread; i < (end - first) * units; i += kWarpgroup) {
    const int row = first + i / units;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(t.data) + key_offset(p, t, seq, row, task.head) + i % units * 8) =
        make_uint4(0, 0, 0, 0);
  }
}

// dK and dV of rows that no query sees: those of a task without queries (64 rows from `first` on), and the left pad,
// which comes with the first tile.
template <class C>
FW_DEVICE void store_unseen(const Params& p, const BackwardTask& task, int first, bool pads, int thread) {
  if (task.blocks == 0) {
    const int end = min(first + 64, task.rows);
    store_zeros(p, p.dk, p.dim_qk, task, first, end, thread);
    store_zeros(p, p.dv, p.dim_v, task, first, end, thread);
  }
  if (pads && p.leftpad_k) {
    const int pad = left_pad(p, task.batch);
    store_zeros(p, p.dk, p.dim_qk, task, -pad, min(0, task.rows), thread);
    store_zeros(p, p.dv, p.dim_v, task, -pad, min(0, task.rows), thread);
  }
}

}  // namespace flashwave

// Which block of queries of which head and sequence a workgroup gets.
#pragma once

#include "kernels/cdna/isa.h"

namespace flashwave {

struct ForwardTask {
  int32_t block, head, batch;
};

// Workgroups go to the accelerator dies (XCDs) in turn, and each die has its own L2 cache: a die gets a contiguous part
// of the tasks, and in it as few heads at a time as keep its compute units busy twice over, so that the blocks of a
// head share K and V in the cache.
struct TaskPlace {
  uint32_t step, column;  // column: a pair of head and sequence
};
FW_DEVICE TaskPlace task_place(uint32_t index, uint32_t tasks, uint32_t blocks, uint32_t columns) {
  uint32_t at = index;
  if constexpr (kXcds > 1) {
    const uint32_t xcd = index % kXcds, rest = tasks % kXcds;
    at = xcd * (tasks / kXcds) + (xcd < rest ? xcd : rest) + index / kXcds;
  }
  const int powers = 31 - __builtin_clz(blocks), most = 31 - __builtin_clz(2 * kUnitsPerXcd);
  const uint32_t together = powers < most ? 1u << (most - powers) : 1;  // no division: those go through the vector unit
  const uint32_t group = at / (together * blocks), in_group = at - group * together * blocks;
  const uint32_t first = group * together;
  const uint32_t width = columns - first < together ? columns - first : together;
  const uint32_t step = in_group / width;
  return {step, first + in_group - step * width};
}

// Of the heads that are gone through together, the last blocks go first: with a causal mask they are the longest.
FW_DEVICE ForwardTask forward_task(const Params& p, uint32_t index, uint32_t tasks, int tile_q) {
  const uint32_t blocks = (uint32_t(p.seqlen_q) + tile_q - 1) / tile_q;
  const TaskPlace at = task_place(index, tasks, blocks, uint32_t(p.heads_q) * uint32_t(p.batch));
  const uint32_t batch = at.column / uint32_t(p.heads_q);
  return {int32_t(blocks - 1 - at.step), int32_t(at.column - batch * p.heads_q), int32_t(batch)};
}

// The first tiles of keys, which most queries see where there is a mask, go first. tiles: of a head, that workgroups
// begin with.
struct KeyTask {
  int32_t tile, head, batch;
};
FW_DEVICE KeyTask key_task(const Params& p, uint32_t index, uint32_t tasks, uint32_t tiles) {
  const TaskPlace at = task_place(index, tasks, tiles, uint32_t(p.heads_k) * uint32_t(p.batch));
  const uint32_t batch = at.column / uint32_t(p.heads_k);
  return {int32_t(at.step), int32_t(at.column - batch * p.heads_k), int32_t(batch)};
}

}  // namespace flashwave

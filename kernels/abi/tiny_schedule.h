// How the streaming kernels for a few keys (kernels/amd/tiny.hip) cut up their work: a stream is up to kTinyQueries
// queries of one sequence against one key head, and a workgroup has as many streams as its row's tile_q says.
#pragma once

#include <cstdint>

#include "kernels/abi/params.h"

namespace flashwave::abi {

inline constexpr int64_t kTinyQueries = 16;

constexpr int64_t tiny_blocks(int64_t seqlen_q) { return (seqlen_q + kTinyQueries - 1) / kTinyQueries; }
constexpr int64_t tiny_tasks(int64_t batch, int64_t seqlen_q, int64_t heads_k, int64_t streams_per_task) {
  return (batch * tiny_blocks(seqlen_q) * heads_k + streams_per_task - 1) / streams_per_task;
}

}  // namespace flashwave::abi

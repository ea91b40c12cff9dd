// The passes before and after the main kernel of a backward (bwd.h), one workgroup for each block of queries of a head,
// whose size and number of columns the schedule says (kernels/abi/backward_blocks.h). They move bytes and compute next
// to nothing.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/ampere/tile.h"
#include "kernels/common/score.h"

namespace flashwave {

inline constexpr int kFrameThreads = 256;

// A block of queries of one head, from the number of its task: blocks vary fastest, then heads.
struct FrameBlock {
  const GpuArguments& args;
  const Params& p;
  const int tile_q, columns;
  int32_t block, head, batch;

  FW_METHOD FrameBlock(const GpuArguments& arguments, int64_t task)
      : args(arguments),
        p(arguments.params),
        tile_q(arguments.schedule.rows_per_task),
        columns(arguments.schedule.dq_columns) {
    const int64_t blocks = p.seqlen_q > 0 ? (p.seqlen_q + tile_q - 1) / tile_q : 1;
    block = int32_t(task % blocks), head = int32_t(task / blocks % p.heads_q);
    batch = int32_t(task / blocks / p.heads_q);
  }
  FW_METHOD int first_row() const { return block * tile_q; }
  FW_METHOD char* data() const {
    const int64_t number = abi::backward_first_block(p, batch, tile_q) + block;
    return args.shared + abi::kBackwardHeaderBytes +
           (number * p.heads_q + head) * abi::backward_block_bytes(tile_q, columns);
  }
  FW_METHOD float* lse() const { return reinterpret_cast<float*>(data()); }
  FW_METHOD float* delta() const { return reinterpret_cast<float*>(data() + abi::backward_delta_at(tile_q)); }
  FW_METHOD int* turn() const { return reinterpret_cast<int*>(data() + abi::backward_turn_at(tile_q)); }
  FW_METHOD float* dq() const { return reinterpret_cast<float*>(data() + abi::backward_dq_at(tile_q)); }
};

FW_DEVICE float element_at(const abi::Tensor& t, int64_t at) {
  if (t.dtype == abi::kF32) return static_cast<const float*>(t.data)[at];
  const uint16_t x = static_cast<const uint16_t*>(t.data)[at];
  return t.dtype == abi::kF16 ? float_of_half(x) : float_of(uint32_t{x} << 16);
}
// Eight at a multiple of 16 bytes.
FW_DEVICE void eight_at(const abi::Tensor& t, int64_t at, float (&x)[8]) {
  if (t.dtype == abi::kF32) {
    const float4* const from = reinterpret_cast<const float4*>(static_cast<const float*>(t.data) + at);
    const float4 a = from[0], b = from[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    return;
  }
  const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(t.data) + at);
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  FW_UNROLL for (int i = 0; i < 8; ++i) {
    const uint32_t half = word[i / 2] >> i % 2 * 16 & 0xFFFFu;
    x[i] = t.dtype == abi::kF16 ? float_of_half(uint16_t(half)) : float_of(half << 16);
  }
}

// lse and delta of each row, and sums of 0. A row that is not there sees no key. A sequence without queries has a block
// that the tiles of its keys may read.
FW_DEVICE void prepare(const GpuArguments& args) {
  constexpr int kLanes = 8, kRows = kFrameThreads / kLanes;  // of a row, at a time
  const Params& p = args.params;
  const FrameBlock block(args, task_index());
  const Sequence seq = sequence_of(p, block.batch);
  if (task_index() == 0 && thread_index() < abi::kBackwardHeaderBytes / 4)
    reinterpret_cast<uint32_t*>(args.shared)[thread_index()] = 0;
  if (block.block > 0 && block.first_row() >= seq.queries) return;
  const bool vectors = has_vectors(p.o, p.dim_v) && has_vectors(p.d_o, p.dim_v);
  const int lane = thread_index() % kLanes;
  for (int in_block = thread_index() / kLanes; in_block < block.tile_q; in_block += kRows) {
    const int row = block.first_row() + in_block;
    const bool exists = row < seq.queries;
    float sum = 0.f;
    if (exists) {
      const int64_t o = query_offset(p.o, seq, row, block.head), d_o = query_offset(p.d_o, seq, row, block.head);
      if (vectors) {
        for (int column = lane * 8; column < p.dim_v; column += kLanes * 8) {
          float a[8], b[8];
          eight_at(p.o, o + column, a);
          eight_at(p.d_o, d_o + column, b);
          FW_UNROLL for (int i = 0; i < 8; ++i) sum = multiply_add(a[i], b[i], sum);
        }
      } else {
        for (int column = lane; column < p.dim_v; column += kLanes)
          sum = multiply_add(element_at(p.o, o + column), element_at(p.d_o, d_o + column), sum);
      }
    }
    FW_UNROLL for (int apart = 1; apart < kLanes; apart *= 2) sum += exchange(sum, apart);
    if (lane != 0) continue;
    float lse = -kInf;
    if (exists) {
      lse = static_cast<const float*>(p.lse.data)[query_offset(p.lse, seq, row, block.head)];
      if (p.d_lse.data) sum -= static_cast<const float*>(p.d_lse.data)[query_offset(p.d_lse, seq, row, block.head)];
    }
    block.lse()[in_block] = lse == -kInf ? kInf : in_log2(lse);
    block.delta()[in_block] = exists ? sum : 0.f;
  }
  if (thread_index() == 0) *block.turn() = 0;
  float4* const dq = reinterpret_cast<float4*>(block.dq());
  for (int i = thread_index(); i < block.tile_q * block.columns / 4; i += kFrameThreads)
    dq[i] = make_float4(0, 0, 0, 0);
}

// The sums of dQ from the order of accumulators, scaled and rounded. A thread has 8 columns of a row.
FW_DEVICE void finish(const GpuArguments& args) {
  const Params& p = args.params;
  const FrameBlock block(args, task_index());
  const Sequence seq = sequence_of(p, block.batch);
  const bool vectors = has_vectors(p.dq, p.dim_qk);
  const int across = block.columns / 8;
  for (int i = thread_index(); i < block.tile_q * across; i += kFrameThreads) {
    const int g = i % 8, matrix = i / 8 % across, half = i / (8 * across);  // half: of a matrix of 16 rows
    const int row = block.first_row() + half * 8 + g, column = matrix * 8;
    if (row >= seq.queries || column >= p.dim_qk) continue;
    const float4* const sums = reinterpret_cast<const float4*>(block.dq()) +
                               ((half / 2 * across + matrix) * 4 + half % 2 * 2) * (kWave / 4) + g;
    const float4 even = sums[0], odd = sums[kWave / 4];
    const float x[8] = {even.x, odd.x, even.y, odd.y, even.z, odd.z, even.w, odd.w};
    const int64_t at = query_offset(p.dq, seq, row, block.head) + column;
    if (p.dq.dtype == abi::kF32) {
      FW_UNROLL for (int e = 0; e < 8; ++e) {
        if (column + e < p.dim_qk) static_cast<float*>(p.dq.data)[at + e] = x[e] * p.softmax_scale;
      }
      continue;
    }
    uint16_t* const to = static_cast<uint16_t*>(p.dq.data) + at;
    uint32_t words[4] = {};
    FW_UNROLL for (int e = 0; e < 8; ++e) {
      const float y = x[e] * p.softmax_scale;
      words[e / 2] |= uint32_t{p.dq.dtype == abi::kF16 ? half_of_float(y) : from_float<BFloat16>(y).bits} << e % 2 * 16;
    }
    if (vectors) {
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      FW_UNROLL for (int e = 0; e < 8; ++e) {
        if (column + e < p.dim_qk) to[e] = uint16_t(words[e / 2] >> e % 2 * 16);
      }
    }
  }
}

// The gradients of a head's sink and slope. A task is a head; the same order of sums in every run. Sink: each row gives
// it - e^(sink - lse) delta.
FW_DEVICE float sink_gradient(const GpuArguments& args, int head) {
  const Params& p = args.params;
  FrameBlock block(args, 0);
  block.head = head;
  const float sink = p.sinks[head] * kLog2e;
  float sum = 0.f;
  for (block.batch = 0; block.batch < p.batch; ++block.batch) {
    const int rows = int(sequence_of(p, block.batch).queries);
    for (int row = thread_index(); row < rows; row += kFrameThreads) {
      block.block = row / block.tile_q;
      const int place = row - block.first_row();
      sum -= exp2_fast(sink - block.lse()[place]) * block.delta()[place];
    }
  }
  return sum;
}
FW_DEVICE float slope_gradient_of(const GpuArguments& args, int head, int batch) {
  const Params& p = args.params;
  const int64_t tile_k = args.schedule.keys_per_split;
  const int64_t count = (p.seqlen_k + tile_k - 1) / tile_k * abi::kSlopeParts;
  const float* const parts = reinterpret_cast<const float*>(args.shared + args.schedule.workspace_bytes) -
                             abi::backward_slope_floats(p, tile_k) + (int64_t{batch} * p.heads_q + head) * count;
  float sum = 0.f;
  for (int64_t i = thread_index(); i < count; i += kFrameThreads) sum += parts[i];
  return sum;
}
FW_DEVICE void store_sum(float* to, float sum) {
  __shared__ float sums[kFrameThreads / kWave];
  sum = wave_reduce(sum, [](float a, float b) { return a + b; });
  workgroup_barrier();
  if (lane_index() == 0) sums[wave_index()] = sum;
  workgroup_barrier();
  if (thread_index() != 0) return;
  for (int wave = 1; wave < kFrameThreads / kWave; ++wave) sum += sums[wave];
  *to = sum;
}
FW_DEVICE void sums(const GpuArguments& args) {
  const Params& p = args.params;
  const int head = int(task_index());
  if (p.d_sinks) store_sum(p.d_sinks + head, sink_gradient(args, head));
  if (!p.d_slopes) return;
  float sum = 0.f;
  for (int batch = 0; batch < p.batch; ++batch) {
    sum += slope_gradient_of(args, head, batch);
    if (!p.alibi_batch_stride) continue;
    store_sum(p.d_slopes + batch * p.alibi_batch_stride + head, sum);
    sum = 0.f;
  }
  if (!p.alibi_batch_stride) store_sum(p.d_slopes + head, sum);
}

}  // namespace flashwave

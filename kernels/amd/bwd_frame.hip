// The passes before and after the main kernel of a backward, for every family of GPUs: of blocks of queries whose size
// and number of columns the schedule says (kernels/abi/backward_blocks.h). They move bytes and compute next to nothing.
#include "kernels/amd/bwd_prepare.h"
#include "kernels/amd/gpu.h"
#include "kernels/common/score.h"

namespace flashwave {

inline constexpr int kThreads = kPrepareThreads;

// lse and delta of each row, and sums of 0. A sequence without queries has a block that the tiles of its keys may read.
template <class T>
FW_DEVICE void prepare(const GpuArguments& args) {
  const Block block(args, task_index());
  const Sequence seq = sequence_of(args.params, block.batch);
  if (block.block > 0 && block.first_row() >= seq.queries) return;
  prepare_block<T>(args.params, block, seq, uniform(int{args.schedule.lse_by_scale}) != 0);
  F32x4* const dq = reinterpret_cast<F32x4*>(block.dq());
  for (int i = thread_index(); i < block.tile_q * args.schedule.dq_columns / 4; i += kThreads) dq[i] = 0.f;
}

// The sums of dQ, scaled and rounded. Where their order is fixed there may be several, one behind the other.
template <class T>
FW_DEVICE void finish(const GpuArguments& args) {
  const Params& p = args.params;
  const Block block(args, task_index());
  const Sequence seq = sequence_of(p, block.batch);
  const int parts = args.schedule.splits, columns = int(uint32_t(args.schedule.dq_columns) / uint32_t(parts));
  const int groups = columns / 8;
  for (int i = thread_index(); i < block.tile_q * groups; i += kThreads) {
    const int in_block = i / groups, column = i % groups * 8;
    if (block.first_row() + in_block >= seq.queries || column >= p.dim_qk) continue;
    const F32x4* sums = reinterpret_cast<const F32x4*>(block.dq() + in_block * columns + column);
    F32x4 low = sums[0], high = sums[1];
    for (int part = 1; part < parts; ++part) {
      sums += block.tile_q * columns / 4;
      low += sums[0], high += sums[1];
    }
    low *= p.softmax_scale, high *= p.softmax_scale;
    Eight<T> x;
    FW_UNROLL for (int j = 0; j < 4; ++j) store(&x.x[j], low[j]), store(&x.x[4 + j], high[j]);
    const int64_t at = query_offset(p.dq, seq, block.first_row() + in_block, block.head) + column;
    *reinterpret_cast<Eight<T>*>(elements<T>(p.dq) + at) = x;
  }
}

// Over all threads, in thread 0; the same order in every run.
FW_DEVICE float workgroup_sum(float x) {
  FW_SHARED float sums[kThreads / kWave];
  x = wave_reduce(x, [](float a, float b) { return a + b; });
  workgroup_barrier();
  if (lane_index() == 0) sums[wave_index()] = x;
  workgroup_barrier();
  for (int wave = 1; wave < kThreads / kWave; ++wave) x += sums[wave];
  return x;
}
FW_DEVICE void write_sum(float* out, float x) {
  x = workgroup_sum(x);
  if (thread_index() == 0) *out = x;
}

// What the rows of a sequence give a head's sink: - e^(sink - lse) delta each.
FW_DEVICE float sink_gradient(const GpuArguments& args, Block& block) {
  const int64_t rows = sequence_of(args.params, block.batch).queries;
  const float sink = args.params.sinks[block.head] * kLog2e;
  float sum = 0.f;
  for (int row = thread_index(); row < rows; row += kThreads) {
    block.block = row / block.tile_q;
    const int place = row_place(row - block.first_row());
    const float lse = lse_of_number(args.params, block.lse()[place], args.schedule.lse_by_scale);
    sum -= exp2_fast(sink - lse) * delta_of_number(args.params, block.delta()[place]);
  }
  return sum;
}

// The gradients of a head's sink and ALiBi slope. A task is a head.
FW_DEVICE void sums(const GpuArguments& args) {
  const Params& p = args.params;
  Block block(args, 0);
  block.head = int32_t(task_index());
  float sink = 0.f, slope = 0.f;
  for (block.batch = 0; block.batch < p.batch; ++block.batch) {
    if (p.d_sinks) sink += sink_gradient(args, block);
    if (!p.d_slopes) continue;
    const float* const parts = slope_parts_of(args, block.batch, block.head);
    for (int i = thread_index(); i < abi::score_tiles(p.seqlen_q); i += kThreads) slope += parts[i];
    if (p.alibi_batch_stride) {
      write_sum(p.d_slopes + block.batch * p.alibi_batch_stride + block.head, slope);
      slope = 0.f;
    }
  }
  if (p.d_sinks) write_sum(p.d_sinks + block.head, sink);
  if (p.d_slopes && !p.alibi_batch_stride) write_sum(p.d_slopes + block.head, slope);
}

template <class Pass>
FW_DEVICE void with_type(const GpuArguments& args, const Pass& pass) {
  if (task_index() >= args.schedule.tasks) return;
  if (args.params.q.dtype == abi::kBF16) {
    pass(BFloat16{});
  } else {
    pass(_Float16{});
  }
}

FW_KERNEL(256) amd_bwd_prepare(FW_ARGUMENTS(arguments)) {
  const GpuArguments& args = arguments_in_memory();
  with_type(args, [&](auto x) { prepare<decltype(x)>(args); });
}

FW_KERNEL(256) amd_bwd_finish(FW_ARGUMENTS(arguments)) {
  const GpuArguments& args = arguments_in_memory();
  with_type(args, [&](auto x) { finish<decltype(x)>(args); });
}

FW_KERNEL(256) amd_bwd_sums(FW_ARGUMENTS(arguments)) {
  const GpuArguments& args = arguments_in_memory();
  if (task_index() < args.schedule.tasks) sums(args);
}

}  // namespace flashwave

// Rotary embedding by itself. A task is rows_per_task consecutive rows, counted through all sequences.
#include "kernels/generic/rotary.h"

namespace flashwave {

// The sequence that packed row `row` belongs to.
FW_DEVICE int32_t sequence_at(const Params& p, int64_t row) {
  int32_t first = 0, last = p.batch - 1;  // the answer is in [first, last]
  while (first < last) {
    const int32_t middle = first + (last - first) / 2;
    if (p.cu_seqlens_q[middle + 1] > row) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

template <class T>
FW_DEVICE void rotary(const GpuArguments& args) {
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const bool packed = p.cu_seqlens_q != nullptr;
  const int64_t rows = packed ? abi::at_most(p.cu_seqlens_q[p.batch], p.q.most) : int64_t{p.batch} * p.seqlen_q;
  int64_t row = task * args.schedule.rows_per_task;
  const int64_t end = row + args.schedule.rows_per_task < rows ? row + args.schedule.rows_per_task : rows;
  if (row >= end) return;
  for (int32_t b = packed ? sequence_at(p, row) : int32_t(row / p.seqlen_q); row < end && b < p.batch; ++b) {
    const Sequence seq = sequence_of(p, b);
    const int64_t first = packed ? seq.q_row : int64_t{b} * p.seqlen_q;
    for (; row < end && row < first + seq.queries; ++row) rotate_query<T>(p, seq, row - first);
  }
}

FW_KERNEL(kRotaryThreads) FW_NAME(rotary_f16)(FW_ARGUMENTS(args)) { rotary<_Float16>(arguments_in_memory(args)); }
FW_KERNEL(kRotaryThreads) FW_NAME(rotary_bf16)(FW_ARGUMENTS(args)) { rotary<BFloat16>(arguments_in_memory(args)); }
FW_KERNEL(kRotaryThreads) FW_NAME(rotary_f32)(FW_ARGUMENTS(args)) { rotary<float>(arguments_in_memory(args)); }

}  // namespace flashwave

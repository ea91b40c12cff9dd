// A tensor's rows in another element type, rounded to nearest even (kernels/abi/conversion.h). It moves bytes.
#include "kernels/abi/conversion.h"
#include "kernels/common/elements.h"
#include "kernels/common/gpu.h"
#include "kernels/common/sequence.h"

namespace flashwave {

inline constexpr int kThreads = 256;

struct Rows {
  int64_t batch, first, count;
};
FW_DEVICE Rows rows_of(const Params& p, int32_t b, int32_t which) {
  const Sequence seq = sequence_of(p, b);
  if (which == abi::kQueryRows) return {seq.q_batch, seq.q_row, seq.queries};
  if (which == abi::kUsedKeys) return {seq.k_batch, seq.k_row, seq.keys};
  if (p.cu_seqlens_k) return {0, packed_keys(p, b).first, packed_keys(p, b).count};
  return {seq.k_batch, 0, p.seqlen_k};
}

template <class From, class To>
FW_DEVICE void convert(const GpuArguments& args) {
  const Params& p = args.params;
  const Schedule& s = args.schedule;
  const abi::Tensor &from = p.k_new, &to = p.v_new;
  const int64_t blocks = s.tasks / p.batch, task = task_index();
  const Rows rows = rows_of(p, int32_t(task / blocks), s.splits);
  const int64_t block = task % blocks * abi::kConversionRows;
  const int groups = (s.dq_columns + 3) / 4, of_row = s.heads_per_task * groups;
  for (int i = thread_index(); i < abi::kConversionRows * of_row; i += kThreads) {
    const int64_t row = block + i / of_row;
    if (row >= rows.count) return;
    const int head = i % of_row / groups, column = i % groups * 4;
    const auto at = [&](const abi::Tensor& t) {
      return rows.batch * t.stride[0] + (rows.first + row) * t.stride[1] + head * t.stride[2] + column;
    };
    const int count = s.dq_columns - column;
    store_four(elements<To>(to) + at(to), load_four(elements<const From>(from) + at(from), count), count);
  }
}

FW_KERNEL(kThreads) amd_convert(FW_ARGUMENTS(arguments)) {
  const GpuArguments& args = arguments_in_memory();
  if (task_index() >= args.schedule.tasks) return;
  const int32_t from = args.params.k_new.dtype, to = args.params.v_new.dtype;
  if (from == abi::kF16) {
    if (to == abi::kBF16) return convert<_Float16, BFloat16>(args);
    return convert<_Float16, float>(args);
  }
  if (from == abi::kBF16) return convert<BFloat16, _Float16>(args);
  convert<float, _Float16>(args);
}

}  // namespace flashwave

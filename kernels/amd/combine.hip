// Merges the parts of the keys that rows attended to apart (kernels/abi/partials.h), in order, and writes O and LSE.
// Any AMD GPU, any element type, any head dimension. Task t takes rows t * kCombineRows and on of the call, 64 lanes
// each; combine_tasks() is their number. Sinks are counted here, once.
#include "kernels/abi/partials.h"
#include "kernels/amd/decode_finish.h"
#include "kernels/common/dtype.h"
#include "kernels/common/sequence.h"

namespace flashwave {

constexpr int kLanesPerRow = abi::kCombineThreads / abi::kCombineRows;

template <class T>
FW_DEVICE void write_row(const abi::PartialResults& parts, int32_t splits, int64_t index, float top, int dim, float scale,
                         T* out) {
  for (int d = thread_index() % kLanesPerRow; d < dim; d += kLanesPerRow) {
    float sum = 0.f;
    for (int32_t s = 0; s < splits; ++s) {
      const int64_t at = s * parts.rows + index;
      const float m = parts.m[at];
      if (m != -kInf) sum += exp2_fast(m - top) * parts.o[at * dim + d];
    }
    out[d] = from_float<T>(sum * scale);
  }
}

FW_KERNEL(abi::kCombineThreads) amd_combine(GpuArguments args) {
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const int32_t group = p.heads_q / p.heads_k, splits = args.schedule.splits;
  const int64_t rows_max = int64_t{p.seqlen_q} * group;
  const abi::PartialResults parts(args.shared, int64_t{p.batch} * p.heads_k * rows_max, splits, p.dim_v);
  const int64_t index = task * abi::kCombineRows + thread_index() / kLanesPerRow;
  if (index >= parts.rows) return;
  const int64_t head_of_call = index / rows_max, row = index - head_of_call * rows_max;
  const Sequence seq = sequence_of(p, int32_t(head_of_call / p.heads_k));
  const int64_t query = row / group;
  const int32_t head = int32_t(head_of_call % p.heads_k) * group + int32_t(row % group);
  if (query >= seq.queries) return;

  float top = -kInf, l = 0.f;
  for (int32_t s = 0; s < splits; ++s) top = __builtin_fmaxf(top, parts.m[s * parts.rows + index]);
  const float reference = reference_of(top);
  for (int32_t s = 0; s < splits; ++s) {
    const int64_t at = s * parts.rows + index;
    if (parts.m[at] != -kInf) l += exp2_fast(parts.m[at] - reference) * parts.l[at];
  }
  const RowEnd end = finish_row(p, head, top, l);
  const int64_t out = query_offset(p.o, seq, query, head);
  switch (p.o.dtype) {
    case abi::kF16:
      write_row(parts, splits, index, reference, p.dim_v, end.scale, static_cast<Half*>(p.o.data) + out);
      break;
    case abi::kBF16:
      write_row(parts, splits, index, reference, p.dim_v, end.scale, static_cast<BFloat16*>(p.o.data) + out);
      break;
    default:
      write_row(parts, splits, index, reference, p.dim_v, end.scale, static_cast<float*>(p.o.data) + out);
  }
  if (p.lse.data && thread_index() % kLanesPerRow == 0) {
    static_cast<float*>(p.lse.data)[query_offset(p.lse, seq, query, head)] = end.lse;
  }
}

}  // namespace flashwave

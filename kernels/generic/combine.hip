// combine: merges the parts of the keys that rows attended to apart (kernels/abi/partials.h), in order, and writes O and
// LSE. merge: the same of two results as callers have them, O with its LSE.
//
// Any element type, any head dimension. Task t takes rows t * kCombineRows and on of the call, 64 lanes
// each; combine_tasks() is their number. Sinks are counted here, once.
//
// The time is that of a few reads one after the other: m and l of all parts at once, then O of kPartsAtOnce parts for
// kColumnsAtOnce columns at a time.
#include "kernels/abi/partials.h"
#include "kernels/common/accurate.h"
#include "kernels/common/elements.h"
#include "kernels/common/gpu.h"
#include "kernels/common/row_end.h"
#include "kernels/common/sequence.h"

namespace flashwave {

constexpr int kLanesPerRow = abi::kCombineThreads / abi::kCombineRows;
constexpr int kMaxParts = 256;
constexpr int kPartsAtOnce = 8, kColumnsAtOnce = 2;

struct PartsOfRow {
  float m[kMaxParts], l[kMaxParts];
  float weight[kMaxParts + kPartsAtOnce];  // 0 past the last part
};

// o: of the row in part 0. Every part's O is read, those of weight 0 too: without keys it is 0.
template <class T>
FW_DEVICE void write_row(const PartsOfRow& row, const float* o, int64_t part_stride, int32_t splits, int dim,
                         float scale, T* out) {
  using Floats = const __attribute__((address_space(1))) float*;
  const Floats parts = (Floats)o;
  for (int first = thread_index() % kLanesPerRow; first < dim; first += kColumnsAtOnce * kLanesPerRow) {
    float sum[kColumnsAtOnce] = {};
    for (int32_t s = 0; s < splits; s += kPartsAtOnce) {
      float x[kPartsAtOnce][kColumnsAtOnce];
      FW_UNROLL for (int i = 0; i < kPartsAtOnce; ++i) {
        const Floats part = parts + (s + i < splits ? s + i : s) * part_stride;
        FW_UNROLL for (int c = 0; c < kColumnsAtOnce; ++c) {
          const int d = first + c * kLanesPerRow;
          x[i][c] = part[d < dim ? d : first];
        }
      }
      FW_UNROLL for (int i = 0; i < kPartsAtOnce; ++i) {
        const float weight = row.weight[s + i];
        FW_UNROLL for (int c = 0; c < kColumnsAtOnce; ++c) sum[c] += weight * x[i][c];
      }
    }
    FW_UNROLL for (int c = 0; c < kColumnsAtOnce; ++c) {
      const int d = first + c * kLanesPerRow;
      if (d < dim) out[d] = from_float<T>(sum[c] * scale);
    }
  }
}

FW_KERNEL(abi::kCombineThreads) FW_NAME(combine)(FW_ARGUMENTS(args)) {
  static FW_SHARED PartsOfRow lds[abi::kCombineRows];
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const int32_t group = p.heads_q / p.heads_k, splits = args.schedule.splits;
  const int64_t rows_max = int64_t{p.seqlen_q} * group;
  const abi::PartialResults parts(args.shared, int64_t{p.batch} * p.heads_k * rows_max, splits, p.dim_v);
  const int64_t index = task * abi::kCombineRows + thread_index() / kLanesPerRow;
  const int lane = thread_index() % kLanesPerRow;

  PartsOfRow& row = lds[thread_index() / kLanesPerRow];
  // Rows past the end of a sequence have no parts: what they hold is not used.
  const int64_t head_of_call = index / rows_max, row_of_head = index - head_of_call * rows_max;
  const int64_t query = row_of_head / group;
  bool exists = index < parts.rows;
  Sequence seq{};
  if (exists) {
    seq = sequence_of(p, int32_t(head_of_call / p.heads_k));
    exists = query < seq.queries;
  }
  for (int s = lane; s < splits + kPartsAtOnce; s += kLanesPerRow) {
    const bool read = exists && s < splits;
    const float m = read ? parts.m[s * parts.rows + index] : -kInf;
    if (s < splits) row.m[s] = m, row.l[s] = read ? parts.l[s * parts.rows + index] : 0.f;
    row.weight[s] = 0.f;
  }
  workgroup_barrier();
  float top = -kInf;
  for (int32_t s = 0; s < splits; ++s) top = __builtin_fmaxf(top, row.m[s]);
  const float reference = reference_of(top);
  for (int s = lane; s < splits; s += kLanesPerRow) row.weight[s] = exp2_fast(row.m[s] - reference);
  workgroup_barrier();
  if (!exists) return;

  float l = 0.f;
  for (int32_t s = 0; s < splits; ++s) l += row.weight[s] * row.l[s];
  const int32_t head = int32_t(head_of_call % p.heads_k) * group + int32_t(row_of_head % group);
  const RowEnd end = finish_row(p, head, top, l);
  const int64_t out = query_offset(p.o, seq, query, head), stride = parts.rows * p.dim_v;
  const float* o = parts.o + index * p.dim_v;
  switch (p.o.dtype) {
    case abi::kF16:
      write_row(row, o, stride, splits, p.dim_v, end.scale, static_cast<Half*>(p.o.data) + out);
      break;
    case abi::kBF16:
      write_row(row, o, stride, splits, p.dim_v, end.scale, static_cast<BFloat16*>(p.o.data) + out);
      break;
    default:
      write_row(row, o, stride, splits, p.dim_v, end.scale, static_cast<float*>(p.o.data) + out);
  }
  if (p.lse.data && lane == 0) {
    static_cast<float*>(p.lse.data)[query_offset(p.lse, seq, query, head)] = end.lse;
  }
}

FW_DEVICE float number_at(const abi::Tensor& t, int64_t offset) {
  switch (t.dtype) {
    case abi::kF16:
      return load(elements<const _Float16>(t) + offset);
    case abi::kBF16:
      return load(elements<const BFloat16>(t) + offset);
    default:
      return load(elements<const float>(t) + offset);
  }
}
FW_DEVICE void put_number(const abi::Tensor& t, int64_t offset, float x) {
  switch (t.dtype) {
    case abi::kF16:
      return store(elements<_Float16>(t) + offset, x);
    case abi::kBF16:
      return store(elements<BFloat16>(t) + offset, x);
    default:
      return store(elements<float>(t) + offset, x);
  }
}

// (o, lse) takes in (d_o, d_lse). Rows are (sequence, head, query).
FW_KERNEL(abi::kCombineThreads) FW_NAME(merge)(FW_ARGUMENTS(args)) {
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const int64_t index = task * abi::kCombineRows + thread_index() / kLanesPerRow;
  const int64_t head_of_call = index / p.seqlen_q, query = index - head_of_call * p.seqlen_q;
  bool exists = head_of_call < int64_t{p.batch} * p.heads_q;
  Sequence seq{};
  if (exists) {
    seq = sequence_of(p, int32_t(head_of_call / p.heads_q));
    exists = query < seq.queries;
  }
  const int32_t head = int32_t(head_of_call % p.heads_q);
  float old = -kInf, part = -kInf;
  if (exists) {
    old = elements<const float>(p.lse)[query_offset(p.lse, seq, query, head)];
    part = elements<const float>(p.d_lse)[query_offset(p.d_lse, seq, query, head)];
  }
  workgroup_barrier();  // all have read what one of them writes
  if (!exists) return;
  const MergedRow row = merged(old, part);
  const int64_t out = query_offset(p.o, seq, query, head), in = query_offset(p.d_o, seq, query, head);
  for (int d = thread_index() % kLanesPerRow; d < p.dim_v; d += kLanesPerRow) {
    const float kept = row.keep != 0.f ? row.keep * number_at(p.o, out + d) : 0.f;
    put_number(p.o, out + d, row.add != 0.f ? __builtin_fmaf(row.add, number_at(p.d_o, in + d), kept) : kept);
  }
  if (thread_index() % kLanesPerRow == 0) elements<float>(p.lse)[query_offset(p.lse, seq, query, head)] = row.lse;
}

}  // namespace flashwave

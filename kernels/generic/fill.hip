// Fills the rows of packed results that belong to no sequence (FW_FILL_UNUSED): 0, and -inf in lse. Runs before the
// kernels that write the others, on the results whose address is not null.
//
// Few workgroups, as there mostly is nothing to do but read the offsets: each reads all of them, kFillThreads at a
// time, adds the rows up that are left over, and takes every `tasks`-th of those.
#include "kernels/common/gpu.h"
#include "kernels/common/unused_rows.h"

namespace flashwave {

constexpr int kFillThreads = 256;

struct Gaps {
  int32_t first[kFillThreads];
  int64_t end[kFillThreads];  // rows of this one and those before it
};

template <class T>
FW_DEVICE void fill_heads(char* row, int64_t head_bytes, int heads, int columns, T value) {
  for (int i = thread_index(); i < heads * columns; i += kFillThreads) {
    const int head = i / columns, column = i - head * columns;
    reinterpret_cast<T*>(row + head * head_bytes)[column] = value;
  }
}

// value: 0 in a tensor of 16 bits.
FW_DEVICE void fill_row(const abi::Tensor& t, int64_t row, int heads, int columns, float value) {
  if (!t.data) return;
  const int size = t.dtype == abi::kF32 ? 4 : 2;
  char* at = static_cast<char*>(t.data) + row * t.stride[1] * size;
  const int64_t head_bytes = t.stride[2] * size;
  if ((uint64_t(at) | uint64_t(head_bytes) | uint64_t(columns * size)) % 16 == 0) {
    fill_heads<F32x4>(at, head_bytes, heads, columns * size / 16, value);
  } else if (size == 4) {
    fill_heads<float>(at, head_bytes, heads, columns, value);
  } else {
    fill_heads<uint16_t>(at, head_bytes, heads, columns, 0);
  }
}

// fill(row): every row that belongs to no sequence, each by one workgroup.
template <class Fill>
FW_DEVICE void for_unused_rows(const PackedBatch& packed, const Schedule& schedule, Gaps& gaps, Fill&& fill) {
  if (!packed.offsets) return;
  const int thread = thread_index();
  for (int32_t chunk = 0; chunk <= packed.batch; chunk += kFillThreads) {
    const int32_t b = chunk + thread;
    const PackedRows rows = b <= packed.batch ? unused_rows_before(packed, b) : PackedRows{0, 0};
    int64_t end = rows.count;
    gaps.first[thread] = rows.first, gaps.end[thread] = end;
    workgroup_barrier();
    for (int apart = 1; apart < kFillThreads; apart *= 2) {
      const int64_t before = thread >= apart ? gaps.end[thread - apart] : 0;
      workgroup_barrier();
      gaps.end[thread] = end += before;
      workgroup_barrier();
    }
    for (int64_t i = task_index(); i < gaps.end[kFillThreads - 1]; i += schedule.tasks) {
      int gap = 0;  // the first that ends behind i
      for (int step = kFillThreads / 2; step > 0; step /= 2) {
        if (gaps.end[gap + step - 1] <= i) gap += step;
      }
      fill(gaps.first[gap] + i - (gap > 0 ? gaps.end[gap - 1] : 0));
    }
    workgroup_barrier();  // before these are written again
  }
}

FW_KERNEL(kFillThreads) FW_NAME(fill)(FW_ARGUMENTS(arguments)) {
  static FW_SHARED Gaps gaps;
  const GpuArguments& args = arguments_in_memory(arguments);
  const Params& p = args.params;
  if (task_index() >= args.schedule.tasks) return;
  // Loops over what is the same for all tensors: unrolled, their addresses and strides overflow the scalar registers.
  FW_NO_UNROLL for (int keys = 0; keys < 2; ++keys) {
    if (keys && !p.dk.data && !p.dv.data) return;
    for_unused_rows(keys ? packed_keys(p) : packed_queries(p), args.schedule, gaps, [&](int64_t row) {
      FW_NO_UNROLL for (int i = 0; i < 3 - keys; ++i) {
        const abi::Tensor* const t = keys ? (i == 0 ? &p.dk : &p.dv) : i == 0 ? &p.o : i == 1 ? &p.lse : &p.dq;
        const bool is_lse = t == &p.lse, is_value = t == &p.o || t == &p.dv;
        fill_row(*t, row, keys ? p.heads_k : p.heads_q,
                 is_lse     ? 1
                 : is_value ? p.dim_v
                            : p.dim_qk,
                 is_lse ? -kInf : 0.f);
      }
    });
  }
}

}  // namespace flashwave

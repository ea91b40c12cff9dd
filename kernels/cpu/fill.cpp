// Fills the rows of packed results that belong to no sequence (FW_FILL_UNUSED): 0, and -inf in lse. One task: mostly
// there are few of them, or none.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/abi/cpu_launch.h"
#include "kernels/abi/params.h"
#include "kernels/common/unused_rows.h"

namespace flashwave {
namespace {

// value: 0 in a tensor of 16 bits.
void fill_row(const abi::Tensor& t, int64_t row, int64_t heads, int64_t columns, float value) {
  if (t.data == nullptr) return;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t offset = row * t.stride[1] + h * t.stride[2];
    if (t.dtype == abi::kF32) {
      std::fill_n(static_cast<float*>(t.data) + offset, columns, value);
    } else {
      std::fill_n(static_cast<uint16_t*>(t.data) + offset, columns, uint16_t{0});
    }
  }
}

template <class Fill>
void for_unused_rows(const PackedBatch& packed, Fill&& fill) {
  if (packed.offsets == nullptr) return;
  for (int32_t b = 0; b <= packed.batch; ++b) {
    const PackedRows rows = unused_rows_before(packed, b);
    for (int64_t i = 0; i < rows.count; ++i) fill(rows.first + i);
  }
}

}  // namespace

void fill_unused(const abi::Params& p, const abi::CpuLaunch& launch) {
  launch.for_each_task(launch.schedule.tasks, [&](int64_t, int32_t) {
    for_unused_rows(packed_queries(p), [&](int64_t row) {
      fill_row(p.o, row, p.heads_q, p.dim_v, 0.f);
      fill_row(p.lse, row, p.heads_q, 1, -std::numeric_limits<float>::infinity());
      fill_row(p.dq, row, p.heads_q, p.dim_qk, 0.f);
    });
    if (p.dk.data == nullptr && p.dv.data == nullptr) return;
    for_unused_rows(packed_keys(p), [&](int64_t row) {
      fill_row(p.dk, row, p.heads_k, p.dim_qk, 0.f);
      fill_row(p.dv, row, p.heads_k, p.dim_v, 0.f);
    });
  });
}

}  // namespace flashwave

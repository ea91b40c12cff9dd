// Results of the same queries among two sets of keys become their result among all: (o, lse) takes in (d_o, d_lse).
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/abi/cpu_launch.h"
#include "kernels/abi/params.h"
#include "kernels/common/dtype.h"
#include "kernels/common/row_end.h"
#include "kernels/common/sequence.h"

namespace flashwave {
namespace {

// body(elements): in the type of the tensor.
template <class Body>
void in_own_type(const abi::Tensor& t, Body&& body) {
  switch (t.dtype) {
    case abi::kF16:
      return body(static_cast<Half*>(t.data));
    case abi::kBF16:
      return body(static_cast<BFloat16*>(t.data));
    default:
      return body(static_cast<float*>(t.data));
  }
}

}  // namespace

void merge_parts(const abi::Params& p, const abi::CpuLaunch& launch) {
  const int64_t per_task = launch.schedule.rows_per_task, rows = int64_t{p.batch} * p.seqlen_q;
  launch.for_each_task(launch.schedule.tasks, [&](int64_t task, int32_t) {
    for (int64_t row = task * per_task; row < std::min((task + 1) * per_task, rows); ++row) {
      const Sequence seq = sequence_of(p, static_cast<int32_t>(row / p.seqlen_q));
      const int64_t i = row % p.seqlen_q;
      for (int64_t h = 0; h < p.heads_q; ++h) {
        float& lse = static_cast<float*>(p.lse.data)[query_offset(p.lse, seq, i, h)];
        const MergedRow f = merged(lse, static_cast<const float*>(p.d_lse.data)[query_offset(p.d_lse, seq, i, h)]);
        lse = f.lse;
        in_own_type(p.o, [&](auto* o) {
          o += query_offset(p.o, seq, i, h);
          in_own_type(p.d_o, [&](const auto* part) {
            part += query_offset(p.d_o, seq, i, h);
            using T = std::remove_reference_t<decltype(*o)>;
            for (int64_t d = 0; d < p.dim_v; ++d) {
              const float kept = f.keep != 0.f ? f.keep * to_float(o[d]) : 0.f;
              const float added = f.add != 0.f ? f.add * to_float(part[d]) : 0.f;
              o[d] = from_float<T>(kept + added);
            }
          });
        });
      }
    }
  });
}

}  // namespace flashwave

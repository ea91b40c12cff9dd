// The pre-pass of attention on a growing cache: rotates the queries and the new keys by their positions and writes the
// new keys and values behind those in use.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/abi/cpu_launch.h"
#include "kernels/abi/cpu_scratch.h"
#include "kernels/abi/params.h"
#include "kernels/common/dtype.h"
#include "kernels/common/host.h"
#include "kernels/common/philox.h"
#include "kernels/common/sequence.h"

namespace flashwave {
namespace {
// clang-format off: the order is the order of definition
#include "kernels/cpu/vec.h"
#include "kernels/cpu/rotary.h"
// clang-format on

template <class T>
T* at(const abi::Tensor& t, int64_t offset) {
  return static_cast<T*>(t.data) + offset;
}

template <class T>
void append(const abi::Params& p, const abi::CpuLaunch& launch) {
  const bool rotates = p.rotary_cos.data != nullptr;
  const int64_t query_rows = rotates ? p.seqlen_q : 0, rows = p.seqlen_new + query_rows;
  launch.for_each_task(rows * p.batch, [&](int64_t task, int32_t) {
    const int32_t b = static_cast<int32_t>(task / rows);
    const int64_t used = p.seqused_k[b];
    Sequence seq = sequence_of(p, b);
    Angles angles;
    if (const int64_t i = task % rows - p.seqlen_new; i >= 0) {
      if (i < seq.queries) rotate_query<T>(p, seq, i, angles);
      return;
    }
    // Rows count from the start of the sequence's storage, its left pad included.
    if (p.leftpad_k) seq.k_row -= p.leftpad_k[b];
    const int64_t i = task % rows;
    if (rotates) angles.read<T>(p, used + i);
    for (int64_t h = 0; h < p.heads_k; ++h) {
      const T* k = at<T>(p.k_new, b * p.k_new.stride[0] + i * p.k_new.stride[1] + h * p.k_new.stride[2]);
      const T* v = at<T>(p.v_new, b * p.v_new.stride[0] + i * p.v_new.stride[1] + h * p.v_new.stride[2]);
      T* k_out = at<T>(p.k, key_offset(p, p.k, seq, used + i, h));
      if (rotates) {
        rotate(p, angles, k, k_out);
      } else {
        std::copy(k, k + p.dim_qk, k_out);
      }
      std::copy(v, v + p.dim_v, at<T>(p.v, key_offset(p, p.v, seq, used + i, h)));
    }
  });
}

}  // namespace

void append_kv(const abi::Params& p, const abi::CpuLaunch& launch) {
  switch (p.q.dtype) {
    case abi::kF16:
      return append<Half>(p, launch);
    case abi::kBF16:
      return append<BFloat16>(p, launch);
    default:
      return append<float>(p, launch);
  }
}

}  // namespace flashwave

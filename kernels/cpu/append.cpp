// The pre-pass of attention on a growing cache: rotates the queries and the new keys by their positions and writes the
// new keys and values behind those in use.
#include <algorithm>

#include "kernels/abi/cpu_launch.h"
#include "kernels/common/dtype.h"
#include "kernels/common/sequence.h"

namespace flashwave {
namespace {

template <class T>
float rotary_factor(const abi::Tensor& t, int64_t position, int64_t pair) {
  const int64_t at = position * t.stride[0] + pair * t.stride[1];
  return t.dtype == abi::kF32 ? static_cast<const float*>(t.data)[at] : to_float(static_cast<const T*>(t.data)[at]);
}

template <class T>
T* at(const abi::Tensor& t, int64_t offset) {
  return static_cast<T*>(t.data) + offset;
}

// out = in with its first rotary_dim elements rotated to the position, pair by pair.
template <class T>
void rotate(const abi::Params& p, int64_t position, const T* in, T* out) {
  const int64_t pairs = p.rotary_dim / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t a = p.rotary_interleaved ? 2 * pair : pair, b = p.rotary_interleaved ? a + 1 : a + pairs;
    const float cos = rotary_factor<T>(p.rotary_cos, position, pair);
    const float sin = rotary_factor<T>(p.rotary_sin, position, pair);
    const float x = to_float(in[a]), y = to_float(in[b]);
    out[a] = from_float<T>(x * cos - y * sin);
    out[b] = from_float<T>(x * sin + y * cos);
  }
  std::copy(in + p.rotary_dim, in + p.dim_qk, out + p.rotary_dim);
}

template <class T>
void append(const abi::Params& p, const abi::CpuLaunch& launch) {
  const bool rotary = p.rotary_cos.data != nullptr;
  const int64_t query_rows = rotary ? p.seqlen_q : 0, rows = p.seqlen_new + query_rows;
  launch.for_each_task(rows * p.batch, [&](int64_t task, int32_t) {
    const int32_t b = static_cast<int32_t>(task / rows);
    const int64_t used = p.seqused_k[b];
    Sequence seq = sequence_of(p, b);
    if (const int64_t i = task % rows - p.seqlen_new; i >= 0) {
      if (i >= seq.queries) return;
      for (int64_t h = 0; h < p.heads_q; ++h) {
        rotate(p, used + (p.rotary_per_row ? i : 0), at<T>(p.q, query_offset(p.q, seq, i, h)),
               at<T>(p.q_rotated, query_offset(p.q_rotated, seq, i, h)));
      }
      return;
    }
    // Rows count from the start of the sequence's storage, its left pad included.
    if (p.leftpad_k) seq.k_row -= p.leftpad_k[b];
    const int64_t i = task % rows;
    for (int64_t h = 0; h < p.heads_k; ++h) {
      const T* k = at<T>(p.k_new, b * p.k_new.stride[0] + i * p.k_new.stride[1] + h * p.k_new.stride[2]);
      const T* v = at<T>(p.v_new, b * p.v_new.stride[0] + i * p.v_new.stride[1] + h * p.v_new.stride[2]);
      T* k_out = at<T>(p.k, key_offset(p, p.k, seq, used + i, h));
      if (rotary) {
        rotate(p, used + i, k, k_out);
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

// Rotary embedding of rows of heads by a workgroup. Products are rounded before they are added, never fused: the same
// bits as on every other device (docs/semantics.md).
#pragma once

#include "kernels/common/elements.h"
#include "kernels/common/sequence.h"

namespace flashwave {

inline constexpr int kRotaryThreads = 256;

// Row of one position, all heads of it: `head_stride` elements apart.
template <class T>
struct HeadRows {
  T* data;
  int64_t head_stride;
};

// a * c + b * s, rounded three times.
FW_DEVICE F32x4 sum_of_products(F32x4 a, F32x4 c, F32x4 b, F32x4 s) {
  F32x4 sum;
  FW_UNROLL for (int e = 0; e < 4; ++e) sum[e] = product_rounded(a[e], c[e]) + product_rounded(b[e], s[e]);
  return sum;
}

// cos or sin of pairs first .. first+3.
template <class T>
FW_DEVICE F32x4 factors(const abi::Tensor& t, int64_t position, int first, int count) {
  const int64_t at = position * t.stride[0] + first;
  return t.dtype == abi::kF32 ? load_four(elements<const float>(t) + at, count)
                              : load_four(elements<const T>(t) + at, count);
}

// Elements [begin, dim) of each head, unchanged.
template <class T>
FW_DEVICE void copy_heads(HeadRows<const T> in, HeadRows<T> out, int heads, int begin, int dim) {
  const int fours = (dim - begin + 3) / 4;
  for (int n = thread_index(); n < heads * fours; n += kRotaryThreads) {
    const int h = n / fours, d = begin + n % fours * 4;
    copy_four(out.data + h * out.head_stride + d, in.data + h * in.head_stride + d, dim - d);
  }
}

// The first rotary_dim elements of each head turned, the others copied. In and out may be the same row: each pair is
// read and written by one thread. A position that cos and sin do not have counts as the nearest that they have.
template <class T>
FW_DEVICE void rotate_heads(const Params& p, int64_t at, HeadRows<const T> in, HeadRows<T> out, int heads) {
  const int64_t position = at < 0 ? 0 : at > p.rotary_cos.most ? p.rotary_cos.most : at;
  const int rotary_dim = int(p.rotary_dim), pairs = rotary_dim / 2, fours = (pairs + 3) / 4;
  for (int n = thread_index(); n < heads * fours; n += kRotaryThreads) {
    const int h = n / fours, i = n % fours * 4;
    const T* x = in.data + h * in.head_stride;
    T* y = out.data + h * out.head_stride;
    const F32x4 cos = factors<T>(p.rotary_cos, position, i, pairs - i);
    F32x4 sin = factors<T>(p.rotary_sin, position, i, pairs - i);
    if (p.rotary_conjugate) sin = -sin;
    if (p.rotary_interleaved) {
      const F32x4 low = load_four(x + 2 * i, rotary_dim - 2 * i),
                  high = load_four(x + 2 * i + 4, rotary_dim - 2 * i - 4);
      const F32x4 low_sin = {-sin.x, sin.x, -sin.y, sin.y}, high_sin = {-sin.z, sin.z, -sin.w, sin.w};
      store_four(y + 2 * i, sum_of_products(low, cos.xxyy, low.yxwz, low_sin), rotary_dim - 2 * i);
      store_four(y + 2 * i + 4, sum_of_products(high, cos.zzww, high.yxwz, high_sin), rotary_dim - 2 * i - 4);
    } else {
      const F32x4 a = load_four(x + i, pairs - i), b = load_four(x + pairs + i, pairs - i);
      store_four(y + i, sum_of_products(a, cos, -b, sin), pairs - i);
      store_four(y + pairs + i, sum_of_products(a, sin, b, cos), pairs - i);
    }
  }
  if (in.data != out.data && rotary_dim < p.dim_qk) copy_heads(in, out, heads, rotary_dim, p.dim_qk);
}

// Every head of query i of a sequence, from q to q_rotated.
template <class T>
FW_DEVICE void rotate_query(const Params& p, const Sequence& seq, int64_t i) {
  const int64_t used = p.rotary_offset + (p.seqused_k ? p.seqused_k[seq.b] : 0);
  rotate_heads<T>(p, used + (p.rotary_per_row ? i : 0),
                  {elements<const T>(p.q) + query_offset(p.q, seq, i, 0), p.q.stride[2]},
                  {elements<T>(p.q_rotated) + query_offset(p.q_rotated, seq, i, 0), p.q_rotated.stride[2]}, p.heads_q);
}

}  // namespace flashwave

// Rotary embedding. Included after vec.h, by the kernels of each instruction set and by the append pre-pass.
//
// Products are rounded before they are added, never fused: every instruction set gives the same bits, which are also
// those of the formula written out in fp32 in a framework.

constexpr int kMaxRotaryDim = 512;

// (0 0 1 1 2 2 ...) of the lower or upper half of x.
template <int First, int... L>
FW_INLINE V twice(V x, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(x, x, (First + L / 2)...);
}
// (1 0 3 2 5 4 ...) of x.
template <int... L>
FW_INLINE V swap_pairs(V x, std::integer_sequence<int, L...>) {
  return __builtin_shufflevector(x, x, (L ^ 1)...);
}
// -x in the even lanes.
template <int... L>
FW_INLINE V negate_even(V x, std::integer_sequence<int, L...>) {
  const VI sign = {((L & 1) ? 0 : int32_t(0x80000000u))...};
  return (V)((VI)x ^ sign);
}

// a * c + b * s, rounded three times.
FW_INLINE V sum_of_products(V a, V c, V b, V s) { return rounded(a * c) + rounded(b * s); }

// The angles of one position in fp32, laid out as rotate() reads them: for pairs (i, i + rotary_dim/2) cos and sin of
// pair i at i; for pairs (2i, 2i + 1) twice, at 2i and 2i + 1, with the sign of sin that the element takes.
struct Angles {
  alignas(W * 4) float cos[kMaxRotaryDim], sin[kMaxRotaryDim];

  template <class T>
  FW_INLINE void read(const abi::Params& p, int64_t position) {
    constexpr auto lanes = std::make_integer_sequence<int, W>{};
    const int pairs = int(p.rotary_dim / 2);
    const VI flip = splat_i(p.rotary_conjugate ? int32_t(0x80000000u) : 0);
    for (int i = 0; i < pairs; i += W) {
      const V c = factors<T>(p.rotary_cos, position, i, pairs - i);
      const V s = (V)((VI)factors<T>(p.rotary_sin, position, i, pairs - i) ^ flip);
      if (p.rotary_interleaved) {
        store(cos + 2 * i, twice<0>(c, lanes));
        store(cos + 2 * i + W, twice<W / 2>(c, lanes));
        store(sin + 2 * i, negate_even(twice<0>(s, lanes), lanes));
        store(sin + 2 * i + W, negate_even(twice<W / 2>(s, lanes), lanes));
      } else {
        store(cos + i, c);
        store(sin + i, s);
      }
    }
  }

 private:
  template <class T>
  static FW_INLINE V factors(const abi::Tensor& t, int64_t position, int pair, int count) {
    const int64_t at = position * t.stride[0] + pair;
    return t.dtype == abi::kF32 ? load_part(static_cast<const float*>(t.data) + at, count)
                                : load_part(static_cast<const T*>(t.data) + at, count);
  }
};
static_assert(kMaxRotaryDim % (2 * W) == 0);

// out = in with its first rotary_dim elements turned. They may be the same row.
template <class T>
FW_INLINE void rotate(const abi::Params& p, const Angles& angles, const T* in, T* out) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  const int rotary_dim = int(p.rotary_dim), pairs = rotary_dim / 2;
  if (p.rotary_interleaved) {
    for (int i = 0; i < rotary_dim; i += W) {
      const V x = load_part(in + i, rotary_dim - i);
      const V turned = sum_of_products(x, load(angles.cos + i), swap_pairs(x, lanes), load(angles.sin + i));
      store_part(out + i, turned, rotary_dim - i);
    }
  } else {
    for (int i = 0; i < pairs; i += W) {
      const V x = load_part(in + i, pairs - i), y = load_part(in + pairs + i, pairs - i);
      const V c = load(angles.cos + i), s = load(angles.sin + i);
      store_part(out + i, sum_of_products(x, c, -y, s), pairs - i);
      store_part(out + pairs + i, sum_of_products(x, s, y, c), pairs - i);
    }
  }
  if (in != out && rotary_dim < p.dim_qk) {
    __builtin_memcpy(out + rotary_dim, in + rotary_dim, size_t(p.dim_qk - rotary_dim) * sizeof(T));
  }
}

// Every head of query i of a sequence, from q to q_rotated.
template <class T>
FW_INLINE void rotate_query(const abi::Params& p, const Sequence& seq, int64_t i, Angles& angles) {
  const int64_t used = p.rotary_offset + (p.seqused_k ? p.seqused_k[seq.b] : 0);
  angles.read<T>(p, used + (p.rotary_per_row ? i : 0));
  const T* in = static_cast<const T*>(p.q.data) + query_offset(p.q, seq, i, 0);
  T* out = static_cast<T*>(p.q_rotated.data) + query_offset(p.q_rotated, seq, i, 0);
  for (int32_t h = 0; h < p.heads_q; ++h, in += p.q.stride[2], out += p.q_rotated.stride[2]) {
    rotate(p, angles, in, out);
  }
}

// The sequence that packed row `row` belongs to.
FW_INLINE int32_t sequence_at(const abi::Params& p, int64_t row) {
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

// A task is rows_per_task consecutive rows, counted through all sequences.
template <class T>
FW_INLINE void rotary(const abi::Params& p, const abi::CpuLaunch& launch) {
  const bool packed = p.cu_seqlens_q != nullptr;
  const int64_t rows = packed ? p.cu_seqlens_q[p.batch] : int64_t{p.batch} * p.seqlen_q;
  const int64_t rows_per_task = launch.schedule.rows_per_task;
  launch.for_each_task((rows + rows_per_task - 1) / rows_per_task, [&](int64_t task, int32_t) {
    Angles angles;
    int64_t row = task * rows_per_task;
    const int64_t end = row + rows_per_task < rows ? row + rows_per_task : rows;
    for (int32_t b = packed ? sequence_at(p, row) : int32_t(row / p.seqlen_q); row < end; ++b) {
      const Sequence seq = sequence_of(p, b);
      const int64_t first = packed ? seq.q_row : int64_t{b} * p.seqlen_q;
      for (; row < end && row < first + seq.queries; ++row) rotate_query<T>(p, seq, row - first, angles);
    }
  });
}

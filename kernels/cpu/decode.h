// Forward attention for a handful of query rows: keys in the vector lanes' place, K and V streamed once, straight from
// the cache in their own type. Included after fwd.h and decode_tasks.h.
//
// With few rows the panel of fwd.h would be mostly padding, and the time is that of reading K and V. Each task takes
// one part of the keys of a sequence, for one key head or several side by side, with all query rows of their groups;
// parts are combined in order.

// Rows of queries that share one reading and widening of K and V: registers for kDotRows x 2 of them.
constexpr int kRowGroup = 4;

// 2 W numbers as two registers. bf16: those at even and at odd places, half the instructions of widening W at a time.
// q, o and the rows of K and V are all in this order.
template <class T>
FW_INLINE void load_pair(const T* p, V& a, V& b) {
  a = load_as_float(p), b = load_as_float(p + W);
}
FW_INLINE void load_pair(const BFloat16* p, V& a, V& b) {
  VU x;
  __builtin_memcpy(&x, p, sizeof x);
  a = (V)(x << 16), b = (V)(x & 0xFFFF0000u);
}
// The first n of them, the rest 0.
template <class T>
FW_INLINE void load_pair_part(const T* p, int n, V& a, V& b) {
  if (n >= 2 * W) return load_pair(p, a, b);
  T part[2 * W] = {};
  __builtin_memcpy(part, p, n * sizeof(T));
  load_pair(part, a, b);
}
// The first n of a pair in the order of T, as they were.
template <class T>
FW_INLINE void store_pair(float* out, V a, V b, int n) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto mix = [&]<int... L>(std::integer_sequence<int, L...>) {
      const V even = a, odd = b;
      a = __builtin_shufflevector(even, odd, (L / 2 + L % 2 * W)...);
      b = __builtin_shufflevector(even, odd, (L / 2 + L % 2 * W + W / 2)...);
    };
    mix(std::make_integer_sequence<int, W>{});
  }
  store_part(out, a, n);
  if (n > W) store_part(out + W, b, n - W);
}

// q.k of R rows (q_stride apart) with W / R keys each: s[row * kDecodeKeys + key]. q is zero-padded to a multiple of 2
// W.
template <int R, class T>
FW_INLINE void dot_keys(const float* q, int q_stride, const T* const* keys, int64_t offset, int d, float* s) {
  constexpr int kKeys = W / R;
  V sum[W];
  FW_UNROLL for (int i = 0; i < W; ++i) sum[i] = V{};
  const auto step = [&](int c, auto whole) __attribute__((always_inline)) {
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      V a, b;
      if constexpr (whole) {
        load_pair(keys[j] + offset + c, a, b);
      } else {
        load_pair_part(keys[j] + offset + c, d - c, a, b);
      }
      FW_UNROLL for (int r = 0; r < R; ++r) {
        sum[r * kKeys + j] += a * load(q + r * q_stride + c);
        sum[r * kKeys + j] += b * load(q + r * q_stride + c + W);
      }
    }
  };
  int c = 0;
  FW_NO_UNROLL for (; c + 2 * W <= d; c += 2 * W) step(c, std::true_type{});
  if (c < d) step(c, std::false_type{});
  alignas(64) float lanes[W];
  store(lanes, sum_each(sum));
  FW_UNROLL for (int r = 0; r < R; ++r) __builtin_memcpy(s + r * kDecodeKeys, lanes + r * kKeys, kKeys * sizeof(float));
}

// o += sum over `count` keys of weight * V, for R rows, columns [c, c + 2 W P).
template <int R, int P, bool kWhole, class T, class Ahead>
FW_INLINE void add_columns(const float* weight, const T* const* values, int64_t offset, int count, int c, int d,
                           float* o, int o_stride, Ahead&& ahead) {
  V sum[R][2 * P];
  FW_UNROLL for (int r = 0; r < R; ++r) {
    FW_UNROLL for (int i = 0; i < 2 * P; ++i) sum[r][i] = load(o + r * o_stride + c + i * W);
  }
  FW_NO_UNROLL for (int j = 0; j < count; ++j) {
    ahead(j);
    V x[2 * P];
    FW_UNROLL for (int i = 0; i < P; ++i) {
      const T* at = values[j] + offset + c + 2 * W * i;
      if constexpr (kWhole) {
        load_pair(at, x[2 * i], x[2 * i + 1]);
      } else {
        load_pair_part(at, d - c, x[2 * i], x[2 * i + 1]);
      }
    }
    FW_UNROLL for (int r = 0; r < R; ++r) {
      const V w = splat(weight[r * kDecodeKeys + j]);
      FW_UNROLL for (int i = 0; i < 2 * P; ++i) sum[r][i] += w * x[i];
    }
  }
  FW_UNROLL for (int r = 0; r < R; ++r) {
    FW_UNROLL for (int i = 0; i < 2 * P; ++i) store(o + r * o_stride + c + i * W, sum[r][i]);
  }
}

// o += sum over `count` keys of weight * V for R rows; ahead(j) is called once for each key.
template <int R, class T, class Ahead>
FW_NOINLINE void add_values(const float* weight, const T* const* values, int64_t offset, int count, int d, float* o,
                            int o_stride, Ahead ahead) {
  constexpr int P = R == 4 ? (W == 16 ? 2 : 1) : R == 2 ? (W == 16 ? 4 : 2) : 4;
  const auto nothing = [](int) {};
  int c = 0;
  const auto columns = [&](auto pairs, auto whole) __attribute__((always_inline)) {
    if (c == 0) {
      add_columns<R, pairs, whole>(weight, values, offset, count, c, d, o, o_stride, ahead);
    } else {
      add_columns<R, pairs, whole>(weight, values, offset, count, c, d, o, o_stride, nothing);
    }
    c += 2 * W * pairs;
  };
  FW_NO_UNROLL while (c + 2 * W * P <= d) columns(std::integral_constant<int, P>{}, std::true_type{});
  FW_NO_UNROLL while (c + 2 * W <= d) columns(std::integral_constant<int, 1>{}, std::true_type{});
  if (c < d) columns(std::integral_constant<int, 1>{}, std::false_type{});
}

template <class T>
struct DecodeTask {
  struct PerTask {};  // nothing to set up
  const abi::Params& p;
  const Scope scope;
  const abi::DecodeScratch mem;
  float m[kDotRows], l[kDotRows];

  FW_INLINE DecodeTask(const abi::Params& params, const Scope& sc, char* scratch, bool with_sink)
      : p(params), scope(sc), mem(scratch, kTile, params.dim_qk, params.dim_v) {
    for (int r = 0; r < scope.rows; ++r) {
      const T* row = scope.row_pointer<const T>(p.q, r);
      float* q = mem.q + r * mem.q_stride;
      for (int c = 0; c < p.dim_qk; c += 2 * W) {
        V x, y;
        load_pair_part(row + c, p.dim_qk - c, x, y);
        store(q + c, x * (p.softmax_scale * kLog2e)), store(q + c + W, y * (p.softmax_scale * kLog2e));
      }
      __builtin_memset(mem.o + r * mem.o_stride, 0, mem.o_stride * sizeof(float));
      const bool sink = with_sink && p.sinks;
      m[r] = sink ? p.sinks[scope.head(r)] * kLog2e : -kInf;
      l[r] = sink ? 1.f : 0.f;
    }
  }

  // body(std::integral_constant<int, R>, first row) for groups of R rows.
  template <class Body>
  FW_INLINE void for_each_group(Body&& body) const {
    const int rows = int(scope.rows);
    int r = 0;
    for (; r + kRowGroup <= rows; r += kRowGroup) body(std::integral_constant<int, kRowGroup>{}, r);
    if (r + 2 <= rows) body(std::integral_constant<int, 2>{}, r), r += 2;
    if (r < rows) body(std::integral_constant<int, 1>{}, r);
  }

  // The keys of a block, from k0 on; this head's lie k_offset and v_offset away. What comes after it, `next` at
  // next_offset (null: nothing), is fetched meanwhile.
  FW_INLINE void attend(const KeyBlock<T>& block, int64_t k0, int64_t k_offset, int64_t v_offset,
                        const KeyBlock<T>* next, int64_t next_offset) {
    for (int g = 0; g < block.count; g += W) {
      for_each_group([&](auto group, int r) __attribute__((always_inline)) {
        constexpr int R = group;
        FW_NO_UNROLL for (int j = g; j < g + W; j += W / R) {
          // a few at a time: there are 10 to 16 buffers for what is under way, and a prefetch waits for one
          for (int i = j; r == 0 && i < j + W / R && i < block.count; ++i) {
            prefetch_row(block.values[i] + v_offset, p.dim_v);
          }
          dot_keys<R>(mem.q + r * mem.q_stride, mem.q_stride, block.keys + j, k_offset, p.dim_qk,
                      mem.s + r * kDecodeKeys + j);
        }
      });
    }
    for (int r = 0; r < scope.rows; ++r) soften(r, k0, block.count);
    const auto fetch = [&](int j) __attribute__((always_inline)) {
      if (next && j < next->count) prefetch_row(next->keys[j] + next_offset, p.dim_qk);
    };
    for_each_group([&](auto group, int r) __attribute__((always_inline)) {
      constexpr int R = group;
      float *weights = mem.s + r * kDecodeKeys, *o = mem.o + r * mem.o_stride;
      if (r == 0) {
        add_values<R>(weights, block.values, v_offset, block.count, p.dim_v, o, mem.o_stride, fetch);
      } else {
        add_values<R>(weights, block.values, v_offset, block.count, p.dim_v, o, mem.o_stride, [](int) {});
      }
    });
  }

  // Scores of row r -> weights, with the online softmax; keys are in the lanes.
  FW_NOINLINE void soften(int r, int64_t k0, int count) {
    float* s = mem.s + r * kDecodeKeys;
    const int64_t query = scope.query(r);
    const int32_t h = scope.head(r);
    const KeyRange visible = keys_seen(p, scope.seq, query);
    const int32_t diagonal = int32_t(diagonal_of(p, scope.seq, query) - k0);
    const float slope = p.alibi_slopes ? p.alibi_slopes[scope.seq.b * p.alibi_batch_stride + h] * kLog2e : 0.f;
    alignas(64) int32_t iota[W];
    for (int i = 0; i < W; ++i) iota[i] = i;
    V top = splat(-kInf);
    for (int k = 0; k < count; k += W) {
      const VI key = load_i(iota) + k;
      alignas(64) float bias[W];
      if (p.bias.data) read_bias(query, h, k0 + k, count - k, bias);
      V x = modify_score(p, load(s + k), splat(slope), __builtin_convertvector(diagonal - key, V), 0.f,
                         p.bias.data ? bias : nullptr, nullptr);
      const VI seen = (key >= int32_t(visible.first - k0)) & (key < int32_t(visible.last - k0)) & (key < count);
      x = seen ? x : splat(-kInf);
      store(s + k, x);
      top = max(top, x);
    }
    float largest = m[r];
    for (int i = 0; i < W; ++i) largest = top[i] > largest ? top[i] : largest;
    if (largest != m[r]) {
      const float alpha = __builtin_exp2f(m[r] - largest);
      float* o = mem.o + r * mem.o_stride;
      for (int c = 0; c < mem.o_stride; c += W) store(o + c, load(o + c) * alpha);
      l[r] *= alpha;
      m[r] = largest;
    }
    const float base = largest == -kInf ? 0.f : largest;
    V sum{};
    for (int k = 0; k < count; k += W) {
      const V e = exp2_masked(load(s + k) - base);
      sum += e;
      store(s + k, e);
    }
    l[r] += sum_lanes(sum);
    if (p.dropout_threshold) {
      const uint32_t batch_head = dropout_head(p, scope.seq, h), row = uint32_t(query) + p.position_q;
      for (int k = 0; k < count; ++k) {
        const uint32_t bits =
            dropout_bits(p.dropout_seed, p.dropout_offset, batch_head, row, uint32_t(k0 + k) + p.position_k);
        if (bits < p.dropout_threshold) s[k] = 0.f;
      }
    }
  }

  FW_INLINE void read_bias(int64_t query, int32_t h, int64_t key, int count, float* out) const {
    const int64_t* stride = p.bias.stride;
    const int64_t at = scope.seq.b * stride[0] + h * stride[1] + query * stride[2] + key * stride[3];
    for (int i = 0; i < W; ++i) {
      const int64_t e = at + (i < count ? i : 0) * stride[3];
      out[i] = in_log2(p.bias.dtype == abi::kF32 ? static_cast<const float*>(p.bias.data)[e]
                                                 : to_float(static_cast<const T*>(p.bias.data)[e]));
    }
  }

  FW_INLINE void finish_part(const PartialResults& parts, int32_t split, int64_t first_row_of_call) const {
    for (int r = 0; r < scope.rows; ++r) {
      const int64_t index = split * parts.rows + first_row_of_call + r;
      const float* o = mem.o + r * mem.o_stride;
      for (int c = 0; c < p.dim_v; c += 2 * W) {
        store_pair<T>(parts.o + index * p.dim_v + c, load(o + c), load(o + c + W), p.dim_v - c);
      }
      parts.m[index] = m[r];
      parts.l[index] = l[r];
    }
  }
};

template <class T>
void decode(const abi::Params& p, const abi::CpuLaunch& launch) {
  if (int64_t{p.seqlen_q} * (p.heads_q / p.heads_k) > kDotRows) return forward<T>(p, launch);
  decode_tasks<T, DecodeTask<T>>(p, launch);
}

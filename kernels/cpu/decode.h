// Forward attention for a handful of query rows: keys in the vector lanes' place, K and V streamed once, straight from
// the cache in their own type. Included after decode_tasks.h.
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

// What a task does with numbers: products in fp32 of numbers widened as they are read.
template <class T>
struct DecodeMath {
  static constexpr int kPairs4 = W == 16 ? 2 : 1, kPairs2 = W == 16 ? 4 : 2;  // pairs of registers of O, 4 or 2 rows
  static constexpr int kStep = 1;                                             // keys whose values are added at a time
  using Weight = float;

  // What the scores have to be multiplied with: all of it is in q.
  FW_INLINE static float score_scale(const abi::Params&) { return 1.f; }
  FW_INLINE static void load_query(const abi::Params& p, const T* row, float* q) {
    for (int c = 0; c < p.dim_qk; c += 2 * W) {
      V x, y;
      load_pair_part(row + c, p.dim_qk - c, x, y);
      store(q + c, x * (p.softmax_scale * kLog2e)), store(q + c + W, y * (p.softmax_scale * kLog2e));
    }
  }

  // Adds columns [c, c + 2 W) of R rows of q with W / R keys to the sums.
  template <int R, bool kWhole>
  FW_INLINE static void add_products(V (&sum)[W], const float* q, int q_stride, const T* const* keys, int64_t offset,
                                     int c, int d) {
    constexpr int kKeys = W / R;
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      V a, b;
      if constexpr (kWhole) {
        load_pair(keys[j] + offset + c, a, b);
      } else {
        load_pair_part(keys[j] + offset + c, d - c, a, b);
      }
      FW_UNROLL for (int r = 0; r < R; ++r) {
        sum[r * kKeys + j] += a * load(q + r * q_stride + c);
        sum[r * kKeys + j] += b * load(q + r * q_stride + c + W);
      }
    }
  }

  FW_INLINE static const float* weights(float* s, int) { return s; }

  // sum += weight * V of key j, columns [c, c + 2 W P) of R rows; weights of the rows lie `stride` apart.
  template <int R, int P, bool kWhole>
  FW_INLINE static void add_value(V (&sum)[R][2 * P], const float* weight, int stride, const T* const* values,
                                  int64_t offset, int j, int c, int d) {
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
      const V w = splat(weight[r * stride + j]);
      FW_UNROLL for (int i = 0; i < 2 * P; ++i) sum[r][i] += w * x[i];
    }
  }

  // The first n of a pair of registers of O in the order of T, as they were.
  FW_INLINE static void store_pair(float* out, V a, V b, int n) {
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
};

#if defined(FW_ZEN4)
// bf16 on Zen 4: products of pairs as they lie in memory, at the rate of multiply-adds and so twice as many. Nothing is
// widened; weights are rounded to bf16, as standard attention does.
template <>
struct DecodeMath<BFloat16> {
  using T = BFloat16;
  static constexpr int kPairs4 = 2, kPairs2 = 4, kStep = 2;
  using Weight = uint32_t;  // those of two keys

  FW_INLINE static float score_scale(const abi::Params& p) { return p.softmax_scale * kLog2e; }
  FW_INLINE static void load_query(const abi::Params& p, const T* row, float* q) {
    for (int c = 0; c < p.dim_qk; c += 32) store_32(q + c / 2, load_part_32(row + c, p.dim_qk - c));
  }

  template <int R, bool kWhole>
  FW_INLINE static void add_products(V (&sum)[W], const float* q, int q_stride, const T* const* keys, int64_t offset,
                                     int c, int d) {
    constexpr int kKeys = W / R;
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      const T* at = keys[j] + offset + c;
      const VU16x32 k = kWhole ? load_32(at) : load_part_32(at, d - c);
      FW_UNROLL for (int r = 0; r < R; ++r) {
        sum[r * kKeys + j] = add_pair_products(sum[r * kKeys + j], k, load_aligned_32(q + r * q_stride + c / 2));
      }
    }
  }

  // In place: the weights of `count` keys. Those past the end, up to a whole register, are 0 already.
  FW_INLINE static const uint32_t* weights(float* s, int count) {
    for (int k = 0; k < count; k += W) {
      store_rounded(s + k / 2, load(s + k));
    }
    return reinterpret_cast<const uint32_t*>(s);
  }

  // Two keys at a time, their values side by side: columns 0-3, 8-11, 16-19, 24-27 in the first register, the others in
  // the second.
  template <int R, int P, bool kWhole>
  FW_INLINE static void add_value(V (&sum)[R][2 * P], const uint32_t* weight, int stride, const T* const* values,
                                  int64_t offset, int j, int c, int d) {
    VU16x32 x[2 * P];
    FW_UNROLL for (int i = 0; i < P; ++i) {
      const T *one = values[j] + offset + c + 32 * i, *two = values[j + 1] + offset + c + 32 * i;
      const VU16x32 a = kWhole ? load_32(one) : load_part_32(one, d - c);
      const VU16x32 b = kWhole ? load_32(two) : load_part_32(two, d - c);
      x[2 * i] = interleave_low(a, b), x[2 * i + 1] = interleave_high(a, b);
    }
    FW_UNROLL for (int r = 0; r < R; ++r) {
      const VU16x32 w = (VU16x32)splat_i(int32_t(weight[r * stride + j / 2]));
      FW_UNROLL for (int i = 0; i < 2 * P; ++i) sum[r][i] = add_pair_products(sum[r][i], x[i], w);
    }
  }

  FW_INLINE static void store_pair(float* out, V a, V b, int n) {
    const V low = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const V high = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    store_part(out, low, n);
    if (n > W) store_part(out + W, high, n - W);
  }
};
#endif

// Lines of the cache that 2 W columns of n rows fill.
template <class T>
constexpr int lines_of(int n) {
  return (n * 2 * W * int(sizeof(T)) + 63) / 64;
}

// q.k of R rows (q_stride apart) with W / R keys each, row by row. q is zero-padded to a multiple of 2 W. ahead(lines
// that were read) at every step.
template <int R, class T, class Ahead>
FW_INLINE V dot_keys(const float* q, int q_stride, const T* const* keys, int64_t offset, int d, Ahead&& ahead) {
  constexpr int kKeys = W / R;
  V sum[W];
  FW_UNROLL for (int i = 0; i < W; ++i) sum[i] = V{};
  int c = 0;
  FW_NO_UNROLL for (; c + 2 * W <= d; c += 2 * W) {
    ahead(std::integral_constant<int, lines_of<T>(kKeys)>{});
    DecodeMath<T>::template add_products<R, true>(sum, q, q_stride, keys, offset, c, d);
  }
  if (c < d)
    ahead(std::integral_constant<int, lines_of<T>(kKeys)>{}),
        DecodeMath<T>::template add_products<R, false>(sum, q, q_stride, keys, offset, c, d);
  return sum_each(sum);
}

// Of R registers with W / R numbers of each of R rows: one register for each row.
template <int R>
FW_INLINE void group_by_row(V (&x)[R]) {
  constexpr auto kLanes = std::make_integer_sequence<int, W>{};
  if constexpr (R == 4) {
    exchange<W / 4>(x[0], x[1], kLanes), exchange<W / 4>(x[2], x[3], kLanes);
    exchange<W / 2>(x[0], x[2], kLanes), exchange<W / 2>(x[1], x[3], kLanes);
  } else if constexpr (R == 2) {
    exchange<W / 2>(x[0], x[1], kLanes);
  }
}

// q.k of R rows with W keys: s[row * kDecodeKeys + key]. A whole register at a time: what is stored in parts cannot be
// loaded as one before it has reached the cache.
template <int R, class T, class Ahead>
FW_INLINE void score_keys(const float* q, int q_stride, const T* const* keys, int64_t offset, int d, float* s,
                          Ahead&& ahead) {
  alignas(64) float sums[R][W];  // no registers are left for them
  FW_NO_UNROLL for (int i = 0; i < R; ++i) {
    store(sums[i], dot_keys<R>(q, q_stride, keys + i * (W / R), offset, d, ahead));
    FW_KEEP_ORDER;  // nor for what this shares with the next
  }
  V x[R];
  FW_UNROLL for (int i = 0; i < R; ++i) x[i] = load(sums[i]);
  group_by_row(x);
  FW_UNROLL for (int r = 0; r < R; ++r) store(s + r * kDecodeKeys, x[r]);
}

// o += sum over `count` keys of weight * V, for R rows, columns [c, c + 2 W P).
template <int R, int P, bool kWhole, class T, class Ahead>
FW_INLINE void add_columns(const typename DecodeMath<T>::Weight* weight, const T* const* values, int64_t offset,
                           int count, int c, int d, float* o, int o_stride, Ahead&& ahead) {
  V sum[R][2 * P];
  FW_UNROLL for (int r = 0; r < R; ++r) {
    FW_UNROLL for (int i = 0; i < 2 * P; ++i) sum[r][i] = load(o + r * o_stride + c + i * W);
  }
  FW_NO_UNROLL for (int j = 0; j < count; j += DecodeMath<T>::kStep) {
    ahead(std::integral_constant<int, lines_of<T>(P * DecodeMath<T>::kStep)>{});
    DecodeMath<T>::template add_value<R, P, kWhole>(sum, weight, kDecodeKeys, values, offset, j, c, d);
  }
  FW_UNROLL for (int r = 0; r < R; ++r) {
    FW_UNROLL for (int i = 0; i < 2 * P; ++i) store(o + r * o_stride + c + i * W, sum[r][i]);
  }
}

// o += sum over `count` keys of weight * V for R rows; ahead(lines that were read) at every step.
template <int R, class T, class Ahead>
FW_NOINLINE void add_values(const typename DecodeMath<T>::Weight* weight, const T* const* values, int64_t offset,
                            int count, int d, float* o, int o_stride, Ahead ahead) {
  constexpr int P = R == 4 ? DecodeMath<T>::kPairs4 : R == 2 ? DecodeMath<T>::kPairs2 : 4;
  int c = 0;
  const auto columns = [&](auto pairs, auto whole) __attribute__((always_inline)) {
    add_columns<R, pairs, whole>(weight, values, offset, count, c, d, o, o_stride, ahead);
    c += 2 * W * pairs;
  };
  FW_NO_UNROLL while (c + 2 * W * P <= d) columns(std::integral_constant<int, P>{}, std::true_type{});
  FW_NO_UNROLL while (c + 2 * W <= d) columns(std::integral_constant<int, 1>{}, std::true_type{});
  if (c < d) columns(std::integral_constant<int, 1>{}, std::false_type{});
}

template <class T>
struct DecodeTask {
  struct PerTask {};  // nothing to set up
  using Math = DecodeMath<T>;
#if defined(FW_ZEN4)
  static constexpr bool kFetchesBlocks = true;
#else
  static constexpr bool kFetchesBlocks = false;
#endif
  const abi::Params& p;
  const Scope scope;
  const abi::DecodeScratch mem;
  V l[kDotRows];  // sums of weights, lane by lane
  float m[kDotRows];

  FW_INLINE DecodeTask(const abi::Params& params, const Scope& sc, char* scratch, bool with_sink)
      : p(params), scope(sc), mem(scratch, kTile, params.dim_qk, params.dim_v) {
    for (int r = 0; r < scope.rows; ++r) {
      Math::load_query(p, scope.row_pointer<const T>(p.q, r), mem.q + r * mem.q_stride);
      __builtin_memset(mem.o + r * mem.o_stride, 0, mem.o_stride * sizeof(float));
      const bool sink = with_sink && p.sinks;
      m[r] = sink ? sink_of(p, scope.head(r)) : -kInf;
      l[r] = V{};
      if (sink) l[r][0] = 1.f;
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

  // The keys of a block, from k0 on; this head's lie k_offset and v_offset away. Meanwhile what is read soon is
  // fetched, evenly: there are 10 to 24 buffers for what is under way, and a prefetch beyond them waits or is lost.
  template <class Soon>
  FW_INLINE void attend(const KeyBlock<T>& block, int64_t k0, int64_t k_offset, int64_t v_offset, Soon& while_scoring,
                        Soon& while_adding) {
    for (int g = 0; g < block.count; g += W) {
      for_each_group([&](auto group, int r) __attribute__((always_inline)) {
        constexpr int R = group;
        const float* q = mem.q + r * mem.q_stride;
        float* s = mem.s + r * kDecodeKeys + g;
        if (r == 0) {
          score_keys<R>(q, mem.q_stride, block.keys + g, k_offset, p.dim_qk, s,
                        [&](auto lines)
                            __attribute__((always_inline)) { while_scoring.template fetch_lines<lines>(); });
        } else {
          score_keys<R>(q, mem.q_stride, block.keys + g, k_offset, p.dim_qk, s, [](auto) {});
        }
      });
    }
    for (int r = 0; r < scope.rows; ++r) soften(r, k0, block.count);
    for_each_group([&](auto group, int r) __attribute__((always_inline)) {
      constexpr int R = group;
      const typename Math::Weight* weights = nullptr;
      for (int i = R - 1; i >= 0; --i) weights = Math::weights(mem.s + (r + i) * kDecodeKeys, block.count);
      float* o = mem.o + r * mem.o_stride;
      if (r == 0) {
        add_values<R>(weights, block.values, v_offset, block.count, p.dim_v, o, mem.o_stride,
                      [&](auto lines) __attribute__((always_inline)) { while_adding.template fetch_lines<lines>(); });
      } else {
        add_values<R>(weights, block.values, v_offset, block.count, p.dim_v, o, mem.o_stride, [](auto) {});
      }
    });
  }

  // Scores of row r -> weights, with the online softmax; keys are in the lanes.
  FW_NOINLINE void soften(int r, int64_t k0, int count) {
    float* s = mem.s + r * kDecodeKeys;
    const int64_t query = scope.query(r);
    const int32_t h = scope.head(r);
    const KeyRange visible = keys_seen(p, scope.seq, query);
    const float scale = Math::score_scale(p);
    const bool plain = !has_score_modifiers(p) && visible.first <= k0 && visible.last >= k0 + count && count % W == 0;
    V top = splat(-kInf);
    if (plain) {
      for (int k = 0; k < count; k += W) top = max(top, load(s + k) * scale);
    } else {
      top = modify(r, query, h, visible, k0, count, scale);
    }
    if (any(top > m[r])) raise(r, top);
    const float base = m[r] == -kInf ? 0.f : m[r];
    V sum{};
    for (int k = 0; k < count; k += W) {
      const V x = load(s + k), e = plain ? exp2_fast(x * scale - base) : exp2_masked(x - base);
      sum += e;
      store(s + k, e);
    }
    l[r] += sum;
    if (p.dropout_threshold) {
      const uint32_t batch_head = dropout_head(p, scope.seq, h), row = uint32_t(query) + p.position_q;
      for (int k = 0; k < count; ++k) {
        const uint32_t bits =
            dropout_bits(p.dropout_seed, p.dropout_offset, batch_head, row, uint32_t(k0 + k) + p.position_k);
        if (bits < p.dropout_threshold) s[k] = 0.f;
      }
    }
  }

  // Scores with all that changes them, -inf where the row does not see the key; returns the largest per lane.
  FW_NOINLINE V modify(int r, int64_t query, int32_t h, const KeyRange& visible, int64_t k0, int count, float scale) {
    float* s = mem.s + r * kDecodeKeys;
    const int32_t diagonal = int32_t(diagonal_of(p, scope.seq, query) - k0);
    const float slope = p.alibi_slopes ? p.alibi_slopes[scope.seq.b * p.alibi_batch_stride + h] * kLog2e : 0.f;
    alignas(64) int32_t iota[W];
    for (int i = 0; i < W; ++i) iota[i] = i;
    V top = splat(-kInf);
    for (int k = 0; k < count; k += W) {
      const VI key = load_i(iota) + k;
      alignas(64) float bias[W];
      if (p.bias.data) read_bias(query, h, k0 + k, count - k, bias);
      V x = modify_score(p, load(s + k) * scale, splat(slope), __builtin_convertvector(diagonal - key, V), 0.f,
                         p.bias.data ? bias : nullptr, nullptr);
      const VI seen = (key >= int32_t(visible.first - k0)) & (key < int32_t(visible.last - k0)) & (key < count);
      x = seen ? x : splat(-kInf);
      store(s + k, x);
      top = max(top, x);
    }
    return top;
  }

  // m becomes the largest score so far, and what was summed up follows.
  FW_NOINLINE void raise(int r, V top) {
    float largest = m[r];
    for (int i = 0; i < W; ++i) largest = top[i] > largest ? top[i] : largest;
    const float alpha = __builtin_exp2f(m[r] - largest);
    float* o = mem.o + r * mem.o_stride;
    for (int c = 0; c < mem.o_stride; c += W) store(o + c, load(o + c) * alpha);
    l[r] *= alpha;
    m[r] = largest;
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
        Math::store_pair(parts.o + index * p.dim_v + c, load(o + c), load(o + c + W), p.dim_v - c);
      }
      parts.m[index] = m[r];
      parts.l[index] = sum_lanes(l[r]);
    }
  }
};

// Forward attention for a handful of query rows: keys in the vector lanes' place, K and V streamed once, straight from
// the cache in their own type. Included after fwd.h.
//
// With few rows the panel of fwd.h would be mostly padding, and the time is that of reading K and V. Each task takes
// one part of the keys of a sequence, for one key head or several side by side, with all query rows of their groups;
// parts are combined in order.

constexpr int kDecodeKeys = abi::kDecodeKeyBlock;  // keys between two updates of the online softmax
constexpr int kDotRows = W;  // with more rows than this the panel of fwd.h is faster (its cost is that of NQ rows)
static_assert(kDecodeKeys % W == 0 && kDecodeKeys % kKeysPerPhilox == 0);

// q.k for W keys: lane j is the product with key j. q is zero-padded to a multiple of W.
template <class T>
FW_INLINE V dot_keys(const float* q, const T* const* keys, int d) {
  V sum[W];
  FW_UNROLL for (int j = 0; j < W; ++j) sum[j] = V{};
  int c = 0;
  FW_NO_UNROLL for (; c + W <= d; c += W) {
    const V x = load(q + c);
    FW_UNROLL for (int j = 0; j < W; ++j) sum[j] += x * load_as_float(keys[j] + c);
  }
  if (c < d) {
    const V x = load(q + c);
    FW_UNROLL for (int j = 0; j < W; ++j) sum[j] += x * load_part(keys[j] + c, d - c);
  }
  transpose(sum);
  FW_UNROLL for (int step = 1; step < W; step *= 2) {
    FW_UNROLL for (int j = 0; j + step < W; j += 2 * step) sum[j] += sum[j + step];
  }
  return sum[0];
}

// o += sum over W keys of weight[j] * V[j].
template <class T>
FW_INLINE void add_values(const float* weight, const T* const* values, int count, int d, float* o) {
  if (count == W) {
    V w[W];
    FW_UNROLL for (int j = 0; j < W; ++j) w[j] = splat(weight[j]);
    int c = 0;
    FW_NO_UNROLL for (; c + W <= d; c += W) {
      V even = load(o + c), odd{};
      FW_UNROLL for (int j = 0; j < W; j += 2) {
        even += w[j] * load_as_float(values[j] + c);
        odd += w[j + 1] * load_as_float(values[j + 1] + c);
      }
      store(o + c, even + odd);
    }
    if (c < d) {
      V x = load(o + c);
      for (int j = 0; j < W; ++j) x += w[j] * load_part(values[j] + c, d - c);
      store(o + c, x);
    }
    return;
  }
  for (int j = 0; j < count; ++j) {
    for (int c = 0; c < d; c += W) store(o + c, load(o + c) + weight[j] * load_part(values[j] + c, d - c));
  }
}

template <class T>
struct DecodeTask {
  const abi::Params& p;
  const Scope scope;
  const abi::DecodeScratch mem;
  float m[kDotRows], l[kDotRows];

  FW_INLINE DecodeTask(const abi::Params& params, const Scope& sc, char* scratch, bool with_sink)
      : p(params), scope(sc), mem(scratch, kTile, params.dim_qk, params.dim_v) {
    for (int r = 0; r < scope.rows; ++r) {
      const T* row = scope.row_pointer<const T>(p.q, r);
      float* q = mem.q + r * mem.q_stride;
      for (int c = 0; c < p.dim_qk; c += W) store(q + c, load_part(row + c, p.dim_qk - c) * (p.softmax_scale * kLog2e));
      __builtin_memset(mem.o + r * mem.o_stride, 0, mem.o_stride * sizeof(float));
      const bool sink = with_sink && p.sinks;
      m[r] = sink ? p.sinks[scope.head(r)] * kLog2e : -kInf;
      l[r] = sink ? 1.f : 0.f;
    }
  }

  // Keys [k0, k0 + count). What comes after it, `next` (may be null) at next_k0, is fetched meanwhile.
  FW_INLINE void attend(int64_t k0, int count, const DecodeTask* next, int64_t next_k0, int next_count) {
    const int rows = int(scope.rows);
    const T *keys[kDecodeKeys + W], *values[kDecodeKeys + W];
    for (int k = 0; k < count; ++k) {
      keys[k] = scope.key_pointer<const T>(p.k, k0 + k);
      values[k] = scope.key_pointer<const T>(p.v, k0 + k);
    }
    for (int k = count; k < round_up(count, W); ++k) keys[k] = keys[0];  // computed and thrown away
    for (int g = 0; g < count; g += W) {
      for (int j = g; j < g + W && j < count; ++j) prefetch_row(values[j], p.dim_v);
      for (int r = 0; r < rows; ++r) {
        store(mem.s + r * kDecodeKeys + g, dot_keys(mem.q + r * mem.q_stride, keys + g, p.dim_qk));
      }
    }
    for (int r = 0; r < rows; ++r) soften(r, k0, count);
    for (int g = 0; g < count; g += W) {
      const int n = count - g < W ? count - g : W;
      for (int j = g; next && j < g + n && j < next_count; ++j) {
        prefetch_row(next->scope.template key_pointer<const T>(p.k, next_k0 + j), p.dim_qk);
      }
      for (int r = 0; r < rows; ++r) {
        add_values(mem.s + r * kDecodeKeys + g, values + g, n, p.dim_v, mem.o + r * mem.o_stride);
      }
    }
  }

  // Scores of row r -> weights, with the online softmax; keys are in the lanes.
  FW_NOINLINE void soften(int r, int64_t k0, int count) {
    float* s = mem.s + r * kDecodeKeys;
    const int64_t query = scope.query(r);
    const int32_t h = scope.head(r);
    const KeyRange visible = visible_keys(p, scope.seq, query);
    const int32_t diagonal = int32_t(query + scope.seq.keys - scope.seq.queries - k0);
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
      for (int c = 0; c < p.dim_v; c += W) store(o + c, load(o + c) * alpha);
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
      const uint32_t batch_head = uint32_t(scope.seq.b) * uint32_t(p.heads_q) + uint32_t(h);
      for (int k = 0; k < count; ++k) {
        const uint32_t bits =
            dropout_bits(p.dropout_seed, p.dropout_offset, batch_head, uint32_t(query), uint32_t(k0 + k));
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
      __builtin_memcpy(parts.o + index * p.dim_v, mem.o + r * mem.o_stride, p.dim_v * sizeof(float));
      parts.m[index] = m[r];
      parts.l[index] = l[r];
    }
  }
};

// The key heads of one task pass over a block of keys one after the other, before the next block: where the heads of a
// token lie side by side, they share its pages and lines.
template <class T>
struct DecodeHeads {
  alignas(DecodeTask<T>) char storage[abi::kDecodeHeads][sizeof(DecodeTask<T>)];
  int count = 0;

  FW_INLINE DecodeTask<T>& operator[](int i) { return *reinterpret_cast<DecodeTask<T>*>(storage[i]); }
  FW_INLINE void add(const abi::Params& p, const Scope& scope, char* scratch, bool with_sink) {
    new (storage[count++]) DecodeTask<T>(p, scope, scratch, with_sink);
  }

  FW_INLINE void attend(int64_t begin, int64_t end) {
    const abi::Params& p = (*this)[0].p;
    const Sequence& seq = (*this)[0].scope.seq;
    const KeyRange top = visible_keys(p, seq, 0), bottom = visible_keys(p, seq, seq.queries - 1);
    if (begin < top.first) begin += (top.first - begin) / kDecodeKeys * kDecodeKeys;
    if (end > bottom.last) end = bottom.last;
    const auto keys_at = [&](int64_t k0) { return int(end - k0 < kDecodeKeys ? end - k0 : kDecodeKeys); };
    for (int64_t k0 = begin; k0 < end; k0 += kDecodeKeys) {
      for (int i = 0; i < count; ++i) {
        const bool same_block = i + 1 < count;
        const int64_t next_k0 = same_block ? k0 : k0 + kDecodeKeys;
        DecodeTask<T>* next = next_k0 < end ? &(*this)[same_block ? i + 1 : 0] : nullptr;
        (*this)[i].attend(k0, keys_at(k0), next, next_k0, next ? keys_at(next_k0) : 0);
      }
    }
  }
};

template <class T>
void decode(const abi::Params& p, const abi::CpuLaunch& launch) {
  const int64_t rows_max = int64_t{p.seqlen_q} * (p.heads_q / p.heads_k), heads = int64_t{p.batch} * p.heads_k;
  if (rows_max > kDotRows) return forward<T>(p, launch);
  const int32_t splits = launch.schedule.splits, heads_per_task = launch.schedule.heads_per_task;
  const int64_t groups = (p.heads_k + heads_per_task - 1) / heads_per_task;
  const int64_t scratch_per_head = launch.schedule.scratch_bytes / heads_per_task;
  const PartialResults parts(launch.shared, heads * rows_max, splits, p.dim_v);
  launch.for_each_task(p.batch * groups * splits, [&](int64_t t, int32_t worker) {
    const int32_t split = int32_t(t % splits), b = int32_t(t / splits / groups);
    const int32_t first = int32_t(t / splits % groups) * heads_per_task;
    const int32_t last = first + heads_per_task < p.heads_k ? first + heads_per_task : p.heads_k;
    DecodeHeads<T> tasks;
    for (int32_t h = first; h < last; ++h) {
      const Scope scope(p, b, h);
      if (scope.rows == 0) return;
      tasks.add(p, scope, launch.scratch_of(worker) + (h - first) * scratch_per_head, split == 0);
    }
    const int64_t keys = tasks[0].scope.seq.keys, begin = split * launch.schedule.keys_per_split;
    const int64_t end = split + 1 == splits ? keys : begin + launch.schedule.keys_per_split;
    tasks.attend(begin, end < keys ? end : keys);
    for (int i = 0; i < tasks.count; ++i) {
      const int64_t first_row = (int64_t{b} * p.heads_k + first + i) * rows_max;
      const Scope& scope = tasks[i].scope;
      tasks[i].finish_part(parts, split, first_row);
      for (int64_t row = 0; splits == 1 && row < scope.rows; ++row) {
        combine_row<T>(p, scope, parts, 1, row, first_row + row);
      }
    }
  });
  if (splits > 1) combine_parts<T>(p, launch, parts, rows_max);
}

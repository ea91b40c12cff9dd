// The query rows a task works on, NQ to a panel, and what the score of each depends on. Included after tile.h.
//
// GQA-packed: the query heads that share a key head are rows of one task (row = query * group + head in group), so a
// packed block of K and V serves them all.

struct PanelRows {
  alignas(W * 4) int32_t first[NQ], last[NQ];         // keys [first, last) the row sees
  alignas(W * 4) int32_t diagonal[NQ];                // key on the row's diagonal, for ALiBi
  alignas(W * 4) float slope[NQ];                     // ALiBi, in units of log2
  alignas(W * 4) uint32_t query[NQ], batch_head[NQ];  // dropout counters
  int64_t bias[NQ];                                   // element offset of the row's bias
  int32_t min_first, max_first, min_last, max_last;
};
static_assert(sizeof(PanelRows) == kTile.panel_rows_bytes());

// The part of a problem that is the same for all rows of a sequence and key head.
struct Scope {
  const abi::Params* p;
  Sequence seq;
  int32_t kv_head, first_head, group;  // the query heads are [first_head, first_head + group)
  int64_t rows;                        // queries * group

  // All query heads of a key head.
  FW_INLINE Scope(const abi::Params& params, int32_t b, int32_t head)
      : Scope(params, b, head, head * (params.heads_q / params.heads_k), params.heads_q / params.heads_k) {}
  FW_INLINE Scope(const abi::Params& params, int32_t b, int32_t key_head, int32_t first, int32_t heads)
      : p(&params), seq(sequence_of(params, b)), kv_head(key_head), first_head(first), group(heads) {
    rows = seq.queries * group;
  }
  FW_INLINE static Scope of_query_head(const abi::Params& params, int32_t b, int32_t head) {
    return Scope(params, b, head / (params.heads_q / params.heads_k), head, 1);
  }
  FW_INLINE int64_t query(int64_t row) const { return row / group; }
  FW_INLINE int32_t head(int64_t row) const { return first_head + int32_t(row % group); }

  // body(i, query, head) for rows row + i, 0 <= i < count: one division instead of two per row, which would cost 3-5 %
  // of a whole task at 1024 keys.
  template <class Body>
  FW_INLINE void for_each_row(int64_t row, int64_t count, Body&& body) const {
    int64_t i_query = row / group;
    int32_t in_group = int32_t(row - i_query * group);
    for (int64_t i = 0; i < count; ++i) {
      body(int(i), i_query, first_head + in_group);
      if (++in_group == group) in_group = 0, ++i_query;
    }
  }

  template <class T>
  FW_INLINE T* pointer(const abi::Tensor& t, int64_t i_query, int32_t h) const {
    return static_cast<T*>(t.data) + query_offset(t, seq, i_query, h);
  }
  template <class T>
  FW_INLINE T* row_pointer(const abi::Tensor& t, int64_t row) const {
    return pointer<T>(t, query(row), head(row));
  }
  template <class T>
  FW_INLINE T* key_pointer(const abi::Tensor& t, int64_t key) const {
    return static_cast<T*>(t.data) + key_offset(*p, t, seq, key, kv_head);
  }

  // Keys [first, last) of K and V will be packed soon. Steps `step` of `steps` fetch their share of them.
  template <class T>
  FW_INLINE void prefetch_keys(int64_t first, int64_t last, int step, int steps) const {
    const int64_t count = last - first;
    if (count <= 0) return;
    for (int64_t k = first + count * step / steps; k < first + count * (step + 1) / steps; ++k) {
      prefetch_row(key_pointer<const T>(p->k, k), p->dim_qk);
      prefetch_row(key_pointer<const T>(p->v, k), p->dim_v);
    }
  }

  // Rows of the panel at `row` that exist.
  FW_INLINE int panel_count(int64_t row) const { return int(rows - row < NQ ? rows - row : NQ); }

  // Pointers of `count` rows from `row` on.
  template <class T>
  FW_INLINE void row_pointers(const abi::Tensor& t, int64_t row, int count, T** out) const {
    for_each_row(row, count, [&](int i, int64_t i_query, int32_t h) { out[i] = pointer<T>(t, i_query, h); });
  }
  // Pointers of NQ rows from `row` on; null past the end.
  template <class T>
  FW_INLINE void panel_pointers(const abi::Tensor& t, int64_t row, T** out) const {
    const int count = panel_count(row);
    row_pointers(t, row, count, out);
    for (int i = count; i < NQ; ++i) out[i] = nullptr;
  }

  // Rows past the end repeat the last one, so that they never force a mask.
  FW_NOINLINE void describe_panel(int64_t row, PanelRows& panel) const {
    const int count = panel_count(row);
    for_each_row(row, count, [&](int i, int64_t i_query, int32_t h) {
      const KeyRange visible = keys_seen(*p, seq, i_query);
      panel.first[i] = int32_t(visible.first);
      panel.last[i] = int32_t(visible.last);
      panel.diagonal[i] = int32_t(diagonal_of(*p, seq, i_query));
      panel.slope[i] = p->alibi_slopes ? p->alibi_slopes[seq.b * p->alibi_batch_stride + h] * kLog2e : 0.f;
      panel.query[i] = uint32_t(i_query) + p->position_q;
      panel.batch_head[i] = dropout_head(*p, seq, h);
      const int64_t* s = p->bias.stride;
      panel.bias[i] = seq.b * s[0] + h * s[1] + i_query * s[2];
    });
    for (int i = count; i < NQ; ++i) {
      panel.first[i] = panel.first[count - 1], panel.last[i] = panel.last[count - 1];
      panel.diagonal[i] = panel.diagonal[count - 1], panel.slope[i] = panel.slope[count - 1];
      panel.query[i] = panel.query[count - 1], panel.batch_head[i] = panel.batch_head[count - 1];
      panel.bias[i] = panel.bias[count - 1];
    }
    // What a row sees only moves forward with the query.
    panel.min_first = panel.first[0], panel.max_first = panel.first[NQ - 1];
    panel.min_last = panel.last[0], panel.max_last = panel.last[NQ - 1];
  }
};

// The groups of MR keys of a block [k0, k0 + count) that a panel sees any of, and whether it needs the mask there.
struct TileRange {
  int begin, end;  // offsets in the block, multiples of MR; empty if begin >= end
  bool masked;
};
FW_INLINE TileRange tile_range(const PanelRows& panel, int64_t k0, int count) {
  const int64_t first = panel.min_first - k0, last = panel.max_last - k0;
  TileRange t;
  t.begin = first > 0 ? int(first < count ? first : count) / MR * MR : 0;
  t.end = last <= 0 ? 0 : round_up(int(last < count ? last : count), MR);
  t.masked = k0 + t.begin < panel.max_first || k0 + t.end > panel.min_last;
  return t;
}

// body(TileRange) for what lies left of the keys that all rows see, for those, and for what lies right of them: on the
// diagonal only a few groups of a block need the mask. A middle too short to pay for itself stays with the rest.
template <class Body>
FW_INLINE void for_each_part(const PanelRows& panel, int64_t k0, TileRange t, Body&& body) {
  constexpr int kWorthwhile = 4 * MR;
  if (t.masked) {
    const int64_t first = panel.max_first - k0, last = panel.min_last - k0;
    const int begin = first <= t.begin ? t.begin : first < t.end ? round_up(int(first), MR) : t.end;
    const int end = last >= t.end ? t.end : last > t.begin ? int(last) / MR * MR : t.begin;
    if (end - begin >= kWorthwhile) {
      if (t.begin < begin) body(TileRange{t.begin, begin, true});
      body(TileRange{begin, end, false});
      if (end < t.end) body(TileRange{end, t.end, true});
      return;
    }
  }
  if (t.begin < t.end) body(t);
}

// ---- score modifiers: softcap, ALiBi, bias (all in units of log2)
// ----------------------------------------------------

FW_INLINE bool has_score_modifiers(const abi::Params& p) { return p.softcap > 0 || p.alibi_slopes || p.bias.data; }

// A bias times log2(e), finite as in kernels/common/score.h, but by no fused product: that calls libm on plain x86-64.
FW_INLINE V in_log2(V x) {
  const V scaled = x * kLog2e, least = x * 0x1p-26f - kLargest;
  return scaled < least ? least : scaled;  // NaN stays NaN
}
FW_INLINE float in_log2(float x) {
  const float scaled = x * kLog2e, least = x * 0x1p-26f - kLargest;
  return scaled < least ? least : scaled;
}

// Bias of the tile as [keys][NQ], in units of log2.
template <class TB>
FW_NOINLINE void gather_bias(const abi::Params& p, const PanelRows& panel, int64_t k0, int begin, int end, int64_t keys,
                             float* out) {
  const TB* base = static_cast<const TB*>(p.bias.data);
  const int64_t step = p.bias.stride[3];
  const int exist = int(keys - k0 < end ? keys - k0 : end);
  if (step == 1) {
    const TB* rows[NQ];
    for (int i = 0; i < NQ; ++i) rows[i] = base + panel.bias[i] + k0 + begin;
    pack_panel<Singles, TB>(rows, nullptr, exist - begin, 1.f, out + begin * NQ);
    for (int i = begin * NQ; i < exist * NQ; i += W) store(out + i, in_log2(load(out + i)));
  } else {
    for (int k = begin; k < exist; ++k) {
      for (int i = 0; i < NQ; ++i) out[k * NQ + i] = in_log2(to_float(base[panel.bias[i] + (k0 + k) * step]));
    }
  }
  for (int k = exist; k < end; ++k) {
    for (int j = 0; j < NV; ++j) store(out + k * NQ + j * W, V{});
  }
}

template <class T>
FW_NOINLINE void load_bias_tile(const abi::Params& p, const PanelRows& panel, int64_t k0, int begin, int end,
                                int64_t keys, float* out) {
  if (p.bias.dtype == abi::kF32) {
    gather_bias<float>(p, panel, k0, begin, end, keys, out);
  } else {
    gather_bias<T>(p, panel, k0, begin, end, keys, out);
  }
}

// One register of scores -> modified scores; tanh_out gets tanh(z / softcap), whose square the backward needs.
FW_INLINE V modify_score(const abi::Params& p, V x, V slope, V diagonal, float key, const float* bias, V* tanh_out) {
  if (p.softcap > 0) {
    const float cap = p.softcap * kLog2e;
    const V t = tanh_fast(x * (1.f / cap));
    if (tanh_out) *tanh_out = t;
    x = t * cap;
  }
  if (p.alibi_slopes) x -= slope * abs(diagonal - key);
  if (bias) x += load(bias);
  return x;
}

// ---- the end of a row
// -----------------------------------------------------------------------------------------------------

// Writes the LSE of a row whose weights exp2(s - m) have the sum l. What O becomes: `add` times its part of these keys,
// and `keep` times what it holds of others. Not inlined: its calls of libm would save vectors on the stack beside AMX's
// tiles.
FW_NOINLINE MergedRow end_row(const abi::Params& p, const Scope& scope, int64_t query, int32_t head, float m, float l) {
  if (!p.lse.data) return {0.f, 1.f, 0.f};
  float* const lse = scope.pointer<float>(p.lse, query, head);
  const MergedRow row = merged(p.accumulate ? *lse : -kInf, lse_of_row(m, l));
  *lse = row.lse;
  return row;
}

// Lanes whose row sees key k (an absolute key number).
FW_INLINE VI sees(const PanelRows& panel, int j, int32_t k) {
  return (load_i(panel.first + j * W) <= k) & (load_i(panel.last + j * W) > k);
}

// ---- dropout
// ---------------------------------------------------------------------------------------------------------

// body(key offset in the block, register j, lanes kept) for keys [begin, end) of the block at k0 (a multiple of 8; in a
// piece of a sequence the groups of 8 keys that are drawn together may begin before it).
template <class Body>
FW_INLINE void for_each_kept(const abi::Params& p, const PanelRows& panel, int64_t k0, int begin, int end,
                             Body&& body) {
  const uint32_t key0 = uint32_t(p.dropout_seed);
  const uint32_t key1 = uint32_t(p.dropout_seed >> 32) ^ uint32_t(p.dropout_offset >> 32);
  const VI threshold = splat_i(int32_t(p.dropout_threshold));
  const int before = int(p.position_k % kKeysPerPhilox);
  for (int j = 0; j < NV; ++j) {
    const VU query = (VU)load_i(reinterpret_cast<const int32_t*>(panel.query) + j * W);
    const VU batch_head = (VU)load_i(reinterpret_cast<const int32_t*>(panel.batch_head) + j * W);
    for (int g = (begin + before) / kKeysPerPhilox * kKeysPerPhilox - before; g < end; g += kKeysPerPhilox) {
      const VU counter = VU{} + uint32_t((k0 + g + p.position_k) / kKeysPerPhilox);
      const VPhilox r = philox(counter, query, batch_head, VU{} + uint32_t(p.dropout_offset), key0, key1);
      for (int e = 0; e < kKeysPerPhilox; ++e) {
        if (g + e < begin || g + e >= end) continue;
        const VI bits = (VI)((r.word[e / 2] >> (16 * (e % 2))) & 0xFFFFu);
        body(g + e, j, bits >= threshold);
      }
    }
  }
}

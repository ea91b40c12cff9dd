// Forward attention, queries in the vector lanes. Included after parts.h.
//
//   S^T[key][query] = K Q^T        A = K in groups of MR rows, B = a panel of NQ queries, transposed once
//   softmax along the keys         vertical vector operations: no horizontal reduction anywhere
//   O^T[dim][query] += V^T P^T     A = V in strips of MR columns, B = P^T as it was produced
//
// A task is a block of query rows against a range of keys. Keys come in blocks of NK, packed just in time into the
// cache; each block serves all panels of the task. fp16 and bf16 are widened while packing, unless they are multiplied
// in pairs (products.h).

constexpr int NK = abi::kKeyBlock;
constexpr int kStripLd = kTile.strip_ld();  // units of rows that a strip has room for
constexpr int kUnitRow = NQ / kPer;  // weights by units of keys: that of key k, the first of its unit, at k * kUnitRow
// A block's sum of 2^(s - m) past which m is raised: floats have range to spare.
constexpr float kLargestGuess = 0x1p12f;
static_assert(NK % MR == 0 && NK % kKeysPerPhilox == 0 && MR % kPer == 0);

// Online softmax state of one panel. m is the running maximum (log2 units), l the sum of 2^(s - m).
struct PanelState {
  alignas(W * 4) float m[NQ], l[NQ];
  bool started;  // O^T holds something
};
static_assert(sizeof(PanelState) == kTile.panel_state_bytes());

// Scores of keys [begin, end) into s, with the largest per lane. d: units of the head dimension.
FW_NOINLINE void score_tile(const float* k_groups, const float* q_panel, int d, float scale, int begin, int end,
                            float* s, V (&largest)[NV]) {
  V top[NV] = {splat(-kInf), splat(-kInf)};
  for (int k = begin; k < end; k += MR) {
    V c[MR][NV];
    clear(c);
    multiply_tile<MR, 1, MR, NQ>(c, k_groups + k * d, q_panel, d);
    FW_UNROLL for (int i = 0; i < MR; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) {
      c[i][j] = Product::score(c[i][j], scale);
      top[j] = max(top[j], c[i][j]);
    }
    store_tile<MR, NQ>(s + k * NQ, c);
  }
  FW_UNROLL for (int j = 0; j < NV; ++j) largest[j] = top[j];
}

// 2^(score - m) of keys [begin, end) into s, by units of keys, with the sum per lane, on the guess that m need not be
// raised. The accumulators start at -m where they can, so the subtraction is free, and exp runs in the shadow of the
// next group's products. No maximum is kept: a score far above m shows in the sum (the exponent is clamped, so it
// cannot wrap). The sum is that of the weights before they are rounded.
FW_NOINLINE void guess_tile(const float* k_groups, const float* q_panel, int d, float scale, int begin, int end,
                            float* s, const float* m, V (&sum)[NV]) {
  V total[NV] = {V{}, V{}};
  for (int k = begin; k < end; k += MR) {
    V c[MR][NV];
    FW_UNROLL for (int i = 0; i < MR; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) {
      c[i][j] = Product::start(-load(m + j * W));
    }
    multiply_tile<MR, 1, MR, NQ>(c, k_groups + k * d, q_panel, d);
    FW_UNROLL for (int i = 0; i < MR; i += kPer) {
      FW_UNROLL for (int j = 0; j < NV; ++j) {
        V e[kPer];
        FW_UNROLL for (int r = 0; r < kPer; ++r) {
          const V x = Product::score_from(c[i + r][j], scale, -load(m + j * W));
          e[r] = exp2_fast(min(splat(126.f), x));
          total[j] += e[r];
        }
        store(s + (k + i) * kUnitRow + j * W, Product::rounded(e));
      }
      FW_KEEP_ORDER;
    }
  }
  FW_UNROLL for (int j = 0; j < NV; ++j) sum[j] = total[j];
}

// -inf where the row does not see the key; returns the largest score left per lane.
FW_NOINLINE void mask_tile(const PanelRows& panel, int64_t k0, int begin, int end, float* s, V (&largest)[NV]) {
  for (int j = 0; j < NV; ++j) {
    V top = splat(-kInf);
    for (int k = begin; k < end; ++k) {
      float* x = s + k * NQ + j * W;
      const V masked = sees(panel, j, int32_t(k0) + k) ? load(x) : splat(-kInf);
      store(x, masked);
      top = max(top, masked);
    }
    largest[j] = top;
  }
}

FW_NOINLINE void max_tile(int begin, int end, const float* s, V (&largest)[NV]) {
  V top[NV] = {splat(-kInf), splat(-kInf)};
  for (int k = begin; k < end; ++k) {
    FW_UNROLL for (int j = 0; j < NV; ++j) top[j] = max(top[j], load(s + k * NQ + j * W));
  }
  FW_UNROLL for (int j = 0; j < NV; ++j) largest[j] = top[j];
}

// s = 2^(s - m), by units of keys; returns the sums before rounding. In place: unit k / kPer lies at or before key k.
template <bool Masked>
FW_NOINLINE void exp_tile(int begin, int end, float* s, const V (&m)[NV], V (&sum)[NV]) {
  V total[NV] = {V{}, V{}}, base[NV] = {m[0], m[1]};
  for (int k = begin; k < end; k += kPer) {
    FW_UNROLL for (int j = 0; j < NV; ++j) {
      V e[kPer];
      FW_UNROLL for (int r = 0; r < kPer; ++r) {
        const V x = load(s + (k + r) * NQ + j * W) - base[j];
        e[r] = Masked ? exp2_masked(x) : exp2_fast(x);
        total[j] += e[r];
      }
      store(s + k * kUnitRow + j * W, Product::rounded(e));
    }
  }
  FW_UNROLL for (int j = 0; j < NV; ++j) sum[j] = total[j];
}

FW_NOINLINE void modify_scores(const abi::Params& p, const PanelRows& panel, const float* bias, int64_t k0, int begin,
                               int end, float* s) {
  for (int j = 0; j < NV; ++j) {
    const V slope = load(panel.slope + j * W);
    const VI diagonal = load_i(panel.diagonal + j * W) - int32_t(k0);
    const V d = __builtin_convertvector(diagonal, V);
    for (int k = begin; k < end; ++k) {
      float* x = s + k * NQ + j * W;
      store(x, modify_score(p, load(x), slope, d, float(k), bias ? bias + k * NQ + j * W : nullptr, nullptr));
    }
  }
}

enum class Accumulate { kStart, kAdd, kRescaleAndAdd };

// O^T (+)= V^T P^T over keys [begin, end).
FW_NOINLINE void value_tile(const float* v_strips, const float* s, const Strips& strips, int begin, int end,
                            Accumulate mode, const V (&alpha)[NV], float* o) {
  strips.for_each([&](auto m, int f) __attribute__((always_inline)) {
    constexpr int M = decltype(m)::value;
    V c[M][NV];
    float* out = o + f * NQ;
    if (mode == Accumulate::kStart) {
      clear(c);
    } else {
      load_tile<M, NQ>(c, out);
      if (mode == Accumulate::kRescaleAndAdd) {
        FW_UNROLL for (int i = 0; i < M; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) c[i][j] *= alpha[j];
      }
    }
    multiply_tile<M, 1, M, NQ>(c, v_strips + f * kStripLd + begin / kPer * M, s + begin * kUnitRow,
                               (end - begin) / kPer);
    store_tile<M, NQ>(out, c);
  });
}

// As unpack_panel, with what the rows hold kept in part.
FW_NOINLINE void add_panel(const float* in, int n, const float* lane_scale, const float* keep, float* const* rows) {
  unpack_rows(in, n, lane_scale, [&](int i, int c, V x) __attribute__((always_inline)) {
    if (rows[i]) add_part(rows[i] + c, x, n - c, keep[i]);
  });
}

template <class T>
struct ForwardTask {
  const abi::Params& p;
  const Scope scope;
  const abi::ForwardScratch mem;
  PanelRows* const rows;
  PanelState* const states;
  const Strips strips;
  const float scale;  // of the scores, in units of log2
  int64_t row0;
  int panels;

  FW_INLINE ForwardTask(const abi::Params& params, const Scope& sc, char* scratch, int64_t first_row, int row_count)
      : p(params),
        scope(sc),
        mem(scratch, kTile, params.dim_qk, params.dim_v, (row_count + NQ - 1) / NQ),
        rows(reinterpret_cast<PanelRows*>(mem.rows)),
        states(reinterpret_cast<PanelState*>(mem.states)),
        strips(params.dim_v),
        scale(params.softmax_scale * kLog2e),
        row0(first_row),
        panels((row_count + NQ - 1) / NQ) {}

  // Transposes the queries (with the scale in them where they are fp32) and starts the softmax. A sink is a key of
  // value 0 that comes first; it joins one part of the keys only.
  FW_INLINE void start(bool with_sink) {
    const T* pointers[2][NQ];
    scope.panel_pointers(p.q, row0, pointers[0]);
    for (int i = 0; i < panels; ++i) {
      const int64_t row = row0 + int64_t{i} * NQ;
      const T** const ahead = i + 1 < panels ? pointers[(i + 1) % 2] : nullptr;
      if (ahead) scope.panel_pointers(p.q, row + NQ, ahead);
      pack_panel<Product>(pointers[i % 2], ahead, p.dim_qk, scale, mem.q + i * mem.q_stride);
      scope.describe_panel(row, rows[i]);
      PanelState& state = states[i];
      state.started = false;
      for (int lane = 0; lane < NQ; ++lane) state.m[lane] = -kInf, state.l[lane] = 0.f;
      if (with_sink && p.sinks) {
        scope.for_each_row(row, scope.panel_count(row), [&](int lane, int64_t, int32_t head) {
          state.m[lane] = sink_of(p, head);
          state.l[lane] = 1.f;
        });
      }
    }
  }

  // All panels against keys [key_begin, key_end).
  FW_INLINE void attend(int64_t key_begin, int64_t key_end) {
    int64_t first = key_end, last = key_begin;
    for (int i = 0; i < panels; ++i) {
      first = rows[i].min_first < first ? rows[i].min_first : first;
      last = rows[i].max_last > last ? rows[i].max_last : last;
    }
    if (last > key_end) last = key_end;
    if (first < key_begin) first = key_begin;
    for (int64_t k0 = first / NK * NK; k0 < last; k0 += NK) {
      const int count = int(last - k0 < NK ? last - k0 : NK);
      const T *k_rows[NK], *v_rows[NK];
      for (int k = 0; k < count; ++k) {
        k_rows[k] = scope.key_pointer<const T>(p.k, k0 + k);
        v_rows[k] = scope.key_pointer<const T>(p.v, k0 + k);
      }
      const int padded = round_up(count, MR);
      for (int k = count; k < padded; ++k) k_rows[k] = v_rows[k] = nullptr;
      pack_groups(k_rows, padded, p.dim_qk, mem.k_groups);
      pack_strips(v_rows, padded, p.dim_v, strips, kStripLd, mem.v_strips);
      const int64_t next = k0 + NK, next_end = next + NK < last ? next + NK : last;
      for (int i = 0; i < panels; ++i) {
        scope.template prefetch_keys<T>(next, next_end, i, panels);
        panel_step(i, k0, count);
      }
    }
  }

  FW_INLINE void panel_step(int i, int64_t k0, int count) {
    for_each_part(rows[i], k0, tile_range(rows[i], k0, count),
                  [&](const TileRange& t) __attribute__((always_inline)) { tile_step(i, k0, t); });
  }

  // One panel against a part of the packed block: scores, online softmax, values.
  FW_NOINLINE void tile_step(int i, int64_t k0, const TileRange& t) {
    const PanelRows& panel = rows[i];
    PanelState& state = states[i];
    const float* q = mem.q + i * mem.q_stride;
    float* o = mem.o + i * mem.o_stride;
    const bool modified = has_score_modifiers(p);
    V largest[NV], sum[NV], alpha[NV];

    if (!t.masked && !modified && state.started) {
      guess_tile(mem.k_groups, q, units_of(p.dim_qk), scale, t.begin, t.end, mem.s, state.m, sum);
      if (!any(~(sum[0] <= kLargestGuess) | ~(sum[1] <= kLargestGuess))) {
        for (int j = 0; j < NV; ++j) store(state.l + j * W, load(state.l + j * W) + sum[j]);
        if (p.dropout_threshold) drop(panel, k0, t);
        value_tile(mem.v_strips, mem.s, strips, t.begin, t.end, Accumulate::kAdd, alpha, o);
        return;
      }  // the guess was wrong (or there is a NaN): once more, the careful way
    }

    score_tile(mem.k_groups, q, units_of(p.dim_qk), scale, t.begin, t.end, mem.s, largest);
    if (modified) {
      if (p.bias.data) load_bias_tile<T>(p, panel, k0, t.begin, t.end, scope.seq.keys, mem.bias);
      modify_scores(p, panel, p.bias.data ? mem.bias : nullptr, k0, t.begin, t.end, mem.s);
    }
    if (t.masked) {
      mask_tile(panel, k0, t.begin, t.end, mem.s, largest);
    } else if (modified) {
      max_tile(t.begin, t.end, mem.s, largest);
    }
    V m[NV];
    VI changed{};
    for (int j = 0; j < NV; ++j) {
      const V old = load(state.m + j * W), now = max(largest[j], old);
      changed |= ~(now == old);
      store(state.m + j * W, now);
      m[j] = now == -kInf ? V{} : now;  // a row that has seen nothing: avoid -inf - -inf
      alpha[j] = exp2_masked(old - m[j]);
    }
    if (t.masked || modified) {
      exp_tile<true>(t.begin, t.end, mem.s, m, sum);
    } else {
      exp_tile<false>(t.begin, t.end, mem.s, m, sum);
    }
    for (int j = 0; j < NV; ++j) store(state.l + j * W, load(state.l + j * W) * alpha[j] + sum[j]);
    if (p.dropout_threshold) drop(panel, k0, t);
    const Accumulate mode = !state.started ? Accumulate::kStart
                            : any(changed) ? Accumulate::kRescaleAndAdd
                                           : Accumulate::kAdd;
    value_tile(mem.v_strips, mem.s, strips, t.begin, t.end, mode, alpha, o);
    state.started = true;
  }

  FW_INLINE void drop(const PanelRows& panel, int64_t k0, const TileRange& t) {
    for_each_kept(p, panel, k0, t.begin, t.end, [&](int k, int j, VI kept) __attribute__((always_inline)) {
      float* x = mem.s + k / kPer * NQ + j * W;
      store(x, Product::keep(load(x), k % kPer, kept));
    });
  }

  // Normalises and writes O and LSE.
  FW_INLINE void finish() {
    const float keep = scale_of_kept(p);
    for (int i = 0; i < panels; ++i) {
      const int64_t row = row0 + int64_t{i} * NQ;
      const PanelState& state = states[i];
      alignas(64) float inverse[NQ], kept[NQ] = {};
      for (int lane = 0; lane < NQ; ++lane) inverse[lane] = scale_of_row(state.l[lane], keep);
      if (p.lse.data) {
        scope.for_each_row(row, scope.panel_count(row), [&](int lane, int64_t query, int32_t head) {
          const MergedRow end = end_row(p, scope, query, head, state.m[lane], state.l[lane]);
          kept[lane] = end.keep, inverse[lane] *= end.add;
        });
      }
      float* o = mem.o + i * mem.o_stride;
      if (!state.started) __builtin_memset(o, 0, mem.o_stride * sizeof(float));
      if (p.o.dtype == abi::kF32) {
        float* pointers[NQ];
        scope.panel_pointers(p.o, row, pointers);
        add_panel(o, p.dim_v, inverse, kept, pointers);
      } else {
        T* pointers[NQ];
        scope.panel_pointers(p.o, row, pointers);
        unpack_panel(o, p.dim_v, inverse, pointers);
      }
    }
  }

  // Writes the state as it is, for combine_parts().
  FW_INLINE void finish_part(const PartialResults& parts, int32_t split, int64_t first_row_of_call) {
    alignas(64) float one[NQ];
    for (float& x : one) x = 1.f;
    for (int i = 0; i < panels; ++i) {
      const PanelState& state = states[i];
      float* pointers[NQ];
      for (int lane = 0; lane < NQ; ++lane) {
        const int64_t row = row0 + int64_t{i} * NQ + lane, index = split * parts.rows + first_row_of_call + row;
        pointers[lane] = nullptr;
        if (row >= scope.rows) continue;
        pointers[lane] = parts.o + index * p.dim_v;
        parts.m[index] = state.m[lane];
        parts.l[index] = state.l[lane];
      }
      float* o = mem.o + i * mem.o_stride;
      if (!state.started) __builtin_memset(o, 0, mem.o_stride * sizeof(float));
      unpack_panel(o, p.dim_v, one, pointers);
    }
  }
};

template <class T>
FW_INLINE void write_probabilities(const abi::Params& p, const abi::CpuLaunch& launch);

template <class T>
void forward(const abi::Params& p, const abi::CpuLaunch& launch) {
  forward_tasks<T, ForwardTask<T>>(p, launch);
  if (p.probs.data) write_probabilities<T>(p, launch);
}

// Backward attention: five products through the same micro-kernel, S recomputed, nothing of size s^2 stored.
// Included after gradients.h.
//
//   S^T  = K Q^T   -> P^T  = 2^(S^T - LSE)          in the epilogue
//   dP^T = V dO^T  -> dS^T = P^T * (dP^T - delta)   in the epilogue
//   dQ^T += K^T dS^T                     A = K in strips of columns, B = dS^T as produced
//   dV   += P^T dO,  dK += dS^T Q        A = rows of P^T, dS^T;  B = dO, Q in panels of columns
//
// LSE and delta are taken off at the end, not put in the accumulators at the start: that would round every partial
// sum to the size of LSE (measured: five times the error of dK at d = 512) to save one addition in 5 d.
//
// The keys of a sequence and key head are cut into parts, of which each has every so manyth block of NK keys, and a
// task has some of the parts. It walks the query rows in chunks; within a chunk, its parts; within those, their key
// blocks; within those, the chunk's rows QB at a time. dK and dV belong to one task. dQ is summed over each part by
// itself and then over the parts in order, whoever has them, so the bits do not depend on threads. Where the call
// accumulates, in fp32, sums of a chunk go straight to dK and dV, so that the task needs memory for one block of keys,
// not for all of its own.

constexpr int QB = abi::kQueryBlock;
static_assert(QB % NQ == 0 && NQ % kPer == 0);
constexpr int kPanelsPerBlock = QB / NQ, kQueryUnits = QB / kPer;

using abi::BackwardScratch;

// P^T and dS^T of one panel: in fp32, and as the products read them.
struct WeightTile {
  float *const p, *const ds, *const ds_units;  // of the panel, in the tiles of its block of rows
  float *const p_exact, *const ds_exact;       // kLd apart
  static constexpr int kLd = kPer == 1 ? QB : NQ;

  FW_INLINE WeightTile(const BackwardScratch& mem, int panel)
      : p(mem.p + panel * (NQ / kPer)),
        ds(mem.ds + panel * (NQ / kPer)),
        ds_units(mem.ds_units + panel * NQ),
        p_exact(kPer == 1 ? p : mem.p_exact),
        ds_exact(kPer == 1 ? ds : mem.ds_exact) {}

  FW_INLINE float* weight(int k, int j) const { return p_exact + k * kLd + j * W; }
  FW_INLINE float* gradient(int k, int j) const { return ds_exact + k * kLd + j * W; }

#if defined(FW_ZEN4)
  FW_INLINE void put_weights(int k, const V (&e)[NV]) const {
    store(p + k * kQueryUnits, (V)round_32<BFloat16>(e[0], e[1]));
  }
  FW_INLINE void put_gradients(int k, const V (&g)[kPer][NV]) const {
    const VU16x32 one = round_32<BFloat16>(g[0][0], g[0][1]), two = round_32<BFloat16>(g[1][0], g[1][1]);
    store(ds + k * kQueryUnits, (V)one), store(ds + (k + 1) * kQueryUnits, (V)two);
    store(ds_units + k * kQueryUnits, Product::columns<0>(one, two));  // (k / kPer) * QB
    store(ds_units + k * kQueryUnits + W, Product::columns<1>(one, two));
  }
  // As the products read them, from what they are in fp32.
  FW_INLINE void round(TileRange t) const {
    for (int k = t.begin; k < t.end; k += kPer) {
      V g[kPer][NV];
      FW_UNROLL for (int r = 0; r < kPer; ++r) {
        V e[NV];
        FW_UNROLL for (int j = 0; j < NV; ++j) e[j] = load(weight(k + r, j)), g[r][j] = load(gradient(k + r, j));
        put_weights(k + r, e);
      }
      put_gradients(k, g);
    }
  }
#else  // fp32 is what they read
  FW_INLINE void put_weights(int, const V (&)[NV]) const {}
  FW_INLINE void put_gradients(int k, const V (&g)[1][NV]) const {
    FW_UNROLL for (int j = 0; j < NV; ++j) store(gradient(k, j), g[0][j]);
  }
  FW_INLINE void round(TileRange) const {}
#endif
};

// P^T and dS^T of one panel, plain scores: both products of a group of keys back to back, exp and product in the
// epilogues.
template <bool Masked>
FW_NOINLINE void probability_tile(const BackwardScratch& mem, const PanelRows& rows, const float* q, const float* d_o,
                                  const float* neg_lse, const float* delta, const abi::Params& params, int64_t k0,
                                  TileRange t, WeightTile out) {
  const int dim_qk = units_of(params.dim_qk), dim_v = units_of(params.dim_v);
  const float scale = params.softmax_scale * kLog2e;
  for (int k = t.begin; k < t.end; k += MR) {
    V c[MR][NV];
    clear(c);
    multiply_tile<MR, 1, MR, NQ>(c, mem.k_groups + k * dim_qk, q, dim_qk);
    FW_UNROLL for (int i = 0; i < MR; ++i) {
      V e[NV];
      FW_UNROLL for (int j = 0; j < NV; ++j) {
        e[j] = exp2_fast(Product::score(c[i][j], scale) + load(neg_lse + j * W));
        if (Masked) e[j] = zero_unless(sees(rows, j, int32_t(k0) + k + i), e[j]);
        store(out.weight(k + i, j), e[j]);
      }
      out.put_weights(k + i, e);
      FW_KEEP_ORDER;
    }
    clear(c);
    multiply_tile<MR, 1, MR, NQ>(c, mem.v_groups + k * dim_v, d_o, dim_v);
    FW_UNROLL for (int i = 0; i < MR; i += kPer) {
      V g[kPer][NV];
      FW_UNROLL for (int r = 0; r < kPer; ++r) FW_UNROLL for (int j = 0; j < NV; ++j) {
        g[r][j] = (c[i + r][j] - load(delta + j * W)) * load(out.weight(k + i + r, j));
        if (Masked) g[r][j] = zero_unless(sees(rows, j, int32_t(k0) + k + i + r), g[r][j]);
      }
      out.put_gradients(k + i, g);
    }
  }
}

// One product of a panel, scaled where the queries are not: raw scores or dP.
FW_NOINLINE void product_tile(const float* groups, const float* panel, int units, float scale, TileRange t,
                              float* out) {
  for (int k = t.begin; k < t.end; k += MR) {
    V c[MR][NV];
    clear(c);
    multiply_tile<MR, 1, MR, NQ>(c, groups + k * units, panel, units);
    FW_UNROLL for (int i = 0; i < MR; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) {
      c[i][j] = Product::score(c[i][j], scale);
    }
    store_tile<MR, WeightTile::kLd>(out + k * WeightTile::kLd, c);
  }
}

// The same with score modifiers or dropout, in separate passes. On return p holds what dV needs (dropped and rescaled).
// take(key, register, gradient of the modified scores) for each key and register of rows.
template <class T, class Take>
FW_NOINLINE void modified_tile(const abi::Params& params, const BackwardScratch& mem, const PanelRows& rows,
                               const float* q, const float* d_o, const float* neg_lse, const float* delta, int64_t keys,
                               int64_t k0, TileRange t, WeightTile out, Take take) {
  product_tile(mem.k_groups, q, units_of(params.dim_qk), params.softmax_scale * kLog2e, t, out.p_exact);
  product_tile(mem.v_groups, d_o, units_of(params.dim_v), 1.f, t, out.ds_exact);
  if (params.bias.data) load_bias_tile<T>(params, rows, k0, t.begin, t.end, keys, mem.bias);
  for (int j = 0; j < NV; ++j) {
    const V slope = load(rows.slope + j * W), start = load(neg_lse + j * W);
    const V diagonal = __builtin_convertvector(load_i(rows.diagonal + j * W) - int32_t(k0), V);
    for (int k = t.begin; k < t.end; ++k) {
      float* x = out.weight(k, j);
      V tanh_z{};
      const V s = modify_score(params, load(x), slope, diagonal, float(k),
                               params.bias.data ? mem.bias + k * NQ + j * W : nullptr, &tanh_z);
      store(mem.chain + k * NQ + j * W, 1.f - tanh_z * tanh_z);
      V log_prob = s + start;
      // Next to a large bias lse is coarse, and the difference may come out above 0, by numbers that exp2 makes inf.
      if (params.bias.data) log_prob = log_prob > 0.f ? V{} : log_prob;
      store(x, zero_unless(sees(rows, j, int32_t(k0) + k), exp2_masked(log_prob)));
    }
  }
  const float keep = 1.f / (1.f - params.dropout_p);
  auto finish = [&](int k, int j, VI kept) __attribute__((always_inline)) {
    float *x = out.weight(k, j), *g = out.gradient(k, j);
    const V e = load(x), d_p = zero_unless(kept, load(g) * keep);
    const V d_score = zero_unless(sees(rows, j, int32_t(k0) + k), e * (d_p - load(delta + j * W)));
    store(g, zero_unless(sees(rows, j, int32_t(k0) + k), d_score * load(mem.chain + k * NQ + j * W)));
    take(k, j, d_score);
    store(x, zero_unless(kept, e * keep));
  };
  if (params.dropout_threshold) {
    for_each_kept(params, rows, k0, t.begin, t.end, finish);
  } else {
    for (int j = 0; j < NV; ++j) {
      for (int k = t.begin; k < t.end; ++k) finish(k, j, splat_i(-1));
    }
  }
  out.round(t);
}

// Panels [from[g], to[g]) of a tile see some key of group g: contiguous, since what a row sees only moves forward.
struct GroupPanels {
  int from[NK / MR], to[NK / MR];
};

// acc[column panel][NK][NQ] += A[keys][QB] * columns[column panel][QB][NQ], rows by units, for each group of MR keys
// over the rows that see it, of which there are `units` in all. One panel of columns stays in the first-level cache
// while the groups pass over it. The rows of a block are summed up before they are added: one chain of fp32 additions
// over all rows loses 3 times as much (NOTES.md).
FW_NOINLINE void accumulate_keys(const float* a, const float* columns, int width, const GroupPanels& seen, int units,
                                 float* acc) {
  constexpr int kPanelUnits = NQ / kPer;
  for (int c = 0; c < width; c += NQ, columns += kQueryUnits * NQ, acc += NK * NQ) {
    for (int g = 0; g < NK / MR; ++g) {
      if (seen.from[g] >= seen.to[g]) continue;
      const int from = seen.from[g] * kPanelUnits, to = seen.to[g] * kPanelUnits;
      V tile[MR][NV];
      clear(tile);
      multiply_tile<MR, kQueryUnits, 1, NQ>(tile, a + g * MR * kQueryUnits + from, columns + from * NQ,
                                            (to < units ? to : units) - from);
      add_tile<MR, NQ>(acc + g * MR * NQ, tile);
    }
  }
}

// dQ^T += K^T dS^T for one panel.
FW_NOINLINE void accumulate_queries(const float* k_strips, const float* ds, const Strips& strips, TileRange t,
                                    float* dq) {
  strips.for_each([&](auto m, int f) __attribute__((always_inline)) {
    constexpr int M = decltype(m)::value;
    V c[M][NV];
    load_tile<M, NQ>(c, dq + f * NQ);
    multiply_tile<M, 1, M, QB>(c, k_strips + f * kStripLd + t.begin / kPer * M, ds + t.begin * kQueryUnits,
                               (t.end - t.begin) / kPer);
    store_tile<M, NQ>(dq + f * NQ, c);
  });
}

template <class T>
struct BackwardTask {
  const abi::Params& p;
  const Scope scope;
  const BackwardScratch mem;
  PanelRows* const rows;
  const Strips strips;
  const KeyParts parts;
  const int64_t chunk_rows;
  int64_t row0 = 0;  // of the chunk
  int panels = 0;

  FW_INLINE BackwardTask(const abi::Params& params, const Scope& sc, const BackwardScratch& m, const KeyParts& of_keys,
                         int64_t chunk)
      : p(params),
        scope(sc),
        mem(m),
        rows(reinterpret_cast<PanelRows*>(m.rows)),
        strips(params.dim_qk),
        parts(of_keys),
        chunk_rows(chunk) {}

  template <class Take>
  FW_INLINE void run(Take&& take) {
    const int64_t key_blocks = (scope.seq.keys + NK - 1) / NK;
    const bool one_slot = scope.rows <= chunk_rows || p.accumulate;
    if (!one_slot) {
      __builtin_memset(mem.dk, 0, parts.slots(key_blocks) * mem.dk_block * sizeof(float));
      __builtin_memset(mem.dv, 0, parts.slots(key_blocks) * mem.dv_block * sizeof(float));
    }
    int order[NQ];
    for (int i = 0; i < NQ; ++i) order[i] = i;
    for (row0 = 0; row0 == 0 || row0 < scope.rows; row0 += chunk_rows) {
      load_chunk();
      for (int32_t part = parts.first; part < parts.last; ++part) {
        key_part(part, key_blocks, one_slot);
        for (int i = 0; i < panels; ++i) {
          const int64_t at = i * mem.dq_stride;
          take({part, row0 + int64_t{i} * NQ, mem.dq + at, mem.dq_sum ? mem.dq_sum + at : nullptr, order,
                mem.d_slope + i * NQ});
        }
      }
    }
  }

  // The chunk's rows against the blocks of one part of the keys.
  FW_INLINE void key_part(int32_t part, int64_t key_blocks, bool one_slot) {
    __builtin_memset(mem.dq, 0, panels * mem.dq_stride * sizeof(float));
    __builtin_memset(mem.d_slope, 0, panels * NQ * sizeof(float));
    for (int64_t kb = part; kb < key_blocks; kb += parts.count) {
      const int64_t slot = one_slot ? 0 : parts.slot(kb);
      float *dk = mem.dk + slot * mem.dk_block, *dv = mem.dv + slot * mem.dv_block;
      if (one_slot) {
        clear_block(kb * NK, mem.q_width, dk);
        clear_block(kb * NK, mem.v_width, dv);
      }
      const bool seen = key_block(kb * NK, parts.next(kb, key_blocks, key_blocks) * NK, dk, dv);
      if (p.accumulate ? seen : row0 + chunk_rows >= scope.rows) write_keys(kb * NK, dk, dv);
    }
  }

  // The accumulators of the keys at k0 that exist: of a short sequence few of a block.
  FW_INLINE void clear_block(int64_t k0, int width, float* acc) const {
    const int64_t keys = round_up(scope.seq.keys - k0 < NK ? scope.seq.keys - k0 : int64_t{NK}, int64_t{MR});
    if (keys == NK) {
      __builtin_memset(acc, 0, int64_t{NK} * width * sizeof(float));
      return;
    }
    for (int c = 0; c < width; c += NQ) __builtin_memset(acc + c * NK, 0, keys * NQ * sizeof(float));
  }

  FW_INLINE float* q_panel(int i) const { return mem.q_panels + int64_t{i} * NQ * units_of(p.dim_qk); }
  FW_INLINE float* do_panel(int i) const { return mem.do_panels + int64_t{i} * NQ * units_of(p.dim_v); }

  // What S, dP and their gradients need of the chunk's rows; returns how many there are.
  FW_INLINE int64_t load_panels() {
    const int64_t count = scope.rows - row0 < chunk_rows ? scope.rows - row0 : chunk_rows;
    panels = int((count + NQ - 1) / NQ);
    const T *q[2][NQ], *d_o[2][NQ];
    scope.panel_pointers(p.q, row0, q[0]);
    scope.panel_pointers(p.d_o, row0, d_o[0]);
    for (int i = 0; i < panels; ++i) {
      const int64_t row = row0 + int64_t{i} * NQ;
      const bool last = i + 1 == panels;
      const T **const next_q = last ? nullptr : q[(i + 1) % 2], **const next_d_o = last ? nullptr : d_o[(i + 1) % 2];
      if (!last) {
        scope.panel_pointers(p.q, row + NQ, next_q);
        scope.panel_pointers(p.d_o, row + NQ, next_d_o);
      }
      scope.for_each_row(row, scope.panel_count(row), [&](int, int64_t query, int32_t head) {
        prefetch_output<T>(p, scope, query, head);  // for delta, below
      });
      pack_panel<Product>(q[i % 2], next_q, p.dim_qk, p.softmax_scale * kLog2e, q_panel(i));
      pack_panel<Product>(d_o[i % 2], next_d_o, p.dim_v, 1.f, do_panel(i));
      scope.describe_panel(row, rows[i]);
      float *neg_lse = mem.neg_lse + i * NQ, *delta = mem.delta + i * NQ;
      for (int lane = 0; lane < NQ; ++lane) neg_lse[lane] = -kInf, delta[lane] = 0.f;
      scope.for_each_row(row, scope.panel_count(row), [&](int lane, int64_t query, int32_t head) {
        const float lse = *scope.pointer<const float>(p.lse, query, head);
        if (lse != -kInf) neg_lse[lane] = -in_log2(lse);  // else an empty row: P = 0
        delta[lane] = row_delta<T>(p, scope, query, head);
      });
    }
    return count;
  }

  FW_INLINE void load_chunk() {
    const int64_t count = load_panels();
    for (int64_t r = 0; r < count; r += QB) {
      const T *q_rows[QB], *do_rows[QB];
      const int n = int(count - r < QB ? count - r : QB);
      scope.row_pointers(p.q, row0 + r, n, q_rows);
      scope.row_pointers(p.d_o, row0 + r, n, do_rows);
      pack_columns(q_rows, n, p.dim_qk, kQueryUnits, mem.q_columns + r / kPer * mem.q_width);
      pack_columns(do_rows, n, p.dim_v, kQueryUnits, mem.do_columns + r / kPer * mem.v_width);
    }
  }

  // The chunk's rows against one block of keys; whether any sees some of it. That at `next` comes after it.
  FW_INLINE bool key_block(int64_t k0, int64_t next, float* dk, float* dv) {
    const int count = int(scope.seq.keys - k0 < NK ? scope.seq.keys - k0 : NK);
    const int padded = round_up(count, MR);
    const T *k_rows[NK], *v_rows[NK];
    for (int k = 0; k < padded; ++k) {
      k_rows[k] = k < count ? scope.key_pointer<const T>(p.k, k0 + k) : nullptr;
      v_rows[k] = k < count ? scope.key_pointer<const T>(p.v, k0 + k) : nullptr;
    }
    bool packed = false;  // only once some row is known to see the block
    for (int first = 0; first < panels; first += kPanelsPerBlock) {
      const int n = panels - first < kPanelsPerBlock ? panels - first : kPanelsPerBlock;
      if (rows[first].min_first >= k0 + count || rows[first + n - 1].max_last <= k0) continue;
      if (!packed) {
        pack_groups(k_rows, padded, p.dim_qk, mem.k_groups);
        pack_strips(k_rows, padded, p.dim_qk, strips, kStripLd, mem.k_strips);
        pack_groups(v_rows, padded, p.dim_v, mem.v_groups);
        packed = true;
      }
      const int64_t end = scope.seq.keys;
      scope.template prefetch_keys<T>(next, next + NK < end ? next + NK : end, first / kPanelsPerBlock,
                                      (panels + kPanelsPerBlock - 1) / kPanelsPerBlock);
      block_step(first, n, k0, count, dk, dv);
    }
    return packed;
  }

  // n panels (up to QB rows) against the packed block of keys.
  FW_INLINE void block_step(int first, int n, int64_t k0, int count, float* dk, float* dv) {
    GroupPanels seen;
    for (int g = 0; g < NK / MR; ++g) seen.from[g] = n, seen.to[g] = 0;
    const bool modified = has_score_modifiers(p) || p.dropout_threshold;
    for (int i = 0; i < n; ++i) {
      const int panel = first + i;
      const PanelRows& lanes = rows[panel];
      const TileRange t = tile_range(lanes, k0, count);
      if (t.begin >= t.end) continue;
      const float *q = q_panel(panel), *d_o = do_panel(panel);
      const float *neg_lse = mem.neg_lse + panel * NQ, *delta = mem.delta + panel * NQ;
      const WeightTile out(mem, i);
      if (modified) {
        float* const d_slope = mem.d_slope + panel * NQ;
        modified_tile<T>(p, mem, lanes, q, d_o, neg_lse, delta, scope.seq.keys, k0, t, out,
                         [&](int k, int j, V d_score) __attribute__((always_inline)) {
                           if (p.d_slopes) add_slope_gradient(lanes, j, int32_t(k0) + k, d_score, d_slope);
                         });
      } else {
        for_each_part(lanes, k0, t, [&](const TileRange& part) __attribute__((always_inline)) {
          const auto tile = part.masked ? probability_tile<true> : probability_tile<false>;
          tile(mem, lanes, q, d_o, neg_lse, delta, p, k0, part, out);
        });
      }
      accumulate_queries(mem.k_strips, out.ds_units, strips, t, mem.dq + panel * mem.dq_stride);
      for (int g = t.begin / MR; g < t.end / MR; ++g) {
        seen.from[g] = i < seen.from[g] ? i : seen.from[g];
        seen.to[g] = i + 1;
      }
    }
    const int64_t block = int64_t{first} / kPanelsPerBlock * kQueryUnits;
    const float *q_columns = mem.q_columns + block * mem.q_width, *do_columns = mem.do_columns + block * mem.v_width;
    const int64_t rest = scope.rows - row0 - int64_t{first} * NQ;
    const int units = units_of(int(rest < n * NQ ? rest : n * NQ));
    accumulate_keys(mem.p, do_columns, mem.v_width, seen, units, dv);
    accumulate_keys(mem.ds, q_columns, mem.q_width, seen, units, dk);
  }

  FW_INLINE void write_keys(int64_t k0, const float* dk, const float* dv) {
    const int count = int(scope.seq.keys - k0 < NK ? scope.seq.keys - k0 : NK);
    if (p.dk.data) write_gradient(p.dk, k0, count, dk, p.dim_qk, p.softmax_scale);
    if (p.dv.data) write_gradient(p.dv, k0, count, dv, p.dim_v, 1.f);
  }
  FW_INLINE void write_gradient(const abi::Tensor& t, int64_t k0, int count, const float* acc, int n, float scale) {
    constexpr int kAhead = 8;
    in_dtype<T>(t, [&](auto* of) __attribute__((always_inline)) {
      using Out = std::remove_pointer_t<decltype(of)>;
      for (int k = 0; k < count; ++k, acc += NQ) {
        if (k + kAhead < count) prefetch_row(scope.key_pointer<Out>(t, k0 + k + kAhead), n);
        Out* const out = scope.key_pointer<Out>(t, k0 + k);
        for (int c = 0; c < n; c += W) put_part(p, out + c, load(acc + c / NQ * NK * NQ + c % NQ) * scale, n - c);
      }
    });
  }
};

template <class T>
void backward_products(const abi::Params& p, const abi::CpuLaunch& launch) {
  const int64_t rows_max = int64_t{p.seqlen_q} * (p.heads_q / p.heads_k), chunk_rows = launch.schedule.rows_per_task;
  const int64_t key_blocks = (int64_t{p.seqlen_k} + NK - 1) / NK;
  const bool one_slot = rows_max <= chunk_rows || p.accumulate;
  backward_tasks<T>(p, launch,
                    [&](const Scope& scope, const Scope*, const KeyParts& parts, char* scratch, auto&& take) {
                      const BackwardScratch mem(scratch, kTile, p.dim_qk, p.dim_v, chunk_rows,
                                                one_slot ? 1 : parts.slots(key_blocks), parts.sums());
                      BackwardTask<T> task(p, scope, mem, parts, chunk_rows);
                      task.run(take);
                    });
}

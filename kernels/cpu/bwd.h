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
// A task is a sequence, a key head and every splits-th block of NK keys. It walks the query rows in chunks; within a
// chunk, its key blocks; within those, the chunk's rows QB at a time. dK and dV belong to one task. dQ is summed over
// the tasks of a head in a fixed order, so the bits do not depend on threads.

constexpr int QB = abi::kQueryBlock;
static_assert(QB % NQ == 0);
constexpr int kPanelsPerBlock = QB / NQ;

using abi::BackwardScratch;

// P^T and dS^T of one panel, plain scores: both products of a group of keys back to back, exp and product in the
// epilogues.
template <bool Masked>
FW_NOINLINE void probability_tile(const BackwardScratch& mem, const PanelRows& rows, const float* q, const float* d_o,
                                  const float* neg_lse, const float* delta, int dim_qk, int dim_v, int64_t k0,
                                  TileRange t, float* p, float* ds) {
  for (int k = t.begin; k < t.end; k += MR) {
    V c[MR][NV];
    clear(c);
    multiply_tile<MR, 1, MR, NQ>(c, mem.k_groups + k * dim_qk, q, dim_qk);
    FW_UNROLL for (int i = 0; i < MR; ++i) {
      FW_UNROLL for (int j = 0; j < NV; ++j) {
        V e = exp2_fast(c[i][j] + load(neg_lse + j * W));
        if (Masked) e = zero_unless(sees(rows, j, int32_t(k0) + k + i), e);
        store(p + (k + i) * QB + j * W, e);
      }
      FW_KEEP_ORDER;
    }
    clear(c);
    multiply_tile<MR, 1, MR, NQ>(c, mem.v_groups + k * dim_v, d_o, dim_v);
    FW_UNROLL for (int i = 0; i < MR; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) {
      V g = (c[i][j] - load(delta + j * W)) * load(p + (k + i) * QB + j * W);
      if (Masked) g = zero_unless(sees(rows, j, int32_t(k0) + k + i), g);
      store(ds + (k + i) * QB + j * W, g);
    }
  }
}

// One product of a panel, stored as it is: raw scores or dP.
FW_NOINLINE void product_tile(const float* groups, const float* panel, int dim, TileRange t, float* out) {
  for (int k = t.begin; k < t.end; k += MR) {
    V c[MR][NV];
    clear(c);
    multiply_tile<MR, 1, MR, NQ>(c, groups + k * dim, panel, dim);
    store_tile<MR, QB>(out + k * QB, c);
  }
}

// The same with score modifiers or dropout, in separate passes. On return p holds what dV needs (dropped and rescaled).
// take(key, register, gradient of the modified scores) for each key and register of rows.
template <class T, class Take>
FW_NOINLINE void general_tile(const abi::Params& params, const BackwardScratch& mem, const PanelRows& rows,
                              const float* q, const float* d_o, const float* neg_lse, const float* delta, int64_t keys,
                              int64_t k0, TileRange t, float* p, float* ds, Take take) {
  product_tile(mem.k_groups, q, params.dim_qk, t, p);
  product_tile(mem.v_groups, d_o, params.dim_v, t, ds);
  if (params.bias.data) load_bias_tile<T>(params, rows, k0, t.begin, t.end, keys, mem.bias);
  for (int j = 0; j < NV; ++j) {
    const V slope = load(rows.slope + j * W), start = load(neg_lse + j * W);
    const V diagonal = __builtin_convertvector(load_i(rows.diagonal + j * W) - int32_t(k0), V);
    for (int k = t.begin; k < t.end; ++k) {
      float* x = p + k * QB + j * W;
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
    float *x = p + k * QB + j * W, *g = ds + k * QB + j * W;
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
}

// Panels [from[g], to[g]) of a tile see some key of group g: contiguous, since what a row sees only moves forward.
struct GroupPanels {
  int from[NK / MR], to[NK / MR];
};

// acc[column panel][NK][NQ] += A[keys][QB] * columns[column panel][QB][NQ], for each group of MR keys over the rows
// that see it. One panel of columns stays in the first-level cache while the groups pass over it. The rows of a block
// are summed up before they are added: one chain of fp32 additions over all rows loses 3 times as much (NOTES.md).
FW_NOINLINE void accumulate_keys(const float* a, const float* columns, int width, const GroupPanels& seen, float* acc) {
  for (int c = 0; c < width; c += NQ, columns += QB * NQ, acc += NK * NQ) {
    for (int g = 0; g < NK / MR; ++g) {
      if (seen.from[g] >= seen.to[g]) continue;
      V tile[MR][NV];
      clear(tile);
      multiply_tile<MR, QB, 1, NQ>(tile, a + g * MR * QB + seen.from[g] * NQ, columns + seen.from[g] * NQ * NQ,
                                   (seen.to[g] - seen.from[g]) * NQ);
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
    multiply_tile<M, 1, M, QB>(c, k_strips + f * kStripLd + t.begin * M, ds + t.begin * QB, t.end - t.begin);
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
  const int32_t split, splits;
  const int64_t chunk_rows;
  int64_t row0 = 0;  // of the chunk
  int panels = 0;

  FW_INLINE BackwardTask(const abi::Params& params, const Scope& sc, const BackwardScratch& m, int32_t part,
                         int32_t parts, int64_t chunk)
      : p(params),
        scope(sc),
        mem(m),
        rows(reinterpret_cast<PanelRows*>(m.rows)),
        strips(params.dim_qk),
        split(part),
        splits(parts),
        chunk_rows(chunk) {}

  template <class Take>
  FW_INLINE void run(Take&& take) {
    const int64_t key_blocks = (scope.seq.keys + NK - 1) / NK;
    const bool one_chunk = scope.rows <= chunk_rows;
    if (!one_chunk) {
      const int64_t mine = (key_blocks - split + splits - 1) / splits;
      __builtin_memset(mem.dk, 0, mine * mem.dk_block * sizeof(float));
      __builtin_memset(mem.dv, 0, mine * mem.dv_block * sizeof(float));
    }
    for (row0 = 0; row0 == 0 || row0 < scope.rows; row0 += chunk_rows) {
      load_chunk();
      for (int64_t kb = split; kb < key_blocks; kb += splits) {
        const int64_t slot = one_chunk ? 0 : kb / splits;
        float *dk = mem.dk + slot * mem.dk_block, *dv = mem.dv + slot * mem.dv_block;
        if (one_chunk) {
          __builtin_memset(dk, 0, mem.dk_block * sizeof(float));
          __builtin_memset(dv, 0, mem.dv_block * sizeof(float));
        }
        key_block(kb * NK, dk, dv);
        if (row0 + chunk_rows >= scope.rows) write_keys(kb * NK, dk, dv);
      }
      int order[NQ];
      for (int i = 0; i < NQ; ++i) order[i] = i;
      for (int i = 0; i < panels; ++i) {
        take(row0 + int64_t{i} * NQ, mem.dq + i * mem.dq_stride, order, mem.d_slope + i * NQ);
      }
    }
  }

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
      pack_panel<T>(q[i % 2], next_q, p.dim_qk, p.softmax_scale * kLog2e, mem.q_panels + int64_t{i} * NQ * p.dim_qk);
      pack_panel<T>(d_o[i % 2], next_d_o, p.dim_v, 1.f, mem.do_panels + int64_t{i} * NQ * p.dim_v);
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
      pack_columns(q_rows, n, p.dim_qk, QB, mem.q_columns + r * mem.q_width);
      pack_columns(do_rows, n, p.dim_v, QB, mem.do_columns + r * mem.v_width);
    }
    __builtin_memset(mem.dq, 0, panels * mem.dq_stride * sizeof(float));
    __builtin_memset(mem.d_slope, 0, panels * NQ * sizeof(float));
  }

  // The chunk's rows against one block of keys.
  FW_INLINE void key_block(int64_t k0, float* dk, float* dv) {
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
      const int64_t next = k0 + int64_t{splits} * NK, end = scope.seq.keys;
      scope.template prefetch_keys<T>(next, next + NK < end ? next + NK : end, first / kPanelsPerBlock,
                                      (panels + kPanelsPerBlock - 1) / kPanelsPerBlock);
      block_step(first, n, k0, count, dk, dv);
    }
  }

  // n panels (up to QB rows) against the packed block of keys.
  FW_INLINE void block_step(int first, int n, int64_t k0, int count, float* dk, float* dv) {
    GroupPanels seen;
    for (int g = 0; g < NK / MR; ++g) seen.from[g] = n, seen.to[g] = 0;
    const bool general = has_score_modifiers(p) || p.dropout_threshold;
    for (int i = 0; i < n; ++i) {
      const int panel = first + i;
      const PanelRows& lanes = rows[panel];
      const TileRange t = tile_range(lanes, k0, count);
      if (t.begin >= t.end) continue;
      const float *q = mem.q_panels + int64_t{panel} * NQ * p.dim_qk,
                  *d_o = mem.do_panels + int64_t{panel} * NQ * p.dim_v;
      const float *neg_lse = mem.neg_lse + panel * NQ, *delta = mem.delta + panel * NQ;
      float *prob = mem.p + i * NQ, *ds = mem.ds + i * NQ;
      if (general) {
        float* const d_slope = mem.d_slope + panel * NQ;
        general_tile<T>(p, mem, lanes, q, d_o, neg_lse, delta, scope.seq.keys, k0, t, prob, ds,
                        [&](int k, int j, V d_score) __attribute__((always_inline)) {
                          if (p.d_slopes) add_slope_gradient(lanes, j, int32_t(k0) + k, d_score, d_slope);
                        });
      } else {
        for_each_part(lanes, k0, t, [&](const TileRange& part) __attribute__((always_inline)) {
          const auto tile = part.masked ? probability_tile<true> : probability_tile<false>;
          tile(mem, lanes, q, d_o, neg_lse, delta, p.dim_qk, p.dim_v, k0, part, prob, ds);
        });
      }
      accumulate_queries(mem.k_strips, ds, strips, t, mem.dq + panel * mem.dq_stride);
      for (int g = t.begin / MR; g < t.end / MR; ++g) {
        seen.from[g] = i < seen.from[g] ? i : seen.from[g];
        seen.to[g] = i + 1;
      }
    }
    const int64_t block = int64_t{first} / kPanelsPerBlock * QB;
    const float *q_columns = mem.q_columns + block * mem.q_width, *do_columns = mem.do_columns + block * mem.v_width;
    accumulate_keys(mem.p, do_columns, mem.v_width, seen, dv);
    accumulate_keys(mem.ds, q_columns, mem.q_width, seen, dk);
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
        for (int c = 0; c < n; c += W) store_part(out + c, load(acc + c / NQ * NK * NQ + c % NQ) * scale, n - c);
      }
    });
  }
};

template <class T>
FW_INLINE void bias_gradient(const abi::Params& p, const abi::CpuLaunch& launch);

template <class T>
void backward(const abi::Params& p, const abi::CpuLaunch& launch) {
  const int64_t rows_max = int64_t{p.seqlen_q} * (p.heads_q / p.heads_k), chunk_rows = launch.schedule.rows_per_task;
  const int32_t splits = launch.schedule.splits;
  const int64_t key_blocks = (int64_t{p.seqlen_k} + NK - 1) / NK;
  const int64_t acc_blocks = rows_max <= chunk_rows ? 1 : (key_blocks + splits - 1) / splits;
  backward_tasks<T>(p, launch, [&](const Scope& scope, int32_t split, char* scratch, auto&& take) {
    const BackwardScratch mem(scratch, kTile, p.dim_qk, p.dim_v, chunk_rows, acc_blocks);
    BackwardTask<T> task(p, scope, mem, split, splits, chunk_rows);
    task.run(take);
  });
  if (p.d_bias.data) bias_gradient<T>(p, launch);
}

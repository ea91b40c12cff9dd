// The softmax matrix, for callers that ask for it: the scores once more, now that each row's m and l are known (left by
// combine_row), and P = 2^(s - m) / l written out, every element of it. Included after fwd.h.
//
// Recomputing costs half a forward; keeping the scores until then would be three passes over s^2 floats in memory.

FW_INLINE void store_probabilities(float* row, int64_t step, V x, int n) {
  if (step == 1) return store_part(row, x, n);
  for (int i = 0; i < n && i < W; ++i) row[i * step] = x[i];
}
FW_INLINE void clear_probabilities(float* row, int64_t step, int64_t begin, int64_t end) {
  if (step == 1) {
    if (begin < end) __builtin_memset(row + begin, 0, (end - begin) * sizeof(float));
    return;
  }
  for (int64_t k = begin; k < end; ++k) row[k * step] = 0.f;
}

template <class T>
struct ProbabilityTask {
  const abi::Params& p;
  ForwardTask<T> of;  // whose queries, rows and memory for scores serve here
  const PartialResults& parts;
  const int64_t first_row_of_call;

  FW_INLINE ProbabilityTask(const abi::Params& params, const Scope& scope, char* scratch, int64_t row0, int rows,
                            const PartialResults& results, int64_t first)
      : p(params), of(params, scope, scratch, row0, rows), parts(results), first_row_of_call(first) {}

  FW_INLINE float* matrix_row(int64_t row) const {
    const int64_t* s = p.probs.stride;
    return static_cast<float*>(p.probs.data) + of.scope.seq.b * s[0] + of.scope.head(row) * s[1] +
           of.scope.query(row) * s[2];
  }

  // Columns [begin, end) of the rows, of which the sequence has those below `keys`.
  FW_INLINE void run(int64_t begin, int64_t end) {
    of.start(false);
    const int64_t step = p.probs.stride[3], keys = of.scope.seq.keys, last = end < keys ? end : keys;
    for (int64_t k0 = begin; k0 < last; k0 += NK) {
      const int count = int(last - k0 < NK ? last - k0 : NK), padded = round_up(count, MR);
      const T* k_rows[NK];
      for (int k = 0; k < padded; ++k)
        k_rows[k] = k < count ? of.scope.template key_pointer<const T>(p.k, k0 + k) : nullptr;
      bool packed = false;  // only once some row is known to see the block
      for (int i = 0; i < of.panels; ++i) {
        const TileRange t = tile_range(of.rows[i], k0, count);
        if (t.begin < t.end && !packed) {
          pack_groups(k_rows, padded, p.dim_qk, of.mem.k_groups);
          packed = true;
        }
        panel_step(i, k0, count, t, step);
      }
    }
    const int64_t rows =
        of.scope.rows - of.row0 < int64_t{of.panels} * NQ ? of.scope.rows - of.row0 : int64_t{of.panels} * NQ;
    for (int64_t r = 0; r < rows; ++r)
      clear_probabilities(matrix_row(of.row0 + r), step, last > begin ? last : begin, end);
  }

  // One panel against a block of keys; those outside t no row sees.
  FW_NOINLINE void panel_step(int i, int64_t k0, int count, const TileRange& t, int64_t step) {
    const PanelRows& panel = of.rows[i];
    const int64_t row = of.row0 + int64_t{i} * NQ;
    const int rows = of.scope.panel_count(row);
    float* const s = of.mem.s;
    if (t.begin < t.end) {
      score_panel(i, k0, t);
      weigh(panel, row, rows, k0, t);
      if (p.dropout_threshold) {
        for_each_kept(p, panel, k0, t.begin, t.end, [&](int k, int j, VI kept) __attribute__((always_inline)) {
          const V x = load(s + k * NQ + j * W);
          store(s + k * NQ + j * W, kept ? x : -x);
        });
      }
      // After all else: what is hidden is +0 whatever the row holds.
      for (int j = 0; j < NV; ++j) {
        for (int k = t.begin; k < t.end && t.masked; ++k) {
          float* x = s + k * NQ + j * W;
          store(x, zero_unless(sees(panel, j, int32_t(k0) + k), load(x)));
        }
      }
    }
    const int begin = t.begin < t.end ? t.begin : 0, end = t.begin < t.end ? t.end : 0;
    __builtin_memset(s, 0, begin * NQ * sizeof(float));
    if (end < count) __builtin_memset(s + end * NQ, 0, (count - end) * NQ * sizeof(float));
    alignas(64) float one[NQ];
    for (float& x : one) x = 1.f;
    float* pointers[NQ];
    for (int lane = 0; lane < rows; ++lane) pointers[lane] = matrix_row(row + lane) + k0 * step;
    unpack_rows(s, count, one, [&](int lane, int c, V x) __attribute__((always_inline)) {
      if (lane < rows) store_probabilities(pointers[lane] + c * step, step, x, count - c);
    });
  }

  FW_INLINE void score_panel(int i, int64_t k0, const TileRange& t) {
    V largest[NV];
    score_tile(of.mem.k_groups, of.mem.q + i * of.mem.q_stride, p.dim_qk, of.scale, t.begin, t.end, of.mem.s, largest);
    if (!has_score_modifiers(p)) return;
    if (p.bias.data) load_bias_tile<T>(p, of.rows[i], k0, t.begin, t.end, of.scope.seq.keys, of.mem.bias);
    modify_scores(p, of.rows[i], p.bias.data ? of.mem.bias : nullptr, k0, t.begin, t.end, of.mem.s);
  }

  // Scores -> P.
  FW_INLINE void weigh(const PanelRows& panel, int64_t row, int rows, int64_t k0, const TileRange& t) {
    alignas(64) float m[NQ] = {}, inverse[NQ] = {};
    for (int lane = 0; lane < rows; ++lane) {
      const int64_t index = first_row_of_call + row + lane;
      m[lane] = reference_of(parts.m[index]);
      inverse[lane] = scale_of_row(parts.l[index]);
    }
    for (int j = 0; j < NV; ++j) {
      const V base = load(m + j * W), scale = load(inverse + j * W);
      for (int k = t.begin; k < t.end; ++k) {
        float* x = of.mem.s + k * NQ + j * W;
        store(x, exp2_masked(min(splat(126.f), load(x) - base)) * scale);
      }
    }
  }
};

template <class T>
FW_INLINE void write_probabilities(const abi::Params& p, const abi::CpuLaunch& launch) {
  const ForwardGrid grid(p, launch.schedule);
  const int rows_per_task = grid.rows_per_task;
  const PartialResults parts = grid.parts(launch.workspace, p.dim_v);
  launch.for_each_task(grid.tasks(), [&](int64_t t, int32_t worker) {
    const int64_t head = grid.head(t), row0 = grid.block(t) * rows_per_task;
    const int32_t split = grid.split(t);
    const Scope scope(p, int32_t(head / p.heads_k), int32_t(head % p.heads_k));
    const int64_t begin = split * launch.schedule.keys_per_split;
    const int64_t end = begin + launch.schedule.keys_per_split < p.seqlen_k ? begin + launch.schedule.keys_per_split
                                                                            : int64_t{p.seqlen_k};
    if (begin >= end) return;  // more parts were asked for than there are blocks of keys
    const int64_t exist = scope.rows - row0 < rows_per_task ? scope.rows - row0 : rows_per_task;
    ProbabilityTask<T> task(p, scope, launch.scratch_of(worker), row0, int(exist > 0 ? exist : 0), parts,
                            head * grid.rows_max);
    const int64_t last = row0 + rows_per_task < grid.rows_max ? row0 + rows_per_task : grid.rows_max;
    for (int64_t row = exist > 0 ? row0 + exist : row0; row < last; ++row) {  // past a ragged sequence
      clear_probabilities(task.matrix_row(row), p.probs.stride[3], begin, end);
    }
    if (exist > 0) task.run(begin, end);
  });
}

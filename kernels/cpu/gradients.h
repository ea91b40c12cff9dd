// Parts of the backward that do not depend on how a task computes: which tasks there are, how their shares of dQ are
// summed, and the gradients that need no product. Included after rows.h.

// body(elements) of a tensor in fp32 or in T.
template <class T, class Body>
FW_INLINE auto in_dtype(const abi::Tensor& t, Body&& body) {
  if (t.dtype == abi::kF32) return body(static_cast<float*>(nullptr));
  return body(static_cast<T*>(nullptr));
}

template <class T>
FW_INLINE float row_delta(const abi::Params& p, const Scope& scope, int64_t query, int32_t head) {
  const T* d_o = scope.pointer<const T>(p.d_o, query, head);
  V sum = in_dtype<T>(p.o, [&](auto* of) __attribute__((always_inline)) {
    const auto* o = scope.pointer<const std::remove_pointer_t<decltype(of)>>(p.o, query, head);
    V sum{};
    for (int c = 0; c < p.dim_v; c += W) sum += load_part(o + c, p.dim_v - c) * load_part(d_o + c, p.dim_v - c);
    return sum;
  });
  const float d_lse = p.d_lse.data ? *scope.pointer<const float>(p.d_lse, query, head) : 0.f;
  return sum_lanes(sum) - d_lse;
}

// Its O is read soon.
template <class T>
FW_INLINE void prefetch_output(const abi::Params& p, const Scope& scope, int64_t query, int32_t head) {
  in_dtype<T>(p.o, [&](auto* of) __attribute__((always_inline)) {
    prefetch_row(scope.pointer<const std::remove_pointer_t<decltype(of)>>(p.o, query, head), p.dim_v);
  });
}

// d_sinks[h] = -sum over rows of exp(sink - LSE) * delta, one head per task.
template <class T>
FW_INLINE void sink_gradients(const abi::Params& p, const abi::CpuLaunch& launch) {
  launch.for_each_task(p.heads_q, [&](int64_t h, int32_t) {
    const int32_t group = p.heads_q / p.heads_k;
    double sum = 0;
    for (int32_t b = 0; b < p.batch; ++b) {
      const Scope scope(p, b, int32_t(h / group));
      for (int64_t row = h % group; row < scope.rows; row += group) {
        const float lse = *scope.row_pointer<const float>(p.lse, row);
        if (lse == -kInf) continue;
        sum -= double(__builtin_expf(p.sinks[h] - lse)) * row_delta<T>(p, scope, row / group, int32_t(h));
      }
    }
    p.d_sinks[h] = float(sum);
  });
}

template <class T>
FW_INLINE void clear_row(const abi::Params& p, const abi::Tensor& t, const Sequence& whole, int64_t row, int32_t head,
                         int n) {
  if (!t.data) return;
  in_dtype<T>(t, [&](auto* of) {
    auto* out = static_cast<decltype(of)>(t.data) + key_offset(p, t, whole, row, head);
    __builtin_memset(out, 0, n * sizeof *out);
  });
}

// Keys that lie outside the used part of the sequence (left pad, past seqused_k) get 0.
template <class T>
FW_INLINE void clear_unused_keys(const abi::Params& p, const Scope& scope) {
  if (p.accumulate) return;
  Sequence whole = scope.seq;
  whole.k_row = p.cu_seqlens_k ? p.cu_seqlens_k[whole.b] : 0;
  whole.keys = p.cu_seqlens_k ? p.cu_seqlens_k[whole.b + 1] - p.cu_seqlens_k[whole.b] : p.seqlen_k;
  const int64_t used_first = scope.seq.k_row - whole.k_row, used_last = used_first + scope.seq.keys;
  for (int64_t r = 0; r < whole.keys; ++r) {
    if (r >= used_first && r < used_last) continue;
    clear_row<T>(p, p.dk, whole, r, scope.kv_head, p.dim_qk);
    clear_row<T>(p, p.dv, whole, r, scope.kv_head, p.dim_v);
  }
}

// W numbers of a gradient's row, added to what is there if the call accumulates.
template <class Out>
FW_INLINE void put_part(const abi::Params& p, Out* row, V x, int n) {
  if (p.accumulate) x += load_part(row, n);
  store_part(row, x, n);
}

// Which keys a task has: parts [first, last) of `count`. Part s has the blocks of keys s, s + count, and so on.
struct KeyParts {
  int32_t first, last, count;

  // How many blocks there are in the largest part, and of how many a task keeps sums of dK and dV apart.
  FW_INLINE int64_t depth(int64_t blocks) const { return (blocks + count - 1) / count; }
  FW_INLINE int64_t blocks(int64_t all) const {
    int64_t n = 0;
    for (int32_t part = first; part < last; ++part) n += part < all ? (all - part + count - 1) / count : 0;
    return n;
  }
  FW_INLINE int64_t slots(int64_t blocks) const { return depth(blocks) * (last - first); }
  FW_INLINE bool sums() const { return last - first == count && count > 1; }  // dQ in the task, over its parts
  FW_INLINE int64_t slot(int64_t block) const { return block / count * (last - first) + block % count - first; }
  // The block after this one, or `none` after the last.
  FW_INLINE int64_t next(int64_t block, int64_t blocks, int64_t none) const {
    if (block + count < blocks) return block + count;
    const int64_t part = block % count + 1;
    return part < last && part < blocks ? part : none;
  }
};

// A part's share of dQ^T, [dim_qk][NQ]; column i belongs to row + order[i]. Where the task has all of it, it goes out
// scaled; else to `partial`, [part][row of the call][dim_qk].
template <class T>
FW_INLINE void take_queries(const abi::Params& p, const Scope& scope, int64_t row, const float* dq, const int* order,
                            float* partial) {
  alignas(64) float scale[NQ];
  for (float& x : scale) x = partial ? 1.f : p.softmax_scale;
  if (partial) {
    float* pointers[NQ];
    for (int i = 0; i < NQ; ++i) {
      const int64_t at = row + order[i];
      pointers[i] = at < scope.rows ? partial + at * p.dim_qk : nullptr;
    }
    unpack_panel(dq, p.dim_qk, scale, pointers);
  } else {
    in_dtype<T>(p.dq, [&](auto* of) {
      decltype(of) in_order[NQ], pointers[NQ];
      scope.panel_pointers(p.dq, row, in_order);
      for (int i = 0; i < NQ; ++i) pointers[i] = in_order[order[i]];
      if (!p.accumulate) return unpack_panel(dq, p.dim_qk, scale, pointers);
      unpack_rows(dq, p.dim_qk, scale, [&](int i, int c, V x) __attribute__((always_inline)) {
        if (pointers[i]) put_part(p, pointers[i] + c, x, p.dim_qk - c);
      });
    });
  }
}

// d_slope -= distance to the diagonal times the gradient of the score of key k, for W rows from register j on.
FW_INLINE void add_slope_gradient(const PanelRows& rows, int j, int32_t k, V d_score, float* d_slope) {
  const V distance = abs(__builtin_convertvector(load_i(rows.diagonal + j * W) - k, V));
  store(d_slope + j * W, load(d_slope + j * W) - distance * d_score);
}

// d_slopes[(b,) h]: the sum over rows and parts of the keys, one head per task.
template <class T>
FW_INLINE void slope_gradients(const abi::Params& p, const abi::CpuLaunch& launch, const float* shares) {
  const int32_t group = p.heads_q / p.heads_k, splits = launch.schedule.splits;
  const int64_t rows_max = int64_t{p.seqlen_q} * group, heads = int64_t{p.batch} * p.heads_k;
  launch.for_each_task(p.heads_q, [&](int64_t h, int32_t) {
    double sum = 0;
    for (int32_t b = 0; b < p.batch; ++b) {
      if (p.alibi_batch_stride != 0) sum = 0;
      const Scope scope(p, b, int32_t(h / group));
      const int64_t head = int64_t{b} * p.heads_k + h / group;
      for (int32_t s = 0; s < splits; ++s) {
        const float* of_head = shares + (s * heads + head) * rows_max;
        for (int64_t row = h % group; row < scope.rows; row += group) sum += double(of_head[row]);
      }
      p.d_slopes[b * p.alibi_batch_stride + h] = float(sum);
    }
  });
}

// dQ^T of one panel of rows, over one part of the keys, as a task hands it on.
struct QueryShare {
  int32_t part;
  int64_t row;           // the panel's first
  const float* dq;       // [dim_qk][NQ]
  float* sum;            // the same over the parts before it, if the task has them all and they are more than one
  const int* order;      // see take_queries
  const float* d_slope;  // of each row
};

// sum += share, from 0 on if it is the first, as if all shares were added at the end.
FW_INLINE void add_share(float* sum, const float* share, int dim, bool first) {
  for (int i = 0; i < dim * NQ; i += W) store(sum + i, (first ? V{} : load(sum + i)) + load(share + i));
}

// Nothing to set.
struct UsualArithmetic {};

// run(scope, next scope, parts, scratch, take) for each task, a sequence, a key head and some of the parts of its keys;
// it calls take(QueryShare) for each part and panel of rows, the parts of a panel in order. The next scope is that of
// the task that this worker may have after this one, if any. How many parts there are decides about the order of sums,
// how many a task has does not: it packs the queries once for all of them. Arithmetic: lives while numbers are added
// up.
template <class T, class Arithmetic = UsualArithmetic, class Run>
FW_INLINE void backward_tasks(const abi::Params& p, const abi::CpuLaunch& launch, Run&& run) {
  const int64_t rows_max = int64_t{p.seqlen_q} * (p.heads_q / p.heads_k), heads = int64_t{p.batch} * p.heads_k;
  const int32_t splits = launch.schedule.splits, ranges = int32_t(launch.schedule.tasks / heads);
  const abi::BackwardShared shared(launch.workspace, heads * rows_max, splits, ranges, p.dim_qk, p.d_slopes != nullptr);
  const float* partial = shared.dq;
  launch.for_each_task(heads * ranges, [&](int64_t t, int32_t worker) {
    const int64_t head = t / ranges, range = t % ranges;
    const KeyParts parts{int32_t(splits * range / ranges), int32_t(splits * (range + 1) / ranges), splits};
    const auto scope_of = [&](int64_t h) { return Scope(p, int32_t(h / p.heads_k), int32_t(h % p.heads_k)); };
    const Scope scope = scope_of(head);
    const int64_t next = (t + launch.workers) / ranges;
    const Scope next_scope = scope_of(next < heads ? next : head);
    if (range == 0) clear_unused_keys<T>(p, scope);
    run(scope, next < heads ? &next_scope : nullptr, parts, launch.scratch_of(worker), [&](const QueryShare& share) {
      const int64_t first_row = (share.part * heads + head) * rows_max;
      if (shared.slopes) {
        float* const slopes = shared.slopes + first_row + share.row;
        for (int i = 0; i < scope.panel_count(share.row); ++i) slopes[i] = share.d_slope[i];
      }
      if (!p.dq.data) return;
      const float* dq = share.dq;
      if (share.sum) {
        add_share(share.sum, dq, p.dim_qk, share.part == 0);
        if (share.part + 1 < splits) return;
        dq = share.sum;
      }
      float* const mine = shared.dq ? shared.dq + first_row * p.dim_qk : nullptr;
      take_queries<T>(p, scope, share.row, dq, share.order, mine);
    });
  });
  if (shared.dq && p.dq.data) {
    constexpr int64_t kRows = 64;
    const int64_t blocks = (rows_max + kRows - 1) / kRows;
    launch.for_each_task(heads * blocks, [&](int64_t t, int32_t) {
      [[maybe_unused]] const Arithmetic arithmetic;
      const int64_t head = t / blocks;
      const Scope scope(p, int32_t(head / p.heads_k), int32_t(head % p.heads_k));
      const int64_t end = (t % blocks + 1) * kRows < scope.rows ? (t % blocks + 1) * kRows : scope.rows;
      for (int64_t row = t % blocks * kRows; row < end; ++row) {
        in_dtype<T>(p.dq, [&](auto* of) __attribute__((always_inline)) {
          auto* out = scope.row_pointer<std::remove_pointer_t<decltype(of)>>(p.dq, row);
          for (int c = 0; c < p.dim_qk; c += W) {
            const int n = p.dim_qk - c < W ? p.dim_qk - c : W;
            V sum{};
            for (int32_t s = 0; s < splits; ++s) {
              sum += load_part(partial + ((s * heads + head) * rows_max + row) * p.dim_qk + c, n);
            }
            put_part(p, out + c, rounded(sum * p.softmax_scale), n);  // as take_queries() does
          }
        });
      }
    });
  }
  if (p.d_sinks) sink_gradients<T>(p, launch);
  if (p.d_slopes) slope_gradients<T>(p, launch, shared.slopes);
}

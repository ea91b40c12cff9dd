// Parts of the forward that do not depend on how a task computes: which tasks there are, and how the results of tasks
// that share the keys of a row are merged. Included after rows.h.

using abi::PartialResults;

// Merges the parts of one row in order and writes O and LSE. Where the softmax matrix is wanted, the whole row's m and
// l take the place of those of its first part.
template <class T>
FW_NOINLINE void combine_row(const abi::Params& p, const Scope& scope, const PartialResults& parts, int32_t splits,
                             int64_t row, int64_t index) {
  float top = -kInf, l = 0;
  for (int32_t s = 0; s < splits; ++s) {
    const float m = parts.m[s * parts.rows + index];
    top = m > top ? m : top;
  }
  float weight[256];  // num_splits <= 256
  for (int32_t s = 0; s < splits; ++s) {
    const float m = parts.m[s * parts.rows + index];
    weight[s] = m == -kInf ? 0.f : __builtin_exp2f(m - top);
    l += weight[s] * parts.l[s * parts.rows + index];
  }
  if (p.probs.data) parts.m[index] = top, parts.l[index] = l;
  const MergedRow end = end_row(p, scope, scope.query(row), scope.head(row), top, l);
  const float scale = scale_of_row(l, end.add * scale_of_kept(p));
  const auto write = [&](auto* o) __attribute__((always_inline)) {
    for (int c = 0; c < p.dim_v; c += W) {
      const int n = p.dim_v - c < W ? p.dim_v - c : W;
      V sum{};
      for (int32_t s = 0; s < splits; ++s) {
        if (weight[s] != 0.f) sum += weight[s] * load_part(parts.o + (s * parts.rows + index) * p.dim_v + c, n);
      }
      if constexpr (std::is_same_v<decltype(o), float*>) {
        add_part(o + c, sum * scale, n, end.keep);
      } else {
        store_part(o + c, sum * scale, n);
      }
    }
  };
  if (p.o.dtype == abi::kF32) return write(scope.row_pointer<float>(p.o, row));
  write(scope.row_pointer<T>(p.o, row));
}

template <class T>
FW_INLINE void combine_parts(const abi::Params& p, const abi::CpuLaunch& launch, const PartialResults& parts,
                             int64_t rows_max) {
  const int64_t heads = int64_t{p.batch} * p.heads_k;
  launch.for_each_task(heads, [&](int64_t head, int32_t) {
    const Scope scope(p, int32_t(head / p.heads_k), int32_t(head % p.heads_k));
    for (int64_t row = 0; row < scope.rows; ++row) {
      combine_row<T>(p, scope, parts, launch.schedule.splits, row, head * rows_max + row);
    }
  });
}

// Whether a task has all that its rows need; else m and l are left in PartialResults.
FW_INLINE bool in_one_part(const abi::Params& p, int32_t splits) { return splits == 1 && !p.probs.data; }

// How the rows and keys of a forward are cut up: tasks are (row block, part of the keys, sequence, key head).
struct ForwardGrid {
  int64_t rows_max, heads;  // rows of a key head; key heads of the call
  int rows_per_task;
  int32_t splits;
  int64_t blocks;

  FW_INLINE ForwardGrid(const abi::Params& p, const abi::Schedule& schedule)
      : rows_max(int64_t{p.seqlen_q} * (p.heads_q / p.heads_k)),
        heads(int64_t{p.batch} * p.heads_k),
        rows_per_task(schedule.rows_per_task),
        splits(schedule.splits),
        blocks((rows_max + rows_per_task - 1) / rows_per_task) {}

  FW_INLINE int64_t tasks() const { return blocks * splits * heads; }
  FW_INLINE int64_t head(int64_t task) const { return task % heads; }
  FW_INLINE int32_t split(int64_t task) const { return int32_t(task / heads % splits); }
  FW_INLINE int64_t block(int64_t task) const { return task / heads / splits; }
  FW_INLINE PartialResults parts(char* workspace, int dim_v) const {
    return PartialResults(workspace, heads * rows_max, splits, dim_v);
  }
};

// The last row blocks come first, since under a causal mask they are the longest. Task: start(with_sink), attend(first
// key, last key), finish() or finish_part(...).
template <class T, class Task>
FW_INLINE void forward_tasks(const abi::Params& p, const abi::CpuLaunch& launch) {
  const ForwardGrid grid(p, launch.schedule);
  const int rows_per_task = grid.rows_per_task;
  const int32_t splits = grid.splits;
  const PartialResults parts = grid.parts(launch.workspace, p.dim_v);
  launch.for_each_task(grid.tasks(), [&](int64_t t, int32_t worker) {
    const int64_t head = grid.head(t), row0 = (grid.blocks - 1 - grid.block(t)) * rows_per_task;
    const int32_t split = grid.split(t);
    const Scope scope(p, int32_t(head / p.heads_k), int32_t(head % p.heads_k));
    if (row0 >= scope.rows) return;
    const int rows = int(scope.rows - row0 < rows_per_task ? scope.rows - row0 : rows_per_task);
    Task task(p, scope, launch.scratch_of(worker), row0, rows);
    task.start(split == 0);
    const int64_t begin = split * launch.schedule.keys_per_split;
    const int64_t end = split + 1 == splits ? scope.seq.keys : begin + launch.schedule.keys_per_split;
    task.attend(begin, end < scope.seq.keys ? end : scope.seq.keys);
    if (in_one_part(p, splits)) {
      task.finish();
    } else {
      task.finish_part(parts, split, head * grid.rows_max);
    }
  });
  if (!in_one_part(p, splits)) combine_parts<T>(p, launch, parts, grid.rows_max);
}

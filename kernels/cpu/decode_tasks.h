// Parts of the forward for a handful of query rows that do not depend on how a task computes: which tasks there are,
// and where their keys lie. Included after parts.h.

// Keys between two updates of the online softmax.
#if defined(FW_ZEN4)
constexpr int kDecodeKeys =
    abi::kDecodeKeyBlock / 2;  // two blocks of all heads in half of a second-level cache of 1 MiB
#else
constexpr int kDecodeKeys = abi::kDecodeKeyBlock;
#endif
constexpr int kDotRows = W;  // with more rows than this the panel of fwd.h is faster (its cost is that of NQ rows)
static_assert(kDecodeKeys % W == 0 && kDecodeKeys % kKeysPerPhilox == 0);

// Rows of K and V of a block of keys, of the first head of a task: a page is looked up once for all keys it holds.
template <class T>
struct KeyBlock {
  const T *keys[kDecodeKeys], *values[kDecodeKeys];  // all of them can be read
  int count = 0;

  // Whether the W keys from i on exist and lie a row's stride apart.
  FW_INLINE bool evenly_spaced(const abi::Params& p, int i) const {
    if (i + W > count) return false;
    for (int j = i + 1; j < i + W; ++j) {
      if (keys[j] - keys[j - 1] != p.k.stride[1]) return false;
    }
    return true;
  }

  FW_INLINE void find(const Scope& scope, int64_t k0, int n) {
    const abi::Params& p = *scope.p;
    count = n;
    for (int i = 0; i < n;) {
      const T *k = scope.key_pointer<const T>(p.k, k0 + i), *v = scope.key_pointer<const T>(p.v, k0 + i);
      const int64_t in_page = p.block_table ? p.page_size - (scope.seq.k_row + k0 + i) % p.page_size : n - i;
      for (const int end = int(in_page < n - i ? in_page : n - i) + i; i < end; ++i) {
        keys[i] = k, values[i] = v;
        k += p.k.stride[1], v += p.v.stride[1];
      }
    }
    for (int i = n; i < kDecodeKeys; ++i) keys[i] = keys[0], values[i] = values[0];  // computed and thrown away
  }
};

// The rows of some tokens that are read soon, a few lines of the cache at a time; those of the heads of a token one
// after the other, which is the order of their addresses where these lie side by side. kFar: to the second-level cache.
template <class T, bool kFar>
struct SoonRead {
  const T* const* rows;  // of the first head
  int tokens, heads, bytes;
  int64_t head_stride;
  int head = 0;
  const char *at = nullptr, *end = nullptr;

  FW_INLINE SoonRead(const T* const* of, int count, int dim, int64_t first, int of_heads, int64_t stride)
      : rows(of), tokens(count), heads(of_heads), bytes(dim * int(sizeof(T))), head_stride(stride), offset(first) {
    if (stride == dim) bytes *= heads, heads = 1;
  }

  FW_INLINE static void fetch(const char* line) { __builtin_prefetch(line, 0, kFar ? 2 : 3); }
  FW_INLINE void next_row() {
    if (tokens <= 0) return;
    at = reinterpret_cast<const char*>(*rows + offset + head * head_stride);
    end = at + bytes;
    if (++head == heads) head = 0, ++rows, --tokens;
  }
  FW_INLINE void fetch_rows(int n) {
    for (int i = 0; i < n && tokens > 0; ++i) {
      for (next_row(); at < end; at += 64) fetch(at);
    }
  }
  template <int kLines>
  FW_INLINE void fetch_lines() {
    if (at >= end) next_row();
    if (end - at >= kLines * 64) {
      FW_UNROLL for (int i = 0; i < kLines; ++i) fetch(at + i * 64);
      at += kLines * 64;
    } else {
      FW_UNROLL for (int i = 0; i < kLines; ++i) {
        if (at < end) fetch(at), at += 64;
        if (at >= end) next_row();
      }
    }
  }

 private:
  int64_t offset;
};

// Far ones and near ones. A prefetch that finds no free buffer is lost, and there is none while loads wait for lines
// whose prefetch was lost, so that one loss makes the next: what was fetched from afar is asked for again before it is
// needed, at a time when other rows are worked on (NOTES.md, "Zen 4").
template <class Far>
struct SoonReadTwice {
  Far& far;
  Far near;

  template <int kLines>
  FW_INLINE void fetch_lines() {
    far.template fetch_lines<kLines>();
    near.template fetch_lines<kLines>();
  }
};

// Fetches a line of every page of memory that these rows lie in: looking up where a page is takes as long as several
// lines of it, above all in a virtual machine, and while that goes on nothing else of the page is fetched.
template <class T>
FW_INLINE void look_up_pages(const T* const* rows, int tokens, int dim, int heads, int64_t head_stride) {
  constexpr uintptr_t kPage = 4096;
  if (head_stride == dim) dim *= heads, heads = 1;
  for (int head = 0; head < heads; ++head) {
    uintptr_t known = 0;
    for (int i = 0; i < tokens; ++i) {
      const uintptr_t first = reinterpret_cast<uintptr_t>(rows[i] + head * head_stride);
      for (uintptr_t at = first; at < first + dim * sizeof(T); at = (at / kPage + 1) * kPage) {
        if (at / kPage == known) continue;
        known = at / kPage;
        __builtin_prefetch(reinterpret_cast<const void*>(at), 0, 2);
      }
    }
  }
}

// The key heads of one task pass over a block of keys one after the other, before the next block: where the heads of a
// token lie side by side, they share its pages and lines.
template <class T, class Task>
struct DecodeHeads {
  alignas(Task) char storage[abi::kDecodeHeads][sizeof(Task)];
  int count = 0;

  FW_INLINE Task& operator[](int i) { return *reinterpret_cast<Task*>(storage[i]); }
  FW_INLINE void add(const abi::Params& p, const Scope& scope, char* scratch, bool with_sink) {
    new (storage[count++]) Task(p, scope, scratch, with_sink);
  }

  FW_INLINE void attend(int64_t begin, int64_t end) {
    const abi::Params& p = (*this)[0].p;
    const Sequence& seq = (*this)[0].scope.seq;
    const KeyRange top = keys_seen(p, seq, 0), bottom = keys_seen(p, seq, seq.queries - 1);
    if (begin < top.first) begin += (top.first - begin) / kDecodeKeys * kDecodeKeys;
    if (end > bottom.last) end = bottom.last;
    const auto keys_at = [&](int64_t k0) { return int(end - k0 < kDecodeKeys ? end - k0 : kDecodeKeys); };
    constexpr int kAhead = Task::kFetchesBlocks ? 2 : 1;  // blocks
    KeyBlock<T> blocks[kAhead + 1];
    const auto block_at = [&](int64_t k0) { return &blocks[(k0 - begin) / kDecodeKeys % (kAhead + 1)]; };
    const auto find = [&](int64_t k0) {
      if (k0 < end) block_at(k0)->find((*this)[0].scope, k0, keys_at(k0));
    };
    for (int i = 0; i < kAhead; ++i) find(begin + i * kDecodeKeys);
    for (int64_t k0 = begin; k0 < end; k0 += kDecodeKeys) {
      const int64_t far = k0 + kAhead * kDecodeKeys;
      find(far);
      if (Task::kFetchesBlocks && far < end) {
        const KeyBlock<T>& block = *block_at(far);
        look_up_pages(block.keys, block.count, p.dim_qk, count, p.k.stride[2]);
        look_up_pages(block.values, block.count, p.dim_v, count, p.v.stride[2]);
      }
      attend(*block_at(k0), k0 + kDecodeKeys < end ? block_at(k0 + kDecodeKeys) : nullptr, k0);
    }
  }

  // All heads against a block of keys, with `next` (null: none) to follow.
  FW_INLINE void attend(const KeyBlock<T>& block, const KeyBlock<T>* next, int64_t k0) {
    const abi::Params& p = (*this)[0].p;
    using Soon = SoonRead<T, Task::kFetchesBlocks>;
    const int64_t k_stride = p.k.stride[2], v_stride = p.v.stride[2];
    const int next_count = next ? next->count : 0;
    // While one block is worked on, the next in the order of addresses.
    [[maybe_unused]] Soon next_keys(next ? next->keys : nullptr, next_count, p.dim_qk, 0, count, k_stride);
    [[maybe_unused]] Soon next_values(next ? next->values : nullptr, next_count, p.dim_v, 0, count, v_stride);
    for (int i = 0; i < count; ++i) {
      // A head's values while its scores are computed, the next head's keys while values are added up.
      const bool last = i + 1 == count;
      const KeyBlock<T>* const of = last ? next : &block;
      Soon values(block.values, block.count, p.dim_v, i * v_stride, 1, 0);
      Soon keys(of ? of->keys : nullptr, of ? of->count : 0, p.dim_qk, last ? 0 : (i + 1) * k_stride, 1, 0);
      if constexpr (Task::kFetchesBlocks) {
        SoonReadTwice<Soon> while_scoring{next_keys, values}, while_adding{next_values, keys};
        (*this)[i].attend(block, k0, i * k_stride, i * v_stride, while_scoring, while_adding);
      } else {
        (*this)[i].attend(block, k0, i * k_stride, i * v_stride, values, keys);
      }
    }
  }
};

// Tasks are (sequence, key heads, part of the keys). Task: one of its key heads, with all query rows of its group:
// attend(block of keys, ...), finish_part(...); PerTask lives as long as all of them.
template <class T, class Task>
FW_INLINE void decode_tasks(const abi::Params& p, const abi::CpuLaunch& launch) {
  const int64_t rows_max = int64_t{p.seqlen_q} * (p.heads_q / p.heads_k), heads = int64_t{p.batch} * p.heads_k;
  const int32_t splits = launch.schedule.splits, heads_per_task = launch.schedule.heads_per_task;
  const int64_t groups = (p.heads_k + heads_per_task - 1) / heads_per_task;
  const int64_t scratch_per_head = launch.schedule.scratch_bytes / heads_per_task;
  const PartialResults parts(launch.workspace, heads * rows_max, splits, p.dim_v);
  launch.for_each_task(p.batch * groups * splits, [&](int64_t t, int32_t worker) {
    const int32_t split = int32_t(t % splits), b = int32_t(t / splits / groups);
    const int32_t first = int32_t(t / splits % groups) * heads_per_task;
    const int32_t last = first + heads_per_task < p.heads_k ? first + heads_per_task : p.heads_k;
    [[maybe_unused]] const typename Task::PerTask set_up;
    DecodeHeads<T, Task> tasks;
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

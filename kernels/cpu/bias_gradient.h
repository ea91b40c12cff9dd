// The gradient of a bias, of any broadcast shape. Included after bwd.h.
//
// dBias[b, h, i, j] = ds_ij, summed over the axes that the bias broadcasts. A task owns a block of what is written and
// goes through all that is summed into it in a fixed order, with S and dP computed once more: nothing is shared between
// tasks, so the bits do not depend on threads, and no workspace grows with s^2. Two products more than the five of the
// backward; a sum over heads or the batch costs no more than the same number of heads without one.

using abi::BiasGradientScratch;
constexpr int kBiasRows = abi::kBiasGradientRows, kBiasKeys = abi::kBiasGradientKeys;
static_assert(kBiasRows % QB == 0 && kBiasKeys % NK == 0);

template <class T>
struct BiasGradientTask {
  const abi::Params& p;
  const BiasGradientScratch mem;
  const bool every_query, every_key;   // the axis broadcasts: all of it ends in one place
  const int64_t panel_step, key_step;  // of the sums, [panel][key][NQ]

  FW_INLINE BiasGradientTask(const abi::Params& params, char* scratch)
      : p(params),
        mem(scratch, kTile, params.dim_qk, params.dim_v),
        every_query(params.d_bias.stride[2] == 0),
        every_key(params.d_bias.stride[3] == 0),
        panel_step(every_query ? 0 : kBiasKeys * NQ),
        key_step(every_key ? 0 : NQ) {}

  // Queries [row0, row0 + kBiasRows) of one head, or all of them, against keys [key0, key0 + kBiasKeys), or all.
  FW_INLINE void add_head(int32_t b, int32_t h, int64_t row0, int64_t key0) {
    const Scope scope = Scope::of_query_head(p, b, h);
    BackwardTask<T> of(p, scope, mem.rows, {0, 1, 1}, kBiasRows);
    const int64_t rows_end = every_query || scope.rows < row0 + kBiasRows ? scope.rows : row0 + kBiasRows;
    const int64_t keys = scope.seq.keys, keys_end = every_key || keys < key0 + kBiasKeys ? keys : key0 + kBiasKeys;
    for (of.row0 = row0; of.row0 < rows_end; of.row0 += kBiasRows) {
      of.load_panels();
      for (int64_t k0 = key0; k0 < keys_end; k0 += NK)
        add_block(of, k0, int(keys_end - k0 < NK ? keys_end - k0 : NK), key0);
    }
  }

  FW_INLINE void add_block(BackwardTask<T>& of, int64_t k0, int count, int64_t key0) {
    bool packed = false;  // only once some row is known to see the block
    for (int i = 0; i < of.panels; ++i) {
      const PanelRows& lanes = of.rows[i];
      const TileRange t = tile_range(lanes, k0, count);
      if (t.begin >= t.end) continue;
      if (!packed) {
        const int padded = round_up(count, MR);
        const T *k_rows[NK], *v_rows[NK];
        for (int k = 0; k < padded; ++k) {
          k_rows[k] = k < count ? of.scope.template key_pointer<const T>(p.k, k0 + k) : nullptr;
          v_rows[k] = k < count ? of.scope.template key_pointer<const T>(p.v, k0 + k) : nullptr;
        }
        pack_groups(k_rows, padded, p.dim_qk, of.mem.k_groups);
        pack_groups(v_rows, padded, p.dim_v, of.mem.v_groups);
        packed = true;
      }
      float* const sums = mem.sums + i * panel_step + (every_key ? 0 : k0 - key0) * key_step;
      const int64_t step = key_step;
      modified_tile<T>(p, of.mem, lanes, of.q_panel(i), of.do_panel(i), of.mem.neg_lse + i * NQ, of.mem.delta + i * NQ,
                       of.scope.seq.keys, k0, t, WeightTile(of.mem, 0),
                       [&](int k, int j, V d_score) __attribute__((always_inline)) {
                         float* at = sums + k * step + j * W;
                         store(at, load(at) + d_score);
                       });
    }
  }

  FW_INLINE void clear() const { __builtin_memset(mem.sums, 0, mem.sums_bytes); }

  // The sums of queries from row0 and keys from key0 on, to head h of sequence b.
  FW_INLINE void write(int32_t b, int32_t h, int64_t row0, int64_t key0) const {
    in_dtype<T>(p.d_bias, [&](auto* of) __attribute__((always_inline)) {
      using Out = std::remove_pointer_t<decltype(of)>;
      const int64_t* stride = p.d_bias.stride;
      const int64_t keys_left = p.seqlen_k - key0;
      const int keys = every_key ? 1 : int(keys_left < kBiasKeys ? keys_left : kBiasKeys);
      Out* const head = static_cast<Out*>(p.d_bias.data) + b * stride[0] + h * stride[1] + key0 * stride[3];
      if (every_query) {
        for (int k = 0; k < keys; ++k) {
          const float* sums = mem.sums + k * NQ;
          head[k * stride[3]] = from_float<Out>(sum_lanes(load(sums) + load(sums + W)));
        }
        return;
      }
      alignas(64) float one[NQ];
      for (float& x : one) x = 1.f;
      for (int64_t row = row0; row < p.seqlen_q && row < row0 + kBiasRows; row += NQ) {
        Out* const first = head + row * stride[2];
        const int rows = int(p.seqlen_q - row < NQ ? p.seqlen_q - row : NQ);
        unpack_rows(mem.sums + (row - row0) / NQ * panel_step, keys, one,
                    [&](int lane, int c, V x) __attribute__((always_inline)) {
                      if (lane >= rows) return;
                      Out* const out = first + lane * stride[2] + c * stride[3];
                      if (stride[3] == 1) return store_part(out, x, keys - c);
                      for (int i = 0; i < W && i < keys - c; ++i) out[i * stride[3]] = from_float<Out>(x[i]);
                    });
      }
    });
  }
};

template <class T>
FW_INLINE void bias_gradient(const abi::Params& p, const abi::CpuLaunch& launch) {
  const int64_t* stride = p.d_bias.stride;
  const auto blocks = [](int64_t stride, int64_t extent, int64_t block) {
    return stride == 0 ? 1 : (extent + block - 1) / block;
  };
  const int64_t batches = stride[0] ? p.batch : 1, heads = stride[1] ? p.heads_q : 1;
  const int64_t row_blocks = blocks(stride[2], p.seqlen_q, kBiasRows),
                key_blocks = blocks(stride[3], p.seqlen_k, kBiasKeys);
  launch.for_each_task(batches * heads * row_blocks * key_blocks, [&](int64_t t, int32_t worker) {
    const int64_t key0 = t % key_blocks * kBiasKeys, row0 = t / key_blocks % row_blocks * kBiasRows;
    const int32_t h = int32_t(t / key_blocks / row_blocks % heads), b = int32_t(t / key_blocks / row_blocks / heads);
    BiasGradientTask<T> task(p, launch.scratch_of(worker));
    task.clear();
    for (int32_t i = stride[0] ? b : 0; i < (stride[0] ? b + 1 : p.batch); ++i) {
      for (int32_t j = stride[1] ? h : 0; j < (stride[1] ? h + 1 : p.heads_q); ++j) task.add_head(i, j, row0, key0);
    }
    task.write(b, h, row0, key0);
  });
}

template <class T>
void backward(const abi::Params& p, const abi::CpuLaunch& launch) {
  backward_products<T>(p, launch);
  if (p.d_bias.data) bias_gradient<T>(p, launch);
}

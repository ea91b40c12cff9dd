// Forward attention in bf16 or fp16 for up to 16 query rows on AMX tiles. Included by amx.cpp after amx_tile.h and
// decode_tasks.h.
//
//   S^T = K Q^T   A = 16 rows of K, where they lie in the cache; B = Q, packed once     queries in the lanes
//   O += P V      A = P, transposed; B = V in pairs of rows, packed as it is read
//
// The time is that of reading K and V; what is left for each key is some 25 cycles, whether there is one row or 16.

template <class Element>
struct AmxDecodeTask {
  using T = Element;
  using PerTask = TileScope;
  static constexpr bool kFetchesBlocks = false;
  const abi::Params& p;
  const Scope scope;
  const abi::AmxDecodeScratch mem;
  PanelRows& lanes;
  const int dq, dv;
  const float scale;
  V m, l;  // of the rows, in units of log2

  FW_INLINE AmxDecodeTask(const abi::Params& params, const Scope& sc, char* scratch, bool with_sink)
      : p(params),
        scope(sc),
        mem(scratch, params.dim_qk, params.dim_v),
        lanes(*reinterpret_cast<PanelRows*>(mem.rows)),
        dq(mem.dq),
        dv(mem.dv),
        scale(params.softmax_scale * kLog2e),
        m(splat(-kInf)),
        l{} {
    const T* pointers[NQ];
    scope.panel_pointers(p.q, 0, pointers);
    scope.describe_panel(0, lanes);
    for (int c = 0; c < dq; c += 32) {
      VU16x32 r[16];
      FW_UNROLL for (int i = 0; i < 16; ++i) r[i] = load_row(pointers[i], c, p.dim_qk);
      transpose_pairs(r);
      FW_UNROLL for (int i = 0; i < 16; ++i) store_32(mem.q + c * 16 + i * 32, r[i]);
    }
    __builtin_memset(mem.o, 0, sizeof(float) * 16 * dv);
    if (with_sink && p.sinks) {
      for (int r = 0; r < scope.rows; ++r) m[r] = sink_of(p, scope.head(r)), l[r] = 1.f;
    }
  }

  // The keys of a block, from k0 on; this head's lie k_offset and v_offset away. Meanwhile what is read soon is
  // fetched.
  template <class Soon>
  FW_INLINE void attend(const KeyBlock<T>& block, int64_t k0, int64_t k_offset, int64_t v_offset, Soon& while_scoring,
                        Soon& while_adding) {
    for (int g = 0; g < block.count; g += 16) {
      while_scoring.fetch_rows(16);
      score_keys(block, g, k_offset);
    }
    soften(k0, block.count);
    for (int g = 0; g < block.count; g += kSide) {
      const T* rows[kSide];
      for (int i = 0; i < kSide; ++i) rows[i] = g + i < block.count ? block.values[g + i] + v_offset : nullptr;
      while_adding.fetch_rows(kSide);
      pack_pairs<T, false>(rows, p.dim_v, dv, mem.v + g * dv);
    }
    add_values(block.count);
  }

  // S^T of keys [g, g + 16), raw.
  FW_INLINE void score_keys(const KeyBlock<T>& block, int g, int64_t k_offset) {
    const void* a = block.keys[g] + k_offset;
    int64_t a_bytes = p.k.stride[1] * 2;
    if (dq != p.dim_qk || !block.evenly_spaced(p, g)) {
      for (int j = 0; j < 16; ++j) {
        for (int c = 0; c < dq; c += 32) {
          store_32(mem.k + j * dq + c, load_row(block.keys[g + j] + k_offset, c, p.dim_qk));
        }
      }
      a = mem.k, a_bytes = dq * 2;
    }
    tile_zero<0>();
    FW_NO_UNROLL for (int c = 0; c < dq; c += 32) {
      tile_load<4>(static_cast<const char*>(a) + c * 2, a_bytes);
      tile_load<6>(mem.q + c * 16, 64);
      tile_multiply<T, 0, 4, 6>();
    }
    tile_store<0>(mem.s + g * W, 64);
  }

  // Scores -> weights, with the online softmax, and to where the product reads them.
  FW_INLINE void soften(int64_t k0, int count) {
    if (p.bias.data) read_bias(k0, count);
    const bool masked = k0 < lanes.max_first || k0 + count > lanes.min_last;
    const bool plain = !masked && !has_score_modifiers(p);
    V top = splat(-kInf);
    const V slope = load(lanes.slope);
    const V diagonal = __builtin_convertvector(load_i(lanes.diagonal) - int32_t(k0), V);
    for (int k = 0; k < count; ++k) {
      V x = load(mem.s + k * W) * scale;
      if (!plain) {
        x = modify_score(p, x, slope, diagonal, float(k), p.bias.data ? bias[k] : nullptr, nullptr);
        x = sees(lanes, 0, int32_t(k0) + k) ? x : splat(-kInf);
      }
      store(mem.s + k * W, x);
      top = max(top, x);
    }
    raise(top);
    const V base = m == -kInf ? V{} : m;
    V sum{};
    for (int k = 0; k < count; ++k) {
      const V e = exp2_masked(load(mem.s + k * W) - base);
      sum += e;
      store(mem.s + k * W, e);
    }
    l += sum;
    if (p.dropout_threshold) {
      for_each_kept(p, lanes, k0, 0, count, [&](int k, int j, VI kept) __attribute__((always_inline)) {
        if (j == 0) store(mem.s + k * W, zero_unless(kept, load(mem.s + k * W)));
      });
    }
    for (int k = count; k < round_up(count, kSide); ++k) store(mem.s + k * W, V{});
    for (int g = 0; g < count; g += kSide) {
      V x[2][W];
      for (int h = 0; h < 2; ++h) {
        FW_UNROLL for (int i = 0; i < W; ++i) x[h][i] = load(mem.s + (g + h * W + i) * W);
        transpose(x[h]);
      }
      FW_UNROLL for (int r = 0; r < W; ++r) store_32(mem.p + g * 16 + r * kSide, round_32<T>(x[0][r], x[1][r]));
    }
  }
  FW_INLINE void raise(V top) {
    const V now = max(top, m);
    if (!any(~(now == m))) return;
    const V alpha = exp2_masked(m - (now == -kInf ? V{} : now));
    m = now, l *= alpha;
    for (int r = 0; r < scope.rows; ++r) {
      float* o = mem.o + r * 16;
      for (int c = 0; c < dv; c += W) store(o + c * 16, load(o + c * 16) * alpha[r]);
    }
  }
  // The bias of the block in units of log2, [key][row].
  alignas(64) float bias[kDecodeKeys][W];
  FW_NOINLINE void read_bias(int64_t k0, int count) {
    const auto read = [&](auto* data) __attribute__((always_inline)) {
      for (int k = 0; k < count; ++k) {
        for (int r = 0; r < W; ++r) bias[k][r] = in_log2(to_float(data[lanes.bias[r] + (k0 + k) * p.bias.stride[3]]));
      }
    };
    if (p.bias.dtype == abi::kF32) {
      read(static_cast<const float*>(p.bias.data));
    } else {
      read(static_cast<const T*>(p.bias.data));
    }
  }

  // O += P V: 64 columns at a time in tiles 0..3, their stores after all products.
  FW_NOINLINE void add_values(int count) {
    FW_NO_UNROLL for (int c = 0; c < dv; c += 64) {
      float* o = mem.o + c * 16;
      const bool wide = c + 32 < dv;
      tile_load<0>(o, kRowBytes);
      tile_load<1>(o + kTileFloats, kRowBytes);
      if (wide) {
        tile_load<2>(o + 2 * kTileFloats, kRowBytes);
        tile_load<3>(o + 3 * kTileFloats, kRowBytes);
      }
      FW_NO_UNROLL for (int g = 0; g < count; g += kSide) {
        const uint16_t* v = mem.v + g * dv + c * 32;
        tile_load<4>(mem.p + g * 16, 64);
        tile_load<6>(v, 64);
        tile_multiply<T, 0, 4, 6>();
        tile_load<7>(v + 512, 64);
        tile_multiply<T, 1, 4, 7>();
        if (!wide) continue;
        tile_load<6>(v + 1024, 64);
        tile_multiply<T, 2, 4, 6>();
        tile_load<7>(v + 1536, 64);
        tile_multiply<T, 3, 4, 7>();
      }
      tile_store<0>(o, kRowBytes);
      tile_store<1>(o + kTileFloats, kRowBytes);
      if (wide) {
        tile_store<2>(o + 2 * kTileFloats, kRowBytes);
        tile_store<3>(o + 3 * kTileFloats, kRowBytes);
      }
    }
  }

  FW_INLINE void finish_part(const PartialResults& parts, int32_t split, int64_t first_row_of_call) const {
    for (int r = 0; r < scope.rows; ++r) {
      const int64_t index = split * parts.rows + first_row_of_call + r;
      write_ordered(parts.o + index * p.dim_v, mem.o + r * 16, 2 * kTileFloats, p.dim_v, 1.f);
      parts.m[index] = m[r];
      parts.l[index] = l[r];
    }
  }
};

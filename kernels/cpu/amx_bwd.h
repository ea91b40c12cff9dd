// Backward attention in bf16 or fp16 on AMX tiles, as amx_fwd.h. Included by amx.cpp after amx_tile.h and gradients.h.
//
// Everything is transposed, as in bwd.h: keys are tile rows, queries are columns, so LSE and delta lie in the lanes.
//
//   S^T  = K Q^T     A = rows of K     B = Q transposed          dV   += P^T dO   A = P^T    B = dO in pairs of rows
//   dP^T = V dO^T    A = rows of V     B = dO transposed         dK   += dS^T Q   A = dS^T   B = Q in pairs of rows
//                                                                dQ^T += K^T dS^T A = K^T    B = dS^T in pairs of rows
//
// A job is up to 256 queries against 128 keys, in units of 32 x 32; units that no query sees are left out. The softmax
// part of a unit (vectors) runs beside the two products of the next one; the gradients follow when all are done, so
// that an accumulator of dK and dV is loaded and stored once for up to 32 products, one of dQ for up to 16.

constexpr int kJobKeys = abi::kAmxBackwardKeys, kJobRows = abi::kAmxBackwardRows;
constexpr int kKeyUnits = kJobKeys / kSide, kRowUnits = kJobRows / kSide;
constexpr int kFetchBlocks = 4;              // of keys: the last of a chunk, beside which the next chunk is fetched
constexpr float kLargestArgument = 0x1p20f;  // of exp2_beside_tiles, with room for LSE

// Weights are at most 1, and those of many keys small: as fp16 they are kept 2^14 times as large, so that numbers below
// 2^-28 alone are subnormal. Their gradients dS have no range of their own and get one: see gradient_factor().
template <class Element>
constexpr bool kScaledWeights = std::is_same_v<Element, Half>;
template <class Element>
constexpr int kWeightShift = kScaledWeights<Element> ? 14 : 0;
template <class Element>
constexpr float kWeightFactor = float(1 << kWeightShift<Element>);

using abi::AmxBackwardScratch;

template <class Element>
struct AmxBackwardTask {
  using T = Number<Element>;
  static constexpr int kWeights = kUnit * kParts<Element>;
  struct Unit {
    int key, row;  // unit of keys, of the job's rows
    bool masked;   // some row does not see some key
    bool alone;    // beside no product: scores modified or dropped, or too large for the fast exponential
  };

  const TileScope tiles;
  const abi::Params& p;
  const Scope scope;
  const Scope* const next_scope;  // of the next task, or null
  const AmxBackwardScratch& mem;
  PanelRows* const rows;
  const int dq, dv;
  const KeyParts parts;
  const int64_t chunk_rows;
  const float scale;
  const float ds_factor;  // dS in memory: dS times kWeightFactor times this, and so are dP and delta
  const bool modified;
  const bool fetches;                           // what comes next: where the rows are more than one chunk (NOTES.md)
  int64_t row0 = 0;                             // of the chunk
  int units = 0;                                // of its rows
  int first = 0;                                // the job's first unit of rows
  int64_t key0 = 0;                             // the job's first key
  bool finite_rows = true, finite_keys = true;  // the chunk, the block of keys; asked of numbers in two parts
  Place open;                                   // where the results go that are still in tiles
  RowsAhead next_rows, next_keys;               // the next chunk, the next block of keys
  RowsAhead row_results, key_results;           // where results of this chunk, of this block go
  SumsAhead next_dk, next_dv;                   // of the next block
  int64_t rows_wanted = 0, keys_wanted = 0;     // of these, while the block of keys is multiplied
  int64_t rows_per_unit = 0, keys_per_unit = 0;
  int64_t blocks_left = 0;  // of keys, for the chunk

  FW_INLINE AmxBackwardTask(const abi::Params& params, const Scope& sc, const Scope* next, const AmxBackwardScratch& m,
                            const KeyParts& of_keys, int64_t chunk)
      : p(params),
        scope(sc),
        next_scope(next),
        mem(m),
        rows(reinterpret_cast<PanelRows*>(m.rows)),
        dq(m.dim_q),
        dv(m.dim_v),
        parts(of_keys),
        chunk_rows(chunk),
        scale(params.softmax_scale * kLog2e),
        ds_factor(kScaledWeights<Element> ? gradient_factor() : 1.f),
        modified(has_score_modifiers(params) || params.dropout_threshold),
        fetches(sc.rows > chunk) {}

  // The largest length of a row squared.
  template <class Row>
  FW_INLINE static float largest_square(int64_t count, int n, Row&& row) {
    float largest = 0.f;
    for (int64_t i = 0; i < count; ++i) {
      const T* x = row(i);
      V squares{};
      for (int c = 0; c < n; c += 32) squares = add_squares<T>(squares, load_row(x, c, n));
      const float square = sum_lanes(squares);
      largest = square > largest || square != square ? square : largest;
    }
    return largest;
  }
  // A power of two that brings dS into the range of fp16: |dS| = P |dP - delta|, where |dP| is at most |dO||V|. Where
  // there is an infinity or a NaN, 1: dS will have it, too.
  FW_NOINLINE float gradient_factor() const {
    const float d_o =
        largest_square(scope.rows, p.dim_v, [&](int64_t i) { return scope.row_pointer<const T>(p.d_o, i); });
    const float v =
        largest_square(scope.seq.keys, p.dim_v, [&](int64_t i) { return scope.key_pointer<const T>(p.v, i); });
    float largest_delta = 0.f;
    for (int64_t i = 0; i < scope.rows; ++i) {
      const float x = __builtin_fabsf(row_delta<T>(p, scope, scope.query(i), scope.head(i)));
      largest_delta = x > largest_delta || x != x ? x : largest_delta;
    }
    const float largest = __builtin_sqrtf(d_o) * __builtin_sqrtf(v) * scale_of_kept(p) + largest_delta;
    if (!(largest > 0x1p-80f && largest < 0x1p80f)) return 1.f;
    const uint32_t exponent = __builtin_bit_cast(uint32_t, largest) >> 23;  // largest is below 2^(exponent - 126)
    return __builtin_bit_cast(float, (254u - exponent) << 23);              // and times this below 2
  }

  // Where the packed numbers of a unit begin.
  static constexpr int kColumn = 32 * kParts<Element>;
  FW_INLINE static uint16_t* k_unit(uint16_t* base, int u, int dim) { return base + u * dim * kColumn; }
  FW_INLINE static uint16_t* row_unit(uint16_t* base, int64_t u, int dim) { return base + u * dim * kColumn; }
  // Whether to multiply number by number: see plain_step_2x2().
  FW_INLINE bool plain() const { return kParts<Element> == 2 && !(finite_rows && finite_keys); }

  FW_INLINE Place take_open() {
    const Place done = open.at ? open : Place{mem.junk};
    open = {};
    return done;
  }
  FW_INLINE void flush() {
    if (open.at) store_2x2(open);
    open = {};
  }

  // ---- softmax -----------------------------------------------------------------------------------------------------

  struct Weights {  // of a unit, where the products read them
    uint16_t *p, *ds, *ds_pairs;
    // Of two keys, e and the gradient of their scores g.
    FW_INLINE void put_pair(unsigned i, const V (&e)[2][2], const V (&g)[2][2]) const {
      VU16x32 grad[2];
      FW_UNROLL for (unsigned r = 0; r < 2; ++r) {
        grad[r] = round_32<T>(g[r][0], g[r][1]);
        store_32(p + (2 * i + r) * kSide, round_32<T>(e[r][0], e[r][1]));
        store_32(ds + (2 * i + r) * kSide, grad[r]);
      }
      store_32(ds_pairs + i * kSide, interleave_low(grad[0], grad[1]));
      store_32(ds_pairs + kTileHalves + i * kSide, interleave_high(grad[0], grad[1]));
    }
    // The same in two parts, a key and then what both share: fewer registers.
    template <bool kFinite>
    FW_INLINE void put_key(unsigned k, const V (&e)[2], const V (&g)[2]) const {
      store_weights<Element, kFinite>(p + k * kSide, e[0], e[1]);
      store_weights<Element, kFinite>(ds + k * kSide, g[0], g[1]);
      FW_KEEP_ORDER;
    }
    template <bool kFinite>
    FW_INLINE void put_pairs(unsigned i, const V (&g)[2][2]) const {
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        store_weights<Element, kFinite>(ds_pairs + h * kTileHalves + i * kSide, g[0][h], g[1][h]);
      }
    }
  };
  FW_INLINE Weights weights_of(const Unit& u) const {
    const int64_t at = (u.key * kRowUnits + u.row) * int64_t{kWeights};
    return {mem.p + at, mem.ds + at, mem.ds_pairs + at};
  }

  // Plain scores, two keys against 32 queries at a time, as many after each product as keep pace with it.
  template <bool kMasked, int kPace>
  struct Softener {
    const float *s, *dp;
    const PanelRows& lanes;
    const int32_t key;
    const Weights weights;
    const V scale, ds_factor, neg_lse[NV], delta[NV];
    unsigned i = 0;
    int skipped = 0, credit = 0;
    const int rate;  // in 1/256 of a pair
    static constexpr unsigned kPairs = kSide / 2;
    static constexpr int kPair = 256, kStores = kParts<Element> == 1 ? 4 : 1;  // in calls that count

    FW_INLINE static const float* of_rows(const float* x, const AmxBackwardTask& t, const Unit& u) {
      return x + (t.first + u.row) * kSide;
    }
    FW_INLINE Softener(const AmxBackwardTask& t, const Unit& u, int slot)
        : s(t.mem.s[slot]),
          dp(t.mem.dp[slot]),
          lanes(t.rows[t.first + u.row]),
          key(int32_t(t.key0) + u.key * kSide),
          weights(t.weights_of(u)),
          scale(splat(t.scale)),
          ds_factor(splat(t.ds_factor)),
          neg_lse{load(of_rows(t.mem.neg_lse, t, u)), load(of_rows(t.mem.neg_lse, t, u) + W)},
          delta{load(of_rows(t.mem.delta, t, u)), load(of_rows(t.mem.delta, t, u) + W)},
          rate(int(kPairs) * kPair / ((t.dq + t.dv) / 8 - kStores) + 1) {}

    FW_INLINE void pair() {
      V e[2][2], g[2][2];
      FW_UNROLL for (int r = 0; r < 2; ++r) {
        FW_UNROLL for (int h = 0; h < 2; ++h) {
          const unsigned x = (2 * i + r) * kSide + h * W;
          LaneBits seen = 0;
          if (kMasked)
            seen = lanes_around(key + int32_t(2 * i) + r, load_i(lanes.first + h * W), load_i(lanes.last + h * W));
          const V score = fused(load(s + x), scale, neg_lse[h]);
          const V gradient = load(dp + x);
          const V d = kScaledWeights<Element> ? fused(gradient, ds_factor, -delta[h]) : gradient - delta[h];
          e[r][h] = exp2_beside_tiles<kMasked>(score, seen);
          g[r][h] = multiply_kept<kMasked>(seen, e[r][h], d);
        }
        if constexpr (kParts<Element> == 2) weights.template put_key<true>(2 * i + r, e[r], g[r]);
      }
      if constexpr (kParts<Element> == 2) {
        weights.template put_pairs<true>(i, g);
      } else {
        weights.put_pair(i, e, g);
      }
      ++i;
    }
    // The first products store dP of the unit: nothing to do beside them.
    FW_INLINE void operator()(int n) {
      if constexpr (kParts<Element> == 2) {  // four calls in twelve
        if (n % 3 != 2) return;
        n /= 3;
      }
      if (skipped < kStores) {
        ++skipped;
        return;
      }
      if constexpr (kPace > 0 && kParts<Element> == 2) {
        if (kPace == 1 && n % 2 == 0) return;
        if (i < kPairs) pair();
        return;
      }
      if constexpr (kPace > 0) {
        if (kPace == 1 && n == 3) return;
        if (i < kPairs) pair();
        if (kPace == 2 && n % 2 == 0 && i < kPairs) pair();
        return;
      }
      for (credit += rate; credit >= kPair && i < kPairs; credit -= kPair) pair();
    }
    FW_INLINE void finish() {
      while (i < kPairs) pair();
    }
  };

  // Any scores.
  FW_NOINLINE void soften_any_scores(const Unit& u, int slot) {
    const int unit = first + u.row;
    const PanelRows& lanes = rows[unit];
    float *s = mem.s[slot], *dp = mem.dp[slot];
    const float *neg_lse = mem.neg_lse + unit * kSide, *delta = mem.delta + unit * kSide;
    const int64_t k0 = key0 + u.key * kSide;
    const abi::Params problem = p;  // as in soften_16() of amx_fwd.h
    if (p.bias.data) load_bias_tile<T>(p, lanes, k0, 0, kSide, scope.seq.keys, mem.bias);
    const float keep = 1.f / (1.f - p.dropout_p);
    if (p.dropout_threshold) {  // dP of what was dropped is 0
      for_each_kept(p, lanes, k0, 0, kSide, [&](int k, int j, VI kept) __attribute__((always_inline)) {
        float* x = dp + k * kSide + j * W;
        store(x, zero_unless(kept, load(x) * keep));
        store(dropped(slot, k, j), zero_unless(kept, splat(1.f)));
      });
    }
    for (int i = 0; i < kSide / 2; ++i) {
      V e[2][2], g[2][2];
      for (int r = 0; r < 2; ++r) {
        for (int j = 0; j < NV; ++j) {
          const int k = 2 * i + r, x = k * kSide + j * W;
          const VI seen = sees(lanes, j, int32_t(k0) + k);
          const V diagonal = __builtin_convertvector(load_i(lanes.diagonal + j * W) - int32_t(k0), V);
          V tanh_z{};
          const V score = modify_score(problem, load(s + x) * scale, load(lanes.slope + j * W), diagonal, float(k),
                                       problem.bias.data ? mem.bias + x : nullptr, &tanh_z);
          V log_prob = score + (load(neg_lse + j * W) - float(kWeightShift<Element>));
          if (problem.bias.data) log_prob = log_prob > 0.f ? V{} : log_prob;  // bwd.h says why
          const V weight = zero_unless(seen, exp2_masked(log_prob));
          const V d_score = zero_unless(seen, weight * (load(dp + x) * ds_factor - load(delta + j * W)));
          g[r][j] = zero_unless(seen, d_score * (1.f - tanh_z * tanh_z) * kWeightFactor<Element>);
          if (problem.d_slopes) {
            add_slope_gradient(lanes, j, int32_t(k0) + k, d_score * (1.f / ds_factor), mem.d_slope + unit * kSide);
          }
          e[r][j] = weight * kWeightFactor<Element>;
          if (problem.dropout_threshold) e[r][j] = load(dropped(slot, k, j)) == 0.f ? V{} : e[r][j];
        }
      }
      if constexpr (kParts<Element> == 2) {
        for (int r = 0; r < 2; ++r) weights_of(u).template put_key<false>(unsigned(2 * i + r), e[r], g[r]);
        weights_of(u).template put_pairs<false>(unsigned(i), g);
      } else {
        weights_of(u).put_pair(unsigned(i), e, g);
      }
    }
  }
  // Where a unit keeps which weights are not dropped, 1 or 0: the other slot's dP, which nobody needs by then.
  FW_INLINE float* dropped(int slot, int k, int j) const { return mem.dp[slot ^ 1] + k * kSide + j * W; }

  // ---- products ----------------------------------------------------------------------------------------------------

  // S and dP of a unit; dP stays in tiles.
  template <class Between>
  FW_INLINE void scores(const Unit& u, int slot, Between&& between) {
    const int64_t unit = first + u.row;
    const uint16_t *k = k_unit(mem.k, u.key, dq), *q = row_unit(mem.q_transposed, unit, dq);
    const uint16_t *v = k_unit(mem.v, u.key, dv), *d_o = row_unit(mem.do_transposed, unit, dv);
    if (fetches) fetch_keys();
    score_unit<Element>(k, q, dq, take_open(), between);
    open = by_rows(mem.s[slot]);
    if (fetches) fetch_rows();
    score_unit<Element>(v, d_o, dv, take_open(), between);
    open = by_rows(mem.dp[slot]);
  }
  // The same beside nothing.
  FW_NOINLINE void scores_alone(const Unit& u, int slot) {
    if (!plain()) return scores(u, slot, [](int) {});
    const int64_t unit = first + u.row;
    flush();
    plain_score_unit(k_unit(mem.k, u.key, dq), row_unit(mem.q_transposed, unit, dq), dq, mem.s[slot]);
    plain_score_unit(k_unit(mem.v, u.key, dv), row_unit(mem.do_transposed, unit, dv), dv, mem.dp[slot]);
  }
  template <bool kMasked, int kPace>
  FW_NOINLINE void soften_beside(const Unit& before, const Unit& u, int slot) {
    Softener<kMasked, kPace> soften(*this, before, slot ^ 1);
    scores(u, slot, soften);
    soften.finish();
  }
  FW_NOINLINE void soften_alone(const Unit& u, int slot) {
    flush();
    if (u.alone) return soften_any_scores(u, slot);
    if (u.masked) return Softener<true, 0>(*this, u, slot).finish();
    Softener<false, 0>(*this, u, slot).finish();
  }
  template <int kPace>
  FW_INLINE void weights_at(const Unit* list, int count) {
    scores_alone(list[0], 0);
    for (int i = 1; i < count; ++i) {
      const Unit &before = list[i - 1], &u = list[i];
      if (before.alone) {
        soften_alone(before, (i - 1) & 1);
        scores_alone(u, i & 1);
      } else if (before.masked) {
        soften_beside<true, kPace>(before, u, i & 1);
      } else {
        soften_beside<false, kPace>(before, u, i & 1);
      }
    }
    soften_alone(list[count - 1], (count - 1) & 1);
  }

  // results += sum over n units of A and B, each a distance apart; begun: there is something to add to.
  FW_INLINE void gradient(const uint16_t* a, int64_t a_next, const uint16_t* b, int64_t b_next, int n, float* results,
                          bool begun) {
    const auto nothing = [](int) {};
    if (plain()) {
      flush();
      if (!begun) __builtin_memset(results, 0, kUnit * sizeof(float));
      for (int i = 0; i < n; ++i) plain_step_2x2(a + i * a_next, b + i * b_next, {results});
      return;
    }
    step_2x2<Element, Start::kLoad>(a, b, take_open(), begun ? results : mem.zeros, nothing);
    FW_NO_UNROLL for (int i = 1; i < n; ++i) {
      a += a_next, b += b_next;
      step_2x2<Element, Start::kGoOn>(a, b, {}, nullptr, nothing);
    }
    open = {results};
  }

  // Units of rows [from, to) see some key of a unit of keys: contiguous, since what a row sees only moves forward.
  struct Seen {
    int from, to;
  };
  FW_NOINLINE void gradients(const Seen (&seen)[kKeyUnits], float* dk, float* dv_out, bool* keys_begun) {
    for (int k = 0; k < kKeyUnits; ++k) {
      const auto [from, to] = seen[k];
      if (from >= to) continue;
      const bool begun = keys_begun[k];
      keys_begun[k] = true;
      const int64_t at = (k * kRowUnits + from) * int64_t{kWeights};
      const uint16_t *d_o = row_unit(mem.do_pairs, first + from, dv), *q = row_unit(mem.q_pairs, first + from, dq);
      FW_NO_UNROLL for (int c = 0; c < dv; c += 32) {
        gradient(mem.p + at, kWeights, d_o + c * kColumn, kSide * dv * kParts<Element>, to - from,
                 dv_out + (k * dv + c) * kSide, begun);
      }
      FW_NO_UNROLL for (int c = 0; c < dq; c += 32) {
        gradient(mem.ds + at, kWeights, q + c * kColumn, kSide * dq * kParts<Element>, to - from,
                 dk + (k * dq + c) * kSide, begun);
      }
    }
    // Columns outside: K^T of 32 of them stays in the first-level cache.
    FW_NO_UNROLL for (int c = 0; c < dq; c += 32) {
      for (int r = 0; r < kRowUnits; ++r) {
        int from = kKeyUnits, to = 0;
        for (int k = 0; k < kKeyUnits; ++k) {
          if (r < seen[k].from || r >= seen[k].to) continue;
          from = k < from ? k : from, to = k + 1;
        }
        if (from >= to) continue;
        gradient(k_unit(mem.k_transposed, from, dq) + c * kColumn, dq * kColumn,
                 mem.ds_pairs + (from * kRowUnits + r) * int64_t{kWeights}, kRowUnits * kWeights, to - from,
                 mem.dq + (int64_t{first + r} * dq + c) * kSide, mem.rows_begun[first + r]);
        if (c + 32 == dq) mem.rows_begun[first + r] = true;
      }
    }
    flush();
  }

  // `count` units of rows from `first` on against the packed keys; `left` such jobs, with this, are to come.
  FW_INLINE void job(int count, int64_t keys, int left, float* dk, float* dv_out, bool* keys_begun) {
    Unit list[kKeyUnits * kRowUnits];
    Seen seen[kKeyUnits];
    int n = 0;
    for (int k = 0; k < kKeyUnits; ++k) {
      const int64_t key = key0 + k * kSide;
      seen[k] = {count, 0};
      if (k * kSide >= keys) continue;
      for (int r = 0; r < count; ++r) {
        const PanelRows& lanes = rows[first + r];
        if (lanes.min_first >= key + kSide || lanes.max_last <= key) continue;
        const bool fits = mem.q_length[first + r] * mem.k_length[k] * __builtin_fabsf(scale) < kLargestArgument;
        list[n++] = {k, r, key < lanes.max_first || key + kSide > lanes.min_last, modified || !fits || plain()};
        seen[k].from = r < seen[k].from ? r : seen[k].from, seen[k].to = r + 1;
      }
    }
    if (n == 0) return;
    if (fetches) share_out(left, n);
    if (dq + dv == 128) {
      weights_at<2>(list, n);
    } else if (dq + dv == 256) {
      weights_at<1>(list, n);
    } else {
      weights_at<0>(list, n);
    }
    gradients(seen, dk, dv_out, keys_begun);
  }

  // ---- the task ----------------------------------------------------------------------------------------------------

  FW_INLINE void load_chunk() {
    const int64_t count = scope.rows - row0 < chunk_rows ? scope.rows - row0 : chunk_rows;
    units = int((count + kSide - 1) / kSide);
    finite_rows = true;
    for (int64_t u = 0; u < units; ++u) {
      const int64_t row = row0 + u * kSide;
      const T* pointers[NQ];
      scope.for_each_row(row, scope.panel_count(row), [&](int, int64_t query, int32_t head) {
        prefetch_output<T>(p, scope, query, head);  // for delta, below
      });
      scope.panel_pointers(p.q, row, pointers);
      mem.q_length[u] =
          __builtin_sqrtf(pack_transposed<Element>(pointers, p.dim_qk, dq, row_unit(mem.q_transposed, u, dq)));
      pack_pairs<Element, false>(pointers, p.dim_qk, dq, row_unit(mem.q_pairs, u, dq));
      scope.panel_pointers(p.d_o, row, pointers);
      const float d_o = pack_transposed<Element>(pointers, p.dim_v, dv, row_unit(mem.do_transposed, u, dv));
      pack_pairs<Element, false>(pointers, p.dim_v, dv, row_unit(mem.do_pairs, u, dv));
      finite_rows &= mem.q_length[u] < kInf && d_o < kInf;
      scope.describe_panel(row, rows[u]);
      float *neg_lse = mem.neg_lse + u * kSide, *delta = mem.delta + u * kSide;
      for (int i = 0; i < kSide; ++i) neg_lse[i] = -kLargestArgument, delta[i] = 0.f;
      scope.for_each_row(row, scope.panel_count(row), [&](int i, int64_t query, int32_t head) {
        // an empty row has -inf: P = 0
        const float lse = *scope.pointer<const float>(p.lse, query, head), x = kWeightShift<Element> - in_log2(lse);
        if (lse != -kInf) neg_lse[i] = x < -kLargestArgument ? -kLargestArgument : x;
        delta[i] = row_delta<T>(p, scope, query, head) * ds_factor;
      });
    }
  }

  FW_INLINE void load_keys() {
    const T* pointers[NQ];
    finite_keys = true;
    for (int k = 0; k < kKeyUnits; ++k) {
      uint16_t* rows_of_k = k_unit(mem.k, k, dq);
      unit_pointers(scope, p.k, key0 + k * kSide, scope.seq.keys, pointers);
      pack_rows<Element>(pointers, p.dim_qk, dq, rows_of_k);
      mem.k_length[k] = __builtin_sqrtf(transpose_rows<Element>(rows_of_k, dq, k_unit(mem.k_transposed, k, dq)));
      unit_pointers(scope, p.v, key0 + k * kSide, scope.seq.keys, pointers);
      pack_rows<Element>(pointers, p.dim_v, dv, k_unit(mem.v, k, dv));
      if constexpr (kParts<Element> == 2) {
        const float v = largest_square(kSide, p.dim_v, [&](int64_t i) { return pointers[i]; });
        finite_keys &= mem.k_length[k] < kInf && v < kInf;
      }
    }
  }

  // The chunk's rows against a block of keys; whether any sees some of it.
  FW_INLINE bool key_block(float* dk, float* dv_out, bool* keys_begun) {
    const int64_t left = scope.seq.keys - key0, keys = left < kJobKeys ? left : kJobKeys;
    bool packed = false;  // only once some row is known to see the block
    for (first = 0; first < units; first += kRowUnits) {
      const int n = units - first < kRowUnits ? units - first : kRowUnits;
      if (rows[first].min_first >= key0 + keys || rows[first + n - 1].max_last <= key0) continue;
      if (!packed) load_keys();
      packed = true;
      job(n, keys, (units - first + kRowUnits - 1) / kRowUnits, dk, dv_out, keys_begun);
    }
    return packed;
  }

  // A unit of dQ^T, tile by tile -> [dim][row], and as it would be if dS were in memory as it is.
  FW_INLINE void rows_of_results(float* dq_unit) {
    for (float* x = dq_unit; x < dq_unit + kSide * dq; x += kUnit) {
      __builtin_memcpy(mem.junk, x, kUnit * sizeof(float));
      for (int i = 0; i < kUnit; i += W) {
        V v = load(mem.junk + in_tiles(i / kSide, i % kSide));
        if constexpr (kScaledWeights<Element>) v = rounded(v * ds_unit());  // before it is added to anything
        store(x + i, v);
      }
    }
  }

  FW_INLINE float ds_unit() const { return 1.f / kWeightFactor<Element> / ds_factor; }
  FW_INLINE void write_keys(float* dk, float* dv_out, const bool* keys_begun) {
    for (int k = 0; k < kKeyUnits; ++k) {
      if (keys_begun[k]) continue;
      __builtin_memset(dk + k * kSide * dq, 0, kSide * dq * sizeof(float));
      __builtin_memset(dv_out + k * kSide * dv, 0, kSide * dv * sizeof(float));
    }
    if (p.dk.data) write_gradient(p.dk, dk, dq, p.dim_qk, p.softmax_scale * ds_unit());
    if (p.dv.data) write_gradient(p.dv, dv_out, dv, p.dim_v, scale_of_kept(p) / kWeightFactor<Element>);
  }
  FW_INLINE void write_gradient(const abi::Tensor& t, const float* sums, int dim, int n, float factor) {
    in_dtype<T>(t, [&](auto* of) __attribute__((always_inline)) {
      for (int64_t k = 0; k < kJobKeys && key0 + k < scope.seq.keys; ++k) {
        auto* const out = scope.key_pointer<std::remove_pointer_t<decltype(of)>>(t, key0 + k);
        const float* row = sums + k / kSide * kSide * dim + in_tiles(k % kSide, 0);
        if (!p.accumulate) {
          write_ordered(out, row, kUnit, n, factor);
          continue;
        }
        for (int c = 0; c < n; c += 32, row += kUnit) {
          V lo, hi;
          load_ordered(row, factor, lo, hi);
          put_part(p, out + c, lo, n - c);
          if (n - c > 16) put_part(p, out + c + 16, hi, n - c - 16);
        }
      }
    });
  }

  FW_INLINE bool last_chunk() const { return row0 + chunk_rows >= scope.rows; }
  // What is fetched while block kb is multiplied: where its results go, the next block, and a share of the next chunk.
  FW_INLINE void look_ahead(int64_t kb, int64_t key_blocks, bool one_slot) {
    const auto block_of = [&](const Scope& of, int64_t block, RowsAhead& rows) {
      const int64_t first = block * kJobKeys, end = of.seq.keys;
      rows.start_keys(of, first, first + kJobKeys < end ? first + kJobKeys : end);
    };
    if (p.accumulate || last_chunk()) {
      block_of(scope, kb, key_results);
      key_results.add_keys(p.dk, p.dim_qk), key_results.add_keys(p.dv, p.dim_v);
    }
    int64_t next = parts.next(kb, key_blocks, -1);
    const Scope* const of = next >= 0 || !last_chunk() ? &scope : next_scope;
    if (next < 0) next = parts.first;
    next_keys.stop();
    if (of) {
      block_of(*of, next, next_keys);
      next_keys.add_keys(p.k, p.dim_qk), next_keys.add_keys(p.v, p.dim_v);
    }
    if (!one_slot && of == &scope) {
      next_dk.start(mem.dk + parts.slot(next) * mem.dk_block, mem.dk_block);
      next_dv.start(mem.dv + parts.slot(next) * mem.dv_block, mem.dv_block);
    }
    keys_wanted = kJobKeys;
    const int64_t rows_left = next_rows.left() > row_results.left() ? next_rows.left() : row_results.left();
    rows_wanted = blocks_left <= kFetchBlocks ? share_of(rows_left, blocks_left) : 0;
    --blocks_left;
  }
  // Before the first block of a chunk.
  FW_INLINE void look_at_next_chunk(int64_t key_blocks) {
    const auto chunk_of = [&](const Scope& of, int64_t row, RowsAhead& ahead) {
      ahead.start_queries(of, row, row + chunk_rows < of.rows ? row + chunk_rows : of.rows);
    };
    blocks_left = parts.blocks(key_blocks);
    chunk_of(scope, row0, row_results);
    if (parts.last - parts.first == parts.count) row_results.add_queries(p.dq, p.dim_qk);
    next_rows.stop();
    if (last_chunk() && !next_scope) return;
    chunk_of(last_chunk() ? *next_scope : scope, last_chunk() ? 0 : row0 + chunk_rows, next_rows);
    next_rows.add_queries(p.q, p.dim_qk), next_rows.add_queries(p.d_o, p.dim_v), next_rows.add_queries(p.o, p.dim_v);
  }
  // How much of it is fetched beside each of n units of a job, for the jobs that are `left`.
  FW_INLINE void share_out(int left, int n) {
    keys_per_unit = share_of(share_of(keys_wanted, left), n), rows_per_unit = share_of(share_of(rows_wanted, left), n);
    keys_wanted -= keys_per_unit * n, rows_wanted -= rows_per_unit * n;
  }
  // Beside S, and beside dP. Inlined: that puts vectors of the softmax on the stack, but a call between units was
  // slower.
  FW_INLINE void fetch_keys() {
    next_keys.fetch(keys_per_unit);
    key_results.fetch(keys_per_unit);
  }
  FW_INLINE void fetch_rows() {
    next_rows.fetch(rows_per_unit);
    row_results.fetch(rows_per_unit);
    next_dk.fetch(keys_per_unit * (dq / 16));  // lines of as many keys
    next_dv.fetch(keys_per_unit * (dv / 16));
  }

  // The chunk's rows against the blocks of one part of the keys.
  FW_INLINE void key_part(int32_t part, int64_t key_blocks, bool one_slot) {
    __builtin_memset(mem.rows_begun, 0, size_t(units) * sizeof(bool));
    __builtin_memset(mem.d_slope, 0, int64_t{units} * kSide * sizeof(float));
    for (int64_t kb = part; kb < key_blocks; kb += parts.count) {
      const int64_t slot = one_slot ? 0 : parts.slot(kb);
      float *dk = mem.dk + slot * mem.dk_block, *dv_out = mem.dv + slot * mem.dv_block;
      bool* const keys_begun = mem.keys_begun + slot * kKeyUnits;
      if (one_slot) __builtin_memset(keys_begun, 0, kKeyUnits * sizeof(bool));
      key0 = kb * kJobKeys;
      if (fetches) look_ahead(kb, key_blocks, one_slot);
      const bool seen = key_block(dk, dv_out, keys_begun);
      if (p.accumulate ? seen : last_chunk()) write_keys(dk, dv_out, keys_begun);
    }
  }

  template <class Take>
  FW_INLINE void run(Take&& take) {
    const int64_t key_blocks = (scope.seq.keys + kJobKeys - 1) / kJobKeys;
    const bool one_slot = scope.rows <= chunk_rows || p.accumulate;
    int order[NQ];  // of the columns of dQ^T, as put_pair() leaves them
    for (int i = 0; i < NQ; ++i) order[i] = kParts<Element> == 2 ? i : i % 16 / 4 * 8 + i % 4 + i / 16 * 4;
    __builtin_memset(mem.zeros, 0, kUnit * sizeof(float));
    if (!one_slot) __builtin_memset(mem.keys_begun, 0, size_t(parts.slots(key_blocks)) * kKeyUnits * sizeof(bool));
    for (row0 = 0; row0 == 0 || row0 < scope.rows; row0 += chunk_rows) {
      load_chunk();
      if (fetches) look_at_next_chunk(key_blocks);
      for (int32_t part = parts.first; part < parts.last; ++part) {
        key_part(part, key_blocks, one_slot);
        for (int u = 0; u < units; ++u) {
          const int64_t at = int64_t{u} * kSide * dq;
          if (mem.rows_begun[u]) {
            rows_of_results(mem.dq + at);
          } else {
            __builtin_memset(mem.dq + at, 0, kSide * dq * sizeof(float));
          }
          take({part, row0 + int64_t{u} * kSide, mem.dq + at, mem.dq_sum ? mem.dq_sum + at : nullptr, order,
                mem.d_slope + u * kSide});
        }
      }
    }
  }
};

template <class Element>
void amx_backward(const abi::Params& p, const abi::CpuLaunch& launch) {
  const int64_t rows_max = int64_t{p.seqlen_q} * (p.heads_q / p.heads_k), chunk_rows = launch.schedule.rows_per_task;
  const int64_t key_blocks = (int64_t{p.seqlen_k} + kJobKeys - 1) / kJobKeys;
  const bool one_slot = rows_max <= chunk_rows || p.accumulate;
  const auto run = [&](const Scope& scope, const Scope* next, const KeyParts& parts, char* scratch, auto&& take) {
    const AmxBackwardScratch mem(scratch, p.dim_qk, p.dim_v, chunk_rows, one_slot ? 1 : parts.slots(key_blocks),
                                 parts.sums(), kParts<Element>);
    AmxBackwardTask<Element> task(p, scope, next, mem, parts, chunk_rows);
    task.run(take);
  };
  backward_tasks<Number<Element>, TileArithmetic>(p, launch, run);
}

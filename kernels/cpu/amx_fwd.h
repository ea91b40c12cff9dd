// Forward attention in bf16 or fp16 on AMX tiles; fp16 on those of fp16, or on those of bf16 in two parts (SplitHalf).
// Included by amx.cpp after amx_tile.h and parts.h.
//
// A job is 32 query rows against up to 2 units of 32 keys: S = Q K^T (tiles), P = 2^(S c - m) (vectors), O += P V
// (tiles). S goes through memory: there is no way from a tile to a vector register. Jobs overlap:
//
//   tiles    S0   S1         values of the job before  S0'  S1'  ...
//   vectors  unit 1 of it    unit 0                    unit 1
//
// Three things decide whether the two sides really overlap (NOTES.md): vector instructions stand after every single
// tile product; a finished tile is stored when its register is about to be used again; Q, O, S and P of a job stay in
// the first-level cache, K and V stream past it (from the second, packed, 1024 keys at a time, or 512 in two parts).
//
// P is rounded, so m need not be the maximum, only near enough. |q||k| bounds every score of a job: while
// that proves that 2^(S - m) stays in range, m is left as it is, 0 to begin with, and no maximum is taken. Jobs that it
// does not prove so, or whose scores are modified, run by themselves with the online softmax (online_job).

struct AmxRowState {  // of one block of rows, in units of log2
  alignas(64) float sum[kSide][W];
  float m[kSide];
  float reach[kSide];  // |q|, times the scale
  bool started;        // m holds; else nothing has been added up
  bool summed;         // there are values in O
  bool few;            // some row sees very few keys
};
static_assert(sizeof(AmxRowState) == abi::AmxForwardScratch::kStateBytes);

// Weights are rounded to the type, their sum is not. What that does to a mean of many values is far below the rounding
// of the result, but a row of one key must give its value: there m has to be the maximum, so that the weight is 1.
constexpr int kFewKeys = 4;
// How far the weights of a job may reach without a maximum, in powers of two, and the values that they may multiply.
// bf16 has the range of fp32: 2^60 * 2^30 * 2^31 keys is in range, and so is 2^-120.
template <class T>
struct WeightRange {
  static constexpr float kWidestStart = 40.f;  // |score| up to which m may start at 0
  static constexpr float kWidestScore = 60.f;  // score - m
  static constexpr float kAbove = 0.f;         // how far above the largest score m lies, where a maximum is taken
  static constexpr float kSmallestV = 0x1p-60f, kLargestV = 0x1p30f;
};
// Those of fp16 are normal numbers from 2^-14 up, and end at 2^16. So that jobs after the first pass without a maximum,
// that of the first is taken for a little more than it is. Products take the smallest values as they are.
template <>
struct WeightRange<Half> {
  static constexpr float kWidestStart = 14.f, kWidestScore = 15.9f, kAbove = 2.f;
  static constexpr float kSmallestV = 0.f, kLargestV = 65504.f;
};
// Two numbers of bf16 have its range.
template <>
struct WeightRange<SplitHalf> : WeightRange<BFloat16> {
  static constexpr float kSmallestV = 0.f, kLargestV = 65504.f;
};

template <class Element>
struct AmxForwardTask {
  using T = Number<Element>;
  static constexpr int kJobUnits = abi::kAmxForwardUnits, kWeights = kUnit * kParts<Element>;
  static constexpr int kChunk = abi::kAmxChunk / kParts<Element>;
  struct Job {
    const uint16_t *q, *k, *v;
    float* o;
    AmxRowState* state;
    const PanelRows* rows;
    int units = 0;   // 0: no job
    int first_unit;  // in the chunk
    int32_t key;     // first one
    bool masked;     // some row does not see some key
    bool begins;     // O
  };

  const TileScope tiles;
  const abi::Params& p;
  const Scope scope;
  const abi::AmxForwardScratch mem;
  PanelRows* const rows;
  AmxRowState* const states;
  const int dq, dv;
  const float scale;
  const bool modified;  // scores are modified or dropped
  const int64_t row0;
  const int blocks;
  Job prev, cur;  // prev: softmax done but for the last unit, values not
  Place open;     // where the results go that are still in tiles
  int phase = 0;  // which half of p is cur's

  FW_INLINE AmxForwardTask(const abi::Params& params, const Scope& sc, char* scratch, int64_t first_row, int row_count)
      : p(params),
        scope(sc),
        mem(scratch, params.dim_qk, params.dim_v, (row_count + kSide - 1) / kSide, kParts<Element>),
        rows(reinterpret_cast<PanelRows*>(mem.rows)),
        states(reinterpret_cast<AmxRowState*>(mem.states)),
        dq(mem.dq),
        dv(mem.dv),
        scale(params.softmax_scale * kLog2e),
        modified(has_score_modifiers(params) || params.dropout_threshold),
        row0(first_row),
        blocks((row_count + kSide - 1) / kSide) {}

  // The last unit of a job has a place of its own: the next job's first unit comes while it is still being read.
  FW_INLINE float* s_unit(const Job& j, int u) const { return mem.s + (u + 1 == j.units ? kJobUnits - 1 : u) * kUnit; }
  FW_INLINE Place take_open() {
    const Place done = open.at ? open : Place{mem.junk};
    open = {};
    return done;
  }
  FW_INLINE uint16_t* p_of(int which) const { return mem.p[which & 1]; }
  FW_INLINE uint16_t* q_block(int b) const { return mem.q + int64_t{b} * kSide * dq * kParts<Element>; }
  FW_INLINE uint16_t* k_unit(int u) const { return mem.k + int64_t{u} * kSide * dq * kParts<Element>; }
  FW_INLINE uint16_t* v_unit(int u) const { return mem.v + int64_t{u} * kSide * dv * kParts<Element>; }

  // ---- softmax of plain scores, a row of 32 keys at a time, as many after each product as keep pace with it --------

  // kPace: rows in a step, 0 if that is not known when this is compiled.
  template <bool kMasked, int kPace>
  struct Softener {
    const float* s;
    uint16_t* out;
    AmxRowState& state;
    const PanelRows& rows;
    const int32_t key;
    const V scale;
    int i = 0;
    const int end;
    int credit = 0;
    const int rate;  // in 1/256 of a row
    static constexpr int kRow = 256;

    FW_INLINE Softener(const AmxForwardTask& t, const Job& j, int first_unit, int units, const float* from,
                       uint16_t* to, int steps)
        : s(from),
          out(to),
          state(*j.state),
          rows(*j.rows),
          key(j.key + first_unit * kSide),
          scale(splat(t.scale)),
          end(units * kSide),
          rate(steps > 0 ? (end * kRow + steps * kProducts<Element> - 1) / (steps * kProducts<Element>) : 0) {}

    // Rows [at, at + kCount) of one unit. Unsigned: between products every instruction counts.
    template <int kCount>
    FW_INLINE void soften_rows(unsigned at) {
      const unsigned first_row = at % kSide;
      const float* x = s + at * kSide;
      uint16_t* weights = out + at / kSide * (kWeights - kUnit) + at * kSide;
      FW_UNROLL for (int n = 0; n < kCount; ++n) {
        const unsigned r = first_row + n;
        uint32_t seen = 0;
        if (kMasked) {
          const int32_t first_key = key + int32_t(at / kSide * kSide);
          seen = bits_between(rows.first[r] - first_key, rows.last[r] - first_key);
        }
        const V base = splat(-state.m[r]);
        const V x0 = fused(load(x + n * kSide), scale, base);
        const V x1 = fused(load(x + n * kSide + W), scale, base);
        const V e0 = exp2_beside_tiles<kMasked>(x0, LaneBits(seen));
        const V e1 = exp2_beside_tiles<kMasked>(x1, LaneBits(seen >> 16));
        store_weights<Element>(weights + n * kSide, e0, e1);
        store(state.sum[r], load(state.sum[r]) + (e0 + e1));
      }
    }
    FW_INLINE void operator()(int product) {
      if constexpr (kPace > 0) {
        const int now = (product + 1) * kPace / kProducts<Element> - product * kPace / kProducts<Element>;
        if (now == 0 || i + now > end) return;
        now == 1 ? soften_rows<1>(unsigned(i)) : soften_rows<2>(unsigned(i));
        i += now;
        return;
      }
      credit += rate;
      while (credit >= kRow && i < end) {
        soften_rows<1>(unsigned(i++));
        credit -= kRow;
      }
    }
    FW_INLINE void finish() {
      for (; i < end; ++i) soften_rows<1>(unsigned(i));
    }
  };

  // ---- products ----------------------------------------------------------------------------------------------------

  // kDim: both head dims, if they are known when this is compiled, else 0.
  template <int kDim, class Between>
  FW_INLINE void scores(Between&& between) {
    const int dim = kDim ? kDim : dq;
    FW_NO_UNROLL for (int u = 0; u < cur.units; ++u) {
      score_unit<Element>(cur.q, cur.k + u * kSide * dim * kParts<Element>, dim, take_open(), between);
      open = by_rows(s_unit(cur, u));
    }
  }
  template <int kDim, class Between>
  FW_INLINE void values(Between&& between) {
    const int dim = kDim ? kDim : dv;
    const uint16_t* weights = p_of(phase + 1);
    FW_NO_UNROLL for (int c = 0; c < dim; c += 32) {
      const uint16_t *a = weights, *v = prev.v + c * 32 * kParts<Element>;
      float* const o = prev.o + c * kSide;
      step_2x2<Element, Start::kLoad>(a, v, take_open(), prev.begins ? mem.zeros : o, between);
      FW_NO_UNROLL for (int u = 1; u < prev.units; ++u) {
        a += kWeights, v += kSide * dim * kParts<Element>;
        step_2x2<Element, Start::kGoOn>(a, v, {}, nullptr, between);
      }
      open = {o};
    }
  }
  FW_INLINE void flush() {
    if (open.at) store_2x2(open);
    open = {};
  }
  FW_INLINE void advance() { prev = cur, cur.units = 0, ++phase; }

  // ---- the pipeline ------------------------------------------------------------------------------------------------

  // Rows in each step: 512 / dim keep pace with it. Known for the dims that have their own code, else counted.
  static constexpr int pace(int dim) { return dim ? 512 / dim : 0; }

  // The last unit of prev's softmax, beside cur's scores.
  template <int kDim, bool kMasked>
  FW_NOINLINE void soften_last() {
    Softener<kMasked, pace(kDim)> soften(*this, prev, prev.units - 1, 1, s_unit(prev, prev.units - 1),
                                         p_of(phase + 1) + (prev.units - 1) * kWeights, cur.units * dq / 32);
    scores<kDim>(soften);
    soften.finish();
  }
  // The first unit of cur's softmax, if it has two, beside the values of prev.
  template <int kDim, bool kMasked>
  FW_NOINLINE void soften_rest() {
    Softener<kMasked, pace(kDim)> soften(*this, cur, 0, cur.units - 1, mem.s, p_of(phase), prev.units * dv / 32);
    if (prev.units) {
      values<kDim>(soften);
    } else {
      flush();  // the last unit of scores
    }
    soften.finish();
  }
  // cur joins the pipeline.
  template <int kDim>
  FW_INLINE void stage_at() {
    if (prev.units) {
      prev.masked ? soften_last<kDim, true>() : soften_last<kDim, false>();
    } else {
      scores<kDim>([](int) {});
    }
    cur.masked ? soften_rest<kDim, true>() : soften_rest<kDim, false>();
    advance();
  }

  FW_INLINE void stage() {
    if (dq == 64 && dv == 64) return stage_at<64>();
    if (dq == 128 && dv == 128) return stage_at<128>();
    stage_at<0>();
  }

  // Empties the pipeline; cur, which must not have begun, stays.
  FW_NOINLINE void drain() {
    const Job next = cur;
    cur.units = 0;
    if (prev.units) {
      prev.masked ? soften_last<0, true>() : soften_last<0, false>();
      values<0>([](int) {});
    }
    flush();
    prev.units = 0;
    cur = next;
  }

  // ---- any scores --------------------------------------------------------------------------------------------------

  // 4 rows x 4 groups of 8 keys fill the lanes of one Philox call; its words hold 16 bits for each of the 8 keys.
  FW_NOINLINE void draw_kept() {
    if (p.position_k % kKeysPerPhilox != 0) return draw_kept_one_by_one();
    const uint32_t key0 = uint32_t(p.dropout_seed);
    const uint32_t key1 = uint32_t(p.dropout_seed >> 32) ^ uint32_t(p.dropout_offset >> 32);
    const bool some = p.dropout_threshold <= 0xFFFF;
    VU lane_row, lane_group;
    FW_UNROLL for (int i = 0; i < W; ++i) lane_row[i] = uint32_t(i / 4), lane_group[i] = uint32_t(i % 4);
    for (int r = 0; r < kSide; r += 4) {
      VU query{}, batch_head{};
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        query = lane_row == uint32_t(i) ? VU{} + cur.rows->query[r + i] : query;
        batch_head = lane_row == uint32_t(i) ? VU{} + cur.rows->batch_head[r + i] : batch_head;
      }
      for (int u = 0; u < cur.units; ++u) {
        const VU counter = lane_group + uint32_t((cur.key + u * kSide + p.position_k) / kKeysPerPhilox);
        const VPhilox random = philox(counter, query, batch_head, VU{} + uint32_t(p.dropout_offset), key0, key1);
        uint32_t kept[4] = {};
        FW_UNROLL for (int w = 0; w < 4; ++w) {
          const uint32_t at_least = at_least_32((VU16x32)random.word[w], uint16_t(p.dropout_threshold));
          FW_UNROLL for (int i = 0; i < 4; ++i) kept[i] |= deposit_bits(at_least >> (8 * i), 0x03030303u << (2 * w));
        }
        for (int i = 0; i < 4; ++i) mem.kept[u * kSide + r + i] = some ? kept[i] : 0u;
      }
    }
  }

  // Keys of a piece that begins inside a group of 8.
  FW_NOINLINE void draw_kept_one_by_one() {
    for (int u = 0; u < cur.units; ++u) {
      for (int r = 0; r < kSide; ++r) {
        uint32_t kept = 0;
        for (int k = 0; k < kSide; ++k) {
          const uint32_t key = uint32_t(cur.key + u * kSide + k) + p.position_k;
          const uint32_t bits =
              dropout_bits(p.dropout_seed, p.dropout_offset, cur.rows->batch_head[r], cur.rows->query[r], key);
          kept |= uint32_t(bits >= p.dropout_threshold) << k;
        }
        mem.kept[u * kSide + r] = kept;
      }
    }
  }

  FW_INLINE V read_bias(int r, int64_t key) const {
    const int64_t step = p.bias.stride[3], at = cur.rows->bias[r] + key * step;
    const int count = int(scope.seq.keys - key < W ? scope.seq.keys - key : W);
    if (count <= 0) return V{};
    const auto read = [&](auto* data) __attribute__((always_inline)) {
      if (step == 1) return load_part(data + at, count);
      V x{};
      for (int i = 0; i < count; ++i) x[i] = to_float(data[at + i * step]);
      return x;
    };
    return in_log2(p.bias.dtype == abi::kF32 ? read(static_cast<const float*>(p.bias.data))
                                             : read(static_cast<const T*>(p.bias.data)));
  }

  // Rows [r0, r0 + 16) of cur: scores -> weights, with the online softmax; keys are in the lanes.
  FW_NOINLINE void soften_16(int r0, uint16_t* out) {
    AmxRowState& state = *cur.state;
    const abi::Params problem = p;  // nothing that is stored below can change it: its fields stay in registers
    const bool any_modifier = has_score_modifiers(problem), has_bias = problem.bias.data != nullptr;
    VI lanes;
    FW_UNROLL for (int i = 0; i < W; ++i) lanes[i] = i;
    V top[W];
    for (int i = 0; i < W; ++i) {
      const int r = r0 + i;
      const VI diagonal = splat_i(cur.rows->diagonal[r]);
      const VI first = splat_i(cur.rows->first[r]), last = splat_i(cur.rows->last[r]);
      const V slope = splat(cur.rows->slope[r]);
      top[i] = splat(-kInf);
      for (int c = 0; c < cur.units * kSide; c += W) {
        float* x = s_unit(cur, c / kSide) + r * kSide + c % kSide;
        const VI key = lanes + (cur.key + c);
        V score = load(x) * scale;
        if (any_modifier) {
          alignas(64) float bias[W];
          if (has_bias) store(bias, read_bias(r, cur.key + c));
          score = modify_score(problem, score, slope, __builtin_convertvector(diagonal - key, V), 0.f,
                               has_bias ? bias : nullptr, nullptr);
        }
        if (cur.masked) score = ((key >= first) & (key < last)) ? score : splat(-kInf);
        store(x, score);
        top[i] = max(top[i], score);
      }
    }
    transpose(top);
    V now = load_u(state.m + r0);
    for (int i = 0; i < W; ++i) now = max(top[i] + (modified || state.few ? 0.f : WeightRange<Element>::kAbove), now);
    raise(r0, now);
    const V base = now == -kInf ? V{} : now;
    for (int i = 0; i < W; ++i) {
      const int r = r0 + i;
      V sum = load(state.sum[r]);
      for (int u = 0; u < cur.units; ++u) {
        const float* x = s_unit(cur, u) + r * kSide;
        V e[2];
        for (int h = 0; h < 2; ++h) sum += e[h] = exp2_masked(load(x + h * W) - base[i]);
        if (problem.dropout_threshold) {
          for (int h = 0; h < 2; ++h) e[h] = keep_lanes(LaneBits(mem.kept[u * kSide + r] >> (h * W)), e[h]);
        }
        store_weights<Element>(out + u * kWeights + r * kSide, e[0], e[1]);
      }
      store(state.sum[r], sum);
    }
  }
  // Rows [r0, r0 + 16) have a larger m.
  FW_INLINE void raise(int r0, V now) {
    AmxRowState& state = *cur.state;
    const V before = load_u(state.m + r0);
    const VI same = now == before;
    store_u(state.m + r0, now);
    if (!any(~same)) return;
    const V alpha = exp2_masked(before - (now == -kInf ? V{} : now));
    for (int i = 0; i < W; ++i) {
      if (same[i]) continue;
      const int r = r0 + i;
      store(state.sum[r], load(state.sum[r]) * alpha[i]);
      for (int c = 0; c < dv; c += W) {
        float* o = cur.o + in_tiles(unsigned(r), unsigned(c));
        store(o, load(o) * alpha[i]);
      }
    }
  }

  // Whether q, k and v of cur are.
  FW_INLINE bool finite() const {
    bool all = true;
    for (int u = cur.first_unit; u < cur.first_unit + cur.units; ++u) {
      all &= mem.k_length[u] < kInf && mem.v_extent[u] < kInf;
    }
    for (const float reach : cur.state->reach) all &= reach < kInf;
    return all;
  }
  FW_NOINLINE void plain_scores() {
    for (int u = 0; u < cur.units; ++u) plain_score_unit(cur.q, cur.k + u * dq * 64, dq, s_unit(cur, u));
  }
  FW_NOINLINE void plain_values() {
    for (int u = 0; u < prev.units; ++u) {
      for (int c = 0; c < dv; c += 32) {
        plain_step_2x2(p_of(phase + 1) + u * kWeights, prev.v + (u * dv + c) * 64, {prev.o + c * kSide});
      }
    }
  }

  FW_NOINLINE void online_job() {
    drain();
    const bool plain = kParts<Element> == 2 && !finite();
    AmxRowState& state = *cur.state;
    if (cur.begins) clear(cur.o);
    cur.begins = false;
    if (!state.started) {
      for (float& m : state.m) m = -kInf;
    }
    state.started = true;
    plain ? plain_scores() : scores<0>([](int) {});
    flush();
    if (p.dropout_threshold) draw_kept();
    for (int r = 0; r < kSide; r += W) soften_16(r, p_of(phase));
    advance();
    plain ? plain_values() : values<0>([](int) {});
    flush();
    prev.units = 0;
  }

  // Whether 2^(S - m) of cur is in range for certain. May start the rows at m = 0.
  FW_INLINE bool in_range() {
    float k_length = 0.f;
    bool v_fits = true;
    for (int u = cur.first_unit; u < cur.first_unit + cur.units; ++u) {
      k_length = mem.k_length[u] > k_length ? mem.k_length[u] : k_length;
      const float v = mem.v_extent[u];
      v_fits &= v == 0.f || (v >= WeightRange<Element>::kSmallestV && v <= WeightRange<Element>::kLargestV);
    }
    if (!v_fits) return false;
    AmxRowState& state = *cur.state;
    const float widest = state.started ? WeightRange<Element>::kWidestScore : WeightRange<Element>::kWidestStart;
    VI beyond{};
    for (int r = 0; r < kSide; r += W) {
      // "not <=", so that NaN is beyond, as is the infinity of a row that has seen nothing
      beyond |= ~(load_u(state.reach + r) * k_length - load_u(state.m + r) <= widest);
    }
    if (any(beyond)) return false;
    state.started = true;
    return true;
  }

  // ---- the task ----------------------------------------------------------------------------------------------------

  // A sink is a key of value 0 that comes first; it joins one part of the keys only.
  FW_INLINE void start(bool with_sink) {
    for (int b = 0; b < blocks; ++b) {
      const int64_t row = row0 + int64_t{b} * kSide;
      const T* pointers[NQ];
      scope.panel_pointers(p.q, row, pointers);
      uint16_t* q = q_block(b);
      pack_rows<Element>(pointers, p.dim_qk, dq, q);
      scope.describe_panel(row, rows[b]);
      AmxRowState& state = states[b];
      state.started = with_sink && p.sinks;
      state.few = state.summed = false;
      for (int r = 0; r < kSide; ++r) {
        V squares{};
        for (int c = 0; c < dq; c += 32) {
          squares = add_squares<Part<Element>>(squares, load_aligned_32(q + (c * kParts<Element> + r) * 32));
        }
        store(state.sum[r], squares);
        state.m[r] = 0.f;
        state.few |= rows[b].last[r] - rows[b].first[r] <= kFewKeys;
      }
      alignas(64) float squares[kSide];
      sums_of(state, squares);
      for (int r = 0; r < kSide; r += W) {
        const V length = square_roots(load(squares + r));
        store_u(state.reach + r, length * (__builtin_fabsf(scale) * 1.01f));
      }
      __builtin_memset(state.sum, 0, sizeof state.sum);
      if (state.started) {
        scope.for_each_row(row, scope.panel_count(row), [&](int r, int64_t, int32_t head) {
          state.m[r] = sink_of(p, head);
          state.sum[r][0] = 1.f;
        });
      }
    }
    __builtin_memset(mem.zeros, 0, kUnit * sizeof(float));
  }
  FW_INLINE float* o_block(int b) const { return mem.o + int64_t{b} * kSide * dv; }
  FW_INLINE void clear(float* o) const { __builtin_memset(o, 0, sizeof(float) * kSide * dv); }

  // Keys [begin, end) into the chunk, in whole units: what is known of a unit may not depend on which rows the task
  // has. The rows of one head lie far apart, where the hardware does not look ahead: each unit fetches the next.
  FW_INLINE void pack(int64_t begin, int64_t end) {
    const int64_t whole = begin + (end - begin + kSide - 1) / kSide * kSide;
    const int64_t exist = whole < scope.seq.keys ? whole : scope.seq.keys;
    const T *k_rows[2][kSide], *v_rows[2][kSide];
    unit_pointers(scope, p.k, begin, exist, k_rows[0]);
    unit_pointers(scope, p.v, begin, exist, v_rows[0]);
    int u = 0;
    for (int64_t key = begin; key < end; key += kSide, ++u) {
      const int now = u & 1, next = now ^ 1;
      unit_pointers(scope, p.k, key + kSide, exist, k_rows[next]);
      unit_pointers(scope, p.v, key + kSide, exist, v_rows[next]);
      for (int i = 0; i < kSide && k_rows[next][i]; ++i) prefetch_row(k_rows[next][i], p.dim_qk);
      mem.k_length[u] = __builtin_sqrtf(pack_transposed<Element>(k_rows[now], p.dim_qk, dq, k_unit(u)));
      for (int i = 0; i < kSide && v_rows[next][i]; ++i) prefetch_row(v_rows[next][i], p.dim_v);
      mem.v_extent[u] = pack_pairs<Element, true>(v_rows[now], p.dim_v, dv, v_unit(u));
    }
  }

  // Block b against the packed keys [begin, end); begin is a multiple of a unit, jobs lie on a grid of their own.
  FW_INLINE void attend_block(int b, int64_t begin, int64_t end) {
    const PanelRows& lanes = rows[b];
    int64_t key = begin > lanes.min_first ? begin : int64_t{lanes.min_first} / kSide * kSide;
    const int64_t last = end < lanes.max_last ? end : lanes.max_last;
    const int grid = kJobUnits * kSide;
    while (key < last) {
      const int64_t job_end = key / grid * grid + grid;
      const int units = int(((job_end < last ? job_end : last) - key + kSide - 1) / kSide);
      cur.first_unit = int(key - begin) / kSide;
      cur.q = q_block(b);
      cur.k = k_unit(cur.first_unit);
      cur.v = v_unit(cur.first_unit);
      cur.o = o_block(b);
      cur.state = &states[b];
      cur.rows = &lanes;
      cur.units = units;
      cur.key = int32_t(key);
      cur.masked = key < lanes.max_first || key + units * kSide > lanes.min_last;
      cur.begins = !states[b].summed;
      states[b].summed = true;
      if (!modified && !states[b].few && in_range()) {
        stage();
      } else {
        online_job();
      }
      key = job_end;
    }
  }

  // All rows against keys [key_begin, key_end); key_begin is a multiple of kAmxKeyStep.
  FW_INLINE void attend(int64_t key_begin, int64_t key_end) {
    int64_t first = key_end, last = key_begin;
    for (int b = 0; b < blocks; ++b) {
      first = rows[b].min_first < first ? rows[b].min_first : first;
      last = rows[b].max_last > last ? rows[b].max_last : last;
    }
    if (last > key_end) last = key_end;
    first = first < key_begin ? key_begin : first / kSide * kSide;
    for (int64_t k0 = first; k0 < last;) {
      const int64_t chunk_end = k0 / kChunk * kChunk + kChunk;
      const int64_t end = chunk_end < last ? chunk_end : last;
      pack(k0, end);
      for (int b = 0; b < blocks; ++b) attend_block(b, k0, end);
      drain();
      k0 = chunk_end;
    }
  }

  // The sums of all rows of a block.
  FW_INLINE void sums_of(const AmxRowState& state, float* out) const {
    for (int r = 0; r < kSide; r += W) {
      V x[W];
      FW_UNROLL for (int i = 0; i < W; ++i) x[i] = load(state.sum[r + i]);
      store(out + r, sum_each(x));
    }
  }

  FW_INLINE void finish() {
    const float keep = scale_of_kept(p);
    for (int b = 0; b < blocks; ++b) {
      const int64_t row = row0 + int64_t{b} * kSide;
      const AmxRowState& state = states[b];
      if (!state.summed) clear(o_block(b));
      alignas(64) float sums[kSide], inverse[kSide];
      sums_of(state, sums);
      for (int r = 0; r < kSide; ++r) inverse[r] = scale_of_row(sums[r], keep);
      scope.for_each_row(row, scope.panel_count(row), [&](int r, int64_t query, int32_t head) {
        const float* o = o_block(b) + in_tiles(r, 0);
        const MergedRow end = end_row(p, scope, query, head, state.m[r], sums[r]);
        if (p.o.dtype == abi::kF32) {
          add_ordered(scope.pointer<float>(p.o, query, head), o, kUnit, p.dim_v, inverse[r] * end.add, end.keep);
        } else {
          write_ordered(scope.pointer<T>(p.o, query, head), o, kUnit, p.dim_v, inverse[r]);
        }
      });
    }
  }

  // Writes the state as it is, for combine_parts().
  FW_INLINE void finish_part(const PartialResults& parts, int32_t split, int64_t first_row_of_call) {
    for (int b = 0; b < blocks; ++b) {
      const int64_t row = row0 + int64_t{b} * kSide;
      const AmxRowState& state = states[b];
      if (!state.summed) clear(o_block(b));
      alignas(64) float sums[kSide];
      sums_of(state, sums);
      for (int r = 0; r < scope.panel_count(row); ++r) {
        const int64_t index = split * parts.rows + first_row_of_call + row + r;
        const float l = sums[r];
        parts.m[index] = l == 0.f ? -kInf : state.m[r];
        parts.l[index] = l;
        const float* o = o_block(b) + in_tiles(r, 0);
        write_ordered(parts.o + index * p.dim_v, o, kUnit, p.dim_v, 1.f);
      }
    }
  }
};

// What the loops of the backward (bwd.h, bwd_wide.h) have in common: which rows a workgroup keeps and which pass by,
// the mask, what a score becomes, and storing the sums.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/amd/bwd_numbers.h"
#include "kernels/amd/bwd_rows.h"
#include "kernels/common/key_tiles.h"
#include "kernels/rdna/bwd_modify.h"
#include "kernels/rdna/bwd_stream.h"

namespace flashwave {

template <class T, class C>
struct BackwardTask {
  static constexpr int64_t kBlockBytes = abi::backward_block_bytes(C::kStreamed, C::kFused ? C::kDim : 0);

  struct Place {
    int batch, head, head_k, x0;  // head: of the queries, the first of the group; x0: the first kept row
  };

  const Params& p;
  char* const lds;
  const int lane, wave;

  // The rows of A that the first kept row pairs with, by the mask: lower .. upper; 1 more for each next one. `end`: of
  // the keys, counted from the first kept row if those are kept.
  int lower, upper, end;
  int queries, keys;  // after the start, with modifiers only
  int clean_first;    // tiles that need no mask, by their first row: one comparison
  uint32_t clean_size;
  int count;  // of the tiles of a head
  int first_from,
      last_end;  // a head: this block is the first, or the last, to add to dQ of queries from, or up to here
  HeadRows x, y;

  // The stream: the tile that is loaded, and the one that is multiplied.
  Stream<C> stream;
  int loaded, now, head_end;    // first rows; head_end: past the last tile of a head
  const char *block, *current;  // of queries (backward_blocks.h): the loaded tile's, this tile's
  int64_t block_step;           // bytes from a block to the next one of its head
  int loaded_head, head;        // of the queries
  float scale;                  // of scores to log2
  ModifierFactors factors;

  F32x8 dx[C::kSumRows][C::kSumTiles], dy[C::kSumRows][C::kSumTiles];

  // Of the start only.
  Place at;
  Sequence seq;
  QueryTiles tiles;

  FW_METHOD BackwardTask(const GpuArguments& args, char* shared)
      : p(args.params), lds(shared), lane(lane_index()), wave(wave_index()) {}

  // The first tiles of keys, or the last of queries, are the longest under a causal mask: they go first. A pure
  // function of the task, asked for again at the end: nothing of it is kept meanwhile.
  FW_METHOD static Place place_of(const Params& p) {
    const uint32_t task = uint32_t(task_index()), group = uint32_t(p.heads_q / p.heads_k);
    const uint32_t rows = C::kKeepsKeys ? p.seqlen_k : p.seqlen_q, heads = C::kKeepsKeys ? p.heads_k : p.heads_q;
    const uint32_t blocks = !C::kHead && rows > C::kKept ? (rows + C::kKept - 1) / C::kKept : 1;
    const uint32_t of_head = task / blocks, block = task - of_head * blocks, batch = of_head / heads;
    const uint32_t head = of_head - batch * heads;
    return {int(batch), int(C::kKeepsKeys ? head * group : head), int(C::kKeepsKeys ? head : head / group),
            int(C::kKeepsKeys ? block : blocks - 1 - block) * C::kKept};
  }

  // Whether there is something to do.
  FW_METHOD bool choose_task(const Schedule& schedule) {
    if (task_index() >= schedule.tasks) return false;
    at = place_of(p);
    return at.batch < p.batch && choose_rows();
  }
  FW_METHOD bool choose_rows() {
    seq = sequence_of(p, at.batch);
    queries = int(seq.queries), keys = int(seq.keys);
    if (at.x0 >= (C::kKeepsKeys ? stored_rows(p, at.batch) - left_pad(p, at.batch) : queries)) return false;
    const Edges edges = edges_of(p, seq);
    const int rows = kept_rows();
    if constexpr (C::kKeepsKeys) {
      tiles = query_tiles(edges, queries, at.x0, at.x0 + rows, C::kStreamed);
      if (rows < C::kKept) tiles.all_end = tiles.all_first;  // rows that are no keys are always masked
      lower = at.x0 - edges.right, upper = at.x0 - edges.left;
      if constexpr (C::kHead) find_last(edges);
    } else {
      tiles = key_tiles(edges, keys, at.x0, at.x0 + rows, C::kStreamed);
      lower = at.x0 + edges.left, upper = at.x0 + edges.right;
    }
    end = keys - (C::kKeepsKeys ? at.x0 : 0);
    count = tiles.end - tiles.first;
    clean_first = tiles.all_first * C::kStreamed, clean_size = (tiles.all_end - tiles.all_first) * C::kStreamed;
    return true;
  }

  // A head: its queries from the next block's first one on are not done with this block.
  FW_METHOD void find_last(const Edges& edges) {
    last_end = queries;
    for (int x = keys - 1 - (keys - 1) % C::kKept; x > at.x0; x -= C::kKept) {
      const QueryTiles t = query_tiles(edges, queries, x, least(x + C::kKept, keys), C::kStreamed);
      if (t.end > t.first) last_end = t.first * C::kStreamed;
    }
  }

  FW_METHOD int kept_rows() const { return least((C::kKeepsKeys ? keys : queries) - at.x0, C::kKept); }

  FW_METHOD void start_stream(const GpuArguments& args) {
    const int first = uniform(tiles.first * C::kStreamed);
    loaded = now = first;
    head_end = uniform(tiles.end * C::kStreamed);
    const bool has_g = Stream<C>::has_g(C::load_wave(wave));
    if constexpr (C::kKeepsKeys) {
      x.start(p.k, stored_offset(p.k, seq, at.x0, at.head_k), p.dim_qk);
      y.start(p.v, stored_offset(p.v, seq, at.x0, at.head_k), p.dim_v);
      const abi::Tensor& t = has_g ? p.d_o : p.q;
      stream.from.start(t, query_offset(t, seq, first, at.head), has_g ? p.dim_v : p.dim_qk);
      stream.rows = queries - first;
    } else {
      x.start(p.q, query_offset(p.q, seq, at.x0, at.head), p.dim_qk);
      y.start(p.d_o, query_offset(p.d_o, seq, at.x0, at.head), p.dim_v);
      const abi::Tensor& t = has_g ? p.v : p.k;
      stream.from.start(t, stored_offset(t, seq, first, at.head_k), has_g ? p.dim_v : p.dim_qk);
      stream.rows = keys - first;
    }
    int64_t number;
    // Each role has its own: without being told, clang 22 makes it a function that the larger kernels call.
    [[clang::always_inline]] number = abi::backward_first_block(p, at.batch, C::kStreamed);
    if constexpr (C::kKeepsKeys) number += tiles.first;
    const int64_t bytes =
        C::kHead ? abi::backward_block_bytes(C::kStreamed, args.schedule.dq_columns) : int64_t{kBlockBytes};
    block = args.shared + abi::kBackwardHeaderBytes + uniform((number * p.heads_q + at.head) * bytes);
    block_step = p.heads_q * bytes;
    loaded_head = uniform(at.head);
    scale = uniform(p.softmax_scale * kLog2e);
    if constexpr (C::kModified) factors.start(p);
  }

  // The next tile, of this head or of the next one of the group. Behind the last one it is loaded again, for nobody.
  FW_METHOD void advance(bool more) {
    if (!more) return;
    loaded += C::kStreamed;
    stream.rows -= C::kStreamed;
    stream.from.data += int64_t{C::kStreamed} * stream.from.stride;
    if constexpr (C::kKeepsKeys) {
      block += block_step;
      if (!C::kHead && loaded == head_end) {
        const FW_CONSTANT Params& again = arguments_again().params;
        const int in_head = here(count);  // or what follows would be computed before the loop, and kept
        const int64_t back = int64_t{in_head} * C::kStreamed;
        loaded -= int(back);
        stream.rows += int(back);
        const bool has_g = Stream<C>::has_g(C::load_wave(here(wave)));
        stream.from.data += (has_g ? again.d_o : again.q).stride[2] * 2 - back * stream.from.stride;
        ++loaded_head;
        block += kBlockBytes - in_head * block_step;
      }
    }
  }
  FW_METHOD int all_tiles() const { return count * (C::kKeepsKeys ? p.heads_q / p.heads_k : 1); }
  FW_METHOD void start_tile() {
    current = block;
    head = loaded_head;
    now = loaded;
  }

  // X and Y as operands: lane = row. Rows past the end and columns past the head dim are 0.
  FW_METHOD Fragment kept_operand(const HeadRows& from, const Buffer& b, int w, int step) const {
    const int row = C::score_x(wave, w) * 16 + (lane & 15), column = step * 32 + (kRdna4 ? (lane >> 4) * 16 : 0);
    const auto unit = [&](int at) {
      const bool there = at < from.columns && row < kept_rows();
      return buffer_load16(b, there ? row * from.stride + at : kNowhere);
    };
#if defined(__GFX12__)
    return unit(column);
#else
    return joined(unit(column), unit(column + 16));
#endif
  }

  // Queries kept: -lse / scale (or, with modifiers, -lse; which = 0) or -delta (1) of this lane's. `block` is then the
  // sequence's first.
  FW_METHOD float number(int w, int which) const {
    const int query = least(C::score_x(wave, w) * 16 + (lane & 15), kept_rows() - 1) + at.x0;
    const float* const of_block =
        reinterpret_cast<const float*>(block + int64_t{query / C::kStreamed} * p.heads_q * kBlockBytes);
    return of_block[which * C::kStreamed + row_place(query % C::kStreamed)];
  }

  // ----------------------------------------------------------------------------------------------------------- scores
  // Of tile w of the wave, in registers first_register .. + N - 1 of the accumulator.
  FW_METHOD bool is_clean() const { return uint32_t(now - clean_first) < clean_size; }
  // Scores of pairs of which the query does not see the key become -inf.
  template <int N>
  FW_METHOD void mask(Vec<float, N>& scores, int w, int first_register = 0) const {
    int mine = lane;
    hold(mine);
    const int own = here(wave);  // or the sums below would be kept in scalar registers
    const int row = C::score_x(own, w) * 16 + (mine & 15);
    const int first = now + kRowsOfHalf * (mine >> 4) + kRowsOfRegister * first_register;
    const int least_row = lower + row - first;
    int last_row = upper + row - first;
    if constexpr (C::kKeepsKeys) {
      if (row >= end) last_row = least_row - 1;
    } else {
      last_row = least(last_row, end - 1 - first);
    }
    FW_UNROLL for (int r = 0; r < N; ++r) {
      scores[r] = kRowsOfRegister * r >= least_row && kRowsOfRegister * r <= last_row ? scores[r] : -kInf;
    }
    hold(scores);
  }

  // With modifiers: of tile w, registers first_register .. + N - 1.
  template <uint32_t kModifiers, int N>
  FW_METHOD Modifiers<T, C, N, kModifiers> modifiers(int w, int first_register = 0) const {
    int mine = lane;
    if constexpr (!kRdna4 || kModifiers == kAnyModifiers)
      hold(mine);  // or there are registers for what follows from it
    const int own = here(wave);
    return {parameters_again(p),
            factors,
            here(at.batch),
            here(head),
            here(queries),
            here(keys),
            here(at.x0) + C::score_x(own, w) * 16,
            here(now),
            first_register,
            mine};
  }
  // Dropout alone: which pairs of a tile are not dropped. `of_kept` is made anew when the heads of a group change.
  template <int N, int kTiles>
  FW_METHOD void draw(DropoutOfKept<C> (&of_kept)[kTiles], int& of_head, KeptPairs<N> (&kept)[kTiles],
                      int first_register = 0) const {
    const auto modify = modifiers<kDropout, N>(0, first_register);
    const DropoutTable table = modify.table();
    if (of_head != head) {
      of_head = head;
      FW_UNROLL for (int w = 0; w < kTiles; ++w) {
        of_kept[w] = modifiers<kDropout, N>(w, first_register).of_kept(table);
        hold(of_kept[w]);
      }
    }
    Philox4 numbers[kTiles];
    draw_numbers<C>(table, of_kept, modify.of_passing(table), numbers);
    FW_UNROLL for (int w = 0; w < kTiles; ++w) kept[w] = modify.kept_pairs(numbers[w]);
  }

  // a.x -> P, and what the gradient needs of it in its place, less kGradientFactor. use(): takes the weights that are
  // not dropped; kept: which those are, with dropout.
  template <uint32_t kModifiers, int N, class Use>
  FW_METHOD void modified_weights(Vec<float, N>& s, const Vec<float, C::kKeepsKeys ? N : 1>& minus_lse,
                                  Vec<uint32_t, N> raw_bias, const Use& use, KeptPairs<N>& kept, int w,
                                  int first_register = 0) const {
    using Scores = Vec<float, N>;
    constexpr bool kCapsAlone = kModifiers == kSoftcap;
    const auto modify = modifiers<kModifiers, N>(w, first_register);
    Scores sum = modify.in_registers(minus_lse), cap_gradients;
    if constexpr (kCapsAlone) {
      cap_gradients = modify.below_cap(s);
      add_products(sum, cap_gradients, 2.f * factors.cap_out);
      s = sum;
    } else {
      if (modify.has_alibi()) modify.add_alibi(sum);
      if (modify.caps()) modify.cap(s, cap_gradients);
      const float scale = modify.caps() ? factors.cap_out : factors.scale;
      if (modify.is_biased()) {
        s *= scale;
        // The sum with -lse last: next to the least finite bias, which some rows have for all keys, the rest is
        // nothing. Next to a large bias lse is coarse, and the difference may come out above what it can be, by numbers
        // that exp turns into inf.
        Scores bias = modify.bias_of(raw_bias);
        hold(bias);
        if (__builtin_expect(hides(minus_lse), 0)) {
          modify.keep_finite(bias);
          hold(bias);
        }
        FW_UNROLL for (int r = 0; r < N; ++r) s[r] = __builtin_fmaf(bias[r], kLog2e, s[r]);
        s += sum;
        const float most = kModifiers == kAnyModifiers ? factors.most : 0.f;
        FW_UNROLL for (int r = 0; r < N; ++r) s[r] = __builtin_fminf(s[r], most);
      } else {
        add_products(sum, s, scale);
        s = sum;
      }
    }
    hold(s);
    if (__builtin_expect(!is_clean(), 0)) mask(s, w, first_register);
    FW_UNROLL for (int r = 0; r < N; ++r) s[r] = exp2_fast(s[r]);
    hold(s);
    if (modify.drops()) {
      if constexpr (kModifiers == kAnyModifiers) {
        const DropoutTable table = modify.table();
        const DropoutOfKept<C> of_kept[1] = {modify.of_kept(table)};
        Philox4 numbers[1];
        draw_numbers<C>(table, of_kept, modify.of_passing(table), numbers);
        kept = modify.kept_pairs(numbers[0]);
      }
      Scores weights;
      FW_UNROLL for (int r = 0; r < N; ++r) weights[r] = in_lanes(kept.lanes[r]) ? s[r] : 0.f;
      use(weights);
      if (kModifiers == kAnyModifiers) kept.to_registers();
    } else {
      use(s);
    }
    if constexpr (kCapsAlone) {
      s *= cap_gradients;
      add_share(s, cap_gradients);
    } else if (modify.caps()) {
      hold(s);  // a branch: without a softcap there are none
      s *= cap_gradients;
    }
    hold(s);
  }
  // A power of two and a sign, which rounding has room for.
  template <uint32_t kModifiers>
  static constexpr int kGradientFactor = kModifiers == kSoftcap ? -4 : 1;
  // Whether one of these may be that of a row whose keys all have the least finite bias.
  template <int N>
  FW_METHOD static bool hides(const Vec<float, N>& minus_lse) {
    float most = minus_lse[0];
    FW_UNROLL for (int r = 1; r < N; ++r) most = __builtin_fmaxf(most, minus_lse[r]);
    return ballot(most > 0.25f * kLargest) != 0;
  }
  template <uint32_t kModifiers>
  FW_METHOD bool drops() const {
    if constexpr (kModifiers != kAnyModifiers) return (kModifiers & kDropout) != 0;
    return parameters_again(p).dropout_threshold != 0;
  }
  // dP - delta -> the factor of P in dS, -delta where the pair is dropped.
  template <uint32_t kModifiers, int N>
  FW_METHOD void drop_gradients(Vec<float, N>& dp, const Vec<float, N>& minus_delta, const KeptPairs<N>& kept) const {
    if (!drops<kModifiers>()) return;
    FW_UNROLL for (int r = 0; r < N; ++r) {
      const bool there = kModifiers == kAnyModifiers ? (kept.registers >> r & 1) != 0 : in_lanes(kept.lanes[r]);
      dp[r] = there ? dp[r] : minus_delta[r];
    }
    hold(dp);
  }
  // run.template operator()<M>() with M the modifiers of this launch, `all`.
  FW_METHOD uint32_t all_modifiers() const { return C::kModified ? uniform(int(modifiers_of<T>(p))) : 0; }
  template <class Run>
  FW_METHOD void by_modifiers(uint32_t all, const Run& run) const {
    if constexpr (!C::kModified) {
      run.template operator()<0>();
    } else {
      if (all == kAlibi)
        run.template operator()<kAlibi>();
      else if (all == kSoftcap)
        run.template operator()<kSoftcap>();
      else if (all == kDropout)
        run.template operator()<kDropout>();
      else if (all == kFloatBias)
        run.template operator()<kFloatBias>();
      else if (all == kOwnBias)
        run.template operator()<kOwnBias>();
      else
        run.template operator()<kAnyModifiers>();
    }
  }

  // Where this lane's kept row is in its fragment of dS^T: an element of unit u of 16 rows.
  FW_METHOD uint32_t ds_t_place() const {
    const int i = lane & 15, half = lane >> 4;
    const int unit = kRdna4 ? i >> 3 : i & 1, element = kRdna4 ? i & 7 : i >> 1;
    const int row = kRdna4 ? 8 * half ^ 4 * unit ^ 2 * half : half ^ 4 * unit;
    return unit * 256 + row * 16 + element * 2;
  }

  // Tiles of 16 x 16 of dA, of consecutive columns, added to the sums of dQ in a block.
  template <int N>
  FW_METHOD void add_da(F32x8 (&da)[N], const char* of_block, int first_column) const {
    int mine = lane;
    if (C::kTight) hold(mine);
    const int column = kRdna4 ? mine & 15 : (mine >> 3 & 1) | (mine >> 1 & 2) | (mine << 1 & 4) | (mine << 3 & 8);
    uint32_t to = (mine >> 4) * kRowsOfHalf * C::kDim * 4 + column * 4;
    if (C::kTight) hold(to);
    constexpr int kPer = kRdna4 ? 8 : 512 / C::kDim;  // registers within the reach of an immediate
    FW_UNROLL for (int n = 0; n < N; ++n) hold(da[n]);
    FW_UNROLL for (int r0 = 0; r0 < 8; r0 += kPer) {
      const char* const sums = of_block + abi::backward_dq_at(C::kStreamed) + r0 * 2 * C::kDim * 4 + first_column * 4;
      const Buffer b = make_buffer(sums, 16 * C::kDim * 4);
      FW_UNROLL for (int n = 0; n < N; ++n) {
        FW_UNROLL for (int r = 0; r < kPer; ++r) {
          add_to_memory(b, to + r * kRowsOfRegister * C::kDim * 4 + n * 64, da[n][r0 + r]);
        }
      }
    }
  }

  // ----------------------------------------------------------------------------------------------------------- the end
  FW_METHOD void clear_sums() {
    FW_UNROLL for (int t = 0; t < C::kSumRows; ++t) {
      FW_UNROLL for (int d = 0; d < C::kSumTiles; ++d) {
        dx[t][d] = dy[t][d] = F32x8(0.f);
        hold(dx[t][d]);  // zeros by pairs
      }
    }
  }
  // A lane has 8 contiguous columns of one kept row in each accumulator.
  FW_METHOD void store_sums(const abi::Tensor& t, int64_t offset, int dim, int rows, float factor,
                            const F32x8 (&sums)[C::kSumRows][C::kSumTiles]) const {
    const uint32_t stride = uint32_t(t.stride[1] * 2);
    const Buffer b = make_buffer(static_cast<char*>(t.data) + offset * 2, t.data ? span_of(rows, stride, dim * 2) : 0);
    FW_UNROLL for (int i = 0; i < C::kSumRows; ++i) {
      const int row = (C::sum_x(wave) * C::kSumRows + i) * 16 + (lane & 15);
      F32x8 scaled[C::kSumTiles];
      FW_UNROLL for (int d = 0; d < C::kSumTiles; ++d) {
        scaled[d] = sums[i][d] * factor;
        hold(scaled[d]);
      }
      U32x4 packed[C::kSumTiles];
      pack_columns(scaled, packed);
      FW_UNROLL for (int d = 0; d < C::kSumTiles; ++d) {
        const int column = (C::sum_column(wave) * C::kSumTiles + d) * 16 + (lane >> 4) * 8;
        buffer_store16(b, row < rows && column < dim ? row * stride + column * 2 : kNowhere, packed[d]);
      }
    }
  }
  // dQ of the tile that is loaded: a lane has 8 contiguous columns of one query in each accumulator.
  template <int N>
  FW_METHOD void store_queries(F32x8 (&sums)[N], int first_column) const {
    const FW_CONSTANT Params& again = arguments_again().params;
    const abi::Tensor& t = *(const abi::Tensor*)&again.dq;
    const uint32_t stride = uint32_t(t.stride[1] * 2);
    const int dim = again.dim_qk;
    char* const to = static_cast<char*>(t.data) + query_offset(t, seq, loaded, at.head) * 2;
    const int rows = least(queries - loaded, C::kStreamed), row = lane & 15;
    const Buffer b = make_buffer(to, t.data ? span_of(rows, stride, dim * 2) : 0);
    const float factor = again.softmax_scale;
    FW_UNROLL for (int d = 0; d < N; ++d) {
      sums[d] *= factor;
      hold(sums[d]);
    }
    U32x4 packed[N];
    pack_columns(sums, packed);
    FW_UNROLL for (int d = 0; d < N; ++d) {
      const int column = first_column + d * 16 + (lane >> 4) * 8;
      buffer_store16(b, row < rows && column < dim ? row * stride + column * 2 : kNowhere, packed[d]);
    }
  }
  // Columns of accumulators, rounded. Numbers beyond the range of quick rounding show in a sum of products, each of two
  // of them (as in fwd.h).
  template <int N>
  FW_METHOD static void pack_columns(F32x8 (&x)[N], U32x4 (&packed)[N]) {
    constexpr auto place = column_register;
    if constexpr (T::kQuickRounding) {
      float all[4] = {};
      FW_UNROLL for (int i = 0; i < N; ++i) {
        const F32x8 y = T::rounded(x[i]);
        FW_UNROLL for (int c = 0; c < 4; ++c) packed[i][c] = T::high_halves(y[place(2 * c)], y[place(2 * c + 1)]);
        FW_UNROLL for (int r = 0; r < 4; ++r) all[r] = __builtin_fmaf(y[r], y[r + 4], all[r]);
      }
      const float sum = (all[0] + all[1]) + (all[2] + all[3]);
      if (__builtin_expect(ballot(!(__builtin_fabsf(sum) < kInf)) == 0, 1)) return;
    }
    FW_UNROLL for (int i = 0; i < N; ++i) {
      hold(x[i]);  // not computed before the branch
      FW_UNROLL for (int c = 0; c < 4; ++c) packed[i][c] = T::pack(x[i][place(2 * c)], x[i][place(2 * c + 1)]);
    }
  }
  // Column 8 * half + c of a fragment is in this register (Stream::start).
  FW_METHOD static constexpr int column_register(int c) {
    return kRdna4 ? c : (c & 1) * 4 + (c >> 1 & 1) * 2 + (c >> 2);
  }
  // Of dX (`of_x`: dK or dQ) or dY (dV). Behind stores and atomics the compiler loads lengths through the vector unit:
  // `uniform` brings them back.
  FW_METHOD void store(bool of_x, const F32x8 (&sums)[C::kSumRows][C::kSumTiles]) {
    const Params& again = parameters_again();
    Place to = place_of(again);
    if constexpr (C::kHead) to.x0 = at.x0;
    const Sequence own = sequence_of(again, to.batch);
    if constexpr (!C::kKeepsKeys) {
      const int rows = uniform(least(int(own.queries) - to.x0, C::kKept));
      const int64_t dq = uniform(query_offset(again.dq, own, to.x0, to.head));
      store_sums(again.dq, dq, again.dim_qk, rows, again.softmax_scale, sums);
      return;
    }
    const int rows = uniform(least(stored_rows(again, to.batch) - left_pad(again, to.batch) - to.x0, C::kKept));
    const abi::Tensor& tensor = of_x ? again.dk : again.dv;
    const int64_t offset = uniform(stored_offset(tensor, own, to.x0, to.head_k));
    const float factor = of_x ? again.softmax_scale : 1.f;
    store_sums(tensor, offset, of_x ? again.dim_qk : again.dim_v, rows, factor, sums);
  }
  // dK and dV of the rows before key 0, which no query sees, come with the first tile: 0.
  FW_METHOD void clear_pad(const Schedule& schedule) const {
    const Params& again = parameters_again();
    if (!C::kKeepsKeys || !again.leftpad_k || task_index() >= schedule.tasks) return;
    const Place to = place_of(again);
    if (to.x0 != 0 || to.batch >= again.batch) return;
    const Sequence own = sequence_of(again, to.batch);
    const int pad = left_pad(again, to.batch), rows = least(pad, stored_rows(again, to.batch));
    clear_rows(again.dk, again.dim_qk, stored_offset(again.dk, own, -pad, to.head_k), rows);
    clear_rows(again.dv, again.dim_v, stored_offset(again.dv, own, -pad, to.head_k), rows);
  }
  // A head's dQ of queries that see no key.
  FW_METHOD static void clear_queries(const Params& p, const Sequence& seq, int head, int from, int to) {
    clear_rows(p.dq, p.dim_qk, query_offset(p.dq, seq, from, head), least(to, int(seq.queries)) - from);
  }
  FW_METHOD static void clear_rows(const abi::Tensor& t, int dim, int64_t offset, int rows) {
    if (!t.data) return;
    const int units = dim / 8;
    for (int i = thread_index(); i < rows * units; i += C::kThreads) {
      char* const to = static_cast<char*>(t.data) + (offset + i / units * t.stride[1]) * 2;
      *reinterpret_cast<U32x4*>(to + i % units * 16) = U32x4(0);
    }
  }
};

}  // namespace flashwave

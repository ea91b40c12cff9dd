// One workgroup's share of a backward (bwd_config.h): S = A X^T and dP = G Y^T of a tile of 32 rows of A and G that
// passes by, P and dS, and the sums they go into.
//
// An operand of WMMA has in a lane the index that stays, and in registers the one that is summed; an accumulator has
// its column in the lane.
//   S, dP                          lane: kept row; registers: streamed rows. -lse / scale and -delta are the first C
//                                  operands (keys kept: of each register, queries kept: of the lane), so that both
//                                  subtractions are free.
//   dY^T += G^T P, dX^T += A^T dS  lane: kept row; registers: 8 contiguous columns.
//   dA = dS X                      lane: column; registers: streamed rows. dS once more, transposed.
// P and dS pass through LDS, whichever wave made them: tiles of S and tiles of the sums are dealt to waves
// independently, and RDNA3's exchange between the halves of a wave costs nothing extra.
#pragma once

#include "kernels/abi/backward_blocks.h"
#include "kernels/amd/bwd_numbers.h"
#include "kernels/common/key_tiles.h"
#include "kernels/rdna/bwd_modify.h"
#include "kernels/rdna/bwd_stream.h"

namespace flashwave {

template <class T, class C>
struct Backward {
  static constexpr int kAhead = C::kAhead, kSteps = C::kSteps;
  static constexpr uint32_t kNowhere = 0x80000000;  // past the end of any descriptor: the store is dropped
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
  HeadRows x, y;

  // The stream: the tile that is loaded, the one that is multiplied, and the one before, whose dA is summed.
  Stream<C> stream;
  int loaded, left, now;  // first rows; left: tiles of this head from the loaded one on
  // Of queries (backward_blocks.h): the loaded tile's, this tile's, that of the tile before.
  const char *block, *current, *before;
  int loaded_head, head;  // of the queries
  float scale;            // of scores to log2

  // Addresses in LDS of this lane's share of fragments; `parity`: which buffer of dS^T is written.
  uint32_t rows_at, y_at, xt_at, ds_t_at, scores_at, sums_at, ds_t_target, parity;

  Fragment xf[kSteps], yf[C::kYInLds ? 1 : kSteps], xt[C::kXtInLds || !C::kFused ? 1 : C::kKeptTiles], ahead[kAhead];
  F32x8 s[C::kScoreTiles], dp[C::kScoreTiles], da[C::kDaTiles], dx[2][C::kSumTiles], dy[2][C::kSumTiles];
  float minus_lse, minus_delta;  // queries kept: of this lane's

  // Of the start only.
  Place at;
  Sequence seq;
  QueryTiles tiles;

  FW_METHOD Backward(const GpuArguments& args, char* shared)
      : p(args.params), lds(shared), lane(lane_index()), wave(wave_index()) {}

  // Which tiles are this wave's: of S, the kept rows 16 score_x() and on (and, if it has one, the streamed rows 16
  // score_a()); of dA, the columns 16 da_column(); of the sums, the kept rows 32 sum_x() and the columns from 16
  // kSumTiles sum_column() on.
  FW_METHOD int score_x() const { return C::kScoreTiles == 1 ? wave >> 1 : wave; }
  FW_METHOD int score_a(int w) const { return C::kScoreTiles == 1 ? wave & 1 : w; }
  FW_METHOD int da_column() const { return C::kDaTiles == 1 ? wave >> 1 : wave; }
  FW_METHOD int da_row(int n) const { return C::kDaTiles == 1 ? wave & 1 : n; }
  FW_METHOD int sum_x() const { return wave % (C::kKeptTiles / 2); }
  FW_METHOD int sum_column() const { return wave / (C::kKeptTiles / 2); }

  FW_METHOD static uint32_t near(uint32_t at) { return C::kTight ? here(at) : at; }
  FW_METHOD uint32_t operand_at(uint32_t at) const { return operand_base(lane) + near(at); }
  FW_METHOD uint32_t unit_at(uint32_t at) const { return lane * 16 + near(at); }

  // ---------------------------------------------------------------------------------------------------------- the task
  // The first tiles of keys, or the last of queries, are the longest under a causal mask: they go first. A pure
  // function of the task, asked for again at the end: nothing of it is kept meanwhile.
  FW_METHOD static Place place_of(const Params& p) {
    const uint32_t task = uint32_t(task_index()), group = uint32_t(p.heads_q / p.heads_k);
    const uint32_t rows = C::kKeepsKeys ? p.seqlen_k : p.seqlen_q, heads = C::kKeepsKeys ? p.heads_k : p.heads_q;
    const uint32_t blocks = rows > C::kKept ? (rows + C::kKept - 1) / C::kKept : 1;
    const uint32_t of_head = task / blocks, block = task - of_head * blocks, batch = of_head / heads;
    const uint32_t head = of_head - batch * heads;
    return {int(batch), int(C::kKeepsKeys ? head * group : head), int(C::kKeepsKeys ? head : head / group),
            int(C::kKeepsKeys ? block : blocks - 1 - block) * C::kKept};
  }

  // Whether there is something to do; dK and dV of the rows before key 0 are done here.
  FW_METHOD bool choose_task(const Schedule& schedule) {
    if (task_index() >= schedule.tasks) return false;
    at = place_of(p);
    if (at.batch >= p.batch) return false;
    seq = sequence_of(p, at.batch);
    if (C::kKeepsKeys && at.x0 == 0) clear_pad();
    queries = int(seq.queries), keys = int(seq.keys);
    if (at.x0 >= (C::kKeepsKeys ? stored_rows(p, at.batch) - left_pad(p, at.batch) : queries)) return false;
    const Edges edges = edges_of(p, seq);
    const int rows = kept_rows();
    if constexpr (C::kKeepsKeys) {
      tiles = query_tiles(edges, queries, at.x0, at.x0 + rows, C::kStreamed);
      if (rows < C::kKept) tiles.all_end = tiles.all_first;  // rows that are no keys are always masked
      lower = at.x0 - edges.right, upper = at.x0 - edges.left;
    } else {
      tiles = key_tiles(edges, keys, at.x0, at.x0 + rows, C::kStreamed);
      lower = at.x0 + edges.left, upper = at.x0 + edges.right;
    }
    end = keys - (C::kKeepsKeys ? at.x0 : 0);
    count = tiles.end - tiles.first;
    clean_first = tiles.all_first * C::kStreamed, clean_size = (tiles.all_end - tiles.all_first) * C::kStreamed;
    return true;
  }

  // dK and dV of the rows before key 0, which no query sees: 0.
  FW_METHOD void clear_pad() {
    if (!p.leftpad_k) return;
    const int pad = left_pad(p, at.batch), rows = least(pad, stored_rows(p, at.batch));
    clear_rows(p.dk, p.dim_qk, pad, rows);
    clear_rows(p.dv, p.dim_v, pad, rows);
  }
  FW_METHOD void clear_rows(const abi::Tensor& t, int dim, int pad, int rows) {
    if (!t.data) return;
    const int units = dim / 8;
    for (int i = thread_index(); i < rows * units; i += C::kThreads) {
      char* const to = static_cast<char*>(t.data) + key_offset(p, t, seq, i / units - pad, at.head_k) * 2;
      *reinterpret_cast<U32x4*>(to + i % units * 16) = U32x4(0);
    }
  }

  FW_METHOD int kept_rows() const { return least((C::kKeepsKeys ? keys : queries) - at.x0, C::kKept); }

  FW_METHOD void start_stream(const char* shared) {
    const int first = tiles.first * C::kStreamed;
    loaded = now = first;
    left = count;
    if constexpr (C::kKeepsKeys) {
      x.start(p.k, key_offset(p, p.k, seq, at.x0, at.head_k), p.dim_qk);
      y.start(p.v, key_offset(p, p.v, seq, at.x0, at.head_k), p.dim_v);
      stream.a.start(p.q, query_offset(p.q, seq, first, at.head), p.dim_qk);
      stream.g.start(p.d_o, query_offset(p.d_o, seq, first, at.head), p.dim_v);
      stream.rows = queries - first;
    } else {
      x.start(p.q, query_offset(p.q, seq, at.x0, at.head), p.dim_qk);
      y.start(p.d_o, query_offset(p.d_o, seq, at.x0, at.head), p.dim_v);
      stream.a.start(p.k, key_offset(p, p.k, seq, first, at.head_k), p.dim_qk);
      stream.g.start(p.v, key_offset(p, p.v, seq, first, at.head_k), p.dim_v);
      stream.rows = keys - first;
    }
    const int64_t number = abi::backward_first_block(p, at.batch, C::kStreamed) + (C::kKeepsKeys ? tiles.first : 0);
    block = shared + abi::kBackwardHeaderBytes + (number * p.heads_q + at.head) * kBlockBytes;
    before = block;
    loaded_head = at.head;
    stream.start(wave, lane);
  }

  // The next tile, of this head or of the next one of the group. Behind the last one it is loaded again, for nobody.
  FW_METHOD void advance(bool more) {
    if (!more) return;
    loaded += C::kStreamed;
    stream.rows -= C::kStreamed;
    stream.a.data += int64_t{C::kStreamed} * stream.a.stride;
    stream.g.data += int64_t{C::kStreamed} * stream.g.stride;
    if constexpr (C::kKeepsKeys) {
      const FW_CONSTANT Params& again = arguments_again().params;
      block += again.heads_q * kBlockBytes;
      if (--left == 0) {
        left = here(count);  // or what follows would be computed before the loop, and kept
        const int64_t back = int64_t{left} * C::kStreamed;
        loaded -= int(back);
        stream.rows += int(back);
        stream.a.data += again.q.stride[2] * 2 - back * stream.a.stride;
        stream.g.data += again.d_o.stride[2] * 2 - back * stream.g.stride;
        ++loaded_head;
        block += kBlockBytes - left * (again.heads_q * kBlockBytes);
      }
    }
  }

  // -------------------------------------------------------------------------------------------------------- fragments
  // X and Y as operands: lane = row. Rows past the end and columns past the head dim are 0.
  FW_METHOD Fragment kept_operand(const HeadRows& from, const Buffer& b, int step) const {
    const int row = score_x() * 16 + (lane & 15), column = step * 32 + (kRdna4 ? (lane >> 4) * 16 : 0);
    const auto unit = [&](int at) {
      const bool there = at < from.columns && row < kept_rows();
      return __builtin_amdgcn_raw_buffer_load_b128(b, there ? row * from.stride + at : kNowhere, 0, 0);
    };
#if defined(__GFX12__)
    return unit(column);
#else
    return joined(unit(column), unit(column + 16));
#endif
  }
  FW_METHOD void load_kept() {
    const Buffer from_x = x.buffer(kept_rows()), from_y = y.buffer(kept_rows());
    FW_UNROLL for (int step = 0; step < kSteps; ++step) {
      xf[step] = kept_operand(x, from_x, step);
      if constexpr (!C::kYInLds) yf[step] = kept_operand(y, from_y, step);
    }
    if constexpr (C::kYInLds) {
      constexpr int kEach = C::kKeptTiles * kSteps / C::kWaves;
      FW_UNROLL for (int j = 0; j < kEach; ++j) {
        const int fragment = wave * kEach + j, row = fragment / kSteps * 16 + (lane & 15);
        const int column = fragment % kSteps * 32 + (lane >> 4) * 16;
        const bool there = column < y.columns && row < kept_rows();
        *reinterpret_cast<U32x4*>(lds + C::kY + fragment * kFragmentBytes + lane * 16) =
            __builtin_amdgcn_raw_buffer_load_b128(from_y, there ? row * y.stride + column : kNowhere, 0, 0);
      }
    }
  }
  // The wave's columns of X^T, for dA: lane = column. RDNA3 takes them through the place of the stream's transposes,
  // four tiles of 16 rows at a time.
  FW_METHOD void load_kept_transposed() {
#if defined(__GFX12__)
    FW_UNROLL for (int t = 0; t < C::kKeptTiles; ++t) {
      const int row = least(t * 16 + (lane >> 4) * 8 + (lane & 7), kept_rows() - 1);
      xt[t] = load_transposed(x.data, row * x.stride + least(da_column() * 32 + (lane & 8) * 2, x.columns - 16));
    }
#else
    FW_UNROLL for (int t = 0; t < C::kKeptTiles; t += 4) {
      HeadRows second = x, first = x;
      first.data += int64_t{t} * 16 * x.stride;
      second.data += int64_t{t + 2} * 16 * x.stride;
      stream.template load_transposes_of<true>(first, kept_rows() - 16 * t, second, kept_rows() - 16 * (t + 2), wave);
      stream.template store_transposes_to<true>(lds, C::kXtInLds ? C::kXt + t / 2 * C::kRowBytes : C::kAt, wave);
      if constexpr (!C::kXtInLds) {
        workgroup_barrier();
        FW_UNROLL for (int j = 0; j < 4; ++j) {
          const int from = (j < 2 ? C::kAt : C::kGt) + (j % 2 * kSteps + da_column()) * kFragmentBytes;
          xt[t + j] = read_fragment(lds + operand_base(lane) + from);
          hold(xt[t + j]);
        }
        workgroup_barrier();
      }
    }
#endif
  }

  // Fragment k of a tile in the order of use (bwd_config.h).
  FW_METHOD Fragment fragment(int k) const {
    if (k < C::kEndS) {
      return read_fragment(lds + rows_at + C::kA + (k % C::kScoreTiles * kSteps + k / C::kScoreTiles) * kFragmentBytes);
    }
    if (k < C::kEndDp) {
      const int step = (k - C::kEndS) / C::kPerStep, j = (k - C::kEndS) % C::kPerStep;
      if (C::kYInLds && j == 0) return read_fragment(lds + y_at + C::kY + step * kFragmentBytes);
      return read_fragment(lds + rows_at + C::kG + ((j - C::kYInLds) * kSteps + step) * kFragmentBytes);
    }
    if (k < C::kEndDa) {
      const int n = (k - C::kEndDp) % C::kPerKept - C::kXtInLds, t = (k - C::kEndDp) / C::kPerKept;
      if (n < 0) return read_fragment(lds + xt_at + C::kXt + t * kSteps * kFragmentBytes);
      const char* const at = lds + C::kDsT + (n * C::kKeptTiles + t) * kFragmentBytes;
#if defined(__GFX12__)
      return read_fragment(at + ds_t_at);
#else
      return joined(*reinterpret_cast<const U32x4*>(at + ds_t_at),
                    *reinterpret_cast<const U32x4*>(at + (ds_t_at ^ 64) + 256));
#endif
    }
    const bool of_y = k < C::kEndDy;
    const int tile = (k - C::kEndDa) % (C::kStreamTiles * C::kSumFragments) / C::kSumFragments;
    const int j = (k - C::kEndDa) % C::kSumFragments;
    if (j < 2) {
      return read_fragment(lds + scores_at + (of_y ? C::kP : C::kDs) + (j * C::kStreamTiles + tile) * kFragmentBytes);
    }
    return read_fragment(lds + sums_at + (of_y ? C::kGt : C::kAt) + (tile * kSteps + j - 2) * kFragmentBytes);
  }
  // Addresses of the fragments before and behind the first barrier. dS^T has its rows exchanged so that storing it
  // meets no bank twice (store_gradients).
  FW_METHOD void place_scores() {
    rows_at = operand_at(C::kScoreTiles == 1 ? score_a(0) * kSteps * kFragmentBytes : 0);
    if constexpr (C::kYInLds) y_at = operand_at(score_x() * kSteps * kFragmentBytes);
    if constexpr (C::kXtInLds) xt_at = operand_at(da_column() * kFragmentBytes);
    if constexpr (C::kFused) {
      const uint32_t from =
          here((C::kDaTiles == 1 ? da_row(0) * C::kKeptTiles * kFragmentBytes : 0) + (parity ^ C::kScoreBytes));
      if constexpr (kRdna4) {
        ds_t_at = lane / 16 * 256 + ((lane & 15) ^ lane / 16 * 4 ^ (lane >> 3 & 1) * 2) * 16 + from;
      } else {
        ds_t_at = operand_base(lane) + from;
      }
    }
  }
  FW_METHOD void place_sums() {
    scores_at = operand_at(sum_x() * 2 * C::kStreamTiles * kFragmentBytes);
    sums_at = operand_at(sum_column() * C::kSumTiles * kFragmentBytes);
  }

  // ----------------------------------------------------------------------------------------------------------- scores
  // -lse / scale (which = 0) or -delta (1) of 16 queries, as the registers of an accumulator have them.
  FW_METHOD F32x8 numbers(const char* from, int w, int which) const {
    const Buffer b = make_buffer(from + (which * C::kStreamed + score_a(w) * 16) * 4, 64);
    const uint32_t at = (lane & 16) * 2;
    return __builtin_bit_cast(F32x8, joined(__builtin_amdgcn_raw_buffer_load_b128(b, at, 0, 0),
                                            __builtin_amdgcn_raw_buffer_load_b128(b, at + 16, 0, 0)));
  }
  FW_METHOD void start_scores() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      if constexpr (C::kGeneral) continue;  // 0, written into the first products
      s[w] = C::kKeepsKeys ? numbers(block, w, 0) : F32x8(minus_lse);
      if (!C::kLateDelta) dp[w] = C::kKeepsKeys ? numbers(block, w, 1) : F32x8(minus_delta);
    }
  }

  FW_METHOD bool is_clean() const { return uint32_t(now - clean_first) < clean_size; }
  // Scores of pairs of which the query does not see the key become -inf.
  FW_METHOD void mask(F32x8& scores, int w) const {
    int mine = lane;
    hold(mine);
    const int own = here(wave);  // or the sums below would be kept in scalar registers
    const int row = (C::kScoreTiles == 1 ? own >> 1 : own) * 16 + (mine & 15);
    const int first = now + (C::kScoreTiles == 1 ? own & 1 : w) * 16 + kRowsOfHalf * (mine >> 4);
    const int least_row = lower + row - first;
    int last_row = upper + row - first;
    if constexpr (C::kKeepsKeys) {
      if (row >= end) last_row = least_row - 1;
    } else {
      last_row = least(last_row, end - 1 - first);
    }
    FW_UNROLL for (int r = 0; r < 8; ++r) {
      scores[r] = kRowsOfRegister * r >= least_row && kRowsOfRegister * r <= last_row ? scores[r] : -kInf;
    }
    hold(scores);
  }

  // S -> P. The stages keep equal operations on consecutive registers together, which is what pairing needs.
  FW_METHOD void weights() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) hold(s[w]);
    if (__builtin_expect(!is_clean(), 0)) {
      FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) mask(s[w], w);
    }
    const float c = in_scalar(scale);
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) s[w] *= c;
    schedule_fence();
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      FW_UNROLL for (int r = 0; r < 8; ++r) s[w][r] = exp2_fast(s[w][r]);
    }
    schedule_fence();
    if constexpr (C::kKeepsKeys) {
      FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) store_weights(w, s[w]);
      schedule_fence();
    }
  }
  FW_METHOD void store_weights(int w, F32x8 x) {
    U32x4 packed;
    T::pack_weights(x, packed);
    *reinterpret_cast<U32x4*>(lds + unit_at(score_at(w)) + C::kP) = packed;
  }

  // The same with modifiers. What the gradient needs stays in S: P times the derivative of the softcap, negative where
  // the pair is dropped.
  FW_METHOD Modifiers<C> modifiers(int w) const {
    int mine = lane;
    hold(mine);
    const int own = here(wave);
    return {parameters_again(p),
            here(at.batch),
            here(head),
            here(queries),
            here(keys),
            here(at.x0) + (C::kScoreTiles == 1 ? own >> 1 : own) * 16 + (mine & 15),
            now + (C::kScoreTiles == 1 ? own & 1 : w) * 16 + kRowsOfHalf * (mine >> 4),
            mine};
  }
  FW_METHOD void modified_weights() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) hold(s[w]);
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      const Modifiers<C> modify = modifiers(w);
      F32x8 cap_gradients = 1.f;
      modify.scores(s[w], cap_gradients);
      hold(s[w]);
      if (!is_clean()) mask(s[w], w);
      s[w] += C::kKeepsKeys ? numbers(current, w, 0) : F32x8(minus_lse);
      // Next to a large bias lse is coarse, and the difference may come out above 0, by numbers that exp turns into
      // inf.
      if (modify.p.bias.data) {
        FW_UNROLL for (int r = 0; r < 8; ++r) s[w][r] = __builtin_fminf(s[w][r], 0.f);
      }
      FW_UNROLL for (int r = 0; r < 8; ++r) s[w][r] = exp2_fast(s[w][r]);
      hold(s[w]);
      const uint32_t kept = modify.kept_pairs();
      if constexpr (C::kKeepsKeys) {
        F32x8 x = s[w];
        FW_UNROLL for (int r = 0; r < 8; ++r) x[r] = kept >> r & 1 ? x[r] : 0.f;
        store_weights(w, x);
      }
      s[w] *= cap_gradients;
      FW_UNROLL for (int r = 0; r < 8; ++r) { s[w][r] = float_of(bits_of(s[w][r]) | (~kept << (31 - r) & 0x80000000)); }
      hold(s[w]);
      schedule_fence();
    }
  }
  // dP -> dP' - delta; dP' is 0 where the pair is dropped, else dP / (1 - p).
  FW_METHOD void modified_gradients(int w) {
    const float factor = in_scalar(kept_factor());
    dp[w] *= factor;
    FW_UNROLL for (int r = 0; r < 8; ++r) dp[w][r] = bits_of(s[w][r]) >> 31 ? 0.f : dp[w][r];
    dp[w] += C::kKeepsKeys ? numbers(current, w, 1) : F32x8(minus_delta);
    FW_UNROLL for (int r = 0; r < 8; ++r) s[w][r] = __builtin_fabsf(s[w][r]);
    hold(dp[w]);
  }
  FW_METHOD float kept_factor() const { return uniform(1.f / (1.f - parameters_again(p).dropout_p)); }

  FW_METHOD uint32_t score_at(int w) const { return (score_x() * C::kStreamTiles + score_a(w)) * kFragmentBytes; }

  // P, dP -> dS. For dA the kept row becomes the index that is summed: 2 bytes each.
  FW_METHOD void store_gradients() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      if constexpr (C::kGeneral) modified_gradients(w);
      dp[w] *= s[w];
      hold(dp[w]);
      schedule_fence();
      U32x4 packed;
      T::pack_weights(dp[w], packed);
      *reinterpret_cast<U32x4*>(lds + unit_at(score_at(w)) + C::kDs) = packed;
      if constexpr (C::kFused) {
        uint32_t to[4];
        to[0] = ds_t_target + here(parity + score_a(w) * C::kKeptTiles * kFragmentBytes);
        FW_UNROLL for (int j = 1; j < 4; ++j) to[j] = to[0] ^ (kRdna4 ? j * 32 : 64);
        FW_UNROLL for (int r = 0; r < 8; ++r) {
          const uint32_t at = kRdna4 ? to[r >> 1] + (r & 1) * 16 : to[r >> 1 & 1] + (r & 1) * 32 + (r >> 2) * 128;
          *reinterpret_cast<uint16_t*>(lds + at + C::kDsT) = uint16_t(packed[r / 2] >> (r & 1 ? 16 : 0));
        }
      }
      schedule_fence();
    }
  }
  // Where this lane's kept row is in dS^T: an element of unit u of 16 rows.
  FW_METHOD uint32_t ds_t_place() const {
    const int i = lane & 15, half = lane >> 4;
    const int unit = kRdna4 ? i >> 3 : i & 1, element = kRdna4 ? i & 7 : i >> 1;
    const int row = kRdna4 ? 8 * half ^ 4 * unit ^ 2 * half : half ^ 4 * unit;
    return unit * 256 + row * 16 + element * 2 + score_x() * kFragmentBytes;
  }

  // --------------------------------------------------------------------------------------------------------------- dA
  FW_METHOD void multiply_da(int k, const Fragment* f) {
    const int n = (k - C::kEndDp) % C::kPerKept - C::kXtInLds, t = (k - C::kEndDp) / C::kPerKept;
    if (n < 0) return;
    da[n] = T::multiply(f[k], C::kXtInLds ? f[k - 1 - n] : xt[C::kXtInLds ? 0 : t], t ? da[n] : F32x8(0.f));
  }
  FW_METHOD void add_da() {
    int mine = lane;
    if (C::kTight) hold(mine);
    const int column = kRdna4 ? mine & 15 : (mine >> 3 & 1) | (mine >> 1 & 2) | (mine << 1 & 4) | (mine << 3 & 8);
    uint32_t at = (mine >> 4) * kRowsOfHalf * C::kDim * 4 + column * 4;
    if (C::kTight) hold(at);
    FW_UNROLL for (int n = 0; n < C::kDaTiles; ++n) {
      hold(da[n]);
      constexpr int kPer = kRdna4 || C::kDim == 64 ? 8 : 4;  // registers within the reach of an immediate
      FW_UNROLL for (int r = 0; r < 8; ++r) {
        const int row = da_row(n) * 16 + r / kPer * kPer * 2;
        const char* const sums = before + abi::backward_dq_at(C::kStreamed) + row * C::kDim * 4 + da_column() * 64;
        __builtin_amdgcn_raw_ptr_buffer_atomic_fadd_f32(da[n][r], make_buffer(sums, 16 * C::kDim * 4),
                                                        at + r % kPer * kRowsOfRegister * C::kDim * 4, 0, 0);
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------------ a tile
  FW_METHOD void load_next() {
    stream.load_transposes(wave, lane);
    start_scores();
    schedule_fence();
  }
  FW_METHOD void store_rows() {
    // Else the compiler moves products behind the branch that clears tails.
    if constexpr (C::kFused) {
      FW_UNROLL for (int n = 0; n < C::kDaTiles; ++n) hold(da[n]);
    }
    stream.store_rows(lds, unit_at(wave * C::kRowLoads * kFragmentBytes), wave, lane);
  }

  // Fragment by fragment: read kAhead before its use; a barrier stands where the reads change to what it publishes.
  template <int k>
  FW_METHOD void step(Fragment* f, bool more) {
    constexpr int soon = k + kAhead;
    if constexpr (!C::kFused && k == C::kEndDp) {
      store_gradients();
      workgroup_barrier();
      place_sums();
      FW_UNROLL for (int j = 0; j < kAhead; ++j) f[C::kEndDa + j] = fragment(C::kEndDa + j);
      store_rows();
      load_next();
    }
    if constexpr (C::kFused && soon == C::kEndDa) {
      schedule_fence();
      workgroup_barrier();
      store_rows();
      place_sums();
    }
    if constexpr (soon == C::kEnd) {
      schedule_fence();
      workgroup_barrier();
      parity ^= C::kScoreBytes;
      place_scores();
    }
    if constexpr (soon < (C::kFused ? C::kEnd : C::kEndDa)) {
      f[soon] = fragment(soon);
    } else if constexpr (k >= C::kEndDp) {
      f[soon] = fragment(soon < C::kEnd ? soon : soon - C::kEnd);
    }
    multiply<k>(f);
    schedule_fence();
    if constexpr (k == C::kStoreTransposes) {
      stream.store_transposes(lds, unit_at(wave * C::kTransposes / 2 * kFragmentBytes), wave);
    }
    if constexpr (k == 1) {
      if (C::kLateDelta) {
        FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) dp[w] = numbers(block, w, 1);
      }
      advance(more);
      stream.load_rows();
      schedule_fence();
    }
    if constexpr (k == C::kEndS - 1) {
      if constexpr (C::kGeneral)
        modified_weights();
      else
        weights();
    }
    if constexpr (C::kFused && k == C::kEndDp - 1) store_gradients();
    if constexpr (C::kFused && k == C::kEndDa) add_da();
    if constexpr (C::kFused && k == C::kEndDa + 2) load_next();
  }
  template <int k>
  FW_METHOD void multiply(const Fragment* f) {
    if constexpr (k < C::kEndS) {
      F32x8& sum = s[k % C::kScoreTiles];
      sum = T::multiply(f[k], xf[k / C::kScoreTiles], C::kGeneral && k < C::kScoreTiles ? F32x8(0.f) : sum);
    } else if constexpr (k < C::kEndDp) {
      constexpr int step = (k - C::kEndS) / C::kPerStep, j = (k - C::kEndS) % C::kPerStep - C::kYInLds;
      if constexpr (j >= 0) {
        dp[j] = T::multiply(f[k], C::kYInLds ? f[C::kEndS + step * C::kPerStep] : yf[C::kYInLds ? 0 : step],
                            C::kGeneral && step == 0 ? F32x8(0.f) : dp[j]);
      }
    } else if constexpr (k < C::kEndDa) {
      multiply_da(k, f);
    } else if constexpr ((k - C::kEndDa) % C::kSumFragments >= 2) {
      constexpr int j = (k - C::kEndDa) % C::kSumFragments;
      FW_UNROLL for (int t = 0; t < 2; ++t) {
        F32x8& sum = k < C::kEndDy ? dy[t][j - 2] : dx[t][j - 2];
        sum = T::multiply(f[k], f[k - j + t], sum);
        schedule_fence();
      }
    }
  }
  // Recursion: a loop of so many instructions is not unrolled.
  template <int k>
  FW_METHOD void steps(Fragment* f, bool more) {
    if constexpr (k < C::kEnd) {
      step<k>(f, more);
      steps<k + 1>(f, more);
    }
  }
  FW_METHOD void hold_sums() {
    FW_UNROLL for (int t = 0; t < 2; ++t) {
      FW_UNROLL for (int d = 0; d < C::kSumTiles; ++d) {
        hold(dx[t][d]);
        if (C::kKeepsKeys) hold(dy[t][d]);
      }
    }
  }
  FW_METHOD void tile(bool more) {
    Fragment f[C::kEnd + kAhead];
    FW_UNROLL for (int k = 0; k < kAhead; ++k) f[k] = ahead[k];
    current = block;
    head = loaded_head;
    now = loaded;
    steps<0>(f, more);
    hold_sums();
    FW_UNROLL for (int k = 0; k < kAhead; ++k) ahead[k] = f[C::kEnd + k];
    before = current;
  }

  // ----------------------------------------------------------------------------------------------------------- the end
  // A lane has 8 contiguous columns of one kept row in each accumulator.
  FW_METHOD void store_sums(const abi::Tensor& t, int64_t offset, int dim, int rows, float factor,
                            const F32x8 (&sums)[2][C::kSumTiles]) const {
    const uint32_t stride = uint32_t(t.stride[1] * 2);
    const Buffer b = make_buffer(static_cast<char*>(t.data) + offset * 2, t.data ? span_of(rows, stride, dim * 2) : 0);
    FW_UNROLL for (int i = 0; i < 2; ++i) {
      const int row = sum_x() * 32 + i * 16 + (lane & 15);
      FW_UNROLL for (int d = 0; d < C::kSumTiles; ++d) {
        const int column = (sum_column() * C::kSumTiles + d) * 16 + (lane >> 4) * 8;
        const auto value = [&](int c) { return sums[i][d][column_register(c)] * factor; };
        U32x4 packed;
        FW_UNROLL for (int c = 0; c < 4; ++c) packed[c] = T::pack(value(2 * c), value(2 * c + 1));
        __builtin_amdgcn_raw_buffer_store_b128(packed, b,
                                               row < rows && column < dim ? row * stride + column * 2 : kNowhere, 0, 0);
      }
    }
  }
  // Column 8 * half + c of a fragment is in this register (Stream::start).
  FW_METHOD static constexpr int column_register(int c) {
    return kRdna4 ? c : (c & 1) * 4 + (c >> 1 & 1) * 2 + (c >> 2);
  }
  FW_METHOD void store() {
    const Params& again = parameters_again(p);
    const Place to = place_of(again);
    const Sequence own = sequence_of(again, to.batch);
    if constexpr (C::kKeepsKeys) {
      const int rows = least(stored_rows(again, to.batch) - left_pad(again, to.batch) - to.x0, C::kKept);
      store_sums(again.dk, key_offset(again, again.dk, own, to.x0, to.head_k), again.dim_qk, rows, again.softmax_scale,
                 dx);
      store_sums(again.dv, key_offset(again, again.dv, own, to.x0, to.head_k), again.dim_v, rows,
                 C::kGeneral ? kept_factor() : 1.f, dy);
    } else {
      store_sums(again.dq, query_offset(again.dq, own, to.x0, to.head), again.dim_qk,
                 least(int(own.queries) - to.x0, C::kKept), again.softmax_scale, dx);
    }
  }

  FW_METHOD void run(const GpuArguments& args) {
    if (!choose_task(args.schedule)) return;
    start_stream(args.shared);
    const int all = count * (C::kKeepsKeys ? p.heads_q / p.heads_k : 1);
    scale = uniform(p.softmax_scale * kLog2e);
    FW_UNROLL for (int t = 0; t < 2; ++t) {
      FW_UNROLL for (int d = 0; d < C::kSumTiles; ++d) dx[t][d] = dy[t][d] = F32x8(0.f);
    }
    if (all > 0) {
      load_kept();
      if constexpr (C::kFused) {
        load_kept_transposed();
        // The first tile has none before it: its dS is 0.
        FW_UNROLL for (int j = 0; j < C::kScoreTiles; ++j) {
          const int at = C::kDsT + C::kScoreBytes + (wave * C::kScoreTiles + j) * kFragmentBytes;
          *reinterpret_cast<U32x4*>(lds + at + lane * 16) = U32x4(0);
        }
        ds_t_target = ds_t_place();
      }
      if constexpr (!C::kKeepsKeys) {
        const int query = least(score_x() * 16 + (lane & 15), kept_rows() - 1) + at.x0;
        const float* const of_block =
            reinterpret_cast<const float*>(block + int64_t{query / C::kStreamed} * p.heads_q * kBlockBytes);
        const int place = row_place(query % C::kStreamed);
        minus_lse = of_block[place], minus_delta = of_block[C::kStreamed + place];
      }
      parity = 0;
      stream.load_rows();
      stream.load_transposes(wave, lane);
      start_scores();
      store_rows();
      workgroup_barrier();
      place_scores();
      FW_UNROLL for (int k = 0; k < kAhead; ++k) ahead[k] = fragment(k);
      FW_NO_UNROLL for (int i = 1; i <= all; ++i) tile(i < all);
      if constexpr (C::kFused) {  // dA of the last tile
        Fragment f[C::kEndDa];
        FW_UNROLL for (int k = C::kEndDp; k < C::kEndDa; ++k) {
          f[k] = fragment(k);
          multiply_da(k, f);
        }
        add_da();
      }
    }
    store();
  }
};

}  // namespace flashwave

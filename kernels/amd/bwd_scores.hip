// The gradients of bias and of ALiBi slopes, behind the main kernel of a backward, on the matrix cores of CDNA and RDNA:
// dS = P (dP - delta) once more, of S = Q K^T and dP = dO V^T. A wave has tiles of 32 queries and 32 keys, reads their
// rows from memory into the operands, and shares nothing with other waves: no LDS, no barrier.
//
//   d_bias     a wave has a tile of its entries, and sums over the heads, sequences, queries and keys that share them.
//   d_slopes   - sum of dS * distance from the diagonal. A wave has 32 queries of a head and all their keys;
//              amd_bwd_sums adds these parts up.
//
// Every sum is made by one wave in a fixed order: always the same bits.
#include "kernels/abi/features.h"
#include "kernels/abi/score_gradients.h"
#include "kernels/amd/bwd_block.h"
#include "kernels/amd/bwd_rows.h"
#include "kernels/amd/mma16.h"
#include "kernels/common/elements.h"
#include "kernels/common/key_tiles.h"
#include "kernels/common/modify.h"
#include "kernels/common/part.h"

namespace flashwave {

inline constexpr int kTile = int(abi::kScoreTile), kParts = kTile / 16;

FW_DEVICE int least(int a, int b) { return a < b ? a : b; }

// 8 columns of a row for each group of lanes (RDNA3: 16 for all of them), as operands.
inline constexpr int kColumns = 8 * kGroups, kOperands = 8 / kElements;
struct Columns {
  WideOperand x[kOperands];
};

// The rows of one head that a tile has: of Q and dO, or of K and V.
struct TileRows {
  Buffer buffer;
  uint32_t at[kParts];  // bytes to this lane's rows; past the end for rows that are not there

  // `lane`: the row of 16 that this lane feeds.
  FW_METHOD TileRows(const abi::Tensor& t, int64_t offset, int rows, int lane)
      : buffer(make_buffer(static_cast<const char*>(t.data) + uniform(offset * 2), kNowhere)) {
    FW_UNROLL for (int i = 0; i < kParts; ++i) {
      const int row = 16 * i + lane;
      at[i] = row < rows ? uint32_t(row) * uint32_t(t.stride[1]) * 2 : kNowhere;
    }
  }
  FW_METHOD U32x4 eight(int i, int column, int dim) const {
    return buffer_load16(buffer, column < dim ? at[i] + uint32_t(column) * 2 : kNowhere);
  }
  FW_METHOD Columns columns(int i, int first, int dim) const {
    Columns c;
#if defined(__GFX11__)
    const U32x4 low = eight(i, first, dim), high = eight(i, first + 8, dim);
    c.x[0] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#else
    const U32x4 x = eight(i, first + 8 * group_index(), dim);
    FW_UNROLL for (int n = 0; n < kOperands; ++n) {
      FW_UNROLL for (int e = 0; e < kElements / 2; ++e) c.x[n][e] = x[n * (kElements / 2) + e];
    }
#endif
    return c;
  }
};

struct ScoreTile {
  Accumulator x[kParts][kParts];  // 16 queries, 16 keys: queries in registers, a key in each lane

  template <class Use>
  FW_METHOD void each(const Use& use) {
    FW_UNROLL for (int t = 0; t < kParts; ++t) {
      FW_UNROLL for (int u = 0; u < kParts; ++u) {
        FW_UNROLL for (int r = 0; r < kRegisters; ++r) x[t][u][r] = use(x[t][u][r], t, u, r);
      }
    }
  }
};

// a: queries; b: keys.
template <class T>
FW_DEVICE ScoreTile products(const TileRows& a, const TileRows& b, int dim) {
  ScoreTile c = {};
  FW_NO_UNROLL for (int column = 0; column < dim; column += kColumns) {
    Columns keys[kParts], queries[kParts];
    FW_UNROLL for (int i = 0; i < kParts; ++i) {
      queries[i] = a.columns(i, column, dim), keys[i] = b.columns(i, column, dim);
    }
    FW_UNROLL for (int t = 0; t < kParts; ++t) {
      FW_UNROLL for (int u = 0; u < kParts; ++u) {
        FW_UNROLL for (int n = 0; n < kOperands; ++n) {
          c.x[t][u] = multiply_add<T>(queries[t].x[n], keys[u].x[n], c.x[t][u]);
        }
      }
    }
  }
  return c;
}

// One tile of dS: of queries first_query and on, and keys first_key and on, of a head.
template <class T>
struct DsTile {
  const GpuArguments& args;
  const Params& p;  // read anew for every tile: scalar registers are scarce
  const Sequence seq;
  const int head, first_query, first_key, queries, keys;
  const ScoreRow row;  // of first_query

  FW_METHOD DsTile(const GpuArguments& arguments, const Sequence& sequence, int h, int query, int key)
      : args(arguments),
        p(parameters_again()),
        seq(sequence),
        head(h),
        first_query(query),
        first_key(key),
        queries(uniform(int(sequence.queries))),
        keys(uniform(int(sequence.keys))),
        row(p, sequence, h, query) {}

  FW_METHOD int query(int t, int r) const { return first_query + 16 * t + kRegisters * group_index() + r; }
  FW_METHOD int key(int u) const { return first_key + 16 * u + (lane_index() & 15); }
  FW_METHOD float distance(int t, int u, int r) const {
    const int d = int(row.diagonal) + query(t, r) - first_query - key(u);
    return float(d < 0 ? -d : d);
  }

  // Whether some query of the tile sees some key of it.
  FW_METHOD bool is_seen(const Edges& edges) const {
    if (first_query >= queries || first_key >= keys) return false;
    const int last_query = least(first_query + kTile, queries) - 1, last_key = least(first_key + kTile, keys) - 1;
    return first_key <= int64_t{last_query} + edges.right && last_key >= int64_t{first_query} + edges.left;
  }

  FW_METHOD ScoreTile compute(const Edges& edges) const {
    const int key_head = uint32_t(head) / (uint32_t(p.heads_q) / uint32_t(p.heads_k));
    const int lane = lane_index() & 15, fed = row_of_lane(lane);
    const int rows = queries - first_query, columns = keys - first_key;
    ScoreTile s = products<T>(TileRows(p.q, query_offset(p.q, seq, first_query, head), rows, fed),
                              TileRows(p.k, stored_offset(p.k, seq, first_key, key_head), columns, lane), p.dim_qk);
    ScoreTile dp = products<T>(TileRows(p.d_o, query_offset(p.d_o, seq, first_query, head), rows, fed),
                               TileRows(p.v, stored_offset(p.v, seq, first_key, key_head), columns, lane), p.dim_v);
    modify(s);
    if (p.dropout_p > 0) drop(dp);
    weigh(s, dp, edges);
    return s;
  }

 private:
  // Where a lane's scores of 16 queries are (kernels/common/modify.h).
  struct Layout {
    static constexpr int kScores = kParts * kRegisters;
    static constexpr bool kPadded = false;
    FW_METHOD static constexpr int query(int i) { return i % kRegisters; }
    FW_METHOD static constexpr int key(int i) { return 16 * (i / kRegisters); }
  };
  // q.k to scores in units of log2. By 16 queries: of a whole tile it would take the registers of a wave more.
  FW_METHOD void modify(ScoreTile& s) const {
    FW_UNROLL for (int t = 0; t < kParts; ++t) {
      float scores[Layout::kScores];
      FW_UNROLL for (int i = 0; i < Layout::kScores; ++i) scores[i] = s.x[t][i / kRegisters][i % kRegisters];
      modify_scores<Layout>(p, {seq.b, head, query(t, 0), key(0), queries, keys}, scores);
      FW_UNROLL for (int i = 0; i < Layout::kScores; ++i) s.x[t][i / kRegisters][i % kRegisters] = scores[i];
    }
  }
  // Not unrolled, as the numbers of one score are long: each turn takes register 0 and puts the result behind the last.
  FW_METHOD void drop(ScoreTile& dp) const {
    const DropoutKey dropout = dropout_key(p);
    const float kept = 1.f / (1.f - p.dropout_p);
    FW_NO_UNROLL for (int r = 0; r < kRegisters; ++r) {
      FW_UNROLL for (int t = 0; t < kParts; ++t) {
        ScoreRow of_query = row;
        of_query.query = uint32_t(query(t, r));
        FW_UNROLL for (int u = 0; u < kParts; ++u) {
          Accumulator& x = dp.x[t][u];
          const float last = of_query.dropped(dropout, key(u)) ? 0.f : x[0] * kept;
          FW_UNROLL for (int i = 1; i < kRegisters; ++i) x[i - 1] = x[i];
          x[kRegisters - 1] = last;
        }
      }
    }
  }
  // Scores and dP to dS.
  FW_METHOD void weigh(ScoreTile& s, const ScoreTile& dp, const Edges& edges) const {
    // Next to a large bias lse is coarse, and an exponent may come out above 0, by numbers that exp2 turns into inf.
    const float most = p.bias.data ? 0.f : kInf;
    Block block(args, 0);
    block.batch = seq.b, block.head = head;
    const int apart = key(0) - query(0, 0), columns = keys - first_key - (lane_index() & 15);
    FW_UNROLL for (int t = 0; t < kParts; ++t) {
      // 16 rows are in one block, which has numbers of all its rows; where none of them exists, those of others do.
      const int first = least(first_query + 16 * t, queries - 1) & ~15;
      block.block = uint32_t(first) / uint32_t(block.tile_q);
      const float* const lse_at = block.lse() + (first - block.first_row());
      const float* const delta_at = block.delta() + (first - block.first_row());
      FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
        const int place = row_place(kRegisters * group_index() + r), i = query(t, r);
        const float lse = lse_of_number(p, lse_at[place], false), delta = delta_of_number(p, delta_at[place]);
        FW_UNROLL for (int u = 0; u < kParts; ++u) {
          const int between = apart + 16 * (u - t) - r;
          const bool seen = (between >= edges.left) & (between <= edges.right) & (16 * u < columns) & (i < queries);
          const float weight = exp2_fast(__builtin_fminf(s.x[t][u][r] - lse, most));
          s.x[t][u][r] = seen ? weight * (dp.x[t][u][r] - delta) : 0.f;
        }
      }
    }
  }
};

FW_DEVICE float sum_of_sixteen(float x) {  // lanes
  x += dpp<0xB1>(x);                       // quad_perm [1,0,3,2]
  x += dpp<0x4E>(x);                       // quad_perm [2,3,0,1]
  x += dpp<0x141>(x);                      // row_half_mirror
  return x + dpp<0x140>(x);                // row_mirror
}

// Storage: the type of elements in memory. An axis of stride 0 has one entry, the sum along it.
template <class Storage>
FW_DEVICE void write_d_bias(const Params& p, int64_t at, int rows, int columns, ScoreTile& sum) {
  const abi::Tensor& t = p.d_bias;
  if (!t.stride[2]) {
    FW_UNROLL for (int u = 0; u < kParts; ++u) {
      float x = 0.f;
      FW_UNROLL for (int part = 0; part < kParts; ++part) {
        FW_UNROLL for (int r = 0; r < kRegisters; ++r) x += sum.x[part][u][r];
      }
      sum.x[0][u][0] = sum_of_groups(x);
    }
    rows = 1;
  }
  if (!t.stride[3]) {
    sum.each([&](float x, int part, int u, int r) {
      if (u > 0) return x;
      FW_UNROLL for (int other = 1; other < kParts; ++other) x += sum.x[part][other][r];
      return sum_of_sixteen(x);
    });
    columns = 1;
  }
  sum.each([&](float x, int part, int u, int r) {
    const int row = 16 * part + kRegisters * group_index() + r, column = 16 * u + (lane_index() & 15);
    if (row < rows && column < columns) {
      const int64_t offset = at + row * t.stride[2] + column * t.stride[3];
      if (t.dtype == abi::kF32) {
        elements<float>(t)[offset] = x;
      } else {
        store(elements<Storage>(t) + offset, x);
      }
    }
    return x;
  });
}

template <class T, class Storage>
FW_DEVICE void d_bias(const GpuArguments& args, int64_t wave) {
  const Params& p = args.params;
  const abi::Tensor& t = p.d_bias;
  const int64_t key_tiles = abi::d_bias_key_tiles(p), query_tiles = abi::d_bias_query_tiles(p);
  const int64_t rest = wave / key_tiles / query_tiles, heads = abi::d_bias_heads(p);
  const int first_key = int(wave % key_tiles) * kTile, first_query = int(wave / key_tiles % query_tiles) * kTile;
  const int h = int(rest % heads), b = int(rest / heads);
  const int b_end = t.stride[0] ? b + 1 : p.batch, h_end = t.stride[1] ? h + 1 : p.heads_q;
  ScoreTile sum = {};
  FW_NO_UNROLL for (int each_b = b; each_b < b_end; ++each_b) {
    const Params& now = parameters_again();
    const Sequence all = sequence_of(now, each_b);
    const int query_end = now.d_bias.stride[2] ? first_query + 1 : uniform(int(all.queries));
    const int key_end = now.d_bias.stride[3] ? first_key + 1 : uniform(int(all.keys));
    FW_NO_UNROLL for (int each_h = h; each_h < h_end; ++each_h) {
      FW_NO_UNROLL for (int i = first_query; i < query_end; i += kTile) {
        FW_NO_UNROLL for (int j = first_key; j < key_end; j += kTile) {
          // Found again for each tile, which is little work beside it: scalar registers are scarce.
          const Params& params = parameters_again();
          const Sequence seq = sequence_of(params, each_b);
          const Edges edges = edges_of(params, seq);
          const DsTile<T> tile(args, seq, each_h, i, j);
          if (!tile.is_seen(edges)) continue;
          const ScoreTile ds = tile.compute(edges);
          sum.each([&](float x, int part, int u, int r) { return x + ds.x[part][u][r]; });
        }
      }
    }
  }
  const Params& again = parameters_again();
  const int64_t(&stride)[4] = again.d_bias.stride;
  write_d_bias<Storage>(again, b * stride[0] + h * stride[1] + first_query * stride[2] + first_key * stride[3],
                        again.seqlen_q - first_query, again.seqlen_k - first_key, sum);
}

template <class T>
FW_DEVICE void d_slopes(const GpuArguments& args, int64_t wave) {
  const Params& p = args.params;
  const int64_t tiles = abi::score_tiles(p.seqlen_q);
  const int i = int(wave % tiles) * kTile, h = int(wave / tiles % p.heads_q), b = int(wave / tiles / p.heads_q);
  const Sequence seq = sequence_of(p, b);
  const Edges edges = edges_of(p, seq);
  const QueryTiles seen =
      key_tiles(edges, int(seq.keys), i, least(i + kTile, int(seq.queries)), kTile);  // none where the tile has no query
  float sum = 0.f;
  FW_NO_UNROLL for (int j = uniform(seen.first); j < uniform(seen.end); ++j) {
    const DsTile<T> tile(args, seq, h, i, j * kTile);
    ScoreTile ds = tile.compute(edges);
    ds.each([&](float x, int part, int u, int r) {
      sum = __builtin_fmaf(-x, tile.distance(part, u, r), sum);
      return x;
    });
  }
  sum = wave_reduce(sum, [](float x, float y) { return x + y; });
  if (lane_index() == 0) slope_parts_of(args, b, h)[i / kTile] = sum;
}

FW_DEVICE int64_t wave_task() { return task_index() * abi::kScoreWaves + wave_index(); }

FW_DEVICE void d_bias_of_any(const GpuArguments& args) {
  const int64_t wave = wave_task();
  if (wave >= abi::d_bias_waves(args.params)) return;
  if (args.params.q.dtype == abi::kBF16) {
    d_bias<__bf16, BFloat16>(args, wave);
  } else {
    d_bias<_Float16, _Float16>(args, wave);
  }
}
FW_DEVICE void d_slopes_of_any(const GpuArguments& args) {
  const int64_t wave = wave_task();
  if (wave >= abi::slope_parts(args.params)) return;
  if (args.params.q.dtype == abi::kBF16) {
    d_slopes<__bf16>(args, wave);
  } else {
    d_slopes<_Float16>(args, wave);
  }
}

// A row makes a kernel if it is for the target compiled for.
#if defined(__GFX9__)
#define FW_FOR_kIsaCdna1(...) __VA_ARGS__
#define FW_FOR_kIsaRdna3(...)
#define FW_FOR_kIsaRdna4(...)
#elif defined(__GFX11__)
#define FW_FOR_kIsaCdna1(...)
#define FW_FOR_kIsaRdna3(...) __VA_ARGS__
#define FW_FOR_kIsaRdna4(...)
#else
#define FW_FOR_kIsaCdna1(...)
#define FW_FOR_kIsaRdna3(...)
#define FW_FOR_kIsaRdna4(...) __VA_ARGS__
#endif
#define FW_SCORES_kDBias d_bias_of_any
#define FW_SCORES_kDSlopes d_slopes_of_any

#define FW_SCORES_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, features, \
                        needs, work)                                                                                 \
  FW_FOR_##isa(FW_KERNEL(threads) name([[maybe_unused]] GpuArguments args) {                                         \
    static_assert(threads == abi::kScoreWaves * kWave && tile_q == kTile && tile_k == kTile);                        \
    FW_SCORES_##op(arguments_in_memory());                                                                           \
  })
#define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_SCORES_ENTRY)(__VA_ARGS__)
#include "kernels/amd/kernels.def"
#undef FW_AMD_KERNEL

}  // namespace flashwave

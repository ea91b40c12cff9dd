// Forward attention over at most 16 keys: pure streams. Every load of a stream is issued before the first use, every
// byte is moved once, and there is no shared memory. A stream is up to kTinyQueries queries of a sequence against one
// key head (kernels/abi/tiny_schedule.h). (NOTES-decode.md)
//
// Two forms. One query row against at most 2 keys: kDim / 8 lanes own 16 bytes of every row, dot products by shuffles.
// All else: a warp owns the stream and multiplies with MMAs,
//
//   S = Q K^T    A: 16 rows (query, head of the group), B: 8 keys. The contraction may go over the columns in any
//   order,
//                so 16 bytes of a row as they are read serve two MMAs: no ldmatrix.
//   O = P V      A: S's accumulators, rounded. B: V as it is read, transposed by movmatrix; then a lane has 8
//   consecutive
//                columns of O, 16 bytes.
#include "kernels/abi/features.h"
#include "kernels/abi/tiny_schedule.h"
#include "kernels/ampere/isa.h"
#include "kernels/common/score.h"
#include "kernels/common/sequence.h"

namespace flashwave {

// Stream `first` + `index` counts key heads first, then blocks of queries, then sequences: neighbours in memory.
struct Stream {
  int32_t b, head;
  int64_t first_query;

  FW_METHOD Stream(const Params& p, int64_t first, uint32_t index) {
    const int64_t blocks = abi::tiny_blocks(p.seqlen_q), first_block = first / p.heads_k;
    const uint32_t heads = uint32_t(p.heads_k), from = uint32_t(first - first_block * p.heads_k) + index;
    uint32_t carry = from / heads;
    head = int32_t(from - carry * heads);
    b = int32_t(first_block / blocks);
    first_query = 0;
    if (blocks > 1) {
      const uint32_t block = uint32_t(first_block - b * blocks) + carry;
      carry = block / uint32_t(blocks);
      first_query = (block - carry * uint32_t(blocks)) * abi::kTinyQueries;
    }
    b += int32_t(carry);
  }
};

FW_DEVICE bool modifies_scores(const Params& p) { return p.softcap > 0 || p.alibi_slopes || p.bias.data; }

template <class T>
FW_DEVICE T* elements(const abi::Tensor& t) {
  return static_cast<T*>(t.data);
}

// ---- one query row, at most kKeys keys ----

template <class Element>
FW_DEVICE float dot_of(uint4 a, uint4 b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.f;
  FW_UNROLL for (int i = 0; i < 4; ++i) {
    float x0, x1, y0, y1;
    unpack(Element{}, x[i], x0, x1), unpack(Element{}, y[i], y0, y1);
    sum = fmaf(x0, y0, sum), sum = fmaf(x1, y1, sum);
  }
  return sum;
}

template <class Element>
FW_DEVICE void add_weighted(float (&o)[8], float weight, uint4 v) {
  const uint32_t y[4] = {v.x, v.y, v.z, v.w};
  FW_UNROLL for (int i = 0; i < 4; ++i) {
    float low, high;
    unpack(Element{}, y[i], low, high);
    o[2 * i] = fmaf(weight, low, o[2 * i]), o[2 * i + 1] = fmaf(weight, high, o[2 * i + 1]);
  }
}

template <class Element>
FW_DEVICE uint4 packed(const float (&o)[8], float scale) {
  return {Element::pack(o[0] * scale, o[1] * scale), Element::pack(o[2] * scale, o[3] * scale),
          Element::pack(o[4] * scale, o[5] * scale), Element::pack(o[6] * scale, o[7] * scale)};
}

template <class Element, int kLanes, int kKeys, int kThreads>
FW_DEVICE void tiny_row(const GpuArguments& args) {
  constexpr int kPerWarp = kWave / kLanes, kInFlight = 2;  // streams side by side, and one after the other
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const int d = lane_index() % kLanes * 8;
  const bool in_qk = d < p.dim_qk, in_v = d < p.dim_v;

  int32_t head[kInFlight], first[kInFlight], seen[kInFlight];
  Sequence seq[kInFlight];
  bool exists[kInFlight];
  uint4 q[kInFlight], k[kInFlight][kKeys], v[kInFlight][kKeys];
  FW_UNROLL for (int u = 0; u < kInFlight; ++u) {
    const int index = (wave_index() * kInFlight + u) * kPerWarp + lane_index() / kLanes;
    const Stream stream(p, task * (kThreads / kLanes * kInFlight), uint32_t(index));
    head[u] = stream.head;
    exists[u] = stream.b < p.batch;
    seq[u] = Sequence{};
    if (exists[u]) seq[u] = sequence_of(p, stream.b);
    exists[u] = exists[u] && seq[u].queries > 0;
    const KeyRange range = visible_keys(p, seq[u], 0);
    first[u] = int32_t(range.first), seen[u] = exists[u] ? int32_t(range.last) - first[u] : 0;
    q[u] = {0, 0, 0, 0};
    if (exists[u] && in_qk) q[u] = load_once(elements<uint16_t>(p.q) + query_offset(p.q, seq[u], 0, head[u]) + d);
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      k[u][j] = v[u][j] = {0, 0, 0, 0};
      const bool read = uint32_t(j - first[u]) < uint32_t(seen[u]);
      if (read && in_qk) k[u][j] = load_once(elements<uint16_t>(p.k) + key_offset(p, p.k, seq[u], j, head[u]) + d);
      if (read && in_v) v[u][j] = load_once(elements<uint16_t>(p.v) + key_offset(p, p.v, seq[u], j, head[u]) + d);
    }
  }

  FW_UNROLL for (int u = 0; u < kInFlight; ++u) {
    float score[kKeys];
    FW_UNROLL for (int j = 0; j < kKeys; ++j) score[j] = dot_of<Element>(q[u], k[u][j]);
    FW_UNROLL for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      FW_UNROLL for (int j = 0; j < kKeys; ++j) score[j] += exchange(score[j], apart);
    }
    const float sink = p.sinks && exists[u] ? p.sinks[head[u]] * kLog2e : -kInf;
    float top = sink;
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      if (uint32_t(j - first[u]) < uint32_t(seen[u])) {
        score[j] = modifies_scores(p) ? ScoreRow(p, seq[u], head[u], 0).modified(score[j], j)
                                      : score[j] * (p.softmax_scale * kLog2e);
      } else {
        score[j] = -kInf;
      }
      top = fmaxf(top, score[j]);
    }
    const float reference = top == -kInf ? 0.f : top;  // a row that sees nothing: every weight is exp2(-inf) = 0
    float sum = exp2_fast(sink - reference), o[8] = {};
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      const float weight = exp2_fast(score[j] - reference);
      sum += weight;
      add_weighted<Element>(o, weight, v[u][j]);
    }
    if (!exists[u]) continue;
    const float scale = sum == 0.f ? 0.f : 1.f / sum;
    if (in_v)
      store_once(elements<uint16_t>(p.o) + query_offset(p.o, seq[u], 0, head[u]) + d, packed<Element>(o, scale));
    if (p.lse.data && d == 0) {
      elements<float>(p.lse)[query_offset(p.lse, seq[u], 0, head[u])] = (reference + log2_fast(sum)) * kLn2;
    }
  }
}

// ---- any rows, at most 16 keys ----

template <class Element, int kDim>
struct TinyTile {
  static constexpr int kChunks = kDim / 32;  // of 16 bytes: a lane's of a row

  const Params& p;
  const Sequence& seq;
  const int g, c;
  uint4 k[2][kChunks], v[2][kChunks];  // keys g and g + 8; V transposed: columns of lane g, keys 2c, 2c + 1 and + 8

  // Lane 4g + c reads columns 32n + 8c .. of a row: with its neighbours 64 bytes.
  FW_METHOD static void load_row(uint4 (&x)[kChunks], const uint16_t* row, int c, int dim, bool exists) {
    FW_UNROLL for (int n = 0; n < kChunks; ++n) {
      x[n] = {0, 0, 0, 0};
      if (exists && 32 * n + 8 * c < dim) x[n] = load_once(row + 32 * n + 8 * c);
    }
  }

  FW_METHOD TinyTile(const Params& params, const Sequence& sequence)
      : p(params), seq(sequence), g(lane_index() / 4), c(lane_index() % 4) {}

  FW_METHOD void load_keys(int32_t head, int32_t begin, int32_t end) {
    FW_UNROLL for (int half = 0; half < 2; ++half) {
      const int j = g + 8 * half;
      const bool exists = j >= begin && j < end;
      load_row(k[half], elements<uint16_t>(p.k) + (exists ? key_offset(p, p.k, seq, j, head) : 0), c, p.dim_qk, exists);
      load_row(v[half], elements<uint16_t>(p.v) + (exists ? key_offset(p, p.v, seq, j, head) : 0), c, p.dim_v, exists);
    }
  }
  FW_METHOD void transpose_values() {
    FW_UNROLL for (int half = 0; half < 2; ++half) {
      FW_UNROLL for (int n = 0; n < kChunks; ++n) {
        uint4& x = v[half][n];
        x = {transposed_matrix(x.x), transposed_matrix(x.y), transposed_matrix(x.z), transposed_matrix(x.w)};
      }
    }
  }

  // S of 16 rows: q[0] is this lane's part of row g, q[1] of row g + 8. s[t]: keys 8t + 2c, + 1 of both.
  FW_METHOD void multiply_keys(const uint4 (&q)[2][kChunks], float (&s)[2][4]) const {
    FW_UNROLL for (int t = 0; t < 2; ++t) {
      s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.f;
      FW_UNROLL for (int n = 0; n < kChunks; ++n) {
        Element::mma(s[t], {q[0][n].x, q[1][n].x, q[0][n].y, q[1][n].y}, k[t][n].x, k[t][n].y);
        Element::mma(s[t], {q[0][n].z, q[1][n].z, q[0][n].w, q[1][n].w}, k[t][n].z, k[t][n].w);
      }
    }
  }

  // Columns 32n + 8c .. of O of rows g (o[0]) and g + 8 (o[1]).
  FW_METHOD void multiply_values(const uint32_t (&weights)[4], int n, float (&o)[2][8]) const {
    const uint32_t low[4] = {v[0][n].x, v[0][n].y, v[0][n].z, v[0][n].w};
    const uint32_t high[4] = {v[1][n].x, v[1][n].y, v[1][n].z, v[1][n].w};
    FW_UNROLL for (int w = 0; w < 4; ++w) {
      float d[4] = {};
      Element::mma(d, weights, low[w], high[w]);
      o[0][2 * w] = d[0], o[0][2 * w + 1] = d[1], o[1][2 * w] = d[2], o[1][2 * w + 1] = d[3];
    }
  }
};

template <class Element, int kDim, int kThreads>
FW_DEVICE void tiny_tile(const GpuArguments& args) {
  using Tile = TinyTile<Element, kDim>;
  constexpr int kRows = 16;
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const Stream stream(p, task * (kThreads / kWave), uint32_t(wave_index()));
  if (stream.b >= p.batch) return;
  const Sequence seq = sequence_of(p, stream.b);
  const int64_t first_query = stream.first_query;
  const int64_t end_query =
      seq.queries < first_query + abi::kTinyQueries ? seq.queries : first_query + abi::kTinyQueries;
  if (first_query >= end_query) return;
  const int32_t group = p.heads_q / p.heads_k, first_head = stream.head * group;
  const int32_t rows = int32_t(end_query - first_query) * group;

  Tile tile(p, seq);
  // Where row r of the stream lies: query and head.
  const auto query_of = [&](int r) { return first_query + uint32_t(r) / uint32_t(group); };
  const auto head_of = [&](int r) { return first_head + int32_t(uint32_t(r) % uint32_t(group)); };
  uint4 q[2][Tile::kChunks];
  const auto load_queries = [&](int from) {
    FW_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = from + tile.g + 8 * half;
      const int64_t offset = r < rows ? query_offset(p.q, seq, query_of(r), head_of(r)) : 0;
      Tile::load_row(q[half], elements<uint16_t>(p.q) + offset, tile.c, p.dim_qk, r < rows);
    }
  };
  load_queries(0);
  // Both ends of what a query sees rise with the query.
  tile.load_keys(stream.head, int32_t(visible_keys(p, seq, first_query).first),
                 int32_t(visible_keys(p, seq, end_query - 1).last));
  tile.transpose_values();

  FW_NO_UNROLL for (int from = 0; from < rows; from += kRows) {
    if (from > 0) load_queries(from);
    float s[2][4];
    tile.multiply_keys(q, s);
    float sum[2], reference[2];
    FW_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = min(from + tile.g + 8 * half, rows - 1);
      const int64_t query = query_of(r);
      const int32_t head = head_of(r);
      const KeyRange range = visible_keys(p, seq, query);
      const float sink = p.sinks ? p.sinks[head] * kLog2e : -kInf;
      float top = sink;
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        float& x = s[e / 2][2 * half + e % 2];
        const int key = 8 * (e / 2) + 2 * tile.c + e % 2;
        if (key >= range.first && key < range.last) {
          x = modifies_scores(p) ? ScoreRow(p, seq, head, query).modified(x, key) : x * (p.softmax_scale * kLog2e);
        } else {
          x = -kInf;
        }
        top = fmaxf(top, x);
      }
      top = fmaxf(top, exchange(top, 1)), top = fmaxf(top, exchange(top, 2));
      reference[half] = top == -kInf ? 0.f : top;
      sum[half] = 0.f;
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        float& x = s[e / 2][2 * half + e % 2];
        x = exp2_fast(x - reference[half]);
        sum[half] += x;
      }
      sum[half] += exchange(sum[half], 1), sum[half] += exchange(sum[half], 2);
      sum[half] += exp2_fast(sink - reference[half]);
    }
    const uint32_t weights[4] = {Element::pack(s[0][0], s[0][1]), Element::pack(s[0][2], s[0][3]),
                                 Element::pack(s[1][0], s[1][1]), Element::pack(s[1][2], s[1][3])};
    uint16_t* out[2];
    FW_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = from + tile.g + 8 * half;
      out[half] = nullptr;
      if (r >= rows) continue;
      out[half] = elements<uint16_t>(p.o) + query_offset(p.o, seq, query_of(r), head_of(r));
      if (p.lse.data && tile.c == 0) {
        elements<float>(p.lse)[query_offset(p.lse, seq, query_of(r), head_of(r))] =
            (reference[half] + log2_fast(sum[half])) * kLn2;
      }
    }
    FW_UNROLL for (int n = 0; n < Tile::kChunks; ++n) {
      float o[2][8];
      tile.multiply_values(weights, n, o);
      FW_UNROLL for (int half = 0; half < 2; ++half) {
        if (out[half] && 32 * n + 8 * tile.c < p.dim_v) {
          const float scale = sum[half] == 0.f ? 0.f : 1.f / sum[half];
          store_once(out[half] + 32 * n + 8 * tile.c, packed<Element>(o[half], scale));
        }
      }
    }
  }
}

// The rows of tiny.def: those of one query by their seqlen_q.
template <class Element, int kDim, int kQueries, int kKeys, int kStreams, int kThreads>
FW_DEVICE void tiny(const GpuArguments& args) {
  if constexpr (kQueries == 1) {
    static_assert(kStreams == kThreads * 16 / kDim);
    tiny_row<Element, kDim / 8, kKeys, kThreads>(args);
  } else {
    static_assert(kStreams == kThreads / kWave && kKeys == 16);
    tiny_tile<Element, kDim, kThreads>(args);
  }
}
#define FW_NVIDIA_KERNEL(source, name, isa, op, dtypes, dim_qk, dim_v, max_queries, max_keys, tile_q, tile_k, threads, \
                         shared_bytes, features, needs, work)                                                          \
  FW_KERNEL(threads) name(FW_ARGUMENTS(args)) {                                                                        \
    static_assert(dim_qk == dim_v && max_keys == tile_k && shared_bytes == 0);                                         \
    static_assert(max_queries != 1 || (features & kGqa) == 0);                                                         \
    tiny<ElementOf<dtypes>, dim_qk, max_queries, max_keys, tile_q, threads>(args);                                     \
  }
#include "kernels/ampere/tiny.def"
#undef FW_NVIDIA_KERNEL

}  // namespace flashwave

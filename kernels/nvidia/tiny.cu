// Forward attention over at most 16 keys: pure streams. Every load of a stream is issued before the first use, every
// byte is moved once, and there is no shared memory. A stream is up to kTinyQueries queries of a sequence against one
// key head (kernels/abi/tiny_schedule.h). (NOTES-decode.md)
//
// Two forms. One query row against at most 8 keys: kDim / 8 lanes own 16 bytes of every row, dot products by shuffles.
// All else: a warp owns the stream and multiplies with MMAs,
//
//   S = Q K^T    A: 8 rows (query, head of the group; the other 8 are 0), B: 8 keys. The contraction may go over the
//                columns in any order, so 16 bytes of a row as they are read serve two MMAs: no ldmatrix.
//   O = P V      A: S's accumulators, rounded. B: V as it is read, transposed by movmatrix. A lane then has 8
//                neighbouring columns of O: 16 bytes.
#include "kernels/abi/features.h"
#include "kernels/abi/tiny_schedule.h"
#include "kernels/common/part.h"
#include "kernels/common/row_end.h"
#include "kernels/common/window.h"
#include "kernels/nvidia/narrow.h"

namespace flashwave {

// A sequence with everything in 32 bits: these kernels are short, and 64-bit arithmetic would be most of them.
struct TinySequence {
  int b, q_batch, q_row, queries, k_batch, k_row, keys;
  Edges edges;

  FW_METHOD TinySequence(const Params& p, int sequence) {
    __builtin_assume(p.block_table == nullptr);
    const Sequence s = sequence_of(p, sequence);
    b = sequence, q_batch = int(s.q_batch), q_row = int(s.q_row), queries = int(s.queries);
    k_batch = int(s.k_batch), k_row = int(s.k_row), keys = int(s.keys);
    edges = near_edges(p, keys - queries);
  }

  // Elements of row 0 of query head h, and of key 0 of key head h.
  FW_METHOD int64_t query_head(const abi::Tensor& t, int h) const {
    return q_batch * t.stride[0] + q_row * t.stride[1] + h * t.stride[2];
  }
  FW_METHOD int64_t key_head(const abi::Tensor& t, int h) const {
    return k_batch * t.stride[0] + k_row * t.stride[1] + h * t.stride[2];
  }
  FW_METHOD ScoreRow scores(const Params& p, int head, int query) const {
    Sequence s{};
    s.b = b, s.keys = keys, s.queries = queries;
    return ScoreRow(p, s, head, query);
  }
};

// x = quotient * by + rest. Almost always in 32 bits.
FW_DEVICE void divide(int64_t x, int by, int& quotient, int& rest) {
  if (x < int64_t{1} << 31) {
    quotient = int(uint32_t(x) / uint32_t(by)), rest = int(x) - quotient * by;
  } else {
    quotient = int(x / by), rest = int(x - int64_t{quotient} * by);
  }
}

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

template <class Element, int kLanes, int kKeys, int kInFlight, int kThreads>
FW_DEVICE void tiny_row(const GpuArguments& args) {
  constexpr int kPerWarp = kWave / kLanes;  // streams side by side
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const int d = int(uint32_t(lane_index()) % kLanes) * 8, longest = p.seqlen_k + int(p.seqlen_new);
  const bool in_qk = d < p.dim_qk, in_v = d < p.dim_v;
  // Streams count key heads first: neighbours in memory.
  int first_b, first_head;
  divide((task * (kThreads / kWave) + warp_index()) * (kPerWarp * kInFlight), p.heads_k, first_b, first_head);

  int b[kInFlight], head[kInFlight], first[kInFlight], seen[kInFlight];
  uint4 q[kInFlight], k[kInFlight][kKeys], v[kInFlight][kKeys];
  int64_t row[kInFlight];
  FW_UNROLL for (int u = 0; u < kInFlight; ++u) {
    b[u] = first_b, head[u] = first_head + u * kPerWarp + int(uint32_t(lane_index()) / kLanes);
    while (head[u] >= p.heads_k) head[u] -= p.heads_k, ++b[u];
    q[u] = {0, 0, 0, 0};
    FW_UNROLL for (int j = 0; j < kKeys; ++j) k[u][j] = v[u][j] = {0, 0, 0, 0};
    first[u] = seen[u] = 0;
    if (b[u] >= p.batch) continue;
    const TinySequence seq(p, b[u]);
    if (seq.queries <= 0) {
      b[u] = p.batch;
      continue;
    }
    first[u] = seq.edges.first(0), seen[u] = seq.edges.end(0, seq.keys) - first[u];
    row[u] = seq.query_head(p.o, head[u]) + d;
    if (in_qk) q[u] = load_once(elements<uint16_t>(p.q) + seq.query_head(p.q, head[u]) + d);
    const uint16_t* const keys = elements<uint16_t>(p.k) + seq.key_head(p.k, head[u]) + d;
    const uint16_t* const values = elements<uint16_t>(p.v) + seq.key_head(p.v, head[u]) + d;
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      if (j < longest) {
        const bool read = uint32_t(j - first[u]) < uint32_t(seen[u]);
        if (read && in_qk) k[u][j] = load_once(keys + j * p.k.stride[1]);
        if (read && in_v) v[u][j] = load_once(values + j * p.v.stride[1]);
      }
    }
  }

  FW_UNROLL for (int u = 0; u < kInFlight; ++u) {
    float score[kKeys];
    FW_UNROLL for (int j = 0; j < kKeys; ++j) score[j] = -kInf;
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      if (j < longest) {
        score[j] = dot_of<Element>(q[u], k[u][j]);
        FW_UNROLL for (int apart = kLanes / 2; apart > 0; apart /= 2) score[j] += exchange(score[j], apart);
      }
    }
    if (b[u] >= p.batch) continue;
    if (modifies_scores(p)) {
      const ScoreRow modify = TinySequence(p, b[u]).scores(p, head[u], 0);
      FW_UNROLL for (int j = 0; j < kKeys; ++j) {
        if (uint32_t(j - first[u]) < uint32_t(seen[u])) score[j] = modify.modified(score[j], j);
      }
    } else {
      FW_UNROLL for (int j = 0; j < kKeys; ++j) score[j] *= p.softmax_scale * kLog2e;
    }
    const float sink = sink_of(p, head[u]);
    float top = sink;
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      if (uint32_t(j - first[u]) >= uint32_t(seen[u])) score[j] = -kInf;
      top = fmaxf(top, score[j]);
    }
    const float reference = reference_of(top);
    float sum = exp2_fast(sink - reference), o[8] = {};
    FW_UNROLL for (int j = 0; j < kKeys; ++j) {
      if (j < longest) {
        const float weight = exp2_fast(score[j] - reference);
        sum += weight;
        add_weighted<Element>(o, weight, v[u][j]);
      }
    }
    const RowEnd end = end_of_row(reference, sum);
    if (in_v) store_once(elements<uint16_t>(p.o) + row[u], packed<Element>(o, end.scale));
    if (p.lse.data && d == 0) elements<float>(p.lse)[TinySequence(p, b[u]).query_head(p.lse, head[u])] = end.lse;
  }
}

// ---- any rows, at most 16 keys ----

template <class Element, int kDim>
struct TinyTile {
  static constexpr int kChunks = kDim / 32;  // of 16 bytes: a lane's of a row

  const int g, c;
  uint4 k[2][kChunks], v[2][kChunks];  // keys g and g + 8; V transposed: columns of lane g, keys 2c, 2c + 1 and + 8

  FW_METHOD TinyTile() : g(int(uint32_t(lane_index()) / 4)), c(lane_index() & 3) {}

  // Lane 4g + c reads columns 32n + 8c .. of a row: with its neighbours 64 bytes. What does not exist stays as it is.
  FW_METHOD void load_row(uint4 (&x)[kChunks], const uint16_t* row, int dim, bool exists) const {
    const int columns = exists ? dim - 8 * c : 0;
    row += 8 * c;
    FW_UNROLL for (int n = 0; n < kChunks; ++n) {
      if (32 * n < columns) x[n] = load_once(row + 32 * n);
    }
  }

  // Keys [begin, end) of a key head; the others are 0.
  FW_METHOD void load_keys(const Params& p, const TinySequence& seq, int head, int begin, int end, bool second) {
    const uint16_t* const keys = elements<uint16_t>(p.k) + seq.key_head(p.k, head);
    const uint16_t* const values = elements<uint16_t>(p.v) + seq.key_head(p.v, head);
    FW_UNROLL for (int half = 0; half < 2; ++half) {
      const int j = g + 8 * half;
      FW_UNROLL for (int n = 0; n < kChunks; ++n) k[half][n] = v[half][n] = {0, 0, 0, 0};
      if (half == 1 && !second) continue;
      load_row(k[half], keys + j * p.k.stride[1], p.dim_qk, j >= begin && j < end);
      load_row(v[half], values + j * p.v.stride[1], p.dim_v, j >= begin && j < end);
    }
  }
  FW_METHOD void transpose_values(int half) {
    FW_UNROLL for (int n = 0; n < kChunks; ++n) {
      uint4& x = v[half][n];
      x = {transposed_matrix(x.x), transposed_matrix(x.y), transposed_matrix(x.z), transposed_matrix(x.w)};
    }
  }

  // S of 8 rows (A has 16, the others are 0): q is this lane's part of row g. s: keys 8t + 2c, + 1.
  FW_METHOD void multiply_keys(const uint4 (&q)[kChunks], int t, float (&s)[2]) const {
    float d[4] = {};
    FW_UNROLL for (int n = 0; n < kChunks; ++n) {
      Element::mma(d, {q[n].x, 0, q[n].y, 0}, k[t][n].x, k[t][n].y);
      Element::mma(d, {q[n].z, 0, q[n].w, 0}, k[t][n].z, k[t][n].w);
    }
    s[0] = d[0], s[1] = d[1];
  }

  // Columns 32n + 8c .. of O of row g.
  FW_METHOD void multiply_values(const uint32_t (&weights)[2], int n, float (&o)[8]) const {
    const uint32_t low[4] = {v[0][n].x, v[0][n].y, v[0][n].z, v[0][n].w};
    const uint32_t high[4] = {v[1][n].x, v[1][n].y, v[1][n].z, v[1][n].w};
    FW_UNROLL for (int w = 0; w < 4; ++w) {
      float d[4] = {};
      Element::mma(d, {weights[0], 0, weights[1], 0}, low[w], high[w]);
      o[2 * w] = d[0], o[2 * w + 1] = d[1];
    }
  }
};

template <class Element, int kDim, int kThreads>
FW_DEVICE void tiny_tile(const GpuArguments& args) {
  using Tile = TinyTile<Element, kDim>;
  constexpr int kRows = 8;
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  // Streams count key heads first, then blocks of queries, then sequences.
  int b, head, block = 0;
  divide(task * (kThreads / kWave) + warp_index(), p.heads_k, b, head);
  if (p.seqlen_q > int(abi::kTinyQueries)) {
    const int blocks = (p.seqlen_q + int(abi::kTinyQueries) - 1) / int(abi::kTinyQueries);
    block = b, b /= blocks, block -= b * blocks;
  }
  if (b >= p.batch) return;
  const TinySequence seq(p, b);
  const int first_query = block * int(abi::kTinyQueries);
  const int end_query = min(seq.queries, first_query + int(abi::kTinyQueries));
  if (first_query >= end_query) return;
  const int group = small_quotient(p.heads_q, rcp_fast(float(p.heads_k))), first_head = head * group;
  const int rows = (end_query - first_query) * group;
  const float per_group = rcp_fast(float(group));
  const bool second_keys = p.seqlen_k + int(p.seqlen_new) > 8;  // any in the upper half

  Tile tile;
  uint4 q[Tile::kChunks];
  // Query and head of this lane's row; rows past the last are the last one's.
  const auto place_of = [&](int from, int& query, int& row_head) {
    const int r = min(from + tile.g, rows - 1), i = small_quotient(r, per_group);
    query = first_query + i, row_head = first_head + r - i * group;
  };
  const auto load_queries = [&](int from) {
    int query, row_head;
    place_of(from, query, row_head);
    FW_UNROLL for (int n = 0; n < Tile::kChunks; ++n) q[n] = {0, 0, 0, 0};
    tile.load_row(q, elements<uint16_t>(p.q) + seq.query_head(p.q, row_head) + query * p.q.stride[1], p.dim_qk,
                  from + tile.g < rows);
  };
  load_queries(0);
  // Both ends of what a query sees rise with the query.
  tile.load_keys(p, seq, head, seq.edges.first(first_query), seq.edges.end(end_query - 1, seq.keys), second_keys);
  tile.transpose_values(0);
  if (second_keys) tile.transpose_values(1);

  FW_NO_UNROLL for (int from = 0; from < rows; from += kRows) {
    float s[2][2] = {};
    tile.multiply_keys(q, 0, s[0]);
    if (second_keys) tile.multiply_keys(q, 1, s[1]);
    if (from + kRows < rows) load_queries(from + kRows);
    int query, row_head;
    place_of(from, query, row_head);
    const int begin = seq.edges.first(query), end = seq.edges.end(query, seq.keys);
    const auto sees = [&](int e) {
      const int key = 8 * (e / 2) + 2 * tile.c + e % 2;
      return key >= begin && key < end;
    };
    if (modifies_scores(p)) {
      const ScoreRow modify = seq.scores(p, row_head, query);
      FW_UNROLL for (int e = 0; e < 4; ++e) {
        if (sees(e)) s[e / 2][e % 2] = modify.modified(s[e / 2][e % 2], 8 * (e / 2) + 2 * tile.c + e % 2);
      }
    } else {
      FW_UNROLL for (int e = 0; e < 4; ++e) s[e / 2][e % 2] *= p.softmax_scale * kLog2e;
    }
    const float sink = sink_of(p, row_head);
    float top = sink;
    FW_UNROLL for (int e = 0; e < 4; ++e) {
      if (!sees(e)) s[e / 2][e % 2] = -kInf;
      top = fmaxf(top, s[e / 2][e % 2]);
    }
    top = fmaxf(top, exchange(top, 1)), top = fmaxf(top, exchange(top, 2));
    const float reference = reference_of(top);
    float sum = 0.f;
    FW_UNROLL for (int e = 0; e < 4; ++e) {
      s[e / 2][e % 2] = exp2_fast(s[e / 2][e % 2] - reference);
      sum += s[e / 2][e % 2];
    }
    sum += exchange(sum, 1), sum += exchange(sum, 2);
    sum += exp2_fast(sink - reference);
    const uint32_t weights[2] = {Element::pack(s[0][0], s[0][1]), Element::pack(s[1][0], s[1][1])};

    const bool exists = from + tile.g < rows;
    const RowEnd row_end = end_of_row(reference, sum);
    uint16_t* const out = elements<uint16_t>(p.o) + seq.query_head(p.o, row_head) + query * p.o.stride[1] + 8 * tile.c;
    const int columns = exists ? p.dim_v - 8 * tile.c : 0;
    if (exists && p.lse.data && tile.c == 0) {
      elements<float>(p.lse)[seq.query_head(p.lse, row_head) + query * p.lse.stride[1]] = row_end.lse;
    }
    FW_UNROLL for (int n = 0; n < Tile::kChunks; ++n) {
      float o[8];
      tile.multiply_values(weights, n, o);
      if (32 * n < columns) store_once(out + 32 * n, packed<Element>(o, row_end.scale));
    }
  }
}

// By the seqlen_q of the row: one query, or any number.
template <class Element, int kDim, int kQueries, int kKeys, int kStreams, int kThreads>
FW_DEVICE void tiny(const GpuArguments& args) {
  if constexpr (kQueries == 1) {
    tiny_row<Element, kDim / 8, kKeys, kStreams * kDim / (8 * kThreads), kThreads>(args);
  } else {
    static_assert(kStreams == kThreads / kWave && kKeys == 16);
    tiny_tile<Element, kDim, kThreads>(args);
  }
}
// Workgroups on an SM that registers are kept for; 1: as it comes.
constexpr int tiny_workgroups(int dim, int keys) {
  return keys == 8 ? (dim == 256 ? 4 : 5) : keys == 16 && dim == 128 ? 4 : 1;
}

#define FW_TINY_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, max_queries, max_keys, tile_q, tile_k, threads, lds_bytes, \
                      features, needs, work)                                                                           \
  extern "C" __global__ void __launch_bounds__(threads, tiny_workgroups(dim_qk, max_keys)) name(FW_ARGUMENTS(args)) {  \
    static_assert(dim_qk == dim_v && max_keys == tile_k && lds_bytes == 0);                                            \
    static_assert(max_queries != 1 || (features & kGqa) == 0);                                                         \
    tiny<ElementOf<dtypes>, dim_qk, max_queries, max_keys, tile_q, threads>(args);                                     \
  }
#define FW_NVIDIA_KERNEL(source, ...) FW_IN_PART(source, FW_TINY_ENTRY)(__VA_ARGS__)
#include "kernels/nvidia/kernels.def"
#undef FW_NVIDIA_KERNEL

}  // namespace flashwave

// One CTA's share of the forward pass: Config::kTileRows queries of one head against the keys they see.
#pragma once

#include "kernels/ampere/score.h"
#include "kernels/ampere/tile.h"
#include "kernels/common/row_end.h"

namespace flashwave {

// T: element type; C: Config; kModified: with score modifiers and dropout, and tensors at any address. Then scores are
// in units of log2 when the softmax gets them; else they are plain products.
template <class T, class C, bool kModified>
struct Forward {
  static constexpr int kRowTiles = C::kRowTiles, kKeyTiles = C::kKeyTiles, kColumnTiles = C::kColumnTiles;
  // A reference may lag behind the maximum by this, in units of log2: weights of up to 2^8 lose nothing in fp16.
  static constexpr float kSlack = 8.f;
  using LayoutQk = typename C::LayoutQk;
  using LayoutV = typename C::LayoutV;

  const Params& p;
  const uint32_t shared;  // Q, then K, then V
  const int thread;

  int batch, head, head_k, block;
  int queries, keys;      // of the sequence
  int first_tile, tiles;  // of keys: [first_tile, tiles)
  Edges edges;            // from the CTA's first query on
  const char *k, *v;      // dense: key 0; paged: row 0 of page 0
  bool vectors;           // everything is at multiples of 16 bytes

  float s[kRowTiles][kKeyTiles][4], o[kRowTiles][kColumnTiles][4];
  float reference[kRowTiles][2], sum[kRowTiles][2];  // in units of log2; of this lane's keys

  FW_METHOD Forward(const Params& params, uint32_t shared_memory)
      : p(params), shared(shared_memory), thread(thread_index()) {}

  // Places in the CTA. Where registers are short, what follows from them is computed where it is used and not kept
  // through the loop.
  FW_METHOD int place() const { return C::kFewRegisters || kModified ? here(thread) : thread; }
  FW_METHOD int lane() const { return place() % kWave; }
  FW_METHOD int row_group() const { return place() / kWave / C::kColumnParts; }
  FW_METHOD int column_part() const { return place() / kWave % C::kColumnParts; }

  // Blocks of queries run fastest within the heads that share a key head, so that K and V stay in the L2 cache; the
  // last blocks, which see the most keys under a causal mask, start first. There are fewer than 2^32 tasks: their
  // queries alone would exceed any memory.
  FW_METHOD Sequence locate(uint32_t task) {
    const uint32_t group = uint32_t(p.heads_q / p.heads_k);
    const uint32_t blocks = uint32_t(p.seqlen_q + C::kTileRows - 1) / C::kTileRows;
    const uint32_t in_group = task / group, of_head = in_group / blocks;
    batch = int(of_head / uint32_t(p.heads_k));
    head_k = int(of_head) - batch * p.heads_k;
    head = int(uint32_t(head_k) * group + (task - in_group * group));
    block = int(blocks - 1 - (in_group - of_head * blocks));
    const Sequence seq = sequence_of(p, batch);
    queries = int(seq.queries);
    return seq;
  }

  // False: nothing to do.
  FW_METHOD bool choose_task(const Schedule& schedule) {
    if (task_index() >= schedule.tasks) return false;
    const Sequence seq = locate(uint32_t(task_index()));
    keys = int(seq.keys);
    if (int64_t{block} * C::kTileRows >= seq.queries) return false;
    choose_keys();
    k = head_of(p.k, seq);
    v = head_of(p.v, seq);
    if constexpr (kModified)
      vectors = has_vectors(p.q, p.dim_qk) && has_vectors(p.k, p.dim_qk) && has_vectors(p.v, p.dim_v) &&
                has_vectors(p.o, p.dim_v);
    if (first_tile < tiles) load_queries(seq);
    return true;
  }
  FW_METHOD const char* head_of(const abi::Tensor& t, const Sequence& seq) const {
    int64_t at = head_k * t.stride[2];
    if (!p.block_table) at += seq.k_batch * t.stride[0] + seq.k_row * t.stride[1];
    return static_cast<const char*>(t.data) + at * 2;
  }

  FW_METHOD void choose_keys() {
    const int there_are = queries - block * C::kTileRows,
              last = (there_are < C::kTileRows ? there_are : C::kTileRows) - 1;
    edges = edges_of_block(p, int64_t{keys} - there_are, keys, C::kTileRows);
    const int from = edges.first(0), to = edges.end(last, keys);
    first_tile = int(uint32_t(from) / C::kKeys);
    tiles = to > from ? int((uint32_t(to) + C::kKeys - 1) / C::kKeys) : first_tile;
  }

  // Whether some query of the warp sees a key of the tile, and whether all of them see all of its keys. Both edges of
  // what a query sees rise with the query; those past the last query of the sequence do no harm here.
  FW_METHOD bool sees(int tile) const {
    const int first = tile * C::kKeys, upper = row_group() * C::kWarpRows, lower = upper + C::kWarpRows - 1;
    return first + C::kKeys > edges.left + upper && first <= edges.right + lower;
  }
  FW_METHOD bool sees_all(int tile) const {
    const int first = tile * C::kKeys, upper = row_group() * C::kWarpRows, lower = upper + C::kWarpRows - 1;
    return first >= edges.left + lower && first + C::kKeys - 1 <= edges.right + upper && first + C::kKeys <= keys;
  }

  template <int kDim>
  using Share = RowShare<C::kThreads, kDim>;

  FW_METHOD void load_queries(const Sequence& seq) {
    using Rows = Share<C::kDimQk>;
    const Rows mine(place());
    const int first = block * C::kTileRows;
    const char* const from =
        static_cast<const char*>(p.q.data) + query_offset(p.q, seq, first + mine.row, head) * 2 + mine.chunk * 16;
    const int64_t step = Rows::kRows * p.q.stride[1] * 2;
    load_rows<C::kTileRows, kModified>(mine, shared, queries - first, p.dim_qk, vectors,
                                       [&](int i) { return from + i * step; });
  }

  template <int kDim>
  FW_METHOD void load_keys(const abi::Tensor& t, const char* base, int dim, int tile, uint32_t to) {
    using Rows = Share<kDim>;
    const Rows mine(place());
    const int first = tile * C::kKeys;
    base += mine.chunk * 16;
    if (p.block_table) {
      const int32_t* const table = p.block_table + batch * p.block_table_stride;
      const uint32_t pad = uint32_t(left_pad(p, batch)), size = uint32_t(p.page_size);
      load_rows<C::kKeys, kModified>(mine, to, keys - first, dim, vectors, [&](int i) {
        const int key = first + mine.row + i * Rows::kRows;
        const uint32_t row = pad + uint32_t(key < keys ? key : first), page = row / size;
        return base +
               (abi::at_most(table[page], p.k.most) * t.stride[0] + int64_t(row - page * size) * t.stride[1]) * 2;
      });
    } else {
      const char* const from = base + (first + mine.row) * t.stride[1] * 2;
      const int64_t step = Rows::kRows * t.stride[1] * 2;
      load_rows<C::kKeys, kModified>(mine, to, keys - first, dim, vectors, [&](int i) { return from + i * step; });
    }
  }
  FW_METHOD uint32_t buffer_of(int tile) const { return C::kStages == 1 ? 0 : uint32_t(tile & 1); }
  FW_METHOD void load_k(int tile) {
    load_keys<C::kDimQk>(p.k, k, p.dim_qk, tile, shared + C::kOffsetK + buffer_of(tile) * C::kBytesK);
  }
  FW_METHOD void load_v(int tile) {
    load_keys<C::kDimV>(p.v, v, p.dim_v, tile, shared + C::kOffsetV + buffer_of(tile) * C::kBytesV);
  }

  // S = Q K^T. Operands are read by fours of 8x8 matrices: 16 queries x 16 columns of Q, 16 keys x 16 columns of K.
  FW_METHOD void multiply_qk(int tile) {
    const int lane = this->lane();
    const uint32_t at_q = shared + LayoutQk::offset(row_group() * C::kWarpRows + (lane & 15), lane >> 4);
    const uint32_t at_k = shared + C::kOffsetK + buffer_of(tile) * C::kBytesK +
                          LayoutQk::offset((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) { FW_UNROLL for (int i = 0; i < 4; ++i) s[r][n][i] = 0.f; }
    }
    FW_UNROLL for (int step = 0; step < C::kStepsQk; ++step) {
      uint32_t a[kRowTiles][4];
      FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
        load_matrices(a[r], LayoutQk::advance(at_q, step) + r * 16 * LayoutQk::kPitch);
      }
      FW_UNROLL for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        load_matrices(b, LayoutQk::advance(at_k, step) + n * 8 * LayoutQk::kPitch);
        FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
          T::mma(s[r][n], a[r], b[0], b[1]);
          T::mma(s[r][n + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  // O += P V, P = S rounded. V is transposed as it is read: 16 keys x 16 columns.
  FW_METHOD void multiply_pv(int tile) {
    const int lane = this->lane();
    const uint32_t at_v = shared + C::kOffsetV + buffer_of(tile) * C::kBytesV + LayoutV::offset(lane & 15, lane >> 4) +
                          column_part() * (C::kColumns * 2);
    FW_UNROLL for (int n = 0; n < kKeyTiles; n += 2) {
      uint32_t a[kRowTiles][4];
      FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
        FW_UNROLL for (int i = 0; i < 4; ++i) {
          a[r][i] = T::pack(s[r][n + i / 2][i % 2 * 2], s[r][n + i / 2][i % 2 * 2 + 1]);
        }
      }
      FW_UNROLL for (int d = 0; d < kColumnTiles; d += 2) {
        uint32_t b[4];
        load_matrices_transposed(b, LayoutV::advance(at_v, d / 2) + n * 8 * LayoutV::kPitch);
        FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
          T::mma(o[r][d], a[r], b[0], b[1]);
          T::mma(o[r][d + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  FW_METHOD TilePlace place_of(int tile, int r) const {
    const int my_lane = lane();
    return {batch,
            head,
            block * C::kTileRows + row_group() * C::kWarpRows + r * 16 + my_lane / 4,
            tile * C::kKeys + (my_lane & 3) * 2,
            queries,
            keys};
  }

  FW_METHOD void modify_and_mask(int tile) {
    if constexpr (kModified) {
      FW_UNROLL for (int r = 0; r < kRowTiles; ++r) modify_scores(s[r], p, place_of(tile, r));
    }
    if (sees_all(tile)) return;
    const int lane = this->lane();
    const int first_key = tile * C::kKeys + (lane & 3) * 2, row = row_group() * C::kWarpRows + lane / 4;
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      const int shift = row + r * 16 - first_key;
      mask_scores(s[r], edges.left + shift, edges.right + shift + 1, keys - first_key);
    }
  }

  // S becomes P. A row's weights are relative to a reference, not to the maximum: it is raised, and what has been
  // summed scaled down, only when some score of the warp exceeds it by kSlack. Few tiles do, and the others need
  // neither shuffles nor products over O.
  FW_METHOD void softmax(int tile) {
    const float scale = kModified ? 1.f : p.softmax_scale * kLog2e;
    float highest[kRowTiles][2];
    bool exceeds = false;
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        float x = s[r][0][2 * h];
        FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
          FW_UNROLL for (int e = 0; e < 2; ++e) x = fmaxf(x, s[r][n][2 * h + e]);
        }
        highest[r][h] = x * scale;
        exceeds |= highest[r][h] > reference[r][h] + kSlack;
      }
    }
    if (any_lane(exceeds)) raise_references(highest);
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        const float shift = -reference_of(reference[r][h]);
        float x = 0.f;
        FW_UNROLL for (int n = 0; n < kKeyTiles; ++n) {
          FW_UNROLL for (int e = 0; e < 2; ++e) {
            float& weight = s[r][n][2 * h + e];
            weight = exp2_fast(kModified ? weight + shift : weight * scale + shift);
            x += weight;
          }
        }
        sum[r][h] += x;
      }
      if constexpr (kModified) {
        if (p.dropout_threshold) drop_weights(s[r], dropped_elements<kKeyTiles>(p, place_of(tile, r)));
      }
    }
  }

  FW_METHOD void raise_references(const float (&highest)[kRowTiles][2]) {
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        float x = highest[r][h];
        x = fmaxf(x, exchange(x, 1));
        x = fmaxf(x, exchange(x, 2));
        const float raised = fmaxf(x, reference[r][h]);
        const float factor = raised > reference[r][h] ? exp2_fast(reference[r][h] - raised) : 1.f;
        reference[r][h] = raised;
        sum[r][h] *= factor;
        FW_UNROLL for (int d = 0; d < kColumnTiles; ++d) {
          o[r][d][2 * h] *= factor;
          o[r][d][2 * h + 1] *= factor;
        }
      }
    }
  }

  // O and LSE. O goes through the rows of Q that belong to this warp, so that a thread stores 16 bytes.
  FW_METHOD void finish() {
    const Sequence seq = locate(task_index_again());  // cheaper than registers that hold it through the loop
    const int lane = this->lane(), part = column_part();
    const int row0 = row_group() * C::kWarpRows, first_query = block * C::kTileRows + row0;
    const uint32_t staged = shared + row0 * LayoutQk::kPitch;
    wave_barrier();  // all lanes have read their queries
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      FW_UNROLL for (int h = 0; h < 2; ++h) {
        float total = sum[r][h];
        total += exchange(total, 1);
        total += exchange(total, 2);
        const RowEnd end = finish_row<kModified>(p, head, reference[r][h], total);
        const int row = r * 16 + h * 8 + lane / 4;
        if (p.lse.data && (lane & 3) == 0 && part == 0 && first_query + row < queries) {
          static_cast<float*>(p.lse.data)[query_offset(p.lse, seq, first_query + row, head)] = end.lse;
        }
        if (p.o.dtype == abi::kF32) {
          store_floats(r, h, first_query + row < queries, query_offset(p.o, seq, first_query + row, head), end.scale);
          continue;
        }
        FW_UNROLL for (int d = 0; d < kColumnTiles; ++d) {
          const int chunk = part * kColumnTiles + d;
          store_shared(staged + LayoutQk::offset(row, chunk) + (lane & 3) * 4,
                       T::pack(o[r][d][2 * h] * end.scale, o[r][d][2 * h + 1] * end.scale));
        }
      }
    }
    if (p.o.dtype == abi::kF32) return;
    wave_barrier();
    char* const base = static_cast<char*>(p.o.data) + query_offset(p.o, seq, first_query, head) * 2;
    FW_NO_UNROLL for (int i = lane; i < C::kWarpRows * kColumnTiles; i += kWave) {
      const int row = i / kColumnTiles, chunk = part * kColumnTiles + i % kColumnTiles, column = chunk * 8;
      if (first_query + row >= queries || column >= p.dim_v) continue;
      const uint4 x = load_shared(staged + LayoutQk::offset(row, chunk));
      char* const to = base + row * p.o.stride[1] * 2 + column * 2;
      if (!kModified || vectors) {
        *reinterpret_cast<uint4*>(to) = x;
      } else {
        const uint32_t words[4] = {x.x, x.y, x.z, x.w};
        FW_UNROLL for (int e = 0; e < 8; ++e) {
          if (column + e < p.dim_v) reinterpret_cast<uint16_t*>(to)[e] = uint16_t(words[e / 2] >> e % 2 * 16);
        }
      }
    }
  }

  // One row of O in fp32, straight from registers.
  FW_METHOD void store_floats(int r, int h, bool exists, int64_t offset, float factor) const {
    const int lane = this->lane(), part = column_part();
    FW_UNROLL for (int d = 0; d < kColumnTiles; ++d) {
      const int column = (part * kColumnTiles + d) * 8 + (lane & 3) * 2;
      FW_UNROLL for (int e = 0; e < 2; ++e) {
        if (exists && column + e < p.dim_v)
          static_cast<float*>(p.o.data)[offset + column + e] = o[r][d][2 * h + e] * factor;
      }
    }
  }

  FW_METHOD void run() {
    FW_UNROLL for (int r = 0; r < kRowTiles; ++r) {
      FW_UNROLL for (int h = 0; h < 2; ++h) reference[r][h] = -kInf, sum[r][h] = 0.f;
      FW_UNROLL for (int d = 0; d < kColumnTiles; ++d) { FW_UNROLL for (int i = 0; i < 4; ++i) o[r][d][i] = 0.f; }
    }
    if (first_tile < tiles) {
      load_k(first_tile);
      if constexpr (C::kStages == 2) load_v(first_tile);
      commit_copies();
    }
    if constexpr (C::kStages == 1)
      walk_keys();
    else
      walk_keys_ahead();
    finish();
  }

  // One buffer each: V arrives while scores are computed, the next K under the softmax and P V.
  FW_METHOD void walk_keys() {
    FW_NO_UNROLL for (int tile = first_tile; tile < tiles; ++tile) {
      wait_copies<0>();
      workgroup_barrier();
      load_v(tile);
      commit_copies();
      const bool some = sees(tile);
      if (some) {
        multiply_qk(tile);
        modify_and_mask(tile);
      }
      wait_copies<0>();
      workgroup_barrier();
      if (tile + 1 < tiles) {
        load_k(tile + 1);
        commit_copies();
      }
      if (some) {
        softmax(tile);
        multiply_pv(tile);
      }
    }
  }

  // Two buffers each: K and V of the next tile arrive while this one is computed.
  FW_METHOD void walk_keys_ahead() {
    FW_NO_UNROLL for (int tile = first_tile; tile < tiles; ++tile) {
      wait_copies<0>();
      workgroup_barrier();
      if (tile + 1 < tiles) {
        load_k(tile + 1);
        load_v(tile + 1);
        commit_copies();
      }
      if (sees(tile)) {
        multiply_qk(tile);
        modify_and_mask(tile);
        softmax(tile);
        multiply_pv(tile);
      }
    }
  }
};

}  // namespace flashwave

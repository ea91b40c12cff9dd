// One workgroup's share of the forward pass: Config::kTileRows queries of one head against the keys they see.
#pragma once

#include "kernels/common/row_end.h"
#include "kernels/common/window.h"
#include "kernels/rdna/score.h"
#include "kernels/rdna/tile.h"

namespace flashwave {

// T: element type; C: Config; kModified: with score modifiers, sinks and dropout. Then scores are in units of log2 when
// the reference is subtracted, in an instruction of its own; else they are plain products.
template <class T, class C, bool kModified>
struct Forward {
  static constexpr int kQueryTiles = C::kQueryTiles, kKeyTiles = C::kKeyTiles, kAhead = C::kAhead;
  static constexpr int kChunkFragments = C::kFragmentsK + C::kFragmentsV;
  static constexpr int kTileFragments = C::kChunks * kChunkFragments;
  // The next tile's stores precede the barrier by this many fragments, so that they are done when it is reached.
  static constexpr int kStoreLead = C::kFragmentsV - kAhead < 6 ? C::kFragmentsV - kAhead : 6;

  const Params& p;
  const Schedule& schedule;
  char* const lds;
  const int lane, wave;

  Sequence seq;
  int head, keys, row0;  // row0: the wave's first query
  int first_tile, tiles;
  int origin;  // key of the first row of tile 0: 0, or below if paged and padded at the left
  // Chunks: `seen` have a key that some query of the wave sees, of `clean` ones all queries see all keys. One
  // comparison each, so that the decision stays scalar.
  struct Range {
    int first;
    uint32_t size;
    FW_METHOD bool contains(int key) const { return uint32_t(key - first) < size; }
  };
  Range seen, clean;
  Edges edges;        // from the wave's first query on
  TileCursor cursor;  // the tile that is being loaded
  KeyLoader<C> k;
  ValueLoader<C> v;
  uint32_t fragments;   // address of this lane's share of the first fragment of the tile
  uint32_t queries_at;  // the same for the queries in LDS

  Fragment q[kQueryTiles][C::kQueryFragments], ahead[kAhead], b[kQueryTiles][kKeyTiles];  // b: P^T of the chunk
  F32x8 o[kQueryTiles][C::kStepsV];
  // Minus the reference. Plain: 8 equal registers, the C operand of the first product, so that subtracting costs
  // nothing.
  Vec<float, kModified ? 1 : 8> shift[kQueryTiles];
  float sum[kQueryTiles];  // of this half's keys
  float scale;             // of scores to log2
  uint32_t ready;          // all ones: every row that has met a key has a reference

  FW_METHOD Forward(const GpuArguments& args, char* shared)
      : p(args.params), schedule(args.schedule), lds(shared), lane(lane_index()), wave(wave_index()) {}

  // Blocks of queries run fastest within the heads that share a key head, so that K and V stay in the last-level cache;
  // the last blocks, which see the most keys under a causal mask, start first. There are fewer than 2^32 tasks: their
  // queries alone would exceed any memory.
  FW_METHOD bool choose_task() {
    if (task_index() >= schedule.tasks) return false;
    const uint32_t task = uint32_t(task_index()), group = uint32_t(p.heads_q / p.heads_k);
    const uint32_t blocks = uint32_t(p.seqlen_q + C::kTileRows - 1) / C::kTileRows;
    const uint32_t in_group = task / group, of_head = in_group / blocks, batch = of_head / uint32_t(p.heads_k);
    const uint32_t head_k = of_head - batch * uint32_t(p.heads_k);
    head = int(head_k * group + (task - in_group * group));
    const int block = int(blocks - 1 - (in_group - of_head * blocks));
    seq = sequence_of(p, int32_t(batch));
    keys = int(seq.keys);
    if (int64_t{block} * C::kTileRows >= seq.queries) return false;
    choose_keys(block);
    cursor.start(p, seq, origin + first_tile * C::kKeys);
    k.start(p, seq, int(head_k), origin + first_tile * C::kKeys, wave, lane);
    v.start(p, seq, int(head_k), origin + first_tile * C::kKeys, wave, lane);
    return true;
  }

  FW_METHOD void choose_keys(int block) {
    const int64_t diagonal = int64_t{block} * C::kTileRows + seq.keys - seq.queries;
    const Edges all = edges_of_block(p, diagonal, keys, C::kTileRows);
    const auto first_of = [&](int row) { return here(all.first(row)); };
    const auto end_of = [&](int row) { return here(all.end(row, keys)); };

    const int queries = int(seq.queries) - block * C::kTileRows,
              last = here(queries < C::kTileRows ? queries : C::kTileRows) - 1;
    // Tiles are aligned to pages.
    const int from = first_of(0), to = end_of(last);
    origin = p.block_table ? -int(seq.k_row % 64) : 0;
    first_tile = (from - origin) / C::kKeys;
    tiles = to > from ? (to - origin + C::kKeys - 1) / C::kKeys : first_tile;

    const int upper = wave * C::kWaveRows,
              lower = here(upper + C::kWaveRows - 1 < last ? upper + C::kWaveRows - 1 : last);
    row0 = block * C::kTileRows + upper;
    edges = all.from(upper);
    const int span = upper <= lower ? end_of(lower) - first_of(upper) : 0;
    const int inner = end_of(upper) - first_of(lower) - C::kChunk + 1;
    seen = {first_of(upper) - (C::kChunk - 1), span > 0 ? uint32_t(span) + C::kChunk - 1 : 0};
    clean = {first_of(lower), inner > 0 ? uint32_t(inner) : 0};
  }

  // Fragment g of a tile, in the order of use: of each chunk those of K, then those of V. other = kBuffer: of the next
  // tile.
  FW_METHOD Fragment fragment(int g, uint32_t other = 0) {
    const int chunk = g / kChunkFragments, f = g % kChunkFragments;
    if (f < C::kFragmentsK) {
      const int tile = chunk * kKeyTiles + f % kKeyTiles, step = f / kKeyTiles;
      return read_fragment(lds + (fragments ^ other) + (tile * C::kStepsQk + step) * kFragmentBytes);
    }
    const int tile = chunk * kKeyTiles + (f - C::kFragmentsK) / C::kStepsV, step = (f - C::kFragmentsK) % C::kStepsV;
    return read_fragment(lds + (fragments ^ other) + C::kBytesK + (tile * C::kStepsV + step) * kFragmentBytes);
  }

  FW_METHOD Fragment query(int step) {
    return read_fragment(lds + queries_at + C::kOffsetQ + (step - C::kQueryFragments) * kFragmentBytes);
  }

  // Scores of keys that the row does not see become -inf. Only in chunks that cross an edge, which are few: all of it
  // is computed here.
  FW_METHOD void mask(F32x8* s, int t, int key0) {
    int row = lane;
    hold(row);
    const int half = kRowsOfHalf * (row >> 4), query = 16 * t + (row & 15);
    const int least = edges.first(query) - key0 - half, end = edges.end(query, keys) - key0 - half;
    const uint32_t count = end > least ? uint32_t(end - least) : 0;
    FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) {
      FW_UNROLL for (int r = 0; r < 8; ++r) {
        s[kt][r] = uint32_t(16 * kt + kRowsOfRegister * r - least) < count ? s[kt][r] : -kInf;
      }
      hold(s[kt]);
    }
  }

  FW_METHOD F32x8 start(int t) {
    if constexpr (kModified)
      return F32x8(0.f);
    else
      return shift[t];
  }

  FW_METHOD TilePlace place(int t, int key) {
    int row = lane;
    hold(row);
    const int query = row0 + 16 * t + (row & 15);
    return {seq.b, head, query, key + kRowsOfHalf * (row >> 4), int(seq.queries), keys};
  }

  // New references from the maximum of this chunk, for rows that have none yet or whose weights would overflow.
  FW_METHOD void rebase(F32x8* s, int t) {
    float top = s[0][0];
    FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) {
      FW_UNROLL for (int r = 0; r < 8; ++r) top = __builtin_fmaxf(top, s[kt][r]);
    }
    top = __builtin_fmaxf(top, other_half(top));
    if (kModified) top += shift[t][0];
    const bool fresh = total(t) == 0.f;
    const float want = (T::gain + T::headroom) * rcp_fast(scale);  // what the maximum should become
    const float change = top == -kInf || (!fresh && top < want) ? 0.f : want - top;
    const float factor = fresh ? 1.f : exp2_fast(change * scale);
    sum[t] *= factor;
    if (ballot(factor != 1.f)) {
      FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) {
        o[t][i] *= factor;
        hold(o[t][i]);
      }
    }
    if constexpr (kModified) {
      shift[t] += change;
      hold(shift[t]);
    } else {
      F32x2 changes = change;  // in two registers, or the sums would not pair
      hold(changes);
      const F32x8 wide = __builtin_shufflevector(changes, changes, 0, 1, 0, 1, 0, 1, 0, 1);
      shift[t] += wide;
      hold(shift[t]);
      FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) {
        s[kt] += wide;
        hold(s[kt]);
      }
    }
  }

  // The row's sum, of both halves.
  FW_METHOD float total(int t) const { return sum[t] + other_half(sum[t]); }

  // Scores to weights, packed unless some may yet be dropped, and this half's sum of them. The stages keep equal
  // operations on consecutive registers together, which is what pairing needs.
  FW_METHOD float softmax(F32x8* s, int t, U32x4* weights) {
    if constexpr (kModified) {
      FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) s[kt] += shift[t][0];
    } else {
      const float c = here(scale);
      FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) s[kt] *= c;
    }
    schedule_fence();
    FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) {
      FW_UNROLL for (int r = 0; r < 8; ++r) s[kt][r] = exp2_fast(s[kt][r]);
    }
    schedule_fence();
    if constexpr (!kModified) {
      FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) {
        T::pack_weights(s[kt], weights[kt]);
        hold(weights[kt]);
      }
      schedule_fence();
    }
    F32x8 x = s[0];
    FW_UNROLL for (int kt = 1; kt < kKeyTiles; ++kt) x += s[kt];
    if (kKeyTiles > 1) hold(x);
    F32x4 y = x.lo + x.hi;
    hold(y);
    const F32x2 z = y.lo + y.hi;
    return z.x + z.y;
  }

  // P^T as the B operand. RDNA4: as it is. RDNA3: both halves need the keys of both, exchanged through LDS, which costs
  // no vector instruction; the keys come in the order in which V was stored.
  FW_METHOD Fragment operand(U32x4 weights, int slot) {
#if defined(__GFX12__)
    (void)slot;
    return weights;
#else
    char* const mine = lds + C::kOffsetP + wave * C::kBytesP + slot * kFragmentBytes;
    *reinterpret_cast<U32x4*>(mine + lane * 16) = weights;
    wave_fence();
    return read_fragment(mine + (lane & 15) * 16);
#endif
  }

  // One chunk of keys: S^T, softmax, O^T but for the last kAhead products, which `finish` does. Reads of LDS run kAhead
  // fragments ahead of the products.
  template <int kChunkIndex>
  FW_METHOD void chunk(int key0) {
    constexpr int kFirst = kChunkIndex * kChunkFragments;
    Fragment f[kChunkFragments + kAhead];
    F32x8 s[kQueryTiles][kKeyTiles];
    U32x4 weights[kQueryTiles][kKeyTiles];
    float part[kQueryTiles];
    uint32_t optimistic = ready;
    for (;;) {
      FW_UNROLL for (int i = 0; i < kAhead; ++i) f[i] = ahead[i];
      Fragment late[C::kStepsQk];  // fragments of Q from LDS
      FW_UNROLL for (int i = 0; i < C::kFragmentsK; ++i) {
        f[i + kAhead] = fragment(kFirst + i + kAhead);
        const int kt = i % kKeyTiles, step = i / kKeyTiles;
        const int soon = step + kAhead;
        if (soon >= C::kQueryFragments && soon < C::kStepsQk) late[soon] = query(soon);
        FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
          const Fragment column = step < C::kQueryFragments ? q[t][step % C::kQueryFragments] : late[step];
          s[t][kt] = T::multiply(f[i], column, step ? s[t][kt] : start(t));
        }
        schedule_fence();
      }
      FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
        FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) hold(s[t][kt]);
      }
      if constexpr (kModified) {
        FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
          FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) modify_scores(place(t, key0 + 16 * kt), s[t][kt]);
        }
      }
      if (__builtin_expect(!clean.contains(key0), 0)) {
        FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) mask(s[t], t, key0);
      }
      if (__builtin_expect(optimistic == 0, 0)) {
        FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) rebase(s[t], t);
      }
      float worst = 0.f;
      FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
        part[t] = softmax(s[t], t, weights[t]);
        worst = t ? worst + part[t] : part[t];
      }
      if (__builtin_expect((ballot(!(worst <= T::limit)) & optimistic) == 0, 1)) break;
      // Overflow: the chunk again, S included (keeping it would cost registers), with new references.
      optimistic = 0;
      FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = fragment(kFirst + i);
    }
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) sum[t] += part[t];
    if (__builtin_expect(optimistic == 0, 0)) note_ready(key0 + C::kChunk);
    if constexpr (C::kChunks == 1) turn();
    if constexpr (kModified) {
      FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
        FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) {
          if (p.dropout_threshold) drop_weights(place(t, key0 + 16 * kt), s[t][kt]);
          T::pack_weights(s[t][kt], weights[t][kt]);
        }
      }
    }
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
      FW_UNROLL for (int kt = 0; kt < kKeyTiles; ++kt) b[t][kt] = operand(weights[t][kt], t * kKeyTiles + kt);
    }
    schedule_fence();
    FW_UNROLL for (int i = C::kFragmentsK; i < kChunkFragments - kAhead; ++i) {
      const int next = kFirst + i + kAhead;
      if (next == kTileFragments - kStoreLead) {
        hold_output();
        finish_stores();
      }
      f[i + kAhead] = fragment(next);
      accumulate(f[i], i - C::kFragmentsK);
    }
    FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = f[kChunkFragments - kAhead + i];
  }

  // The last products of a chunk (none of a wave that only moved data: zeros), while the first fragments of the next
  // one are read.
  template <int kChunkIndex>
  FW_METHOD void finish() {
    constexpr bool kLast = kChunkIndex == C::kChunks - 1;
    FW_UNROLL for (int i = 0; i < kAhead; ++i) {
      const Fragment next = fragment(kLast ? i : (kChunkIndex + 1) * kChunkFragments + i, kLast ? C::kBuffer : 0);
      accumulate(ahead[i], C::kFragmentsV - kAhead + i);
      ahead[i] = next;
    }
    hold_output();
  }

  FW_METHOD void hold_output() {
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) { FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) hold(o[t][i]); }
  }

  // O^T += V^T P^T for fragment i of V.
  FW_METHOD void accumulate(Fragment a, int i) {
    const int kt = i / C::kStepsV, step = i % C::kStepsV;
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) o[t][step] = T::multiply(a, b[t][kt], o[t][step]);
    schedule_fence();
  }

  // Rows whose window starts later, or whose keys so far were all hidden by -inf, still need a reference: the next
  // chunk looks again, unless they see no more keys.
  FW_METHOD void note_ready(int next) {
    uint32_t missing = 0;
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
      int row = lane;
      hold(row);
      const int query = 16 * t + (row & 15);
      const bool more = edges.end(query, keys) > next && row0 + query < int(seq.queries);
      missing |= ballot(more && total(t) == 0.f);
    }
    ready = missing == 0 ? ~0u : 0;
  }

  // Halfway through a tile: K's registers are V's from here on.
  FW_METHOD void turn() {
    if constexpr (C::kTakeTurns) {
      k.store(lds, lane);
      v.load(cursor, keys, lane);
      schedule_fence();
    }
  }

  // The next stores are to the other buffer.
  FW_METHOD void fill_other() {
    k.target ^= C::kBuffer;
    v.target = kRdna4 && C::kLoadsK == C::kLoadsV ? k.target : v.target ^ C::kBuffer;
  }

  FW_METHOD void finish_stores() {
    if (!C::kTakeTurns) k.store(lds, lane);
    v.store(lds + C::kBytesK, lane);
  }

  template <int kChunkIndex, int kCount>
  FW_METHOD void chunks(int tile_key) {
    if constexpr (kCount > 0) {
      constexpr bool kLast = kChunkIndex == C::kChunks - 1;
      const int key0 = tile_key + kChunkIndex * C::kChunk;
      if (seen.contains(key0)) {
        chunk<kChunkIndex>(key0);
        if constexpr (!kLast) finish<kChunkIndex>();
      } else if constexpr (kLast) {  // the wave only moves data
        if constexpr (C::kChunks == 1) turn();
        finish_stores();
        FW_UNROLL for (int i = 0; i < kAhead; ++i) {
          ahead[i] = Fragment(0);
          hold(ahead[i]);  // here alone, not before the branch
        }
        FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
          b[t][kKeyTiles - 1] = Fragment(0);
          hold(b[t][kKeyTiles - 1]);
        }
      } else {
        FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = fragment((kChunkIndex + 1) * kChunkFragments + i);
      }
      if constexpr (kLast) {
        workgroup_barrier();  // every read of this tile has been issued, every store of the next one
        finish<kChunkIndex>();
      }
      chunks<kChunkIndex + 1, kCount - 1>(tile_key);
    }
  }

  FW_METHOD void tile(int t) {
    const int tile_key = origin + t * C::kKeys;
    cursor.advance(C::kKeys);
    k.rows.advance(cursor, C::kKeys);
    v.rows.advance(cursor, C::kKeys);
    k.load(cursor, keys);
    if constexpr (!C::kTakeTurns) v.load(cursor, keys, lane);
    schedule_fence();
    chunks<0, (C::kChunks + 1) / 2>(tile_key);
    if constexpr (C::kChunks > 1) {
      turn();
      chunks<(C::kChunks + 1) / 2, C::kChunks / 2>(tile_key);
    }
    fragments ^= C::kBuffer;
    fill_other();
  }

  // The wave's rows of q, o or lse (element size `bytes`) from tile t of 16 on; `columns` bytes of a row.
  FW_METHOD Buffer rows_of(const abi::Tensor& tensor, int t, int bytes, int columns) {
    const int64_t row = row0 + 16 * t;
    int64_t rows = seq.queries - row;
    rows = rows < 16 ? rows : 16;
    const uint32_t size = rows > 0 ? uint32_t(rows - 1) * uint32_t(tensor.stride[1] * bytes) + uint32_t(columns) : 0;
    return make_buffer(static_cast<char*>(tensor.data) + query_offset(tensor, seq, row, head) * bytes, size);
  }

  FW_METHOD void load_queries() {
    const uint32_t stride = uint32_t(p.q.stride[1] * 2);
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
      const Buffer b = rows_of(p.q, t, 2, p.dim_qk * 2);
      const int half = lane >> 4;
      FW_UNROLL for (int i = C::kQueryFragments; i < C::kStepsQk; ++i) {
        U32x4 unit = buffer_load16(b, uint32_t(lane & 15) * stride + half * 16 + i * 32);
        FW_UNROLL for (int w = 0; w < 4; ++w) unit[w] = 16 * i + 8 * half + 2 * w < p.dim_qk ? unit[w] : 0;
        char* const to = lds + C::kOffsetQ + wave * C::kBytesQ + (i - C::kQueryFragments) * kFragmentBytes;
        *reinterpret_cast<U32x4*>(to + lane * 16) = unit;
      }
      const uint32_t at = uint32_t(lane & 15) * stride + (kRdna4 ? half * 16 : 0);
      FW_UNROLL for (int i = 0; i < C::kQueryFragments; ++i) {
#if defined(__GFX12__)
        q[t][i] = buffer_load16(b, at + i * 32);
#else
        q[t][i] = joined(buffer_load16(b, at + i * 32), buffer_load16(b, at + i * 32 + 16));
#endif
      }
      if (p.dim_qk == C::kDimQk) continue;
      FW_UNROLL for (int i = 0; i < C::kQueryFragments; ++i) {
        hold(q[t][i]);
        const int valid = p.dim_qk - 16 * i - (kRdna4 ? 8 * (lane >> 4) : 0);
        FW_UNROLL for (int w = 0; w < int(sizeof(Fragment) / 4); ++w) q[t][i][w] = 2 * w < valid ? q[t][i][w] : 0;
        hold(q[t][i]);
      }
    }
  }

  // A lane's columns of fragments of O^T, in pairs of elements. Values out of the quick rounding's range, if any, show
  // in a sum of products, each of two of them.
  FW_METHOD static void pack_output(const F32x8* x, U32x4* packed) {
    constexpr auto place = ValueLoader<C>::register_of;
    if constexpr (T::kQuickRounding && C::kDimV <= 128) {  // else there is no room for both
      float all[4] = {};
      FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) {
        const F32x8 y = T::rounded(x[i]);
        FW_UNROLL for (int c = 0; c < 4; ++c) packed[i][c] = T::high_halves(y[place(2 * c)], y[place(2 * c + 1)]);
        FW_UNROLL for (int r = 0; r < 4; ++r) all[r] = __builtin_fmaf(y[r], y[r + 4], all[r]);
      }
      const float sum = (all[0] + all[1]) + (all[2] + all[3]);
      if (__builtin_expect(ballot(!(__builtin_fabsf(sum) < kInf)) == 0, 1)) return;
    }
    FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) {
      FW_UNROLL for (int c = 0; c < 4; ++c) packed[i][c] = T::pack(x[i][place(2 * c)], x[i][place(2 * c + 1)]);
    }
  }

  FW_METHOD void store_rows(int t) {
    const float total = this->total(t);
    const float reference = -shift[t][0] * scale;
    const RowEnd end =
        kModified ? finish_row(p, head, total == 0.f ? -kInf : reference, total) : end_of_row<false>(reference, total);
    const int half = lane >> 4;
    // The descriptor ends with the last query, but a tensor of one row may have any stride, 0 included.
    const bool exists = row0 + 16 * t + (lane & 15) < int(seq.queries);
    if (p.lse.data && half == 0 && exists) {
      buffer_store4(rows_of(p.lse, t, 4, 4), uint32_t(lane) * uint32_t(p.lse.stride[1] * 4), bits_of(end.lse));
    }
    F32x2 factors = end.scale * exp2_fast(T::gain);  // in two registers, or the products would not pair
    hold(factors);
    FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) {
      o[t][i] *= __builtin_shufflevector(factors, factors, 0, 1, 0, 1, 0, 1, 0, 1);
      hold(o[t][i]);
    }
    if (p.o.dtype == abi::kF32) return store_floats(t, exists);
    const Buffer b = rows_of(p.o, t, 2, p.dim_v * 2);
    const uint32_t at = exists ? uint32_t(lane & 15) * uint32_t(p.o.stride[1] * 2) + half * 16 : kNowhere;
    U32x4 packed[C::kStepsV];
    pack_output(o[t], packed);
    if (p.dim_v == C::kDimV) {
      FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) { buffer_store16(b, at + i * 32, packed[i]); }
    } else {
      FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) {
        FW_UNROLL for (int c = 0; c < 4; ++c) {
          const uint32_t to = 16 * i + 8 * half + 2 * c < p.dim_v ? at + i * 32 + c * 4 : kNowhere;
          buffer_store4(b, to, packed[i][c]);
        }
      }
    }
  }

  FW_METHOD void store_floats(int t, bool exists) {
    constexpr auto place = ValueLoader<C>::register_of;
    const Buffer b = rows_of(p.o, t, 4, p.dim_v * 4);
    const int half = lane >> 4;
    const uint32_t at = exists ? uint32_t(lane & 15) * uint32_t(p.o.stride[1] * 4) + half * 32 : kNowhere;
    FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) {
      FW_UNROLL for (int c = 0; c < 8; c += 4) {
        U32x4 x;
        FW_UNROLL for (int e = 0; e < 4; ++e) x[e] = bits_of(float(o[t][i][place(c + e)]));
        if (p.dim_v == C::kDimV) {
          buffer_store16(b, at + i * 64 + c * 4, x);
        } else {
          FW_UNROLL for (int e = 0; e < 4; ++e) {
            const uint32_t to = 16 * i + 8 * half + c + e < p.dim_v ? at + i * 64 + (c + e) * 4 : kNowhere;
            buffer_store4(b, to, x[e]);
          }
        }
      }
    }
  }

  FW_METHOD void run() {
    if (!choose_task()) return;
    scale = kModified ? 1.f : uniform(p.softmax_scale * kLog2e);
    k.load(cursor, keys);
    v.load(cursor, keys, lane);
    load_queries();
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) {
      FW_UNROLL for (int i = 0; i < C::kStepsV; ++i) o[t][i] = F32x8(0.f);
      shift[t] = 0.f;
      sum[t] = 0.f;
    }
    ready = 0;
    fragments = operand_base(lane);
    queries_at = operand_base(lane) + wave * C::kBytesQ;
    k.store(lds, lane);
    v.store(lds + C::kBytesK, lane);
    workgroup_barrier();
    fill_other();
    FW_UNROLL for (int i = 0; i < kAhead; ++i) ahead[i] = fragment(i);
    FW_NO_UNROLL for (int t = first_tile; t < tiles; ++t) tile(t);
    FW_UNROLL for (int t = 0; t < kQueryTiles; ++t) store_rows(t);
  }
};

}  // namespace flashwave

// Forward attention for a handful of query rows (decoding): K and V stream once from global memory into the operands of
// 16x16 matrix instructions, no LDS between. CDNA and RDNA.
//
//   S^T = K Q^T     A: 16 keys, B: 16 query rows. A lane has one query row and kRegisters keys of a tile in it.
//   O^T = V^T P^T   P is S^T's accumulator, converted in place. A lane reads 8 (4) consecutive columns of each key in
//                   its slots of the contraction, and v_perm pairs them up: column j of every lane makes tile j.
//
// The rows of a GQA group are packed: row = query * group + head in the group. A task has up to kDecodeRows rows of one
// (sequence, key head) and one part of its keys. Each wave has 16 rows; waves beyond the rows' share the keys: each
// takes every n-th step, and their results are merged through LDS in a fixed order at the end.
//
//   task = ((sequence * heads_k + key head) * row_blocks + row_block) * splits + split
//   row_blocks = ceil(seqlen_q * group / kDecodeRows), schedule.rows_per_task = kDecodeRows
//   split s has keys s * keys_per_split and on; the last has all that are left. keys_per_split: a multiple of tile_k.
//
// Without a workspace O and LSE are written, else PartialResults (kernels/abi/partials.h), for combine.hip.
//
// Rows of Q, K and V are read 16 bytes (V of up to 64 columns: 8 bytes) at a time, 4-byte alignment, from 8 columns on.
// Where a head dimension is smaller than kDim, the reads past its end are moved back inside the row: see
// column_inside().
#include "kernels/abi/features.h"
#include "kernels/abi/partials.h"
#include "kernels/amd/decode_task.h"
#include "kernels/common/part.h"
#include "kernels/common/row_end.h"

namespace flashwave {

// Tiles of 16 keys in a step. In flight while a wave computes: 8 to 16 KB of a head dimension of 128 on CDNA, 4 to 8 on
// RDNA, where a wave has half the lanes.
#if defined(__GFX9__)
constexpr int kTiles = 2;
#else
constexpr int kTiles = 1;
#endif
constexpr int kStepKeys = 16 * kTiles;
constexpr int kTilesPerOperand = kElements / kRegisters;
static_assert(kTiles % kTilesPerOperand == 0);

// The reference of the online softmax is moved only when a score exceeds it by this much (in units of log2).
constexpr float kSlack = 6.f;
// fp16 weights are 2^8 times larger: gfx90a's matrix instructions take denormals as 0, and 2^-14 is not that small.
template <class T>
constexpr float kPeak = __is_same(T, _Float16) ? 8.f : 0.f;

// Elements kElements * half and on of 8.
FW_DEVICE Operand part_of(U32x4 x, int half) {
  Operand part;
  FW_UNROLL for (int i = 0; i < kElements / 2; ++i) part[i] = x[half * (kElements / 2) + i];
  return part;
}

template <class T, int kDim, bool kModified>
struct Decode {
  static constexpr int kPiece =
      kDim < 128 || (kDim > 128 && kWave == 32) ? 64 : 128;  // columns of K and V held at a time
  static constexpr int kPieces = kDim / kPiece;
  static constexpr int kLoads = kPiece / (8 * kGroups);  // reads of K per row and piece
  static constexpr int kWidth = kPiece / 16;             // columns of V a lane reads
  // Where O fills half of the registers, Q waits in LDS.
  static constexpr bool kQueriesInLds = kDim / 16 * kRegisters > 64 && kWave == 32;

  struct Lds {
    union {
      U32x4 queries[kQueriesInLds ? kDecodeRowTiles : 1][kPieces * kLoads][kWave];
      Accumulator o[kDecodeWaves / 2][kWidth][kWave];
    };
    float m[kDecodeWaves / 2][kWave], l[kDecodeWaves / 2][kWave];
    RowOutput outputs[kDecodeWaves][16];  // not needed in the loop, and there are no registers for it
  };

  const Params& p;
  Lds& lds;
  const KeyRows<kTiles> rows;
  const int row_tile;
  int k_column, k_columns_left, v_column, v_columns_left;

  U32x4 q[kQueriesInLds ? 1 : kPieces * kLoads];
  U32x4 k[kTiles][kLoads];
  Vec<uint32_t, kWidth / 2> v[kTiles][kRegisters];
  Accumulator o[kPieces][kWidth];
  float reference, bound, l;  // of this lane's row; l: the sum over this lane's keys alone

  FW_METHOD Decode(const Params& params, Lds& shared, const Sequence& seq, int32_t head, int tile)
      : p(params), lds(shared), rows(params, seq, head), row_tile(tile), reference(0.f), bound(-kInf), l(0.f) {
    k_column = column_inside(8 * group_index(), p.dim_qk);
    k_columns_left = p.dim_qk - 8 - k_column;
    v_column = column_inside(kWidth * (lane_index() & 15), p.dim_v, kWidth);
    v_columns_left = p.dim_v - kWidth - v_column;
    FW_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      FW_UNROLL for (int j = 0; j < kWidth; ++j) o[piece][j] = Accumulator{};
    }
  }

  // Bytes from a row's start to the lane's n-th read of it.
  FW_METHOD uint64_t k_offset(int n) const {
    const int advance = 8 * kGroups * n;
    return uint64_t(uint32_t(k_column + (advance < k_columns_left ? advance : k_columns_left))) * 2;
  }
  FW_METHOD uint64_t v_offset(int piece) const {
    const int advance = kPiece * piece;
    return uint64_t(uint32_t(v_column + (advance < v_columns_left ? advance : v_columns_left))) * 2;
  }

  // Columns that a neighbour has too, or that do not exist, are 0: whatever K has there does not count.
  FW_METHOD void load_queries(uint64_t row, bool exists) {
    U32x4 read[kPieces * kLoads] = {};
    if (exists) {
      FW_UNROLL for (int n = 0; n < kPieces * kLoads; ++n) read[n] = load_global<4>(row + k_offset(n));
    }
    FW_UNROLL for (int n = 0; n < kPieces * kLoads; ++n) {
      const int skip = 8 * (kGroups * n + group_index()) - int(k_offset(n) / 2);
      FW_UNROLL for (int i = 0; i < 4; ++i) read[n][i] = 2 * i < skip ? 0 : read[n][i];
      if constexpr (kQueriesInLds) {
        lds.queries[row_tile][n][lane_index()] = read[n];
      } else {
        q[n] = read[n];
      }
    }
  }
  FW_METHOD U32x4 queries(int n) {
    if constexpr (kQueriesInLds) {
      return lds.queries[row_tile][n][lane_index()];
    } else {
      hold_operand(q[n]);  // or gfx11's widened operands would be made before the loop and kept there
      return q[n];
    }
  }

  FW_METHOD void load_keys(const KeyStep<kTiles>& step, int piece) {
    hold_operand(k_columns_left);  // and the offsets that follow from it: kept, they would need many registers
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      FW_UNROLL for (int n = 0; n < kLoads; ++n) k[t][n] = load_global<4>(step.k[t] + k_offset(piece * kLoads + n));
    }
    schedule_fence();
  }
  // Addresses by two ways, loads in one place: of loads that are in either of two branches clang does not know how many
  // there are, and its waits for earlier ones wait for some of them.
  FW_METHOD void load_values(const KeyStep<kTiles>& step, int piece) {
    hold_operand(v_columns_left);
    uint64_t address[kTiles][kRegisters];
    if (step.all_in_order()) {
      rows.template value_rows<true>(step, address);
    } else {
      rows.template value_rows<false>(step, address);
    }
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
        v[t][r] = load_global<kWidth / 2>(address[t][r] + v_offset(piece));
      }
    }
    schedule_fence();
  }

  // S^T += K Q^T over the columns of a piece.
  FW_METHOD void multiply_keys(int piece, Accumulator (&s)[kTiles]) {
    FW_UNROLL for (int n = 0; n < kLoads; ++n) {
      const U32x4 x = queries(piece * kLoads + n);
      FW_UNROLL for (int half = 0; half < 8 / kElements; ++half) {
        const WideOperand b = widen(part_of(x, half));
        FW_UNROLL for (int t = 0; t < kTiles; ++t) s[t] = multiply_add<T>(part_of(k[t][n], half), b, s[t]);
      }
      schedule_fence();
    }
    FW_UNROLL for (int t = 0; t < kTiles; ++t) hold_operand(s[t]);
  }

  // O^T += V^T P^T for the columns of a piece. weights: pairs of consecutive keys.
  FW_METHOD void multiply_values(int piece, const uint32_t (&weights)[kTiles][kRegisters / 2]) {
    FW_UNROLL for (int first = 0; first < kTiles; first += kTilesPerOperand) {
      Operand b;
      FW_UNROLL for (int i = 0; i < kElements / 2; ++i) {
        b[i] = weights[first + 2 * i / kRegisters][2 * i % kRegisters / 2];
      }
      const WideOperand wide = widen(b);
      FW_UNROLL for (int j = 0; j < kWidth; ++j) {
        Operand a;
        FW_UNROLL for (int i = 0; i < kElements / 2; ++i) {
          const auto& tile = v[first + 2 * i / kRegisters];
          const int r = 2 * i % kRegisters;
          a[i] = permute_bytes(tile[r + 1][j / 2], tile[r][j / 2], j % 2 ? 0x07060302 : 0x05040100);
        }
        o[piece][j] = multiply_add<T>(a, wide, o[piece][j]);
        hold_operand(o[piece][j]);
        if (j % 2) schedule_fence();  // two registers of each row of V are free now
      }
    }
  }

  // A score is far above the reference: the largest of the row becomes the new one.
  FW_METHOD void move_reference(float top) {
    top = max_of_groups(top);
    const bool first = bound == -kInf, move = top > bound;
    const float to = move ? top - kPeak<T> : reference;
    const float alpha = first ? 0.f : exp2_fast(reference - to);
    bound = move ? top + kSlack : bound;
    reference = to;
    l *= alpha;
    FW_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      FW_UNROLL for (int j = 0; j < kWidth; ++j) o[piece][j] *= alpha;
    }
  }

  FW_METHOD void soften(Accumulator (&s)[kTiles], int32_t first_key, const Visible& visible, const ScoreRow& score,
                        uint32_t (&weights)[kTiles][kRegisters / 2]) {
    const int32_t lane_first = first_key + kRegisters * group_index();
    if constexpr (kModified) {
      FW_UNROLL for (int t = 0; t < kTiles; ++t) {
        FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
          const int32_t key = lane_first + 16 * t + r;
          s[t][r] = score.modified(s[t][r], key < rows.keys ? key : rows.keys - 1);
        }
      }
    } else {
      const float scale = p.softmax_scale * kLog2e;
      FW_UNROLL for (int t = 0; t < kTiles; ++t) s[t] *= scale;
    }
    if (first_key < visible.all_first || first_key + kStepKeys > visible.all_last) {
      FW_UNROLL for (int t = 0; t < kTiles; ++t) {
        FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
          const int32_t key = lane_first + 16 * t + r;
          s[t][r] = key >= visible.first && key < visible.last ? s[t][r] : -kInf;
        }
      }
    }
    float top = s[0][0];
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      FW_UNROLL for (int r = t ? 0 : 1; r < kRegisters; ++r) top = __builtin_fmaxf(top, s[t][r]);
    }
    if (any_lane(top > bound)) move_reference(top);
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
        s[t][r] = exp2_fast(s[t][r] - reference);
        l += s[t][r];
      }
    }
    if constexpr (kModified) {
      if (p.dropout_threshold) drop(s, lane_first, score);
    }
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      FW_UNROLL for (int r = 0; r < kRegisters; r += 2) weights[t][r / 2] = pack<T>(s[t][r], s[t][r + 1]);
    }
  }

  FW_METHOD void drop(Accumulator (&s)[kTiles], int32_t lane_first, const ScoreRow& score) const {
    const DropoutKey dropout = dropout_key(p);
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      const int32_t key = lane_first + 16 * t;
      const Philox4 random = score.dropout_group(dropout, key / kKeysPerPhilox);
      const bool second = key % kKeysPerPhilox != 0;  // CDNA: the lane has one half of the 8 keys
      FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
        const uint32_t word = kRegisters == 4 && second ? random.word[2 + r / 2 % 2] : random.word[r / 2];
        s[t][r] = ((word >> (16 * (r % 2))) & 0xFFFFu) < p.dropout_threshold ? 0.f : s[t][r];
      }
    }
  }

  // One step of keys, whose first pieces of K and V are on their way; kMore: another follows, and is asked for.
  template <bool kMore>
  FW_METHOD void attend_step(int32_t key, int32_t stride, const Visible& visible, const ScoreRow& score,
                             int32_t (&pages)[kTiles], KeyStep<kTiles>& now) {
    KeyStep<kTiles> next = now;
    Accumulator s[kTiles];
    FW_UNROLL for (int t = 0; t < kTiles; ++t) {
      s[t] = Accumulator{};
      hold_operand(s[t]);  // or the zeros would have registers of their own all the time
    }
    FW_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      multiply_keys(piece, s);
      if (piece + 1 < kPieces) {
        load_keys(now, piece + 1);
      } else if (kMore) {
        next = rows.locate(key + stride, pages);
        load_keys(next, 0);
        rows.find_pages(key + 2 * stride, pages);
      }
    }
    uint32_t weights[kTiles][kRegisters / 2];
    soften(s, key, visible, score, weights);
    FW_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      multiply_values(piece, weights);
      if (piece + 1 < kPieces) {
        load_values(now, piece + 1);
      } else if (kMore) {
        load_values(next, 0);
      }
    }
    now = next;
  }

  FW_METHOD void attend(const DecodeShare::KeySteps& steps, const ScoreRow& score) {
    if (steps.first >= steps.last) return;
    int32_t key = steps.first;
    const int32_t stride = steps.stride, before_last = steps.last - stride;
    int32_t pages[kTiles] = {};
    rows.find_pages(key, pages);
    KeyStep<kTiles> now = rows.locate(key, pages);
    load_keys(now, 0);
    rows.find_pages(key + stride, pages);
    load_values(now, 0);
    // The last step is apart: where loads may or may not follow, clang's waits for earlier ones wait for those too.
    FW_NO_UNROLL for (; key < before_last; key += stride) {
      attend_step<true>(key, stride, steps.visible, score, pages, now);
    }
    attend_step<false>(key, stride, steps.visible, score, pages, now);
  }

  // Merges what the waves of the same rows have: wave `part` of `parts` (a power of two). The result is in part 0.
  // Every wave of the workgroup must call it.
  FW_METHOD void merge(int part, int parts, float& m) {
    l = sum_of_groups(l);
    m = l == 0.f ? -kInf : reference;
    if constexpr (kQueriesInLds) workgroup_barrier();
    FW_NO_UNROLL for (int half = parts / 2; half > 0; half /= 2) {
      const bool give = part >= half && part < 2 * half, take = part < half;
      const int slot = (part & (half - 1)) * (kDecodeWaves / parts) + row_tile, lane = lane_index();
      float mine = 1.f, other = 0.f;
      FW_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
        if (give) {
          FW_UNROLL for (int j = 0; j < kWidth; ++j) lds.o[slot][j][lane] = o[piece][j];
          lds.m[slot][lane] = m, lds.l[slot][lane] = l;
        }
        workgroup_barrier();
        if (take) {
          if (piece == 0) {
            const float other_m = lds.m[slot][lane], top = __builtin_fmaxf(m, other_m);
            mine = exp2_fast(m - reference_of(top)), other = exp2_fast(other_m - reference_of(top));
            l = l * mine + lds.l[slot][lane] * other;
            m = top;
          }
          FW_UNROLL for (int j = 0; j < kWidth; ++j) o[piece][j] = o[piece][j] * mine + lds.o[slot][j][lane] * other;
        }
        workgroup_barrier();
      }
    }
  }

  // body(column, the kWidth values from there on) for all this lane has of its row.
  template <class Body>
  FW_METHOD void for_each_column(Body&& body) const {
    FW_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      FW_UNROLL for (int r = 0; r < kRegisters; ++r) {
        const int column = kPiece * piece + kWidth * accumulator_row(group_index(), r);
        Vec<float, kWidth> x;
        FW_UNROLL for (int j = 0; j < kWidth; ++j) x[j] = o[piece][j][r];
        if (column < p.dim_v) body(column_inside(column, p.dim_v, kWidth), x);
      }
    }
  }
};

template <class T, int kDim, bool kModified>
FW_DEVICE void decode(const GpuArguments& args) {
  using Task = Decode<T, kDim, kModified>;
  static FW_SHARED typename Task::Lds lds;
  const Params& p = args.params;
  const int64_t task = task_index();
  if (task >= args.schedule.tasks) return;
  const DecodeShare share(args, task);
  if (!share.has_rows) return;

  Task work(p, lds, share.seq, share.head, share.row_tile);
  RowOutput& parked = lds.outputs[wave_index()][lane_index() & 15];
  const bool has_rows = share.wave_has_rows();
  if (has_rows) {
    const auto own = share.lane_row();
    if (lane_index() < 16) parked = share.output_of(own, args.shared);
    if (share.part == 0 || !Task::kQueriesInLds) {
      work.load_queries(address_of(p.q.data) + query_offset(p.q, share.seq, own.query, own.head) * 2, own.exists);
    }
  }
  if constexpr (Task::kQueriesInLds) workgroup_barrier();
  if (has_rows) {
    const auto own = share.lane_row();
    work.attend(share.key_steps(own.query, kStepKeys), ScoreRow(p, share.seq, own.head, own.query));
  }
  float m;
  work.merge(share.part, share.parts, m);
  if (!has_rows || share.part != 0) return;

  const RowOutput out = parked;
  if (!out.exists) return;
  if (args.schedule.workspace_bytes == 0) {
    const RowEnd end = finish_row<kModified>(p, out.head, m, work.l);
    work.for_each_column([&](int column, auto x) {
      Vec<uint32_t, Task::kWidth / 2> packed;
      FW_UNROLL for (int i = 0; i < Task::kWidth / 2; ++i) {
        packed[i] = pack<T>(x[2 * i] * end.scale, x[2 * i + 1] * end.scale);
      }
      store_global(out.o + uint64_t(uint32_t(column)) * 2, packed);
    });
    if (out.lse && lane_index() < 16) store_global(out.lse, end.lse);
  } else {
    work.for_each_column([&](int column, auto x) { store_global(out.o + uint64_t(uint32_t(column)) * 4, x); });
    if (lane_index() < 16) store_global(out.m, m), store_global(out.l, work.l);
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

template <uint32_t dtype>
struct ElementOf {
  using Type = __bf16;
};
template <>
struct ElementOf<kRowF16> {
  using Type = _Float16;
};

#define FW_DECODE_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, features, \
                        needs, work)                                                                                 \
  FW_FOR_##isa(FW_KERNEL(threads) name([[maybe_unused]] GpuArguments args) {                                         \
    static_assert(threads == kDecodeWaves * kWave && tile_q == kDecodeRows && tile_k == kStepKeys);                  \
    decode<ElementOf<dtypes>::Type, dim_v, ((features) & kScoreFeatures) != 0>(arguments_in_memory());               \
  })
#define FW_AMD_KERNEL(source, ...) FW_IN_PART(source, FW_DECODE_ENTRY)(__VA_ARGS__)
#include "kernels/amd/kernels.def"
#undef FW_AMD_KERNEL

}  // namespace flashwave

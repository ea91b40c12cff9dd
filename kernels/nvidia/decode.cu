// Forward attention for a handful of query rows (decoding): K and V stream once from global memory.
//
//   S^T = K Q^T     A: 16 keys, B: 8 packed rows. Lane 4g + c has keys g and g + 8 of rows 2c and 2c + 1.
//   O^T = V^T P^T   A: 16 columns of V, transposed by ldmatrix; B: P^T, transposed by movmatrix.
//
// The rows of a GQA group are packed: row = query * group + head in the group. A warp works on 8 or 16 of them; a team
// of 2 or 4 warps on more, each on its own rows of the same tiles; still more rows are further units that read K and V
// again. So 8 rows waste nothing, and O takes kDimV / 4 registers per 8 rows. decode_line.h says which keys a workgroup
// has, decode_tiles.h how they come. Teams share the tiles of a unit and are merged in shared memory at its end; where
// workgroups share a unit, the one that is done last adds the parts in the order of the keys. None waits for another.
// (NOTES-decode.md)
#include "kernels/abi/features.h"
#include "kernels/common/part.h"
#include "kernels/common/window.h"
#include "kernels/nvidia/decode_finish.h"
#include "kernels/nvidia/decode_tiles.h"

namespace flashwave {

// The reference of the online softmax moves only when a score exceeds it by kSlack (in units of log2). fp16 weights are
// 2^kPeak times larger: their smallest number is 2^-24.
template <class Element>
inline constexpr float kPeak = __is_same(Element, F16) ? 8.f : 0.f;
template <class Element>
inline constexpr float kSlack = __is_same(Element, F16) ? 6.f : 8.f;

// Keys that all rows of a unit see, and those that one of its queries does.
struct UnitMask {
  const Edges edges;
  int all_first, all_last;

  FW_METHOD UnitMask(const Params& p, const Unit& unit) : edges(near_edges(p, unit.keys - unit.queries)) {
    all_first = edges.first(unit.queries - 1), all_last = edges.end(0, unit.keys);
  }
  FW_METHOD bool hides_some(int first_key) const { return first_key < all_first || first_key + kTileKeys > all_last; }
  FW_METHOD bool sees(const Unit& unit, int query, int key) const {
    return key >= edges.first(query) && key < edges.end(query, unit.keys);
  }
};

// Which units of a share other workgroups have parts of too: its first, which began in another share, and its last,
// which begins in this one.
struct SharedUnits {
  bool continued = false, begun = false;
};

// kRowTiles: 8 rows each, of a warp. kTeam: warps of a team.
template <class Element, class Shape, int kRowTiles, int kTeam>
struct Decode {
  static constexpr int kDimQK = Shape::kDimQK, kDimV = Shape::kDimV;
  static constexpr int kStages = Shape::kStages * kTeam, kTeams = Shape::kWarps / kTeam;
  static constexpr int kStepsQK = kDimQK / 16, kStepsV = kDimV / 16, kWarpRows = 8 * kRowTiles;
  static constexpr int kAhead = 2;  // requests made before their copies: the latency of the block table
  // Two accumulators of S where there is one tile of rows: half the chain of dependent MMAs.
  static constexpr int kChains = kRowTiles == 1 ? 2 : 1;

  const Params& p;
  char* const shared;
  const int group, lane, g, c, team, member;
  const uint32_t ring;
  uint32_t q[kRowTiles][kStepsQK][2];
  float o[kRowTiles][kStepsV][4], m[kRowTiles][2], l[kRowTiles][2];

  FW_METHOD Decode(const Params& params, char* shared_memory, int group_size)
      : p(params),
        shared(shared_memory),
        group(group_size),
        lane(lane_index() & 31),
        g(lane >> 2),
        c(lane & 3),
        team(warp_index() / kTeam),
        member(warp_index() % kTeam),
        ring(shared_address(shared_memory) + team * kStages * Shape::kStage) {}

  FW_METHOD void team_barrier() const {
    if constexpr (kTeam == 1) {
      wave_barrier();
    } else {
      barrier_of(1 + team, kTeam * kWave);
    }
  }

  FW_METHOD void start_unit(const UnitRows& rows) {
    FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
      const int r = member * kWarpRows + 8 * t + g;
      const bool exists = rows.exists(r);
      const uint16_t* const row =
          static_cast<const uint16_t*>(p.q.data) + (exists ? rows.offset(p.q, rows.place(r)) : 0);
      FW_UNROLL for (int k = 0; k < kStepsQK; ++k) {
        FW_UNROLL for (int half = 0; half < 2; ++half) {
          const int column = 16 * k + 8 * half + 2 * c;
          q[t][k][half] = exists && column < p.dim_qk ? *reinterpret_cast<const uint32_t*>(row + column) : 0;
        }
      }
      m[t][0] = m[t][1] = kNoKey, l[t][0] = l[t][1] = 0.f;
      FW_UNROLL for (int j = 0; j < kStepsV; ++j) o[t][j][0] = o[t][j][1] = o[t][j][2] = o[t][j][3] = 0.f;
    }
  }

  FW_METHOD void multiply_keys(uint32_t tile, float (&s)[kRowTiles][4]) {
    float chain[kChains][kRowTiles][4] = {};
    const uint32_t first_keys = tile + chunk_at<kDimQK>(lane & 15, lane >> 4);
    FW_UNROLL for (int k = 0; k < kStepsQK; ++k) {
      uint32_t keys[4];
      load_matrices(keys, chunk_further(first_keys, 2 * k));
      FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
        Element::mma(chain[k % kChains][t], keys, q[t][k][0], q[t][k][1]);
      }
    }
    FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
      FW_UNROLL for (int e = 0; e < 4; ++e) s[t][e] =
          kChains == 2 ? chain[0][t][e] + chain[kChains - 1][t][e] : chain[0][t][e];
    }
  }

  // Scores in units of log2. first_key: of the tile.
  FW_METHOD void scale(float (&s)[kRowTiles][4], const Unit& unit, const UnitMask& mask, int first_key) {
    if (p.softcap > 0 || p.alibi_slopes || p.bias.data) {
      const int first_row =
          here(unit.block * Shape::kRows + member * kWarpRows);  // or all rows' ScoreRows would be kept over the loop
      Sequence seq{};
      seq.b = unit.b, seq.keys = unit.keys, seq.queries = unit.queries;
      FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
        FW_UNROLL for (int e = 0; e < 2; ++e) {
          const int row = max(min(first_row + 8 * t + 2 * c + e, unit.queries * group - 1), 0), query = row / group;
          const ScoreRow score(p, seq, unit.head * group + row - query * group, query);
          FW_UNROLL for (int half = 0; half < 2; ++half) {
            const int key = min(first_key + g + 8 * half, unit.keys - 1);
            s[t][2 * half + e] = key >= 0 ? score.modified(s[t][2 * half + e], key) : -kInf;
          }
        }
      }
    } else {
      const float factor = p.softmax_scale * kLog2e;
      FW_UNROLL for (int t = 0; t < kRowTiles; ++t) { FW_UNROLL for (int e = 0; e < 4; ++e) s[t][e] *= factor; }
    }
    if (mask.hides_some(first_key)) {
      const int first_row = here(unit.block * Shape::kRows + member * kWarpRows);
      FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
        FW_UNROLL for (int e = 0; e < 2; ++e) {
          const int query = (first_row + 8 * t + 2 * c + e) / group;
          FW_UNROLL for (int half = 0; half < 2; ++half) {
            if (!mask.sees(unit, query, first_key + g + 8 * half)) s[t][2 * half + e] = -kInf;
          }
        }
      }
    }
  }

  // A score is far above the reference: the largest of each row's becomes the new one.
  FW_METHOD void move_references(const float (&s)[kRowTiles][4]) {
    FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
      float factor[2];
      FW_UNROLL for (int e = 0; e < 2; ++e) {
        float top = fmaxf(s[t][e], s[t][e + 2]);
        FW_UNROLL for (int apart = 4; apart < kWave; apart *= 2) top = fmaxf(top, exchange(top, apart));
        const float to = fmaxf(m[t][e], top - kPeak<Element>);
        factor[e] = exp2_fast(m[t][e] - to);
        m[t][e] = to, l[t][e] *= factor[e];
      }
      FW_UNROLL for (int j = 0; j < kStepsV; ++j) {
        o[t][j][0] *= factor[0], o[t][j][1] *= factor[1], o[t][j][2] *= factor[0], o[t][j][3] *= factor[1];
      }
    }
  }

  FW_METHOD void soften(float (&s)[kRowTiles][4], uint32_t (&weights)[kRowTiles][2]) {
    bool far_above = false;
    FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
      FW_UNROLL for (int e = 0; e < 4; ++e) { far_above |= s[t][e] - m[t][e & 1] > kPeak<Element> + kSlack<Element>; }
    }
    if (any_lane(far_above)) move_references(s);
    FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
      FW_UNROLL for (int e = 0; e < 4; ++e) s[t][e] = exp2_fast(s[t][e] - m[t][e & 1]);
      l[t][0] += s[t][0] + s[t][2], l[t][1] += s[t][1] + s[t][3];
      FW_UNROLL for (int half = 0; half < 2; ++half) {  // (key, pair of rows) -> (row, pair of keys)
        weights[t][half] = transposed_matrix(Element::pack(s[t][2 * half], s[t][2 * half + 1]));
      }
    }
  }

  FW_METHOD void multiply_values(uint32_t tile, const uint32_t (&weights)[kRowTiles][2]) {
    const uint32_t first = tile + chunk_at<kDimV>((lane & 7) + (lane >> 4 << 3), lane >> 3 & 1);
    FW_UNROLL for (int j = 0; j < kStepsV; ++j) {
      uint32_t values[4];
      load_matrices_transposed(values, chunk_further(first, 2 * j));
      FW_UNROLL for (int t = 0; t < kRowTiles; ++t) Element::mma(o[t][j], values, weights[t][0], weights[t][1]);
    }
  }

  // Adds up what the teams have, kMergeRows rows at a time: to O and LSE, or to a slot of parts.
  FW_METHOD void merge(const UnitRows& rows, const abi::DecodeParts& parts, int slot) {
    constexpr int kMergeRows = Shape::kMergeRows, kAllRows = kTeam * kWarpRows;
    float* const values = reinterpret_cast<float*>(shared + Shape::kMergeAt);  // [team][row of the pass][column]
    float2* const sums = reinterpret_cast<float2*>(shared + Shape::kSumsAt);   // [team][row]
    const int row_of_lane = here(2 * c), column_of_lane = here(g);  // or addresses would be kept over the loop
    FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
      FW_UNROLL for (int e = 0; e < 2; ++e) {
        float x = l[t][e];
        FW_UNROLL for (int apart = 4; apart < kWave; apart *= 2) x += exchange(x, apart);
        if (g == 0) sums[team * kAllRows + member * kWarpRows + 8 * t + 2 * c + e] = make_float2(m[t][e], x);
      }
    }
    FW_NO_UNROLL for (int first = 0; first < kAllRows && rows.exists(first); first += kMergeRows) {
      const int mine = first - member * kWarpRows;  // in rows of this warp; < 0 or too large: others'
      FW_UNROLL for (int t = 0; t < kRowTiles; ++t) {
        if (mine >= 8 * t && mine < 8 * t + 8) {
          FW_UNROLL for (int e = 0; e < 2; ++e) {
            const int r = row_of_lane + 8 * t + e - mine;
            if (r >= 0 && r < kMergeRows) {
              float* const to = values + (team * kMergeRows + r) * kDimV;
              FW_UNROLL for (int j = 0; j < kStepsV; ++j) {  // exchanged by row: no bank conflicts
                to[(16 * j + column_of_lane) ^ (r << 3)] = o[t][j][e];
                to[(16 * j + column_of_lane + 8) ^ (r << 3)] = o[t][j][2 + e];
              }
            }
          }
        }
      }
      workgroup_barrier();
      for (int i = thread_index(); i < kMergeRows * (kDimV / 2); i += Shape::kThreads) {
        const int r = i / (kDimV / 2), column = i % (kDimV / 2) * 2;
        float top = kNoKey, sum = 0.f, x = 0.f, y = 0.f;
        FW_UNROLL for (int w = 0; w < kTeams; ++w) top = fmaxf(top, sums[w * kAllRows + first + r].x);
        FW_UNROLL for (int w = 0; w < kTeams; ++w) {
          const float2 theirs = sums[w * kAllRows + first + r];
          const float2 v =
              *reinterpret_cast<const float2*>(values + (w * kMergeRows + r) * kDimV + (column ^ (r << 3)));
          const float weight = exp2_fast(theirs.x - top);
          sum = fmaf(theirs.y, weight, sum), x = fmaf(v.x, weight, x), y = fmaf(v.y, weight, y);
        }
        if (rows.exists(first + r) && column < p.dim_v) {
          if (slot < 0) {
            write_columns<Element>(p, rows, first + r, column, x, y, top, sum);
          } else {
            const int64_t row = int64_t{slot} * Shape::kRows + first + r;
            *reinterpret_cast<float2*>(parts.o + row * p.dim_v + column) = make_float2(x, y);
            if (column == 0) reinterpret_cast<float2*>(parts.sums)[row] = make_float2(top, sum);
          }
        }
      }
      workgroup_barrier();
    }
  }

  // unit: the first of the share, then the last.
  FW_METHOD SharedUnits run(const abi::DecodeParts& parts, int slots_each, int workgroup, const Line& line,
                            const Share& share, int blocks, Unit& unit) {
    TileRequests<kTeams> requests(share, team, blocks);
    TileRequest ahead[kAhead] = {};
    uint32_t copy_to = 0, stage = 0;  // offsets in the ring
    const auto copy_next = [&](bool any) {
      if (any) {
        copy_tile<Shape, kTeam>(p, ahead[0], member, ring + copy_to);
        commit_copies();
        copy_to = copy_to == (kStages - 1) * Shape::kStage ? 0 : copy_to + Shape::kStage;
      }
      FW_UNROLL for (int i = 0; i + 1 < kAhead; ++i) ahead[i] = ahead[i + 1];
      ahead[kAhead - 1] = requests.next(p);
    };
    FW_NO_UNROLL for (int i = -kAhead; i < kStages - 1; ++i) copy_next(i >= 0);

    SharedUnits with_others;
    for (;;) {
      const UnitMask mask(p, unit);
      start_unit(UnitRows(p, unit, group, Shape::kRows));
      const int first = max(share.begin - unit.start, 0), last = min(unit.tiles, share.end - unit.start);
      FW_NO_UNROLL for (int tile = first + team; tile < last; tile += kTeams) {
        wait_copies<kStages - 2>();
        team_barrier();
        copy_next(true);
        float s[kRowTiles][4];
        uint32_t weights[kRowTiles][2];
        multiply_keys(ring + stage, s);
        scale(s, unit, mask, unit.first_key + tile * kTileKeys);
        soften(s, weights);
        multiply_values(ring + stage + Shape::kTileK, weights);
        stage = stage == (kStages - 1) * Shape::kStage ? 0 : stage + Shape::kStage;
      }
      if constexpr (kTeam > 1) {  // as many barriers for every team, or racecheck doubts the workgroup's in merge()
        const int rest = max(last - first, 0) % kTeams;
        if (rest != 0 && team >= rest) team_barrier();
      }
      const Contributors all(line, unit, workgroup, share.part);
      const int slot = all.first == all.last ? -1 : slots_each * workgroup + (share.begin < unit.start ? 1 : 0);
      merge(UnitRows(p, unit, group, Shape::kRows), parts, slot);
      if (slot >= 0) {
        announce(parts.ready + slot);
        (share.begin < unit.start ? with_others.begun : with_others.continued) = true;
      }
      if (unit.next_start(p) >= share.end) break;
      unit.next(p, blocks);
    }
    wait_copies<0>();  // none, but the ring may be written to now
    return with_others;
  }
};

template <class Element, class Shape>
FW_DEVICE void decode(const GpuArguments& args) {
  extern __shared__ __align__(1024) char shared[];
  const Params& p = args.params;
  const int group = quotient(p.heads_q, p.heads_k), rows = p.seqlen_q * group;
  const int blocks = rows > Shape::kRows ? (rows + Shape::kRows - 1) / Shape::kRows : 1;
  const Line line(p, args.schedule.splits, int(args.schedule.tasks), blocks, Shape::kWarps);
  const int workgroup = int(task_index());
  if (workgroup >= line.workgroups) return;
  const Share share(p, line, workgroup, blocks);
  if (!share.has_tiles) return;
  constexpr int kMostTiles = Shape::kWarpRows / 8;
  const int slots_each = args.schedule.splits == 0 ? 2 : 1;
  const abi::DecodeParts parts(args.shared, abi::decode_slots(args.schedule.splits, args.schedule.tasks), Shape::kRows,
                               p.dim_v);
  Unit unit = share.unit;
  const auto run = [&]<int kRowTiles, int kTeam>() {
    return Decode<Element, Shape, kRowTiles, kTeam>(p, shared, group)
        .run(parts, slots_each, workgroup, line, share, blocks, unit);
  };
  const SharedUnits with_others = rows <= 8                      ? run.template operator()<1, 1>()
                                  : rows <= Shape::kWarpRows     ? run.template operator()<kMostTiles, 1>()
                                  : rows <= 2 * Shape::kWarpRows ? run.template operator()<kMostTiles, 2>()
                                                                 : run.template operator()<kMostTiles, 4>();
  FW_NO_UNROLL for (int last = 0; last < 2; ++last) {
    if (!(last ? with_others.begun : with_others.continued)) continue;
    const Unit own = last || line.parts > 0 ? unit : Share(p, line, workgroup, blocks).unit;
    const Contributors all(line, own, workgroup, share.part);
    workgroup_barrier();
    if (!take_on<Shape::kThreads>(parts, all, slots_each)) continue;
    combine_parts<Element, Shape::kDimV, Shape::kRows, Shape::kThreads>(
        p, parts, all, slots_each, UnitRows(p, own, group, Shape::kRows), reinterpret_cast<float*>(shared),
        reinterpret_cast<float2*>(shared + Shape::kSumsAt));
  }
}

// One part of the rows at a time.
#define FW_DECODE_ENTRY(name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, lds_bytes, \
                        features, needs, work)                                                                        \
  FW_KERNEL(threads) name(FW_ARGUMENTS(args)) {                                                                       \
    using Shape = DecodeShape<dim_qk, dim_v, tile_q, threads / kWave, lds_bytes>;                                     \
    static_assert(tile_k == kTileKeys && tile_q == 4 * Shape::kWarpRows);                                             \
    decode<ElementOf<dtypes>, Shape>(args);                                                                           \
  }
#define FW_NVIDIA_KERNEL(source, ...) FW_IN_PART(source, FW_DECODE_ENTRY)(__VA_ARGS__)
#include "kernels/nvidia/kernels.def"
#undef FW_NVIDIA_KERNEL

}  // namespace flashwave

// Which rows and keys a workgroup of decode.hip has, and which of them a wave and a lane. The numbering of tasks is in
// decode.hip.
#pragma once

#include "kernels/abi/partials.h"
#include "kernels/amd/decode_rows.h"
#include "kernels/common/window.h"

namespace flashwave {

inline constexpr int kDecodeWaves = 4;
inline constexpr int kDecodeRowTiles = 4;  // of 16 rows
inline constexpr int kDecodeRows = 16 * kDecodeRowTiles;

struct Quotient {
  int64_t quotient, rest;
};
// x < 2^53. Clang's division of 64-bit integers would be 150 instructions.
FW_DEVICE Quotient divide(int64_t x, int64_t by) {
  Quotient q;
  q.quotient = int64_t(double(x) / double(by));  // rounded: perhaps 1 too many
  q.rest = x - q.quotient * by;
  if (q.rest < 0) --q.quotient, q.rest += by;
  return q;
}

// Where the results of a row go: O and LSE, or those of one part of the keys.
struct RowOutput {
  uint64_t o, lse;  // addresses; lse may be 0
  uint64_t m, l;
  int32_t head;  // of the queries
  bool exists;
};

// Keys [first, last) that this lane's row sees, and those that all 16 rows of the wave see (uniform).
struct Visible {
  int32_t first, last, all_first, all_last;
};

struct DecodeShare {
  const Params& p;
  const Schedule& schedule;
  Sequence seq;
  int32_t head, split, group;
  int64_t rows_max, rows;  // of a key head: of the longest sequence, of this one
  // Waves: 16 rows each; where there are more waves than that, `parts` of them share the keys of the same rows.
  int row_tile, part, parts;
  int64_t first_row;  // of the wave
  bool has_rows;      // the workgroup has any

  FW_METHOD DecodeShare(const GpuArguments& args, int64_t task)
      : p(args.params), schedule(args.schedule), group(args.params.heads_q / args.params.heads_k) {
    rows_max = int64_t{p.seqlen_q} * group;
    const Quotient by_split = divide(task, schedule.splits);
    const Quotient by_block = divide(by_split.quotient, (rows_max + kDecodeRows - 1) / kDecodeRows);
    const Quotient by_head = divide(by_block.quotient, p.heads_k);
    split = uniform(int32_t(by_split.rest)), head = uniform(int32_t(by_head.rest));
    seq = sequence_of(p, uniform(int32_t(by_head.quotient)));
    rows = uniform(seq.queries * group);
    const int64_t block_row = uniform(by_block.rest) * kDecodeRows, left = rows - block_row;
    has_rows = left > 0;
    const int row_tiles = uniform(left < kDecodeRows ? int32_t(left + 15) / 16 : kDecodeRowTiles);
    const int tiles_log2 = row_tiles > 2 ? 2 : row_tiles - 1;
    static_assert(kDecodeRowTiles == 4 && kDecodeWaves == 4);
    row_tile = wave_index() & ((1 << tiles_log2) - 1), part = wave_index() >> tiles_log2;
    parts = kDecodeWaves >> tiles_log2;
    first_row = block_row + 16 * row_tile;
  }

  FW_METHOD bool wave_has_rows() const { return first_row < rows; }

  struct LaneRow {
    int64_t row, query;
    int32_t head;  // of the queries
    bool exists;   // if not, these are the last row's
  };
  // The wave must have rows.
  FW_METHOD LaneRow lane_row() const {
    const int column = lane_index() & 15;
    const bool exists = column < rows - first_row;
    const Quotient first = divide(first_row, group);
    const int64_t row = exists ? first_row + column : rows - 1;
    const uint32_t ahead = uint32_t(first.rest) + uint32_t(row - first_row), queries_ahead = ahead / uint32_t(group);
    return {row, first.quotient + queries_ahead, head * group + int32_t(ahead - queries_ahead * uint32_t(group)),
            exists};
  }

  // The keys of the wave: steps first, first + stride, ... below last.
  struct KeySteps {
    int32_t first, last, stride;
    Visible visible;
  };
  FW_METHOD KeySteps key_steps(int64_t lane_query, int step_keys) const {
    const int64_t begin = split * schedule.keys_per_split;
    int64_t end = split + 1 == schedule.splits ? seq.keys : begin + schedule.keys_per_split;
    end = end < seq.keys ? end : seq.keys;
    if (begin >= end) return {};
    const int64_t last_row = first_row + 15 < rows ? first_row + 15 : rows - 1;
    const int32_t top = int32_t(divide(first_row, group).quotient), bottom = int32_t(divide(last_row, group).quotient);
    const int32_t own = int32_t(lane_query), key_end = int32_t(end);
    const Edges edges = edges_of_block(p, seq.keys - seq.queries, int32_t(seq.keys), int32_t(seq.queries));
    const int32_t ahead = edges.first(top) - int32_t(begin);
    const int32_t skipped = uniform(ahead > 0 ? ahead / step_keys * step_keys : 0);
    KeySteps steps;
    steps.first = int32_t(begin) + skipped + part * step_keys;
    steps.last = uniform(edges.end(bottom, key_end));
    steps.stride = parts * step_keys;
    steps.visible = {edges.first(own), edges.end(own, key_end), uniform(edges.first(bottom)),
                     uniform(edges.end(top, key_end))};
    return steps;
  }

  FW_METHOD RowOutput output_of(const LaneRow& own, char* shared) const {
    RowOutput out{};
    out.head = own.head, out.exists = own.exists;
    if (schedule.workspace_bytes == 0) {
      out.o = address_of(p.o.data) + query_offset(p.o, seq, own.query, own.head) * 2;
      if (p.lse.data) out.lse = address_of(p.lse.data) + query_offset(p.lse, seq, own.query, own.head) * 4;
    } else {
      const int64_t heads = int64_t{p.batch} * p.heads_k;
      const abi::PartialResults parts(shared, heads * rows_max, schedule.splits, p.dim_v);
      const int64_t row_of_call = (int64_t{seq.b} * p.heads_k + head) * rows_max + own.row;
      const int64_t index = split * parts.rows + row_of_call;
      out.o = address_of(parts.o + index * p.dim_v);
      out.m = address_of(parts.m + index), out.l = address_of(parts.l + index);
    }
    return out;
  }
};

}  // namespace flashwave

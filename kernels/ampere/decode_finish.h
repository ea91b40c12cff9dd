// The end of decode.cu's rows: sums of parts, sinks, normalisation, O and LSE.
#pragma once

#include "kernels/ampere/decode_line.h"

namespace flashwave {

// The reference m of a row that has seen no key: finite, so that differences stay defined, and below every score.
inline constexpr float kNoKey = -3e38f;

// Rows of a unit: row = query * group + head in the group.
struct UnitRows {
  Sequence seq;
  int first_head, group, first_row, rows;  // rows: all of the key head's

  FW_METHOD UnitRows(const Params& p, const Unit& unit, int group_size, int rows_per_unit)
      : seq(sequence_of(p, unit.b)), group(group_size) {
    first_head = unit.head * group, first_row = unit.block * rows_per_unit, rows = int(seq.queries) * group;
  }
  FW_METHOD bool exists(int r) const { return first_row + r < rows; }
  FW_METHOD int query(int r) const { return (first_row + r) / group; }
  FW_METHOD int head(int r) const { return first_head + (first_row + r) % group; }
};

// x, y: columns `column` and the next of row r, unnormalised.
template <class Element>
FW_DEVICE void write_columns(const Params& p, const UnitRows& rows, int r, int column, float x, float y, float m,
                             float l) {
  const int head = rows.head(r), query = rows.query(r);
  const float sink = p.sinks ? p.sinks[head] * kLog2e : -kInf;
  const float top = fmaxf(m, sink), weight = exp2_fast(m - top), total = l * weight + exp2_fast(sink - top);
  const float scale = total == 0.f ? 0.f : weight / total;
  uint16_t* const o = static_cast<uint16_t*>(p.o.data) + query_offset(p.o, rows.seq, query, head) + column;
  if (column < p.dim_v) *reinterpret_cast<uint32_t*>(o) = Element::pack(x * scale, y * scale);
  if (column == 0 && p.lse.data) {
    static_cast<float*>(p.lse.data)[query_offset(p.lse, rows.seq, query, head)] =
        total == 0.f ? -kInf : (top + log2_fast(total)) * kLn2;
  }
}

// Adds the parts of a unit in the order of the keys, whoever finishes when. Reads of kAtOnce parts are under way
// together: one latency for all of them.
template <class Element, int kDimV, int kRows, int kThreads>
FW_DEVICE void combine_parts(const Params& p, const abi::DecodeParts& parts, const Contributors& from, int slots_each,
                             const UnitRows& rows) {
  constexpr int kAtOnce = 16;
  for (int i = from.first + thread_index(); i < from.last; i += kThreads) {
    uint64_t* const ready = parts.ready + from.slot(i, slots_each);
    while (load_acquire(ready) != abi::kReady) {
    }
    *ready = 0;
  }
  workgroup_barrier();
  for (int i = thread_index(); i < kRows * (kDimV / 2); i += kThreads) {
    const int r = i / (kDimV / 2), column = i % (kDimV / 2) * 2;
    if (!rows.exists(r) || column >= p.dim_v) continue;
    float m = kNoKey, l = 0.f, x = 0.f, y = 0.f;
    for (int first = from.first; first <= from.last; first += kAtOnce) {
      float2 sums[kAtOnce], o[kAtOnce];
      FW_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        sums[j] = make_float2(kNoKey, 0.f), o[j] = make_float2(0.f, 0.f);
        if (first + j <= from.last) {
          const int64_t row = int64_t{from.slot(first + j, slots_each)} * kRows + r;
          sums[j] = __ldcg(reinterpret_cast<const float2*>(parts.sums) + row);
          o[j] = __ldcg(reinterpret_cast<const float2*>(parts.o + row * p.dim_v + column));
        }
      }
      float top = m;
      FW_UNROLL for (int j = 0; j < kAtOnce; ++j) top = fmaxf(top, sums[j].x);
      const float before = exp2_fast(m - top);
      m = top, l *= before, x *= before, y *= before;
      FW_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        const float weight = exp2_fast(sums[j].x - m);
        l = fmaf(sums[j].y, weight, l), x = fmaf(o[j].x, weight, x), y = fmaf(o[j].y, weight, y);
      }
    }
    write_columns<Element>(p, rows, r, column, x, y, m, l);
  }
}

}  // namespace flashwave

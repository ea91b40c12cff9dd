// The end of decode.cu's rows: sums of parts, sinks, normalisation, O and LSE.
#pragma once

#include "kernels/ampere/decode_line.h"

namespace flashwave {

// The reference m of a row that has seen no key: finite, so that differences stay defined, and below every score.
inline constexpr float kNoKey = -3e38f;

// Rows of a unit: row = query * group + head in the group.
struct UnitRows {
  int q_batch, q_row;  // as in Sequence
  int first_head, group, count;
  int first_query, first_rest;  // of row 0: query, head in the group
  float per_group;

  FW_METHOD UnitRows(const Params& p, const Unit& unit, int group_size, int rows_per_unit) : group(group_size) {
    q_batch = unit.b, q_row = 0, first_query = first_rest = 0;
    if (p.cu_seqlens_q) q_batch = 0, q_row = p.cu_seqlens_q[unit.b];
    const int first_row = unit.block * rows_per_unit;
    if (first_row > 0) first_query = first_row / group, first_rest = first_row - first_query * group;
    first_head = unit.head * group, count = unit.queries * group - first_row, per_group = rcp_fast(float(group));
  }
  FW_METHOD bool exists(int r) const { return r < count; }

  struct Place {
    int query, head;
  };
  FW_METHOD Place place(int r) const {
    const int i = small_quotient(first_rest + r, per_group);
    return {first_query + i, first_head + first_rest + r - i * group};
  }
  FW_METHOD int64_t offset(const abi::Tensor& t, Place at) const {
    return q_batch * t.stride[0] + (q_row + at.query) * t.stride[1] + at.head * t.stride[2];
  }
};

// x, y: columns `column` and the next of row r, unnormalised.
template <class Element>
FW_DEVICE void write_columns(const Params& p, const UnitRows& rows, int r, int column, float x, float y, float m,
                             float l) {
  const UnitRows::Place at = rows.place(r);
  const float sink = p.sinks ? p.sinks[at.head] * kLog2e : -kInf;
  const float top = fmaxf(m, sink), weight = exp2_fast(m - top), total = l * weight + exp2_fast(sink - top);
  const float scale = total == 0.f ? 0.f : weight * rcp_fast(total);
  uint16_t* const o = static_cast<uint16_t*>(p.o.data) + rows.offset(p.o, at) + column;
  *reinterpret_cast<uint32_t*>(o) = Element::pack(x * scale, y * scale);
  if (column == 0 && p.lse.data) {
    static_cast<float*>(p.lse.data)[rows.offset(p.lse, at)] = total == 0.f ? -kInf : (top + log2_fast(total)) * kLn2;
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
    const int step = slots_each * kRows;  // rows from one workgroup's to the next one's
    int64_t row = int64_t{from.first} * step + r;
    for (int first = from.first; first <= from.last; first += kAtOnce) {
      float2 sums[kAtOnce], o[kAtOnce];
      FW_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        sums[j] = make_float2(kNoKey, 0.f), o[j] = make_float2(0.f, 0.f);
        if (first + j <= from.last) {
          const int64_t at = row + (from.in_second && first + j == from.first ? kRows : 0);
          sums[j] = __ldcg(reinterpret_cast<const float2*>(parts.sums) + at);
          o[j] = __ldcg(reinterpret_cast<const float2*>(parts.o + at * p.dim_v + column));
        }
        row += step;
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

// The end of decode.cu's rows: sums of parts, sinks, normalisation, O and LSE.
#pragma once

#include "kernels/common/row_end.h"
#include "kernels/nvidia/decode_line.h"

namespace flashwave {

// The reference m of a row that has seen no key: finite, so that differences stay defined, and below every score.
inline constexpr float kNoKey = -kLargest;  // no score is lower but -inf

// Rows of a unit: row = query * group + head in the group.
struct UnitRows {
  int q_batch, q_row;  // as in Sequence
  int first_head, group, count;
  int first_query, first_rest;  // of row 0: query, head in the group
  float per_group;

  FW_METHOD UnitRows(const Params& p, const Unit& unit, int group_size, int rows_per_unit) : group(group_size) {
    q_batch = unit.b, q_row = 0, first_query = first_rest = 0;
    if (p.cu_seqlens_q) q_batch = 0, q_row = abi::at_most(p.cu_seqlens_q[unit.b], p.q.most);
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
  const RowEnd end = finish_row<true, false>(p, at.head, m, l);
  uint16_t* const o = static_cast<uint16_t*>(p.o.data) + rows.offset(p.o, at) + column;
  *reinterpret_cast<uint32_t*>(o) = Element::pack(x * end.scale, y * end.scale);
  if (column == 0 && p.lse.data) static_cast<float*>(p.lse.data)[rows.offset(p.lse, at)] = end.lse;
}

// The weights of a unit's parts in each row: a warp for a row, a lane for a part. Left in shared memory:
// weights[row][part] and (m, l) of each row.
template <int kRows, int kThreads>
FW_DEVICE void weigh_parts(const abi::DecodeParts& parts, const Contributors& from, int slots_each, int rows,
                           float* weights, float2* totals) {
  const int count = from.last - from.first + 1, lane = lane_index();
  FW_NO_UNROLL for (int r = wave_index(); r < rows; r += kThreads / kWave) {
    float m = kNoKey, l = 0.f;
    FW_NO_UNROLL for (int j = lane; j - lane < count; j += kWave) {
      float2 sums = make_float2(kNoKey, 0.f);
      if (j < count) {
        const int64_t row = int64_t{from.slot(from.first + j, slots_each)} * kRows + r;
        sums = load_around_l1(reinterpret_cast<const float2*>(parts.sums) + row);
        weights[r * count + j] = sums.x;
      }
      float top = sums.x;
      FW_UNROLL for (int apart = 1; apart < kWave; apart *= 2) top = fmaxf(top, exchange(top, apart));
      top = fmaxf(top, m);
      float sum = sums.y * exp2_fast(sums.x - top);
      FW_UNROLL for (int apart = 1; apart < kWave; apart *= 2) sum += exchange(sum, apart);
      l = l * exp2_fast(m - top) + sum, m = top;
    }
    FW_NO_UNROLL for (int j = lane; j < count; j += kWave) {
      weights[r * count + j] = exp2_fast(weights[r * count + j] - m);
    }
    if (lane == 0) totals[r] = make_float2(m, l);
  }
}

// Says that this workgroup's part is there. What it reads of other flags after a workgroup_barrier is younger than
// that.
FW_DEVICE void announce(uint64_t* ready) {
  if (thread_index() == 0) {
    store_release(ready, abi::kReady);
    fence_all();
  }
}

// Whether this workgroup is to add the parts of a unit, of which it has announced one: all are there, and nobody else
// has taken it on. Workgroups do not wait for each other, as the ones waited for might not have started: who finds that
// something is missing leaves, and the last to announce finds nothing missing. Those that find the same, the exchange
// of the first part's flag tells apart. All threads of the workgroup call it.
template <int kThreads>
FW_DEVICE bool take_on(const abi::DecodeParts& parts, const Contributors& from, int slots_each) {
  bool there = true;
  for (int i = from.first + thread_index(); i <= from.last; i += kThreads) {
    there = there && load_acquire(parts.ready + from.slot(i, slots_each)) == abi::kReady;
  }
  if (!all_threads(there)) return false;
  bool mine = false;
  if (thread_index() == 0) {
    mine = replace(parts.ready + from.slot(from.first, slots_each), abi::kReady, abi::kTaken);
  }
  if (!any_thread(mine)) return false;
  for (int i = from.first + thread_index(); i <= from.last; i += kThreads) parts.ready[from.slot(i, slots_each)] = 0;
  return true;
}

// Adds the parts of a unit in the order of the keys, whoever finished when. The first reads are under way while the
// weights are made.
template <class Element, int kDimV, int kRows, int kThreads>
FW_DEVICE void combine_parts(const Params& p, const abi::DecodeParts& parts, const Contributors& from, int slots_each,
                             const UnitRows& rows, float* weights, float2* totals) {
  constexpr int kAtOnce = 16;
  const int count = from.last - from.first + 1, row_count = min(rows.count, kRows);
  float2 o[kAtOnce];
  const auto read = [&](int i, int first) {  // pair of columns i of parts first and on
    const int r = i / (kDimV / 2), column = i % (kDimV / 2) * 2;
    const int64_t step = int64_t{slots_each * kRows} * p.dim_v;
    const float* at = parts.o + (int64_t{(from.first + first) * slots_each} * kRows + r) * p.dim_v + column;
    const int left = r < row_count && column < p.dim_v ? count - first : 0;
    FW_UNROLL for (int j = 0; j < kAtOnce; ++j) {
      o[j] = make_float2(0.f, 0.f);
      const bool second = j == 0 && first == 0 && from.in_second;
      if (j < left) o[j] = load_around_l1(reinterpret_cast<const float2*>(at + (second ? kRows * p.dim_v : 0)));
      at += step;
    }
  };
  read(thread_index(), 0);
  weigh_parts<kRows, kThreads>(parts, from, slots_each, row_count, weights, totals);
  workgroup_barrier();
  FW_NO_UNROLL for (int i = thread_index(); i < row_count * (kDimV / 2); i += kThreads) {
    const int r = i / (kDimV / 2), column = i % (kDimV / 2) * 2;
    float x = 0.f, y = 0.f;
    FW_NO_UNROLL for (int first = 0; first < count; first += kAtOnce) {
      if (first > 0 || i >= kThreads) read(i, first);
      FW_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        const float weight = first + j < count ? weights[r * count + first + j] : 0.f;
        x = fmaf(o[j].x, weight, x), y = fmaf(o[j].y, weight, y);
      }
    }
    if (column < p.dim_v) write_columns<Element>(p, rows, r, column, x, y, totals[r].x, totals[r].y);
  }
}

}  // namespace flashwave

// Gradients with every feature, any strides, alignment and head dims up to 512, on any GPU, as a chain of passes
// (kernels/abi/generic_backward.h). Each recomputes what it needs of P and ds from lse and delta, and every sum is made
// by one workgroup in a fixed order: no atomics, always the same bits.
#pragma once

#include "kernels/abi/generic_backward.h"
#include "kernels/common/score.h"
#include "kernels/generic/tile.h"

namespace flashwave {

static_assert(abi::kGenericRows == kRows);

// What one (query, key) contributes: the weight of d_o in dV, ds, and ds through the softcap.
struct PairGradient {
  float weight = 0.f, ds = 0.f, dz = 0.f;
};

template <class T>
struct GenericBackward {
  const Params& p;
  TileMemory& memory;
  const DropoutKey dropout;
  float* delta;        // [batch][heads_q][seqlen_q]
  float* slope_parts;  // [batch][heads_q][block of queries]

  FW_METHOD GenericBackward(const GpuArguments& args, TileMemory& tile_memory)
      : p(args.params),
        memory(tile_memory),
        dropout(dropout_key(args.params)),
        delta(reinterpret_cast<float*>(args.shared)),
        slope_parts(delta + abi::generic_delta_floats(p)) {}

  FW_METHOD void delta_pass(int64_t task) {
    const TaskBlock block(task, p.seqlen_q, p.heads_q);
    const Sequence seq = sequence_of(p, block.b);
    FW_NO_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
      const int64_t i = block.begin + own_row(r);
      if (i >= seq.queries) break;
      const T* d_o = elements<const T>(p.d_o) + query_offset(p.d_o, seq, i, block.h);
      const int64_t o = query_offset(p.o, seq, i, block.h);
      float x = 0.f;
      for (int d = lane_index(); d < p.dim_v; d += kWave) {
        const float y =
            p.o.dtype == abi::kF32 ? elements<const float>(p.o)[o + d] : load(elements<const T>(p.o) + o + d);
        x = __builtin_fmaf(load(d_o + d), y, x);
      }
      x = wave_sum(x);
      if (p.d_lse.data) x -= elements<const float>(p.d_lse)[query_offset(p.d_lse, seq, i, block.h)];
      if (lane_index() == 0) delta[row_index(block.b, block.h, i)] = x;
    }
  }

  FW_METHOD void dq_pass(int64_t task) {
    const TaskBlock block(task, p.seqlen_q, p.heads_q);
    const Sequence seq = sequence_of(p, block.b);
    const int64_t begin = block.begin, end = least(begin + kRows, seq.queries);
    const bool working = begin + own_row(0) < end;
    Accumulator dq = {};
    float slope = 0.f;
    if (begin < end) {
      const int64_t key_begin = keys_seen(p, seq, begin).first, key_end = keys_seen(p, seq, end - 1).last;
      for (int64_t j0 = key_begin; j0 < key_end; j0 += kColumns) {
        const int count = int(least(kColumns, key_end - j0));
        query_rows_dots(seq, block.h, begin, j0, count);
        FW_NO_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
          const PairGradient pair = pair_gradient(seq, block.h, begin + own_row(r), own_row(r), j0, count);
          memory.first[own_row(r)][lane_index()] = pair.dz;
          slope -= pair.ds * ScoreRow::placed(p, seq, block.h, begin + own_row(r)).distance(j0 + lane_index());
        }
        if (p.dq.data) {
          accumulate(memory, memory.first, elements<const T>(p.k), memory.column_offset[0], count, p.dim_qk, working,
                     dq);
        }
      }
    }
    if (p.dq.data) {
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
        const int64_t i = begin + own_row(r);
        if (i >= end) break;
        store_row<T>(p.dq, query_offset(p.dq, seq, i, block.h), dq[r], p.softmax_scale, p.dim_qk);
      }
    }
    if (p.d_slopes) {
      slope = workgroup_sum(slope);
      if (thread_index() == 0) slope_parts[slope_index(block.b, block.h) + begin / kRows] = slope;
    }
  }

  // The rows are keys, the columns queries. A task has 16 stored rows of a sequence, of which the left pad and those
  // beyond seqused_k are no keys and get 0.
  FW_METHOD void dkdv_pass(int64_t task) {
    const TaskBlock block(task, p.seqlen_k, p.heads_k);
    const Sequence seq = sequence_of(p, block.b);
    const int32_t stored = stored_rows(p, block.b);
    if (block.begin >= stored) return;
    const int64_t first_key = block.begin - left_pad(p, block.b, stored);  // of this block; may be negative
    const int64_t key_begin = greatest(first_key, 0), key_end = least(first_key + kRows, seq.keys);
    Accumulator dk = {}, dv = {};
    if (key_begin < key_end) {
      set_offsets(
          memory.row_offset, kRows,
          [&](int64_t r) {
            const int64_t j = first_key + r;
            return j >= key_begin && j < key_end ? key_offset(p, p.k, seq, j, block.h) : kAbsent;
          },
          [&](int64_t r) {
            const int64_t j = first_key + r;
            return j >= key_begin && j < key_end ? key_offset(p, p.v, seq, j, block.h) : kAbsent;
          });
      const int32_t group = p.heads_q / p.heads_k;
      for (int32_t h = block.h * group; h < (block.h + 1) * group; ++h) {
        add_queries(seq, h, first_key, key_begin, key_end, dk, dv);
      }
    }
    FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
      if (block.begin + own_row(r) >= stored) break;
      const int64_t j = first_key + own_row(r);
      if (p.dk.data) store_row<T>(p.dk, key_offset(p, p.dk, seq, j, block.h), dk[r], p.softmax_scale, p.dim_qk);
      if (p.dv.data) store_row<T>(p.dv, key_offset(p, p.dv, seq, j, block.h), dv[r], 1.f, p.dim_v);
    }
  }

  // A task has the entries of d_bias of one (batch, head, block of queries), where these are told apart, and sums over
  // those that are not.
  FW_METHOD void d_bias_pass(int64_t task) {
    const abi::Tensor& t = p.d_bias;
    const int64_t heads = abi::d_bias_heads(p), blocks = abi::d_bias_blocks(p);
    const int32_t b = int32_t(task / blocks / heads), h = int32_t(task / blocks % heads);
    const int32_t b_end = t.stride[0] ? b + 1 : p.batch, h_end = t.stride[1] ? h + 1 : p.heads_q;
    const int64_t begin = task % blocks * kRows, end = t.stride[2] ? begin + kRows : p.seqlen_q;
    float sum[kRowsPerWave] = {};
    const int64_t columns = greatest(p.seqlen_k, t.stride[3] ? 0 : 1);  // one entry also where there are no keys
    FW_NO_UNROLL for (int64_t j0 = 0; j0 < columns; j0 += kColumns) {
      FW_NO_UNROLL for (int32_t each_b = b; each_b < b_end; ++each_b) {
        const Sequence seq = sequence_of(p, each_b);
        FW_NO_UNROLL for (int32_t each_h = h; each_h < h_end; ++each_h) {
          FW_NO_UNROLL for (int64_t i = begin; i < least(end, seq.queries); i += kRows) {
            add_ds(seq, each_h, i, j0, sum);
          }
        }
      }
      if (!t.stride[3] && j0 + kColumns < columns) continue;
      write_d_bias(b * t.stride[0] + h * t.stride[1] + begin * t.stride[2] + j0 * t.stride[3], p.seqlen_q - begin,
                   columns - j0, sum);
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) sum[r] = 0.f;
    }
  }

  // A task is a query head.
  FW_METHOD void sums_pass(int64_t task) {
    const int32_t h = int32_t(task);
    float d_sink = 0.f, d_slope = 0.f;
    for (int32_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, b);
      if (p.d_sinks) {
        for (int64_t i = thread_index(); i < seq.queries; i += kThreads) {
          const float lse = lse_of(seq, h, i);
          if (lse != -kInf) d_sink -= exp_accurate(p.sinks[h] - lse) * delta[row_index(b, h, i)];
        }
      }
      if (p.d_slopes) {
        for (int64_t n = thread_index(); n < abi::generic_blocks(p.seqlen_q); n += kThreads) {
          d_slope += slope_parts[slope_index(b, h) + n];
        }
        if (p.alibi_batch_stride) {
          write_sum(p.d_slopes + b * p.alibi_batch_stride + h, d_slope);
          d_slope = 0.f;
        }
      }
    }
    if (p.d_sinks) write_sum(p.d_sinks + h, d_sink);
    if (p.d_slopes && !p.alibi_batch_stride) write_sum(p.d_slopes + h, d_slope);
  }

 private:
  FW_METHOD int64_t row_index(int64_t b, int64_t h, int64_t i) const { return (b * p.heads_q + h) * p.seqlen_q + i; }
  FW_METHOD int64_t slope_index(int64_t b, int64_t h) const {
    return (b * p.heads_q + h) * abi::generic_blocks(p.seqlen_q);
  }
  FW_METHOD float lse_of(const Sequence& seq, int32_t h, int64_t i) const {
    return elements<const float>(p.lse)[query_offset(p.lse, seq, i, h)];
  }

  // dot: q.k; d_weight: d_o.v. The key must be visible.
  FW_METHOD PairGradient gradient(const ScoreRow& row, int64_t key, float dot, float d_weight, float lse,
                                  float row_delta) const {
    float cap_gradient;
    const float score = row.score(dot, key, cap_gradient);
    // Next to a large bias lse is coarse, and the difference may come out above 0, by numbers that exp turns into inf.
    const float log_prob = score - lse > 0.f && p.bias.data ? 0.f : score - lse;
    const float prob = lse == -kInf ? 0.f : exp_accurate(log_prob);
    const bool drops = p.dropout_p > 0;
    const float keep = !drops ? 1.f : row.dropped(dropout, key) ? 0.f : 1.f / (1.f - p.dropout_p);
    const float ds = prob * (keep * d_weight - row_delta);
    return {prob * keep, ds, ds * cap_gradient};
  }

  // Queries begin .. begin+15 as rows against keys j0 .. j0+count-1: q.k to memory.first, d_o.v to memory.second.
  FW_METHOD void query_rows_dots(const Sequence& seq, int32_t h, int64_t begin, int64_t j0, int count) {
    const int64_t h_k = h / (p.heads_q / p.heads_k), end = least(begin + kRows, seq.queries);
    const bool working = begin + own_row(0) < end;
    set_offsets(
        memory.row_offset, end - begin, [&](int64_t i) { return query_offset(p.q, seq, begin + i, h); },
        [&](int64_t i) { return query_offset(p.d_o, seq, begin + i, h); });
    set_offsets(
        memory.column_offset, count, [&](int64_t j) { return key_offset(p, p.k, seq, j0 + j, h_k); },
        [&](int64_t j) { return key_offset(p, p.v, seq, j0 + j, h_k); });
    row_dots(memory, elements<const T>(p.q), memory.row_offset[0], elements<const T>(p.k), memory.column_offset[0],
             count, p.dim_qk, working, memory.first);
    row_dots(memory, elements<const T>(p.d_o), memory.row_offset[1], elements<const T>(p.v), memory.column_offset[1],
             count, p.dim_v, working, memory.second);
  }

  // Of query i, in row `row` of the tile, and this lane's key.
  FW_METHOD PairGradient pair_gradient(const Sequence& seq, int32_t h, int64_t i, int row, int64_t j0,
                                       int count) const {
    const int64_t key = j0 + lane_index();
    if (i >= seq.queries || lane_index() >= count) return {};
    const KeyRange range = keys_seen(p, seq, i);
    if (key < range.first || key >= range.last) return {};
    return gradient(ScoreRow::placed(p, seq, h, i), key, memory.first[row][lane_index()],
                    memory.second[row][lane_index()], lse_of(seq, h, i), delta[row_index(seq.b, h, i)]);
  }

  // What the queries of one head add to dk and dv of keys first_key .. first_key+15, of which [key_begin, key_end)
  // exist.
  FW_METHOD void add_queries(const Sequence& seq, int32_t h, int64_t first_key, int64_t key_begin, int64_t key_end,
                             Accumulator& dk, Accumulator& dv) {
    // The mask solved for the query: both ends of what a query sees rise with the query.
    const int64_t shift = diagonal_of(p, seq, 0);
    const int64_t begin = greatest(key_begin - p.window_right - shift, 0);
    const int64_t end = least(key_end + p.window_left - shift, seq.queries);
    FW_NO_UNROLL for (int64_t i0 = begin; i0 < end; i0 += kColumns) {
      const int count = int(least(kColumns, end - i0));
      set_offsets(
          memory.column_offset, count, [&](int64_t i) { return query_offset(p.q, seq, i0 + i, h); },
          [&](int64_t i) { return query_offset(p.d_o, seq, i0 + i, h); });
      row_dots(memory, elements<const T>(p.k), memory.row_offset[0], elements<const T>(p.q), memory.column_offset[0],
               count, p.dim_qk, true, memory.first);
      row_dots(memory, elements<const T>(p.v), memory.row_offset[1], elements<const T>(p.d_o), memory.column_offset[1],
               count, p.dim_v, true, memory.second);
      // Now this lane has a query. The row's dots become dz and the weight of d_o.
      const bool exists = lane_index() < count;
      const int64_t i = exists ? i0 + lane_index() : i0;
      const ScoreRow row = ScoreRow::placed(p, seq, h, i);
      const KeyRange range = keys_seen(p, seq, i);
      const float lse = lse_of(seq, h, i), row_delta = delta[row_index(seq.b, h, i)];
      FW_NO_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
        float& dot = memory.first[own_row(r)][lane_index()];
        float& d_weight = memory.second[own_row(r)][lane_index()];
        const int64_t key = first_key + own_row(r);
        PairGradient pair;
        if (exists && key >= range.first && key < range.last) pair = gradient(row, key, dot, d_weight, lse, row_delta);
        dot = pair.dz;
        d_weight = pair.weight;
      }
      if (p.dv.data) {
        accumulate(memory, memory.second, elements<const T>(p.d_o), memory.column_offset[1], count, p.dim_v, true, dv);
      }
      if (p.dk.data) {
        accumulate(memory, memory.first, elements<const T>(p.q), memory.column_offset[0], count, p.dim_qk, true, dk);
      }
    }
  }

  FW_METHOD void add_ds(const Sequence& seq, int32_t h, int64_t i, int64_t j0, float (&sum)[kRowsPerWave]) {
    const int64_t last_query = least(i + kRows, seq.queries) - 1;
    if (j0 >= keys_seen(p, seq, last_query).last || j0 + kColumns <= keys_seen(p, seq, i).first) return;
    const int count = int(least(kColumns, seq.keys - j0));
    query_rows_dots(seq, h, i, j0, count);
    FW_NO_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
      const float ds = pair_gradient(seq, h, i + own_row(r), own_row(r), j0, count).ds;
      FW_UNROLL for (int each = 0; each < kRowsPerWave; ++each) sum[each] += each == r ? ds : 0.f;
    }
  }

  // sum: by row and lane. An axis of stride 0 has one entry, the sum along it.
  FW_METHOD void write_d_bias(int64_t at, int64_t rows, int64_t columns, float (&sum)[kRowsPerWave]) {
    const abi::Tensor& t = p.d_bias;
    if (!t.stride[2]) {  // rows of all waves: to row 0
      FW_UNROLL for (int r = 1; r < kRowsPerWave; ++r) sum[0] += sum[r];
      workgroup_barrier();
      memory.first[wave_index()][lane_index()] = sum[0];
      workgroup_barrier();
      sum[0] = 0.f;
      for (int wave = 0; wave < kWaves; ++wave) sum[0] += memory.first[wave][lane_index()];
      rows = 1;
    }
    FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
      if (own_row(r) >= rows) break;
      const float x = t.stride[3] ? sum[r] : wave_sum(sum[r]);
      if (lane_index() >= (t.stride[3] ? columns : 1)) continue;
      const int64_t offset = at + own_row(r) * t.stride[2] + lane_index() * t.stride[3];
      if (t.dtype == abi::kF32) {
        elements<float>(t)[offset] = x;
      } else {
        store(elements<T>(t) + offset, x);
      }
    }
  }

  // The sum over all threads, in thread 0.
  FW_METHOD float workgroup_sum(float x) {
    x = wave_sum(x);
    workgroup_barrier();
    memory.first[0][wave_index()] = x;
    workgroup_barrier();
    float all = 0.f;
    for (int wave = 0; wave < kWaves; ++wave) all += memory.first[0][wave];
    return all;
  }
  FW_METHOD void write_sum(float* out, float x) {
    x = workgroup_sum(x);
    if (thread_index() == 0) *out = x;
  }
};

}  // namespace flashwave

// Forward attention with every feature, any strides, alignment, head dims up to 512, page size and scale, on any GPU:
// 16 queries of one head per workgroup, one tile of keys after the other, online
// softmax.
#pragma once

#include "kernels/common/row_end.h"
#include "kernels/generic/tile.h"

namespace flashwave {

template <class T>
struct GenericForward {
  const Params& p;
  TileMemory& memory;
  Sequence seq;
  int32_t h;
  int64_t begin, end;          // queries of this workgroup
  int64_t key_begin, key_end;  // what any of them sees
  int working_rows;            // of this wave
  Accumulator o = {};

  FW_METHOD GenericForward(const Params& params, TileMemory& tile_memory, int64_t task)
      : p(params), memory(tile_memory) {
    const TaskBlock block(task, p.seqlen_q, p.heads_q);
    seq = sequence_of(p, block.b);
    h = block.h;
    begin = block.begin;
    end = least(begin + kRows, seq.queries);
    working_rows = int(least(kRowsPerWave, greatest(end - query(0), 0)));
    key_begin = key_end = 0;
    if (begin >= end) return;
    // Both ends of what a query sees rise with the query.
    key_begin = keys_seen(p, seq, begin).first;
    key_end = keys_seen(p, seq, end - 1).last;
  }

  FW_METHOD int64_t query(int r) const { return begin + own_row(r); }

  FW_METHOD void run() {
    if (begin >= end && !p.probs.data) return;
    set_offsets(
        memory.row_offset, end - begin, [&](int64_t i) { return query_offset(p.q, seq, begin + i, h); },
        [](int64_t) { return kAbsent; });
    const float sink = p.sinks ? p.sinks[h] : -kInf;
    FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) memory.top[own_row(r)] = sink, memory.sum[own_row(r)] = 0.f;
    wave_barrier();
    // P is known only after all keys: if it is wanted, a first sweep finds maximum and sum.
    FW_NO_UNROLL for (int sweeps = p.probs.data ? 2 : 1; sweeps > 0; --sweeps) {
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
        const int row = own_row(r);
        const float sum = memory.sum[row];
        wave_barrier();
        memory.total[row] = sum;
        memory.sum[row] = sink != -kInf ? exp_accurate(sink - memory.top[row]) : 0.f;
      }
      sweep(sweeps == 1);
    }
    if (p.probs.data) {
      FW_NO_UNROLL for (int r = 0; r < kRowsPerWave; ++r) clear_probs(query(r));
    }
    finish();
  }

 private:
  // Over all tiles of keys; the last time with values.
  FW_METHOD void sweep(bool last) {
    const int64_t h_k = h / (p.heads_q / p.heads_k);
    FW_NO_UNROLL for (int64_t j0 = key_begin; j0 < key_end; j0 += kColumns) {
      const Params& p = parameters_again(this->p);
      const int count = int(least(kColumns, key_end - j0));
      set_offsets(
          memory.column_offset, count, [&](int64_t j) { return bounded_key_offset(p, p.k, seq, j0 + j, h_k); },
          [&](int64_t j) { return bounded_key_offset(p, p.v, seq, j0 + j, h_k); });
      row_dots(memory, elements<const T>(p.q), memory.row_offset[0], elements<const T>(p.k), memory.column_offset[0],
               count, p.dim_qk, working_rows > 0, memory.first);
      FW_NO_UNROLL for (int r = 0; r < working_rows; ++r) softmax_step(r, j0 + lane_index(), last && p.probs.data);
      wave_barrier();
      if (!last) continue;
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
        if (r >= working_rows) break;
        const float rescale = memory.rescale[own_row(r)];
        FW_UNROLL for (int c = 0; c < kMaxChunks; ++c) o[r][c] *= rescale;
      }
      accumulate(memory, memory.first, elements<const T>(p.v), memory.column_offset[1], count, p.dim_v,
                 working_rows > 0, o);
    }
  }

  // Row r: the dot with this lane's key becomes its weight against the maximum so far, after dropout.
  FW_METHOD void softmax_step(int r, int64_t key, bool write_probs) {
    const int64_t i = query(r);
    const int at = own_row(r);
    const Params& p = parameters_again(this->p);
    const ScoreRow row = ScoreRow::placed(p, seq, h, i);
    const KeyRange range = keys_seen(p, seq, i);
    const bool visible = key >= range.first && key < range.last;
    float score = -kInf, cap_gradient;
    if (visible) score = row.score(memory.first[at][lane_index()], key, cap_gradient);
    const float old_top = memory.top[at], old_sum = memory.sum[at];
    const float top = __builtin_fmaxf(old_top, wave_max(score));
    const float base = reference_of(top);
    const float rescale = exp_accurate(old_top - base), weight = exp_accurate(score - base);
    const float sum = old_sum * rescale + wave_sum(weight);
    wave_barrier();  // every lane writes the state that every lane has read
    memory.top[at] = top;
    memory.sum[at] = sum;
    memory.rescale[at] = rescale;
    const bool dropped = p.dropout_p > 0 && row.dropped(dropout_key(p), key);
    memory.first[at][lane_index()] = dropped ? 0.f : weight;
    if (write_probs && key < p.seqlen_k) {
      const float total = memory.total[at], prob = total == 0.f ? 0.f : weight / total;
      elements<float>(p.probs)[probs_offset(i) + key * p.probs.stride[3]] = visible && dropped ? -prob : prob;
    }
  }

  FW_METHOD int64_t probs_offset(int64_t i) const {
    return seq.b * p.probs.stride[0] + h * p.probs.stride[1] + i * p.probs.stride[2];
  }
  // Zeros to what no tile of keys covers; a row that is no query is covered by none.
  FW_METHOD void clear_probs(int64_t i) {
    if (i >= p.seqlen_q) return;
    const int64_t tiles = (key_end - key_begin + kColumns - 1) / kColumns;
    const int64_t covered_begin = i < end ? key_begin : 0, covered_end = i < end ? key_begin + tiles * kColumns : 0;
    for (int64_t j = lane_index(); j < p.seqlen_k; j += kWave) {
      if (j >= covered_begin && j < covered_end) continue;
      elements<float>(p.probs)[probs_offset(i) + j * p.probs.stride[3]] = 0.f;
    }
  }

  FW_METHOD void finish() {
    wave_barrier();
    const Params& p = parameters_again(this->p);
    const float keep = p.dropout_p > 0 ? 1.f / (1.f - p.dropout_p) : 1.f;
    FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
      if (r >= working_rows) break;
      const float sum = memory.sum[own_row(r)], top = memory.top[own_row(r)];
      store_row<T>(p.o, query_offset(p.o, seq, query(r), h), o[r], sum == 0.f ? 0.f : keep / sum, p.dim_v);
      if (p.lse.data && lane_index() == 0) {
        elements<float>(p.lse)[query_offset(p.lse, seq, query(r), h)] = reference_of(top) + log_accurate(sum);
      }
    }
  }
};

}  // namespace flashwave

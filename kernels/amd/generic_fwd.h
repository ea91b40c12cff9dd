// Forward attention with every feature, any strides, alignment, head dims up to 512, page size and scale, on any GPU
// with gfx9 or newer instructions: 16 queries of one head per workgroup, one tile of keys after the other, online
// softmax.
#pragma once

#include "kernels/amd/generic_tile.h"
#include "kernels/amd/score.h"

namespace flashwave {

template <class T>
struct GenericForward {
  const Params& p;
  TileMemory& memory;
  Sequence seq;
  int32_t h;
  int64_t begin, end;  // queries of this workgroup
  int64_t key_begin, key_end;
  bool working;  // this wave has queries

  // By row of this wave: maximum, sum (spread over the lanes), its total after a sweep.
  float top[kRowsPerWave], sum[kRowsPerWave], total[kRowsPerWave];
  Accumulator o = {};

  FW_METHOD GenericForward(const Params& params, TileMemory& tile_memory, int64_t task)
      : p(params), memory(tile_memory) {
    const TaskBlock block(task, p.seqlen_q, p.heads_q);
    seq = sequence_of(p, block.b);
    h = block.h;
    begin = block.begin;
    end = least(begin + kRows, seq.queries);
    working = query(0) < end;
    key_begin = key_end = 0;
    if (begin >= end) return;
    // Both ends of what a query sees rise with the query.
    key_begin = visible_keys(p, seq, begin).first;
    key_end = visible_keys(p, seq, end - 1).last;
  }

  FW_METHOD int64_t query(int r) const { return begin + wave_index() * kRowsPerWave + r; }

  FW_METHOD void run() {
    if (begin >= end && !p.probs.data) return;
    set_offsets(
        memory.row_offset, end - begin, [&](int64_t i) { return query_offset(p.q, seq, begin + i, h); },
        [](int64_t) { return kAbsent; });
    const float sink = p.sinks ? p.sinks[h] : -kInf;
    FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) top[r] = sink, total[r] = 0.f;
    // P is known only after all keys: if it is wanted, a first sweep finds maximum and sum.
    FW_NO_UNROLL for (int sweeps = p.probs.data ? 2 : 1; sweeps > 0; --sweeps) {
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
        sum[r] = lane_index() == 0 && sink != -kInf ? exp_accurate(sink - top[r]) : 0.f;
      }
      sweep(sweeps == 1);
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) total[r] = wave_sum(sum[r]);
    }
    if (p.probs.data) {
      FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) clear_probs(query(r));
    }
    finish();
  }

 private:
  // Over all tiles of keys; the last time with values.
  FW_METHOD void sweep(bool last) {
    const int64_t h_k = h / (p.heads_q / p.heads_k);
    for (int64_t j0 = key_begin; j0 < key_end; j0 += kColumns) {
      const int count = int(least(kColumns, key_end - j0));
      set_offsets(
          memory.column_offset, count, [&](int64_t j) { return key_offset(p, p.k, seq, j0 + j, h_k); },
          [&](int64_t j) { return key_offset(p, p.v, seq, j0 + j, h_k); });
      float dot[kRowsPerWave];
      row_dots(memory, elements<const T>(p.q), memory.row_offset[0], elements<const T>(p.k), memory.column_offset[0],
               count, p.dim_qk, working, dot);
      if (working) {
        FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
          const float weight = softmax_step(r, dot[r], j0 + lane_index(), last);
          memory.weights[wave_index() * kRowsPerWave + r][lane_index()] = weight;
        }
      }
      if (last) accumulate(memory, elements<const T>(p.v), memory.column_offset[1], count, p.dim_v, working, o);
    }
  }

  // One step of row r by this lane's key: its weight against the maximum so far, after dropout.
  FW_METHOD float softmax_step(int r, float dot, int64_t key, bool last) {
    const int64_t i = query(r);
    const ScoreRow row(p, seq, h, i);
    const KeyRange range = visible_keys(p, seq, i);
    const bool visible = i < end && key >= range.first && key < range.last;
    float score = -kInf, cap_gradient;
    if (visible) score = row.score(dot, key, cap_gradient);
    const float old_top = top[r];
    top[r] = __builtin_fmaxf(old_top, wave_max(score));
    const float base = top[r] == -kInf ? 0.f : top[r];
    const float rescale = exp_accurate(old_top - base);
    float weight = exp_accurate(score - base);
    sum[r] = sum[r] * rescale + weight;
    if (rescale != 1.f) {
      FW_UNROLL for (int c = 0; c < kMaxChunks; ++c) o[r][c] *= rescale;
    }
    const bool dropped = p.dropout_p > 0 && row.dropped(key);
    if (last && p.probs.data && i < end && key < p.seqlen_k) {
      const float prob = total[r] == 0.f ? 0.f : weight / total[r];
      elements<float>(p.probs)[probs_offset(i) + key * p.probs.stride[3]] = visible && dropped ? -prob : prob;
    }
    return dropped ? 0.f : weight;
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
    const float keep = p.dropout_p > 0 ? 1.f / (1.f - p.dropout_p) : 1.f;
    FW_UNROLL for (int r = 0; r < kRowsPerWave; ++r) {
      const int64_t i = query(r);
      if (i >= end) break;
      const float factor = total[r] == 0.f ? 0.f : keep / total[r];
      store_row(elements<T>(p.o) + query_offset(p.o, seq, i, h), o[r], factor, p.dim_v);
      if (p.lse.data && lane_index() == 0) {
        elements<float>(p.lse)[query_offset(p.lse, seq, i, h)] =
            (top[r] == -kInf ? 0.f : top[r]) + log_accurate(total[r]);
      }
    }
  }
};

}  // namespace flashwave

// An attention oracle that shares no code with the kernels: long double, a whole matrix at a time, written from
// docs/semantics.md. It has its own layout arithmetic and its own Philox. Slow, and only ever given small problems.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace oracle {

using Real = long double;

// Numbers at storage positions, with the strides to find them. Absent: no numbers.
struct Array {
  std::vector<Real> at;
  std::array<int64_t, 4> stride{};
  bool present() const { return !at.empty(); }
};

enum class Type { kF16, kBF16, kF32 };

// x to the nearest number of the type, ties to even.
Real quantize(Real x, Type type);

struct Case {
  Type type = Type::kF32;
  int64_t batch_k = 0;  // cache rows or pages; 0 = batch
  int64_t batch = 2, seqlen_q = 5, seqlen_k = 7, heads_q = 2, heads_k = 2, dim_qk = 6, dim_v = 6;
  bool causal = false;
  int64_t window_left = -1, window_right = -1;
  float scale = 0.5f, softcap = 0, dropout_p = 0;
  uint64_t seed = 0, offset = 0;
  bool placed = false;  // with positions
  int64_t position_q = 0, position_k = 0;
  int64_t dropout_first = 0, dropout_heads = 0;  // 0 heads: heads_q

  Array q, k, v;     // (batch, seq, head, dim); varlen: stride[0] unused; paged k, v: (page, row, head, dim)
  Array o, lse;      // where results go: only strides and size count
  Array d_o, d_lse;  // as o, lse
  Array bias;        // (batch, head, query, key), stride 0 = broadcast
  bool bias_f32 = true;
  std::vector<Real> sinks, slopes;
  int64_t slopes_batch_stride = 0;

  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, cache_batch_idx, block_table;
  int64_t page_size = 0, block_table_stride = 0;

  int64_t seqlen_new = 0, rotary_dim = 0;
  bool rotary_interleaved = false, rotary_f32 = true;
  Array k_new, v_new, cos, sin;

  bool rotary_per_row() const { return causal || window_left >= 0 || window_right >= 0; }
};

// Which storage positions of each input the problem may read.
struct Touched {
  std::vector<char> q, k, v, bias;
};

struct Result {
  std::vector<Real> o, lse;      // at the storage positions of Case::o and Case::lse; NaN where nothing is written
  std::vector<Real> probs;       // (batch, heads_q, seqlen_q, seqlen_k) packed: the softmax, negative where dropped
  std::vector<Real> q_rotated;   // at the storage positions of q
  std::vector<Real> k_appended;  // k and v after an append
  std::vector<Real> v_appended;
  Touched touched;
};

Result forward(const Case& c);

// sum(d_o * O) + sum(d_lse * LSE), rows without any key or sink left out of the second.
Real loss(const Case& c);

// d loss / d x for the number at x, by central differences. x lies inside c.
Real derivative(Case& c, Real& x);

// Position in t (k or v) of row `row` of sequence b's storage, left pad included.
int64_t storage_position(const Case& c, const Array& t, int64_t b, int64_t row, int64_t h);

// Philox-4x32-7 from the paper.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);
// Whether softmax element (b, h, i, j) is dropped.
bool dropped(const Case& c, int64_t b, int64_t h, int64_t i, int64_t j);

}  // namespace oracle

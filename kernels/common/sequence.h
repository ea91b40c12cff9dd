// Where sequence b of the batch lies: its lengths, its rows of q and o, and the address of each of its keys.
// One definition for dense, varlen, padded, cached and paged layouts; plain C++ for the host and every GPU.
#pragma once

#include "kernels/abi/params.h"
#include "kernels/common/platform.h"

namespace flashwave {

struct Sequence {
  int32_t b;        // index in the batch
  int64_t q_batch;  // multiplies stride[0] of q, o, lse (0 for varlen)
  int64_t q_row;    // first row of q, o, lse
  int64_t k_batch;  // multiplies stride[0] of k, v (0 for varlen and paged)
  int64_t k_row;    // row of key 0 (left pad included); paged: its logical row
  int64_t queries;
  int64_t keys;  // visible to the mask: after left pad, with appended keys
};

FW_FN Sequence sequence_of(const abi::Params& p, int32_t b) {
  Sequence s;
  s.b = b;
  if (p.cu_seqlens_q) {
    s.q_batch = 0;
    s.q_row = p.cu_seqlens_q[b];
    s.queries = p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b];
  } else {
    s.q_batch = b;
    s.q_row = 0;
    s.queries = p.seqlen_q;
  }
  int64_t stored = p.seqlen_k, first = 0;
  s.k_batch = p.cache_batch_idx ? p.cache_batch_idx[b] : b;
  if (p.cu_seqlens_k) {
    stored = p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b];
    s.k_batch = 0;
    if (!p.block_table) first = p.cu_seqlens_k[b];
  }
  if (p.seqused_k) stored = p.seqused_k[b];
  const int64_t leftpad = p.leftpad_k ? p.leftpad_k[b] : 0;
  s.k_row = first + leftpad;
  s.keys = stored + p.seqlen_new - leftpad;
  if (s.keys < 0) s.keys = 0;
  return s;
}

// Element offset of key j (0 <= j < s.keys) of head h in tensor t, which is k, v, dk or dv.
FW_FN int64_t key_offset(const abi::Params& p, const abi::Tensor& t, const Sequence& s, int64_t j, int64_t h) {
  const int64_t row = s.k_row + j;
  if (p.block_table) {
    const int64_t page = p.block_table[s.b * p.block_table_stride + row / p.page_size];
    return page * t.stride[0] + (row % p.page_size) * t.stride[1] + h * t.stride[2];
  }
  return s.k_batch * t.stride[0] + row * t.stride[1] + h * t.stride[2];
}

// Element offset of row i of head h in tensor t, which is q, o, lse, d_o, d_lse or dq.
FW_FN int64_t query_offset(const abi::Tensor& t, const Sequence& s, int64_t i, int64_t h) {
  return s.q_batch * t.stride[0] + (s.q_row + i) * t.stride[1] + h * t.stride[2];
}

// Keys [first, last) that query i sees: causal and window, aligned to the bottom right. For kernels that are given
// problems without positions only.
struct KeyRange {
  int64_t first, last;
};
FW_FN KeyRange visible_keys(const abi::Params& p, const Sequence& s, int64_t i) {
  const int64_t diagonal = i + s.keys - s.queries;
  int64_t first = diagonal - p.window_left, last = diagonal + p.window_right + 1;
  if (first < 0) first = 0;
  if (last > s.keys) last = s.keys;
  if (last < first) last = first;
  return {first, last};
}

// The same wherever the sequence's pieces lie: the key on the diagonal of query i, and the keys that the query sees.
// The diagonal may lie anywhere beside the keys that there are, and what a query sees still only moves forward with it.
FW_FN int64_t diagonal_of(const abi::Params& p, const Sequence& s, int64_t i) {
  return i + (p.positions ? p.position_shift : s.keys - s.queries);
}
FW_FN KeyRange keys_seen(const abi::Params& p, const Sequence& s, int64_t i) {
  const int64_t diagonal = diagonal_of(p, s, i);
  int64_t first = diagonal - p.window_left, last = diagonal + p.window_right + 1;
  first = first < 0 ? 0 : first > s.keys ? s.keys : first;
  last = last > s.keys ? s.keys : last < first ? first : last;
  return {first, last};
}
// What dropout counts head h of sequence b as.
FW_FN uint32_t dropout_head(const abi::Params& p, const Sequence& s, int32_t h) {
  return p.dropout_first + uint32_t(s.b) * p.dropout_heads + uint32_t(h);
}

}  // namespace flashwave

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

// What a GPU's memory says of lengths and places is nobody's to check before a kernel reads it, and must not lead out
// of what the caller has allocated: every number goes through abi::at_most (docs/semantics.md).
//
// Rows of sequence b in a packed tensor of `total` rows, in which no sequence has more than `longest`.
struct PackedRows {
  int32_t first, count;
};
FW_FN PackedRows packed_rows(const int32_t* offsets, int32_t b, int32_t total, int32_t longest) {
  const int32_t first = abi::at_most(offsets[b], total), end = abi::at_most(offsets[b + 1], total);
  return {first, abi::at_most((end > first ? end : first) - first, longest)};
}
// Of k and v. In pages only the lengths count.
FW_FN PackedRows packed_keys(const abi::Params& p, int32_t b) {
  return packed_rows(p.cu_seqlens_k, b, p.block_table ? INT32_MAX : p.k.most, p.seqlen_k);
}

// Rows of k and v that the sequence has in memory: its left pad, its keys, and what follows them.
FW_FN int32_t stored_rows(const abi::Params& p, int32_t b) {
  return p.cu_seqlens_k ? packed_keys(p, b).count : p.seqlen_k;
}
// Of these: the left pad, and with seqused_k those in use before new keys are appended.
FW_FN int32_t left_pad(const abi::Params& p, int32_t b, int32_t stored) {
  return p.leftpad_k ? abi::at_most(p.leftpad_k[b], stored) : 0;
}
FW_FN int32_t left_pad(const abi::Params& p, int32_t b) { return p.leftpad_k ? left_pad(p, b, stored_rows(p, b)) : 0; }
FW_FN int32_t used_rows(const abi::Params& p, int32_t b, int32_t stored) {
  return abi::at_most(p.seqused_k[b], stored - int32_t(p.seqlen_new));
}

FW_FN Sequence sequence_of(const abi::Params& p, int32_t b) {
  Sequence s;
  s.b = b;
  if (p.cu_seqlens_q) {
    const PackedRows rows = packed_rows(p.cu_seqlens_q, b, p.q.most, p.seqlen_q);
    s.q_batch = 0;
    s.q_row = rows.first;
    s.queries = rows.count;
  } else {
    s.q_batch = b;
    s.q_row = 0;
    s.queries = p.seqlen_q;
  }
  int32_t stored = p.seqlen_k;
  int64_t first = 0;
  s.k_batch = p.cache_batch_idx ? abi::at_most(p.cache_batch_idx[b], p.k.most) : b;
  if (p.cu_seqlens_k) {
    const PackedRows rows = packed_keys(p, b);
    stored = rows.count;
    s.k_batch = 0;
    if (!p.block_table) first = rows.first;
  }
  const int64_t leftpad = left_pad(p, b, stored), used = p.seqused_k ? used_rows(p, b, stored) : stored;
  s.k_row = first + leftpad;
  s.keys = used + p.seqlen_new - leftpad;
  if (s.keys < 0) s.keys = 0;
  return s;
}

// Element offset of key j (0 <= j < s.keys) of head h in tensor t, which is k, v, dk or dv. A page is taken as the
// table names it: for CPUs, where that has been checked, and for kernels that are given no pages.
FW_FN int64_t key_offset(const abi::Params& p, const abi::Tensor& t, const Sequence& s, int64_t j, int64_t h) {
  const int64_t row = s.k_row + j;
  if (p.block_table) {
    const int64_t page = p.block_table[s.b * p.block_table_stride + row / p.page_size];
    return page * t.stride[0] + (row % p.page_size) * t.stride[1] + h * t.stride[2];
  }
  return s.k_batch * t.stride[0] + row * t.stride[1] + h * t.stride[2];
}
// The same for GPUs: a page that is not there does not lead out of the cache.
FW_FN int64_t bounded_key_offset(const abi::Params& p, const abi::Tensor& t, const Sequence& s, int64_t j, int64_t h) {
  if (!p.block_table) return key_offset(p, t, s, j, h);
  const int64_t row = s.k_row + j;
  const int32_t page = abi::at_most(p.block_table[s.b * p.block_table_stride + row / p.page_size], p.k.most);
  return page * t.stride[0] + (row % p.page_size) * t.stride[1] + h * t.stride[2];
}

// Element offset of row i of head h in tensor t, which is q, o, lse, d_o, d_lse or dq.
FW_FN int64_t query_offset(const abi::Tensor& t, const Sequence& s, int64_t i, int64_t h) {
  return s.q_batch * t.stride[0] + (s.q_row + i) * t.stride[1] + h * t.stride[2];
}

// The key on the diagonal of query i, and the keys [first, last) that the query sees: causal and window, aligned to the
// bottom right, or by position where the tensors are pieces of longer ones. The diagonal may lie anywhere beside the
// keys that there are, and what a query sees still only moves forward with it.
struct KeyRange {
  int64_t first, last;
};
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

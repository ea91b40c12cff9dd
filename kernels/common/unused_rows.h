// Rows of a packed tensor that belong to no sequence: before the first, behind the last, and where a sequence has more
// than the longest may have.
#pragma once

#include "kernels/common/sequence.h"

namespace flashwave {

struct PackedBatch {
  const int32_t* offsets;  // nullptr: the tensor is not packed
  int32_t batch, total, longest;
};
FW_FN PackedBatch packed_queries(const abi::Params& p) { return {p.cu_seqlens_q, p.batch, p.q.most, p.seqlen_q}; }
FW_FN PackedBatch packed_keys(const abi::Params& p) { return {p.cu_seqlens_k, p.batch, p.k.most, p.seqlen_k}; }

// Those between sequences b - 1 and b; b from 0 to the number of sequences. Of offsets that fall, which only a GPU's
// memory can hold, some may belong to a sequence after all: they are filled before that is computed.
FW_FN PackedRows unused_rows_before(const PackedBatch& packed, int32_t b) {
  int32_t first = 0, end = packed.total;
  if (b > 0) {
    const PackedRows before = packed_rows(packed.offsets, b - 1, packed.total, packed.longest);
    first = before.first + before.count;
  }
  if (b < packed.batch) end = abi::at_most(packed.offsets[b], packed.total);
  return {first, end > first ? end - first : 0};
}

}  // namespace flashwave

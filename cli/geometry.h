// Where everything of a case lies: lengths of the sequences, index arrays, and a strided view for every tensor.
// A pure function of the case and its seed; holds no tensor data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "words.h"

namespace flashwave::cli {

enum TensorId : int {
  kQ,
  kK,
  kV,
  kO,
  kLse,
  kKNew,
  kVNew,
  kCos,
  kSin,
  kSlopes,
  kSinks,
  kBias,
  kProbs,
  kDO,
  kDLse,
  kDQ,
  kDK,
  kDV,
  kDBias,
  kDSinks,
  kDSlopes,
  kTensorCount
};
const char* tensor_name(TensorId id);  // "o", "dk", ...

// A tensor inside a buffer. Buffers are named after their first tensor: packed k and v lie in buffer kQ or kK.
struct View {
  bool present = false;
  TensorId buffer = kTensorCount;
  int64_t offset = 0;  // elements from the buffer's start
  std::array<int64_t, 4> shape{}, stride{};

  int64_t count() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

struct SequenceShape {
  int64_t queries, stored, leftpad;  // keys attended = stored + append - leftpad
  int64_t keys(int64_t append) const { return stored + append > leftpad ? stored + append - leftpad : 0; }
};

struct Geometry {
  Case problem;
  std::array<View, kTensorCount> view;
  std::array<int64_t, kTensorCount> elements{};  // of each buffer; 0 = no such buffer

  std::vector<SequenceShape> sequences;
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, cache_batch_idx, block_table;
  int64_t total_q = 0, total_k = 0, batch_k = 0, block_table_stride = 0, rotary_seqlen = 0;

  // Place of key j of sequence b in k's view: (first index, row). j counts from the start of the row.
  struct Place {
    int64_t first, row;
  };
  Place key_place(int64_t b, int64_t row) const;
  Place query_place(int64_t b, int64_t query) const;

  fw_dtype dtype_of(TensorId id, fw_dtype data_dtype) const;  // lse and friends are always F32
  bool is_output(TensorId id) const;                          // written by the call, and not read by it
  bool is_updated(TensorId id) const;                         // read and written: the cache of an append, for instance
};

Geometry make_geometry(const Case& c);

// Which keys query i of a sequence sees: [first, last).
struct VisibleKeys {
  int64_t first, last;
};
VisibleKeys visible_keys(const Case& c, const SequenceShape& s, int64_t query);

}  // namespace flashwave::cli

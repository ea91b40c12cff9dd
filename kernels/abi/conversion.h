// Copies of tensors in another element type, before and after kernels that take bf16 in place of fp16
// (src/plan/convert.cpp, kernels/amd/convert.hip). Of Params, k_new is what is read and v_new what is written; the rest
// is the problem's. Of Schedule, splits says which rows, heads_per_task and dq_columns how many heads and columns there
// are.
#pragma once

#include <cstdint>

namespace flashwave::abi {

enum ConvertedRows : int32_t {
  kQueryRows,
  kUsedKeys,    // those that are read: memory beside them may hold anything
  kStoredKeys,  // those that a backward writes
};

inline constexpr int32_t kConversionRows = 4;  // of one sequence, all heads: a task

constexpr int64_t conversion_blocks(int64_t rows) { return (rows + kConversionRows - 1) / kConversionRows; }

}  // namespace flashwave::abi

// Results of the parts of the keys that one row attends to apart (split-KV), between the kernel that makes them and the
// one that combines them. Plain C++ for the host and every GPU.
#pragma once

#include <cstdint>

#if defined(__CUDACC__) || defined(__CUDA__) || defined(__HIP__)
#define FW_ABI_FN __attribute__((host, device, always_inline)) inline
#else
#define FW_ABI_FN __attribute__((always_inline)) inline
#endif

namespace flashwave::abi {

// Hands out memory from `base`, 64 bytes aligned; with nullptr it only counts.
struct Carver {
  char* base;
  int64_t used = 0;
  template <class T>
  FW_ABI_FN T* take(int64_t count_bytes) {
    char* p = base ? base + used : nullptr;
    used += (count_bytes + 63) / 64 * 64;
    return reinterpret_cast<T*>(p);
  }
  FW_ABI_FN float* floats(int64_t n) { return take<float>(n * 4); }
};

// Unnormalised results of each row over each part of the keys: o = sum of exp2(s - m) v, l = sum of exp2(s - m), s the
// score in units of log2. m need not be the largest s. A part without visible keys has m = -inf, l = 0, o = 0.
// "Row of the call": (sequence * heads_k + key head) * rows_max + query * group + head in the group, where group =
// heads_q / heads_k and rows_max = seqlen_q * group; rows past a sequence's end are neither written nor read.
struct PartialResults {
  float *o, *m, *l;  // [split][row of the call][dim_v], [split][row], [split][row]
  int64_t rows;
  int64_t bytes;

  FW_ABI_FN PartialResults(char* base, int64_t total_rows, int64_t splits, int dim_v) : rows(total_rows) {
    Carver c{base};
    o = c.floats(splits * rows * dim_v);
    m = c.floats(splits * rows);
    l = c.floats(splits * rows);
    bytes = c.used;
  }
};

// GPUs: rows of the call that one task of the combining kernel takes; task t has rows t * kCombineRows and on.
inline constexpr int kCombineRows = 4;
inline constexpr int kCombineThreads = 256;
FW_ABI_FN constexpr int64_t combine_tasks(int64_t total_rows) { return (total_rows + kCombineRows - 1) / kCombineRows; }

}  // namespace flashwave::abi

#undef FW_ABI_FN

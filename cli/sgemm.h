// Single-precision matrix product for the standard attention that the bench compares with: OpenBLAS if the machine has
// it (opened at run time), else a plain blocked loop.
#pragma once

#include <cstdint>

namespace flashwave::cli {

// Row-major C (m x n) = alpha * op(A) * op(B) + beta * C; op is the transpose where asked. ld* are row lengths.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  const float* a = nullptr;
  int64_t lda = 0;
  const float* b = nullptr;
  int64_t ldb = 0;
  float* c = nullptr;
  int64_t ldc = 0;
};

void sgemm(const Gemm& g);
void sgemm_builtin(const Gemm& g);
void set_sgemm_threads(int threads);
const char* sgemm_name();  // "OpenBLAS" or "the built-in sgemm"

}  // namespace flashwave::cli

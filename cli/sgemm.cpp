#include "sgemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

namespace flashwave::cli {
namespace {

// As cblas.h declares it.
enum : int { kRowMajor = 101, kNoTranspose = 111, kTranspose = 112 };
using CblasSgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*,
                            int);

struct OpenBlas {
  CblasSgemm sgemm = nullptr;
  void (*set_threads)(int) = nullptr;

  OpenBlas() {
    void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    sgemm = reinterpret_cast<CblasSgemm>(dlsym(library, "cblas_sgemm"));
    set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
  }
};

const OpenBlas& openblas() {
  static const OpenBlas library;
  return library;
}

constexpr int64_t kBlockK = 256, kBlockN = 512;

}  // namespace

// Blocks of B are copied into rows, so that the innermost loop runs along contiguous memory whatever is transposed.
void sgemm_builtin(const Gemm& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) g.c[i * g.ldc + j] = g.beta == 0 ? 0 : g.beta * g.c[i * g.ldc + j];
  }
  std::vector<float> block(size_t(kBlockK * kBlockN));
  for (int64_t k0 = 0; k0 < g.k; k0 += kBlockK) {
    const int64_t depth = std::min(kBlockK, g.k - k0);
    for (int64_t n0 = 0; n0 < g.n; n0 += kBlockN) {
      const int64_t width = std::min(kBlockN, g.n - n0);
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t j = 0; j < width; ++j) {
          block[size_t(k * kBlockN + j)] =
              g.transpose_b ? g.b[(n0 + j) * g.ldb + k0 + k] : g.b[(k0 + k) * g.ldb + n0 + j];
        }
      }
      for (int64_t i = 0; i < g.m; ++i) {
        float* c = g.c + i * g.ldc + n0;
        for (int64_t k = 0; k < depth; ++k) {
          const float a = g.alpha * (g.transpose_a ? g.a[(k0 + k) * g.lda + i] : g.a[i * g.lda + k0 + k]);
          const float* row = &block[size_t(k * kBlockN)];
          for (int64_t j = 0; j < width; ++j) c[j] += a * row[j];
        }
      }
    }
  }
}

void sgemm(const Gemm& g) {
  if (!openblas().sgemm) return sgemm_builtin(g);
  openblas().sgemm(kRowMajor, g.transpose_a ? kTranspose : kNoTranspose, g.transpose_b ? kTranspose : kNoTranspose,
                   int(g.m), int(g.n), int(g.k), g.alpha, g.a, int(g.lda), g.b, int(g.ldb), g.beta, g.c, int(g.ldc));
}

void set_sgemm_threads(int threads) {
  if (openblas().set_threads) openblas().set_threads(std::max(threads, 1));
}

const char* sgemm_name() { return openblas().sgemm ? "OpenBLAS" : "the built-in sgemm"; }

}  // namespace flashwave::cli

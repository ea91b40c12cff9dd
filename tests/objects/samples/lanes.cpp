// accumulate.cpp as NEON does it: the factors are lanes of registers.
namespace {
typedef float Vector __attribute__((vector_size(16)));
}

extern "C" void accumulate(const Vector* a, const Vector* b, Vector* c, long n) {
  Vector sum[ROWS][2] = {};
  for (long k = 0; k < n; ++k) {
#pragma clang loop unroll(full)
    for (int row = 0; row < ROWS; ++row) {
      sum[row][0] += a[k * ROWS / 4 + row / 4][row % 4] * b[2 * k];
      sum[row][1] += a[k * ROWS / 4 + row / 4][row % 4] * b[2 * k + 1];
    }
  }
  for (int row = 0; row < ROWS; ++row) c[2 * row] = sum[row][0], c[2 * row + 1] = sum[row][1];
}

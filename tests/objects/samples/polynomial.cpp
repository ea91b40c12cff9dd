// A loop of many multiply-adds that accumulates nothing: two polynomials with their coefficients in registers.
namespace {
typedef float Vector __attribute__((vector_size(WIDTH * 4), aligned(4)));
}

extern "C" void evaluate(const float* coefficients, Vector* x, long n) {
  Vector c[9];
  for (int k = 0; k < 9; ++k) c[k] = Vector{} + coefficients[k];
  for (long i = 0; i + 1 < n; i += 2) {
    Vector p = c[0], q = c[0];
#pragma clang loop unroll(full)
    for (int k = 1; k < 9; ++k) p = p * x[i] + c[k], q = q * x[i + 1] + c[k];
    x[i] = p;
    x[i + 1] = q;
  }
}

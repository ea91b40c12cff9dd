// The same for CPUs with AVX-512 (matrix_rows.h).
#define EMU_MATRIX_WIDE
#include "isa/mfma_scaled.cpp"

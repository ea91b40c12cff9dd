// The same for CPUs with AVX-512 (matrix_rows.h).
#ifdef __x86_64__
#define EMU_MATRIX_WIDE
#include "isa/mfma.cpp"
#endif

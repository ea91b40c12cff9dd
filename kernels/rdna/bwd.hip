// Backward attention: dK, dV and dQ in one kernel (dQ by fp32 atomics), or dK and dV in one and dQ in another, always the
// same bits. wave32, WMMA 16x16x16. NOTES-backward.md has the arithmetic and the reasons. One part of kernels.def is
// compiled at a time.
#include "kernels/rdna/bwd_entry.h"

namespace flashwave {
#include "kernels/rdna/kernels.def"
}  // namespace flashwave

// Forward attention for many queries: wave32, WMMA 16x16x16.
//
// S^T = K Q^T and O^T = V^T P^T, so that lane & 15 is the query throughout, and a row's maximum, sum and scale are
// those of a lane and its other half. NOTES.md has the arithmetic and the reasons. One part of kernels.def is compiled at a time.
#include "kernels/rdna/entry.h"

namespace flashwave {
#include "kernels/rdna/kernels.def"
}  // namespace flashwave

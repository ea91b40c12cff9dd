// Forward attention for many queries: wave32, WMMA 16x16x16.
//
// S^T = K Q^T and O^T = V^T P^T, so that lane & 15 is the query throughout, and a row's maximum, sum and scale are
// those of a lane and its other half. NOTES.md has the arithmetic and the reasons.
#include "kernels/rdna/entry.h"

#define FW_IN_rdna_fwd(...) FW_RDNA_ENTRY(__VA_ARGS__)
#define FW_IN_rdna_fwd_general(...)

namespace flashwave {
#include "kernels/rdna/variants.def"
}  // namespace flashwave

// Forward attention for many queries: mma.sync m16n8k16 (Ampere and later; sm_75: m16n8k8).
//
// FlashAttention-2's division of work: a CTA has a block of queries, a warp 16 or 32 of them and all keys of a tile, so
// that rows of S and O belong to one warp. NOTES.md has the arithmetic and the reasons. One part of kernels.def is
// compiled at a time.
#include "kernels/ampere/entry.h"

namespace flashwave {
#include "kernels/ampere/kernels.def"
}  // namespace flashwave

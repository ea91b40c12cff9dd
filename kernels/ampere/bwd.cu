// Backward attention: mma.sync m16n8k16 (Ampere and later; sm_75: m16n8k8). The algorithm is in bwd.h;
// NOTES-backward.md has the arithmetic and the reasons. One part of kernels.def is compiled at a time.
#include "kernels/ampere/bwd_entry.h"

namespace flashwave {
#include "kernels/ampere/kernels.def"
}  // namespace flashwave

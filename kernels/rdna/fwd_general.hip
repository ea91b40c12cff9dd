// The forward of fwd.hip with score modifiers, sinks and dropout.
#include "kernels/rdna/entry.h"

#define FW_IN_rdna_fwd(...)
#define FW_IN_rdna_fwd_general(...) FW_RDNA_ENTRY(__VA_ARGS__)

namespace flashwave {
#include "kernels/rdna/variants.def"
}  // namespace flashwave

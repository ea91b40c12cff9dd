// The forward of fwd.cu with score modifiers, sinks and dropout, for tensors at any address.
#include "kernels/ampere/entry.h"

#define FW_IN_ampere_fwd(...)
#define FW_IN_ampere_fwd_general(...) FW_AMPERE_ENTRY(__VA_ARGS__)

namespace flashwave {
#include "kernels/ampere/variants.def"
}  // namespace flashwave

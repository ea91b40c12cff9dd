// Forward kernels of compute capability 9.0 with score modifiers and dropout.
#include "kernels/hopper/entry.h"

#define FW_IN_hopper_fwd(...)
#define FW_IN_hopper_fwd_general FW_HOPPER_FORWARD
#include "kernels/hopper/variants.def"

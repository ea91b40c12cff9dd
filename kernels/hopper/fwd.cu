// Forward kernels of compute capability 9.0. The algorithm is in fwd.h, instructions in isa.h and wgmma.h, the list of
// kernels in variants.def.
#include "kernels/hopper/entry.h"

#define FW_IN_hopper_fwd FW_HOPPER_FORWARD
#define FW_IN_hopper_fwd_general(...)
#include "kernels/hopper/variants.def"

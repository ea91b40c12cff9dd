// Backward kernels of compute capability 9.0. The algorithm is in bwd.h, instructions in isa.h and wgmma.h, the list of
// kernels in kernels.def, of which one part is compiled at a time.
#include "kernels/hopper/bwd_entry.h"

#include "kernels/hopper/kernels.def"

// Backward kernels of CDNA. The algorithm is in bwd.h, instructions in isa.h, the list of kernels in kernels.def, of which
// one part is compiled at a time.
#include "kernels/cdna/bwd_entry.h"

#include "kernels/cdna/kernels.def"

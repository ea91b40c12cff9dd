// Forward kernels of CDNA. The algorithm is in fwd.h, instructions in isa.h, the list of kernels in kernels.def, of which one
// part is compiled at a time.
#include "kernels/cdna/entry.h"

#include "kernels/cdna/kernels.def"

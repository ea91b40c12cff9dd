// Forward kernels of CDNA. The algorithm is in fwd.h, instructions in isa.h, the list of kernels in variants.def.
#include "kernels/cdna/entry.h"

#define FW_IN_cdna_fwd FW_CDNA_FORWARD
#define FW_IN_cdna_fwd_general(...)
#include "kernels/cdna/variants.def"

// Forward kernels of CDNA2 to CDNA4. The algorithm is in fwd.h, instructions in isa.h, the list of kernels in
// variants.def.
#include "kernels/cdna/entry.h"

#define FW_IN_cdna_fwd FW_CDNA_FORWARD
#define FW_IN_cdna_fwd_general(...)
#define FW_IN_cdna_fwd_gfx908(...)
#define FW_IN_cdna_fwd_gfx908_general(...)
#include "kernels/cdna/variants.def"

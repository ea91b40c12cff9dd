// Forward kernels of CDNA2 to CDNA4 with score modifiers and dropout.
#include "kernels/cdna/entry.h"

#define FW_IN_cdna_fwd(...)
#define FW_IN_cdna_fwd_general FW_CDNA_FORWARD
#define FW_IN_cdna_fwd_gfx908(...)
#define FW_IN_cdna_fwd_gfx908_general(...)
#include "kernels/cdna/variants.def"

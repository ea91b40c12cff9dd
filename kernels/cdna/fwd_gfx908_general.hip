// Forward kernels of gfx908 with score modifiers and dropout.
#include "kernels/cdna/entry.h"

#define FW_IN_cdna_fwd(...)
#define FW_IN_cdna_fwd_general(...)
#define FW_IN_cdna_fwd_gfx908(...)
#define FW_IN_cdna_fwd_gfx908_general FW_CDNA_FORWARD
#include "kernels/cdna/variants.def"

// Forward kernels of gfx908, where a wave's registers ask for other tiles.
#include "kernels/cdna/entry.h"

#define FW_IN_cdna_fwd(...)
#define FW_IN_cdna_fwd_general(...)
#define FW_IN_cdna_fwd_gfx908 FW_CDNA_FORWARD
#define FW_IN_cdna_fwd_gfx908_general(...)
#include "kernels/cdna/variants.def"

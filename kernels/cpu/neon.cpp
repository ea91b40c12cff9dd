// The CPU kernels for one instruction set; the flags that select it are this file's own (kernels/cpu/CMakeLists.txt).
#include "kernels/cpu/instantiate.h"

namespace flashwave {
FW_CPU_ENTRY(neon_decode_m8n64, decode)
FW_CPU_ENTRY(neon_fwd_m8n96, forward)
FW_CPU_ENTRY(neon_bwd_m8n96, backward)
FW_CPU_ENTRY(neon_rotary, rotary)
}  // namespace flashwave

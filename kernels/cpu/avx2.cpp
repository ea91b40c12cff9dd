// The CPU kernels for one instruction set; the flags that select it are this file's own (kernels/cpu/CMakeLists.txt).
#include "kernels/cpu/instantiate.h"

namespace flashwave {
FW_CPU_ENTRY(avx2_decode_m16n64, decode)
FW_CPU_ENTRY(avx2_fwd_m16n96, forward)
FW_CPU_ENTRY(avx2_bwd_m16n96, backward)
FW_CPU_ENTRY(avx2_rotary, rotary)
}  // namespace flashwave

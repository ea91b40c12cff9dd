// The CPU kernels for one instruction set; the flags that select it are this file's own (kernels/cpu/CMakeLists.txt).
#include "kernels/cpu/instantiate.h"

namespace flashwave {
FW_CPU_ENTRY(avx512_decode_m32n64, decode)
FW_CPU_ENTRY(avx512_fwd_m32n96, forward)
FW_CPU_ENTRY(avx512_bwd_m32n96, backward)
FW_CPU_ENTRY(avx512_rotary, rotary)
}  // namespace flashwave

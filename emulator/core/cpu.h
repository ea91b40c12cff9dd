// The CPU that executes.
#pragma once

namespace emu {

// AVX-512 F, BW, DQ, VL and VBMI. FLASHWAVE_EMU_AVX512=0: as on a CPU without them.
bool cpu_has_avx512();

}  // namespace emu

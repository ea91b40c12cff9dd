// The CPU that executes.
#pragma once

namespace emu {

// AVX-512 F, BW, DQ, VL and VBMI. FLASHWAVE_EMU_AVX512=0: as on a CPU without them.
bool cpu_has_avx512();
// And AVX512-BF16, whose sums of products are found to be what its description says (isa/matrix_pairs.h).
bool cpu_has_bf16_products();

}  // namespace emu

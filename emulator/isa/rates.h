// How long a SIMD is busy with the vector instructions that are slower on some parts than on others, in cycles of a
// wave64 (4 = full rate). From the scheduling models of LLVM (SISchedule.td): since gfx90a the 64-bit datapath does
// these at full rate.
#pragma once

#include "core/target.h"

namespace emu {

inline u16 cycles_of_int_multiply(const Target& target) { return target.cdna >= 2 ? 4 : 16; }  // 32-bit mul, mad_u64
inline u16 cycles_of_64bit(const Target& target) { return target.cdna >= 2 ? 4 : 8; }          // shifts, compares
inline u16 cycles_of_f64(const Target& target) { return target.cdna >= 2 ? 4 : target.cdna == 1 ? 8 : 64; }

}  // namespace emu

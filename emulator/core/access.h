// The gate every memory instruction passes before it touches bytes: bounds always, checkers and counters where on.
#pragma once

#include "core/wave.h"

namespace emu {

enum class AccessKind : u8 { read, write, atomic };

// One access of `bytes` at address[lane] for each lane of `lanes`. Returns the lanes that may go on; the others read 0
// and write nothing. Call once per address row (twice for ds_read2).
u64 begin_lds(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind);
// A read by an instruction that, unlike plain ones, needs aligned addresses.
u64 begin_lds_aligned(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, u32 alignment);
// A direct-to-LDS load writes LDS when its VMEM load completes, not when LDS instructions do.
u64 begin_lds_from_memory(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes);
u64 begin_global(Wave& wave, const Instruction& at, const u64* address, u64 lanes, u32 bytes, AccessKind kind);
// One access by the wave (scalar loads): false if it must not go on.
bool begin_scalar(Wave& wave, const Instruction& at, u64 address, u32 bytes);
// Scratch: offset[lane] within the lane's private memory.
u64 begin_scratch(Wave& wave, const Instruction& at, const u32* offset, u64 lanes, u32 bytes, AccessKind kind);

// Where byte `offset` of a lane's private memory lives. Dwords are interleaved over the lanes.
inline u8* scratch_byte(Wave& wave, u32 lane, u32 offset) {
  return wave.scratch.data() + (static_cast<size_t>(offset / 4) * wave.lanes + lane) * 4 + offset % 4;
}
inline u8* memory_at(u64 address) { return reinterpret_cast<u8*>(address); }

}  // namespace emu

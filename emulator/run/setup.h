// What the hardware and the runtime hand to a kernel: argument memory, dispatch packet, initial registers.
#pragma once

#include "core/launch.h"

namespace emu {

// Lives as long as the launch.
struct DispatchMemory {
  std::vector<u8> bytes;
  u64 arguments = 0, packet = 0, queue = 0;  // addresses
  std::vector<Region> regions;
};
DispatchMemory make_dispatch(const Program& program, const Kernel& kernel, const LaunchShape& shape,
                             const void* arguments, size_t argument_bytes);

u32 scratch_per_lane(const Kernel& kernel);
// Registers of wave `id` of a workgroup when it starts.
void start_wave(Wave& wave, int id, Workgroup& group, const LaunchShape& shape, const DispatchMemory& memory);

}  // namespace emu

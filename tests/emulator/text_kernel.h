// A kernel written as assembly, launched as any other.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/launch.h"

namespace emu_test {

struct TextKernel {
  std::string target;
  // Starts with the address of a buffer of 64 KiB in s[4:5] and v[2:3], the work-item's number times 4 in v1, and
  // registers v0 to v3 and s0 to s7 initialised. s_endpgm is added.
  std::string body;
  int waves = 1;
  emu::u32 lds_bytes = 0;
};

// Assembled and linked; the same text only once. Throws std::runtime_error with what LLVM says.
const emu::Program& program_of(const TextKernel& kernel);

emu::LaunchResult launch(const TextKernel& kernel, emu::RunOptions options = {});

}  // namespace emu_test

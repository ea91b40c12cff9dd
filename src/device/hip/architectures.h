// AMD's GPUs by architecture: what their instruction sets offer, and whose machine code they run.
#pragma once

#include <cstdint>
#include <string_view>

namespace flashwave {

struct Architecture {
  const char* name;      // "gfx1101"
  const char* code;      // the one kernels are compiled for that it executes: "gfx1100"
  uint32_t elf_machine;  // EF_AMDGPU_MACH of its own name, which a loader wants to see in a code object
  uint32_t isa;          // Isa bits
};

// nullptr if nothing is known about it.
const Architecture* find_architecture(std::string_view name);

}  // namespace flashwave

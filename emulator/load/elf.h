// The ELF side of a code object: segments, relocations, symbols, kernel descriptors, metadata.
#pragma once

#include <vector>

#include "core/program.h"

namespace emu {

struct CodeRange {
  u64 begin = 0, end = 0;  // addresses in the image
};

// Fills target, image, kernels and globals of `program` from program.file. Returns where instructions are.
std::vector<CodeRange> read_elf(Program& program);

}  // namespace emu

// Which machine code an NVIDIA GPU runs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "device/code_archive.h"

namespace flashwave::cuda {

// How well a GPU of that compute capability (90: 9.0) runs code for `arch`; 0: not at all. Machine code made for it
// ("sm_90a") before that of an older one of its generation ("sm_80" runs on 8.9) before PTX, which the driver compiles
// ("compute_80").
int preference(std::string_view arch, int capability);

// Isa bits of a GPU of that compute capability.
uint32_t instruction_sets(int capability);

// What it can run of a source, best first.
std::vector<const ArchiveEntry*> find_code(const CodeArchive& archive, std::string_view source, int capability);

}  // namespace flashwave::cuda

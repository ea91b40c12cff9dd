// The kernels of NVIDIA GPUs as the driver sees them: how each is launched, and which machine code a GPU runs.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/code_archive.h"

namespace flashwave::cuda {

struct Kernel {
  const char *name, *source;
  int32_t threads, shared_bytes;
  int32_t dim_qk, dim_v, tile_q, tile_k;  // for its tensor maps
  uint32_t needs;                         // Needs bits
};

const Kernel* find_kernel(std::string_view name);  // nullptr: there is none of that name

// Of a source, what a GPU of that compute capability (90: 9.0) can run: machine code made for it ("sm_90a"), else for
// an older one of its generation ("sm_80" runs on 8.9), else PTX that the driver compiles ("compute_80"). `rank` 0 is
// the best; nullptr if there are not that many.
const ArchiveEntry* find_code(std::string_view source, int capability, int rank);

bool has_code(int capability);  // any kernel at all

}  // namespace flashwave::cuda

// Work on the threads of an OpenMP runtime that the program has loaded for itself.
#pragma once

#include "base/status.h"
#include "flashwave/flashwave.h"

namespace flashwave {

// Finds the runtime at `library`, which must be in the process already: libgomp, or libomp and libiomp5, which offer
// libgomp's entry points as well. The executor lives as long as the process.
Status openmp_executor(const char* library, const fw_executor** executor);

}  // namespace flashwave

// The words of the GPU that is compiled for. All headers offer the same names as far as shared kernels use them; that
// of the host is for unit tests.
#pragma once

#if defined(__AMDGCN__)
#include "kernels/amd/gpu.h"
#elif defined(__CUDACC__) || defined(__CUDA__)
#include "kernels/nvidia/gpu.h"
#else
#include "kernels/common/host.h"
#endif

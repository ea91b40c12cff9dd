// The words of the GPU that is compiled for. Both headers offer the same names as far as shared kernels use them.
#pragma once

#if defined(__AMDGCN__)
#include "kernels/amd/gpu.h"
#else
#include "kernels/nvidia/gpu.h"
#endif

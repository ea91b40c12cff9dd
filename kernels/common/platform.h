// How a small shared function is declared. Always inlined: the same header is compiled with different instruction
// sets into one library, and a stray out-of-line copy (the linker keeps any one of them) could be the AVX-512 one.
#pragma once

// nvcc says __CUDACC__, clang __HIP__ or __CUDA__.
#if defined(__CUDACC__) || defined(__CUDA__) || defined(__HIP__)
#define FW_FN inline __attribute__((host, device, always_inline))
#else
#define FW_FN inline __attribute__((always_inline))
#endif

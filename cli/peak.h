// What the machine can do at most: multiply-adds per second and bytes read per second, measured in this process.
#pragma once

#include <cstdint>
#include <string>

namespace flashwave::cli {

enum class VectorWidth { kNone, kSse, kAvx2, kAvx512 };

// The width a CPU kernel works with, from its name: avx512_..., avx2_..., else SSE (kNone where there is no x86).
VectorWidth width_of_kernel(const std::string& kernel);
const char* width_name(VectorWidth width);

// GFLOP/s of independent multiply-adds held in registers, on `threads` threads at once. 0 if the width is kNone.
double peak_gflops(VectorWidth width, int threads);

// GB/s of reading an array much larger than the caches, best of a few passes.
double read_bandwidth_gbs(int threads);

}  // namespace flashwave::cli

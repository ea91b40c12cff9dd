// What the machine can do at most: multiply-adds per second and bytes read per second, measured in this process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashwave::cli {

enum class VectorWidth { kNone, kSse, kAvx2, kAvx512, kPairs, kAmx, kAmxFp16, kNeon, kCount };

// What a CPU kernel multiplies with, from its name: amx_..., amx_fp16_..., zen4_... (pairs of bf16), avx512_...,
// avx2_..., else SSE. On aarch64 all multiply with NEON; kNone on other machines.
VectorWidth width_of_kernel(const std::string& kernel);
const char* width_name(VectorWidth width);

// GFLOP/s of independent multiply-adds held in registers, on `threads` threads at once, in the threads' own time. 0 if
// the width is kNone. kAmx only after the library has run a kernel on tiles: it is who asks the operating system for
// them.
double peak_gflops(VectorWidth width, int threads);

// Shared hosts slow the tile unit down to less than half for milliseconds to seconds: whether this peak, beside the
// best of this process, is one of such a time.
bool throttled(VectorWidth width, int threads, double gflops);

// Time that this thread alone (threads = 1), or the whole process, has spent on a core.
double cpu_seconds(int threads);

// Reads an array much larger than the caches.
class ReadLoop {
 public:
  ReadLoop();
  double gbs(int threads) const;  // of one pass; with one thread in its own time

 private:
  std::vector<uint64_t> data_;
};
double read_bandwidth_gbs(int threads);  // best of a few passes

}  // namespace flashwave::cli

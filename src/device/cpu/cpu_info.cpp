#include "device/cpu/cpu_info.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include "base/isa.h"
#include "device/cpu/tiles.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace flashwave {
namespace {

// Whole cores' worth of time the control group grants (version 2, then version 1); 0 = no limit known.
int64_t quota_cores() {
  int64_t quota = 0, period = 0;
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  if (v2) {
    if (!(v2 >> quota >> period)) return 0;  // "max 100000"
  } else {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? std::max<int64_t>(1, (quota + period - 1) / period) : 0;
}

int64_t affinity_cores() {
#if defined(__linux__)
  // The kernel refuses a mask smaller than its own, so grow until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<size_t>(cpus));
    if (mask == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool known = sched_getaffinity(0, bytes, mask) == 0;
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (known) return count;
  }
#endif
  return std::thread::hardware_concurrency();
}

// What a limit's word leaves at most: the instruction sets that kernels are compiled for on this kind of machine.
struct Limit {
  std::string_view word;
  uint32_t most;
};
constexpr Limit kLimits[] = {
    {"portable", kIsaNone},
#if defined(__x86_64__)
    {"avx2", kIsaAvx2},
    {"avx512", kIsaAvx2 | kIsaAvx512},
    {"zen4", kIsaAvx2 | kIsaAvx512 | kIsaZen4},
    {"amx", kIsaAvx2 | kIsaAvx512 | kIsaZen4 | kIsaAmx},
    {"amx_fp16", kIsaAvx2 | kIsaAvx512 | kIsaZen4 | kIsaTiles},
#elif defined(__aarch64__)
    {"neon", kIsaNeon},
#endif
};
static_assert(std::end(kLimits)[-1].most == kCompiledCpuIsa);

}  // namespace

uint32_t detected_isa() {
  uint32_t isa = kIsaNone;
#if defined(__x86_64__)
  // These read CPUID and, for the wide registers, XGETBV: a CPU whose operating system does not save them counts as
  // not having them.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    isa |= kIsaAvx2;
    // The AVX-512 kernels are compiled with FMA and F16C too.
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      isa |= kIsaAvx512;
      if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"))
        isa |= kIsaZen4;  // Intel's has half the rate
      isa |= tile_isa();
    }
  }
#elif defined(__aarch64__)
  isa |= kIsaNeon;  // part of the architecture
#endif
  return isa;
}

bool limited_isa(uint32_t detected, const char* limit, uint32_t* offered) {
  const std::string_view word = limit == nullptr ? "" : limit;
  *offered = detected;
  if (word.empty()) return true;
  for (const Limit& known : kLimits) {
    if (word == known.word) {
      *offered = detected & known.most;
      return true;
    }
  }
  return false;
}

std::string limit_words() {
  std::string words;
  for (const Limit& known : kLimits) {
    if (!words.empty()) words += &known == std::end(kLimits) - 1 ? " or " : ", ";
    words += known.word;
  }
  return words;
}

std::string arch_name(uint32_t isa) {
#if defined(__x86_64__)
  std::string base = "x86-64";
#elif defined(__aarch64__)
  std::string base = "aarch64";
#else
  std::string base = "generic";
#endif
  if (isa & kIsaAmxFp16) return base + "+amx_fp16";
  if (isa & kIsaAmx) return base + "+amx";
  if (isa & kIsaAvx512) return base + "+avx512";
  if (isa & kIsaAvx2) return base + "+avx2";
  if (isa & kIsaNeon) return base + "+neon";
  return base;
}

std::string cpu_brand() {
#if defined(__x86_64__)
  constexpr unsigned kFirst = 0x80000002u, kLast = 0x80000004u;  // 16 letters each
  unsigned registers[4];
  if (__get_cpuid_max(0x80000000u, nullptr) >= kLast) {
    std::string brand;
    for (unsigned leaf = kFirst; leaf <= kLast; ++leaf) {
      __get_cpuid(leaf, &registers[0], &registers[1], &registers[2], &registers[3]);
      char letters[sizeof registers];
      std::memcpy(letters, registers, sizeof registers);
      brand.append(letters, sizeof letters);
    }
    brand.resize(std::min(brand.find('\0'), brand.size()));
    const size_t first = brand.find_first_not_of(' '), last = brand.find_last_not_of(' ');
    if (first != std::string::npos) return brand.substr(first, last - first + 1);
  }
#endif
  return "CPU";
}

int64_t usable_cores() {
  int64_t cores = std::max<int64_t>(1, affinity_cores());
  if (const int64_t quota = quota_cores()) cores = std::min(cores, quota);
  return cores;
}

int64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? int64_t{pages} * page : 0;
}

}  // namespace flashwave

#include "device/cpu/cpu_info.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

#include "base/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
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

#if defined(__x86_64__) && defined(__linux__)

// CPUID leaf 7: EDX bits 22 (AMX-BF16) and 24 (AMX-TILE); subleaf 1, EAX bit 5: AVX512_BF16. XCR0 bits 17 and 18: the
// operating system saves tiles. Leaf 1Dh, which describes the tiles, is not asked: some hypervisors leave it zero, and
// palette 1 is the only one there is (8 tiles of 16 rows of 64 bytes).
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 1) == 0 || (d >> 24 & 1) == 0 || (b >> 8 & 1) == 0) {
    return false;
  }
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a >> 5 & 1) == 0) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;
}

bool request_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM; Linux, arch/x86/xstate.rst
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else
[[maybe_unused]] bool has_amx() { return false; }
bool request_tiles() { return false; }
#endif

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
#elif defined(__aarch64__)
    {"neon", kIsaNeon},
#endif
};
static_assert(std::end(kLimits)[-1].most == kCompiledCpuIsa);

}  // namespace

bool tiles_granted() {
  static const bool granted = request_tiles();  // a child process inherits what its parent was granted
  return granted;
}

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
      if (has_amx()) isa |= kIsaAmx;
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

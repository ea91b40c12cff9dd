#include "core/cpu.h"

#include <cstdlib>
#include <cstring>

namespace emu {

bool cpu_has_avx512() {
#ifdef __x86_64__
  static const bool has = [] {
    const char* wanted = std::getenv("FLASHWAVE_EMU_AVX512");
    return !(wanted && std::strcmp(wanted, "0") == 0) && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi");
  }();
  return has;
#else
  return false;
#endif
}

}  // namespace emu

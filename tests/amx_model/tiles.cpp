// Tiles that are modelled: they take no CPU with AMX and nobody's leave, but the vector instructions beside them.
#include "device/cpu/tiles.h"

#include <cstdio>

#include "base/isa.h"

namespace flashwave {

uint32_t tile_isa() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("bmi2") ? kIsaTiles : uint32_t{kIsaNone};
}

bool tiles_granted() {
  static const bool granted = std::fputs("flashwave: tile instructions modelled in C++\n", stderr) >= 0;
  return granted;
}

}  // namespace flashwave

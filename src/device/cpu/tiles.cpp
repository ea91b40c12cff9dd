#include "device/cpu/tiles.h"

#include "base/isa.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace flashwave {
namespace {

#if defined(__x86_64__) && defined(__linux__)

// CPUID leaf 7: EDX bits 22 (AMX-BF16) and 24 (AMX-TILE), EBX bit 8: BMI2; subleaf 1, EAX bits 5 (AVX512_BF16) and 21
// (AMX-FP16). XCR0 bits 17 and 18: the operating system saves tiles. Leaf 1Dh, which describes the tiles, is not asked:
// some hypervisors leave it zero, and palette 1 is the only one there is (8 tiles of 16 rows of 64 bytes).
uint32_t detected() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 1) == 0 || (d >> 24 & 1) == 0 || (b >> 8 & 1) == 0) {
    return kIsaNone;
  }
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a >> 5 & 1) == 0) return kIsaNone;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3) != 3) return kIsaNone;
  return (a >> 21 & 1) != 0 ? kIsaTiles : uint32_t{kIsaAmx};
}

bool request() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM; Linux, arch/x86/xstate.rst
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else
uint32_t detected() { return kIsaNone; }
bool request() { return false; }
#endif

}  // namespace

uint32_t tile_isa() { return detected(); }

bool tiles_granted() {
  static const bool granted = request();  // a child process inherits what its parent was granted
  return granted;
}

}  // namespace flashwave

// Which addresses a kernel may touch. Device addresses are host addresses.
#pragma once

#include <string>
#include <vector>

#include "core/bits.h"

namespace emu {

struct Region {
  u64 begin = 0, end = 0;
  std::string name;  // "allocation of 4096 bytes", "kernel arguments", "code object"
  bool writable = true;
  bool freed = false;  // kept to say so
};

// A snapshot taken when a kernel starts. Read by several threads.
class MemoryMap {
 public:
  explicit MemoryMap(std::vector<Region> regions);  // any order; live ones must not overlap
  // The live region that holds all of [address, address + bytes), or nullptr.
  const Region* find(u64 address, u64 bytes) const;
  // For reports: "8 bytes past the end of allocation of 4096 bytes", "in freed ...".
  std::string describe(u64 address, u64 bytes) const;

 private:
  std::vector<Region> live_;  // by begin
  std::vector<Region> freed_;
};

// Flat addresses in these windows mean LDS and scratch (LLVM "AMDGPU Backend", Address Spaces).
constexpr u64 kSharedAperture = 1ull << 48;
constexpr u64 kPrivateAperture = 2ull << 48;

}  // namespace emu

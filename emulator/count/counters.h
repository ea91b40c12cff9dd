// Counts of one launch, and what they imply.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "core/access.h"
#include "core/program.h"

namespace emu {

// Filled per thread while workgroups run, joined at the end.
class AccessCounter {
 public:
  AccessCounter(const Program& program);
  void lds(const Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind);
  void global(const Wave& wave, const Instruction& at, const u64* address, u64 lanes, u32 bytes, AccessKind kind);
  void join(const AccessCounter& other);

  // By instruction index.
  std::vector<u64> lds_cycles, lds_ideal_cycles, lds_accesses;
  u64 vmem_bytes = 0, atomic_bytes = 0, store_bytes = 0;
  std::unordered_set<u64> sectors;  // 32-byte pieces of memory touched at least once
  const Target* target;
};

}  // namespace emu

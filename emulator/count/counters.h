// Memory accesses of one launch: LDS clocks with bank conflicts, bytes moved.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/access.h"
#include "core/program.h"

namespace emu {

// Which 32-byte pieces of memory were touched.
class SectorSet {
 public:
  void insert(u64 address, u32 bytes);
  void join(const SectorSet& other);
  u64 bytes() const;

 private:
  struct Page {  // 4 KiB: 128 sectors
    u64 bits[2] = {0, 0};
  };
  std::unordered_map<u64, Page> pages_;
  u64 last_page_ = ~0ull;
  Page* last_ = nullptr;  // elements of the map stay where they are
};

// Filled per thread while workgroups run, joined at the end.
class AccessCounter {
 public:
  explicit AccessCounter(const Program& program);
  void lds(const Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind);
  void global(const Wave& wave, const Instruction& at, const u64* address, u64 lanes, u32 bytes, AccessKind kind);
  void join(const AccessCounter& other);

  // By instruction index. Clocks of the compute unit's LDS; ideal: had there been no bank conflicts.
  std::vector<u64> lds_cycles, lds_ideal_cycles;
  u64 vmem_bytes = 0;  // all of them; stores and atomics are part of it
  u64 store_bytes = 0, atomic_bytes = 0;
  SectorSet sectors;
  const Target* target;
};

}  // namespace emu

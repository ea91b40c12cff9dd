#include "core/access.h"

#include "check/checker.h"
#include "core/memory_map.h"
#include "core/report.h"
#include "count/counters.h"

namespace emu {
namespace {

int first_lane(u64 lanes) { return __builtin_ctzll(lanes); }

template <class F>
void each_lane(u64 lanes, F f) {
  for (; lanes; lanes &= lanes - 1) f(__builtin_ctzll(lanes));
}

bool checks(const Wave& wave) { return wave.checker != nullptr; }

// The usual case, all lanes active and within bounds, without a branch per lane: bounds of the row in vector code.
struct LdsRow {
  u32 last = 0, bits = 0;  // highest address; addresses or-ed together
  LdsRow(const u32* address, int lanes) {
    for (int l = 0; l < lanes; ++l) {
      last = address[l] > last ? address[l] : last;
      bits |= address[l];
    }
  }
};
struct GlobalRow {
  u64 first = ~0ull, last = 0, bits = 0;
  GlobalRow(const u64* address, int lanes) {
    for (int l = 0; l < lanes; ++l) {
      first = address[l] < first ? address[l] : first;
      last = address[l] > last ? address[l] : last;
      bits |= address[l];
    }
  }
};

u64 lds_lanes_inside(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, u32 alignment) {
  const u64 size = wave.group->lds.size();
  if (lanes == wave.full_mask) {
    const LdsRow row(address, wave.lanes);
    if (static_cast<u64>(row.last) + bytes <= size && !(row.bits & (alignment - 1))) return lanes;
  }
  u64 outside = 0;
  u32 all_bits = 0;
  each_lane(lanes, [&](int lane) {
    if (static_cast<u64>(address[lane]) + bytes > size) outside |= 1ull << lane;
    all_bits |= address[lane];
  });
  if (outside) {
    const int lane = first_lane(outside);
    wave.group->log->add_at(
        Check::bounds, wave, at,
        std::to_string(bytes) + " bytes outside the workgroup's " + std::to_string(size) + " bytes of LDS", lane,
        address[lane]);
  }
  if (checks(wave) && (all_bits & (alignment - 1))) {
    each_lane(lanes, [&](int lane) {
      if (address[lane] & (alignment - 1)) {
        wave.group->log->add_at(Check::misaligned, wave, at,
                                "LDS access of " + std::to_string(bytes) + " bytes is not aligned", lane,
                                address[lane]);
      }
    });
  }
  return lanes & ~outside;
}

u64 through_lds(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind,
                u32 alignment, bool from_memory) {
  lanes = lds_lanes_inside(wave, at, address, lanes, bytes, alignment);
  Workgroup& group = *wave.group;
  if (group.lds_checker && lanes) group.lds_checker->access(wave, at, address, lanes, bytes, kind, from_memory);
  if (group.counter) group.counter->lds(wave, at, address, lanes, bytes, kind);
  return lanes;
}

}  // namespace

// amdhsa switches unaligned access mode on, and LDS of all these GPUs can do it: plain reads and writes of any width
// take any address, and compilers use them so (LLVM: features unaligned-access-mode and unaligned-ds-access,
// SITargetLowering::allowsMisalignedMemoryAccessesImpl). Atomics need the alignment of their size in every mode.
u64 begin_lds(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, AccessKind kind) {
  return through_lds(wave, at, address, lanes, bytes, kind, kind == AccessKind::atomic ? bytes : 1, false);
}

u64 begin_lds_aligned(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes, u32 alignment) {
  return through_lds(wave, at, address, lanes, bytes, AccessKind::read, alignment, false);
}

u64 begin_lds_from_memory(Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes) {
  constexpr u32 kDword = 4;  // lanes follow each other by dwords
  return through_lds(wave, at, address, lanes, bytes, AccessKind::write, kDword, true);
}

u64 begin_global(Wave& wave, const Instruction& at, const u64* address, u64 lanes, u32 bytes, AccessKind kind) {
  const MemoryMap& memory = *wave.group->memory;
  const bool writes = kind != AccessKind::read;
  if (lanes == wave.full_mask) {
    const GlobalRow row(address, wave.lanes);
    const Region* region = row.last < ~0ull - bytes ? memory.find(row.first, row.last - row.first + bytes) : nullptr;
    if (region && (region->writable || !writes) && (kind != AccessKind::atomic || !(row.bits & (bytes - 1)))) {
      if (wave.group->counter) wave.group->counter->global(wave, at, address, lanes, bytes, kind);
      return lanes;
    }
  }
  u64 refused = 0, all_bits = 0;
  u64 begin = 1, end = 0;  // of the region the last lane was in: neighbours are mostly in the same one
  each_lane(lanes, [&](int lane) {
    const u64 a = address[lane];
    all_bits |= a;
    if (a >= begin && a + bytes <= end) return;
    const Region* region = memory.find(a, bytes);
    if (region && (region->writable || !writes)) {
      begin = region->begin;
      end = region->end;
      return;
    }
    refused |= 1ull << lane;
    const std::string what = region ? "write to " + region->name
                                    : std::string(writes ? "write of " : "read of ") + std::to_string(bytes) +
                                          " bytes " + memory.describe(a, bytes);
    wave.group->log->add_at(Check::bounds, wave, at, what, lane, a);
  });
  if (kind == AccessKind::atomic && (all_bits & (bytes - 1))) {
    each_lane(lanes & ~refused, [&](int lane) {
      if (!(address[lane] & (bytes - 1))) return;
      refused |= 1ull << lane;  // the hardware raises a memory violation
      wave.group->log->add_at(Check::misaligned, wave, at,
                              "atomic of " + std::to_string(bytes) + " bytes is not aligned", lane, address[lane]);
    });
  }
  if (wave.group->counter) wave.group->counter->global(wave, at, address, lanes & ~refused, bytes, kind);
  return lanes & ~refused;
}

bool begin_scalar(Wave& wave, const Instruction& at, u64 address, u32 bytes) {
  const MemoryMap& memory = *wave.group->memory;
  if (memory.find(address, bytes)) return true;
  wave.group->log->add_at(Check::bounds, wave, at,
                          "scalar read of " + std::to_string(bytes) + " bytes " + memory.describe(address, bytes), -1,
                          address);
  return false;
}

u64 begin_scratch(Wave& wave, const Instruction& at, const u32* offset, u64 lanes, u32 bytes, AccessKind kind) {
  u64 outside = 0;
  each_lane(lanes, [&](int lane) {
    if (static_cast<u64>(offset[lane]) + bytes > wave.scratch_bytes_per_lane) outside |= 1ull << lane;
  });
  if (outside) {
    const int lane = first_lane(outside);
    wave.group->log->add_at(Check::bounds, wave, at,
                            std::to_string(bytes) + " bytes outside the lane's " +
                                std::to_string(wave.scratch_bytes_per_lane) + " bytes of scratch",
                            lane, offset[lane]);
  }
  return lanes & ~outside;
}

}  // namespace emu

// What the checker of LDS keeps of a dword.
#pragma once

#include "core/bits.h"

namespace emu {

// The last write of a byte, in one word so that equal ones compare at once.
struct Write {
  u64 bits = 0;  // 0: never written; or the dword is kept by bytes, and this is where
  static Write split_at(u64 index) { return {kSplit | index}; }
  bool operator==(const Write&) const = default;
  static constexpr int kSignals = 32, kWave = 54, kMemory = 60, kAtomic = 61, kValid = 62;
  static constexpr u64 kSignalMask = (1ull << (kWave - kSignals)) - 1;
  static constexpr u64 kSplit = 1ull << kAtomic;  // and not valid

  static Write make(u32 sequence, u32 signals, int wave, bool from_memory, bool atomic) {
    return {sequence | (signals & kSignalMask) << kSignals | static_cast<u64>(wave) << kWave |
            static_cast<u64>(from_memory) << kMemory | static_cast<u64>(atomic) << kAtomic | 1ull << kValid};
  }
  bool valid() const { return bits >> kValid & 1; }
  bool split() const { return bits >> kAtomic == 1; }
  u32 sequence() const { return static_cast<u32>(bits); }
  u32 signals() const { return static_cast<u32>(bits >> kSignals & kSignalMask); }
  int wave() const { return static_cast<int>(bits >> kWave & 63); }
  bool from_memory() const { return bits >> kMemory & 1; }
  bool atomic() const { return bits >> kAtomic & 1; }
};

struct alignas(16) Cell {
  Write write;
  // Waves that have read since, and the number of barriers they had signalled (the latest such number only).
  u32 readers = 0, reader_signals = 0;
  bool operator==(const Cell&) const = default;
};

// Four dwords. An access of 16 bytes is usually one of these, and one line of the CPU's cache.
struct alignas(64) CellLine {
  Cell cell[4];
};

// Which writes of a wave another one may read: those before a barrier both know of, and waited for by then.
struct Limit {
  u32 signals = 0;   // fewer than these
  u32 sequence = 0;  // at most this
  bool allows(const Write& w) const { return w.signals() < signals && w.sequence() <= sequence; }
};
inline size_t limit_index(const Write& w) { return static_cast<size_t>(w.wave()) * 2 + w.from_memory(); }

// What an access does to the cells it meets, and what it may meet.
struct CellAccess {
  Write mine;
  u32 passed = 0, signals = 0, bit = 0;  // barriers that the wave passed and signalled; 1 << wave
  const Limit* limits = nullptr;         // by limit_index
  // What all other waves had waited for before the barrier that the wave passed, and what it has itself.
  u32 lds_done = 0, memory_done = 0, own_memory_done = 0;

  bool may_read(const Write& w) const { return w.valid() && limits[limit_index(w)].allows(w); }
  bool may_overwrite(const Write& w) const {
    if (w.split() || !w.valid()) return !w.split();
    const Limit& limit = limits[limit_index(w)];
    return w.signals() < limit.signals && !(w.from_memory() && w.sequence() > limit.sequence);
  }
  bool is_read_by_others(const Cell& cell) const { return (cell.readers & ~bit) && cell.reader_signals >= passed; }
  Cell written() const { return {mine, 0, signals}; }
};

// The usual access, whole dwords at each lane's address; most of the time that checking takes is spent here. Marks the
// cells as read or written and returns the lanes that must be looked at closely. `usual`: which case
// of an order (lds_rows.cpp) the last cells were; kept from call to call, as the next ones mostly are the same.
using RowFunction = u64 (*)(Cell* cells, const CellAccess& access, const u32* address, u64 lanes, u32& usual);
struct RowFunctions {
  RowFunction read[3], write[3];  // of 1, 2 and 4 dwords
};
extern const RowFunctions kRowFunctions;

}  // namespace emu

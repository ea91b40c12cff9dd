#include "count/banks.h"

#include <algorithm>

namespace emu {
namespace {

// An access is served in phases of several lanes; dwords of one phase in the same bank take a clock each, equal dwords
// together. Which lanes form a phase:
//   up to 4 bytes   32 lanes
//   8 bytes         16 lanes
//   12, 16 bytes    8 lanes; reads on CDNA pair lanes 0-3 with 20-23, 4-7 with 16-19, 8-11 with 28-31, 12-15 with 24-27
// with 32 banks of 4 bytes, 128 bytes a clock (AMD's documentation of Composable Kernel gives the lanes of 16-byte
// writes, its article "Avoiding LDS Bank Conflicts on AMD GPUs Using CK-Tile" those of reads).
// CDNA4's LDS has 64 banks for reads of 8 bytes (32 lanes) and 16 bytes (lanes 0-3, 12-15 and 20-27; 4-11, 16-19 and
// 28-31), measured on MI355X by the HipKittens paper (arXiv:2511.08083); 12-byte reads and writes are as before. Its
// LDS moves 128 bytes a clock (CDNA4 white paper), so such a phase of 256 bytes takes two.
// No source says how RDNA groups the lanes of wide reads; taken as consecutive.
struct Phases {
  int lanes;  // in a phase
  u32 banks;
  u32 clocks;       // of a phase without conflicts
  const u8* order;  // of the lanes of each half wave; nullptr: as they come
};

constexpr u8 kCdnaWideRead[32] = {0, 1, 2,  3,  20, 21, 22, 23, 4,  5,  6,  7,  16, 17, 18, 19,
                                  8, 9, 10, 11, 28, 29, 30, 31, 12, 13, 14, 15, 24, 25, 26, 27};
constexpr u8 kCdna4WideRead[32] = {0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27,
                                   4, 5, 6, 7, 8,  9,  10, 11, 16, 17, 18, 19, 28, 29, 30, 31};

Phases phases_of(const Target& target, u32 bytes, bool read) {
  const bool cdna4 = target.cdna >= 4 && read;
  if (bytes <= 4) return {32, 32, 1, nullptr};
  if (bytes <= 8) return cdna4 ? Phases{32, 64, 2, nullptr} : Phases{16, 32, 1, nullptr};
  if (cdna4 && bytes == 16) return {16, 64, 2, kCdna4WideRead};
  return {8, 32, 1, target.cdna && read ? kCdnaWideRead : nullptr};
}

// The most distinct dwords that any bank has to serve.
struct BankUse {
  static constexpr u32 kMost = 32;  // lanes of a phase times dwords over banks never gives more distinct ones
  u64 used = 0;
  u32 first[64];
  u32 more[64][kMost];
  u8 extra[64];
  u32 worst = 0;

  void clear() {
    used = 0;
    worst = 0;
  }
  void add(u32 dword, u32 banks) {
    const u32 bank = dword % banks;
    const u64 bit = 1ull << bank;
    if (!(used & bit)) {
      used |= bit;
      first[bank] = dword;
      extra[bank] = 0;
      worst = std::max(worst, 1u);
      return;
    }
    if (first[bank] == dword) return;
    for (u32 i = 0; i < extra[bank]; ++i) {
      if (more[bank][i] == dword) return;
    }
    if (extra[bank] == kMost) return;
    more[bank][extra[bank]++] = dword;
    worst = std::max(worst, extra[bank] + 1u);
  }
};

}  // namespace

LdsClocks lds_clocks(const Target& target, int wave_lanes, const u32* address, u64 lanes, u32 bytes, AccessKind kind) {
  const Phases p = phases_of(target, bytes, kind == AccessKind::read);
  const u32 dwords = (bytes + 3) / 4;
  LdsClocks clocks;
  BankUse use;
  for (int base = 0; base < wave_lanes; base += p.lanes) {
    use.clear();
    for (int i = base; i < base + p.lanes; ++i) {
      const int lane = p.order ? (i & ~31) + p.order[i & 31] : i;
      if (!(lanes >> lane & 1)) continue;
      for (u32 d = 0; d < dwords; ++d) use.add(address[lane] / 4 + d, p.banks);
    }
    if (!use.worst) continue;
    clocks.cycles += use.worst * p.clocks;
    clocks.ideal += p.clocks;
  }
  return clocks;
}

}  // namespace emu

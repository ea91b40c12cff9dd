#include "count/counters.h"

#include "count/banks.h"

namespace emu {

void SectorSet::insert(u64 address, u32 bytes) {
  for (u64 sector = address / 32; sector <= (address + bytes - 1) / 32; ++sector) {
    const u64 page = sector / 128;
    if (page != last_page_) {
      last_page_ = page;
      last_ = &pages_[page];
    }
    last_->bits[sector / 64 % 2] |= 1ull << sector % 64;
  }
}

void SectorSet::join(const SectorSet& other) {
  for (const auto& [page, sectors] : other.pages_) {
    Page& mine = pages_[page];
    mine.bits[0] |= sectors.bits[0];
    mine.bits[1] |= sectors.bits[1];
  }
}

u64 SectorSet::bytes() const {
  u64 sectors = 0;
  for (const auto& [page, bits] : pages_) {
    sectors += static_cast<u64>(__builtin_popcountll(bits.bits[0]) + __builtin_popcountll(bits.bits[1]));
  }
  return sectors * 32;
}

AccessCounter::AccessCounter(const Program& program)
    : lds_cycles(program.code.size(), 0), lds_ideal_cycles(program.code.size(), 0), target(program.target) {}

void AccessCounter::lds(const Wave& wave, const Instruction& at, const u32* address, u64 lanes, u32 bytes,
                        AccessKind kind) {
  const LdsClocks clocks = lds_clocks(*target, wave.lanes, address, lanes, bytes, kind);
  lds_cycles[at.index] += clocks.cycles;
  lds_ideal_cycles[at.index] += clocks.ideal;
}

void AccessCounter::global(const Wave&, const Instruction&, const u64* address, u64 lanes, u32 bytes, AccessKind kind) {
  const u64 total = static_cast<u64>(__builtin_popcountll(lanes)) * bytes;
  vmem_bytes += total;
  if (kind == AccessKind::write) store_bytes += total;
  if (kind == AccessKind::atomic) atomic_bytes += total;
  for (; lanes; lanes &= lanes - 1) sectors.insert(address[__builtin_ctzll(lanes)], bytes);
}

void AccessCounter::join(const AccessCounter& other) {
  for (size_t i = 0; i < lds_cycles.size(); ++i) {
    lds_cycles[i] += other.lds_cycles[i];
    lds_ideal_cycles[i] += other.lds_ideal_cycles[i];
  }
  vmem_bytes += other.vmem_bytes;
  store_bytes += other.store_bytes;
  atomic_bytes += other.atomic_bytes;
  sectors.join(other.sectors);
}

}  // namespace emu

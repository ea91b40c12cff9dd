#include "core/memory_map.h"

#include <algorithm>

namespace emu {

MemoryMap::MemoryMap(std::vector<Region> regions) {
  for (Region& region : regions) (region.freed ? freed_ : live_).push_back(std::move(region));
  std::sort(live_.begin(), live_.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
}

const Region* MemoryMap::find(u64 address, u64 bytes) const {
  auto after = std::upper_bound(live_.begin(), live_.end(), address,
                                [](u64 value, const Region& region) { return value < region.begin; });
  if (after == live_.begin()) return nullptr;
  const Region& candidate = *(after - 1);
  return address + bytes <= candidate.end ? &candidate : nullptr;
}

std::string MemoryMap::describe(u64 address, u64 bytes) const {
  for (const Region& region : freed_) {
    if (address < region.end && address + bytes > region.begin) return "in " + region.name + ", which was freed";
  }
  const Region *below = nullptr, *above = nullptr;
  for (const Region& region : live_) {
    if (region.begin <= address) below = &region;
    if (region.begin > address && !above) above = &region;
  }
  const u64 past = below ? address + bytes - std::min(address + bytes, below->end) : ~0ull;
  const u64 before = above ? above->begin - address : ~0ull;
  if (below && past <= before && past < (1u << 24)) {
    return std::to_string(past) + " bytes past the end of " + below->name;
  }
  if (above && before < (1u << 24)) return std::to_string(before) + " bytes before the start of " + above->name;
  return "outside every allocation";
}

}  // namespace emu

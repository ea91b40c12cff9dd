#include "device/cuda/code_choice.h"

#include <algorithm>
#include <charconv>

#include "base/isa.h"

namespace flashwave::cuda {

int preference(std::string_view arch, int capability) {
  const bool ptx = arch.starts_with("compute_");
  const std::string_view number = arch.substr(ptx ? 8 : 3);
  int target = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), target);
  if (error != std::errc()) return 0;
  const bool this_gpu_alone = rest != number.data() + number.size();  // "90a"
  if (this_gpu_alone) return target == capability ? 4000 : 0;
  if (target > capability) return 0;
  if (ptx) return 1000 + target;
  return target / 10 == capability / 10 ? 2000 + target : 0;
}

uint32_t instruction_sets(int capability) {
  constexpr int kAndLater = 999;
  uint32_t isa = kIsaNone;
#define FW_NVIDIA_GPUS(name, from, to) \
  if (capability >= (from) && capability <= (to)) isa |= name;
#include "kernels/registry.def"
  return isa;
}

std::vector<const ArchiveEntry*> find_code(const CodeArchive& archive, std::string_view source, int capability) {
  std::vector<const ArchiveEntry*> usable;
  for (const ArchiveEntry& entry : archive.entries) {
    if (source == entry.source && preference(entry.arch, capability) > 0) usable.push_back(&entry);
  }
  std::ranges::sort(usable, std::ranges::greater{},
                    [&](const ArchiveEntry* entry) { return preference(entry->arch, capability); });
  return usable;
}

}  // namespace flashwave::cuda

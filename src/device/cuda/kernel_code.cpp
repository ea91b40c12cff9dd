#include "device/cuda/kernel_code.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "kernels/abi/features.h"

namespace flashwave::cuda {
namespace {

constexpr Kernel kKernels[] = {
#define FW_NVIDIA_KERNEL(source, name, isa, op, dtypes, dim_qk, dim_v, seqlen_q, seqlen_k, tile_q, tile_k, threads, \
                         shared_bytes, features, needs, work)                                                       \
  {#name, #source, threads, shared_bytes, dim_qk, dim_v, tile_q, tile_k, needs},
#if FLASHWAVE_NVIDIA_KERNELS
#include "kernels/nvidia/rows.def"
#endif
#undef FW_NVIDIA_KERNEL
    {nullptr, nullptr, 0, 0, 0, 0, 0, 0, 0},
};

// How well a GPU runs code for `arch`; 0: not at all.
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

}  // namespace

const Kernel* find_kernel(std::string_view name) {
  const auto* found =
      std::ranges::find_if(kKernels, [&](const Kernel& k) { return k.name != nullptr && name == k.name; });
  return found != std::end(kKernels) ? found : nullptr;
}

const ArchiveEntry* find_code(std::string_view source, int capability, int rank) {
  static const CodeArchive archive = nvidia_code_archive();
  std::vector<std::pair<int, const ArchiveEntry*>> usable;
  for (const ArchiveEntry& entry : archive.entries) {
    const int score = source == entry.source ? preference(entry.arch, capability) : 0;
    if (score > 0) usable.emplace_back(score, &entry);
  }
  std::ranges::sort(usable, [](const auto& a, const auto& b) { return a.first > b.first; });
  return static_cast<size_t>(rank) < usable.size() ? usable[static_cast<size_t>(rank)].second : nullptr;
}

bool has_code(int capability) {
  return std::ranges::any_of(nvidia_code_archive().entries,
                             [&](const ArchiveEntry& entry) { return preference(entry.arch, capability) > 0; });
}

}  // namespace flashwave::cuda

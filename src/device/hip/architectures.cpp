#include "device/hip/architectures.h"

#include <algorithm>
#include <iterator>

#include "base/isa.h"

namespace flashwave {
namespace {

constexpr uint32_t kCdna = kIsaAmd | kIsaCdna, kCdna2 = kCdna | kIsaCdna2, kCdna3 = kCdna2 | kIsaCdna3;
constexpr uint32_t kRdna3 = kIsaAmd | kIsaRdna3, kRdna4 = kIsaAmd | kIsaRdna4;

constexpr Architecture kArchitectures[] = {
#define FW_AMD_ARCHITECTURE(name, code, elf_machine, isa) {#name, #code, elf_machine, isa},
#include "kernels/amd/architectures.def"
#undef FW_AMD_ARCHITECTURE
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::ranges::find_if(kArchitectures, [&](const Architecture& a) { return name == a.name; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

}  // namespace flashwave

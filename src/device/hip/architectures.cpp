#include "device/hip/architectures.h"

#include <algorithm>
#include <iterator>

#include "base/isa.h"

namespace flashwave {
namespace {

constexpr Architecture kArchitectures[] = {
#define FW_AMD_GPU(name, code, elf_machine, isa) {#name, #code, elf_machine, kIsaAmd | (isa)},
#include "kernels/registry.def"
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::ranges::find_if(kArchitectures, [&](const Architecture& a) { return name == a.name; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

}  // namespace flashwave

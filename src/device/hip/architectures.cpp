#include "device/hip/architectures.h"

#include <algorithm>
#include <iterator>

#include "base/isa.h"

namespace flashwave {
namespace {

constexpr uint32_t kCdna = kIsaAmd | kIsaCdna, kCdna2 = kCdna | kIsaCdna2, kCdna3 = kCdna2 | kIsaCdna3;
constexpr uint32_t kRdna3 = kIsaAmd | kIsaRdna3, kRdna4 = kIsaAmd | kIsaRdna4;

// Members of one family share an instruction set: LLVM's generic targets (gfx9-generic, gfx10-1-generic,
// gfx10-3-generic, gfx11-generic, gfx12-generic) are these families, and the code of the member named second uses
// nothing that another member lacks (LLVM 22, AMDGPU.td: FeatureISAVersion*). The numbers are those of LLVM's "AMDGPU
// backend user guide", table of EF_AMDGPU_MACH.
constexpr Architecture kArchitectures[] = {
    {"gfx900", "gfx900", 0x02c, kIsaAmd},
    {"gfx902", "gfx900", 0x02d, kIsaAmd},
    {"gfx904", "gfx900", 0x02e, kIsaAmd},
    {"gfx906", "gfx906", 0x02f, kIsaAmd},
    {"gfx909", "gfx900", 0x031, kIsaAmd},
    {"gfx90c", "gfx900", 0x032, kIsaAmd},
    {"gfx908", "gfx908", 0x030, kCdna | kIsaGfx908},
    {"gfx90a", "gfx90a", 0x03f, kCdna2},
    {"gfx942", "gfx942", 0x04c, kCdna3},
    {"gfx950", "gfx950", 0x04f, kCdna3 | kIsaCdna4},
    {"gfx1010", "gfx1010", 0x033, kIsaAmd},
    {"gfx1011", "gfx1010", 0x034, kIsaAmd},
    {"gfx1012", "gfx1010", 0x035, kIsaAmd},
    {"gfx1013", "gfx1010", 0x042, kIsaAmd},
    {"gfx1030", "gfx1030", 0x036, kIsaAmd},
    {"gfx1031", "gfx1030", 0x037, kIsaAmd},
    {"gfx1032", "gfx1030", 0x038, kIsaAmd},
    {"gfx1033", "gfx1030", 0x039, kIsaAmd},
    {"gfx1034", "gfx1030", 0x03e, kIsaAmd},
    {"gfx1035", "gfx1030", 0x03d, kIsaAmd},
    {"gfx1036", "gfx1030", 0x045, kIsaAmd},
    {"gfx1100", "gfx1100", 0x041, kRdna3},
    {"gfx1101", "gfx1100", 0x046, kRdna3},
    {"gfx1102", "gfx1100", 0x047, kRdna3},
    {"gfx1103", "gfx1100", 0x044, kRdna3},
    {"gfx1150", "gfx1100", 0x043, kRdna3},
    {"gfx1151", "gfx1100", 0x04a, kRdna3},
    {"gfx1152", "gfx1100", 0x055, kRdna3},
    {"gfx1153", "gfx1100", 0x058, kRdna3},
    {"gfx1200", "gfx1201", 0x048, kRdna4},
    {"gfx1201", "gfx1201", 0x04e, kRdna4},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::ranges::find_if(kArchitectures, [&](const Architecture& a) { return name == a.name; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

}  // namespace flashwave

#include "device/hip/architectures.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

#include "base/isa.h"
#include "catalog/catalog.h"
#include "device/code_archive.h"
#include "device/cuda/code_choice.h"
#include "device/gpu_device.h"

namespace flashwave {
namespace {

TEST(Architectures, FamiliesShareOneCodeObject) {
  EXPECT_EQ(find_architecture("gfx9999"), nullptr);
  EXPECT_EQ(find_architecture(""), nullptr);
  const std::set<std::string> compiled = {"gfx900", "gfx906",  "gfx908",  "gfx90a",  "gfx942",
                                          "gfx950", "gfx1010", "gfx1030", "gfx1100", "gfx1201"};
  for (const std::string& name : compiled) {
    const Architecture* arch = find_architecture(name);
    ASSERT_NE(arch, nullptr) << name;
    EXPECT_EQ(arch->code, name);
    EXPECT_TRUE(arch->isa & kIsaAmd);
  }
  for (const char* name : {"gfx902", "gfx1012", "gfx1036", "gfx1103", "gfx1151", "gfx1200"}) {
    const Architecture* arch = find_architecture(name);
    ASSERT_NE(arch, nullptr) << name;
    EXPECT_TRUE(compiled.contains(arch->code)) << name;
    EXPECT_EQ(arch->isa, find_architecture(arch->code)->isa) << name;
    EXPECT_NE(arch->elf_machine, find_architecture(arch->code)->elf_machine) << name;
  }
  // Each generation of the data centre GPUs has the instructions of the ones before.
  EXPECT_EQ(find_architecture("gfx90a")->isa, kIsaAmd | kIsaCdna1 | kIsaCdna2);
  EXPECT_EQ(find_architecture("gfx950")->isa, kIsaAmd | kIsaCdna1 | kIsaCdna2);
}

// How many rows of a kind of device a GPU with these instructions has code for; all must have some.
int rows_with_code(std::string_view kind, uint32_t isa, const CompiledCode& code) {
  int found = 0;
  for (const KernelRow& row : catalog()) {
    if (row.device != kind || (row.isa & ~isa) != 0) continue;
    EXPECT_TRUE(code.has(row.source)) << row.name;
    ++found;
  }
  return found;
}

TEST(CompiledCode, EveryRowHasCodeForEveryAmdGpuItClaims) {
  if (amd_code_archive().entries.empty()) GTEST_SKIP() << "built without kernels of AMD GPUs";
  int gpus = 0;
  for (const char* name : {"gfx900", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1101", "gfx1201"}) {
    SCOPED_TRACE(name);
    const Architecture* arch = find_architecture(name);
    const CompiledCode code =
        compiled_code(amd_code_archive(), [&](std::string_view target) { return target == arch->code; });
    if (!code.any()) continue;  // not among the targets of the build
    EXPECT_GT(rows_with_code("hip", arch->isa, code), 0);
    ++gpus;
  }
  EXPECT_GT(gpus, 0);
}

TEST(CompiledCode, EveryRowHasCodeForEveryNvidiaGpuItClaims) {
  if (nvidia_code_archive().entries.empty()) GTEST_SKIP() << "built without kernels of NVIDIA GPUs";
  const std::pair<int, uint32_t> gpus[] = {{75, kIsaSm75},
                                           {80, kIsaSm75 | kIsaSm80},
                                           {89, kIsaSm75 | kIsaSm80},
                                           {90, kIsaSm75 | kIsaSm80 | kIsaSm90},
                                           {120, kIsaSm75 | kIsaSm80}};
  for (const auto& [capability, isa] : gpus) {
    SCOPED_TRACE(capability);
    const CompiledCode code = compiled_code(
        nvidia_code_archive(), [&](std::string_view target) { return cuda::preference(target, capability) > 0; });
    EXPECT_GT(rows_with_code("cuda", isa, code), 0);
  }
}

TEST(CompiledCode, AnEmptyListIsNotEverything) {
  EXPECT_TRUE(CompiledCode().any());
  EXPECT_TRUE(CompiledCode().has("anything"));
  const CompiledCode none(std::vector<std::string_view>{}), two({"b", "a"});
  EXPECT_FALSE(none.any());
  EXPECT_FALSE(none.has(""));
  EXPECT_TRUE(two.has("a") && two.has("b"));
  EXPECT_FALSE(two.has("c"));
}

}  // namespace
}  // namespace flashwave

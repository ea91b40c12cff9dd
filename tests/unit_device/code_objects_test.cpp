#include "device/hip/code_objects.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "base/isa.h"
#include "catalog/catalog.h"
#include "device/code_archive.h"
#include "device/hip/architectures.h"

namespace flashwave {
namespace {

uint32_t elf_machine(const CodeObject& code) {
  uint32_t flags;
  std::memcpy(&flags, static_cast<const char*>(code.image) + 48, sizeof flags);
  return flags & 0xff;
}

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
  EXPECT_EQ(find_architecture("gfx90a")->isa, kIsaAmd | kIsaCdna | kIsaCdna2);
  EXPECT_EQ(find_architecture("gfx950")->isa, kIsaAmd | kIsaCdna | kIsaCdna2 | kIsaCdna3 | kIsaCdna4);
}

TEST(CodeObjects, EveryRowHasCodeForEveryGpuItClaims) {
  if (amd_code_archive().entries.empty()) GTEST_SKIP() << "built without kernels of AMD GPUs";
  int found = 0;
  for (const KernelRow& row : catalog()) {
    if (std::string_view(row.device) != "hip") continue;
    for (const char* name : {"gfx900", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1101", "gfx1201"}) {
      const Architecture* arch = find_architecture(name);
      if (row.isa & ~arch->isa) continue;
      const CodeObject* code = find_code_object(row.name, name);
      ASSERT_NE(code, nullptr) << row.name << " for " << name;
      EXPECT_EQ(code->threads, row.threads);
      EXPECT_EQ(std::memcmp(code->image,
                            "\x7f"
                            "ELF",
                            4),
                0);
      EXPECT_EQ(elf_machine(*code), arch->elf_machine);
      EXPECT_EQ(find_code_object(row.name, name), code) << "unpacked twice";
      ++found;
    }
  }
  EXPECT_GT(found, 0);
  EXPECT_TRUE(has_code_objects("gfx1150"));
  EXPECT_FALSE(has_code_objects("gfx803"));
  EXPECT_EQ(find_code_object("no_such_kernel", "gfx942"), nullptr);
}

}  // namespace
}  // namespace flashwave

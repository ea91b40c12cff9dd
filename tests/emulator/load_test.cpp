// Loading decodes an instruction once and copies it where its bytes occur again: what is found at every address must be
// what the disassembler says there.
#include <gtest/gtest.h>

#include "load/disassembler.h"
#include "text_kernel.h"

namespace {

using emu_test::program_of;

// The body twice over, so that every instruction of the second half was seen before; a different one in between.
std::string twice(const std::string& body, const std::string& between) { return body + between + body; }

void expect_decoded_as_disassembled(const emu::Program& program) {
  emu::Disassembler disassembler(*program.target);
  ASSERT_EQ(program.code.size(), program.text.size());
  for (size_t i = 0; i < program.code.size(); ++i) {
    const emu::Instruction& in = program.code[i];
    SCOPED_TRACE(program.text[i]);
    std::string text;
    ASSERT_EQ(disassembler.one(program.image + in.address, program.image_bytes - in.address, text), in.size);
    EXPECT_EQ(text, program.text[i]);
    EXPECT_EQ(in.index, i);
    EXPECT_EQ(program.index_of.at(in.address), i);
    if (i > 0) EXPECT_EQ(in.address, program.code[i - 1].address + program.code[i - 1].size);
    EXPECT_EQ(in.second != nullptr, text.find(" :: ") != std::string::npos);
    if (in.second) EXPECT_EQ(in.second->address, in.address);
    if (in.second) EXPECT_EQ(in.second->index, in.index);
  }
}

TEST(Load, InstructionsOfEverySizeAreCopied) {
  // 4 and 8 bytes, literals that differ in the last word alone.
  const std::string common =
      "v_add_u32_e32 v0, 0x12345, v1\n"
      "v_add_u32_e32 v0, 0x12346, v1\n"
      "v_mov_b32_e32 v0, v1\n"
      "s_mov_b32 s1, 0x77777777\n"
      "s_nop 3\n"
      "ds_write_b32 v1, v0 offset:16\n";
  for (const char* target : {"gfx90a", "gfx942", "gfx950"}) {
    expect_decoded_as_disassembled(program_of({target, twice(common, "s_mov_b32 s2, 0x77777778\n"), 1, 1024}));
  }
  // 12 bytes, and pairs.
  const std::string rdna =
      "v_add3_u32 v0, v1, v2, 0x12345\n"
      "v_add3_u32 v0, v1, v2, 0x12346\n"
      "v_dual_mul_f32 v0, v1, v2 :: v_dual_add_f32 v3, v2, v1\n"
      "v_dual_fmaak_f32 v0, v1, v2, 0x84 :: v_dual_mov_b32 v3, v2\n"
      "v_mov_b32_e32 v0, v1\n"
      "s_mov_b32 s1, 0x77777777\n";
  for (const char* target : {"gfx1100", "gfx1201"}) {
    expect_decoded_as_disassembled(program_of({target, twice(rdna, "v_add3_u32 v0, v1, v2, 0x12347\n")}));
  }
}

// A branch goes where it stands, not where the first one of the same bytes went.
TEST(Load, EqualBranchesHaveTargetsOfTheirOwn) {
  const emu::Program& program =
      program_of({"gfx942", "s_branch 1f\ns_nop 1\n1:\ns_nop 2\ns_branch 2f\ns_nop 3\n2:\ns_nop 4\n"});
  std::vector<int> jumps;
  for (const emu::Instruction& in : program.code) {
    if (in.cls == emu::Class::branch) jumps.push_back(in.target - static_cast<int>(in.index));
  }
  EXPECT_EQ(jumps, (std::vector<int>{2, 2}));
}

}  // namespace

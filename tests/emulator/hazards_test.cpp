// Wait states: one fewer than needed is reported, as many as needed are not. The numbers are those LLVM 22's hazard
// recognizer keeps between the two instructions.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "text_kernel.h"

namespace {

using emu::Check;
using emu_test::launch;

std::string nops(int states) {
  std::string text;
  for (; states > 0; states -= 8) text += "s_nop " + std::to_string(std::min(states, 8) - 1) + "\n";
  return text;
}

// Registers that the pairs below use, so that nothing else is reported.
std::string defined(const std::string& target) {
  std::string text = "s_mov_b64 vcc, 0\ns_mov_b32 s20, 0\ns_mov_b32 s21, 0\n";
  for (int i = 4; i < 112; ++i) text += "v_mov_b32 v" + std::to_string(i) + ", 0\n";
  if (target == "gfx908") {
    for (int i = 0; i < 32; ++i) text += "v_accvgpr_write_b32 a" + std::to_string(i) + ", 0\n";
  }
  return text + nops(24);
}

std::string reports(const std::string& target, const std::string& first, int states, const std::string& second,
                    int waves = 1, const emu::RunOptions& options = {}) {
  const emu::LaunchResult result =
      launch({target, defined(target) + first + "\n" + nops(states) + second + "\n" + nops(24), waves}, options);
  std::string all = result.error;
  for (const emu::Report& r : result.reports) {
    EXPECT_EQ(emu::check_name(r.check), std::string("hazard")) << r.text();
    all += r.text() + "\n";
  }
  return all;
}

struct Pair {
  const char *target, *first, *second;
  int needed;
};

void PrintTo(const Pair& p, std::ostream* out) { *out << p.target << ": " << p.first << "; " << p.second; }

class Hazards : public testing::TestWithParam<Pair> {};

TEST_P(Hazards, NeedTheirWaitStates) {
  const Pair& p = GetParam();
  SCOPED_TRACE(std::string(p.target) + ": " + p.first + "; " + p.second);
  EXPECT_EQ(reports(p.target, p.first, p.needed, p.second), "");
  if (p.needed > 0) {
    EXPECT_NE(reports(p.target, p.first, p.needed - 1, p.second), "") << "not reported";
  }
}

constexpr const char* kMfma16 = "v_mfma_f32_16x16x16_f16 v[64:67], v[20:21], v[22:23], v[64:67]";
constexpr const char* kMfma16Old = "v_mfma_f32_16x16x16f16 v[64:67], v[20:21], v[22:23], v[64:67]";
constexpr const char* kMfma4 = "v_mfma_f32_4x4x4_16b_f16 v[64:67], v[20:21], v[22:23], v[64:67]";
constexpr const char* kMfma4Old = "v_mfma_f32_4x4x4f16 v[64:67], v[20:21], v[22:23], v[64:67]";
constexpr const char* kMfma32 = "v_mfma_f32_32x32x8_f16 v[64:79], v[20:21], v[22:23], v[64:79]";
constexpr const char* kMfma32Old = "v_mfma_f32_32x32x8f16 v[64:79], v[20:21], v[22:23], v[64:79]";
constexpr const char* kMfmaF32 = "v_mfma_f32_16x16x4_f32 v[64:67], v20, v22, v[64:67]";
constexpr const char* kDgemm = "v_mfma_f64_16x16x4_f64 v[64:71], v[20:21], v[22:23], v[64:71]";
constexpr const char* kDgemmOld = "v_mfma_f64_16x16x4f64 v[64:71], v[20:21], v[22:23], v[64:71]";
constexpr const char* kRead = "v_add_f32 v40, v65, v41";
constexpr const char* kWrite = "v_mov_b32 v65, v41";
constexpr const char* kStore = "global_store_dword v[2:3], v65, off";
constexpr const char* kLoad = "global_load_dword v65, v[2:3], off";
constexpr const char* kCmpx = "v_cmpx_eq_u32 v5, v5";

INSTANTIATE_TEST_SUITE_P(
    AfterMfma, Hazards,
    testing::Values(
        Pair{"gfx90a", kMfma4Old, kRead, 5}, Pair{"gfx90a", kMfma16Old, kRead, 11},
        Pair{"gfx90a", kMfma32Old, kRead, 19}, Pair{"gfx90a", kMfma16Old, kWrite, 11},
        Pair{"gfx90a", kMfma16Old, kStore, 11}, Pair{"gfx90a", kDgemmOld, kRead, 11},
        Pair{"gfx90a", kDgemmOld, kStore, 18}, Pair{"gfx942", kMfma4, kRead, 5}, Pair{"gfx942", kMfma16, kRead, 7},
        Pair{"gfx942", kMfma32, kRead, 11}, Pair{"gfx942", kMfma16, kWrite, 7}, Pair{"gfx942", kMfma16, kStore, 7},
        Pair{"gfx942", kMfma16, kLoad, 7}, Pair{"gfx942", kMfmaF32, kRead, 10}, Pair{"gfx942", kDgemm, kRead, 11},
        Pair{"gfx942", kDgemm, kStore, 18}, Pair{"gfx950", kMfma4, kRead, 5}, Pair{"gfx950", kMfma16, kRead, 8},
        Pair{"gfx950", kMfma32, kRead, 12}, Pair{"gfx950", kDgemm, kRead, 19}, Pair{"gfx950", kDgemm, kWrite, 11},
        Pair{"gfx950", "v_mfma_f32_32x32x16_f16 v[64:79], v[20:23], v[24:27], v[64:79]", kRead, 12},
        Pair{"gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[64:67], v[20:27], v[28:35], v[64:67]", kRead, 12},
        Pair{"gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[64:67], v[20:23], v[28:31], v[64:67] cbsz:4 blgp:4", kRead, 8},
        // Overwriting the accumulator while it is read.
        Pair{"gfx942", "v_mfma_f32_32x32x8_f16 v[64:79], v[20:21], v[22:23], v[80:95]", "v_mov_b32 v81, 0", 7},
        Pair{"gfx90a", "v_mfma_f32_16x16x16f16 v[64:67], v[20:21], v[22:23], v[80:83]", "v_mov_b32 v81, 0", 7},
        Pair{"gfx942", "v_mfma_f32_16x16x4_f32 v[64:67], v20, v22, v[80:83]", "v_mov_b32 v81, 0", 0}));

INSTANTIATE_TEST_SUITE_P(
    BetweenMfma, Hazards,
    testing::Values(
        // Accumulating again on the same registers is forwarded; on others that overlap, and as A or B, it is not.
        Pair{"gfx90a", kMfma16Old, kMfma16Old, 0}, Pair{"gfx942", kMfma16, kMfma16, 0},
        Pair{"gfx942", kMfma4, kMfma4, 2},
        Pair{"gfx942", kMfma16, "v_mfma_f32_16x16x16_f16 v[66:69], v[20:21], v[22:23], v[66:69]", 5},
        Pair{"gfx950", kMfma16, "v_mfma_f32_16x16x16_f16 v[66:69], v[20:21], v[22:23], v[66:69]", 6},
        Pair{"gfx90a", kMfma16Old, "v_mfma_f32_16x16x16f16 v[66:69], v[20:21], v[22:23], v[66:69]", 8},
        Pair{"gfx942", kMfmaF32, "v_mfma_f32_16x16x4_f32 v[66:69], v20, v22, v[66:69]", 8},
        Pair{"gfx942", kMfmaF32, "v_mfma_f32_16x16x16_f16 v[66:69], v[20:21], v[22:23], v[66:69]", 0},
        Pair{"gfx942", kMfma16, "v_mfma_f32_16x16x16_f16 v[80:83], v[64:65], v[22:23], v[80:83]", 7},
        Pair{"gfx950", kMfma16, "v_mfma_f32_16x16x16_f16 v[80:83], v[64:65], v[22:23], v[80:83]", 8},
        Pair{"gfx90a", kMfma16Old, "v_mfma_f32_16x16x16f16 v[80:83], v[64:65], v[22:23], v[80:83]", 11},
        Pair{"gfx942", kDgemm, "v_mfma_f64_16x16x4_f64 v[66:73], v[20:21], v[22:23], v[66:73]", 9},
        Pair{"gfx950", kDgemm, "v_mfma_f64_16x16x4_f64 v[66:73], v[20:21], v[22:23], v[66:73]", 17},
        Pair{"gfx942", "v_smfmac_f32_16x16x32_f16 v[64:67], v[20:21], v[24:27], v30",
             "v_smfmac_f32_16x16x32_f16 v[64:67], v[20:21], v[24:27], v30", 0},
        Pair{"gfx942", "v_smfmac_f32_16x16x32_f16 v[64:67], v[20:21], v[24:27], v30",
             "v_smfmac_f32_16x16x32_f16 v[80:83], v[20:21], v[24:27], v64", 7},
        Pair{"gfx908", "v_mfma_f32_16x16x16f16 a[0:3], v[20:21], v[22:23], a[0:3]", "v_accvgpr_read_b32 v40, a1", 10},
        Pair{"gfx908", "v_mfma_f32_16x16x16f16 a[0:3], v[20:21], v[22:23], a[0:3]", "v_accvgpr_write_b32 a1, v40", 7},
        Pair{"gfx908", "v_mfma_f32_16x16x16f16 a[0:3], v[20:21], v[22:23], a[0:3]",
             "v_mfma_f32_16x16x16f16 a[2:5], v[20:21], v[22:23], a[2:5]", 2},
        Pair{"gfx908", "v_accvgpr_write_b32 a1, v40", "v_mfma_f32_16x16x16f16 a[8:11], v[20:21], v[22:23], a[0:3]", 1},
        Pair{"gfx908", "v_accvgpr_write_b32 a1, v40", "v_accvgpr_read_b32 v40, a1", 3}));

TEST(HazardTime, BranchesTakenCountFourTimes) {
  const std::string first = "v_mfma_f32_16x16x16f16 a[0:3], v[20:21], v[22:23], a[0:3]\ns_cmp_eq_u32 s20, ";
  const std::string second = "v_accvgpr_read_b32 v40, a1";
  EXPECT_EQ(reports("gfx908", first + "0\ns_cbranch_scc1 next\ns_endpgm\nnext:\n", 5, second), "") << "taken";
  EXPECT_NE(reports("gfx908", first + "0\ns_cbranch_scc1 next\ns_endpgm\nnext:\n", 4, second), "")
      << "taken, too short";
  const std::string not_taken = first + "1\ns_cbranch_scc1 next\nnext:\n";
  EXPECT_EQ(reports("gfx908", not_taken, 8, second), "");
  EXPECT_NE(reports("gfx908", not_taken, 7, second), "") << "not taken, too short";
}

TEST(HazardTime, BarriersCountFourTimesWhereOthersAreWaitedFor) {
  const std::string first = std::string(kMfma16) + "\ns_barrier\n";
  EXPECT_EQ(reports("gfx942", first, 3, kRead, 2), "");
  EXPECT_NE(reports("gfx942", first, 2, kRead, 2), "");
  EXPECT_EQ(reports("gfx942", first, 6, kRead, 1), "");
  EXPECT_NE(reports("gfx942", first, 5, kRead, 1), "");
}

TEST(HazardRules, AssemblyMayLeaveOutTheClosePairs) {
  emu::RunOptions assembly;
  assembly.checks.close_vector_hazards = false;
  for (const auto& [first, second] :
       {std::pair("v_mov_b32 v20, 0", kMfma16), std::pair("v_readfirstlane_b32 s20, v5", "v_add_u32 v6, s20, v7"),
        std::pair("v_cmp_eq_u32 vcc, v5, v6", "v_cndmask_b32 v7, v8, v9, vcc"),
        std::pair("v_mov_b32 v5, 0", "v_readfirstlane_b32 s24, v5"),
        std::pair("v_exp_f32 v5, v6", "v_add_f32 v7, v5, v8")}) {
    EXPECT_NE(reports("gfx942", first, 0, second), "") << first;
    EXPECT_EQ(reports("gfx942", first, 0, second, 1, assembly), "") << first;
  }
  // Those whose neglect gives wrong results stay.
  for (const auto& [first, second] :
       {std::pair(kMfma16, kRead), std::pair("v_readfirstlane_b32 s4, v2", "global_load_dword v6, v1, s[4:5]"),
        std::pair(kCmpx, "v_readlane_b32 s24, v6, 1"),
        std::pair("v_cmp_eq_u32 vcc, v5, v6", "v_div_fmas_f32 v7, v8, v9, v10"),
        std::pair("v_mov_b32 v5, 0", "v_mov_b32_dpp v6, v5 row_shl:1 row_mask:0xf bank_mask:0xf")}) {
    EXPECT_NE(reports("gfx942", first, 0, second, 1, assembly), "") << first;
  }
}

INSTANTIATE_TEST_SUITE_P(
    OfTheVectorUnit, Hazards,
    testing::Values(
        Pair{"gfx942", "v_mov_b32 v20, 0", kMfma16, 2}, Pair{"gfx90a", "v_mov_b32 v64, 0", kMfma16Old, 2},
        Pair{"gfx942", kCmpx, kMfma16, 4},
        Pair{"gfx942", "v_readfirstlane_b32 s4, v2", "global_load_dword v6, v1, s[4:5]", 5},
        Pair{"gfx90a", "v_readfirstlane_b32 s20, v5", "v_readlane_b32 s24, v6, s20", 4},
        Pair{"gfx942", "v_readfirstlane_b32 s20, v5", "v_add_u32 v6, s20, v7", 2},
        Pair{"gfx90a", "v_readfirstlane_b32 s20, v5", "v_add_u32 v6, s20, v7", 0},
        Pair{"gfx942", "v_cmp_eq_u32 vcc, v5, v6", "v_cndmask_b32 v7, v8, v9, vcc", 2},
        Pair{"gfx90a", "v_cmp_eq_u32 vcc, v5, v6", "v_div_fmas_f32 v7, v8, v9, v10", 4},
        Pair{"gfx942", "v_mov_b32 v5, 0", "v_readfirstlane_b32 s24, v5", 1},
        Pair{"gfx942", kCmpx, "v_readlane_b32 s24, v6, 1", 4},
        Pair{"gfx90a", "v_mov_b32 v5, 0", "v_mov_b32_dpp v6, v5 row_shl:1 row_mask:0xf bank_mask:0xf", 2},
        Pair{"gfx90a", kCmpx, "v_mov_b32_dpp v6, v5 row_shl:1 row_mask:0xf bank_mask:0xf", 5},
        Pair{"gfx942", "v_exp_f32 v5, v6", "v_add_f32 v7, v5, v8", 1},
        Pair{"gfx90a", "v_exp_f32 v5, v6", "v_add_f32 v7, v5, v8", 0},
        Pair{"gfx942", "v_exp_f32 v5, v6", "v_exp_f32 v7, v5", 0},
        Pair{"gfx942",
             "v_add_f16_sdwa v5, v6, v7 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD",
             "v_add_u32 v8, v5, v5", 1},
        Pair{"gfx942", "v_dot2_f32_f16 v5, v6, v7, v8", "v_add_f32 v9, v5, v9", 3},
        Pair{"gfx942", "v_dot2_f32_f16 v5, v6, v7, v8", "v_dot2_f32_f16 v9, v6, v7, v5", 0},
        Pair{"gfx942", "v_dot2_f32_f16 v5, v6, v7, v8", "v_dot2_f32_f16 v9, v5, v7, v8", 3},
        Pair{"gfx90a", "global_store_dwordx4 v[2:3], v[8:11], off", "v_mov_b32 v9, 0", 1},
        Pair{"gfx942", "global_store_dwordx4 v[2:3], v[8:11], off", "v_mov_b32 v9, 0", 2},
        Pair{"gfx942", "global_store_dwordx2 v[2:3], v[8:9], off", "v_mov_b32 v9, 0", 0},
        Pair{"gfx942", kDgemm, "v_fma_f64 v[40:41], v[42:43], v[44:45], v[46:47]", 2},
        Pair{"gfx950", "v_mov_b32 v5, 0", "v_permlane32_swap_b32 v5, v6", 2},
        Pair{"gfx950", kCmpx, "v_permlane32_swap_b32 v5, v6", 4}));

TEST(HazardRegisters, IndexedOnesAreTheOnesMeant) {
  const std::string mfma = std::string(kMfma16) + "\ns_mov_b32 s20, 24\ns_set_gpr_idx_on s20, gpr_idx(SRC0)";
  EXPECT_NE(reports("gfx942", mfma, 4, "v_mov_b32 v80, v41"), "");
  EXPECT_EQ(reports("gfx942", mfma, 5, "v_mov_b32 v80, v41"), "");
  EXPECT_EQ(reports("gfx942", mfma, 0, "v_mov_b32 v80, v65"), "");  // v89
  const std::string exp = "s_mov_b32 s20, 2\ns_set_gpr_idx_on s20, gpr_idx(DST)\nv_exp_f32 v5, v6\ns_set_gpr_idx_off";
  EXPECT_EQ(reports("gfx942", "s_nop 0\n" + exp, 0, "v_add_f32 v9, v7, v8"), "");
  const std::string still_on = "s_mov_b32 s20, 2\ns_set_gpr_idx_on s20, gpr_idx(SRC0,DST)\nv_exp_f32 v5, v6";
  EXPECT_NE(reports("gfx942", still_on, 0, "v_add_f32 v9, v5, v8"), "");
  EXPECT_EQ(reports("gfx942", still_on, 0, "v_add_f32 v9, v7, v8"), "");
}

// --- RDNA ------------------------------------------------------------------------------------------------------------

TEST(Rdna, TranscendentalResultsNeedAWait) {
  const std::string exp = "v_exp_f32 v5, v6", use = "v_add_f32 v7, v5, v8", other = "v_mov_b32 v9, 0\n";
  auto clean = [&](const std::string& between) { return reports("gfx1100", exp + "\n" + between, 0, use).empty(); };
  EXPECT_FALSE(clean(""));
  EXPECT_FALSE(clean(other + other + other + other + other));
  EXPECT_TRUE(clean(other + other + other + other + other + other));
  EXPECT_TRUE(clean("s_waitcnt_depctr 0xfff\n"));
  EXPECT_FALSE(clean("s_waitcnt_depctr 0xfffe\n"));
  EXPECT_TRUE(clean("ds_bpermute_b32 v10, v1, v0\n"));
  EXPECT_TRUE(clean("buffer_gl0_inv\n"));
  EXPECT_FALSE(clean("v_exp_f32 v9, v6\n"));
  EXPECT_TRUE(clean("v_exp_f32 v9, v6\nv_exp_f32 v10, v6\n"));
  EXPECT_EQ(reports("gfx1201", exp, 0, use), "");  // gfx12 does it by itself
  EXPECT_EQ(reports("gfx1100", "v_exp_f16 v5.h, v6.l", 0, "v_add_f16 v7.l, v5.l, v8.l"), "");
  EXPECT_NE(reports("gfx1100", "v_exp_f16 v5.h, v6.l", 0, "v_add_f16 v7.l, v5.h, v8.l"), "");
}

TEST(Rdna, WmmaResultsAreNotTheNextOnesOperands) {
  const std::string gfx11 = "v_wmma_f32_16x16x16_f16 v[64:71], v[20:27], v[28:35], v[64:71]\n";
  const std::string chained = "v_wmma_f32_16x16x16_f16 v[80:87], v[64:71], v[28:35], v[80:87]";
  EXPECT_NE(reports("gfx1100", gfx11, 0, chained), "");
  EXPECT_NE(reports("gfx1100", gfx11, 8, chained), "");  // only the vector unit's instructions count
  EXPECT_EQ(reports("gfx1100", gfx11 + "v_nop\n", 0, chained), "");
  EXPECT_EQ(reports("gfx1100", gfx11, 0, gfx11), "");
  const std::string gfx12 = "v_wmma_f32_16x16x16_f16 v[64:71], v[20:23], v[24:27], v[64:71]\n";
  const std::string chained12 = "v_wmma_f32_16x16x16_f16 v[80:87], v[64:67], v[24:27], v[80:87]";
  EXPECT_NE(reports("gfx1201", gfx12, 0, chained12), "");
  EXPECT_EQ(reports("gfx1201", gfx12 + "v_nop\n", 0, chained12), "");
}

TEST(Rdna, PermlaneAfterCmpx) {
  const std::string cmpx = "v_cmpx_eq_u32 v5, v5\n", permlane = "v_permlane16_b32 v6, v7, s20, s21";
  for (const char* target : {"gfx1100", "gfx1201"}) {
    EXPECT_NE(reports(target, cmpx, 0, permlane), "");
    EXPECT_NE(reports(target, cmpx + "v_nop\n", 0, permlane), "");
    EXPECT_EQ(reports(target, cmpx + "v_mov_b32 v7, v7\n", 0, permlane), "");
  }
}

TEST(Calls, ForgetWhatCameBefore) {
  // The compiler does not look for hazards across functions, so they are not looked for there.
  const std::string call =
      "s_getpc_b64 s[30:31]\ns_add_u32 s30, s30, 1f-.\ns_addc_u32 s31, s31, 0\nv_exp_f32 v5, v6\ns_swappc_b64 "
      "s[32:33], "
      "s[30:31]\n1:\n";
  EXPECT_EQ(reports("gfx942", call, 0, "v_add_f32 v7, v5, v8"), "");
}

}  // namespace

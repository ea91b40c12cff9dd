// Each rule of the checkers: a kernel that breaks it is reported, the same one put right is not.
#include <gtest/gtest.h>

#include <algorithm>

#include "text_kernel.h"

namespace {

using emu::Check;
using emu::Report;
using emu_test::launch;
using emu_test::TextKernel;

std::string texts(const std::vector<Report>& reports) {
  std::string all;
  for (const Report& r : reports) all += r.text() + "\n";
  return all;
}

struct Rule {
  const char* target;
  std::string wrong, right;
  Check check;
  std::string says;
  int waves = 1;
  emu::u32 lds_bytes = 0;
};

void expect_rule(const Rule& rule, const emu::RunOptions& options = {}) {
  SCOPED_TRACE(std::string(rule.target) + ":\n" + rule.wrong);
  const emu::LaunchResult bad = launch({rule.target, rule.wrong, rule.waves, rule.lds_bytes}, options);
  EXPECT_EQ(bad.error, "");
  const bool reported = std::any_of(bad.reports.begin(), bad.reports.end(), [&](const Report& r) {
    return r.check == rule.check && r.message.find(rule.says) != std::string::npos;
  });
  EXPECT_TRUE(reported) << "not reported: " << rule.says << "\n" << texts(bad.reports);
  const emu::LaunchResult good = launch({rule.target, rule.right, rule.waves, rule.lds_bytes}, options);
  EXPECT_EQ(good.error, "");
  EXPECT_EQ(texts(good.reports), "") << rule.right;
}

void expect_clean(const TextKernel& kernel, const emu::RunOptions& options = {}) {
  SCOPED_TRACE(kernel.target + ":\n" + kernel.body);
  const emu::LaunchResult result = launch(kernel, options);
  EXPECT_EQ(result.error, "");
  EXPECT_EQ(texts(result.reports), "");
}

// --- waits -----------------------------------------------------------------------------------------------------------

TEST(Waits, VectorLoads) {
  for (const char* target : {"gfx90a", "gfx942", "gfx950"}) {
    const std::string load = "global_load_dword v5, v[2:3], off\n", use = "v_add_u32 v6, 1, v5\n";
    expect_rule(
        {target, load + use, load + "s_waitcnt vmcnt(0)\n" + use, Check::wait, "VGPR v5 read before vmcnt wait"});
    // Waiting for all but the last leaves the last.
    const std::string two = load + "global_load_dword v7, v[2:3], off offset:4\n";
    expect_rule({target, two + "s_waitcnt vmcnt(1)\nv_add_u32 v6, 1, v7\n", two + "s_waitcnt vmcnt(1)\n" + use,
                 Check::wait, "VGPR v7 read"});
    // Stores count too.
    expect_clean({target, load + "global_store_dword v[2:3], v1, off offset:8\ns_waitcnt vmcnt(1)\n" + use});
    // Overwriting by the VALU, or by LDS, races with the load; a later load does not.
    expect_rule({target, load + "v_mov_b32 v5, 0\n", load + "s_waitcnt vmcnt(0)\nv_mov_b32 v5, 0\n", Check::wait,
                 "VGPR v5 overwritten before vmcnt wait"});
    expect_clean({target, load + load + "s_waitcnt vmcnt(0)\n" + use});
    // The address may be overwritten at once, and so may the data of a store.
    expect_clean({target, "v_mov_b32 v8, v2\nv_mov_b32 v9, v3\nglobal_load_dword v5, v[8:9], off\nv_mov_b32 v8, 0\n"});
  }
}

TEST(Waits, HighVmcntBitsOfGfx9) {
  std::string loads;
  for (int i = 0; i < 20; ++i) {
    loads += "global_load_dword v" + std::to_string(30 + i) + ", v[2:3], off offset:" + std::to_string(4 * i) + "\n";
  }
  expect_rule({"gfx942", loads + "s_waitcnt vmcnt(17)\nv_add_u32 v6, 1, v33\n",
               loads + "s_waitcnt vmcnt(16)\nv_add_u32 v6, 1, v33\n", Check::wait, "VGPR v33 read"});
}

TEST(Waits, LdsLoadsAreInOrder) {
  const std::string store = "v_mov_b32 v4, 7\nds_write_b32 v1, v4\ns_waitcnt lgkmcnt(0)\n";
  const std::string loads = store + "ds_read_b32 v5, v1\nds_read_b32 v7, v1\n";
  expect_rule({"gfx942", loads + "s_waitcnt lgkmcnt(1)\nv_add_u32 v6, 1, v7\n",
               loads + "s_waitcnt lgkmcnt(1)\nv_add_u32 v6, 1, v5\ns_waitcnt lgkmcnt(0)\nv_add_u32 v6, 1, v7\n",
               Check::wait, "VGPR v7 read before lgkmcnt wait", 1, 1024});
  // A result of ds_bpermute comes the same way.
  expect_rule({"gfx942", "ds_bpermute_b32 v5, v1, v0\nv_add_u32 v6, 1, v5\n",
               "ds_bpermute_b32 v5, v1, v0\ns_waitcnt lgkmcnt(0)\nv_add_u32 v6, 1, v5\n", Check::wait,
               "VGPR v5 read before lgkmcnt wait"});
}

TEST(Waits, ScalarLoadsReturnInAnyOrder) {
  const std::string load = "s_load_dword s10, s[4:5], 0x0\n", more = load + "s_load_dword s11, s[4:5], 0x4\n";
  expect_rule({"gfx942", load + "s_add_u32 s12, s10, 1\n", load + "s_waitcnt lgkmcnt(0)\ns_add_u32 s12, s10, 1\n",
               Check::wait, "SGPR s10 read before lgkmcnt wait"});
  expect_rule({"gfx942", more + "s_waitcnt lgkmcnt(1)\ns_add_u32 s12, s10, 1\n",
               more + "s_waitcnt lgkmcnt(0)\ns_add_u32 s12, s10, 1\n", Check::wait, "SGPR s10 read"});
  // LDS loads behind a scalar load are not known to have returned either.
  expect_rule({"gfx942", "ds_bpermute_b32 v5, v1, v0\n" + load + "s_waitcnt lgkmcnt(1)\nv_add_u32 v6, 1, v5\n",
               "ds_bpermute_b32 v5, v1, v0\n" + load + "s_waitcnt lgkmcnt(0)\nv_add_u32 v6, 1, v5\n", Check::wait,
               "VGPR v5 read"});
}

TEST(Waits, Gfx11CountsStoresApart) {
  const std::string load = "global_load_b32 v5, v[2:3], off\n", use = "v_add_nc_u32_e32 v6, 1, v5\n";
  const std::string stored = load + "global_store_b32 v[2:3], v1, off offset:8\n";
  expect_rule({"gfx1100", load + use, load + "s_waitcnt vmcnt(0)\n" + use, Check::wait, "VGPR v5 read before vmcnt"});
  expect_rule({"gfx1100", stored + "s_waitcnt vmcnt(1)\n" + use, stored + "s_waitcnt vmcnt(0)\n" + use, Check::wait,
               "VGPR v5 read before vmcnt"});
  expect_rule({"gfx1100", load + "s_waitcnt_vscnt null, 0x0\n" + use, load + "s_waitcnt_vmcnt null, 0x0\n" + use,
               Check::wait, "VGPR v5 read"});
  expect_rule({"gfx1100", "ds_bpermute_b32 v5, v1, v0\ns_waitcnt vmcnt(0)\n" + use,
               "ds_bpermute_b32 v5, v1, v0\ns_waitcnt_lgkmcnt null, 0x0\n" + use, Check::wait,
               "VGPR v5 read before lgkmcnt"});
}

TEST(Waits, Gfx12HasACounterForEachKind) {
  const std::string load = "global_load_b32 v5, v[2:3], off\n", lds = "ds_bpermute_b32 v5, v1, v0\n";
  const std::string scalar = "s_load_b32 s10, s[4:5], 0x0\n", use = "v_add_nc_u32_e32 v6, 1, v5\n";
  const std::string scalar_use = "s_add_co_u32 s12, s10, 1\n";
  expect_rule({"gfx1201", load + "s_wait_dscnt 0x0\ns_wait_kmcnt 0x0\ns_wait_storecnt 0x0\n" + use,
               load + "s_wait_loadcnt 0x0\n" + use, Check::wait, "VGPR v5 read before loadcnt wait"});
  expect_rule({"gfx1201", lds + "s_wait_loadcnt 0x0\ns_wait_kmcnt 0x0\n" + use, lds + "s_wait_dscnt 0x0\n" + use,
               Check::wait, "VGPR v5 read before dscnt wait"});
  expect_rule({"gfx1201", scalar + "s_wait_dscnt 0x0\n" + scalar_use, scalar + "s_wait_kmcnt 0x0\n" + scalar_use,
               Check::wait, "SGPR s10 read before kmcnt wait"});
  expect_clean({"gfx1201", load + "s_wait_loadcnt_dscnt 0x0\n" + use});
  expect_clean({"gfx1201", lds + "s_wait_storecnt_dscnt 0x0\n" + use});
  expect_clean({"gfx1201", load + scalar + "s_wait_idle\n" + use + scalar_use});
  // Each field of the combined form where it belongs: loads in bits 13:8.
  const std::string both = load + "global_load_b32 v7, v[2:3], off\nds_bpermute_b32 v8, v1, v0\n";
  expect_rule({"gfx1201", both + "s_wait_loadcnt_dscnt 0x100\nv_add_nc_u32_e32 v6, 1, v7\n",
               both + "s_wait_loadcnt_dscnt 0x100\n" + use + "v_add_nc_u32_e32 v6, 1, v8\n", Check::wait,
               "VGPR v7 read before loadcnt"});
}

TEST(Waits, HalvesOfRdnaRegistersAreLoadedApart) {
  for (const std::string target : {"gfx1100", "gfx1201"}) {
    const bool gfx11 = target == "gfx1100";
    const std::string low = "global_load_d16_b16 v5, v[2:3], off\n";
    const std::string high = "global_load_d16_hi_b16 v5, v[2:3], off offset:2\n", loads = low + high;
    const std::string first = gfx11 ? "s_waitcnt vmcnt(1)\n" : "s_wait_loadcnt 0x1\n";
    const std::string all = gfx11 ? "s_waitcnt vmcnt(0)\n" : "s_wait_loadcnt 0x0\n";
    // One half is there, the other is not: by name, by the instruction, and by op_sel.
    const std::pair<std::string, std::string> uses[] = {
        {"v_add_f16 v6.l, v5.h, v5.h\n", "v_add_f16 v6.l, v5.l, v5.l\n"},
        {"ds_store_b16_d16_hi v1, v5\n", "ds_store_b16 v1, v5\n"},
        {"ds_store_b8_d16_hi v1, v5\n", "ds_store_b8 v1, v5\n"},
        {"global_store_d16_hi_b16 v[2:3], v5, off\n", "global_store_b16 v[2:3], v5, off\n"},
        {"v_pk_add_f16 v6, v5, v5\n", "v_pk_add_f16 v6, v5, v5 op_sel_hi:[0,0]\n"},
        {"v_fma_mix_f32 v6, v5, v1, v1 op_sel:[1,0,0] op_sel_hi:[1,0,0]\n",
         "v_fma_mix_f32 v6, v5, v1, v1 op_sel_hi:[1,0,0]\n"},
        {"v_mov_b16 v5.h, 0\n", "v_mov_b16 v5.l, 0\n"}};
    for (const auto& [wrong, right] : uses) {
      expect_rule({target.c_str(), loads + first + wrong, loads + first + right + all + wrong, Check::wait, "VGPR v5",
                   1, 1024});
    }
    // All of it, and each half from another unit.
    const std::string use = "v_add_nc_u32_e32 v6, 1, v5\n", lds = "ds_store_b32 v1, v1\nds_load_u16_d16_hi v5, v1\n";
    expect_rule({target.c_str(), loads + first + use, loads + all + use, Check::wait, "VGPR v5 read before"});
    const std::string lds_wait = gfx11 ? "s_waitcnt lgkmcnt(0)\n" : "s_wait_dscnt 0x0\n";
    expect_rule({target.c_str(), low + lds + lds_wait + use, low + lds + lds_wait + all + use, Check::wait,
                 "VGPR v5 read before", 1, 1024});
    expect_clean({target, low + lds + lds_wait + "v_add_f16 v6.l, v5.h, v5.h\n", 1, 1024});
    expect_rule({target.c_str(), low + lds + "v_mov_b16 v5.l, 0\n", low + lds + all + "v_mov_b16 v5.l, 0\n",
                 Check::wait, "VGPR v5.l overwritten before", 1, 1024});
    // Bytes fill halves too.
    expect_clean({target, "global_load_d16_hi_u8 v5, v[2:3], off\nv_mov_b16 v5.l, 0\n"});
    // One mistake does not hide the other.
    expect_rule({target.c_str(), loads + "v_mov_b16 v5.l, 0\nv_mov_b16 v5.h, 0\n", loads + all, Check::wait,
                 "VGPR v5.h overwritten before"});
  }
  // CDNA fills whole registers.
  expect_rule({"gfx942", "global_load_short_d16 v5, v[2:3], off\nds_write_b16_d16_hi v1, v5\n",
               "global_load_short_d16 v5, v[2:3], off\ns_waitcnt vmcnt(0)\nds_write_b16_d16_hi v1, v5\n", Check::wait,
               "VGPR v5 read before vmcnt wait", 1, 1024});
}

TEST(Waits, FlatLoadsCountInBoth) {
  const std::string load = "flat_load_dword v5, v[2:3]\n", use = "v_add_u32 v6, 1, v5\n";
  expect_rule({"gfx942", load + "s_waitcnt lgkmcnt(0)\n" + use, load + "s_waitcnt vmcnt(0) lgkmcnt(0)\n" + use,
               Check::wait, "VGPR v5 read before vmcnt"});
  // Where the address is in LDS, lgkmcnt too.
  const std::string address = "s_mov_b64 s[8:9], src_shared_base\nv_mov_b32 v8, v1\nv_mov_b32 v9, s9\n";
  const std::string lds = address + "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\nflat_load_dword v5, v[8:9]\n";
  expect_rule({"gfx942", lds + "s_waitcnt vmcnt(0)\n" + use, lds + "s_waitcnt vmcnt(0) lgkmcnt(0)\n" + use, Check::wait,
               "VGPR v5 read before lgkmcnt", 1, 1024});
}

// --- registers never written -----------------------------------------------------------------------------------------

TEST(Registers, ReadBeforeWritten) {
  expect_rule({"gfx942", "v_add_u32 v6, 1, v40\n", "v_mov_b32 v40, 1\nv_add_u32 v6, 1, v40\n", Check::uninitialised,
               "VGPR v40 read before it was ever written"});
  expect_rule({"gfx942", "v_accvgpr_read_b32 v6, a3\nv_add_u32 v6, 1, v6\n",
               "v_accvgpr_write_b32 a3, 1\ns_nop 1\nv_accvgpr_read_b32 v6, a3\nv_add_u32 v6, 1, v6\n",
               Check::uninitialised, "VGPR v6 read"});
  expect_rule({"gfx1100", "s_add_u32 s20, s21, 1\n", "s_mov_b32 s21, 0\ns_add_u32 s20, s21, 1\n", Check::uninitialised,
               "SGPR s21 read before it was ever written"});
  expect_rule({"gfx942", "s_cbranch_vccz 0\n", "s_mov_b64 vcc, 0\ns_cbranch_vccz 0\n", Check::uninitialised,
               "SGPR vcc_lo read"});
}

TEST(Registers, WhatIsOnlyMovedMayBeUndefined) {
  // Copies are followed to the use.
  expect_rule({"gfx942", "v_mov_b32 v41, v40\nv_mov_b32 v42, v41\nv_add_u32 v6, 1, v42\n",
               "v_mov_b32 v41, v40\nv_mov_b32 v42, v41\nv_mov_b32 v42, 0\nv_add_u32 v6, 1, v42\n", Check::uninitialised,
               "VGPR v42 read"});
  expect_rule({"gfx942", "v_readfirstlane_b32 s30, v40\ns_add_u32 s31, s30, 1\n", "v_readfirstlane_b32 s30, v40\n",
               Check::uninitialised, "SGPR s30 read"});
  // A select of something undefined and something defined is defined; global memory wants defined values.
  expect_rule({"gfx942", "global_store_dword v[2:3], v40, off\n",
               "s_mov_b64 vcc, 0\ns_nop 4\nv_cndmask_b32 v40, v0, v41, vcc\nglobal_store_dword v[2:3], v40, off\n",
               Check::uninitialised, "VGPR v40 read"});
  // Stores to LDS do not, but their addresses do.
  expect_rule(
      {"gfx942", "ds_write_b32 v40, v41\n", "ds_write_b32 v1, v41\n", Check::uninitialised, "VGPR v40 read", 1, 1024});
  // The high half of a pair whose low half alone is extended.
  expect_rule({"gfx942", "s_mov_b32 s30, 0\ns_bfe_i64 s[32:33], s[30:31], 0x210000\n",
               "s_mov_b32 s30, 0\ns_bfe_i64 s[32:33], s[30:31], 0x200000\n", Check::uninitialised, "SGPR s31 read"});
  // Halves of packed f32 that are not used, and the high half of a 64-bit addend.
  expect_rule({"gfx942", "v_pk_add_f32 v[6:7], v[0:1], v[40:41]\nv_add_u32 v8, v7, v7\n",
               "v_mov_b32 v40, 0\nv_pk_add_f32 v[6:7], v[0:1], v[40:41]\nv_add_u32 v8, v6, v6\n", Check::uninitialised,
               "VGPR v7 read"});
  expect_rule({"gfx942", "v_mad_u64_u32 v[6:7], s[10:11], v0, v1, v[40:41]\n",
               "v_mov_b32 v40, 0\nv_mad_u64_u32 v[6:7], s[10:11], v0, v1, v[40:41]\nv_add_u32 v8, v6, v6\n",
               Check::uninitialised, "VGPR v40 read"});
  // Saving and restoring lanes of a register that holds nothing yet.
  expect_clean(
      {"gfx942", "v_writelane_b32 v40, s90, 0\nv_writelane_b32 v40, s4, 1\ns_nop 4\nv_readlane_b32 s4, v40, 1\n"});
  // Merging lane masks.
  expect_clean({"gfx942", "s_andn2_b64 s[40:41], s[40:41], exec\ns_or_b64 s[42:43], s[40:41], exec\n"});
}

TEST(Registers, RelativeMovesDefineWhatTheyWrite) {
  const std::string index = "s_mov_b32 m0, 3\n";
  expect_rule({"gfx1100", index + "v_movreld_b32_e32 v40, v0\nv_add_nc_u32_e32 v6, 1, v42\n",
               index + "v_movreld_b32_e32 v40, v0\nv_add_nc_u32_e32 v6, 1, v43\n", Check::uninitialised,
               "VGPR v42 read"});
  expect_clean({"gfx1100", index + "v_mov_b32 v43, 1\nv_movrels_b32_e32 v5, v40\nv_add_nc_u32_e32 v6, 1, v5\n"});
}

TEST(Registers, IndexedOnesAreTheOnesMeant) {
  const std::string on = "s_mov_b32 s8, 2\ns_set_gpr_idx_on s8, gpr_idx(", off = "s_set_gpr_idx_off\n";
  const std::string use = "v_add_u32 v6, 1, v7\n";
  for (const char* target : {"gfx908", "gfx90a", "gfx942", "gfx950"}) {
    // A destination that is not indexed is written as ever; a source that is, is another register.
    const std::string source = on + "SRC0)\nv_add_u32 v7, v40, v1\n" + off;
    expect_rule({target, "v_mov_b32 v40, 1\n" + source + use, "v_mov_b32 v42, 1\n" + source + use, Check::uninitialised,
                 "VGPR v42 read before it was ever written"});
    const std::string both = "v_mov_b32 v8, 0\n" + on + "SRC1,DST)\nv_mul_f32 v5, v1, v6\n" + off;
    expect_rule({target, both + "v_add_u32 v6, 1, v5\n", both + use, Check::uninitialised, "VGPR v5 read"});
    // Copies are followed as elsewhere.
    const std::string copy = on + "SRC0)\nv_mov_b32 v7, v40\n" + off;
    expect_rule({target, copy + use, copy + "v_mov_b32 v7, 0\n" + use, Check::uninitialised, "VGPR v7 read"});
  }
}

TEST(Registers, IndexedOnesAreWaitedFor) {
  const std::string on = "s_mov_b32 s8, 2\ns_set_gpr_idx_on s8, gpr_idx(", off = "s_set_gpr_idx_off\n";
  const std::string load = "global_load_dword v42, v[2:3], off\nv_mov_b32 v40, 0\n", wait = "s_waitcnt vmcnt(0)\n";
  for (const std::string use : {"SRC0)\nv_mov_b32 v7, v40\n", "DST)\nv_mov_b32 v40, v1\n"}) {
    expect_rule(
        {"gfx942", load + on + use + off, load + wait + on + use + off, Check::wait,
         use.starts_with("SRC") ? "VGPR v42 read before vmcnt wait" : "VGPR v42 overwritten before vmcnt wait"});
  }
  // The register named is another one.
  expect_clean(
      {"gfx942", "global_load_dword v40, v[2:3], off\nv_mov_b32 v42, 0\n" + on + "SRC0)\nv_mov_b32 v7, v40\n"});
  // Relative moves of RDNA.
  const std::string rdna = "s_mov_b32 m0, 2\nv_mov_b32 v40, 0\nglobal_load_b32 v42, v[2:3], off\n";
  for (const std::string move : {"v_movrels_b32_e32 v5, v40\n", "v_movreld_b32_e32 v40, v0\n"}) {
    expect_rule({"gfx1100", rdna + move, rdna + wait + move, Check::wait, "VGPR v42 "});
  }
}

// --- LDS -------------------------------------------------------------------------------------------------------------

// Wave 0 (or all) write; the address of another wave's bytes is v1 with the wave's bit flipped.
const char* const kOther = "v_xor_b32 v7, 0x100, v1\n";

TEST(Lds, ReadOfAnotherWavesWrite) {
  const std::string write = std::string(kOther) + "ds_write_b32 v1, v0\n", read = "ds_read_b32 v5, v7\n";
  const std::string wait = "s_waitcnt lgkmcnt(0)\n", barrier = "s_barrier\n";
  expect_rule({"gfx942", write + wait + "s_cmp_eq_u32 s6, 0\n" + read, write + wait + barrier + read, Check::lds_race,
               "LDS read", 2, 512},
              {.checks = {.enabled = 1u << static_cast<int>(Check::lds_race)}});
  expect_rule({"gfx942", write + barrier + wait + read, write + wait + barrier + read, Check::lds_race,
               "came before a wait for the write", 2, 512});
}

TEST(Lds, WriteAfterAnotherWavesReadOrWrite) {
  const std::string setup = std::string(kOther) + "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\n";
  const std::string read = "ds_read_b32 v5, v7\ns_waitcnt lgkmcnt(0)\n", write = "ds_write_b32 v1, v0\n";
  expect_rule({"gfx942", setup + read + write, setup + read + "s_barrier\n" + write, Check::lds_race,
               "LDS written, without a barrier between, after the read", 2, 512});
  const std::string same = "v_mov_b32 v8, 16\nds_write_b32 v8, v0\ns_waitcnt lgkmcnt(0)\n";
  expect_rule({"gfx942", same, "v_mov_b32 v8, 16\nv_mov_b32 v9, 1\nds_write_b32 v8, v9\n", Check::lds_race,
               "LDS written, without a barrier between, after the write", 2, 512});  // the same value is harmless
  // Lanes of one instruction may write the same bytes.
  expect_clean({"gfx942", same, 1, 512});
}

TEST(Lds, WavesMayWriteEqualBytes) {
  // v1 is 4 * the thread: equal in its low byte where waves are 64 lanes, not in the byte above it.
  const std::string value = "v_and_b32 v7, 0xfc, v1\nv_mov_b32 v9, v7\n", both = "ds_write_b32 v7, v9\n";
  expect_clean({"gfx942", value + both, 2, 512});
  expect_clean({"gfx942", value + "ds_write_b8 v7, v1\n", 2, 512});
  expect_rule({"gfx942", value + "ds_write_b16 v7, v1\n", value + "ds_write_b16 v7, v9\n", Check::lds_race,
               "after the write of wave", 2, 512});
  // The last lane only.
  const std::string but_one = "v_cmp_eq_u32 vcc, 0xfc, v7\ns_nop 1\nv_cndmask_b32 v9, v9, v1, vcc\n";
  expect_rule({"gfx942", value + but_one + both, value + both, Check::lds_race, "after the write of wave", 2, 512});
  expect_rule({"gfx942", value + but_one + "ds_write2_b32 v7, v7, v9 offset1:64\n",
               value + but_one + "ds_write2_b32 v7, v7, v7 offset1:64\n", Check::lds_race, "after the write of wave", 2,
               1024});
  // An equal write does not order a read of another wave with it.
  expect_rule({"gfx942", value + both + "s_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b32 v5, v7\n" + both,
               value + both + "s_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b32 v5, v7\ns_barrier\n" + both,
               Check::lds_race, "LDS read, without a barrier between, after the write", 2, 512});
}

TEST(Lds, Alignment) {
  const std::string at_2 =
      "v_mov_b32 v8, 2\nv_mov_b32 v9, 8\nv_mov_b32 v10, 0\nv_mov_b32 v11, 0\n"
      "ds_write_b128 v10, v[8:11]\nds_write_b128 v10, v[8:11] offset:16\ns_waitcnt lgkmcnt(0)\n";
  for (const char* target : {"gfx90a", "gfx942", "gfx950"}) {
    expect_clean({target, at_2 + "ds_read_b32 v4, v8\nds_write_b32 v8, v9\nds_read_b64 v[12:13], v8\n", 1, 512});
    expect_clean({target, at_2 + "ds_read_b128 v[12:15], v8\nds_write_b128 v8, v[8:11]\n", 1, 512});
    expect_rule({target, at_2 + "ds_add_u32 v8, v9\n", at_2 + "ds_add_u32 v9, v9\n", Check::misaligned,
                 "LDS access of 4 bytes is not aligned", 1, 512});
    expect_rule({target, at_2 + "ds_add_u64 v9, v[8:9] offset:4\n", at_2 + "ds_add_u64 v9, v[8:9]\n", Check::misaligned,
                 "LDS access of 8 bytes is not aligned", 1, 512});
  }
  expect_rule({"gfx950", at_2 + "ds_read_b64_tr_b16 v[12:13], v9 offset:4\n",
               at_2 + "ds_read_b64_tr_b16 v[12:13], v9\n", Check::misaligned, "LDS access of 8 bytes is not aligned", 1,
               512});
}

TEST(Lds, StrictlyReadsAreWaitedForBeforeTheBarrier) {
  const std::string setup = std::string(kOther) + "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\n";
  const std::string read = "ds_read_b32 v5, v7\n", wait = "s_waitcnt lgkmcnt(0)\n", write = "ds_write_b32 v1, v0\n";
  emu::RunOptions strict;
  strict.checks.strict_write_after_read = true;
  expect_rule({"gfx942", setup + read + "s_barrier\n" + wait + write, setup + read + wait + "s_barrier\n" + write,
               Check::lds_race, "came before a wait for the read", 2, 512},
              strict);
  expect_clean({"gfx942", setup + read + "s_barrier\n" + wait + write, 2, 512});
  // Wave 1 has issued more LDS instructions than wave 0; both have waited when wave 2 overwrites what they read.
  const std::string three = setup +
                            "v_mov_b32 v8, 0\nv_readfirstlane_b32 s8, v0\ns_cmp_lg_u32 s8, 64\ns_cbranch_scc1 few\n" +
                            "ds_read_b32 v9, v1\nds_read_b32 v10, v1\nds_read_b32 v11, v1\nfew:\nds_read_b32 v5, v8\n";
  const std::string overwrite = "s_cmp_lg_u32 s8, 128\ns_cbranch_scc1 over\nds_write_b32 v8, v0\nover:\n";
  expect_rule({"gfx942", three + "s_barrier\n" + wait + overwrite, three + wait + "s_barrier\n" + overwrite,
               Check::lds_race, "came before a wait for the read", 3, 768},
              strict);
}

TEST(Lds, UninitialisedBytes) {
  expect_rule({"gfx1100", "ds_load_b32 v5, v1\n", "ds_store_b32 v1, v0\nds_load_b32 v5, v1\n", Check::uninitialised,
               "LDS read before it was written", 1, 512});
  // By bytes: a half word written makes the other half no more defined.
  expect_rule({"gfx942", "ds_write_b16 v1, v0\nds_read_b32 v5, v1\n", "ds_write_b16 v1, v0\nds_read_u16 v5, v1\n",
               Check::uninitialised, "LDS read before it was written", 1, 512});
  expect_clean({"gfx942", "ds_write_b16 v1, v0\nds_write_b16 v1, v0 offset:2\nds_read_b32 v5, v1\n", 1, 512});
}

TEST(Lds, BytesOfOneDwordAreApart) {
  // Wave 0 has bytes 0 and 1 of each dword, wave 1 the others: no race.
  const std::string address =
      "v_and_b32 v7, 0xff, v1\nv_lshrrev_b32 v8, 7, v1\nv_and_b32 v8, 2, v8\nv_or_b32 v7, v7, v8\n";
  expect_clean({"gfx942", address + "ds_write_b16 v7, v0\nds_read_u16 v5, v7\nds_write_b16 v7, v0\n", 2, 512});
  const std::string same = "v_and_b32 v7, 0xff, v1\n";
  expect_rule({"gfx942", same + "ds_write_b16 v7, v0\n", address + "ds_write_b16 v7, v0\n", Check::lds_race,
               "LDS written", 2, 512});
}

TEST(Lds, Atomics) {
  const std::string zero = "v_mov_b32 v8, 0\nv_mov_b32 v9, 1\nds_write_b32 v1, v8\ns_waitcnt lgkmcnt(0)\ns_barrier\n";
  const std::string add = "ds_add_u32 v8, v9\n", wait = "s_waitcnt lgkmcnt(0)\n", read = "ds_read_b32 v5, v8\n";
  expect_rule({"gfx942", zero + add + wait + read, zero + add + wait + "s_barrier\n" + read, Check::lds_race,
               "LDS written, without a barrier between, after the read", 2, 512});
  // A compare-and-swap loop begins with a plain read.
  expect_clean({"gfx942", zero + read + wait + "v_add_u32 v6, 1, v5\nds_cmpst_rtn_b32 v10, v8, v5, v6\n", 2, 512});
}

TEST(Lds, DirectLoads) {
  const std::string setup =
      "s_mov_b32 s8, s4\ns_mov_b32 s9, s5\ns_mov_b32 s10, 0x10000\ns_mov_b32 s11, 0x00020000\ns_mov_b32 m0, 0\ns_nop "
      "0\n";
  const std::string load = setup + "buffer_load_dword v1, s[8:11], 0 offen lds\n", read = "ds_read_b32 v5, v1\n";
  expect_rule({"gfx942", load + read, load + "s_waitcnt vmcnt(0)\n" + read, Check::wait,
               "LDS read before the direct-to-LDS load was waited for", 1, 512});
  expect_rule({"gfx942", load + "ds_write_b32 v1, v0\n", load + "s_waitcnt vmcnt(0)\nds_write_b32 v1, v0\n",
               Check::wait, "LDS written before", 1, 512});
  // For another wave: waited for before the barrier. Wave 0 loads, wave 1 reads.
  const std::string first = "v_readfirstlane_b32 s12, v1\ns_nop 0\ns_cmp_lg_u32 s12, 0\n" + setup +
                            "s_cbranch_scc1 1f\nbuffer_load_dword v1, s[8:11], 0 offen lds\n";
  const std::string second =
      "s_cmp_eq_u32 s12, 0\ns_cbranch_scc1 2f\nv_subrev_u32 v7, 0x100, v1\nds_read_b32 v5, v7\n2:\n";
  expect_rule({"gfx942", first + "1:\ns_barrier\n" + second, first + "s_waitcnt vmcnt(0)\n1:\ns_barrier\n" + second,
               Check::lds_race, "before vmcnt waited for the load", 2, 512});
}

TEST(Lds, DirectLoadsOverBytesThatAreBeingRead) {
  const std::string setup = std::string(kOther) +
                            "s_mov_b32 s8, s4\ns_mov_b32 s9, s5\ns_mov_b32 s10, 0x10000\ns_mov_b32 s11, 0x00020000\n"
                            "v_readfirstlane_b32 s12, v1\ns_nop 0\ns_mov_b32 m0, s12\n"
                            "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\n";
  const std::string wait = "s_waitcnt lgkmcnt(0)\n", barrier = "s_barrier\n";
  const std::string load = "buffer_load_dword v1, s[8:11], 0 offen lds\n";  // over this wave's bytes
  for (const char* target : {"gfx90a", "gfx942", "gfx950"}) {
    // Another wave reads them. Its wait must come before the barrier; no other option is needed.
    const std::string other = setup + "ds_read_b32 v5, v7\n";
    expect_rule(
        {target, other + barrier + load + wait, other + wait + barrier + load, Check::lds_race,
         "LDS overwritten by a direct-to-LDS load after a barrier which came before a wait for the read of wave", 2,
         512});
    // This wave does.
    const std::string own = setup + "ds_read_b32 v5, v1\n";
    expect_rule({target, own + load, own + wait + load, Check::wait,
                 "LDS overwritten by a direct-to-LDS load before the read of it was waited for", 2, 512});
    // Other bytes, and LDS instructions, which are in order with the reads.
    expect_clean({target, setup + "ds_read_b32 v5, v1\ns_add_u32 m0, s12, 512\ns_nop 0\n" + load, 2, 1024});
    expect_clean({target, other + barrier + "ds_write_b32 v1, v0\n" + wait, 2, 512});
  }
  // Reads after the last wait count, those before it do not: two instructions are in flight at the barrier.
  const std::string far = "v_add_u32 v8, 0x200, v1\nds_write_b32 v8, v0\n" + setup + "v_add_u32 v9, 0x200, v7\n";
  const std::string reads = "ds_read_b32 v5, v7\nds_read_b32 v6, v9\n";
  expect_rule({"gfx942", far + "ds_read_b32 v6, v9\nds_read_b32 v5, v7\ns_waitcnt lgkmcnt(1)\n" + barrier + load,
               far + reads + "s_waitcnt lgkmcnt(1)\n" + barrier + load, Check::lds_race,
               "came before a wait for the read", 2, 1024});
}

TEST(Lds, SplitBarriersOfGfx12) {
  const std::string other = "v_xor_b32 v7, 0x80, v1\nds_store_b32 v1, v0\n", wait = "s_wait_dscnt 0x0\n";
  const std::string signal = "s_barrier_signal -1\n", pass = "s_barrier_wait -1\n", read = "ds_load_b32 v5, v7\n";
  expect_rule({"gfx1201", other + signal + wait + pass + read, other + wait + signal + pass + read, Check::lds_race,
               "came before a wait for the write", 2, 256});
  // Before the wait nothing is ordered, whoever has signalled.
  expect_rule({"gfx1201", other + wait + signal + read + pass, other + wait + signal + pass + read, Check::lds_race,
               "LDS read, without a barrier between", 2, 256});
}

// --- barriers --------------------------------------------------------------------------------------------------------

TEST(Barriers, WavesMeetAtOneInstruction) {
  const std::string which = "v_readfirstlane_b32 s12, v1\ns_nop 0\ns_cmp_lg_u32 s12, 0\n";
  const Rule rule{"gfx942",
                  which + "s_cbranch_scc1 1f\ns_barrier\ns_branch 2f\n1:\ns_barrier\n2:\n",
                  which + "s_cbranch_scc1 1f\ns_nop 0\n1:\ns_barrier\n",
                  Check::barrier,
                  "meet at different barrier instructions",
                  2};
  expect_rule(rule);
  emu::RunOptions relaxed;
  relaxed.checks.same_barrier_instruction = false;
  expect_clean({rule.target, rule.wrong, 2}, relaxed);
}

TEST(Barriers, WavesThatSkipSome) {
  const std::string leaves =
      "v_readfirstlane_b32 s12, v1\ns_nop 0\ns_cmp_lg_u32 s12, 0\ns_cbranch_scc1 1f\ns_barrier\n1:\n";
  expect_clean({"gfx942", leaves, 2});  // legal: an ended wave does not hold others up
  emu::RunOptions told;
  told.checks.skipped_barriers = true;
  expect_rule({"gfx942", leaves, "s_barrier\n", Check::barrier, "ended after 0 barriers, others passed 1", 2}, told);
}

TEST(Barriers, OneThatNeverCompletes) {
  // A wave that waits for a second completion of a barrier nobody signals again.
  const emu::LaunchResult stuck = launch({"gfx1201", "s_barrier_signal -1\ns_barrier_wait -1\ns_barrier_wait -1\n", 2});
  EXPECT_NE(stuck.error, "");
  ASSERT_FALSE(stuck.reports.empty());
  EXPECT_NE(stuck.reports[0].message.find("never signal"), std::string::npos) << texts(stuck.reports);
}

// --- the order of waves ----------------------------------------------------------------------------------------------

// Each wave writes its bytes of LDS and reads the other's, without a barrier between: right if they are abreast.
const std::string kAbreast = std::string(kOther) +
                             "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\nds_read_b32 v5, v7\n"
                             "s_waitcnt lgkmcnt(0)\n";
const char* const kStoreIt = "global_store_dword v1, v5, s[4:5]\n";

TEST(Order, LockstepIsOneInstructionInTurn) {
  for (const emu::WaveOrder order : {emu::WaveOrder::waves, emu::WaveOrder::lockstep}) {
    emu::RunOptions options;
    options.order = order;
    options.check = false;
    std::vector<int> waves;
    emu::u32 last = 0;  // what the first lane of wave 0 has read
    options.on_instruction = [&](const emu::Wave& wave, const emu::Instruction&) {
      waves.push_back(wave.id);
      if (wave.id == 0 && wave.state == emu::WaveState::done) last = wave.vgpr[5][0];
    };
    const std::string then = "s_barrier\ns_nop 0\n";
    EXPECT_EQ(launch({"gfx942", kAbreast + then, 3, 1024}, options).error, "");
    const bool lockstep = order == emu::WaveOrder::lockstep;
    EXPECT_EQ(last, lockstep ? 64u : ~0u);
    ASSERT_EQ(waves.size() % 3, 0u);
    for (size_t i = 0; i < waves.size() && lockstep; ++i) ASSERT_EQ(waves[i], static_cast<int>(i % 3)) << i;
  }
}

TEST(Order, ComparedOrdersSayWhetherTheResultDiffers) {
  emu::RunOptions compare;
  compare.order = emu::WaveOrder::compare;
  auto says = [](const emu::LaunchResult& result, Check check, const std::string& what) {
    return std::any_of(result.reports.begin(), result.reports.end(),
                       [&](const Report& r) { return r.check == check && r.text().find(what) != std::string::npos; });
  };
  const emu::LaunchResult differs = launch({"gfx942", kAbreast + kStoreIt, 2, 512}, compare);
  EXPECT_EQ(differs.orders, emu::OrdersCompared::different);
  EXPECT_TRUE(says(differs, Check::lds_race, "; the result differs in lockstep")) << texts(differs.reports);
  EXPECT_TRUE(says(differs, Check::order, "bytes differ in lockstep, the first in the buffer [kernel] address 0x"))
      << texts(differs.reports);
  const emu::LaunchResult unused = launch({"gfx942", kAbreast, 2, 512}, compare);
  EXPECT_EQ(unused.orders, emu::OrdersCompared::same);
  EXPECT_TRUE(says(unused, Check::lds_race, "; the result is the same in lockstep")) << texts(unused.reports);
  EXPECT_FALSE(says(unused, Check::order, ""));
  compare.check = false;
  const emu::LaunchResult unchecked = launch({"gfx942", kAbreast + kStoreIt, 2, 512}, compare);
  EXPECT_TRUE(says(unchecked, Check::order, "depends on the order of waves")) << texts(unchecked.reports);
  // A wave that ends only in one of the orders.
  compare.instruction_limit = 1000;
  const std::string first_only = "v_readfirstlane_b32 s9, v0\ns_cmp_eq_u32 s9, 0\ns_cselect_b32 s8, s8, -1\n";
  const std::string waits =
      kAbreast + "v_readfirstlane_b32 s8, v5\n" + first_only + "s_cmp_lg_u32 s8, -1\n1:\ns_cbranch_scc1 1b\n";
  EXPECT_TRUE(says(launch({"gfx942", waits, 2, 512}, compare), Check::order, "in lockstep the kernel does not finish"));
}

TEST(Order, ComparedOrdersStartFromTheSameMemory) {
  // A counter in memory that both waves raise: one launch's worth, whatever the order.
  const std::string count = "v_mov_b32 v8, 1\nv_mov_b32 v9, 0\nglobal_atomic_add v9, v8, s[4:5]\n";
  const std::string load = "global_load_dword v5, v9, s[4:5]\ns_waitcnt vmcnt(0)\n";
  emu::u32 seen[2] = {};
  emu::RunOptions options;
  for (emu::u32& value : seen) {
    options.on_instruction = [&](const emu::Wave& wave, const emu::Instruction&) {
      if (wave.id == 1 && wave.state == emu::WaveState::done) value = wave.vgpr[5][0];
    };
    const emu::LaunchResult result = launch({"gfx942", count + "s_barrier\n" + load, 2}, options);
    EXPECT_EQ(result.error + texts(result.reports), "");
    options.order = emu::WaveOrder::compare;
  }
  EXPECT_EQ(seen[1], seen[0] + 128);
  expect_clean({"gfx942", count + "s_barrier\n" + load, 2}, {.order = emu::WaveOrder::compare});
}

// --- reports ---------------------------------------------------------------------------------------------------------

TEST(Reports, OnePerInstructionAndRule) {
  const emu::LaunchResult result = launch(
      {"gfx942",
       "s_mov_b32 s10, 0\n1:\nv_add_u32 v6, v40, v41\ns_add_u32 s10, s10, 1\ns_cmp_lt_u32 s10, 3\ns_cbranch_scc1 1b\n",
       2});
  ASSERT_EQ(result.reports.size(), 1u) << texts(result.reports);
  const Report& r = result.reports[0];
  EXPECT_EQ(r.count, 4u);  // two registers in each of two waves; once reported, a register counts as written
  EXPECT_EQ(r.instruction, "v_add_u32_e32 v6, v40, v41");
  EXPECT_EQ(r.kernel, "kernel");
  const std::string text = r.text();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  for (const char* part :
       {"uninitialised: VGPR v40", "kernel at 0x", "v_add_u32_e32 v6, v40, v41", "wave 0", "4 times"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Reports, ChecksCanBeSwitchedOff) {
  emu::RunOptions options;
  options.checks.enabled &= ~(1u << static_cast<int>(Check::uninitialised));
  expect_clean({"gfx942", "v_add_u32 v6, 1, v40\n"}, options);
  options.checks.enabled = 1u << static_cast<int>(Check::bounds);
  expect_clean({"gfx942", "global_load_dword v5, v[2:3], off\nv_add_u32 v6, v40, v5\n"}, options);
}

}  // namespace

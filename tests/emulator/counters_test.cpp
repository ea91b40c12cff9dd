// Bank conflicts, bytes, bounds and the issue model on cases that can be counted by hand.
#include "count/counters.h"

#include <gtest/gtest.h>

#include "count/banks.h"
#include "count/bounds.h"
#include "count/issue_model.h"
#include "text_kernel.h"

namespace {

using emu::AccessKind;
using emu::Class;
using emu::u32;
using emu::u64;
using emu_test::launch;
using emu_test::program_of;
using emu_test::TextKernel;

constexpr u64 kWave64 = ~0ull, kWave32 = 0xffffffff;

template <class F>
emu::LdsClocks clocks(const char* target, u32 bytes, AccessKind kind, F address, u64 lanes = kWave64) {
  u32 addresses[64] = {};
  for (u32 lane = 0; lane < 64; ++lane) addresses[lane] = address(lane);
  const emu::Target& t = *emu::find_target(target);
  return emu::lds_clocks(t, t.wave_size, addresses, lanes, bytes, kind);
}

void expect_clocks(const emu::LdsClocks& got, u32 cycles, u32 ideal) {
  EXPECT_EQ(got.cycles, cycles);
  EXPECT_EQ(got.ideal, ideal);
}

TEST(Banks, ConsecutiveAddressesTake128BytesAClock) {
  for (const char* target : {"gfx90a", "gfx942", "gfx950"}) {
    for (AccessKind kind : {AccessKind::read, AccessKind::write}) {
      expect_clocks(clocks(target, 4, kind, [](u32 l) { return 4 * l; }), 2, 2);
      expect_clocks(clocks(target, 8, kind, [](u32 l) { return 8 * l; }), 4, 4);
      expect_clocks(clocks(target, 16, kind, [](u32 l) { return 16 * l; }), 8, 8);
    }
  }
  for (const char* target : {"gfx1100", "gfx1201"}) {
    expect_clocks(clocks(target, 4, AccessKind::read, [](u32 l) { return 4 * l; }, kWave32), 1, 1);
    expect_clocks(clocks(target, 16, AccessKind::read, [](u32 l) { return 16 * l; }, kWave32), 4, 4);
    expect_clocks(clocks(target, 16, AccessKind::write, [](u32 l) { return 16 * l; }, kWave32), 4, 4);
  }
}

TEST(Banks, EqualDwordsAreServedTogether) {
  expect_clocks(clocks("gfx942", 4, AccessKind::read, [](u32) { return 64; }), 2, 2);
  expect_clocks(clocks("gfx942", 2, AccessKind::read, [](u32 l) { return 2 * l; }), 2, 2);
}

TEST(Banks, StridesOfAPowerOfTwoConflict) {
  // Dwords 32 apart: all in one bank.
  expect_clocks(clocks("gfx942", 4, AccessKind::read, [](u32 l) { return 128 * l; }), 64, 2);
  expect_clocks(clocks("gfx942", 4, AccessKind::read, [](u32 l) { return 8 * l; }), 4, 2);
  expect_clocks(clocks("gfx1100", 4, AccessKind::write, [](u32 l) { return 128 * l; }, kWave32), 32, 1);
  // A row of 17 dwords spreads them again.
  expect_clocks(clocks("gfx942", 4, AccessKind::read, [](u32 l) { return 4 * 33 * l; }), 2, 2);
}

TEST(Banks, LanesThatDoNothingCostNothing) {
  expect_clocks(clocks("gfx942", 4, AccessKind::read, [](u32 l) { return 128 * l; }, 0), 0, 0);
  expect_clocks(clocks("gfx942", 4, AccessKind::read, [](u32 l) { return 128 * l; }, 0x100000003ull), 3, 2);
}

TEST(Banks, WideReadsOfCdnaPairDistantLanes) {
  // Lanes 0-3 and 20-23 are served together: in the same banks they conflict, lanes 4-7 with 0-3 do not.
  auto address = [](u32 l) { return l < 4 ? 16 * l : l >= 20 && l < 24 ? 1024 + 16 * (l - 20) : 2048 + 16 * l; };
  expect_clocks(clocks("gfx942", 16, AccessKind::read, address, 0xf0000full), 2, 1);
  expect_clocks(clocks("gfx942", 16, AccessKind::write, address, 0xf0000full), 2, 2);
  auto near = [](u32 l) { return l < 4 ? 16 * l : 1024 + 16 * (l - 4); };
  expect_clocks(clocks("gfx942", 16, AccessKind::read, near, 0xffull), 2, 2);
  expect_clocks(clocks("gfx942", 16, AccessKind::write, near, 0xffull), 2, 1);
}

TEST(Banks, Cdna4Has64BanksForWideReads) {
  // Half the lanes at banks 0-31, half at 32-63 of one phase.
  auto address = [](u32 l) { return 4 * (32 * (l & 1) + 64 * (l / 2)); };
  expect_clocks(clocks("gfx950", 8, AccessKind::read, address), 2 * 2 * 16, 4);
  expect_clocks(clocks("gfx950", 8, AccessKind::write, address), 4 * 16, 4);
  auto two_rows = [](u32 l) { return l < 16 ? 8 * l : 128 + 8 * (l - 16); };
  expect_clocks(clocks("gfx950", 8, AccessKind::read, two_rows, kWave32), 2, 2);
}

TEST(Counters, BytesAndSectors) {
  const emu::LaunchResult r =
      launch({"gfx942",
              "v_add_co_u32 v2, vcc, v2, v1\ns_nop 1\nv_addc_co_u32 v3, vcc, 0, v3, vcc\n"
              "global_load_dword v5, v[2:3], off\nglobal_load_dword v6, v[2:3], off offset:256\n"
              "s_waitcnt vmcnt(0)\nglobal_store_dword v[2:3], v5, off\nglobal_atomic_add v[2:3], v6, off\n"},
             {.count = true});
  ASSERT_TRUE(r.accesses);
  EXPECT_EQ(r.accesses->vmem_bytes, 4u * 256);
  EXPECT_EQ(r.accesses->store_bytes, 256u);
  EXPECT_EQ(r.accesses->atomic_bytes, 256u);
  const u64 distinct = r.accesses->sectors.bytes();
  EXPECT_GE(distinct, 512u);
  EXPECT_LE(distinct, 512u + 32);  // the buffer need not start at a sector
}

TEST(Counters, ConflictsNameTheirInstruction) {
  const TextKernel kernel{"gfx942",
                          "v_lshlrev_b32 v7, 5, v1\nds_write_b32 v7, v0\nds_write_b32 v1, v0 offset:8192\n"
                          "s_waitcnt lgkmcnt(0)\n",
                          1, 16384};
  const emu::LaunchResult r = launch(kernel, {.count = true});
  const emu::LaunchCounters c = emu::launch_counters(program_of(kernel), r);
  EXPECT_EQ(c.lds_clocks, 64u + 2u);
  EXPECT_EQ(c.lds_ideal_clocks, 4u);
  ASSERT_EQ(c.conflicts.size(), 1u);
  EXPECT_EQ(c.conflicts[0].instruction, "ds_write_b32 v7, v0");
  EXPECT_EQ(c.conflicts[0].executed, 1u);
  EXPECT_NE(emu::counters_table(c).find("bank conflicts x32.00"), std::string::npos) << emu::counters_table(c);
}

std::string times(int n, const std::string& text) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

const char* const kAccumulators = "v_mov_b32 v20, 0\nv_mov_b32 v21, 0\nv_mov_b32 v22, 0\nv_mov_b32 v23, 0\ns_nop 7\n";

TEST(Counters, BoundsOfCdna) {
  // 8 MFMA of 16 clocks, 8 + 5 + 4 moves and others of 4 clocks, 2 exponentials of 16: on one SIMD of four.
  const TextKernel kernel{"gfx942",
                          kAccumulators +
                              times(8, "v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0\ns_nop 7\ns_nop 7\n") +
                              times(2, "v_exp_f32 v30, v20\n")};
  const emu::LaunchResult r = launch(kernel, {.count = true});
  const emu::LaunchCounters c = emu::launch_counters(program_of(kernel), r);
  EXPECT_EQ(c.by_class[static_cast<int>(Class::matrix)], 8u);
  EXPECT_EQ(c.by_class[static_cast<int>(Class::transcendental)], 2u);
  const u64 vector = c.by_class[static_cast<int>(Class::vector)];
  EXPECT_DOUBLE_EQ(c.matrix_clocks, 8 * 16 / 4.0);
  EXPECT_DOUBLE_EQ(c.transcendental_clocks, 2 * 16 / 4.0);
  EXPECT_DOUBLE_EQ(c.vector_clocks, (static_cast<double>(vector) * 4 + 2 * 16) / 4.0);
  EXPECT_DOUBLE_EQ(c.overlap_bound, 1.0);
  EXPECT_DOUBLE_EQ(c.serial_bound, c.matrix_clocks / (c.matrix_clocks + c.vector_clocks));
}

TEST(Counters, BoundsOfRdna) {
  const std::string registers = [] {
    std::string text;
    for (int i = 20; i < 44; ++i) text += "v_mov_b32 v" + std::to_string(i) + ", 0\n";
    return text;
  }();
  for (const auto& [target, wmma, clock] :
       {std::tuple{"gfx1100", "v_wmma_f32_16x16x16_f16 v[36:43], v[20:27], v[28:35], v[36:43]\n", 32.0},
        std::tuple{"gfx1201", "v_wmma_f32_16x16x16_f16 v[36:43], v[20:23], v[28:31], v[36:43]\n", 16.0}}) {
    const TextKernel kernel{target, registers + times(4, wmma) + "v_dual_mov_b32 v4, v0 :: v_dual_mov_b32 v5, v1\n" +
                                        "v_exp_f32 v6, v20\n"};
    const emu::LaunchResult r = launch(kernel, {.count = true});
    const emu::LaunchCounters c = emu::launch_counters(program_of(kernel), r);
    EXPECT_DOUBLE_EQ(c.matrix_clocks, 4 * clock / 2) << target;
    EXPECT_DOUBLE_EQ(c.transcendental_clocks, 4 / 2.0);
    EXPECT_EQ(c.dual_issued, 1u);
    // One slot each, the pair and the exponential included.
    const double slots = static_cast<double>(c.by_class[static_cast<int>(Class::vector)] + 1);
    EXPECT_DOUBLE_EQ(c.vector_clocks, slots / 2);
    EXPECT_DOUBLE_EQ(c.serial_bound, c.matrix_clocks / (c.matrix_clocks + c.vector_clocks));
  }
}

TEST(Counters, JsonHasEveryField) {
  const TextKernel kernel{"gfx942", "ds_write_b32 v1, v0\n", 1, 512};
  const std::string json =
      emu::counters_json(emu::launch_counters(program_of(kernel), launch(kernel, {.count = true})));
  for (const char* key : {"\"target\":\"gfx942\"", "\"instructions\":", "\"lds_write\":1", "\"lds_clocks\":2",
                          "\"vmem_bytes\":0", "\"lds_conflicts\":[]", "\"overlap_bound\":", "\"serial_bound\":"}) {
    EXPECT_NE(json.find(key), std::string::npos) << json;
  }
  EXPECT_EQ(json.front(), '{');
  EXPECT_EQ(json.back(), '}');
}

// --- issue model -----------------------------------------------------------------------------------------------------

emu::IssueModelResult model(const TextKernel& kernel, emu::IssueModelOptions options = {}) {
  emu::RunOptions run;
  run.count = run.trace = true;
  const emu::LaunchResult r = launch(kernel, run);
  EXPECT_EQ(r.error, "");
  return emu::model_issue(program_of(kernel), r, options);
}

TEST(IssueModel, IndependentMatrixInstructionsKeepTheUnitBusy) {
  std::string body = kAccumulators;
  for (int i = 0; i < 200; ++i) {
    body += "v_mfma_f32_16x16x16_f16 v[" + std::to_string(24 + 4 * (i % 8)) + ":" + std::to_string(27 + 4 * (i % 8)) +
            "], v[20:21], v[22:23], 0\n";
  }
  // One wave on each of four SIMDs.
  EXPECT_GT(model({"gfx942", body, 4}).matrix_busy, 0.95);
  EXPECT_LT(model({"gfx942", body, 1}).matrix_busy, 0.26);
}

TEST(IssueModel, DependentOnesWait) {
  const std::string chain = times(
      100, "v_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0\ns_nop 7\nv_add_u32 v20, v24, v24\ns_nop 1\n");
  const emu::IssueModelResult r = model({"gfx942", kAccumulators + chain, 4});
  EXPECT_LT(r.matrix_busy, 0.5);
  emu::IssueModelOptions slow;
  slow.matrix_latency = 100;
  EXPECT_LT(model({"gfx942", kAccumulators + chain, 4}, slow).matrix_busy, r.matrix_busy);
}

TEST(IssueModel, KnobsActAsNamed) {
  const std::string loads = times(50, "ds_bpermute_b32 v5, v1, v0\ns_waitcnt lgkmcnt(0)\nv_mov_b32 v6, v5\n");
  emu::IssueModelOptions slow;
  slow.lds_latency = 640;
  EXPECT_GT(model({"gfx942", loads}, slow).clocks, 4 * model({"gfx942", loads}).clocks);
  const std::string memory = times(50, "global_load_b32 v5, v[2:3], off\ns_waitcnt vmcnt(0)\nv_mov_b32 v6, v5\n");
  emu::IssueModelOptions fast;
  fast.vmem_latency = 80;
  EXPECT_LT(4 * model({"gfx1100", memory}, fast).clocks, model({"gfx1100", memory}).clocks);
  const std::string branches =
      "s_mov_b32 s10, 0\n1:\nv_mov_b32 v6, v0\ns_add_u32 s10, s10, 1\ns_cmp_lt_u32 s10, 50\ns_cbranch_scc1 1b\n";
  emu::IssueModelOptions long_branches;
  long_branches.branch = 400;
  EXPECT_GT(model({"gfx1100", branches}, long_branches).clocks, 4 * model({"gfx1100", branches}).clocks);
}

TEST(IssueModel, RdnaMatrixInstructionsBlockTheVectorPort) {
  std::string body;
  for (int i = 20; i < 44; ++i) body += "v_mov_b32 v" + std::to_string(i) + ", 0\n";
  body +=
      times(60, "v_wmma_f32_16x16x16_f16 v[36:43], v[20:27], v[28:35], v[36:43]\n" + times(16, "v_mov_b32 v6, v0\n"));
  const emu::IssueModelResult blocked = model({"gfx1100", body, 4});
  emu::IssueModelOptions overlapping;
  overlapping.overlap = true;
  const emu::IssueModelResult beside = model({"gfx1100", body, 4}, overlapping);
  EXPECT_LT(blocked.matrix_busy, 0.75);
  EXPECT_GT(beside.matrix_busy, blocked.matrix_busy + 0.1);
  EXPECT_NE(blocked.text().find("model, for ranking only"), std::string::npos);
}

TEST(IssueModel, NeedsATrace) {
  const TextKernel kernel{"gfx942", "v_mov_b32 v6, v0\n"};
  const emu::LaunchResult r = launch(kernel, {.count = true});
  EXPECT_THROW(emu::model_issue(program_of(kernel), r, {}), std::invalid_argument);
}

}  // namespace

#include "catalog/catalog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "flashwave/flashwave.h"

namespace flashwave {
namespace {

TEST(Catalog, EveryRowIsComplete) {
  ASSERT_FALSE(catalog().empty());
  for (const KernelRow& row : catalog()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(std::string_view(row.device) == "cpu" || std::string_view(row.device) == "cuda" ||
                std::string_view(row.device) == "hip");
    EXPECT_NE(row.dtypes, 0u);
    EXPECT_EQ(row.dtypes & ~(1u << FW_F16 | 1u << FW_BF16 | 1u << FW_F32), 0u);
    for (const int32_t dim : {row.max_dim_qk, row.max_dim_v}) {
      EXPECT_GE(dim, 1);
      EXPECT_LE(dim, 512);
    }
    EXPECT_EQ(row.threads > 0, std::string_view(row.device) != "cpu");
    EXPECT_EQ(*row.source != 0, std::string_view(row.device) != "cpu");
    EXPECT_GE(row.max_seqlen_k, 0);
    EXPECT_GE(row.max_seqlen_q, 0);
    EXPECT_GE(row.tile_q, 1);
    EXPECT_GE(row.tile_k, 1);
    EXPECT_EQ(row.features & ~uint32_t{kAllFeatures}, 0u);
    EXPECT_LT(std::string_view(row.name).size(), sizeof(fw_report::kernel)) << "must fit the report";
  }
}

// Every kind of device has one in both directions, and no other kernel is tried after it.
TEST(Catalog, TheSlowPathIsTriedLast) {
  for (const std::string_view device : {"cpu", "cuda", "hip"}) {
    for (const Op op : {Op::kForward, Op::kBackward}) {
      bool any = false, slow = false;
      for (const KernelRow& row : catalog()) {
        if (row.device != device || row.op != op || row.only_forced) continue;
        SCOPED_TRACE(row.name);
        EXPECT_TRUE(!slow || is_slow_path(row));
        any = true, slow = is_slow_path(row);
      }
      EXPECT_EQ(slow, any) << device << " " << op_name(op);
    }
  }
}

// Whatever the CPU, each operation has a kernel that takes every dtype, dim and feature and needs no instruction set.
TEST(Catalog, CpuHasACompleteSlowPath) {
  for (const Op op : {Op::kForward, Op::kBackward, Op::kAppend, Op::kRotary, Op::kFill}) {
    bool complete = false;
    for (const KernelRow& row : catalog()) {
      complete |= std::string_view(row.device) == "cpu" && row.op == op && row.isa == kIsaNone &&
                  row.features == kAllFeatures && row.max_dim_qk == 512 && row.max_dim_v == 512 &&
                  row.max_seqlen_q == 0 && !row.only_forced;
    }
    EXPECT_TRUE(complete) << op_name(op);
  }
}

// Every row is compiled, tested and carried along for good. Raising a ceiling is a decision: say what the rows are
// worth.
// NVIDIA: 29 rows of Hopper's backward, 15 of them the passes around it, twice as fast as what came before; 8 that pack
// heads and part the keys of caches, six times as fast for 17 queries on 32k keys, 2 for at most 256 queries of dim 64,
// 1.15 times, and 6 for a softcap, 1.7 times; 18
// for ALiBi, a bias or dropout alone, 1.7, 3 and 1.4 times, 2 for ALiBi at dim 64 without LSE, 1.03 times, which is
// what it takes for nine tenths of the speed without ALiBi, and 6 of the backward for a bias, 1.3 to 2 times; 11 of the
// backward at dim 64, five of them passes: with modifiers 1.7 times as fast, with at most 128 keys 1.4 times; 34
// of the backward by mma.sync, three head dims in two types, plain and with modifiers, for three sizes of shared
// memory, and of the gradient of a bias: on all GPUs but Hopper there was the slow path alone, and everywhere for that
// gradient. AMD: the backward on matrix cores where there was the slow path alone; on RDNA 36 rows, three head dims in
// two types, each fused and as a pair that always gives the same bits, plain and with modifiers, and 4 for short
// sequences; on CDNA rows for dims 96, 192 and 192/128, for short sequences, and a truncating one. One
// row copies tensors in another element type. On both, one fills rows of no sequence: to clear whole results instead
// was 6 % of a packed backward on an H200.
constexpr int kMostRowsOfAnAmdGpu = 122, kMostRowsOfAnNvidiaGpu = 231;

int rows_of(std::string_view device, uint32_t isa) {
  const auto runs = [&](const KernelRow& row) { return (row.isa & ~isa) == 0; };
  return static_cast<int>(std::ranges::count_if(catalog_of(device), runs));
}

TEST(Catalog, NoGpuHasMoreRowsThanItsCeiling) {
#define FW_AMD_GPU(name, code, machine, isa) EXPECT_LE(rows_of("hip", kIsaAmd | (isa)), kMostRowsOfAnAmdGpu) << #name;
#include "kernels/registry.def"
  constexpr int kAndLater = 999;
  for (const int capability : {75, 80, 86, 89, 90, 100, 120}) {
    uint32_t isa = kIsaNone;
#define FW_NVIDIA_GPUS(name, from, to) \
  if (capability >= (from) && capability <= (to)) isa |= name;
#include "kernels/registry.def"
    EXPECT_LE(rows_of("cuda", isa), kMostRowsOfAnNvidiaGpu) << capability;
  }
}

TEST(Catalog, EveryFeatureHasItsOwnName) {
  std::set<std::string> names;
  int features = 0;
  for (uint32_t bit = 1; bit & kAllFeatures; bit <<= 1, ++features) {
    const std::string name = feature_name(static_cast<Feature>(bit));
    EXPECT_NE(name, "?") << "bit " << features;
    names.insert(name);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(features));
  EXPECT_STREQ(feature_name(kNoFeatures), "?");
}

}  // namespace
}  // namespace flashwave

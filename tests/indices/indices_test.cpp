// FLASHWAVE_CHECK_INDEXES: lengths and pages in a GPU's memory are checked as those of the CPU are.
// FLASHWAVE_TEST_DEVICE names the GPU (cuda, hip, emu:gfxNNN).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "flashwave/flashwave.h"
#include "tests/device_copy.h"

namespace {

using flashwave::DeviceCopy;

fw_device* gpu() {
  static fw_device* const device = [] {
    fw_device* opened = nullptr;
    const char* name = std::getenv("FLASHWAVE_TEST_DEVICE");
    EXPECT_NE(name, nullptr) << "FLASHWAVE_TEST_DEVICE names the device";
    EXPECT_EQ(fw_device_open(name != nullptr ? name : "", &opened), FW_OK) << fw_last_error();
    return opened;
  }();
  return device;
}

fw_tensor tensor(void* data, int64_t rows, int64_t heads, int64_t dim) {
  fw_tensor t{};
  t.data = data;
  t.dtype = FW_BF16;
  t.stride[0] = rows * heads * dim, t.stride[1] = heads * dim, t.stride[2] = dim, t.stride[3] = 1;
  return t;
}

constexpr int64_t kBatch = 2, kHeads = 4, kHeadsK = 2, kDim = 64, kRows = 128, kQueries = 4, kPlaces = 3, kPage = 64;

struct Indices {
  std::vector<int32_t> used{}, table{};
};

struct Outcome {
  fw_status status;
  std::string error;
};

// With a table the cache has kPlaces pages of kPage rows, else kBatch rows of kRows keys.
Outcome attend(const Indices& indices) {
  const bool paged = !indices.table.empty();
  const int64_t rows = paged ? kPage : kRows, places = paged ? kPlaces : kBatch;
  const std::vector<uint16_t> queries(kBatch * kQueries * kHeads * kDim), keys(places * rows * kHeadsK * kDim);
  const auto on_gpu = [](const auto& numbers) {
    return DeviceCopy(gpu(), numbers.data(), numbers.size() * sizeof numbers[0]);
  };
  DeviceCopy q = on_gpu(queries), k = on_gpu(keys), v = on_gpu(keys), o = on_gpu(queries);
  DeviceCopy used = on_gpu(indices.used), table = on_gpu(indices.table);
  fw_attention a;
  fw_attention_init(&a, sizeof a);
  a.batch = kBatch, a.seqlen_q = kQueries, a.heads_q = kHeads, a.heads_k = kHeadsK;
  a.dim_qk = a.dim_v = kDim;
  a.seqlen_k = kRows;
  a.q = tensor(q.data(), kQueries, kHeads, kDim), a.o = tensor(o.data(), kQueries, kHeads, kDim);
  a.k = tensor(k.data(), rows, kHeadsK, kDim), a.v = tensor(v.data(), rows, kHeadsK, kDim);
  a.seqused_k = static_cast<const int32_t*>(used.data());
  if (paged) {
    a.batch_k = kPlaces;
    a.block_table = static_cast<const int32_t*>(table.data()), a.block_table_stride = kRows / kPage,
    a.page_size = kPage;
  }
  Outcome outcome;
  outcome.status = fw_forward(gpu(), &a, nullptr);
  if (outcome.status == FW_OK) outcome.status = fw_device_synchronize(gpu(), nullptr);
  if (outcome.status != FW_OK) outcome.error = fw_last_error();
  return outcome;
}

TEST(Indices, CheckedModeSaysWhichIsWrong) {
  setenv("FLASHWAVE_CHECK_INDEXES", "1", 1);
  const Outcome length = attend({.used = {129, 4}}), page = attend({.used = {128, 4}, .table = {0, 3, 1, 1}});
  const Outcome right = attend({.used = {128, 4}, .table = {0, 2, 1, 1}});
  unsetenv("FLASHWAVE_CHECK_INDEXES");
  EXPECT_EQ(length.status, FW_INVALID_ARGUMENT);
  EXPECT_NE(length.error.find("seqused_k[0] must be in [0, 128]"), std::string::npos) << length.error;
  EXPECT_EQ(page.status, FW_INVALID_ARGUMENT);
  EXPECT_NE(page.error.find("block_table[0][1] must be in [0, 3)"), std::string::npos) << page.error;
  EXPECT_EQ(right.status, FW_OK) << right.error;
}

}  // namespace

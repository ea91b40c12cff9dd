// A GPU's kernels read lengths, pages and rows of the cache from its memory, where the library cannot look. What the
// cache does not have must not lead out of it: lengths count as the most it holds, places as the first. The emulator
// fails a launch that reads or writes outside of an allocation. FLASHWAVE_TEST_DEVICE names the GPU (cuda, hip,
// emu:gfxNNN).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "flashwave/flashwave.h"
#include "kernels/common/dtype.h"

namespace {

using flashwave::BFloat16;

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

// An allocation of its own in the GPU's memory.
template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& host) : count_(host.size()) {
    EXPECT_EQ(fw_device_alloc(gpu(), std::max<size_t>(bytes(), 1), &data_), FW_OK) << fw_last_error();
    EXPECT_EQ(fw_device_copy(gpu(), data_, host.data(), bytes(), FW_HOST_TO_DEVICE, nullptr), FW_OK);
    EXPECT_EQ(fw_device_synchronize(gpu(), nullptr), FW_OK);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  ~OnGpu() { fw_device_free(gpu(), data_); }
  T* data() { return static_cast<T*>(data_); }
  std::vector<T> read() {
    std::vector<T> host(count_);
    EXPECT_EQ(fw_device_copy(gpu(), host.data(), data_, bytes(), FW_DEVICE_TO_HOST, nullptr), FW_OK);
    EXPECT_EQ(fw_device_synchronize(gpu(), nullptr), FW_OK);
    return host;
  }

 private:
  size_t bytes() const { return count_ * sizeof(T); }
  size_t count_;
  void* data_ = nullptr;
};

std::vector<uint16_t> drawn(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> numbers(static_cast<size_t>(count));
  for (uint16_t& x : numbers) x = flashwave::from_float<BFloat16>(normal(random)).bits;
  return numbers;
}

fw_tensor tensor(void* data, int64_t rows, int64_t heads, int64_t dim) {
  fw_tensor t{};
  t.data = data;
  t.dtype = FW_BF16;
  t.stride[0] = rows * heads * dim, t.stride[1] = heads * dim, t.stride[2] = dim, t.stride[3] = 1;
  return t;
}

constexpr int64_t kBatch = 2, kHeads = 4, kHeadsK = 2, kDim = 64, kRows = 128, kPlaces = 3, kPage = 64;

struct Indices {
  std::vector<int32_t> used{}, table{}, rows{}, pad{};
  int64_t appended = 0, queries = 4;
};

struct Outcome {
  fw_status status;
  std::string error;
  std::vector<uint16_t> o, k, v;
};

// With a table the cache has kPlaces pages of kPage rows, else kPlaces rows of kRows keys.
Outcome attend(const Indices& indices, const char* kernel = nullptr) {
  const bool paged = !indices.table.empty();
  const int64_t rows = paged ? kPage : kRows;
  OnGpu<uint16_t> q(drawn(kBatch * indices.queries * kHeads * kDim, 1)), k(drawn(kPlaces * rows * kHeadsK * kDim, 2)),
      v(drawn(kPlaces * rows * kHeadsK * kDim, 3)), k_new(drawn(kBatch * indices.appended * kHeadsK * kDim, 4)),
      o(std::vector<uint16_t>(static_cast<size_t>(kBatch * indices.queries * kHeads * kDim), 0x7FC0));
  OnGpu<int32_t> used(indices.used), table(indices.table), places(indices.rows), pad(indices.pad);
  fw_attention a;
  fw_attention_init(&a, sizeof a);
  a.batch = kBatch, a.seqlen_q = indices.queries, a.heads_q = kHeads, a.heads_k = kHeadsK;
  a.dim_qk = a.dim_v = kDim;
  a.seqlen_k = kRows;
  a.batch_k = kPlaces;
  a.q = tensor(q.data(), indices.queries, kHeads, kDim), a.o = tensor(o.data(), indices.queries, kHeads, kDim);
  a.k = tensor(k.data(), rows, kHeadsK, kDim), a.v = tensor(v.data(), rows, kHeadsK, kDim);
  if (!indices.used.empty()) a.seqused_k = used.data();
  if (!indices.pad.empty()) a.leftpad_k = pad.data();
  if (!indices.rows.empty()) a.cache_batch_idx = places.data();
  if (paged) a.block_table = table.data(), a.block_table_stride = kRows / kPage, a.page_size = kPage;
  if (indices.appended > 0) {
    a.seqlen_new = indices.appended;
    a.k_new = a.v_new = tensor(k_new.data(), indices.appended, kHeadsK, kDim);
  }
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.force_kernel = kernel;
  Outcome outcome;
  outcome.status = fw_forward(gpu(), &a, &exec);
  if (outcome.status == FW_OK) outcome.status = fw_device_synchronize(gpu(), nullptr);
  if (outcome.status != FW_OK) outcome.error = fw_last_error();
  outcome.o = o.read(), outcome.k = k.read(), outcome.v = v.read();
  return outcome;
}

const char* slow_path() {
  for (int32_t i = 0; const char* name = fw_kernel_name(gpu(), i); ++i) {
    if (std::string(name).ends_with("generic_fwd_bf16")) return name;
  }
  ADD_FAILURE() << "there is no slow path";
  return nullptr;
}

// For few and many queries, by the kernels that are chosen and by the slow path.
void expect_same(const Indices& bad, const Indices& good) {
  for (const int64_t queries : {int64_t{1}, int64_t{4}, int64_t{70}}) {
    for (const bool slow : {false, true}) {
      const char* const kernel = slow ? slow_path() : nullptr;
      Indices with_bad = bad, with_good = good;
      with_bad.queries = with_good.queries = queries;
      const Outcome wanted = attend(with_good, kernel), found = attend(with_bad, kernel);
      ASSERT_EQ(wanted.status, FW_OK) << wanted.error;
      ASSERT_EQ(found.status, FW_OK) << found.error << "; " << queries << " queries";
      EXPECT_EQ(found.o, wanted.o) << queries << " queries";
      EXPECT_EQ(found.k, wanted.k) << queries << " queries";
      EXPECT_EQ(found.v, wanted.v) << queries << " queries";
    }
  }
}

TEST(Indices, LengthsCountAsTheMostThatTheCacheHolds) {
  expect_same({.used = {100000, -7}}, {.used = {kRows, 0}});
  expect_same({.used = {129, 1 << 30}}, {.used = {kRows, kRows}});
  expect_same({.used = {100, 50}, .pad = {500, -3}}, {.used = {100, 50}, .pad = {100, 0}});
}

TEST(Indices, PagesAndRowsThatAreNotThereCountAsTheFirst) {
  expect_same({.used = {128, 70}, .table = {2, 3, -1, 1 << 30}}, {.used = {128, 70}, .table = {2, 0, 0, 0}});
  expect_same({.used = {100, 128}, .rows = {3, -1}}, {.used = {100, 128}, .rows = {0, 0}});
}

TEST(Indices, NewKeysStayInTheCache) {
  expect_same({.used = {5000, -1}, .appended = 3}, {.used = {kRows - 3, 0}, .appended = 3});
  expect_same({.used = {128, 64}, .table = {0, 1, 2, 77}, .appended = 2},
              {.used = {126, 64}, .table = {0, 1, 2, 0}, .appended = 2});
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

// Lengths, offsets, pages and rows that a GPU's kernels read from its memory, where the library does not look: what the
// tensors do not have counts as the most that they have, and nothing outside of them is read or written. The emulator
// fails a launch that leaves an allocation; where it would only reach another one, the results would differ. And with
// FLASHWAVE_CHECK_INDEXES they are checked as those of the CPU are. FLASHWAVE_TEST_DEVICE names the GPU (cuda, hip,
// emu:gfxNNN).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flashwave/flashwave.h"
#include "kernels/common/dtype.h"
#include "tests/device_copy.h"

namespace {

using flashwave::DeviceCopy;
using Numbers = std::vector<uint16_t>;  // bf16
using Indices = std::vector<int32_t>;

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

// The same numbers for call after call, so they are drawn once.
const Numbers& drawn(int64_t count, unsigned seed) {
  static std::map<std::pair<int64_t, unsigned>, Numbers> known;
  const auto [entry, is_new] = known.try_emplace({count, seed}, static_cast<size_t>(count));
  if (is_new) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (uint16_t& x : entry->second) x = flashwave::from_float<flashwave::BFloat16>(normal(random)).bits;
  }
  return entry->second;
}
Numbers poison(int64_t count) { return Numbers(static_cast<size_t>(count), 0x7FC0); }

// In the GPU's memory, an allocation of its own.
template <class T>
struct OnGpu {
  explicit OnGpu(const std::vector<T>& numbers)
      : count(numbers.size()), copy(gpu(), numbers.data(), count * sizeof(T)) {}
  T* data() { return count > 0 ? static_cast<T*>(copy.data()) : nullptr; }
  std::vector<T> read() {
    std::vector<T> numbers(count);
    copy.fetch(numbers.data());
    return numbers;
  }
  size_t count;
  DeviceCopy copy;
};

fw_tensor tensor(void* data, int64_t rows, int64_t heads, int64_t dim, int32_t dtype = FW_BF16) {
  fw_tensor t{};
  t.data = data;
  t.dtype = dtype;
  t.stride[0] = rows * heads * dim, t.stride[1] = heads * dim, t.stride[2] = dim, t.stride[3] = 1;
  return t;
}

constexpr int64_t kBatch = 2, kHeads = 4, kHeadsK = 2, kDim = 64, kRows = 128, kPlaces = 3, kPage = 64;
constexpr int32_t kHuge = 1 << 30;

// With a table the cache has kPlaces pages of kPage rows, with cu_k it is kRows packed rows, else it has kPlaces rows
// of kRows keys.
struct Call {
  Indices used{}, table{}, rows{}, pad{}, cu_q{}, cu_k{};
  int64_t queries = 4, appended = 0;
  bool rotary = false, lse = false, fill = false;
};

struct Outcome {
  fw_status status = FW_OK;
  std::string error{};
  std::vector<Numbers> results{};
  std::vector<float> lse{};
};

Outcome finished(fw_status status) {
  Outcome outcome;
  outcome.status = status == FW_OK ? fw_device_synchronize(gpu(), nullptr) : status;
  if (outcome.status != FW_OK) outcome.error = fw_last_error();
  return outcome;
}

// What both passes have.
struct Arguments {
  int64_t rows_q, rows_k, places;
  OnGpu<uint16_t> q, k, v, o;
  OnGpu<int32_t> used, table, cache_rows, pad, cu_q, cu_k;
  fw_attention a;

  explicit Arguments(const Call& call)
      : rows_q(call.cu_q.empty() ? kBatch * call.queries : 3 * call.queries / 2),
        rows_k(call.table.empty() ? kRows : kPage),
        places(call.cu_k.empty() ? call.rows.empty() && call.table.empty() ? kBatch : kPlaces : 1),
        q(drawn(rows_q * kHeads * kDim, 1)),
        k(drawn(places * rows_k * kHeadsK * kDim, 2)),
        v(drawn(places * rows_k * kHeadsK * kDim, 3)),
        o(poison(rows_q * kHeads * kDim)),
        used(call.used),
        table(call.table),
        cache_rows(call.rows),
        pad(call.pad),
        cu_q(call.cu_q),
        cu_k(call.cu_k) {
    fw_attention_init(&a, sizeof a);
    a.batch = kBatch, a.seqlen_q = call.queries, a.heads_q = kHeads, a.heads_k = kHeadsK;
    a.dim_qk = a.dim_v = kDim;
    a.seqlen_k = kRows;
    a.total_q = call.cu_q.empty() ? 0 : rows_q, a.total_k = call.cu_k.empty() ? 0 : kRows;
    a.batch_k = call.rows.empty() && call.table.empty() ? 0 : places;
    a.q = tensor(q.data(), call.queries, kHeads, kDim), a.o = tensor(o.data(), call.queries, kHeads, kDim);
    a.k = tensor(k.data(), rows_k, kHeadsK, kDim), a.v = tensor(v.data(), rows_k, kHeadsK, kDim);
    a.cu_seqlens_q = cu_q.data(), a.cu_seqlens_k = cu_k.data();
    a.seqused_k = used.data(), a.leftpad_k = pad.data(), a.cache_batch_idx = cache_rows.data();
    a.block_table = table.data();
    if (call.fill) a.flags |= FW_FILL_UNUSED;
    if (a.block_table != nullptr) a.block_table_stride = kRows / kPage, a.page_size = kPage;
  }
};

Outcome attend(const Call& call, const char* kernel = nullptr) {
  Arguments arguments(call);
  fw_attention& a = arguments.a;
  OnGpu<uint16_t> added(drawn(kBatch * call.appended * kHeadsK * kDim, 4));
  OnGpu<float> angles(std::vector<float>(call.rotary ? kRows * kDim / 2 : 0, 0.5f));
  if (call.appended > 0) {
    a.seqlen_new = call.appended;
    a.k_new = a.v_new = tensor(added.data(), call.appended, kHeadsK, kDim);
  }
  if (call.rotary) {
    a.rotary_seqlen = kRows, a.rotary_dim = kDim;
    a.rotary_cos = a.rotary_sin = tensor(angles.data(), 1, 1, kDim / 2, FW_F32);
    a.rotary_cos.stride[1] = a.rotary_sin.stride[1] = 1;
  }
  OnGpu<float> lse(std::vector<float>(call.lse ? static_cast<size_t>(arguments.rows_q * kHeads) : 0, 7.f));
  if (call.lse) a.lse = tensor(lse.data(), call.queries, kHeads, 1, FW_F32);
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.force_kernel = kernel;
  Outcome outcome = finished(fw_forward(gpu(), &a, &exec));
  if (outcome.status == FW_OK)
    outcome.results = {arguments.o.read(), arguments.k.read(), arguments.v.read()}, outcome.lse = lse.read();
  return outcome;
}

Outcome differentiate(const Call& call, const char* kernel = nullptr) {
  Arguments arguments(call);
  const fw_attention& forward = arguments.a;
  OnGpu<uint16_t> d_o(drawn(arguments.rows_q * kHeads * kDim, 5)), dq(poison(arguments.rows_q * kHeads * kDim)),
      dk(poison(arguments.places * arguments.rows_k * kHeadsK * kDim)),
      dv(poison(arguments.places * arguments.rows_k * kHeadsK * kDim));
  OnGpu<float> lse(std::vector<float>(static_cast<size_t>(arguments.rows_q * kHeads), 2.f));
  fw_attention a = forward;
  a.o = a.q;  // of this shape, and without poison in it
  a.lse = tensor(lse.data(), call.queries, kHeads, 1, FW_F32);
  fw_gradients g;
  fw_gradients_init(&g, sizeof g);
  g.d_o = tensor(d_o.data(), call.queries, kHeads, kDim), g.dq = tensor(dq.data(), call.queries, kHeads, kDim);
  g.dk = tensor(dk.data(), kRows, kHeadsK, kDim), g.dv = tensor(dv.data(), kRows, kHeadsK, kDim);
  a.flags |= FW_DETERMINISTIC;
  fw_exec exec;
  fw_exec_init(&exec, sizeof exec);
  exec.force_kernel = kernel;
  Outcome outcome = finished(fw_backward(gpu(), &a, &g, &exec));
  if (outcome.status == FW_OK) outcome.results = {dq.read(), dk.read(), dv.read()};
  return outcome;
}

const char* slow_path(const std::string& ending) {
  for (int32_t i = 0; const char* name = fw_kernel_name(gpu(), i); ++i) {
    if (std::string(name).ends_with(ending)) return name;
  }
  ADD_FAILURE() << "there is no slow path";
  return nullptr;
}

void expect_same(const Outcome& found, const Outcome& wanted, int64_t queries) {
  ASSERT_EQ(wanted.status, FW_OK) << wanted.error;
  ASSERT_EQ(found.status, FW_OK) << found.error << "; " << queries << " queries";
  EXPECT_TRUE(found.results == wanted.results) << queries << " queries";
}

// For few and many queries, by the kernels that are chosen and by the slow path.
void expect_same_forward(const Call& bad, const Call& good, std::vector<int64_t> lengths = {1, 4, 70}) {
  for (const int64_t queries : lengths) {
    for (const bool slow : {false, true}) {
      const char* const kernel = slow ? slow_path("generic_fwd_bf16") : nullptr;
      Call with_bad = bad, with_good = good;
      with_bad.queries = with_good.queries = queries;
      expect_same(attend(with_bad, kernel), attend(with_good, kernel), queries);
    }
  }
}
void expect_same_backward(const Call& bad, const Call& good) {
  for (const bool slow : {false, true}) {
    const char* const kernel = slow ? slow_path("generic_bwd_bf16") : nullptr;
    Call with_bad = bad, with_good = good;
    with_bad.queries = with_good.queries = 70;
    expect_same(differentiate(with_bad, kernel), differentiate(with_good, kernel), 70);
  }
}

constexpr int32_t kAll = kRows;

TEST(Indices, LengthsCountAsTheMostThatTheCacheHolds) {
  expect_same_forward({.used = {100000, -7}}, {.used = {kAll, kAll}});
  expect_same_forward({.used = {100, kAll + 1}}, {.used = {100, kAll}});
  expect_same_forward({.used = {kHuge, -kHuge}, .table = {2, 0, 1, 0}}, {.used = {kAll, kAll}, .table = {2, 0, 1, 0}});
}

TEST(Indices, LeftPadsCountAsAllRows) {
  expect_same_forward({.used = {100, 50}, .pad = {5000, 3}}, {.used = {100, 50}, .pad = {100, 3}});
  expect_same_forward({.used = {100, 90}, .pad = {-3, 3}}, {.used = {100, 90}, .pad = {100, 3}});
  expect_same_forward({.used = {100, 90}, .table = {2, 0, 1, 0}, .pad = {kHuge, 64}},
                      {.used = {100, 90}, .table = {2, 0, 1, 0}, .pad = {100, 64}});
}

TEST(Indices, PagesAndRowsCountAsTheLast) {
  expect_same_forward({.used = {kAll, 70}, .table = {2, 3, -1, kHuge}}, {.used = {kAll, 70}, .table = {2, 2, 2, 2}});
  expect_same_forward({.used = {kAll, 70}, .table = {-kHuge, 1, 0, 1}}, {.used = {kAll, 70}, .table = {2, 1, 0, 1}});
  expect_same_forward({.used = {100, kAll}, .rows = {3, -1}}, {.used = {100, kAll}, .rows = {2, 2}});
  expect_same_forward({.used = {100, kAll}, .rows = {kHuge, 1}}, {.used = {100, kAll}, .rows = {2, 1}});
}

TEST(Indices, NewKeysStayInTheCache) {
  const int32_t most = kAll - 3;
  expect_same_forward({.used = {5000, -1}, .appended = 3}, {.used = {most, most}, .appended = 3});
  expect_same_forward({.used = {kAll, 64}, .table = {0, 1, 1, 77}, .appended = 3},
                      {.used = {most, 64}, .table = {0, 1, 1, 2}, .appended = 3});
  for (const int32_t used : {5000, -2, kAll}) {  // positions that cos and sin do not have
    const Outcome found = attend({.used = {used, 64}, .appended = 3, .rotary = true});
    EXPECT_EQ(found.status, FW_OK) << found.error;
  }
}

// 3 * queries / 2 rows of q, kRows of k and v.
TEST(Indices, PackedRowsStayInTheirTensor) {
  expect_same_forward({.cu_q = {0, 5000, 90}, .cu_k = {-9, 0, kHuge}}, {.cu_q = {0, 70, 70}, .cu_k = {0, 0, kAll}},
                      {70});
  expect_same_forward({.cu_q = {-5, 60, 105}, .cu_k = {kHuge, 40, kAll}},
                      {.cu_q = {60, 60, 105}, .cu_k = {40, 40, kAll}}, {70});
  expect_same_forward({.cu_q = {0, 2, kHuge}, .cu_k = {0, 90, -1}}, {.cu_q = {0, 2, 6}, .cu_k = {0, 90, kAll}}, {4});
}

TEST(Indices, GradientsStayInTheirTensors) {
  expect_same_backward({.used = {100000, 50}}, {.used = {kAll, 50}});
  expect_same_backward({.used = {100, -1}, .pad = {3, 4}}, {.used = {100, kAll}, .pad = {3, 4}});
  expect_same_backward({.cu_q = {0, 5000, 90}, .cu_k = {0, 0, kHuge}}, {.cu_q = {0, 70, 70}, .cu_k = {0, 0, kAll}});
  expect_same_backward({.cu_q = {60, 60, 1 << 20}, .cu_k = {40, -40, kAll}},
                       {.cu_q = {60, 60, 105}, .cu_k = {40, kAll, kAll}});
}

// Rows of `width` numbers: with the flag those of no sequence are `value`, without it what they were; others the same.
template <class T>
void expect_filled(const std::vector<T>& filled, const std::vector<T>& left, const std::vector<bool>& used, T value,
                   T before) {
  ASSERT_EQ(filled.size(), left.size());
  const size_t width = filled.size() / used.size();
  for (size_t i = 0; i < filled.size(); ++i) {
    const bool of_sequence = used[i / width];
    EXPECT_EQ(left[i] == before, !of_sequence) << "row " << i / width;
    ASSERT_EQ(filled[i], of_sequence ? left[i] : value) << "row " << i / width;
  }
}

// 105 rows of q of which a sequence has at most 70, 128 of k and v.
TEST(Indices, RowsOfNoSequenceAreFilledWhereThatIsAskedFor) {
  struct Packed {
    Indices cu_q, cu_k;
    std::vector<std::pair<int64_t, int64_t>> queries, keys;  // rows that are used: first, last
  };
  const Packed all[] = {
      {{3, 10, 90}, {5, 40, 100}, {{3, 10}, {10, 80}}, {{5, 40}, {40, 100}}},
      {{0, 75, 105}, {0, 64, 128}, {{0, 70}, {75, 105}}, {{0, 128}}},
      {{20, 20, 20}, {128, 128, 128}, {}, {}},
      {{-9, 4, 30}, {kHuge, 7, 9}, {{4, 30}}, {{7, 9}}},
  };
  const auto rows = [](int64_t count, const std::vector<std::pair<int64_t, int64_t>>& spans) {
    std::vector<bool> used(static_cast<size_t>(count));
    for (const auto& [first, last] : spans) std::fill(used.begin() + first, used.begin() + last, true);
    return used;
  };
  for (const Packed& packed : all) {
    Call call{.cu_q = packed.cu_q, .cu_k = packed.cu_k, .queries = 70, .lse = true};
    const Outcome left = attend(call), gradients = differentiate(call);
    call.fill = true;
    const Outcome filled = attend(call), filled_gradients = differentiate(call);
    for (const Outcome& outcome : {left, gradients, filled, filled_gradients}) {
      ASSERT_EQ(outcome.status, FW_OK) << outcome.error;
    }
    const std::vector<bool> queries = rows(105, packed.queries), keys = rows(kRows, packed.keys);
    constexpr uint16_t kZero = 0, kBefore = 0x7FC0;
    expect_filled(filled.results[0], left.results[0], queries, kZero, kBefore);
    expect_filled(filled.lse, left.lse, queries, -INFINITY, 7.f);
    expect_filled(filled_gradients.results[0], gradients.results[0], queries, kZero, kBefore);
    expect_filled(filled_gradients.results[1], gradients.results[1], keys, kZero, kBefore);
    expect_filled(filled_gradients.results[2], gradients.results[2], keys, kZero, kBefore);
  }
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

// Attention in pieces gives what attention as a whole gives: forward by FW_ACCUMULATE and FW_POSITIONS, or by fw_merge,
// backward by the sums of the pieces' gradients, which a CPU adds up itself. On the CPU, or on the device that
// FLASHWAVE_TEST_DEVICE names.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "flashwave/flashwave.h"
#include "kernels/common/dtype.h"
#include "tests/device_copy.h"

namespace {

using flashwave::BFloat16;
using flashwave::DeviceCopy;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kBatch = 2, kLength = 60, kHeads = 4, kHeadsK = 2, kDim = 32;

fw_device* device() {
  const char* name = std::getenv("FLASHWAVE_TEST_DEVICE");
  fw_device* opened = nullptr;
  EXPECT_EQ(fw_device_open(name != nullptr ? name : "cpu", &opened), FW_OK) << fw_last_error();
  return opened;
}

bool on_cpu() { return std::getenv("FLASHWAVE_TEST_DEVICE") == nullptr; }

// (batch, seq, head, dim) numbers, in the memory of the device.
class Rows {
 public:
  Rows(int64_t heads, int64_t dim, fw_dtype dtype, const std::vector<float>& values)
      : heads_(heads),
        dim_(dim),
        dtype_(dtype),
        bytes_(stored(values, dtype)),
        copy_(device(), bytes_.data(), bytes_.size()) {}
  // Rows from `first` on.
  fw_tensor from(int64_t first) {
    const int64_t row = heads_ * dim_, size = dtype_ == FW_F32 ? 4 : 2;
    return {static_cast<char*>(copy_.data()) + first * row * size, {kLength * row, row, dim_, 1}, dtype_, 0};
  }
  std::vector<float> get() {
    copy_.fetch(bytes_.data());
    std::vector<float> values(bytes_.size() / (dtype_ == FW_F32 ? 4 : 2));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = dtype_ == FW_F32 ? reinterpret_cast<const float*>(bytes_.data())[i]
                                   : flashwave::to_float(reinterpret_cast<const BFloat16*>(bytes_.data())[i]);
    }
    return values;
  }

 private:
  static std::vector<char> stored(const std::vector<float>& values, fw_dtype dtype) {
    std::vector<char> bytes(values.size() * (dtype == FW_F32 ? 4 : 2));
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == FW_F32) {
        reinterpret_cast<float*>(bytes.data())[i] = values[i];
      } else {
        reinterpret_cast<BFloat16*>(bytes.data())[i] = flashwave::from_float<BFloat16>(values[i]);
      }
    }
    return bytes;
  }
  int64_t heads_, dim_;
  fw_dtype dtype_;
  std::vector<char> bytes_;
  DeviceCopy copy_;
};

std::vector<float> random_numbers(int64_t heads, int64_t dim, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(kBatch * kLength * heads * dim));
  for (float& v : x) v = normal(rng);
  return x;
}
std::vector<float> constant(int64_t heads, int64_t dim, float value) {
  return std::vector<float>(static_cast<size_t>(kBatch * kLength * heads * dim), value);
}

struct Case {
  const char* name;
  bool causal = false;
  int64_t left = -1, right = -1;
  bool alibi = false, sinks = false;
  float softcap = 0, dropout = 0;
  fw_dtype dtype = FW_F32;
};
std::ostream& operator<<(std::ostream& to, const Case& c) { return to << c.name; }

const std::vector<Case> kCases = {
    {.name = "plain"},
    {.name = "causal", .causal = true},
    {.name = "causal_bf16", .causal = true, .dtype = FW_BF16},
    {.name = "window", .left = 11, .right = 4},
    {.name = "left_window", .causal = true, .left = 17, .dtype = FW_BF16},
    {.name = "alibi", .causal = true, .alibi = true},
    {.name = "alibi_both_sides", .alibi = true, .dtype = FW_BF16},
    {.name = "dropout", .causal = true, .dropout = 0.3f},
    {.name = "dropout_bf16", .dropout = 0.3f, .dtype = FW_BF16},
    {.name = "sinks", .causal = true, .sinks = true},
    {.name = "softcap", .softcap = 3},
};
// Where pieces begin; dropout draws groups of 8 keys, so some begin inside one.
constexpr int64_t kEdges[] = {0, 16, 27, kLength};
constexpr int kPieces = 3;

class Pieces : public testing::TestWithParam<Case> {
 protected:
  const Case& c = GetParam();
  Rows q{kHeads, kDim, c.dtype, random_numbers(kHeads, kDim, 1)};
  Rows k{kHeadsK, kDim, c.dtype, random_numbers(kHeadsK, kDim, 2)};
  Rows v{kHeadsK, kDim, c.dtype, random_numbers(kHeadsK, kDim, 3)};
  Rows d_o{kHeads, kDim, c.dtype, random_numbers(kHeads, kDim, 4)};
  std::vector<float> slopes_{0.3f, 0.1f, 0.05f, 0.4f}, sinks_{1.f, -1.f, 0.5f, 2.f};
  DeviceCopy slopes{device(), slopes_.data(), slopes_.size() * 4}, sinks{device(), sinks_.data(), sinks_.size() * 4};

  fw_attention problem() {
    fw_attention a;
    fw_attention_init(&a, sizeof a);
    a.batch = kBatch, a.heads_q = kHeads, a.heads_k = kHeadsK, a.dim_qk = a.dim_v = kDim;
    a.flags = c.causal ? FW_CAUSAL : 0;
    a.window_left = c.left, a.window_right = c.right;
    a.softcap = c.softcap, a.dropout_p = c.dropout, a.dropout_seed = 77, a.dropout_offset = 5;
    if (c.alibi) a.alibi_slopes = static_cast<const float*>(slopes.data());
    return a;
  }
  void put_whole(fw_attention& a, Rows& o, Rows& lse) {
    put(a, 0, kLength, 0, kLength, o, lse);
    a.flags &= ~uint32_t{FW_POSITIONS};
    a.position_q = a.position_k = 0;
  }
  void put(fw_attention& a, int64_t q_first, int64_t q_end, int64_t k_first, int64_t k_end, Rows& o, Rows& lse) {
    a.seqlen_q = q_end - q_first, a.seqlen_k = k_end - k_first;
    a.q = q.from(q_first), a.k = k.from(k_first), a.v = v.from(k_first);
    a.o = o.from(q_first), a.lse = lse.from(q_first);
    a.lse.stride[3] = 0;
    a.flags |= FW_POSITIONS;
    a.position_q = q_first, a.position_k = k_first;
  }
  // For each piece of the queries and of the keys, in an order in which the last keys come first.
  template <class Body>
  void for_each_pair(Body&& body) {
    for (int i = 0; i < kPieces; ++i) {
      for (int j = kPieces - 1; j >= 0; --j) body(kEdges[i], kEdges[i + 1], kEdges[j], kEdges[j + 1], j == 0);
    }
  }
};

void expect_near(const std::vector<float>& expected, const std::vector<float>& actual, float tolerance,
                 const char* what) {
  ASSERT_EQ(expected.size(), actual.size());
  float worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == actual[i]) continue;
    const float error = std::fabs(expected[i] - actual[i]);
    worst = error <= tolerance ? std::fmax(worst, error) : kInf;
  }
  EXPECT_LE(worst, tolerance) << what;
}

TEST_P(Pieces, AddUpToTheWhole) {
  Rows o{kHeads, kDim, FW_F32, constant(kHeads, kDim, 0)}, lse{kHeads, 1, FW_F32, constant(kHeads, 1, 0)};
  fw_attention a = problem();
  put_whole(a, o, lse);
  if (c.sinks) a.sinks = static_cast<const float*>(sinks.data());
  ASSERT_EQ(fw_forward(device(), &a, nullptr), FW_OK) << fw_last_error();

  // What nothing has been added to yet need not hold numbers.
  Rows o_sum{kHeads, kDim, FW_F32, constant(kHeads, kDim, std::nanf(""))};
  Rows lse_sum{kHeads, 1, FW_F32, constant(kHeads, 1, -kInf)};
  for_each_pair([&](int64_t q0, int64_t q1, int64_t k0, int64_t k1, bool last) {
    fw_attention piece = problem();
    put(piece, q0, q1, k0, k1, o_sum, lse_sum);
    piece.flags |= FW_ACCUMULATE;
    if (c.sinks && last) piece.sinks = static_cast<const float*>(sinks.data());  // once
    ASSERT_EQ(fw_forward(device(), &piece, nullptr), FW_OK) << fw_last_error();
  });
  const float tolerance = c.dtype == FW_F32 ? 1e-5f : 2e-2f;
  expect_near(o.get(), o_sum.get(), tolerance, "o");
  expect_near(lse.get(), lse_sum.get(), tolerance, "lse");
}

TEST_P(Pieces, GradientsAddUp) {
  Rows o{kHeads, kDim, FW_F32, constant(kHeads, kDim, 0)}, lse{kHeads, 1, FW_F32, constant(kHeads, 1, 0)};
  fw_attention a = problem();
  put_whole(a, o, lse);
  if (c.sinks) a.sinks = static_cast<const float*>(sinks.data());
  ASSERT_EQ(fw_forward(device(), &a, nullptr), FW_OK) << fw_last_error();
  const auto gradients = [&](Rows& dq, Rows& dk, Rows& dv, int64_t q0, int64_t k0) {
    fw_gradients g;
    fw_gradients_init(&g, sizeof g);
    g.d_o = d_o.from(q0), g.dq = dq.from(q0), g.dk = dk.from(k0), g.dv = dv.from(k0);
    return g;
  };
  const auto zeros = [](int64_t heads) { return Rows{heads, kDim, FW_F32, constant(heads, kDim, 0)}; };
  Rows dq = zeros(kHeads), dk = zeros(kHeadsK), dv = zeros(kHeadsK);
  fw_gradients g = gradients(dq, dk, dv, 0, 0);
  ASSERT_EQ(fw_backward(device(), &a, &g, nullptr), FW_OK) << fw_last_error();

  std::vector<float> sums[3] = {constant(kHeads, kDim, 0), constant(kHeadsK, kDim, 0), constant(kHeadsK, kDim, 0)};
  Rows added[3] = {zeros(kHeads), zeros(kHeadsK), zeros(kHeadsK)};
  for_each_pair([&](int64_t q0, int64_t q1, int64_t k0, int64_t k1, bool) {
    Rows parts[3] = {zeros(kHeads), zeros(kHeadsK), zeros(kHeadsK)};
    fw_attention piece = problem();
    put(piece, q0, q1, k0, k1, o, lse);  // the whole row's
    if (c.sinks) piece.sinks = static_cast<const float*>(sinks.data());
    fw_gradients some = gradients(parts[0], parts[1], parts[2], q0, k0);
    ASSERT_EQ(fw_backward(device(), &piece, &some, nullptr), FW_OK) << fw_last_error();
    for (int i = 0; i < 3; ++i) {
      const std::vector<float> part = parts[i].get();
      for (size_t x = 0; x < part.size(); ++x) sums[i][x] += part[x];
    }
    piece.flags |= FW_ACCUMULATE;
    fw_gradients all = gradients(added[0], added[1], added[2], q0, k0);
    ASSERT_EQ(fw_backward(device(), &piece, &all, nullptr), on_cpu() ? FW_OK : FW_UNSUPPORTED) << fw_last_error();
  });
  const float tolerance = c.dtype == FW_F32 ? 2e-5f : 4e-2f;
  expect_near(dq.get(), sums[0], tolerance, "dq");
  expect_near(dk.get(), sums[1], tolerance, "dk");
  expect_near(dv.get(), sums[2], tolerance, "dv");
  if (!on_cpu()) return;
  expect_near(dq.get(), added[0].get(), tolerance, "dq, added up");
  expect_near(dk.get(), added[1].get(), tolerance, "dk, added up");
  expect_near(dv.get(), added[2].get(), tolerance, "dv, added up");
}

INSTANTIATE_TEST_SUITE_P(All, Pieces, testing::ValuesIn(kCases),
                         [](const auto& instance) { return std::string(instance.param.name); });

// On each of the CPU's kernels, with more rows than it packs at a time, one thread and several, and keys past seqused_k
// that keep what they have.
TEST(AddedGradients, AreTheCallsAndWhatWasThere) {
  if (!on_cpu()) GTEST_SKIP() << "kernels of GPUs add to no gradients";
  constexpr int64_t kRows = 500, kKeys = 420, kUsed = 400, kGroup = 4, kWidth = 40;
  const auto numbers = [](int64_t count, unsigned seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(count));
    for (float& value : x) value = normal(rng);
    return x;
  };
  const auto narrow = [](const std::vector<float>& x) {
    std::vector<BFloat16> y;
    for (const float value : x) y.push_back(flashwave::from_float<BFloat16>(value));
    return y;
  };
  const auto of = [](auto& x, int64_t rows, int64_t heads, fw_dtype dtype) {
    return fw_tensor{x.data(), {rows * heads * kWidth, heads * kWidth, kWidth, 1}, dtype, 0};
  };
  auto q = narrow(numbers(kRows * kGroup * kWidth, 1)), d_o = narrow(numbers(kRows * kGroup * kWidth, 2));
  auto k = narrow(numbers(kKeys * kWidth, 3)), v = narrow(numbers(kKeys * kWidth, 4));
  std::vector<float> o(q.size()), lse(kRows * kGroup);
  const int32_t used = kUsed;
  fw_attention a;
  fw_attention_init(&a, sizeof a);
  a.batch = 1, a.seqlen_q = kRows, a.seqlen_k = kKeys, a.heads_q = kGroup, a.heads_k = 1, a.dim_qk = a.dim_v = kWidth;
  a.flags = FW_CAUSAL, a.seqused_k = &used;
  a.q = of(q, kRows, kGroup, FW_BF16), a.o = of(o, kRows, kGroup, FW_F32);
  a.k = of(k, kKeys, 1, FW_BF16), a.v = of(v, kKeys, 1, FW_BF16);
  a.lse = {lse.data(), {kRows * kGroup, kGroup, 1, 0}, FW_F32, 0};
  ASSERT_EQ(fw_forward(device(), &a, nullptr), FW_OK) << fw_last_error();

  const std::vector<float> start[3] = {numbers(static_cast<int64_t>(q.size()), 5),
                                       numbers(static_cast<int64_t>(k.size()), 6),
                                       numbers(static_cast<int64_t>(v.size()), 7)};
  int ran = 0;
  for (const char* kernel : {"amx_bwd_m256n128", "zen4_bwd_m32n96", "avx512_bwd_m32n96", "avx2_bwd_m16n96",
                             "neon_bwd_m8n96", "portable_bwd_m8n96", "reference_bwd", "naive_bwd"}) {
    for (const int32_t splits : {0, 1}) {
      fw_exec exec;
      fw_exec_init(&exec, sizeof exec);
      exec.force_kernel = kernel, exec.num_threads = 2;
      a.num_splits = splits;
      const auto run = [&](std::vector<float>(&x)[3], uint32_t flags) {
        fw_gradients g;
        fw_gradients_init(&g, sizeof g);
        g.d_o = of(d_o, kRows, kGroup, FW_BF16), g.dq = of(x[0], kRows, kGroup, FW_F32);
        g.dk = of(x[1], kKeys, 1, FW_F32), g.dv = of(x[2], kKeys, 1, FW_F32);
        a.flags = FW_CAUSAL | flags;
        return fw_backward(device(), &a, &g, &exec);
      };
      std::vector<float> plain[3] = {start[0], start[1], start[2]}, added[3] = {start[0], start[1], start[2]};
      const fw_status status = run(plain, 0);
      if (status == FW_UNSUPPORTED) continue;  // another CPU's
      ASSERT_EQ(status, FW_OK) << kernel << ": " << fw_last_error();
      ASSERT_EQ(run(added, FW_ACCUMULATE), FW_OK) << kernel << ": " << fw_last_error();
      for (int i = 0; i < 3; ++i) {
        for (size_t x = 0; x < start[i].size(); ++x) plain[i][x] += start[i][x];
        expect_near(plain[i], added[i], 2e-4f, kernel);
      }
      const size_t unused = static_cast<size_t>(kUsed * kWidth);
      EXPECT_TRUE(std::equal(added[1].begin() + unused, added[1].end(), start[1].begin() + unused)) << kernel;
      ++ran;
    }
  }
  EXPECT_GE(ran, 4);
}

// A result in fp32 is not one of 16 bits made wider: it has bits that bf16 does not have, and rounds to the result in
// bf16 that the same kernel writes.
TEST(FloatOut, HasMoreThanTheBitsOfTheInputs) {
  Rows q{kHeads, kDim, FW_BF16, random_numbers(kHeads, kDim, 1)},
      k{kHeads, kDim, FW_BF16, random_numbers(kHeads, kDim, 2)};
  Rows v{kHeads, kDim, FW_BF16, random_numbers(kHeads, kDim, 3)},
      narrow{kHeads, kDim, FW_BF16, constant(kHeads, kDim, 0)};
  Rows wide{kHeads, kDim, FW_F32, constant(kHeads, kDim, 0)};
  for (Rows* o : {&narrow, &wide}) {
    fw_attention a;
    fw_attention_init(&a, sizeof a);
    a.batch = kBatch, a.seqlen_q = a.seqlen_k = kLength, a.heads_q = a.heads_k = kHeads, a.dim_qk = a.dim_v = kDim;
    a.q = q.from(0), a.k = k.from(0), a.v = v.from(0), a.o = o->from(0);
    ASSERT_EQ(fw_forward(device(), &a, nullptr), FW_OK) << fw_last_error();
  }
  const std::vector<float> exact = wide.get(), rounded = narrow.get();
  size_t finer = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const float nearest = flashwave::to_float(flashwave::from_float<BFloat16>(exact[i]));
    finer += nearest != exact[i];
    EXPECT_NEAR(nearest, rounded[i], std::fabs(rounded[i]) * 0x1p-6f + 1e-6f);
  }
  EXPECT_GT(finer, exact.size() / 2);
}

TEST(Merge, OfTwoResults) {
  for (const fw_dtype dtype : {FW_F32, FW_BF16}) {
    const std::vector<float> o_first = random_numbers(kHeads, kDim, 1), o_second = random_numbers(kHeads, kDim, 2);
    std::vector<float> lse_first = random_numbers(kHeads, 1, 3), lse_second = random_numbers(kHeads, 1, 4);
    for (size_t i = 0; i < lse_first.size(); i += 3) (i % 2 ? lse_first : lse_second)[i] = -kInf;
    for (size_t i = 0; i < lse_first.size(); i += 15) lse_first[i] = lse_second[i] = -kInf;
    lse_first[1] = 200, lse_second[1] = -200;
    std::vector<float> held = o_first;  // rows that saw nothing hold anything
    for (size_t i = 0; i < lse_first.size(); ++i) {
      for (int64_t d = 0; d < kDim; ++d) {
        if (lse_first[i] == -kInf) held[i * kDim + static_cast<size_t>(d)] = std::nanf("");
      }
    }
    Rows o{kHeads, kDim, FW_F32, held}, lse{kHeads, 1, FW_F32, lse_first};
    Rows o_part{kHeads, kDim, dtype, o_second}, lse_part{kHeads, 1, FW_F32, lse_second};
    fw_merging m;
    fw_merging_init(&m, sizeof m);
    m.batch = kBatch, m.seqlen = kLength, m.heads = kHeads, m.dim = kDim;
    m.o = o.from(0), m.lse = lse.from(0), m.o_part = o_part.from(0), m.lse_part = lse_part.from(0);
    ASSERT_EQ(fw_merge(device(), &m, nullptr), FW_OK) << fw_last_error();
    std::vector<float> o_expected(o_first.size()), lse_expected(lse_first.size());
    const std::vector<float> second = o_part.get();
    for (size_t i = 0; i < lse_first.size(); ++i) {
      const double x = std::exp(double{lse_first[i]}), y = std::exp(double{lse_second[i]});
      lse_expected[i] = static_cast<float>(std::log(x + y));
      for (size_t d = i * kDim; d < (i + 1) * kDim; ++d) {
        o_expected[d] = x + y == 0 ? 0 : static_cast<float>((x * double{o_first[d]} + y * double{second[d]}) / (x + y));
      }
    }
    expect_near(o_expected, o.get(), 2e-6f, "o");
    expect_near(lse_expected, lse.get(), 2e-5f, "lse");
  }
}

TEST(Merge, RefusesWhatItsRulesForbid) {
  Rows o{kHeads, kDim, FW_F32, constant(kHeads, kDim, 0)}, lse{kHeads, 1, FW_F32, constant(kHeads, 1, 0)};
  Rows o_part{kHeads, kDim, FW_F32, constant(kHeads, kDim, 0)}, lse_part{kHeads, 1, FW_F32, constant(kHeads, 1, 0)};
  fw_merging valid;
  fw_merging_init(&valid, sizeof valid);
  valid.batch = kBatch, valid.seqlen = kLength, valid.heads = kHeads, valid.dim = kDim;
  valid.o = o.from(0), valid.lse = lse.from(0), valid.o_part = o_part.from(0), valid.lse_part = lse_part.from(0);
  ASSERT_EQ(fw_merge(device(), &valid, nullptr), FW_OK) << fw_last_error();
  const auto refused = [&](auto&& change, const char* words) {
    fw_merging m = valid;
    change(m);
    EXPECT_EQ(fw_merge(device(), &m, nullptr), FW_INVALID_ARGUMENT) << words;
    EXPECT_NE(std::string(fw_last_error()).find(words), std::string::npos) << fw_last_error();
  };
  refused([](fw_merging& m) { m.dim = 513; }, "dim must be in [1, 512]");
  refused([](fw_merging& m) { m.lse_part.data = nullptr; }, "lse_part.data must not be NULL");
  refused([](fw_merging& m) { m.lse.dtype = FW_BF16; }, "lse.dtype must be FW_F32");
  refused([](fw_merging& m) { m.o_part.dtype = 9; }, "o_part.dtype must be FW_F16, FW_BF16 or FW_F32");
  refused([](fw_merging& m) { m.o_part = m.o; }, "overlaps");
  refused([](fw_merging& m) { m.struct_size = 8; }, "call fw_merging_init");
  fw_merging empty = valid;
  empty.seqlen = 0;
  EXPECT_EQ(fw_merge(device(), &empty, nullptr), FW_OK) << fw_last_error();
}

}  // namespace

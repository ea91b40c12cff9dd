// 64-bit offsets: tensors whose elements lie more than 2^31 apart, in every stride position, and a K and V of more than
// 2^31 elements each.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "flashwave/flashwave.h"
#include "kernels/common/dtype.h"

namespace {

// Address space without memory behind it until it is touched.
class Sparse {
 public:
  explicit Sparse(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  ~Sparse() {
    if (ok()) munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  void* data_;
  size_t bytes_;
};

size_t available_bytes() {
  size_t kib = 0;
  if (FILE* f = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (std::fgets(line, sizeof line, f)) {
      if (std::sscanf(line, "MemAvailable: %zu kB", &kib) == 1) break;
    }
    std::fclose(f);
  }
  return kib * 1024;
}

fw_device* cpu() {
  fw_device* device = nullptr;
  EXPECT_EQ(fw_device_open("cpu", &device), FW_OK) << fw_last_error();
  return device;
}

constexpr int kBatch = 2, kHeads = 2, kDim = 16;

// A (batch, seq, head, dim) fp32 tensor with one stride beyond 2^31 elements, and the same values packed densely.
struct Spread {
  int64_t seq;
  std::vector<float> dense;
  Sparse memory;
  fw_tensor wide{}, packed{};

  Spread(int64_t length, int long_axis, std::mt19937& random)
      : seq(length), dense(size_t(kBatch * length * kHeads * kDim)), memory(size_t{1} << 38) {
    std::normal_distribution<float> normal;
    for (float& x : dense) x = normal(random);
    const int64_t kLong = (int64_t{1} << 31) + 64;
    packed.data = dense.data();
    wide.data = memory.data();
    packed.dtype = wide.dtype = FW_F32;
    const int64_t strides[4] = {seq * kHeads * kDim, kHeads * kDim, kDim, 1};
    for (int axis = 0; axis < 4; ++axis) {
      packed.stride[axis] = strides[axis];
      wide.stride[axis] = axis == long_axis ? kLong : strides[axis];
    }
  }
  template <class Visit>
  void for_each(Visit visit) {
    float* w = static_cast<float*>(wide.data);
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t i = 0; i < seq; ++i)
        for (int64_t h = 0; h < kHeads; ++h)
          for (int64_t d = 0; d < kDim; ++d) {
            visit(dense[size_t(((b * seq + i) * kHeads + h) * kDim + d)],
                  w[b * wide.stride[0] + i * wide.stride[1] + h * wide.stride[2] + d]);
          }
  }
  void fill_wide() {
    for_each([](float& packed_value, float& wide_value) { wide_value = packed_value; });
  }
};

class LongStride : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(LongStride, GivesTheBitsOfThePackedLayout) {
  const auto [axis, kernels] = GetParam();
  const std::string isa = kernels;
  // Each row of the long axis spans 8 GiB of address space: few rows along seq, more elsewhere.
  const int64_t sq = axis == 1 ? 18 : 40, sk = axis == 1 ? 20 : 130;
  std::mt19937 random(7);
  Spread q(sq, axis, random), k(sk, axis, random), v(sk, axis, random), o(sq, axis, random), d_o(sq, axis, random);
  Spread dq(sq, axis, random), dk(sk, axis, random), dv(sk, axis, random);
  for (Spread* t : {&q, &k, &v, &o, &d_o, &dq, &dk, &dv}) {
    if (!t->memory.ok()) GTEST_SKIP() << "no address space for sparse tensors";
    t->fill_wide();
  }
  std::vector<float> lse(size_t(kBatch * kHeads * sq));
  for (const bool wide : {false, true}) {
    fw_attention a;
    fw_attention_init(&a, sizeof a);
    a.batch = kBatch, a.seqlen_q = sq, a.seqlen_k = sk, a.heads_q = a.heads_k = kHeads, a.dim_qk = a.dim_v = kDim;
    a.flags = FW_CAUSAL;
    const auto pick = [&](Spread& t) { return wide ? t.wide : t.packed; };
    a.q = pick(q), a.k = pick(k), a.v = pick(v), a.o = pick(o);
    a.lse = {lse.data(), {kHeads * sq, 1, sq, 0}, FW_F32, 0};
    fw_exec exec;
    fw_exec_init(&exec, sizeof exec);
    const std::string forward = isa.empty() ? "" : isa + "_fwd";
    if (!isa.empty()) exec.force_kernel = forward.c_str();
    ASSERT_EQ(fw_forward(cpu(), &a, &exec), FW_OK) << fw_last_error();
    fw_gradients g;
    fw_gradients_init(&g, sizeof g);
    g.d_o = pick(d_o), g.dq = pick(dq), g.dk = pick(dk), g.dv = pick(dv);
    const std::string backward = isa + "_bwd";
    if (!isa.empty()) exec.force_kernel = backward.c_str();
    ASSERT_EQ(fw_backward(cpu(), &a, &g, &exec), FW_OK) << fw_last_error();
  }
  for (Spread* t : {&o, &dq, &dk, &dv}) {
    size_t different = 0;
    t->for_each([&](float& packed_value, float& wide_value) {
      different += std::memcmp(&packed_value, &wide_value, sizeof(float)) != 0;
    });
    EXPECT_EQ(different, 0u);
  }
}
// Empty: the kernel the library chooses for this CPU.
INSTANTIATE_TEST_SUITE_P(Axes, LongStride,
                         testing::Combine(testing::Values(0, 1, 2), testing::Values("", "reference")));

TEST(LargeCache, MoreThan2To31ElementsOfKeys) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "too large for a sanitizer's shadow memory";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  GTEST_SKIP() << "too large for a sanitizer's shadow memory";
#endif
#endif
  constexpr int64_t kD = 64, kKeys = (int64_t{1} << 31) / kD + 1000;
  const size_t bytes = size_t(kKeys) * kD * 2;
  if (available_bytes() < bytes + (size_t{2} << 30)) GTEST_SKIP() << "needs 6 GiB of free memory";
  Sparse memory(bytes);  // of keys and values: reading the same row for both halves what has to be filled
  ASSERT_TRUE(memory.ok());
  // Halves of random sign and mantissa between 0.5 and 2, four from each step of a multiply-xorshift generator.
  uint64_t state = 1;
  uint64_t* words = static_cast<uint64_t*>(memory.data());
  for (size_t i = 0; i < bytes / 8; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    words[i] = ((state ^ (state >> 29)) & 0x87FF87FF87FF87FFu) | 0x3800380038003800u;
  }
  const auto* rows = static_cast<const flashwave::Half*>(memory.data());

  for (const int heads_q : {1, 12}) {  // few rows: keys streamed; more rows than lanes: panels
    std::vector<flashwave::Half> q(size_t(heads_q * kD)), o(size_t(heads_q * kD));
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (auto& x : q) x = flashwave::from_float<flashwave::Half>(normal(random));
    std::vector<float> lse(size_t(heads_q), NAN);
    fw_attention a;
    fw_attention_init(&a, sizeof a);
    a.batch = 1, a.seqlen_q = 1, a.seqlen_k = kKeys, a.heads_q = heads_q, a.heads_k = 1, a.dim_qk = a.dim_v = kD;
    a.q = {q.data(), {heads_q * kD, heads_q * kD, kD, 1}, FW_F16, 0};
    a.k = {memory.data(), {kKeys * kD, kD, kD, 1}, FW_F16, 0};
    a.v = {memory.data(), {kKeys * kD, kD, kD, 1}, FW_F16, 0};
    a.o = {o.data(), {heads_q * kD, heads_q * kD, kD, 1}, FW_F16, 0};
    a.lse = {lse.data(), {heads_q, heads_q, 1, 0}, FW_F32, 0};
    ASSERT_EQ(fw_forward(cpu(), &a, nullptr), FW_OK) << fw_last_error();

    const int h = heads_q - 1;  // one head in fp64, in one pass: |score| < 64 needs no running maximum
    double query[kD], row[kD], sum = 0, out[kD] = {};
    for (int64_t d = 0; d < kD; ++d) query[d] = to_float(q[size_t(h * kD + d)]);
    for (int64_t j = 0; j < kKeys; ++j) {
      for (int64_t d = 0; d < kD; ++d) row[d] = to_float(rows[j * kD + d]);
      double dot = 0;
      for (int64_t d = 0; d < kD; ++d) dot += query[d] * row[d];
      const double p = std::exp(dot / 8);
      sum += p;
      for (int64_t d = 0; d < kD; ++d) out[d] += p * row[d];
    }
    EXPECT_NEAR(lse[size_t(h)], std::log(sum), 2e-5);
    for (int64_t d = 0; d < kD; ++d) {  // 2^-11: o is rounded to fp16
      EXPECT_NEAR(to_float(o[size_t(h * kD + d)]), out[d] / sum, 2e-5 + 0x1p-11 * std::fabs(out[d] / sum)) << d;
    }
  }
}

}  // namespace

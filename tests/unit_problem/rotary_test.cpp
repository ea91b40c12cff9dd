// Every rule on the arguments of fw_rotary, broken one at a time.
#include "problem/rotary.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace flashwave {
namespace {

// b=2 s=4 h=3 d=8 rotary=6 bf16 with offsets, its memory real.
struct RotarySample {
  std::vector<uint16_t> x = std::vector<uint16_t>(2 * 4 * 3 * 8), out = x;
  std::vector<float> cos = std::vector<float>(9 * 3), sin = cos;
  std::vector<int32_t> offsets = {5, 0}, cu_seqlens = {0, 3, 8};
  Rotary rotary;

  RotarySample() {
    fw_rotary_embedding& r = rotary.r;
    r.struct_size = sizeof r;
    r.batch = 2, r.seqlen = 4, r.heads = 3, r.dim = 8, r.rotary_seqlen = 9, r.rotary_dim = 6;
    r.x = {x.data(), {96, 24, 8, 1}, FW_BF16, 0};
    r.out = r.x, r.out.data = out.data();
    r.cos = {cos.data(), {3, 1, 0, 0}, FW_F32, 0};
    r.sin = r.cos, r.sin.data = sin.data();
    r.seqlen_offsets = offsets.data();
  }
  RotarySample(const RotarySample&) = delete;
  RotarySample& operator=(const RotarySample&) = delete;

  void pack() {
    rotary.r.cu_seqlens = cu_seqlens.data();
    rotary.r.seqlen = 5, rotary.r.total = 8;
    rotary.r.seqlen_offsets = nullptr;
  }
};

struct Broken {
  const char* message;
  std::function<void(RotarySample&, fw_rotary_embedding&)> change;
};

#define CHANGE(...)                             \
  [](RotarySample& s, fw_rotary_embedding& r) { \
    static_cast<void>(s);                       \
    __VA_ARGS__;                                \
  }

TEST(RotaryRules, EveryBrokenRuleHasItsMessage) {
  const Broken rules[] = {
      {"flags has unknown bits, got 1", CHANGE(r.flags = FW_CAUSAL)},
      {"flags has unknown bits, got 16", CHANGE(r.flags = 16)},
      {"batch must be in [0, 2147483647], got -1", CHANGE(r.batch = -1)},
      {"seqlen must be in [0, 2147483647], got 2147483648", CHANGE(r.seqlen = int64_t{1} << 31)},
      {"heads must be in [1, 2147483647], got 0", CHANGE(r.heads = 0)},
      {"dim must be in [1, 512], got 513", CHANGE(r.dim = 513)},
      {"dim must be in [1, 512], got 0", CHANGE(r.dim = 0)},
      {"total must be in [0, 2147483647], got -3", CHANGE(r.total = -3)},
      {"total must be 0 without cu_seqlens, got 8", CHANGE(r.total = 8)},
      {"rotary_seqlen must be in [0, 2147483647], got -9", CHANGE(r.rotary_seqlen = -9)},
      {"seqlen_offset must be in [0, 2147483647], got -1", CHANGE(r.seqlen_offset = -1)},
      {"rotary_dim must be even and in [0, dim], got 5", CHANGE(r.rotary_dim = 5)},
      {"rotary_dim must be even and in [0, dim], got 10", CHANGE(r.rotary_dim = 10)},
      {"rotary_dim must be even and in [0, dim], got -2", CHANGE(r.rotary_dim = -2)},
      {"rotary_seqlen must be at least seqlen_offset + seqlen = 10, the positions read, got 9",
       CHANGE(r.seqlen_offset = 6)},
      {"rotary_seqlen must be at least 10, the positions that sequence 0 reads, got 9", CHANGE(s.offsets[0] = 6)},
      {"rotary_seqlen must be at least 10, the positions that sequence 0 reads, got 9", CHANGE(r.seqlen_offset = 1)},
      {"seqlen_offsets[1] must be at least 0, got -1", CHANGE(s.offsets[1] = -1)},
      {"rotary_seqlen must be at least 10, the positions that sequence 1 reads, got 9",
       CHANGE(s.pack(), r.seqlen_offset = 5)},
      {"cu_seqlens[0] must be 0, got 1", CHANGE(s.pack(), s.cu_seqlens[0] = 1)},
      {"cu_seqlens must not decrease, got 9 then 8", CHANGE(s.pack(), r.seqlen = 9, s.cu_seqlens[1] = 9)},
      {"cu_seqlens[2] - cu_seqlens[1] must be at most seqlen = 4, got 5", CHANGE(s.pack(), r.seqlen = 4)},
      {"cu_seqlens[batch] must be at most total = 8, got 9", CHANGE(s.pack(), r.seqlen = 6, s.cu_seqlens[2] = 9)},
      {"x.data must not be NULL: x has elements", CHANGE(r.x.data = nullptr)},
      {"out.data must not be NULL: out has elements", CHANGE(r.out.data = nullptr)},
      {"cos.data must not be NULL: cos has elements", CHANGE(r.cos.data = nullptr)},
      {"sin.data must not be NULL: sin has elements", CHANGE(r.sin.data = nullptr)},
      {"x.dtype must be FW_F16, FW_BF16 or FW_F32, got FW_DTYPE_NONE (0)", CHANGE(r.x.dtype = FW_DTYPE_NONE)},
      {"out.dtype must be that of x, FW_BF16, got FW_F16 (1)", CHANGE(r.out.dtype = FW_F16)},
      {"cos.dtype must be FW_F32 or that of x, FW_BF16, got FW_F16 (1)", CHANGE(r.cos.dtype = FW_F16)},
      {"sin.dtype must be FW_F32 or that of x, FW_BF16, got an unknown value (9)", CHANGE(r.sin.dtype = 9)},
      {"x.reserved must be 0, got 1", CHANGE(r.x.reserved = 1)},
      {"out.reserved must be 0, got 2", CHANGE(r.out.reserved = 2)},
      {"x.stride[3] must be 1 (the head dimension is contiguous), got 2", CHANGE(r.x.stride[3] = 2)},
      {"out.stride[3] must be 1 (the head dimension is contiguous), got 0", CHANGE(r.out.stride[3] = 0)},
      {"cos.stride[1] must be 1 (the columns are contiguous), got 2", CHANGE(r.cos.stride[1] = 2)},
      {"x.stride[1] must not be negative, got -24", CHANGE(r.x.stride[1] = -24)},
      {"sin.stride: the offset of the last element does not fit in 64 bits",
       CHANGE(r.sin.stride[0] = std::numeric_limits<int64_t>::max())},
      {"out.stride[2] must be at least 8 so that no two elements that are written overlap, got 4",
       CHANGE(r.out.stride[2] = 4)},
      {"x.data must be aligned to its element size of 2 bytes",
       CHANGE(r.x.data = reinterpret_cast<char*>(s.x.data()) + 1)},
      {"out overlaps x: what is written may not share memory with another tensor", CHANGE(r.out.data = s.x.data() + 8)},
      {"out overlaps x: what is written may not share memory with another tensor",
       CHANGE(r.out.data = s.x.data(), r.out.stride[1] = 8, r.out.stride[2] = 32)},
      {"out overlaps cos: what is written may not share memory with another tensor", CHANGE(r.cos.data = s.out.data())},
      {"x overlaps sin: what is written may not share memory with another tensor",
       CHANGE(r.out = r.x, r.sin.data = s.x.data())},
  };
  for (const Broken& rule : rules) {
    SCOPED_TRACE(rule.message);
    RotarySample sample;
    const Status before = validate(sample.rotary, true);
    ASSERT_TRUE(before.ok()) << before.message;
    rule.change(sample, sample.rotary.r);
    const Status after = validate(sample.rotary, true);
    EXPECT_EQ(after.code, FW_INVALID_ARGUMENT);
    EXPECT_NE(after.message.find(rule.message), std::string::npos) << after.message;
  }
}

TEST(RotaryRules, IndexValuesAreThePromiseOfTheCallerWhereTheHostCannotReadThem) {
  RotarySample sample;
  sample.offsets[0] = -7;
  EXPECT_FALSE(validate(sample.rotary, true).ok());
  EXPECT_TRUE(validate(sample.rotary, false).ok());
}

TEST(RotaryRules, ValidProblemsPass) {
  const std::function<void(RotarySample&, fw_rotary_embedding&)> changes[] = {
      CHANGE(r.flags = FW_ALL_ROTARY_FLAGS),
      CHANGE(r.out = r.x),
      CHANGE(s.pack()),
      CHANGE(s.pack(), r.out = r.x, r.x.stride[0] = 77),  // unused when packed
      CHANGE(r.rotary_dim = 0, r.cos.data = r.sin.data = nullptr),
      CHANGE(r.batch = 0, r.x.data = r.out.data = nullptr),
      CHANGE(r.seqlen = 0, r.rotary_seqlen = 0, r.x.data = r.out.data = nullptr, r.cos.data = r.sin.data = nullptr,
             s.offsets[0] = 1000),
      CHANGE(r.cos.dtype = FW_BF16, r.sin.dtype = FW_F32),
      CHANGE(r.x.stride[0] = 0),  // sequences may share what is read
      CHANGE(r.cos.data = r.sin.data),
      CHANGE(r.cos.stride[0] = 0),
  };
  int number = 0;
  for (const auto& change : changes) {
    RotarySample sample;
    change(sample, sample.rotary.r);
    const Status status = validate(sample.rotary, true);
    EXPECT_TRUE(status.ok()) << number << ": " << status.message;
    ++number;
  }
}

TEST(RotaryProblem, InPlaceIsTheSameView) {
  RotarySample sample;
  fw_rotary_embedding& r = sample.rotary.r;
  EXPECT_FALSE(sample.rotary.in_place());
  r.out = r.x;
  EXPECT_TRUE(sample.rotary.in_place());
  r.out.stride[1] += 1;
  EXPECT_FALSE(sample.rotary.in_place());
  r.seqlen = 1;  // the stride multiplies only the index 0
  EXPECT_TRUE(sample.rotary.in_place());
  normalize(sample.rotary);
  EXPECT_EQ(r.x.stride[1], 0);
  EXPECT_EQ(r.out.stride[1], 0);
}

TEST(RotaryProblem, DescriptionAndSize) {
  RotarySample sample;
  EXPECT_EQ(describe(sample.rotary), "b=2 s=4 h=3 d=8 rotary=6 dtype=bf16");
  EXPECT_EQ(sample.rotary.rows(), 8);
  EXPECT_EQ(sample.rotary.bytes(), 8.0 * 3 * 8 * 2 * 2);
  sample.pack();
  sample.rotary.r.flags = FW_ALL_ROTARY_FLAGS, sample.rotary.r.out = sample.rotary.r.x;
  EXPECT_EQ(describe(sample.rotary),
            "b=2 s=5 h=3 d=8 rotary=6 dtype=bf16 interleaved=1 conjugate=1 layout=varlen inplace=1");
  EXPECT_FALSE(sample.rotary.empty());
  sample.rotary.r.total = 0;
  EXPECT_TRUE(sample.rotary.empty());
}

}  // namespace
}  // namespace flashwave

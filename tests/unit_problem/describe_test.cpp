#include <gtest/gtest.h>

#include <cmath>

#include "problem/problem.h"
#include "problem/validate.h"
#include "sample.h"

namespace flashwave::test {
namespace {

TEST(Describe, SizesAndDefaults) {
  Sample s = Sample::dense();
  EXPECT_EQ(describe(s.p), "b=2 sq=4 sk=6 hq=4 hk=2 d=8 dtype=bf16");
  s.p.a.lse.data = nullptr;
  s.p.a.dim_v = 4;
  s.p.a.q.dtype = FW_F32;
  EXPECT_EQ(describe(s.p), "b=2 sq=4 sk=6 hq=4 hk=2 dqk=8 dv=4 dtype=f32 lse=0");
}

TEST(Describe, ScoreAndMask) {
  Sample s = Sample::dense();
  fw_attention& a = s.p.a;
  a.flags = FW_CAUSAL | FW_DETERMINISTIC;
  a.window_left = 3;
  a.softmax_scale = 0.1f;
  a.softcap = 30;
  a.dropout_p = 0.25f;
  a.num_splits = 3;
  a.alibi_slopes = s.floats(4);
  a.sinks = s.floats(4);
  a.bias = s.tensor(2, 4, 4, 6, FW_BF16);
  a.bias.stride[0] = a.bias.stride[2] = 0;
  EXPECT_EQ(describe(s.p),
            "b=2 sq=4 sk=6 hq=4 hk=2 d=8 dtype=bf16 causal=1 window=3,-1 scale=0.100000001 softcap=30 alibi=h "
            "bias=1h1k biasdtype=bf16 sinks=1 dropout=0.25 splits=3 deterministic=1");
}

TEST(Describe, LayoutsAndCaches) {
  EXPECT_EQ(describe(Sample::varlen().p), "b=2 sq=4 sk=6 hq=4 hk=2 d=8 dtype=bf16 layout=varlen");
  EXPECT_EQ(describe(Sample::paged().p), "b=2 sq=4 sk=6 hq=4 hk=2 d=8 dtype=bf16 seqused=1 leftpad=1 page=4");
  EXPECT_EQ(describe(Sample::appended().p),
            "b=2 sq=4 sk=6 hq=4 hk=2 d=8 dtype=bf16 seqused=1 leftpad=1 cacheidx=1 append=2 rotary=4");
}

TEST(Describe, Backward) {
  EXPECT_EQ(describe(Sample::backward().p),
            "op=bwd b=2 sq=4 sk=6 hq=4 hk=2 d=8 dtype=bf16 alibi=bh bias=1hqk sinks=1 dlse=1 dbias=1 dsinks=1 "
            "dslopes=1");
}

TEST(Problem, ScaleResolvesAuto) {
  Sample s = Sample::dense();
  EXPECT_FLOAT_EQ(s.p.scale(), 1.0f / std::sqrt(8.0f));
  s.p.a.softmax_scale = 0;
  EXPECT_EQ(s.p.scale(), 0.0f);
}

TEST(Problem, NormalizeClearsWhatIsLeftOpen) {
  Sample s = Sample::backward();
  fw_attention& a = s.p.a;
  a.batch = 1;
  a.q.stride[0] = INT64_MAX;
  a.lse.stride[3] = -5;
  a.bias.data = s.p.g.d_bias.data = nullptr;
  a.bias.stride[1] = INT64_MIN;
  a.bias.dtype = 77;
  a.probs.stride[2] = a.k_new.stride[0] = 9;
  const int64_t kept = a.q.stride[1];
  ASSERT_TRUE(validate(s.p, true).ok());
  normalize(s.p);
  EXPECT_EQ(a.q.stride[0], 0);
  EXPECT_EQ(a.q.stride[1], kept);
  EXPECT_EQ(a.q.stride[3], 1);
  EXPECT_EQ(a.lse.stride[3], 0);
  EXPECT_EQ(a.bias.stride[1], 0);
  EXPECT_EQ(a.bias.dtype, FW_DTYPE_NONE);
  EXPECT_EQ(a.probs.stride[2], 0);
  EXPECT_EQ(a.k_new.stride[0], 0);
  EXPECT_TRUE(validate(s.p, true).ok()) << "still valid";
  a.dim_v = 1;
  a.v.stride[3] = a.o.stride[3] = 40;
  normalize(s.p);
  EXPECT_EQ(a.v.stride[3], 1);
}

TEST(Problem, NormalizeKeepsWhereBiasBroadcasts) {
  Sample s = Sample::backward();
  s.p.a.seqlen_k = 0;
  s.p.a.bias.stride[1] = INT64_MAX;
  normalize(s.p);
  EXPECT_EQ(s.p.a.bias.stride[0], 0);
  EXPECT_EQ(s.p.a.bias.stride[1], 1);
  EXPECT_EQ(s.p.a.bias.stride[3], 1) << "d_bias has no element: nothing is summed over the keys";
}

TEST(Problem, EmptyMeansNothingToAttendOrAppend) {
  Sample s = Sample::dense();
  EXPECT_FALSE(s.p.empty());
  s.p.a.seqlen_k = 0;
  EXPECT_FALSE(s.p.empty()) << "rows without keys still get o = 0";
  s.p.a.seqlen_q = 0;
  EXPECT_TRUE(s.p.empty());
  Sample appended = Sample::appended();
  appended.p.a.seqlen_q = 0;
  EXPECT_FALSE(appended.p.empty()) << "the new keys still go into the cache";
  appended.p.a.batch = 0;
  EXPECT_TRUE(appended.p.empty());
  Sample varlen = Sample::varlen();
  varlen.p.a.total_q = 0;
  EXPECT_TRUE(varlen.p.empty());
}

}  // namespace
}  // namespace flashwave::test

#include "words.h"

#include <gtest/gtest.h>

#include "errors.h"

namespace flashwave::cli {
namespace {

std::string usage_error(const std::string& words) {
  try {
    parse_case(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Words, DefaultsFollowEachOther) {
  const Case c = parse_case("sq=100 hq=6");
  EXPECT_EQ(c.sk, 100);
  EXPECT_EQ(c.hk, 6);
  EXPECT_EQ(c.dqk, 64);
  EXPECT_EQ(c.dv, 64);
  EXPECT_EQ(c.dtype, FW_F32);
  EXPECT_EQ(c.window_left, -1);
  EXPECT_EQ(c.scale, FW_SCALE_AUTO);
  EXPECT_TRUE(c.lse);
}

TEST(Words, EveryWordSurvivesTheRoundTrip) {
  const char* const lines[] = {
      ("op=bwd b=3 sq=7 sk=9 hq=4 hk=2 dqk=24 dv=16 dtype=bf16 causal=1 window=3,-1 scale=0.125 softcap=30 alibi=bh "
       "bias=1h1k biasdtype=bf16 sinks=1 dropout=0.1 layout=bhsd dlse=1 dbias=1 dsinks=1 dslopes=1 deterministic=1 "
       "threads=2 units=100 kernel=reference_bwd seed=42"),
      ("b=2 sq=4 sk=64 hq=2 hk=2 d=32 dtype=f16 seqused=1 leftpad=1 page=16 append=3 rotary=16 interleaved=1 lse=0 "
       "splits=4 expect=refused(text)"),
      "b=2 sq=9 sk=5 hq=1 hk=1 d=8 dtype=f32 layout=varlen varlenlens=9:5,0:2 probs=1 expect=invalid",
      "b=2 sq=9 sk=5 hq=1 hk=1 d=8 dtype=f32 seqused=1 cacheidx=1",
  };
  for (const char* line : lines) EXPECT_EQ(format_case(parse_case(line)), line);
}

TEST(Words, MistakesNameTheWord) {
  EXPECT_NE(usage_error("sq=8 colour=red").find("colour=red"), std::string::npos);
  EXPECT_NE(usage_error("sq=eight").find("sq"), std::string::npos);
  EXPECT_NE(usage_error("sq=8x").find("sq"), std::string::npos);
  EXPECT_NE(usage_error("hq=0").find("hq"), std::string::npos);
  EXPECT_NE(usage_error("sq=8 sq=9").find("twice"), std::string::npos);
  EXPECT_NE(usage_error("causal").find("causal"), std::string::npos);
  EXPECT_NE(usage_error("causal=2").find("causal"), std::string::npos);
  EXPECT_NE(usage_error("dtype=f64").find("dtype"), std::string::npos);
  EXPECT_NE(usage_error("window=3").find("window"), std::string::npos);
  EXPECT_NE(usage_error("bias=bhkq").find("bias"), std::string::npos);
  EXPECT_NE(usage_error("scale=nan").find("scale"), std::string::npos);
  EXPECT_NE(usage_error("layout=varlen b=3 varlenlens=1:1").find("varlenlens"), std::string::npos);
  EXPECT_NE(usage_error("layout=qkvpacked sq=4 sk=5").find("qkvpacked"), std::string::npos);
  EXPECT_NE(usage_error("dlse=1").find("op=bwd"), std::string::npos);
  EXPECT_NE(usage_error("op=bwd dbias=1").find("bias"), std::string::npos);
}

TEST(Words, LengthsSetTheSizes) {
  const Case c = parse_case("layout=varlen varlenlens=3:10,7:0");
  EXPECT_EQ(c.b, 2);
  EXPECT_EQ(c.sq, 7);
  EXPECT_EQ(c.sk, 10);
}

TEST(Words, UnderstandsTheLibrarysOwnDescription) {
  const Case c = parse_case("b=2 sq=8 sk=64 hq=2 hk=2 d=32 dtype=f32 alibi=1 bias=1 varlen=1 seqused=1 paged=16");
  EXPECT_EQ(c.alibi, Alibi::kPerHead);
  EXPECT_EQ(c.bias, "bhqk");
  EXPECT_EQ(c.layout, Layout::kVarlen);
  EXPECT_EQ(c.page, 16);
}

}  // namespace
}  // namespace flashwave::cli

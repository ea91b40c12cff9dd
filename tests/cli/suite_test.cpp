#include "suite.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "errors.h"
#include "words.h"

namespace flashwave::cli {
namespace {

TEST(Suite, AlternativesMultiply) {
  const Suite suite = expand_suite("t", "# nothing\n\nsq={1|2|3} causal={0|1} {softcap=5 sinks=1|}\n", 0);
  EXPECT_EQ(suite.problems.size(), 12u);
  EXPECT_EQ(std::set<std::string>(suite.problems.begin(), suite.problems.end()).size(), 12u);
  int both = 0;
  for (const std::string& p : suite.problems) both += parse_case(p).softcap == 5 && parse_case(p).sinks;
  EXPECT_EQ(both, 6);
}

TEST(Suite, DrawsStayInRangeAndDiffer) {
  const Suite suite = expand_suite("t", "*50 sq=~3..9 d=?{32|64} window=~0..2,~5..6\n", 7);
  ASSERT_EQ(suite.problems.size(), 50u);
  std::set<int64_t> lengths, dims;
  for (const std::string& p : suite.problems) {
    const Case c = parse_case(p);
    EXPECT_GE(c.sq, 3);
    EXPECT_LE(c.sq, 9);
    EXPECT_LE(c.window_left, 2);
    EXPECT_GE(c.window_right, 5);
    EXPECT_NE(c.seed, 0u);
    lengths.insert(c.sq);
    dims.insert(c.dqk);
  }
  EXPECT_GT(lengths.size(), 4u);
  EXPECT_EQ(dims, (std::set<int64_t>{32, 64}));
}

TEST(Suite, SameSeedSameProblems) {
  const char* text = "*9 sq=~1..99 d=?{8|16} causal={0|1}\n";
  EXPECT_EQ(expand_suite("t", text, 1).problems, expand_suite("t", text, 1).problems);
  EXPECT_NE(expand_suite("t", text, 1).problems, expand_suite("t", text, 2).problems);
}

TEST(Suite, MistakesNameTheLine) {
  for (const char* text : {"sq=1\nsq={1|2\n", "sq=1\nfoo=1\n", "sq=1\nsq=~5\n", "sq=1\n@colour red\n"}) {
    try {
      expand_suite("t", text, 0);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
    }
  }
}

TEST(Suite, SettingsAreRead) {
  const Suite suite = expand_suite("t", "@samples 15\n@rounds 3\nsq=1\n", 0);
  EXPECT_EQ(suite.samples, 15);
  EXPECT_EQ(suite.rounds, 3);
}

TEST(Suite, BuiltInSuitesExpand) {
  for (const EmbeddedSuite* s = kEmbeddedSuites; s->kind; ++s) {
    EXPECT_FALSE(load_suite(s->kind, s->name, 0).problems.empty()) << s->name;
  }
  EXPECT_GE(load_suite("check", "full", 0).problems.size(), 3000u);
  const Suite peak = load_suite("bench", "peak", 0);
  EXPECT_GE(peak.samples * peak.rounds, 15);
  EXPECT_THROW(load_suite("check", "no-such-suite", 0), UsageError);
}

// A suite that claims to touch every feature has to.
TEST(Suite, SmokeAndFullTouchEveryWord) {
  for (const char* name : {"smoke", "full"}) {
    std::string all;
    for (const std::string& p : load_suite("check", name, 0).problems) all += " " + p + " ";
    for (
        const char* word :
        {"op=bwd",     "dtype=f32",   "dtype=bf16",       "dtype=f16",       "causal=1",       "window=",   "softcap=",
         "alibi=h ",   "alibi=bh",    "bias=bhqk",        "bias=11qk",       "biasdtype=bf16", "sinks=1",   "dropout=",
         "probs=1",    "layout=bhsd", "layout=qkvpacked", "layout=kvpacked", "layout=varlen",  "seqused=1", "leftpad=1",
         "cacheidx=1", "page=",       "append=",          "rotary=",         "interleaved=1",  "splits=",   "dlse=1",
         "dbias=1",    "dsinks=1",    "dslopes=1",        "deterministic=1", "dqk=",           "scale="}) {
      EXPECT_NE(all.find(word), std::string::npos) << name << " lacks " << word;
    }
  }
}

}  // namespace
}  // namespace flashwave::cli

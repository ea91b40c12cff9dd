// The rules on the values of index arrays.
#include <gtest/gtest.h>

#include "problem/validate.h"
#include "sample.h"

namespace flashwave::test {
namespace {

#define CHANGE(code)                  \
  [](Sample& s) {                     \
    [[maybe_unused]] auto& a = s.p.a; \
    code;                             \
  }

const std::vector<BrokenRule>& rules() {
  static const std::vector<BrokenRule> all = {
      {"cu_q_start",
       Sample::varlen,
       CHANGE(a.cu_seqlens_q = s.indices({1, 1, 5})),
       {"cu_seqlens_q[0] must be 0, got 1"}},
      {"cu_q_falls",
       Sample::varlen,
       CHANGE(a.cu_seqlens_q = s.indices({0, 3, 2})),
       {"cu_seqlens_q must not decrease, got 3 then 2 at [2]"}},
      {"cu_q_long",
       Sample::varlen,
       CHANGE(a.cu_seqlens_q = s.indices({0, 0, 5})),
       {"cu_seqlens_q[2] - cu_seqlens_q[1] must be at most seqlen_q = 4, got 5"}},
      {"cu_q_total", Sample::varlen, CHANGE(a.total_q = 4), {"cu_seqlens_q[batch] must be at most total_q = 4, got 5"}},
      {"cu_k_start", Sample::varlen, CHANGE(a.cu_seqlens_k = s.indices({-1, 5, 8})), {"cu_seqlens_k[0] must be 0"}},
      {"cu_k_falls",
       Sample::varlen,
       CHANGE(a.cu_seqlens_k = s.indices({0, -2, 4})),
       {"cu_seqlens_k must not decrease"}},
      {"cu_k_long", Sample::varlen, CHANGE(a.cu_seqlens_k = s.indices({0, 7, 8})), {"at most seqlen_k = 6, got 7"}},
      {"cu_k_total", Sample::varlen, CHANGE(a.total_k = 7), {"cu_seqlens_k[batch] must be at most total_k = 7"}},
      {"cu_k_paged",
       Sample::paged,
       CHANGE(a.seqused_k = a.leftpad_k = nullptr; a.cu_seqlens_k = s.indices({0, 7, 8})),
       {"cu_seqlens_k[1] - cu_seqlens_k[0] must be at most seqlen_k = 6"}},
      {"seqused_negative",
       Sample::cached,
       CHANGE(a.seqused_k = s.indices({3, -1})),
       {"seqused_k[1] must be in [0, 6] (seqlen_k), got -1"}},
      {"seqused_large", Sample::cached, CHANGE(a.seqused_k = s.indices({7, 1})), {"seqused_k[0] must be in [0, 6]"}},
      {"seqused_varlen",
       Sample::varlen,
       CHANGE(a.seqused_k = s.indices({6, 3})),
       {"seqused_k[1] must be in [0, 2] (the sequence's rows), got 3"}},
      {"seqused_append",
       Sample::appended,
       CHANGE(a.seqused_k = s.indices({3, 5})),
       {"seqused_k[1] + seqlen_new must be at most seqlen_k = 6, got 5 + 2"}},
      {"leftpad_negative",
       Sample::cached,
       CHANGE(a.leftpad_k = s.indices({0, -1})),
       {"leftpad_k[1] must be in [0, 4]"}},
      {"leftpad_large", Sample::cached, CHANGE(a.leftpad_k = s.indices({4, 0})), {"leftpad_k[0] must be in [0, 3]"}},
      {"leftpad_dense", Sample::dense, CHANGE(a.leftpad_k = s.indices({0, 7})), {"leftpad_k[1] must be in [0, 6]"}},
      {"idx_large",
       Sample::cached,
       CHANGE(a.cache_batch_idx = s.indices({0, 3})),
       {"cache_batch_idx[1] must be in [0, 3), got 3"}},
      {"idx_negative",
       Sample::cached,
       CHANGE(a.cache_batch_idx = s.indices({-1, 0})),
       {"cache_batch_idx[0] must be in"}},
      {"idx_batch", Sample::cached, CHANGE(a.batch_k = 0), {"cache_batch_idx[0] must be in [0, 2), got 2"}},
      {"idx_twice",
       Sample::appended,
       CHANGE(a.cache_batch_idx = s.indices({1, 1})),
       {"cache_batch_idx must name each row once", "got 1 twice"}},
      {"page_large",
       Sample::paged,
       CHANGE(a.block_table = s.indices({5, 0, 2, 3})),
       {"block_table[0][0] must be in [0, 5)", "got 5"}},
      {"page_negative",
       Sample::paged,
       CHANGE(a.block_table = s.indices({4, 0, -1, 3})),
       {"block_table[1][0] must be in"}},
      {"rotary", Sample::appended, CHANGE(a.rotary_seqlen = 5), {"rotary_seqlen must be at least 6", "seqused_k[1]"}},
      {"rotary_causal",
       Sample::appended,
       CHANGE(a.flags = FW_CAUSAL; a.rotary_seqlen = 7),
       {"rotary_seqlen must be at least 8"}},
  };
  return all;
}

class IndexRules : public testing::TestWithParam<size_t> {};
TEST_P(IndexRules, AreEnforced) { expect_refused(rules()[GetParam()]); }
INSTANTIATE_TEST_SUITE_P(All, IndexRules, testing::Range<size_t>(0, rules().size()),
                         [](const auto& instance) { return std::string(rules()[instance.param].name); });

Sample paged_append(std::vector<int32_t> table) {
  Sample s = Sample::paged();
  fw_attention& a = s.p.a;
  a.seqlen_new = 2;
  a.k_new = s.tensor(2, 2, 2, 8, FW_BF16);
  a.v_new = s.tensor(2, 2, 2, 8, FW_BF16);
  a.block_table = s.indices(std::move(table));
  return s;
}

// Rows 3..4 of sequence 0 (blocks 0 and 1) and rows 4..5 of sequence 1 (block 1) are written.
TEST(PagedAppend, DistinctRowsAreAccepted) {
  EXPECT_TRUE(validate(paged_append({4, 0, 2, 3}).p, true).ok());
  EXPECT_TRUE(validate(paged_append({2, 0, 2, 3}).p, true).ok()) << "a page that both read, one writes, is fine";
}

TEST(PagedAppend, OneRowWrittenTwiceIsRefused) {
  const Status status = validate(paged_append({4, 3, 2, 3}).p, true);
  EXPECT_EQ(status.code, FW_INVALID_ARGUMENT);
  EXPECT_NE(status.message.find("block_table makes two appended keys fall on one row: page 3, row 0"),
            std::string::npos)
      << status.message;
}

TEST(Indices, OnlyPagesInUseCount) {
  Sample s = Sample::paged();
  s.p.a.block_table = s.indices({4, -77, 2, 99});  // sequence 0 uses rows 0..2, sequence 1 rows 1..3: one block each
  EXPECT_TRUE(validate(s.p, true).ok());
  s.p.a.leftpad_k = s.indices({3, 4});  // no key is left, no page is read
  s.p.a.block_table = s.indices({-1, -1, -1, -1});
  EXPECT_TRUE(validate(s.p, true).ok());
}

TEST(Indices, AreNotReadWhereTheHostCannot) {
  Sample s = Sample::varlen();
  s.p.a.cu_seqlens_q = s.indices({9, 3, 2});
  EXPECT_TRUE(validate(s.p, false).ok());
  EXPECT_FALSE(validate(s.p, true).ok());
}

TEST(Indices, SharedCacheRowsMayBeRead) {
  Sample s = Sample::cached();
  s.p.a.cache_batch_idx = s.indices({1, 1});
  EXPECT_TRUE(validate(s.p, true).ok());
}

TEST(Indices, LastOffsetsMayLeaveRowsOver) {
  Sample s = Sample::varlen();
  s.p.a.cu_seqlens_q = s.indices({0, 1, 2});
  EXPECT_TRUE(validate(s.p, true).ok());
}

TEST(Indices, QueriesTurnByRowOnlyUnderAMask) {
  Sample s = Sample::appended();  // seqused up to 4, 2 new keys, 4 queries
  s.p.a.rotary_seqlen = 6;
  EXPECT_TRUE(validate(s.p, true).ok());
  s.p.a.window_left = 3;
  EXPECT_FALSE(validate(s.p, true).ok());
  s.p.a.rotary_seqlen = 8;
  EXPECT_TRUE(validate(s.p, true).ok());
}

}  // namespace
}  // namespace flashwave::test

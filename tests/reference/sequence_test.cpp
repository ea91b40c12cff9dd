// Where sequences lie: for every number that a GPU's memory may hold, right or not, inside of the tensors.
#include "kernels/common/sequence.h"

#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <random>
#include <vector>

namespace flashwave {
namespace {

constexpr int32_t kBatch = 3, kLongestQ = 7, kLongestK = 24, kPlaces = 5, kPage = 4;

// Right numbers, or anything.
struct Draw {
  explicit Draw(unsigned seed) : random(seed) {}
  int32_t below(int32_t n) { return static_cast<int32_t>(random() % static_cast<unsigned>(n)); }
  int32_t number(int32_t most) {
    constexpr std::array<int32_t, 6> kOdd = {-1, INT_MIN, INT_MAX, -1000, 1000, 1 << 30};
    const int32_t kind = below(10);
    return kind < 6 ? below(most + 1) : kind == 6 ? most + 1 : kOdd[below(6)];
  }
  std::vector<int32_t> numbers(int32_t count, int32_t most) {
    std::vector<int32_t> all(count);
    for (int32_t& x : all) x = number(most);
    return all;
  }
  std::mt19937 random;
};

TEST(Sequence, NoNumberLeadsOutOfTheTensors) {
  Draw draw(7);
  int64_t keys_seen = 0, queries_seen = 0;
  for (int n = 0; n < 20000; ++n) {
    const bool packed_q = draw.below(2), packed_k = draw.below(2), paged = draw.below(2);
    const int32_t total_q = draw.below(20), total_k = draw.below(60);
    abi::Params p{};
    p.batch = kBatch, p.seqlen_q = kLongestQ, p.seqlen_k = kLongestK;
    const std::vector<int32_t> cu_q = draw.numbers(kBatch + 1, total_q), cu_k = draw.numbers(kBatch + 1, total_k),
                               used = draw.numbers(kBatch, kLongestK), pad = draw.numbers(kBatch, 8),
                               rows = draw.numbers(kBatch, kPlaces - 1),
                               table = draw.numbers(kBatch * kLongestK / kPage, kPlaces - 1);
    if (packed_q) p.cu_seqlens_q = cu_q.data(), p.q.most = total_q;
    if (packed_k) p.cu_seqlens_k = cu_k.data();
    p.k.most = packed_k && !paged ? total_k : kPlaces - 1;
    if (draw.below(2)) p.seqused_k = used.data(), p.seqlen_new = packed_k ? 0 : draw.below(4);
    if (draw.below(2)) p.leftpad_k = pad.data();
    if (!packed_k && !paged && draw.below(2)) p.cache_batch_idx = rows.data();
    if (paged) p.block_table = table.data(), p.page_size = kPage, p.block_table_stride = kLongestK / kPage;
    const abi::Tensor k{.data = nullptr, .stride = {1000, 10, 1, 1}, .dtype = abi::kBF16, .most = 0};

    for (int32_t b = 0; b < kBatch; ++b) {
      const Sequence s = sequence_of(p, b);
      ASSERT_GE(s.queries, 0);
      ASSERT_LE(s.queries, kLongestQ);
      ASSERT_GE(s.q_row, 0);
      ASSERT_LE(s.q_row + s.queries, packed_q ? total_q : kLongestQ);
      ASSERT_GE(s.keys, 0);
      ASSERT_GE(s.k_row, 0);
      const int32_t stored = stored_rows(p, b);
      const int64_t first = s.k_row - left_pad(p, b);  // of its rows
      ASSERT_LE(s.k_row + s.keys, first + stored);
      ASSERT_LE(first + stored, packed_k && !paged ? total_k : kLongestK);
      ASSERT_LT(s.k_batch, kPlaces);
      for (int64_t j = 0; j < s.keys; ++j) {
        const int64_t at = bounded_key_offset(p, k, s, j, 0);
        ASSERT_GE(at, 0);
        ASSERT_LT(at / 1000, packed_k && !paged ? 1 : kPlaces) << "page or row of the cache";
        ASSERT_LT(at % 1000 / 10, paged ? kPage : packed_k ? total_k : kLongestK);
      }
      keys_seen += s.keys, queries_seen += s.queries;
    }
  }
  EXPECT_GT(keys_seen, 100000);
  EXPECT_GT(queries_seen, 100000);
}

// What is right is taken as it is.
TEST(Sequence, RightNumbersCount) {
  const int32_t cu_q[] = {0, 3, 3, 10}, cu_k[] = {0, 24, 30, 50}, used[] = {24, 0, 11}, pad[] = {0, 0, 5};
  abi::Params p{};
  p.batch = kBatch, p.seqlen_q = kLongestQ, p.seqlen_k = kLongestK;
  p.cu_seqlens_q = cu_q, p.cu_seqlens_k = cu_k, p.seqused_k = used, p.leftpad_k = pad;
  p.q.most = 10, p.k.most = 50;
  const Sequence first = sequence_of(p, 0), second = sequence_of(p, 1), third = sequence_of(p, 2);
  EXPECT_EQ(first.queries, 3);
  EXPECT_EQ(first.keys, 24);
  EXPECT_EQ(first.k_row, 0);
  EXPECT_EQ(second.queries, 0);
  EXPECT_EQ(second.keys, 0);
  EXPECT_EQ(second.k_row, 24);
  EXPECT_EQ(third.queries, 7);
  EXPECT_EQ(third.q_row, 3);
  EXPECT_EQ(third.keys, 6);
  EXPECT_EQ(third.k_row, 35);
  EXPECT_EQ(stored_rows(p, 2), 20);
  EXPECT_EQ(left_pad(p, 2), 5);
}

}  // namespace
}  // namespace flashwave

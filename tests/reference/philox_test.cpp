// The dropout stream: the generator against the published vectors, both implementations against each other.
#include <gtest/gtest.h>

#include <random>

#include "kernels/common/philox.h"
#include "tests/reference/oracle.h"

namespace oracle {
namespace {

using Words = std::array<uint32_t, 4>;

Words kernel_philox(const Words& counter, uint32_t key0, uint32_t key1) {
  const flashwave::Philox4 r = flashwave::philox({{counter[0], counter[1], counter[2], counter[3]}}, key0, key1);
  return {r.word[0], r.word[1], r.word[2], r.word[3]};
}

// "philox4x32 7" lines of the known-answer file that comes with the authors' Random123 library.
TEST(Philox, PublishedKnownAnswers) {
  struct Known {
    Words counter;
    std::array<uint32_t, 2> key;
    Words answer;
  };
  const Known known[] = {{{0, 0, 0, 0}, {0, 0}, {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}},
                         {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                          {0xffffffff, 0xffffffff},
                          {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}},
                         {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                          {0xa4093822, 0x299f31d0},
                          {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}}};
  for (const Known& k : known) {
    EXPECT_EQ(philox(k.counter, k.key), k.answer);
    EXPECT_EQ(kernel_philox(k.counter, k.key[0], k.key[1]), k.answer);
  }
}

TEST(Philox, TablesGiveTheSameNumbers) {
  std::mt19937 rng(9);
  for (int n = 0; n < 1000; ++n) {
    const uint32_t key0 = rng(), key1 = rng(), counter = rng(), head = rng(), query = rng(), group = rng();
    const flashwave::PhiloxTable<> table(key0, key1, counter, head);
    const flashwave::PhiloxTable<>::Row rows[] = {table.row(query), table.row(query + 1)};
    const flashwave::PhiloxTable<>::Column columns[] = {table.column(group), table.column(group + 5)};
    flashwave::Philox4 found[2];
    table.numbers(rows, columns, found);
    for (uint32_t i = 0; i < 2; ++i) {
      const Words answer = kernel_philox({group + 5 * i, query + i, head, counter}, key0, key1);
      for (int w = 0; w < 4; ++w) ASSERT_EQ(found[i].word[w], answer[w]);
    }
  }
}

TEST(Philox, BothImplementationsAgreeOnDropout) {
  std::mt19937_64 rng(8);
  int dropped_count = 0;
  constexpr int kDraws = 20000;
  for (int n = 0; n < kDraws; ++n) {
    Case c;
    c.seed = rng(), c.offset = rng(), c.dropout_p = 0.375f, c.heads_q = 5;
    const int64_t b = rng() % 7, h = rng() % 5, i = rng() % 100000, j = rng() % 100000;
    const uint32_t bits = flashwave::dropout_bits(c.seed, c.offset, static_cast<uint32_t>(b * 5 + h),
                                                  static_cast<uint32_t>(i), static_cast<uint32_t>(j));
    ASSERT_EQ(dropped(c, b, h, i, j), bits < 24576);
    dropped_count += bits < 24576;
  }
  EXPECT_NEAR(dropped_count / double{kDraws}, 0.375, 0.015);  // over four standard deviations
}

}  // namespace
}  // namespace oracle

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

// "philox4x32 10" lines of the known-answer file that comes with the authors' Random123 library.
TEST(Philox, PublishedKnownAnswers) {
  struct Known {
    Words counter;
    std::array<uint32_t, 2> key;
    Words answer;
  };
  const Known known[] = {{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                         {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                          {0xffffffff, 0xffffffff},
                          {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                         {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                          {0xa4093822, 0x299f31d0},
                          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Known& k : known) {
    EXPECT_EQ(philox(k.counter, k.key), k.answer);
    EXPECT_EQ(kernel_philox(k.counter, k.key[0], k.key[1]), k.answer);
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

// The worked examples of docs/semantics.md, as the reference kernel computes them.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/common/philox.h"
#include "tests/reference/cases.h"
#include "tests/reference/harness.h"

namespace oracle {
namespace {

// "1 0 / 1 1": which keys each query sees.
std::string mask_of(Case c) {
  c.batch = c.heads_q = c.heads_k = 1;
  fill(c, 1);
  const Problem problem(c);
  problem.run(flashwave::reference_fwd);
  const std::vector<Real> probs = problem.get("probs");
  std::string text;
  for (size_t x = 0; x < probs.size(); ++x) {
    text += probs[x] != 0 ? '1' : '0';
    if (x + 1 < probs.size()) text += (x + 1) % c.seqlen_k == 0 ? " / " : " ";
  }
  return text;
}

TEST(Documentation, Masks) {
  Case c;
  c.causal = true, c.seqlen_q = 2, c.seqlen_k = 5;
  EXPECT_EQ(mask_of(c), "1 1 1 1 0 / 1 1 1 1 1");
  c.seqlen_q = 5, c.seqlen_k = 2;
  EXPECT_EQ(mask_of(c), "0 0 / 0 0 / 0 0 / 1 0 / 1 1");
  c.causal = false, c.window_left = c.window_right = 1, c.seqlen_q = 4, c.seqlen_k = 6;
  EXPECT_EQ(mask_of(c), "0 1 1 1 0 0 / 0 0 1 1 1 0 / 0 0 0 1 1 1 / 0 0 0 0 1 1");
  c.window_left = 0, c.window_right = -1, c.seqlen_q = 5, c.seqlen_k = 3;
  EXPECT_EQ(mask_of(c), "1 1 1 / 1 1 1 / 1 1 1 / 0 1 1 / 0 0 1");
}

TEST(Documentation, DropoutStream) {
  const std::array<uint32_t, 4> first = {0xad6b0469, 0x734d9591, 0xfe228be8, 0x44208cca};
  const std::array<uint32_t, 4> second = {0xc57e0fb2, 0xccdb8272, 0x9f419e04, 0x1f6f1a53};
  EXPECT_EQ(philox({0, 3, 6, 7}, {42, 0}), first);
  EXPECT_EQ(philox({1, 3, 6, 7}, {42, 0}), second);
  constexpr uint32_t kBits[10] = {1129, 44395, 38289, 29517, 35816, 65058, 36042, 17440, 4018, 50558};
  for (uint32_t j = 0; j < 10; ++j) EXPECT_EQ(flashwave::dropout_bits(42, 7, 1 * 4 + 2, 3, j), kBits[j]) << j;

  Case c;
  c.batch = 2, c.heads_q = c.heads_k = 4, c.seqlen_q = 4, c.seqlen_k = 10;
  c.dropout_p = 0.25f, c.seed = 42, c.offset = 7;
  fill(c, 1);
  const Problem problem(c);
  problem.run(flashwave::reference_fwd);
  const std::vector<Real> probs = problem.get("probs");
  const int64_t row = ((1 * c.heads_q + 2) * c.seqlen_q + 3) * c.seqlen_k;
  for (int64_t j = 0; j < 10; ++j) EXPECT_EQ(std::signbit(probs[row + j]), j == 0 || j == 8) << j;
}

}  // namespace
}  // namespace oracle

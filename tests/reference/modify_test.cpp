// Score modifiers on accumulators, against the same of one score by itself.
#include "kernels/common/modify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace flashwave {
namespace {

constexpr int kBatch = 2, kHeads = 3, kQueries = 21, kKeys = 43;

// Accumulators as matrix instructions leave them: rows are queries, rows are keys, one key of many queries, and one
// query of many keys.
struct Rows {
  static constexpr int kScores = 16;
  static constexpr bool kPadded = false;
  static constexpr int query(int i) { return i / 2 % 2 * 8; }
  static constexpr int key(int i) { return i / 4 * 8 + i % 2; }
};
struct Columns {
  static constexpr int kScores = 32;
  static constexpr bool kPadded = false;
  static constexpr int query(int i) { return i / 4 * 8 + i % 2; }
  static constexpr int key(int i) { return i / 2 % 2 * 8; }
};
struct OneKey {
  static constexpr int kScores = 16;
  static constexpr bool kPadded = true;
  static constexpr int query(int i) { return 8 * (i >> 2) + (i & 3); }
  static constexpr int key(int) { return 0; }
};
struct OneQuery {
  static constexpr int kScores = 16;
  static constexpr bool kPadded = true;
  static constexpr int query(int) { return 0; }
  static constexpr int key(int i) { return 8 * (i >> 2) + (i & 3); }
};

struct Numbers {
  std::mt19937 rng{7};
  std::normal_distribution<float> normal{0, 2};
  std::vector<float> bias, slopes;
  std::vector<uint16_t> half, brain;

  Numbers() : bias(kBatch * kHeads * kQueries * kKeys), slopes(kBatch * kHeads), half(bias.size()), brain(bias.size()) {
    for (size_t i = 0; i < bias.size(); ++i) {
      bias[i] = to_float(from_float<BFloat16>(normal(rng)));  // a number that all three types hold
      half[i] = from_float<Half>(bias[i]).bits, brain[i] = from_float<BFloat16>(bias[i]).bits;
    }
    for (float& slope : slopes) slope = std::abs(normal(rng));
  }

  // kind: bit 0 softcap, bit 1 ALiBi, bits 2 and 3 the type of a bias.
  Params params(int kind) {
    Params p{};
    p.heads_q = kHeads, p.softmax_scale = 0.3f;
    if (kind & 1) p.softcap = 1.5f;
    if (kind & 2) p.alibi_slopes = slopes.data(), p.alibi_batch_stride = kHeads;
    const int type = kind >> 2;
    if (type > 0) {
      p.bias.data = type == 1 ? static_cast<void*>(bias.data()) : type == 2 ? half.data() : brain.data();
      p.bias.dtype = type == 1 ? abi::kF32 : type == 2 ? abi::kF16 : abi::kBF16;
      p.bias.stride[0] = kHeads * kQueries * kKeys, p.bias.stride[1] = kQueries * kKeys;
      p.bias.stride[2] = kKeys, p.bias.stride[3] = 1;
    }
    return p;
  }
};

template <class Layout>
void expect_same() {
  Numbers numbers;
  for (int kind = 0; kind < 16; ++kind) {
    const Params p = numbers.params(kind);
    for (const int first : {0, 3, 17, -1}) {  // the third tile reaches past the end, the last has keys before the first
      if (first < 0 && !Layout::kPadded) continue;
      const TilePlace at = {1, kind % kHeads, first < 0 ? 2 : first, first < 0 ? -9 : 2 * first + 1, kQueries, kKeys};
      float s[Layout::kScores], dots[Layout::kScores], tangents[Layout::kScores] = {};
      for (float& x : s) x = numbers.normal(numbers.rng) * 4.f;
      for (int i = 0; i < Layout::kScores; ++i) dots[i] = s[i];
      modify_scores<Layout>(p, at, s, [&](int n, float x, float y) { tangents[2 * n] = x, tangents[2 * n + 1] = y; });
      float again[Layout::kScores];
      for (int i = 0; i < Layout::kScores; ++i) again[i] = dots[i];
      modify_scores<Layout>(p, at, again);
      Sequence seq{};
      seq.b = at.batch, seq.queries = kQueries, seq.keys = kKeys;
      for (int i = 0; i < Layout::kScores; ++i) {
        EXPECT_EQ(s[i], again[i]);
        const int query = at.query + Layout::query(i), key = at.key + Layout::key(i);
        if (query >= kQueries || key >= kKeys || key < 0) continue;
        const ScoreRow row(p, seq, at.head, query);
        const float expected = row.modified(dots[i], key);
        EXPECT_NEAR(s[i], expected, 1e-5f * (1 + std::abs(expected))) << "kind " << kind << ", score " << i;
        float gradient;
        row.score(dots[i], key, gradient);
        EXPECT_NEAR(1 - tangents[i] * tangents[i], p.softcap > 0 ? gradient : 1.f, 1e-6f);
      }
    }
  }
}

TEST(Modify, RowsAreQueries) { expect_same<Rows>(); }
TEST(Modify, RowsAreKeys) { expect_same<Columns>(); }
TEST(Modify, OneKeyOfManyQueries) { expect_same<OneKey>(); }
TEST(Modify, OneQueryOfManyKeys) { expect_same<OneQuery>(); }

// A bias of the lowest number hides a key, and stays finite.
TEST(Modify, TheLowestBiasStaysFinite) {
  const std::vector<float> lowest(64, -kLargest);
  Params p{};
  p.softmax_scale = 1.f, p.bias.data = const_cast<float*>(lowest.data()), p.bias.dtype = abi::kF32;
  p.bias.stride[3] = 1;
  float s[Rows::kScores] = {};
  modify_scores<Rows>(p, TilePlace{0, 0, 0, 0, 64, 64}, s);
  for (const float x : s) EXPECT_EQ(x, -kLargest);
}

}  // namespace
}  // namespace flashwave

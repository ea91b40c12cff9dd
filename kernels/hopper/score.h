// Score modifiers and dropout on accumulators: s[4 j + 2 i + e] is query `query` + 8 i, key `key` + 8 j + e. Every
// switch is uniform.
#pragma once

#include "kernels/hopper/isa.h"
#include "kernels/nvidia/scores.h"

namespace flashwave {

// By the special function unit (docs/numerics.md).
struct FastTangent {
  FW_METHOD static float of(float x) { return tanh_fast(x); }
};

// Which of the two 16-bit numbers of a word are not below a threshold, both at once.
struct DropoutCompare {
  uint32_t threshold, result;  // result: the bits that answer

  // With a threshold of 2^16 nothing is kept.
  FW_METHOD explicit DropoutCompare(uint32_t t) : threshold(t * 0x10001u), result(t >> 16 ? 0 : 0x80008000u) {}
  // The bits before, one place down, and those of these numbers in the top bits of the halves. Without its top bit a
  // difference does not borrow from the other half; where the top bits differ, they decide.
  FW_METHOD uint32_t kept(uint32_t bits, uint32_t numbers) const {
    const uint32_t rest = (numbers | 0x80008000u) - (threshold & 0x7FFF7FFFu);
    const uint32_t answer = logic<0xB2>(numbers, threshold, rest);  // n & ~t | ~(n ^ t) & r
    return logic<0xF8>(bits >> 1, answer, result);                  // b | a & r
  }
};
// A step of a transposition of bits by lanes that are `apart`: bits whose place has kShift clear stay where the lane
// has that bit clear, and go to the other lane's places with kShift set.
template <int kShift>
FW_DEVICE uint32_t exchange_bits(uint32_t x, int apart, bool upper) {
  constexpr uint32_t kLower = kShift == 1 ? 0x55555555u : 0x33333333u;
  const uint32_t other = exchange(x, apart), mine = upper ? ~kLower : kLower;
  return (x & mine) | (rotated_left(other, upper ? 32 - kShift : kShift) & ~mine);
}

// Two rows of a block of scores, as this thread has them.
template <int kTileK>
struct ScoreRows {
  const Params& p;
  const TilePlace at;

  // q.k -> scores in units of log2. kOnlyAlibi: there is no other modifier.
  template <bool kOnlyAlibi>
  FW_METHOD void modify(float (&s)[kTileK / 2]) const {
    using Layout = RowsAreQueries<kTileK / 2>;
    if constexpr (!kOnlyAlibi) return modify_scores<Layout, FastTangent>(p, at, s);
    const float scale = p.softmax_scale * kLog2e;
    FW_UNROLL for (int i = 0; i < kTileK / 2; ++i) s[i] *= scale;
    add_alibi<Layout>(p, at, s);
  }

  // Which elements of both rows are not dropped. A pair of keys has one word of the four that Philox gives for 8 keys
  // of a row, and the four lanes that share a row have one each: each lane makes the words of every fourth 8 keys and
  // compares them, and they transpose the outcome, bit by bit: 4 exchanges of a word. Nothing here waits for scores.
  FW_METHOD void draw(uint32_t (&keeps)[2]) const {
    const int lane = lane_index(), group = at.key / kKeysPerPhilox + lane % 4;
    const DropoutTable table = dropout_table(p, uint32_t(at.batch * p.heads_q + at.head));
    const DropoutCompare compare(p.dropout_threshold);
    DropoutTable::Column columns[kCalls];
    FW_UNROLL for (int i = 0; i < kCalls; ++i) columns[i] = table.column(group + 4 * i);
    FW_UNROLL for (int row = 0; row < 2; ++row) {
      DropoutTable::Row rows[kCalls];
      FW_UNROLL for (int i = 0; i < kCalls; ++i) rows[i] = table.row(at.query + 8 * row);
      uint32_t bits = 0;
      Philox4 r[kCalls];
      table.numbers(rows, columns, r);
      FW_UNROLL for (int i = 0; i < 4 * kCalls; ++i) bits = compare.kept(bits, r[i / 4].word[i % 4]);
      keeps[row] = exchange_bits<2>(exchange_bits<1>(bits, 1, lane & 1), 2, lane & 2);
    }
  }
  // Weights, packed as pairs of keys, of dropped elements become 0. The j-th 8 keys have bit 16 - 4 kCalls + j, and the
  // upper of the pair 16 above.
  FW_METHOD static void drop(const uint32_t (&keeps)[2], uint32_t (&weights)[kTileK / 4]) {
    FW_UNROLL for (int row = 0; row < 2; ++row) {
      FW_UNROLL for (int j = 0; j < kTileK / 8; ++j) weights[j / 2 * 4 + j % 2 * 2 + row] &=
          halves_of_signs(keeps[row] << (4 * kCalls - 1 - j));
    }
  }

 private:
  static constexpr int kCalls = (kTileK / 8 + 3) / 4;  // of Philox, by a lane for a row
  static_assert(kCalls <= 4);
};

}  // namespace flashwave

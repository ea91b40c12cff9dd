// A compile-time list scheduler. Gap g of a loop body is the time behind matrix instruction g, in which the vector and
// memory units are free. The kernel lists its other work as items; each gets the first gap that is not before the
// previous item of its queue and has room. Source order is issue order: the kernel closes each gap with
// schedule_fence().
#pragma once

#include "kernels/amd/gpu.h"

namespace flashwave {

struct GapItem {
  int16_t op, index, gap;
};

enum GapQueue { kVectorQueue, kMemoryQueue, kStartQueue, kQueues };

template <int kGaps, int kMaxItems = 160>
struct Gaps {
  GapItem item[kMaxItems] = {};
  int items = 0;
  int slots_used[kGaps] = {}, instructions_used[kGaps] = {};
  int position[kQueues] = {};
  int slots, instructions;  // room of a gap: vector issue slots, instructions
  bool fits = true;

  // reads_every: a fragment read and its wait take room in every reads_every-th gap.
  constexpr Gaps(int slots_per_gap, int instructions_per_gap, int reads_every)
      : slots(slots_per_gap), instructions(instructions_per_gap) {
    for (int g = 0; g < kGaps; ++g) instructions_used[g] = g % reads_every ? 0 : 2;
  }

  // An item of `cost` slots and `count` instructions, in gaps [from, before).
  constexpr void add(GapQueue queue, int op, int index, int cost, int count, int from = 0, int before = kGaps) {
    int g = position[queue] > from ? position[queue] : from;
    while (g < kGaps - 1 && (slots_used[g] + cost > slots || instructions_used[g] + count > instructions)) ++g;
    if (g >= before || slots_used[g] + cost > slots || instructions_used[g] + count > instructions) fits = false;
    if (g > kGaps - 1) g = kGaps - 1;
    position[queue] = g;
    slots_used[g] += cost;
    instructions_used[g] += count;
    item[items++] = {int16_t(op), int16_t(index), int16_t(g)};
  }

  // Behind everything else in the gap, even if there is no room.
  constexpr void add_last(int op, int index, int gap) { item[items++] = {int16_t(op), int16_t(index), int16_t(gap)}; }
  constexpr int gap_of(int op, int index) const {
    int j = 0;
    while (item[j].op != op || item[j].index != index) ++j;
    return item[j].gap;
  }

  constexpr void sort() {  // by gap; within a gap as added
    for (int i = 1; i < items; ++i)
      for (int j = i; j > 0 && item[j].gap < item[j - 1].gap; --j) {
        const GapItem x = item[j];
        item[j] = item[j - 1], item[j - 1] = x;
      }
  }
  // First item of gap g.
  constexpr int first(int g) const {
    int j = 0;
    while (j < items && item[j].gap < g) ++j;
    return j;
  }
  constexpr int count(int op, int before_gap) const {
    int n = 0;
    for (int j = 0; j < items; ++j) n += item[j].op == op && item[j].gap < before_gap;
    return n;
  }
};

template <class Index, Index... kIndex>
struct Indices {};
template <int kCount>
using Count = __make_integer_seq<Indices, int, kCount>;

// All matrix instructions of a fragment.
template <class Element, int... kStep>
FW_DEVICE F32x16 multiply_all(U32x4 a, U32x4 b, F32x16 c, Indices<int, kStep...>) {
  ((c = Element::template multiply<kStep>(a, b, c)), ...);
  return c;
}

}  // namespace flashwave

// Element i of x begins at byte x.begin + i·sx and is wx bytes wide; likewise j of y. They share a byte iff
//   -wx < i·sx - j·sy - (y.begin - x.begin) < wy.
// A depth-first search over the indices, largest stride first, decides whether such i and j exist. Equal strides of x
// and y (the rule when both are cut out of one buffer) count as one index difference, so there are few dimensions, and
// where each stride steps over the smaller ones, at most two or three values of each can matter.
#include "problem/overlap.h"

#include <algorithm>
#include <array>

namespace flashwave {
namespace {

__extension__ typedef __int128 Wide;  // differences of addresses and of products of strides

constexpr int kSearchBudget = 4096;  // steps; packed layouts take fewer than 50

struct Term {
  Wide stride;     // bytes, > 0
  Wide low, high;  // range of the index (difference) that multiplies it
};

Wide floor_div(Wide a, Wide b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

class Search {
 public:
  // Adds the dimensions of a view with the given sign; returns the bytes that are covered without a gap.
  int64_t add(const View& view, int sign) {
    int64_t width = view.element_bytes();
    const int64_t element = width;
    for (int i = 0; i < 4; ++i) {
      if (view.extent[i] <= 1 || view.stride[i] == 0) continue;
      if (view.stride[i] == 1) {
        width = (view.extent[i] + width / element - 1) * element;
      } else {
        add_term(Wide{view.stride[i]} * element, view.extent[i] - 1, sign);
      }
    }
    return width;
  }

  // Is there a sum of terms in [low, high]?
  Overlap run(Wide low, Wide high) {
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& x, const Term& y) { return x.stride > y.stride; });
    reach_low_[count_] = reach_high_[count_] = 0;
    for (int i = count_ - 1; i >= 0; --i) {
      reach_low_[i] = reach_low_[i + 1] + terms_[i].low * terms_[i].stride;
      reach_high_[i] = reach_high_[i + 1] + terms_[i].high * terms_[i].stride;
    }
    return descend(0, low, high);
  }

 private:
  void add_term(Wide stride, int64_t most, int sign) {
    auto* end = terms_.begin() + count_;
    auto* term = std::find_if(terms_.begin(), end, [&](const Term& t) { return t.stride == stride; });
    if (term == end) {
      *term = {stride, 0, 0};
      ++count_;
    }
    (sign > 0 ? term->high : term->low) += sign * Wide{most};
  }

  Overlap descend(int depth, Wide low, Wide high) {
    if (low > reach_high_[depth] || high < reach_low_[depth]) return Overlap::kDisjoint;
    if (depth == count_) return Overlap::kShared;
    const Term& term = terms_[depth];
    const Wide first = std::max(term.low, -floor_div(reach_high_[depth + 1] - low, term.stride));
    const Wide last = std::min(term.high, floor_div(high - reach_low_[depth + 1], term.stride));
    for (Wide index = first; index <= last; ++index) {
      if (++steps_ > kSearchBudget) return Overlap::kUndecided;
      const Overlap below = descend(depth + 1, low - index * term.stride, high - index * term.stride);
      if (below != Overlap::kDisjoint) return below;
    }
    return Overlap::kDisjoint;
  }

  std::array<Term, 8> terms_;
  std::array<Wide, 9> reach_low_, reach_high_;
  int count_ = 0;
  int steps_ = 0;
};

}  // namespace

Overlap overlap_of(const Footprint& x, const Footprint& y) {
  if (x.end <= y.begin || y.end <= x.begin) return Overlap::kDisjoint;
  Search search;
  const int64_t width_x = search.add(*x.view, +1), width_y = search.add(*y.view, -1);
  const Wide distance = Wide{y.begin} - Wide{x.begin};
  return search.run(distance - width_x + 1, distance + width_y - 1);
}

}  // namespace flashwave

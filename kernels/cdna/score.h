// Score modifiers and dropout on a sub-tile of S^T as it comes out of the matrix instructions.
#pragma once

#include "kernels/amd/score.h"
#include "kernels/cdna/isa.h"

namespace flashwave {

// A lane's part of the scores of a sub-tile: register r is key 8(r >> 2) + 4h + (r & 3). Plain: products, scaled in the
// exponent; general: scores in units of log2. Bit r of keep: not dropped.
struct Scores {
  F32x16 s;
  uint32_t keep;
};

template <bool kGeneral>
struct Modifier {
  FW_METHOD Modifier(const Params&, const Sequence&, int, int64_t) {}
  FW_METHOD void apply(const Params&, Scores&, int) const {}
  FW_METHOD float output_factor(const Params&) const { return 1.f; }
};

}  // namespace flashwave

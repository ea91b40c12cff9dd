// Two results of the same queries that become one: the caller's struct copied whole, its rules, and what it amounts to.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "flashwave/flashwave.h"

namespace flashwave {

struct Merging {
  fw_merging m{};

  int64_t rows() const { return m.batch * m.seqlen; }  // of all heads
  bool empty() const { return rows() == 0; }
  double bytes() const;  // both results read, one written
};

// Every rule. The first broken one gives a message that names the argument and the rule.
Status validate(const Merging& merging);

// As of an attention problem: strides that multiply only the index 0 become 0.
void normalize(Merging& merging);

std::string describe(const Merging& merging);  // "b=2 s=128 h=8 d=64 dtype=f32 part=bf16"

}  // namespace flashwave

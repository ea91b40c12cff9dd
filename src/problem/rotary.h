// One rotary embedding of a tensor by itself: the caller's struct copied whole, its rules, and what it amounts to.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "flashwave/flashwave.h"

namespace flashwave {

struct Rotary {
  fw_rotary_embedding r{};

  bool packed() const { return r.cu_seqlens != nullptr; }
  bool in_place() const;  // out is x
  int64_t rows() const { return packed() ? r.total : r.batch * r.seqlen; }
  bool empty() const { return rows() == 0 || r.batch == 0; }
  double bytes() const;  // every row read once and written once
};

// Every rule, those on the values of the index arrays only where the host can read them. The first broken one gives a
// message that names the argument and the rule.
Status validate(const Rotary& rotary, bool host_readable);

// As of an attention problem: strides that multiply only the index 0 become 0.
void normalize(Rotary& rotary);

std::string describe(const Rotary& rotary);  // "b=2 s=128 h=8 d=64 rotary=32 dtype=bf16 ..."

}  // namespace flashwave

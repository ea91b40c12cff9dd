// Every rule a problem must obey. The first broken one gives a message that names the argument and the rule.
#pragma once

#include "base/status.h"
#include "problem/problem.h"

namespace flashwave {

// The rules that look at the structs alone: pointers count only as present or absent. What fw_explain asks.
Status validate_structs(const Problem& problem);

// The values of the index arrays (cu_seqlens, seqused_k, block_table, ...), read here. Needs validate_structs first.
Status validate_indices(const Problem& problem);

// All of them, alignment and overlap of the tensors included.
// host_readable: index arrays (cu_seqlens, seqused_k, block_table, ...) can be read here, so their values are checked.
Status validate(const Problem& problem, bool host_readable);

}  // namespace flashwave

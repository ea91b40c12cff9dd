// Every rule a problem must obey. The first broken one gives a message that names the argument and the rule.
#pragma once

#include "base/status.h"
#include "problem/problem.h"

namespace flashwave {

// host_readable: index arrays (cu_seqlens, seqused_k, block_table, ...) can be read here, so their values are checked.
Status validate(const Problem& problem, bool host_readable);

}  // namespace flashwave

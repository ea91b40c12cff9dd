// Arithmetic and traffic of a problem, from its visible (query, key) pairs.
#pragma once

#include "problem/problem.h"

namespace flashwave {

struct Cost {
  double flops = 0;  // forward 2*(d_qk + d_v) per visible pair and head; backward 2*(3*d_qk + 2*d_v)
  double bytes = 0;  // every input read once, every output written once
};

// host_readable as in validate(); without it ragged batches count their upper bounds.
Cost cost_of(const Problem& problem, bool host_readable);
double flops_of(const Problem& problem, bool host_readable);  // of cost_of

}  // namespace flashwave

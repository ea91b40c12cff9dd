// Rows of the catalog by name, and something to launch them with.
#pragma once

#include <algorithm>
#include <string_view>

#include "catalog/catalog.h"
#include "kernels/abi/params.h"

namespace flashwave {

inline const KernelRow* find_row(std::string_view name) {  // nullptr if this build has none of that name
  const auto rows = catalog();
  const auto found = std::ranges::find_if(rows, [&](const KernelRow& row) { return row.name == name; });
  return found != rows.end() ? &*found : nullptr;
}

inline abi::Params some_params(char* memory) {
  abi::Params p{};
  for (abi::Tensor* t : {&p.q, &p.k, &p.v, &p.o}) *t = {memory, {256 * 128, 128, 128, 1}, abi::kBF16, 0};
  p.batch = p.heads_q = p.heads_k = 1;
  p.seqlen_q = p.seqlen_k = 256;
  p.dim_qk = p.dim_v = 128;
  return p;
}

inline abi::Schedule some_schedule(int64_t tasks) {
  abi::Schedule s{};
  s.splits = 1;
  s.tasks = tasks;
  return s;
}

}  // namespace flashwave

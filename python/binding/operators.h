// What the files with kernels of operators share.
#pragma once

#include <array>
#include <utility>

#include "inputs.h"

namespace flashwave_torch {

// The Python files are of the same version if an operator has as many arguments as its kernel takes.
void expect(uint64_t arguments, uint64_t known);

// A result of an operator that Python implements. Its failure comes back as text, in a tensor of bytes: torch's C ABI
// would print an exception, and lose it.
Tensor result_of(Tensor tensor);

extern const std::array<std::pair<const char*, StableKernel>, 2> kRotaryOperators;

}  // namespace flashwave_torch

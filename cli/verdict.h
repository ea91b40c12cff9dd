// The numeric rule. An output passes when, in this order,
//   1. it was written exactly where it must be, and is NaN, +inf, -inf or finite exactly where the reference is;
//   2. max|out - ref| <= factor * max|naive - ref| + atol, factor 2 forward, 3 for gradients;
//   3. it has the same bits in every repetition (judged by the caller, which runs them).
// ref is the fp64 reference on the same inputs widened to fp32; naive is attention in the case's own type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry.h"
#include "tensors.h"

namespace flashwave::cli {

// kZero, kMinusInfinity: exactly that, in rows of no sequence that are to be filled.
enum class Writing : uint8_t { kMust, kMustNot, kAsReference, kZero, kMinusInfinity };

struct Judgement {
  std::string tensor;
  bool ok = false;
  std::string reason;  // why not ok
  double error = 0, naive_error = 0, bound = 0;
};

struct Rule {
  double factor = 2;
  double atol = 0;
};
// The smallest error worth noticing: 1e-6 * (1 + largest) for F32, `units` in the last place of `largest` for 16-bit
// types; `storage` is the type whose rounding the tensor carries. Half a unit is what an exact result loses when it is
// stored, so less would refuse exact kernels where naive is lucky; a gradient carries the rounding of o on top.
double tolerance_floor(fw_dtype storage, double largest, double units);

double largest_magnitude(const Readback& reference);  // of the finite elements

// Query rows whose contributions add up in one element of d_bias, d_sinks or d_slopes; 1 for other tensors.
double rows_summed(const Geometry& geometry, TensorId id);

// `largest_gradient`: the largest element of the reference's dq, dk and dv; 0 in a forward. Gradients are differences
// of sums, some of them exactly 0 (where one key takes all of a row's softmax, or where a bias adds the same to every
// key), so the floor of those kept in F32 follows the size of what is summed. 16-bit ones are held to their own size.
Rule rule_of(const Geometry& geometry, TensorId id, const Readback& reference, double largest_gradient);

// Per element of the tensor's view.
std::vector<Writing> expected_writing(const Geometry& geometry, TensorId id);

Judgement judge(const std::string& tensor, const Readback& out, const Readback& reference, const Readback& naive,
                const std::vector<Writing>& writing, const Rule& rule);

}  // namespace flashwave::cli

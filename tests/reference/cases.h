// Small problems that together use every feature, and the helpers they are built with.
#pragma once

#include <string>
#include <vector>

#include "tests/reference/oracle.h"

namespace oracle {

enum class Layout { kBshd, kBhsd, kPadded };  // kPadded: BSHD with gaps between all rows

// Random numbers (standard normal, representable in c.type) for q, k, v, d_o, d_lse and k_new, v_new, after the sizes
// and index arrays of the case are set.
void fill(Case& c, uint32_t seed, Layout layout = Layout::kBshd);

// broadcast[x]: axis x of (batch, head, query, key) has stride 0.
void add_bias(Case& c, std::array<bool, 4> broadcast, bool f32 = true);
void add_sinks(Case& c);
void add_slopes(Case& c, bool per_batch);
void add_rotary(Case& c, int64_t dim, bool interleaved, bool f32);

struct NamedCase {
  std::string name;
  Case problem;
};
std::vector<NamedCase> attention_cases(Type type);  // forward and backward
std::vector<NamedCase> append_cases(Type type);     // forward after an append

}  // namespace oracle

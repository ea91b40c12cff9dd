// Valid problems of every kind, backed by real memory, for tests to break one rule at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "problem/problem.h"

namespace flashwave::test {

class Sample {
 public:
  Problem p;

  static Sample dense();     // b=2 sq=4 sk=6 hq=4 hk=2 d=8 bf16, with lse
  static Sample varlen();    // as dense, queries 1 + 4 and keys 6 + 2
  static Sample cached();    // as dense, cache of 3 rows, cache_batch_idx, seqused_k, leftpad_k
  static Sample paged();     // as cached, pages of 4 keys
  static Sample appended();  // as cached, 2 new keys with rotary
  static Sample backward();  // of dense, all gradients wanted, with bias, sinks and slopes
  static Sample varlen_backward();

  Sample(Sample&&) = default;
  Sample& operator=(Sample&&) = default;

  int32_t* indices(std::vector<int32_t> values);
  float* floats(size_t count);
  // A contiguous tensor of its own memory.
  fw_tensor tensor(int64_t a, int64_t b, int64_t c, int64_t d, fw_dtype dtype);

 private:
  Sample() = default;
  std::deque<std::vector<int32_t>> memory_;  // int32 elements: every buffer is aligned to 4
};

struct BrokenRule {
  const char* name;
  Sample (*sample)();
  std::function<void(Sample&)> change;
  std::vector<std::string> message;  // each must occur in the refusal
};
// Checks that the sample is valid before the change and refused after it, with that message.
void expect_refused(const BrokenRule& rule);

}  // namespace flashwave::test

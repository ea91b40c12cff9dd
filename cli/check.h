// Checking one case: run it, judge it, run it again.
#pragma once

#include <string>
#include <vector>

#include "verdict.h"
#include "words.h"

namespace flashwave::cli {

enum class Outcome { kPassed, kFailed, kSkipped };

struct CheckResult {
  Outcome outcome = Outcome::kFailed;
  std::string reason;  // why it failed or was skipped
  std::string kernel;  // what ran
  bool refused_as_expected = false;
  std::vector<Judgement> tensors;
  double seconds = 0;
};

struct CheckSettings {
  fw_device* device = nullptr;
  fw_device* cpu = nullptr;  // where the reference runs
  std::string kernel;        // --kernel: cases it does not take are skipped. kernel= in a case must be taken.
  int64_t threads = 0;
};

CheckResult check_case(const Case& c, const CheckSettings& settings);

}  // namespace flashwave::cli

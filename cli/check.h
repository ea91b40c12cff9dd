// Checking one case: run it, judge it, run it again.
#pragma once

#include <memory>
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
  std::string kernel;  // --kernel: cases it does not take are skipped. kernel= in a case must be taken.
  int64_t threads = 0;
};

class Answers;  // of a case: its data, and what should come out

// Checks one case on devices, one after the other. What all of them should compute is computed once, on `cpu`.
class CaseCheck {
 public:
  CaseCheck(const Case& c, fw_device* cpu, const CheckSettings& settings);
  ~CaseCheck();
  CheckResult on(fw_device* device);

 private:
  CheckResult checked(fw_device* device);

  Case case_;
  CheckSettings settings_;
  fw_device* cpu_;
  std::unique_ptr<Answers> answers_;  // none before the case is known to make sense
};

}  // namespace flashwave::cli

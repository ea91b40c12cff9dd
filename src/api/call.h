// One call's arguments, read from the caller's structs and checked, on their way to a plan.
#pragma once

#include <string>

#include "base/status.h"
#include "device/driver.h"
#include "flashwave/flashwave.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace flashwave::api {

// Where and how a call runs.
struct Execution {
  Device* device = nullptr;
  fw_exec exec{};
  int32_t threads = 1;  // at most this many
  bool steered = true;  // by the environment, at most

  const DeviceInfo& info() const { return device->info(); }
  RunOptions run_options() const {
    return {.stream = exec.stream,
            .workspace = static_cast<char*>(exec.workspace),
            .workspace_size = exec.workspace_size,
            .executor = exec.executor,
            .allocate = exec.allocate,
            .allocate_context = exec.allocate_context};
  }
};

struct Call : Execution {
  Problem problem;

  Op op() const { return problem.backward ? Op::kBackward : Op::kForward; }
};

// Copies the caller's exec, which may be nullptr, checks it, and looks at the environment. execution->device must be
// set.
Status read_exec(const fw_exec* exec, Execution* execution);

// small: work that one thread has done before others are awake.
Status choose_threads(bool small, Execution* execution);

// Which kernel the caller or the environment forces, if any; `name` keeps it.
Status read_plan_options(const Execution& execution, Op op, std::string* name, PlanOptions* options);

// One line on stderr, for FLASH_ATTENTION_DEBUG (debug_wanted()), and exec.report. plan: nullptr if there is nothing to
// do. words: the operation and problem.
void print_debug(const Execution& execution, const std::string& words, const Plan* plan);
void fill_report(const Execution& execution, const Plan* plan);

enum class Check { kStructs, kEverything };  // kStructs: the problem's memory is not looked at

// Copies the caller's structs and checks them. backward: gradients are given. exec may be nullptr.
Status read_call(fw_device* device, const fw_attention* attention, const fw_gradients* gradients, bool backward,
                 const fw_exec* exec, Check check, Call* call);

// A forward or backward from its arguments to the launch.
Status execute(fw_device* device, const fw_attention* attention, const fw_gradients* gradients, bool backward,
               const fw_exec* exec, Check check);

// With the kernel that the caller or the environment forces.
Status plan_call(const Call& call, Reasons reasons, Plan* plan);

// Sets the outputs of a backward that has no query to 0: the gradients of everything that is still there.
Status clear_outputs(const Call& call);

}  // namespace flashwave::api

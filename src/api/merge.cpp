// Two results of the same queries become one.
#include <string>

#include "api/call.h"
#include "api/defaults.h"
#include "api/guard.h"
#include "api/settings.h"
#include "api/structs.h"
#include "problem/merging.h"

namespace flashwave::api {
namespace {

// Rows below this are merged by one thread: waking others takes about as long (0.1 ms on one core).
constexpr double kSingleThreadedBytes = 1 << 20;

Status merge(fw_device* device, const fw_merging* caller, const fw_exec* exec) {
  if (Status status = check_not_null(device, "device"); !status.ok()) return status;
  Execution execution;
  execution.device = device_of(device);
  Merging merging{default_merging()};
  Status status = read_struct("merging", caller, kMergingFirstSize, "call fw_merging_init first", &merging.m);
  if (!status.ok()) return status;
  if (status = read_exec(exec, &execution); !status.ok()) return status;
  if (status = validate(merging); !status.ok()) return status;
  normalize(merging);
  if (status = choose_threads(merging.bytes() < kSingleThreadedBytes, &execution); !status.ok()) return status;

  const std::string words = debug_wanted() ? "merge " + describe(merging) : "";
  if (merging.empty()) {
    if (debug_wanted()) print_debug(execution, words, nullptr);
    fill_report(execution, nullptr);
    return {};
  }
  std::string forced;
  PlanOptions options;
  if (status = read_plan_options(execution, Op::kMerge, &forced, &options); !status.ok()) return status;
  Plan plan;
  if (status = make_plan(merging, execution.info(), options, &plan); !status.ok()) return status;
  if (debug_wanted()) print_debug(execution, words, &plan);
  status = run(*execution.device, merging, plan, execution.run_options());
  if (status.ok()) fill_report(execution, &plan);
  return status;
}

}  // namespace
}  // namespace flashwave::api

fw_status fw_merge(fw_device* device, const fw_merging* merging, const fw_exec* exec) {
  return flashwave::api::guarded([&] { return flashwave::api::merge(device, merging, exec); });
}

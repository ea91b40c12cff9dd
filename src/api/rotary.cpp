// Rotary embedding of a tensor by itself.
#include "problem/rotary.h"

#include <string>

#include "api/call.h"
#include "api/defaults.h"
#include "api/guard.h"
#include "api/settings.h"
#include "api/structs.h"

namespace flashwave::api {
namespace {

// Rows below this are moved by one thread: waking others takes about as long (0.1 ms on one core).
constexpr double kSingleThreadedBytes = 1 << 20;

std::string words_of(const Rotary& rotary) { return "rotary " + describe(rotary); }

Status rotate(fw_device* device, const fw_rotary_embedding* caller, const fw_exec* exec) {
  if (Status status = check_not_null(device, "device"); !status.ok()) return status;
  Execution execution;
  execution.device = device_of(device);
  Rotary rotary{default_rotary()};
  Status status = read_struct("rotary", caller, kRotaryFirstSize, "call fw_rotary_embedding_init first", &rotary.r);
  if (!status.ok()) return status;
  if (status = read_exec(exec, &execution); !status.ok()) return status;
  if (status = validate(rotary, execution.info().host_memory); !status.ok()) return status;
  normalize(rotary);
  if (status = choose_threads(rotary.bytes() < kSingleThreadedBytes, &execution); !status.ok()) return status;

  if (rotary.empty()) {
    if (debug_wanted()) print_debug(execution, words_of(rotary), nullptr);
    fill_report(execution, nullptr);
    return {};
  }
  std::string forced;
  PlanOptions options;
  if (status = read_plan_options(execution, Op::kRotary, &forced, &options); !status.ok()) return status;
  Plan plan;
  if (status = make_plan(rotary, execution.info(), options, &plan); !status.ok()) return status;
  if (debug_wanted()) print_debug(execution, words_of(rotary), &plan);
  status = run(*execution.device, rotary, plan, execution.run_options());
  if (status.ok()) fill_report(execution, &plan);
  return status;
}

}  // namespace
}  // namespace flashwave::api

fw_status fw_rotary(fw_device* device, const fw_rotary_embedding* rotary, const fw_exec* exec) {
  return flashwave::api::guarded([&] { return flashwave::api::rotate(device, rotary, exec); });
}

// The calls that take a problem: forward, backward, workspace, explain, cost.
#include <string>

#include "api/call.h"
#include "api/defaults.h"
#include "api/guard.h"
#include "api/settings.h"
#include "api/structs.h"
#include "problem/cost.h"
#include "problem/validate.h"

namespace flashwave::api {
namespace {

std::string words_of(const Problem& problem) { return (problem.backward ? "bwd " : "fwd ") + describe(problem); }

std::string explain_empty(const Call& call, fw_format format) {
  const std::string op = call.problem.backward ? "backward" : "forward", words = describe(call.problem);
  const std::string& device = call.info().name;
  if (format == FW_JSON) {
    return R"({"status": "ok", "device": ")" + device + R"(", "op": ")" + op + R"(", "problem": ")" + words +
           R"(", "kernel": null, "workspace_bytes": 0, "flops": 0, "bytes": 0, "refused": []})" + "\n";
  }
  return "device     " + device + "\nop         " + op + "\nproblem    " + words +
         "\nkernel     none: the problem is empty, there is nothing to attend\n";
}

}  // namespace

Status execute(fw_device* device, const fw_attention* attention, const fw_gradients* gradients, bool backward,
               const fw_exec* exec, Check check) {
  Call call;
  if (Status status = read_call(device, attention, gradients, backward, exec, check, &call); !status.ok()) {
    return status;
  }
  if (call.problem.empty()) {
    if (call.steered && debug_wanted()) print_debug(call, words_of(call.problem), nullptr);
    fill_report(call, nullptr);
    if (backward) return clear_outputs(call);
    return call.problem.fills_rows() ? run_fill(*call.device, call.problem, call.exec.stream) : Status{};
  }
  Plan plan;
  if (Status status = plan_call(call, Reasons::kNone, &plan); !status.ok()) return status;
  if (call.steered && debug_wanted()) print_debug(call, words_of(call.problem), &plan);
  Status status = run(*call.device, call.problem, plan, call.run_options());
  if (status.ok()) fill_report(call, &plan);
  return status;
}

}  // namespace flashwave::api

using namespace flashwave;
using namespace flashwave::api;

fw_status fw_forward(fw_device* device, const fw_attention* attention, const fw_exec* exec) {
  return guarded([&] { return execute(device, attention, nullptr, false, exec, Check::kEverything); });
}

fw_status fw_backward(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                      const fw_exec* exec) {
  return guarded([&] { return execute(device, attention, gradients, true, exec, Check::kEverything); });
}

fw_status fw_workspace_size(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                            const fw_exec* exec, size_t* bytes) {
  return guarded([&]() -> Status {
    if (Status status = check_not_null(bytes, "bytes"); !status.ok()) return status;
    *bytes = 0;
    Call call;
    Status status = read_call(device, attention, gradients, gradients != nullptr, exec, Check::kStructs, &call);
    if (!status.ok() || call.problem.empty()) return status;
    Plan plan;
    if (status = plan_call(call, Reasons::kNone, &plan); status.ok()) *bytes = plan.workspace_bytes();
    return status;
  });
}

fw_status fw_explain(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                     const fw_exec* exec, fw_format format, char* buffer, size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    if (capacity > 0) {
      if (Status status = check_not_null(buffer, "buffer"); !status.ok()) return status;
      buffer[0] = '\0';
    }
    if (needed != nullptr) *needed = 0;
    if (format != FW_TEXT && format != FW_JSON) {
      return Status::invalid("format must be FW_TEXT or FW_JSON, got " + std::to_string(static_cast<int>(format)));
    }
    Call call;
    if (Status status = read_call(device, attention, gradients, gradients != nullptr, exec, Check::kStructs, &call);
        !status.ok()) {
      return status;
    }
    std::string text;
    if (call.problem.empty()) {
      text = explain_empty(call, format);
    } else {
      // That no kernel takes the problem is an answer, not a failure of this call.
      Plan plan;
      const Status planned = plan_call(call, Reasons::kAll, &plan);
      text = format == FW_JSON ? explain_json(call.problem, call.info(), plan, planned)
                               : explain_text(call.problem, call.info(), plan, planned);
    }
    give_text(text, buffer, capacity, needed);
    return {};
  });
}

fw_status fw_problem_cost(fw_device* device, const fw_attention* attention, const fw_gradients* gradients,
                          fw_cost* cost) {
  return guarded([&]() -> Status {
    if (Status status = check_not_null(cost, "cost"); !status.ok()) return status;
    const uint32_t size = cost->struct_size;
    if (Status status = check_struct_size("cost", size, kCostFirstSize, "set it to sizeof(fw_cost) before the call");
        !status.ok()) {
      return status;
    }
    Call call;
    Status status = read_call(device, attention, gradients, gradients != nullptr, nullptr, Check::kStructs, &call);
    if (!status.ok()) return status;
    const bool readable = call.info().host_memory;
    if (readable) {
      if (status = validate_indices(call.problem); !status.ok()) return status;
    }
    const Cost computed = cost_of(call.problem, readable);
    fw_cost filled{};
    filled.flops = computed.flops;
    filled.bytes = computed.bytes;
    write_struct(filled, size, cost);
    return {};
  });
}

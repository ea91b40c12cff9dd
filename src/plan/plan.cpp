#include "plan/plan.h"

#include <algorithm>

namespace flashwave {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, and the widest vector a kernel loads
size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t rotated_query_bytes(const Problem& problem) {
  const fw_attention& a = problem.a;
  if (a.rotary_cos.data == nullptr) return 0;
  const int64_t rows = problem.varlen_q() ? a.total_q : a.batch * a.seqlen_q;
  const int64_t element = a.q.dtype == FW_F32 ? 4 : 2;
  return aligned(static_cast<size_t>(rows * a.heads_q * a.dim_qk * element));
}

// The first that accompanies others by doing this.
const KernelRow* find_companion(Op op, const Problem& problem, const DeviceInfo& device) {
  for (const KernelRow& row : catalog_of(row_kind(device))) {
    if (row.op == op && !row.only_forced && !why_not(row, problem, device).refuses()) return &row;
  }
  return nullptr;
}

// As bf16, where a kernel that multiplies takes that.
bool plan_as_bf16(const Problem& problem, const DeviceInfo& device, const PlanOptions& options, Plan* plan) {
  if (!problem.bf16_products || options.force_kernel != nullptr || !can_be_bf16(problem)) return false;
  const Bf16Problem converted = as_bf16(problem, nullptr);
  const auto rows = catalog_of(row_kind(device));
  const auto takes = [&](const KernelRow& row) {
    return row.op == Op::kConvert && !why_not(row, converted.problem, device).refuses();
  };
  const auto convert = std::ranges::find_if(rows, takes);
  if (convert == rows.end()) return false;
  PlanOptions fast = options;
  fast.slow_path = false;
  if (!make_plan(converted.problem, device, fast, plan).ok()) return false;
  plan->convert = &*convert;
  plan->copies_bytes = converted.bytes;
  return true;
}

// Kernels of GPUs write their results; those that are to be added to what is there go to the workspace first.
Status plan_merge(const Problem& problem, const DeviceInfo& device, Plan* plan) {
  if (!problem.accumulate() || plan->selection.row->threads == 0) return {};
  if (problem.backward) return {FW_UNSUPPORTED, "no kernel of " + device.name + " adds to gradients (FW_ACCUMULATE)"};
  plan->merge = find_companion(Op::kMerge, problem, device);
  if (plan->merge == nullptr) return {FW_UNSUPPORTED, "no kernel of " + device.name + " merges results"};
  const fw_attention& a = problem.a;
  const int64_t rows = (problem.varlen_q() ? a.total_q : a.batch * a.seqlen_q) * a.heads_q;
  plan->part_o_bytes = aligned(static_cast<size_t>(rows * a.dim_v * 4));
  plan->part_lse_bytes = aligned(static_cast<size_t>(rows * 4));
  return {};
}

std::string unsupported(const Selection& selection, const DeviceInfo& device, bool forced) {
  const auto sentence = [](const Refusal& r) { return r.row ? r.row->name + (" " + r.reason) : r.reason; };
  if (forced) return "the forced kernel cannot run: " + sentence(selection.refused.front());
  if (selection.refused.empty()) return "there are no kernels for " + device.name;
  std::string message = "no kernel of " + device.name + " takes this problem: ";
  for (const Refusal& r : selection.refused) message += (&r == &selection.refused.front() ? "" : "; ") + sentence(r);
  return message;
}

template <class AnyProblem>
Status choose(const AnyProblem& problem, const DeviceInfo& device, const PlanOptions& options, Plan* plan) {
  *plan = Plan{};
  if (!device.code.any()) {
    return {FW_UNSUPPORTED, "this build carries no machine code for " + device.name +
                                (device.arch.empty() ? "" : " (" + device.arch + ")") +
                                ": it was left out, or not among the targets of the build"};
  }
  plan->selection = select(problem, device, options);
  if (plan->selection.row != nullptr) return {};
  if (!options.slow_path && options.reasons != Reasons::kAll && options.force_kernel == nullptr) {
    // An answer that such a caller expects, and not to be delayed by sentences nobody reads.
    return {FW_UNSUPPORTED, "no kernel of " + device.name +
                                " but, at most, the slow path takes this problem, and FW_NO_SLOW_PATH excludes that; "
                                "fw_explain says why"};
  }
  if (options.reasons != Reasons::kAll) {
    PlanOptions telling = options;
    telling.reasons = Reasons::kAll;
    plan->selection = select(problem, device, telling);
  }
  return {FW_UNSUPPORTED, unsupported(plan->selection, device, options.force_kernel != nullptr)};
}

int32_t threads_for(const abi::Schedule& schedule, const PlanOptions& options) {
  return static_cast<int32_t>(std::clamp<int64_t>(schedule.tasks, 1, std::max<int32_t>(options.threads, 1)));
}

}  // namespace

abi::Schedule schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row, int32_t threads) {
  return row.threads > 0 ? gpu_schedule(problem, device, row) : cpu_schedule(problem, device, row, threads);
}

Status find_fill(const Problem& problem, const DeviceInfo& device, const KernelRow** row) {
  *row = find_companion(Op::kFill, problem, device);
  return *row != nullptr ? Status{}
                         : Status{FW_UNSUPPORTED, "no kernel of " + device.name + " fills rows (FW_FILL_UNUSED)"};
}

Status make_plan(const Problem& problem, const DeviceInfo& device, const PlanOptions& options, Plan* plan) {
  if (plan_as_bf16(problem, device, options, plan)) return {};
  if (Status status = choose(problem, device, options, plan); !status.ok()) return status;
  if (problem.fills_rows()) {
    if (Status status = find_fill(problem, device, &plan->fill); !status.ok()) return status;
  }
  if (problem.a.seqlen_new > 0) {
    plan->append = find_companion(Op::kAppend, problem, device);
    if (plan->append == nullptr) {
      return {FW_UNSUPPORTED, "no kernel of " + device.name + " appends k_new and v_new to this cache"};
    }
    plan->q_rotated_bytes = rotated_query_bytes(problem);
  }
  if (Status status = plan_merge(problem, device, plan); !status.ok()) return status;
  plan->schedule = schedule(problem, device, *plan->selection.row, options.threads);
  plan->splits = reported_splits(problem, *plan->selection.row, plan->schedule);
  Status status = steps_before(problem, device, *plan->selection.row, plan->schedule, &plan->before);
  if (status.ok()) status = steps_after(problem, device, *plan->selection.row, plan->schedule, &plan->after);
  if (!status.ok()) return status;
  plan->threads = threads_for(plan->schedule, options);
  plan->kernel_bytes = aligned(static_cast<size_t>(plan->schedule.workspace_bytes));
  plan->scratch_bytes = aligned(static_cast<size_t>(plan->threads) * static_cast<size_t>(plan->schedule.scratch_bytes));
  return {};
}

Status make_plan(const Rotary& rotary, const DeviceInfo& device, const PlanOptions& options, Plan* plan) {
  if (Status status = choose(rotary, device, options, plan); !status.ok()) return status;
  plan->schedule = schedule(rotary);
  plan->threads = threads_for(plan->schedule, options);
  return {};
}

Status make_plan(const Merging& merging, const DeviceInfo& device, const PlanOptions& options, Plan* plan) {
  if (Status status = choose(merging, device, options, plan); !status.ok()) return status;
  plan->schedule = schedule(merging, *plan->selection.row);
  plan->threads = threads_for(plan->schedule, options);
  return {};
}

}  // namespace flashwave

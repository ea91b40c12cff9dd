// Carries a plan out: fills the parameters every kernel receives, finds the memory, launches.
#include <algorithm>
#include <cstdint>

#include "device/planned_device.h"
#include "kernels/abi/partials.h"
#include "plan/plan.h"

namespace flashwave {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 64;

// A tensor that runs along the queries, with the heads of a row side by side and the rows one after the other.
abi::Tensor dense_rows(const Problem& problem, int64_t dim, int32_t dtype, char* data) {
  const fw_attention& a = problem.a;
  const int64_t row = a.heads_q * dim;
  return {data, {problem.varlen_q() ? 0 : a.seqlen_q * row, row, dim, 1}, dtype, 0};
}

// The memory of one call: the caller's, or lent by the device until the end of the scope.
class Workspace {
 public:
  explicit Workspace(Device& device) : device_(device) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (lent_ != nullptr) device_.release_workspace(lent_);
  }

  Status acquire(size_t needed, const RunOptions& options) {
    if (needed == 0) return {};
    if (options.workspace == nullptr && options.allocate != nullptr) {
      data_ = static_cast<char*>(options.allocate(options.allocate_context, needed));
      if (data_ == nullptr) return no_memory(needed);
      return reinterpret_cast<uintptr_t>(data_) % kWorkspaceAlignment == 0
                 ? Status{}
                 : Status::invalid("exec.allocate must return memory that is aligned to 64 bytes");
    }
    if (options.workspace == nullptr) {
      data_ = lent_ = device_.cached_workspace(needed);
      return data_ != nullptr ? Status{} : no_memory(needed);
    }
    if (options.workspace_size < needed) {
      return {FW_WORKSPACE_TOO_SMALL, "workspace_size: this call needs " + std::to_string(needed) + " bytes, got " +
                                          std::to_string(options.workspace_size)};
    }
    if (reinterpret_cast<uintptr_t>(options.workspace) % kWorkspaceAlignment != 0) {
      return Status::invalid("workspace must be aligned to 64 bytes");
    }
    data_ = options.workspace;
    return {};
  }
  char* data() const { return data_; }

 private:
  Status no_memory(size_t needed) const {
    return {FW_OUT_OF_MEMORY,
            device_.info().name + " cannot allocate " + std::to_string(needed) + " bytes of workspace"};
  }

  Device& device_;
  char* data_ = nullptr;
  char* lent_ = nullptr;
};

Status launch(Device& device, const KernelRow& row, const abi::Params& params, const abi::Schedule& schedule,
              LaunchOptions options) {
  options.early = (row.needs & kStartsEarly) != 0 && schedule.zeroed_bytes == 0;  // else it follows what clears them
  if ((row.needs & (kNeedsTensorMaps | kNeedsGradientMaps)) == 0) return device.launch(row, params, schedule, options);
  const TensorMapDescriptions maps = describe_tensor_maps(row, params);
  options.tensor_maps = maps.used();
  return device.launch(row, params, schedule, options);
}

LaunchOptions launch_options(const Plan& plan, const RunOptions& options) {
  LaunchOptions how;
  how.stream = options.stream;
  how.threads = plan.threads;
  how.executor = options.executor;
  return how;
}

}  // namespace

namespace {

// Of the tensors that belong to the queries a backward only writes dq.
Status fill_rows(Device& device, const Problem& problem, const KernelRow& row, const LaunchOptions& how) {
  abi::Params params = params_of(problem);
  if (problem.backward) params.o.data = params.lse.data = nullptr;
  return launch(device, row, params, fill_schedule(device.info(), row), how);
}

// memory: the workspace behind the copies.
Status run_kernels(Device& device, const Problem& problem, const Plan& plan, char* memory, LaunchOptions how) {
  abi::Params params = params_of(problem);
  if (params.dropout_state != nullptr && device.info().host_memory) {  // kernels of CPUs have the numbers by value
    params.dropout_seed = params.dropout_state[0], params.dropout_offset = params.dropout_state[1];
  }

  if (plan.append != nullptr) {
    if (plan.q_rotated_bytes > 0) {
      params.q_rotated = dense_rows(problem, problem.a.dim_qk, problem.a.q.dtype, memory);
      params.q_rotated.most = params.q.most;
    }
    const abi::Schedule schedule = append_schedule(problem, *plan.append);
    if (Status status = launch(device, *plan.append, params, schedule, how); !status.ok()) return status;
    if (plan.q_rotated_bytes > 0) params.q = params.q_rotated;
  }

  char* at = memory + plan.q_rotated_bytes;
  abi::Params merging = params;
  if (plan.merge != nullptr) {
    params.o = dense_rows(problem, problem.a.dim_v, abi::kF32, at);
    params.lse = dense_rows(problem, 1, abi::kF32, at + plan.part_o_bytes);
    merging.d_o = params.o, merging.d_lse = params.lse;
    at += plan.part_o_bytes + plan.part_lse_bytes;
  }
  if (plan.kernel_bytes > 0) how.workspace = at;
  if (plan.scratch_bytes > 0) how.scratch = at + plan.kernel_bytes;
  for (const Step& step : plan.before) {
    if (Status status = launch(device, *step.row, params, step.schedule, how); !status.ok()) return status;
  }
  if (Status status = launch(device, *plan.selection.row, params, plan.schedule, how); !status.ok()) {
    return status;
  }
  for (const Step& step : plan.after) {
    if (Status status = launch(device, *step.row, params, step.schedule, how); !status.ok()) return status;
  }
  if (plan.merge == nullptr) return {};
  abi::Schedule schedule{};
  schedule.tasks = abi::combine_tasks(problem.a.batch * problem.a.heads_q * problem.a.seqlen_q);
  return launch(device, *plan.merge, merging, schedule, how);
}

Status convert(Device& device, const Problem& problem, const KernelRow& row, const std::vector<Conversion>& all,
               const LaunchOptions& how) {
  for (const Conversion& one : all) {
    const abi::Schedule cut = schedule(problem, one);
    if (cut.tasks == 0) continue;
    if (Status status = launch(device, row, params_of(problem, one), cut, how); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Status run(Device& device, const Problem& problem, const Plan& plan, const RunOptions& options) {
  if (device.info().absent) return nothing_runs_on(device.info());
  Workspace workspace(device);
  if (Status status = workspace.acquire(plan.workspace_bytes(), options); !status.ok()) return status;
  const LaunchOptions how = launch_options(plan, options);
  if (plan.fill != nullptr) {
    if (Status status = fill_rows(device, problem, *plan.fill, how); !status.ok()) return status;
  }
  if (plan.convert == nullptr) return run_kernels(device, problem, plan, workspace.data(), how);
  const Bf16Problem converted = as_bf16(problem, workspace.data());
  Status status = convert(device, problem, *plan.convert, converted.before, how);
  if (status.ok()) {
    status = run_kernels(device, converted.problem, plan, workspace.data() + plan.copies_bytes, how);
  }
  if (status.ok()) status = convert(device, problem, *plan.convert, converted.after, how);
  return status;
}

Status run_fill(Device& device, const Problem& problem, void* stream) {
  if (device.info().absent) return nothing_runs_on(device.info());
  const KernelRow* row = nullptr;
  if (Status status = find_fill(problem, device.info(), &row); !status.ok()) return status;
  LaunchOptions how;
  how.stream = stream;
  return fill_rows(device, problem, *row, how);
}

Status run(Device& device, const Merging& merging, const Plan& plan, const RunOptions& options) {
  return launch(device, *plan.selection.row, params_of(merging), plan.schedule, launch_options(plan, options));
}

Status run(Device& device, const Rotary& rotary, const Plan& plan, const RunOptions& options) {
  return launch(device, *plan.selection.row, params_of(rotary), plan.schedule, launch_options(plan, options));
}

}  // namespace flashwave

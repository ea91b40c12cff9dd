#include "api/call.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <list>
#include <string>
#include <vector>

#include "api/defaults.h"
#include "api/guard.h"
#include "api/settings.h"
#include "api/structs.h"
#include "problem/cost.h"
#include "problem/validate.h"
#include "problem/views.h"

namespace flashwave::api {
namespace {

// Work below this is done by one thread: waking others takes about as long (0.2 ms on one core).
constexpr double kSingleThreadedFlops = 2e6;

constexpr size_t kZerosBytes = 64 * 1024;

Status clear_view(const Call& call, const View& view, const std::vector<char>& zeros) {
  // The inner dimensions that lie without a gap are one run; the others are walked.
  std::array<int, 4> order = {0, 1, 2, 3};
  std::sort(order.begin(), order.end(), [&](int x, int y) {
    const bool single_x = view.extent[x] == 1, single_y = view.extent[y] == 1;
    if (single_x || single_y) return single_x && !single_y;
    return view.stride[x] < view.stride[y];
  });
  int64_t run = 1;
  std::array<int64_t, 4> count = view.extent;
  for (const int i : order) {
    if (count[i] > 1 && view.stride[i] != run) break;
    run *= count[i];
    count[i] = 1;
  }
  const int64_t element = view.element_bytes();
  auto* base = static_cast<char*>(const_cast<void*>(view.data));
  for (int64_t i = 0; i < count[0]; ++i) {
    for (int64_t j = 0; j < count[1]; ++j) {
      for (int64_t k = 0; k < count[2]; ++k) {
        for (int64_t l = 0; l < count[3]; ++l) {
          char* to =
              base + (i * view.stride[0] + j * view.stride[1] + k * view.stride[2] + l * view.stride[3]) * element;
          for (int64_t left = run * element; left > 0;) {
            const size_t bytes = std::min(static_cast<size_t>(left), zeros.size());
            Status status = call.device->copy(to, zeros.data(), bytes, FW_HOST_TO_DEVICE, call.exec.stream);
            if (!status.ok()) return status;
            to += bytes, left -= static_cast<int64_t>(bytes);
          }
        }
      }
    }
  }
  return {};
}

// Reads the index arrays from the GPU's memory, and waits for that.
Status check_indices_of_gpu(const Call& call) {
  Problem problem = call.problem;
  fw_attention& a = problem.a;
  std::list<std::vector<int32_t>> read;
  const Views views(call.problem);
  for (const View& view : views.all()) {
    if (view.element != Element::kInt32 || !view.present()) continue;
    std::vector<int32_t>& copy = read.emplace_back((view.extent[0] - 1) * view.stride[0] + view.extent[1]);
    const Status status =
        call.device->copy(copy.data(), view.data, copy.size() * sizeof(int32_t), FW_DEVICE_TO_HOST, call.exec.stream);
    if (!status.ok()) return status;
    for (const int32_t** array :
         {&a.cu_seqlens_q, &a.cu_seqlens_k, &a.seqused_k, &a.leftpad_k, &a.cache_batch_idx, &a.block_table}) {
      if (*array == view.data) *array = copy.data();
    }
  }
  if (const Status status = call.device->synchronize(call.exec.stream); !status.ok()) return status;
  return validate_indices(problem);
}

}  // namespace

Status read_exec(const fw_exec* exec, Execution* execution) {
  fw_exec* copy = &execution->exec;
  *copy = default_exec();
  execution->steered = environment_steers();
  if (exec == nullptr) return {};
  if (Status status = read_struct("exec", exec, kExecFirstSize, "call fw_exec_init first", copy); !status.ok()) {
    return status;
  }
  if (copy->num_threads < 0) {
    return Status::invalid("exec.num_threads must be at least 0 (0: the default), got " +
                           std::to_string(copy->num_threads));
  }
  if (execution->info().kind == "cpu" && copy->stream != nullptr) {
    return Status::invalid("exec.stream must be NULL on the CPU, which has no streams");
  }
  if (copy->workspace == nullptr && copy->workspace_size > 0) {
    return Status::invalid("exec.workspace must not be NULL with exec.workspace_size " +
                           std::to_string(copy->workspace_size));
  }
  if (reinterpret_cast<uintptr_t>(copy->workspace) % 64 != 0) {
    return Status::invalid("exec.workspace must be aligned to 64 bytes");
  }
  if ((copy->flags & ~uint32_t{FW_ALL_EXEC_FLAGS}) != 0) {
    return Status::invalid("exec.flags has unknown bits, got " + std::to_string(copy->flags));
  }
  if (copy->reserved != 0) return Status::invalid("exec.reserved must be 0, got " + std::to_string(copy->reserved));
  if (copy->executor != nullptr && copy->executor->run == nullptr) {
    return Status::invalid("exec.executor.run must not be NULL");
  }
  if (copy->report != nullptr) {
    return check_struct_size("exec.report", copy->report->struct_size, kReportFirstSize,
                             "set it to sizeof(fw_report) before the call");
  }
  return {};
}

Status choose_threads(bool small, Execution* execution) {
  if (execution->info().kind != "cpu") {  // asking for the default takes system calls
    execution->threads = 1;
    return {};
  }
  execution->threads = std::min(execution->exec.num_threads, kMostThreads);
  if (execution->threads == 0) {
    if (Status status = default_threads(&execution->threads); !status.ok()) return status;
  }
  if (small) execution->threads = 1;
  return {};
}

Status read_plan_options(const Execution& execution, Op op, std::string* name, PlanOptions* options) {
  options->threads = execution.threads;
  options->slow_path = (execution.exec.flags & FW_NO_SLOW_PATH) == 0;
  options->reasons = Reasons::kNone;
  if (execution.exec.force_kernel != nullptr) {
    *name = execution.exec.force_kernel;
  } else if (execution.steered) {
    if (Status status = forced_kernel(op, name); !status.ok()) return status;
  }
  const bool choose = execution.exec.force_kernel == nullptr && name->empty();
  options->force_kernel = choose ? nullptr : name->c_str();
  return {};
}

void print_debug(const Execution& execution, const std::string& words, const Plan* plan) {
  std::string line = "flashwave: " + words + " | device=" + execution.info().name;
  if (plan != nullptr) {
    const KernelRow& row = *plan->selection.row;
    line += std::string(" kernel=") + row.name + " tile=" + std::to_string(row.tile_q) + "x" +
            std::to_string(row.tile_k) + " splits=" + std::to_string(plan->splits) +
            " threads=" + std::to_string(plan->threads) + " workspace=" + std::to_string(plan->workspace_bytes());
  } else {
    line += " kernel=none (empty problem)";
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // one write: lines of several threads do not mix
}

void fill_report(const Execution& execution, const Plan* plan) {
  fw_report* caller = execution.exec.report;
  if (caller == nullptr) return;
  fw_report filled{};
  put(execution.info().name, filled.device);
  if (plan != nullptr) {
    const KernelRow& row = *plan->selection.row;
    put(row.name, filled.kernel);
    filled.tile_q = row.tile_q;
    filled.tile_k = row.tile_k;
    filled.splits = plan->splits;
    filled.threads = plan->threads;
    filled.workspace_size = plan->workspace_bytes();
  }
  write_struct(filled, caller->struct_size, caller);
}

Status read_call(fw_device* device, const fw_attention* attention, const fw_gradients* gradients, bool backward,
                 const fw_exec* exec, Check check, Call* call) {
  if (Status status = check_not_null(device, "device"); !status.ok()) return status;
  call->device = device_of(device);
  Problem& problem = call->problem;
  problem.backward = backward;
  problem.a = default_attention();
  Status status = read_struct("attention", attention, kAttentionFirstSize, "call fw_attention_init first", &problem.a);
  if (!status.ok()) return status;
  if (backward) {
    problem.g = default_gradients();
    status = read_struct("gradients", gradients, kGradientsFirstSize, "call fw_gradients_init first", &problem.g);
    if (!status.ok()) return status;
  }
  if (status = read_exec(exec, call); !status.ok()) return status;
  status = check == Check::kStructs ? validate_structs(problem) : validate(problem, call->info().host_memory);
  if (!status.ok()) return status;
  if (check == Check::kEverything && !call->info().host_memory && !problem.empty() && call->steered &&
      index_checks_wanted()) {
    if (status = check_indices_of_gpu(*call); !status.ok()) return status;
  }
  normalize(problem);
  if (call->steered) {
    if (deterministic_wanted()) problem.a.flags |= FW_DETERMINISTIC;
    const bool on_amd = row_kind(call->info()) == "hip";
    if (fast_rounding_wanted(on_amd)) problem.a.flags |= FW_FAST_ROUNDING;
    problem.bf16_products = bf16_products_wanted(on_amd);
  }
  // From the upper bounds of ragged batches, so that fw_workspace_size, which reads no memory, agrees with the call.
  return choose_threads(flops_of(problem, false) < kSingleThreadedFlops, call);
}

Status plan_call(const Call& call, Reasons reasons, Plan* plan) {
  std::string forced;
  PlanOptions options;
  if (Status status = read_plan_options(call, call.op(), &forced, &options); !status.ok()) return status;
  options.reasons = reasons;
  if (Status status = make_plan(call.problem, call.info(), options, plan); !status.ok()) return status;
  const uint32_t refused = call.device->refused(plan->selection.row->isa);
  if (refused == kIsaNone) return {};
  DeviceInfo rest = call.info();
  rest.isa &= ~refused;
  rest.refused_isa |= refused;
  return make_plan(call.problem, rest, options, plan);
}

Status clear_outputs(const Call& call) {
  const std::vector<char> zeros(kZerosBytes);
  bool cleared = false;
  const Views views(call.problem);
  for (const View& view : views.all()) {
    if (!view.written || !view.present()) continue;
    if (Status status = clear_view(call, view, zeros); !status.ok()) return status;
    cleared = true;
  }
  // The copies read from this function's memory.
  return cleared ? call.device->synchronize(call.exec.stream) : Status{};
}

}  // namespace flashwave::api

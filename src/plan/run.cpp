// Carries a plan out: fills the parameters every kernel receives, finds the memory, launches.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "plan/plan.h"

namespace flashwave {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 64;

static_assert(sizeof(abi::Tensor) == sizeof(fw_tensor));
static_assert(offsetof(abi::Tensor, stride) == offsetof(fw_tensor, stride));
static_assert(offsetof(abi::Tensor, dtype) == offsetof(fw_tensor, dtype));
abi::Tensor tensor(const fw_tensor& t) { return std::bit_cast<abi::Tensor>(t); }

int64_t window(int64_t limit) { return limit < 0 ? abi::kNoWindow : std::min(limit, abi::kNoWindow); }

abi::Params params_of(const Problem& problem) {
  const fw_attention& a = problem.a;
  const fw_gradients& g = problem.g;
  abi::Params p{};
  p.q = tensor(a.q), p.k = tensor(a.k), p.v = tensor(a.v), p.o = tensor(a.o), p.lse = tensor(a.lse);
  p.bias = tensor(a.bias), p.probs = tensor(a.probs);
  p.d_o = tensor(g.d_o), p.d_lse = tensor(g.d_lse);
  p.dq = tensor(g.dq), p.dk = tensor(g.dk), p.dv = tensor(g.dv), p.d_bias = tensor(g.d_bias);
  p.d_sinks = g.d_sinks, p.d_slopes = g.d_slopes;

  p.cu_seqlens_q = a.cu_seqlens_q, p.cu_seqlens_k = a.cu_seqlens_k;
  p.seqused_k = a.seqused_k, p.leftpad_k = a.leftpad_k;
  p.cache_batch_idx = a.cache_batch_idx;
  p.block_table = a.block_table, p.block_table_stride = a.block_table_stride, p.page_size = a.page_size;
  p.alibi_slopes = a.alibi_slopes, p.alibi_batch_stride = a.alibi_batch_stride;
  p.sinks = a.sinks;
  p.seqlen_new = a.seqlen_new;

  p.window_left = window(a.window_left);
  p.window_right = problem.causal() ? 0 : window(a.window_right);

  p.k_new = tensor(a.k_new), p.v_new = tensor(a.v_new);
  p.rotary_cos = tensor(a.rotary_cos), p.rotary_sin = tensor(a.rotary_sin);
  p.rotary_dim = a.rotary_dim;
  p.rotary_interleaved = (a.flags & FW_ROTARY_INTERLEAVED) != 0;
  p.rotary_per_row = problem.causal() || a.window_left >= 0 || a.window_right >= 0;

  p.batch = static_cast<int32_t>(a.batch);
  p.heads_q = static_cast<int32_t>(a.heads_q), p.heads_k = static_cast<int32_t>(a.heads_k);
  p.seqlen_q = static_cast<int32_t>(a.seqlen_q), p.seqlen_k = static_cast<int32_t>(a.seqlen_k);
  p.dim_qk = static_cast<int32_t>(a.dim_qk), p.dim_v = static_cast<int32_t>(a.dim_v);

  p.softmax_scale = problem.scale();
  p.softcap = a.softcap;
  p.dropout_p = a.dropout_p;
  p.dropout_threshold = static_cast<uint32_t>(std::lround(static_cast<double>(a.dropout_p) * 65536.0));
  p.dropout_seed = a.dropout_seed, p.dropout_offset = a.dropout_offset;
  return p;
}

abi::Params params_of(const Rotary& rotary) {
  const fw_rotary_embedding& r = rotary.r;
  abi::Params p{};
  p.q = tensor(r.x), p.q_rotated = tensor(r.out);
  p.rotary_cos = tensor(r.cos), p.rotary_sin = tensor(r.sin);
  p.rotary_dim = r.rotary_dim;
  p.rotary_offset = r.seqlen_offset;
  p.rotary_interleaved = (r.flags & FW_ROTARY_INTERLEAVED) != 0;
  p.rotary_conjugate = (r.flags & FW_ROTARY_CONJUGATE) != 0;
  p.rotary_per_row = 1;
  p.cu_seqlens_q = r.cu_seqlens, p.seqused_k = r.seqlen_offsets;
  p.batch = static_cast<int32_t>(r.batch), p.seqlen_q = static_cast<int32_t>(r.seqlen);
  p.heads_q = static_cast<int32_t>(r.heads), p.dim_qk = static_cast<int32_t>(r.dim);
  return p;
}

// q's shape with the heads of a row side by side and the rows one after the other.
abi::Tensor dense_queries(const Problem& problem, char* data) {
  const fw_attention& a = problem.a;
  const int64_t row = a.heads_q * a.dim_qk;
  return {data, {problem.varlen_q() ? 0 : a.seqlen_q * row, row, a.dim_qk, 1}, a.q.dtype, 0};
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
    if (options.workspace == nullptr) {
      data_ = lent_ = device_.cached_workspace(needed);
      if (data_ != nullptr) return {};
      return {FW_OUT_OF_MEMORY,
              device_.info().name + " cannot allocate " + std::to_string(needed) + " bytes of workspace"};
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
  Device& device_;
  char* data_ = nullptr;
  char* lent_ = nullptr;
};

}  // namespace

Status run(Device& device, const Problem& problem, const Plan& plan, const RunOptions& options) {
  Workspace workspace(device);
  if (Status status = workspace.acquire(plan.workspace_bytes(), options); !status.ok()) return status;

  abi::Params params = params_of(problem);
  LaunchOptions launch;
  launch.stream = options.stream;
  launch.threads = plan.threads;
  launch.executor = options.executor;

  if (plan.append != nullptr) {
    if (plan.q_rotated_bytes > 0) params.q_rotated = dense_queries(problem, workspace.data());
    const abi::Schedule schedule = append_schedule(problem, *plan.append);
    if (Status status = device.launch(plan.append->name, params, schedule, launch); !status.ok()) return status;
    if (plan.q_rotated_bytes > 0) params.q = params.q_rotated;
  }

  if (plan.shared_bytes > 0) launch.shared = workspace.data() + plan.q_rotated_bytes;
  if (plan.scratch_bytes > 0) launch.scratch = workspace.data() + plan.q_rotated_bytes + plan.shared_bytes;
  if (Status status = device.launch(plan.selection.row->name, params, plan.schedule, launch); !status.ok()) {
    return status;
  }
  for (const Step& step : plan.after) {
    if (Status status = device.launch(step.row->name, params, step.schedule, launch); !status.ok()) return status;
  }
  return {};
}

Status run(Device& device, const Rotary& rotary, const Plan& plan, const RunOptions& options) {
  LaunchOptions launch;
  launch.stream = options.stream;
  launch.threads = plan.threads;
  launch.executor = options.executor;
  return device.launch(plan.selection.row->name, params_of(rotary), plan.schedule, launch);
}

}  // namespace flashwave

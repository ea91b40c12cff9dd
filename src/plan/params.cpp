// What every kernel receives, from a validated problem.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "plan/plan.h"

namespace flashwave {
namespace {

static_assert(sizeof(abi::Tensor) == sizeof(fw_tensor));
static_assert(offsetof(abi::Tensor, stride) == offsetof(fw_tensor, stride));
static_assert(offsetof(abi::Tensor, dtype) == offsetof(fw_tensor, dtype));
static_assert(offsetof(abi::Tensor, most) == offsetof(fw_tensor, reserved));
abi::Tensor tensor(const fw_tensor& t) { return std::bit_cast<abi::Tensor>(t); }

int64_t window(int64_t limit) { return limit < 0 ? abi::kNoWindow : std::min(limit, abi::kNoWindow); }

int32_t most_of(int64_t extent) { return static_cast<int32_t>(std::clamp<int64_t>(extent, 0, INT32_MAX)); }

}  // namespace

abi::Params params_of(const Problem& problem) {
  const fw_attention& a = problem.a;
  const fw_gradients& g = problem.g;
  abi::Params p{};
  p.q = tensor(a.q), p.k = tensor(a.k), p.v = tensor(a.v), p.o = tensor(a.o), p.lse = tensor(a.lse);
  p.bias = tensor(a.bias), p.probs = tensor(a.probs);
  p.d_o = tensor(g.d_o), p.d_lse = tensor(g.d_lse);
  p.dq = tensor(g.dq), p.dk = tensor(g.dk), p.dv = tensor(g.dv), p.d_bias = tensor(g.d_bias);
  p.d_sinks = g.d_sinks, p.d_slopes = g.d_slopes;

  // What the numbers in these arrays may say.
  p.q.most = most_of(a.total_q);
  p.k.most = most_of(problem.varlen_k() && !problem.paged() ? a.total_k : a.batch_k > 0 ? a.batch_k - 1 : a.batch - 1);
  p.v.most = p.k.most;
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
  p.rotary_cos.most = most_of(a.rotary_seqlen - 1);
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
  if (a.dropout_p > 0) p.dropout_state = a.dropout_state;

  p.positions = problem.placed();
  p.position_shift = problem.position_shift();
  p.position_q = static_cast<uint32_t>(a.position_q), p.position_k = static_cast<uint32_t>(a.position_k);
  p.dropout_first = static_cast<uint32_t>(a.dropout_first);
  p.dropout_heads = static_cast<uint32_t>(a.dropout_heads != 0 ? a.dropout_heads : a.heads_q);
  p.accumulate = problem.accumulate();
  return p;
}

abi::Params params_of(const Problem& problem, const Conversion& conversion) {
  abi::Params p = params_of(problem);
  p.k_new = tensor(conversion.from), p.v_new = tensor(conversion.to);
  return p;
}

abi::Params params_of(const Merging& merging) {
  const fw_merging& m = merging.m;
  abi::Params p{};
  p.o = tensor(m.o), p.lse = tensor(m.lse);
  p.d_o = tensor(m.o_part), p.d_lse = tensor(m.lse_part);
  p.batch = static_cast<int32_t>(m.batch), p.seqlen_q = static_cast<int32_t>(m.seqlen);
  p.heads_q = p.heads_k = static_cast<int32_t>(m.heads);
  p.dim_qk = p.dim_v = static_cast<int32_t>(m.dim);
  return p;
}

abi::Params params_of(const Rotary& rotary) {
  const fw_rotary_embedding& r = rotary.r;
  abi::Params p{};
  p.q = tensor(r.x), p.q_rotated = tensor(r.out);
  p.rotary_cos = tensor(r.cos), p.rotary_sin = tensor(r.sin);
  p.rotary_cos.most = most_of(r.rotary_seqlen - 1);
  p.rotary_dim = r.rotary_dim;
  p.rotary_offset = r.seqlen_offset;
  p.rotary_interleaved = (r.flags & FW_ROTARY_INTERLEAVED) != 0;
  p.rotary_conjugate = (r.flags & FW_ROTARY_CONJUGATE) != 0;
  p.rotary_per_row = 1;
  p.q.most = most_of(r.total);
  p.cu_seqlens_q = r.cu_seqlens, p.seqused_k = r.seqlen_offsets;
  p.batch = static_cast<int32_t>(r.batch), p.seqlen_q = static_cast<int32_t>(r.seqlen);
  p.heads_q = static_cast<int32_t>(r.heads), p.dim_qk = static_cast<int32_t>(r.dim);
  return p;
}

}  // namespace flashwave

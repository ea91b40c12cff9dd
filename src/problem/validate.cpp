// The rules on sizes, scalars and which fields go together. docs/errors.md lists them all.
#include "problem/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "problem/rules.h"

namespace flashwave {
namespace {

constexpr int32_t kMaxSplits = 256;

struct Extent {
  const char* name;
  int64_t fw_attention::* value;
  int64_t least = 0, most = kMaxExtent;
};
constexpr Extent kExtents[] = {
    {"batch", &fw_attention::batch},
    {"seqlen_q", &fw_attention::seqlen_q},
    {"seqlen_k", &fw_attention::seqlen_k},
    {"heads_q", &fw_attention::heads_q, 1},
    {"heads_k", &fw_attention::heads_k, 1},
    {"dim_qk", &fw_attention::dim_qk, 1, kMaxDim},
    {"dim_v", &fw_attention::dim_v, 1, kMaxDim},
    {"total_q", &fw_attention::total_q},
    {"total_k", &fw_attention::total_k},
    {"batch_k", &fw_attention::batch_k},
    {"page_size", &fw_attention::page_size},
    {"seqlen_new", &fw_attention::seqlen_new},
    {"rotary_seqlen", &fw_attention::rotary_seqlen},
    {"rotary_dim", &fw_attention::rotary_dim, 0, kMaxDim},
};

Status check_sizes(const Problem& problem) {
  const fw_attention& a = problem.a;
  for (const Extent& extent : kExtents) {
    FW_RULES(validate_extent(extent.name, a.*extent.value, extent.least, extent.most));
  }
  FW_RULE(a.heads_q % a.heads_k == 0, "heads_q must be a multiple of heads_k, got ", a.heads_q, " and ", a.heads_k);
  FW_RULE(a.batch * a.heads_q <= kMaxExtent, "batch * heads_q must be at most ", kMaxExtent, ", got ", a.batch, " * ",
          a.heads_q);
  // Keeps every count of elements, workspace included, far inside 64 bits, even where strides broadcast.
  const int64_t heads = std::max<int64_t>(a.batch * a.heads_q, 1);
  for (const auto& [name, length] : {std::pair{"seqlen_q", a.seqlen_q}, {"seqlen_k", a.seqlen_k}}) {
    FW_RULE(length <= kMaxRows / heads, "batch * heads_q * ", name, " must be at most ", kMaxRows, ", got ", a.batch,
            " * ", a.heads_q, " * ", length);
  }
  return {};
}

Status check_scalars(const Problem& problem) {
  const fw_attention& a = problem.a;
  FW_RULE((a.flags & ~uint32_t{FW_ALL_FLAGS}) == 0, "flags has unknown bits, got ", a.flags);
  FW_RULE(a.window_left >= -1, "window_left must be at least -1 (-1: no limit), got ", a.window_left);
  FW_RULE(a.window_right >= -1, "window_right must be at least -1 (-1: no limit), got ", a.window_right);
  FW_RULE(std::isfinite(a.softmax_scale), "softmax_scale must be finite (or FW_SCALE_AUTO), got ", a.softmax_scale);
  FW_RULE(std::isfinite(a.softcap) && a.softcap >= 0, "softcap must be finite and at least 0 (0: off), got ",
          a.softcap);
  FW_RULE(a.dropout_p >= 0 && a.dropout_p < 1, "dropout_p must be in [0, 1), got ", a.dropout_p);
  FW_RULE(reinterpret_cast<uintptr_t>(a.dropout_state) % alignof(uint64_t) == 0,
          "dropout_state must be aligned to 8 bytes");
  for (const auto& [name, position, length] :
       {std::tuple{"position_q", a.position_q, a.seqlen_q}, {"position_k", a.position_k, a.seqlen_k}}) {
    FW_RULE(problem.placed() || position == 0, name, " must be 0 without FW_POSITIONS, got ", position);
    FW_RULE(position >= 0 && position <= kMaxExtent - length, name, " must be in [0, ", kMaxExtent - length,
            "], so that positions fit in 31 bits, got ", position);
  }
  FW_RULES(validate_extent("dropout_heads", a.dropout_heads));
  FW_RULE(a.dropout_heads == 0 || a.dropout_heads >= a.heads_q,
          "dropout_heads must be 0 or at least heads_q, the heads that are part of them, got ", a.dropout_heads);
  FW_RULES(validate_extent("dropout_first", a.dropout_first));
  FW_RULE(a.num_splits >= 0 && a.num_splits <= kMaxSplits, "num_splits must be in [0, ", kMaxSplits, "], got ",
          a.num_splits);
  FW_RULE(a.alibi_batch_stride >= 0, "alibi_batch_stride must be at least 0, got ", a.alibi_batch_stride);
  return {};
}

Status check_ragged(const Problem& problem) {
  const fw_attention& a = problem.a;
  FW_RULE(problem.varlen_q() || a.total_q == 0, "total_q must be 0 without cu_seqlens_q, got ", a.total_q);
  FW_RULE(problem.varlen_k() || a.total_k == 0, "total_k must be 0 without cu_seqlens_k, got ", a.total_k);
  FW_RULE(!problem.paged() || a.total_k == 0, "total_k must be 0 with block_table (pages hold the keys), got ",
          a.total_k);
  return {};
}

Status check_cache(const Problem& problem) {
  const fw_attention& a = problem.a;
  if (problem.paged()) {
    FW_RULE(a.page_size >= 1, "page_size must be at least 1 with block_table, got ", a.page_size);
    FW_RULE(a.batch_k >= 1, "batch_k must be the number of pages, at least 1, with block_table, got ", a.batch_k);
    const int64_t blocks = (a.seqlen_k + a.page_size - 1) / a.page_size;
    FW_RULE(a.batch <= 1 || a.block_table_stride >= blocks, "block_table_stride must be at least ", blocks,
            " (seqlen_k / page_size, rounded up), got ", a.block_table_stride);
    FW_RULE(a.cache_batch_idx == nullptr, "cache_batch_idx cannot be used with block_table: the table names the pages");
  } else {
    FW_RULE(a.page_size == 0, "page_size must be 0 without block_table, got ", a.page_size);
    FW_RULE(a.cache_batch_idx == nullptr || !problem.varlen_k(),
            "cache_batch_idx cannot be used with cu_seqlens_k: packed keys have no rows to choose from");
    FW_RULE(a.cache_batch_idx != nullptr || a.batch_k == 0 || a.batch_k == a.batch,
            "batch_k must be 0 or batch without cache_batch_idx or block_table, got ", a.batch_k);
  }
  return {};
}

Status check_append(const Problem& problem) {
  const fw_attention& a = problem.a;
  const bool rotary = a.rotary_cos.data != nullptr || a.rotary_sin.data != nullptr;
  if (!problem.append()) {
    FW_RULE(a.k_new.data == nullptr, "k_new is given but seqlen_new is 0");
    FW_RULE(a.v_new.data == nullptr, "v_new is given but seqlen_new is 0");
    FW_RULE(!rotary, a.rotary_cos.data != nullptr ? "rotary_cos" : "rotary_sin",
            " needs seqlen_new > 0: rotation is part of appending to the cache");
  } else {
    FW_RULE(!problem.varlen_k(), "seqlen_new > 0 cannot be used with cu_seqlens_k: packed keys have no room to grow");
    FW_RULE(a.seqused_k != nullptr, "seqused_k must be given with seqlen_new > 0: it says where the new keys go");
    FW_RULE(a.seqlen_new <= a.seqlen_k, "seqlen_new must be at most seqlen_k, the room of a cache row, got ",
            a.seqlen_new, " and ", a.seqlen_k);
  }
  if (!rotary) {
    FW_RULE(a.rotary_dim == 0, "rotary_dim must be 0 without rotary_cos and rotary_sin, got ", a.rotary_dim);
    FW_RULE(a.rotary_seqlen == 0, "rotary_seqlen must be 0 without rotary_cos and rotary_sin, got ", a.rotary_seqlen);
    return {};
  }
  FW_RULE(a.rotary_cos.data != nullptr, "rotary_cos must be given with rotary_sin");
  FW_RULE(a.rotary_sin.data != nullptr, "rotary_sin must be given with rotary_cos");
  FW_RULE(a.rotary_dim >= 2 && a.rotary_dim <= a.dim_qk && a.rotary_dim % 2 == 0,
          "rotary_dim must be even and in [2, dim_qk], got ", a.rotary_dim);
  FW_RULE(a.rotary_seqlen >= a.seqlen_new, "rotary_seqlen must be at least seqlen_new, got ", a.rotary_seqlen, " and ",
          a.seqlen_new);
  return {};
}

Status check_accumulate(const Problem& problem) {
  if (!problem.accumulate()) return {};
  const fw_attention& a = problem.a;
  if (problem.backward) {
    const std::pair<const char*, const fw_tensor*> sums[] = {
        {"dq", &problem.g.dq}, {"dk", &problem.g.dk}, {"dv", &problem.g.dv}};
    for (const auto& [name, sum] : sums) {
      FW_RULE(sum->data == nullptr || sum->dtype == FW_F32, name, ".dtype must be FW_F32 with FW_ACCUMULATE, got ",
              sum->dtype);
    }
    return {};
  }
  FW_RULE(a.o.dtype == FW_F32, "o.dtype must be FW_F32 with FW_ACCUMULATE, got ", a.o.dtype);
  FW_RULE(a.lse.data != nullptr || problem.no_queries(), "lse must be given with FW_ACCUMULATE: it says what o holds");
  FW_RULE(a.probs.data == nullptr, "probs cannot be used with FW_ACCUMULATE: the other keys are not known");
  return {};
}

Status check_backward(const Problem& problem) {
  const fw_attention& a = problem.a;
  const fw_gradients& g = problem.g;
  FW_RULE(g.reserved == 0, "gradients.reserved must be 0, got ", g.reserved);
  FW_RULE(!problem.append(), "seqlen_new must be 0 in a backward, got ", a.seqlen_new);
  FW_RULE(!problem.paged(), "block_table cannot be used in a backward");
  FW_RULE(a.cache_batch_idx == nullptr, "cache_batch_idx cannot be used in a backward");
  FW_RULE(a.probs.data == nullptr, "probs is an output of the forward only");
  FW_RULE(g.d_bias.data == nullptr || a.bias.data != nullptr, "d_bias needs bias");
  FW_RULE(g.d_sinks == nullptr || a.sinks != nullptr, "d_sinks needs sinks");
  FW_RULE(g.d_slopes == nullptr || a.alibi_slopes != nullptr, "d_slopes needs alibi_slopes");
  FW_RULE(g.d_slopes == nullptr || a.alibi_batch_stride == 0 || a.alibi_batch_stride >= a.heads_q,
          "alibi_batch_stride must be 0 or at least heads_q with d_slopes, got ", a.alibi_batch_stride);
  if (g.d_bias.data != nullptr) {
    const int64_t extents[4] = {a.batch, a.heads_q, a.seqlen_q, a.seqlen_k};
    for (int i = 0; i < 4; ++i) {
      // Of one element the stride does not matter. Of none it does: summed over, it is still one that is written.
      FW_RULE(extents[i] == 1 || (g.d_bias.stride[i] == 0) == (a.bias.stride[i] == 0), "d_bias.stride[", i,
              "] must be 0 exactly where bias.stride is 0, got ", g.d_bias.stride[i], " and ", a.bias.stride[i]);
    }
  }
  return {};
}

Status check_structs(const Problem& problem) {
  FW_RULES(check_sizes(problem));
  FW_RULES(check_scalars(problem));
  FW_RULES(check_ragged(problem));
  FW_RULES(check_cache(problem));
  FW_RULES(check_accumulate(problem));
  if (problem.backward) FW_RULES(check_backward(problem));
  return check_append(problem);
}

Status check_outputs_wanted(const Problem& problem, const Views& views) {
  if (!problem.backward || problem.g.d_sinks != nullptr || problem.g.d_slopes != nullptr) return {};
  for (const View& view : views.all()) {
    const bool asked = view.data != nullptr || (!view.has_elements() && view.tensor != &problem.g.d_bias);
    if (view.written && view.tensor != nullptr && asked) return {};
  }
  return broken("dq, dk, dv, d_bias, d_sinks and d_slopes are all absent: a backward needs at least one output");
}

Status check_tensors(const Problem& problem, const Views& views) {
  FW_RULES(validate_layouts(views.all(), "q", problem.a.q.dtype));
  return check_outputs_wanted(problem, views);
}

}  // namespace

Status validate_extent(const char* name, int64_t value, int64_t least, int64_t most) {
  FW_RULE(value >= least && value <= most, name, " must be in [", least, ", ", most, "], got ", value);
  return {};
}

Status validate_structs(const Problem& problem) {
  FW_RULES(check_structs(problem));
  const Views views(problem);
  return check_tensors(problem, views);
}

Status validate(const Problem& problem, bool host_readable) {
  FW_RULES(check_structs(problem));
  const Views views(problem);
  FW_RULES(check_tensors(problem, views));
  FW_RULES(validate_addresses(views.all()));
  return host_readable ? validate_indices(problem) : Status{};
}

}  // namespace flashwave

// Which kernel takes a problem: the first row of the catalog that does not refuse it.
#include <algorithm>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "plan/plan.h"

namespace flashwave {
namespace {

Op op_of(const Problem& problem) { return problem.backward ? Op::kBackward : Op::kForward; }
Op op_of(const Rotary&) { return Op::kRotary; }
Op op_of(const Merging&) { return Op::kMerge; }

// Whether the row does something for this problem at all: its own operation, or a pre-pass.
bool serves(const KernelRow& row, const Problem& problem) {
  if (row.op == Op::kMerge) return problem.accumulate() && !problem.backward;
  if (can_be_chosen(row.op)) return row.op == op_of(problem);
  if (row.op == Op::kFill) return problem.fills_rows();
  return row.op != Op::kAppend || problem.a.seqlen_new > 0;
}

Reason other_device(const KernelRow& row, const DeviceInfo& device) {
  return row.device == row_kind(device) ? Reason{} : Reason{Reason::kOtherDevice};
}

Reason other_op(Op op) { return {Reason::kOtherOp, "", 0, static_cast<int64_t>(op)}; }

Reason missing_isa(const KernelRow& row, const DeviceInfo& device) {
  const uint32_t missing = row.isa & ~device.isa;
  return missing == 0 ? Reason{} : Reason{Reason::kIsa, "", 0, missing};
}

Reason too_little_lds(const KernelRow& row, const DeviceInfo& device) {
  if (device.lds_bytes == 0 || row.lds_bytes <= device.lds_bytes) return {};
  return {Reason::kLds, "", device.lds_bytes, row.lds_bytes};
}

// The last question of all, so that it is asked of few rows.
Reason missing_code(const KernelRow& row, const DeviceInfo& device) {
  return device.code.has(row.source) ? Reason{} : Reason{Reason::kNoCode};
}

Reason other_dtype(const KernelRow& row, int32_t dtype) {
  if (dtype >= 0 && dtype < 32 && (row.dtypes >> dtype & 1)) return {};
  return {Reason::kDtype, "", 0, dtype};
}

Reason too_large(const char* name, int64_t value, int64_t limit, Reason::Rule rule = Reason::kTooLarge) {
  if (limit == 0 || value <= limit) return {};
  return {rule, name, limit, value};
}

Reason too_many_queries(const KernelRow& row, int64_t seqlen_q) {
  if (row.needs & kPrefersShortColumns) return {};  // long_columns
  const bool hard = (row.needs & kPrefersFewQueries) == 0;
  return too_large("seqlen_q", seqlen_q, row.max_seqlen_q, hard ? Reason::kTooLarge : Reason::kMadeForLess);
}

// Rows: queries times the query heads that share a key head.
Reason wrong_number_of_rows(const KernelRow& row, const fw_attention& a) {
  const int64_t rows = a.seqlen_q * (a.heads_q / a.heads_k);
  const char* const name = "seqlen_q * heads_q / heads_k";
  if (row.needs & kNeedsFewRows) {
    if (const Reason reason = too_large(name, rows, kFewRows); reason.refuses()) return reason;
  }
  const int few = row.needs & kPrefersManyRows ? kFewRows : row.needs & kPrefersSeveralRows ? kVeryFewRows : 0;
  if (few == 0 || rows > few) return {};
  return {Reason::kMadeForMore, name, few, rows};
}

// Made for work enough to pay for what it prepares.
Reason little_work(const KernelRow& row, const Problem& problem) {
  const fw_attention& a = problem.a;
  if (row.needs & kPrefersLongSequences) {
    const int64_t keys = a.seqlen_k + a.seqlen_new, rows = a.seqlen_q * problem.group();
    if (keys <= kShort) return {Reason::kMadeForMore, "seqlen_k", kShort, keys};
    if (problem.backward && rows <= kShort) return {Reason::kMadeForMore, "seqlen_q * heads_q / heads_k", kShort, rows};
  }
  const int64_t dim = std::max(a.dim_qk, a.dim_v);
  const bool modified = (features_of(problem) & (kSoftcap | kAlibi | kBias | kDropout)) != 0;
  if ((row.needs & kPrefersPlainScores) && modified && dim <= kNarrow) {
    return {Reason::kMadeForMore, "head dims with softcap, alibi, bias or dropout", kNarrow, dim};
  }
  return {};
}

using NamedTensor = std::pair<const char*, const fw_tensor*>;

Reason rows_misaligned(std::span<const NamedTensor> tensors, int64_t bytes, int64_t elements) {
  for (const auto& [name, tensor] : tensors) {
    bool aligned = reinterpret_cast<uintptr_t>(tensor->data) % static_cast<uintptr_t>(bytes) == 0;
    for (int i = 0; i < 3; ++i) aligned = aligned && tensor->stride[i] % elements == 0;
    if (!aligned) return {Reason::kRowAddresses, name, bytes, 0};
  }
  return {};
}

// Rows of these lie at multiples of `bytes`, as do their ends.
Reason misaligned(const fw_attention& a, int64_t bytes) {
  const int64_t elements = bytes / (a.q.dtype == FW_F32 ? 4 : 2);
  if (a.dim_qk % elements != 0 || a.dim_v % elements != 0) return {Reason::kHeadDims, "", bytes, 0};
  const NamedTensor tensors[] = {{"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"o", &a.o}};
  return rows_misaligned(tensors, bytes, elements);
}
Reason misaligned(const fw_gradients& g, int64_t bytes) {
  const NamedTensor tensors[] = {{"d_o", &g.d_o}, {"dq", &g.dq}, {"dk", &g.dk}, {"dv", &g.dv}};
  return rows_misaligned(tensors, bytes, bytes / 2);
}

bool has_bias_map(const fw_attention& a) {
  const fw_tensor& bias = a.bias;
  if (bias.data == nullptr || bias.dtype != a.q.dtype || (bias.stride[3] != 1 && a.seqlen_k > 1)) return false;
  const NamedTensor tensors[] = {{"bias", &bias}};
  return !rows_misaligned(tensors, 16, 8).refuses();
}

// Made for tiles of keys that few rows see: a mask hides most of them.
Reason long_columns(const KernelRow& row, const Problem& problem) {
  if ((row.needs & kPrefersShortColumns) == 0) return {};
  const bool masked = (features_of(problem) & kMask) != 0;
  if (problem.deterministic() && !masked) return {Reason::kAnyOrder};
  const fw_attention& a = problem.a;
  // Of a window, no more queries than this see a tile.
  const int64_t right = problem.causal() ? 0 : a.window_right;
  const int64_t seen = a.window_left >= 0 && right >= 0 ? a.window_left + right + row.tile_k : a.seqlen_q;
  const int64_t limit = int64_t{row.max_seqlen_q} * (masked ? 4 : 1);
  return too_large("seqlen_q * heads_q / heads_k", std::min(seen, a.seqlen_q) * problem.group(), limit,
                   Reason::kMadeForLess);
}

Reason rows_too_far_apart(const KernelRow& row, const Problem& problem) {
  const fw_attention& a = problem.a;
  const fw_gradients& g = problem.g;
  // The kernels of a backward have tiles of their own, of at most so many rows.
  constexpr int32_t kMostRows = 256;
  const int32_t tile_q = problem.backward ? kMostRows : row.tile_q, tile_k = problem.backward ? kMostRows : row.tile_k;
  const std::tuple<const char*, const fw_tensor*, int32_t> tensors[] = {
      {"q", &a.q, tile_q},     {"k", &a.k, tile_k},   {"v", &a.v, tile_k},   {"o", &a.o, tile_q},
      {"d_o", &g.d_o, tile_q}, {"dq", &g.dq, tile_q}, {"dk", &g.dk, tile_k}, {"dv", &g.dv, tile_k}};
  for (const auto& [name, tensor, rows] : tensors) {
    const int64_t limit = (int64_t{1} << 31) / (tensor->dtype == FW_F32 ? 4 : 2) / rows;
    if (tensor->stride[1] >= limit) return {Reason::kFarRows, name, limit, tensor->stride[1]};
  }
  return {};
}

Reason unmet_need(const KernelRow& row, const Problem& problem) {
  const fw_attention& a = problem.a;
  if (const Reason reason = wrong_number_of_rows(row, a); reason.refuses()) return reason;
  if (const Reason reason = little_work(row, problem); reason.refuses()) return reason;
  if ((row.needs & kNeedsPositiveScale) && !(problem.scale() > 0)) return {Reason::kScale};
  if ((row.needs & kTakesLseByScale) && !(problem.scale() >= kLeastScale)) return {Reason::kTinyScale};
  if ((row.needs & kNeedsPagesOf64) && problem.paged() && a.page_size % 64 != 0) {
    return {Reason::kPageSize, "", 64, a.page_size};
  }
  if ((row.needs & kNeedsPagesOf8) && problem.paged() && a.page_size % 8 != 0) {
    return {Reason::kPageSize, "", 8, a.page_size};
  }
  if ((row.needs & kNeedsUnpaddedPages) && problem.paged() && a.leftpad_k != nullptr) {
    return {Reason::kPagesWithLeftpad};
  }
  if ((row.needs & kNeedsSoftcap) && !(a.softcap > 0)) return {Reason::kSoftcap};
  if ((row.needs & kNeedsAlibi) && a.alibi_slopes == nullptr) return {Reason::kAlibi};
  if ((row.needs & kNeedsBiasMap) && !has_bias_map(a)) return {Reason::kBias, "bias", 16, 0};
  if ((row.needs & kNeedsNoLse) && a.lse.data != nullptr) return {Reason::kLse};
  if ((row.needs & kNeedsFastRounding) && !problem.fast_rounding()) return {Reason::kRounding};
  if ((row.needs & kNeeds8Columns) && (a.dim_qk < 8 || a.dim_v < 8)) return {Reason::kFewColumns, "", 8, 0};
  if (row.needs & kNeedsNearRows) {
    if (const Reason reason = rows_too_far_apart(row, problem); reason.refuses()) return reason;
  }
  if (const Reason reason = long_columns(row, problem); reason.refuses()) return reason;
  if ((row.needs & kNeedsAnyOrder) && problem.deterministic()) return {Reason::kAnyOrder};
  if (row.needs & (kNeedsGradientMaps | kNeedsGradientRows)) {
    if (const Reason reason = misaligned(problem.g, 16); reason.refuses()) return reason;
  }
  if (row.needs & (kNeeds16Bytes | kNeedsTensorMaps | kNeedsGradientMaps | kNeedsGradientRows)) {
    return misaligned(a, 16);
  }
  if (row.needs & kNeedsDwords) return misaligned(a, 4);
  return {};
}

// Sums in a fixed order take one workgroup for many tiles of keys.
Reason few_heads(const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  const bool few = (row.needs & kOrdersByHeads) && problem.deterministic() && !order_pays(problem, device, row);
  return few ? Reason{Reason::kFewHeads, "heads_k * batch", 0, problem.a.heads_k * problem.a.batch} : Reason{};
}

// Made for few blocks of queries, which it cuts into parts of the keys.
Reason many_blocks(const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  // What it leaves for the combining kernel is in fp32, which can only write O so.
  if ((row.needs & kPrefersFewBlocks) == 0 || problem.float_out() || splits_pay(problem, device, row)) return {};
  return {Reason::kManyBlocks};
}

// Made for few rows, where another kernel packs more of them into its tiles.
Reason many_rows(const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  if ((row.needs & kPrefersFewRows) == 0) return {};
  const Reason reason = too_large("seqlen_q * heads_q / heads_k", problem.a.seqlen_q * problem.group(),
                                  problem.a.dim_qk > 128 ? kVeryFewRows : kFewRows, Reason::kMadeForLess);
  if (!reason.refuses()) return {};
  const auto packs = [&](const KernelRow& other) {
    return other.work == Work::kPackedSplits && !why_not(other, problem, device).refuses();
  };
  return std::ranges::any_of(catalog_of(row_kind(device)), packs) ? reason : Reason{};
}

// The reasons that need no more than a look at the row and a number or two, in the order they are told.
Reason plain_reason(const KernelRow& row, const fw_attention& a, const DeviceInfo& device) {
  if (const Reason reason = missing_isa(row, device); reason.refuses()) return reason;
  if (const Reason reason = other_dtype(row, a.q.dtype); reason.refuses()) return reason;
  if (const Reason reason = too_little_lds(row, device); reason.refuses()) return reason;
  if (const Reason reason = too_large("dim_qk", a.dim_qk, row.max_dim_qk); reason.refuses()) return reason;
  if (const Reason reason = too_large("dim_v", a.dim_v, row.max_dim_v); reason.refuses()) return reason;
  if (const Reason reason = too_many_queries(row, a.seqlen_q); reason.refuses()) return reason;
  return too_large("seqlen_k", a.seqlen_k + a.seqlen_new, row.max_seqlen_k);
}

}  // namespace

// An emulated GPU runs the machine code made for the real one.
std::string_view row_kind(const DeviceInfo& device) {
  const std::string_view kind = device.kind;
  return kind == "emu" ? "hip" : kind;
}

uint32_t features_of(const Problem& problem) {
  const fw_attention& a = problem.a;
  uint32_t features = kNoFeatures;
  const auto need = [&](Feature feature, bool needed) {
    if (needed) features |= feature;
  };
  need(kMask, problem.causal() || a.window_left >= 0 || a.window_right >= 0);
  need(kGqa, a.heads_q != a.heads_k);
  need(kVarlen, problem.varlen_q() || problem.varlen_k());
  need(kSeqused, a.seqused_k != nullptr);
  need(kLeftpad, a.leftpad_k != nullptr);
  need(kCacheIndex, a.cache_batch_idx != nullptr);
  need(kPaged, problem.paged());
  need(kUnequalDims, a.dim_qk != a.dim_v);
  need(kSoftcap, a.softcap != 0);
  need(kAlibi, a.alibi_slopes != nullptr);
  need(kBias, a.bias.data != nullptr);
  need(kSinks, a.sinks != nullptr);
  need(kDropout, a.dropout_p != 0);
  need(kProbs, a.probs.data != nullptr);
  need(kDLse, problem.g.d_lse.data != nullptr);
  need(kDBias, problem.g.d_bias.data != nullptr);
  need(kDSinks, problem.g.d_sinks != nullptr);
  need(kDSlopes, problem.g.d_slopes != nullptr);
  need(kPositions, problem.placed() || problem.counts_elsewhere());
  need(kFloatOut, problem.float_out());
  need(kFloatGradients, problem.float_gradients());
  return features;
}

Reason why_not(const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  if (const Reason reason = other_device(row, device); reason.refuses()) return reason;
  if (!serves(row, problem)) return row.op == Op::kAppend ? Reason{Reason::kNothingToAppend} : other_op(op_of(problem));
  if (const Reason reason = plain_reason(row, problem.a, device); reason.refuses()) return reason;
  if (const uint32_t missing = features_of(problem) & ~row.features) return {Reason::kFeatures, "", 0, missing};
  if (const Reason reason = unmet_need(row, problem); reason.refuses()) return reason;
  if (const Reason reason = many_blocks(row, problem, device); reason.refuses()) return reason;
  if (const Reason reason = many_rows(row, problem, device); reason.refuses()) return reason;
  if (const Reason reason = few_heads(row, problem, device); reason.refuses()) return reason;
  return missing_code(row, device);
}

Reason why_not(const KernelRow& row, const Rotary& rotary, const DeviceInfo& device) {
  if (const Reason reason = other_device(row, device); reason.refuses()) return reason;
  if (row.op != Op::kRotary) return other_op(Op::kRotary);
  if (const Reason reason = missing_isa(row, device); reason.refuses()) return reason;
  if (const Reason reason = other_dtype(row, rotary.r.x.dtype); reason.refuses()) return reason;
  if (const Reason reason = too_large("dim", rotary.r.dim, row.max_dim_qk); reason.refuses()) return reason;
  return missing_code(row, device);
}

Reason why_not(const KernelRow& row, const Merging& merging, const DeviceInfo& device) {
  if (const Reason reason = other_device(row, device); reason.refuses()) return reason;
  if (row.op != Op::kMerge) return other_op(Op::kMerge);
  if (const Reason reason = missing_isa(row, device); reason.refuses()) return reason;
  if (const Reason reason = other_dtype(row, merging.m.o.dtype); reason.refuses()) return reason;
  if (const Reason reason = too_large("dim", merging.m.dim, row.max_dim_v); reason.refuses()) return reason;
  return missing_code(row, device);
}

std::string refusal(const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  return sentence(why_not(row, problem, device), row, device);
}

std::string refusal(const KernelRow& row, const Rotary& rotary, const DeviceInfo& device) {
  return sentence(why_not(row, rotary, device), row, device);
}

namespace {

// Whether the row refuses nothing but the number of queries or the order of sums, which it can do with all the same.
bool takes_unwillingly(const Reason& reason, const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  const bool could = reason.rule == Reason::kMadeForLess || reason.rule == Reason::kMadeForMore ||
                     reason.rule == Reason::kManyBlocks || reason.rule == Reason::kAnyOrder ||
                     reason.rule == Reason::kFewHeads;
  if (!could) return false;
  Problem fewer = problem;
  if (row.needs & kPrefersFewQueries) fewer.a.seqlen_q = std::min<int64_t>(fewer.a.seqlen_q, row.max_seqlen_q);
  KernelRow willing = row;
  willing.needs &= ~uint32_t{kPrefersSeveralRows | kPrefersManyRows | kPrefersShortColumns | kPrefersFewBlocks |
                             kPrefersFewRows | kPrefersLongSequences | kPrefersPlainScores | kOrdersByHeads};
  if (row.needs & kPrefersShortColumns) willing.max_seqlen_q = 0;  // without the bit a limit of all kernels
  return !why_not(willing, fewer, device).refuses();
}
bool takes_unwillingly(const Reason&, const KernelRow&, const Rotary&, const DeviceInfo&) { return false; }
bool takes_unwillingly(const Reason&, const KernelRow&, const Merging&, const DeviceInfo&) { return false; }

// A kernel that is forced may do what FW_FAST_ROUNDING allows: whoever names it knows what it does.
Problem allowing_everything(Problem problem) {
  problem.a.flags |= FW_FAST_ROUNDING;
  return problem;
}
Rotary allowing_everything(Rotary rotary) { return rotary; }
Merging allowing_everything(Merging merging) { return merging; }

template <class AnyProblem>
Selection select_forced(const AnyProblem& problem, const DeviceInfo& device, std::string_view name) {
  const auto rows = catalog();
  const auto row = std::ranges::find_if(rows, [&](const KernelRow& r) { return r.name == name; });
  if (row == rows.end()) return {.row = nullptr, .refused = {{nullptr, unknown_kernel(name, op_of(problem), device)}}};
  const AnyProblem allowed = allowing_everything(problem);
  const Reason reason = can_be_chosen(row->op) ? why_not(*row, allowed, device) : Reason{Reason::kCompanion};
  if (!reason.refuses() || takes_unwillingly(reason, *row, allowed, device)) return {.row = &*row, .refused = {}};
  return {.row = nullptr, .refused = {{&*row, sentence(reason, *row, device), reason.rule}}};
}

template <class AnyProblem>
Selection select_for(const AnyProblem& problem, const DeviceInfo& device, const PlanOptions& options) {
  if (options.force_kernel != nullptr) return select_forced(problem, device, options.force_kernel);
  Selection selection;
  const KernelRow* unwilling = nullptr;  // the first that could take the problem, though made for others
  for (const KernelRow& row : catalog_of(row_kind(device))) {
    if (row.op != op_of(problem)) continue;
    Reason reason = row.only_forced ? Reason{Reason::kOnlyForced} : why_not(row, problem, device);
    if (!reason.refuses() && !options.slow_path && is_slow_path(row)) reason.rule = Reason::kSlowPath;
    if (!reason.refuses()) {
      // The slow path is slower than one that is used for what it is not made for.
      selection.row = unwilling != nullptr && is_slow_path(row) ? unwilling : &row;
      break;
    }
    if (unwilling == nullptr && takes_unwillingly(reason, row, problem, device)) unwilling = &row;
    if (options.reasons == Reasons::kAll) {
      selection.refused.push_back({&row, sentence(reason, row, device), reason.rule});
    }
  }
  if (selection.row == nullptr) selection.row = unwilling;
  if (selection.row == unwilling) {
    std::erase_if(selection.refused, [&](const Refusal& refused) { return refused.row == unwilling; });
  }
  return selection;
}

}  // namespace

Selection select(const Problem& problem, const DeviceInfo& device, const PlanOptions& options) {
  return select_for(problem, device, options);
}

Selection select(const Rotary& rotary, const DeviceInfo& device, const PlanOptions& options) {
  return select_for(rotary, device, options);
}

Selection select(const Merging& merging, const DeviceInfo& device, const PlanOptions& options) {
  return select_for(merging, device, options);
}

}  // namespace flashwave

// Which kernel takes a problem: the first row of the catalog that does not refuse it.
#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <utility>

#include "plan/plan.h"

namespace flashwave {
namespace {

// An emulated GPU runs the machine code made for the real one.
std::string_view row_kind(const DeviceInfo& device) {
  const std::string_view kind = device.kind;
  return kind == "emu" ? "hip" : kind;
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case FW_F16:
      return "fp16";
    case FW_BF16:
      return "bf16";
    case FW_F32:
      return "fp32";
    default:
      return "an unknown dtype";
  }
}

std::string isa_names(uint32_t isa) {
  std::string names;
  const auto add = [&](Isa bit, const char* name) {
    if (isa & bit) names += (names.empty() ? "" : " and ") + std::string(name);
  };
  add(kIsaAvx2, "AVX2 (with FMA and F16C)");
  add(kIsaAvx512, "AVX-512 (F, BW, DQ, VL)");
  add(kIsaAmx, "AMX tiles (BF16, with AVX512_BF16 and BMI2)");
  add(kIsaAmd, "code for this GPU");
  add(kIsaCdna, "the matrix cores of MI100 or later");
  add(kIsaCdna2, "the matrix cores of MI200 or later");
  add(kIsaCdna3, "the matrix cores of MI300 or later");
  add(kIsaCdna4, "the matrix cores of MI350");
  add(kIsaGfx908, "the registers of MI100");
  add(kIsaRdna3, "the matrix instructions of RDNA 3");
  add(kIsaRdna4, "the matrix instructions of RDNA 4");
  add(kIsaSm75, "compute capability 7.5 or later");
  add(kIsaSm80, "compute capability 8.0 or later");
  add(kIsaSm90, "compute capability 9.0");
  return names;
}

std::string feature_names(uint32_t features) {
  std::string names;
  for (uint32_t bit = 1; bit & kAllFeatures; bit <<= 1) {
    if (features & bit) names += (names.empty() ? "" : ", ") + std::string(feature_name(static_cast<Feature>(bit)));
  }
  return names;
}

Op op_of(const Problem& problem) { return problem.backward ? Op::kBackward : Op::kForward; }
Op op_of(const Rotary&) { return Op::kRotary; }

// Whether the row does something for this problem at all: its own operation, or the pre-pass.
bool serves(const KernelRow& row, const Problem& problem) {
  if (can_be_chosen(row.op)) return row.op == op_of(problem);
  return row.op != Op::kAppend || problem.a.seqlen_new > 0;
}

// Steps (insert, delete, replace a letter) from one name to the other, to find what a mistyped one meant.
size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] != to[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[to.size()];
}

std::string unknown_kernel(std::string_view forced, Op op, const DeviceInfo& device) {
  std::string nearest, all;
  size_t nearest_distance = forced.size() / 3 + 1;  // farther ones are not typing errors
  for (const KernelRow& row : catalog()) {
    if (row.device != row_kind(device) || row.op != op) continue;
    all += (all.empty() ? "" : ", ") + std::string(row.name);
    const size_t distance = edit_distance(forced, row.name);
    if (distance < nearest_distance) nearest_distance = distance, nearest = row.name;
  }
  std::string reason = "there is no kernel named '" + std::string(forced) + "'";
  if (!nearest.empty()) reason += "; did you mean " + nearest + "?";
  const std::string kernels = op_name(op) + std::string(" kernels for ") + device.name;
  if (all.empty()) return reason + "; there are no " + kernels;
  return reason + (nearest.empty() ? "; " : " ") + "the " + kernels + " are " + all;
}

std::string wrong_device(const KernelRow& row, const DeviceInfo& device) {
  if (row.device == row_kind(device)) return "";
  return "runs on " + std::string(row.device) + " devices, not on " + device.name;
}

std::string wrong_op(const KernelRow& row, Op op) {
  return "computes the " + std::string(op_name(row.op)) + ", not the " + op_name(op);
}

std::string missing_isa(const KernelRow& row, const DeviceInfo& device) {
  const uint32_t missing = row.isa & ~device.isa;
  if (missing == 0) return "";
  if (missing & device.refused_isa) return "needs " + isa_names(missing) + ", which the operating system refused";
  return "needs " + isa_names(missing) + ", which this " + (device.kind == "cpu" ? "CPU" : "device") + " does not have";
}

std::string too_little_shared_memory(const KernelRow& row, const DeviceInfo& device) {
  if (device.shared_memory_bytes == 0 || row.shared_bytes <= device.shared_memory_bytes) return "";
  return "needs " + std::to_string(row.shared_bytes) + " bytes of shared memory, this device has " +
         std::to_string(device.shared_memory_bytes);
}

std::string wrong_dtype(const KernelRow& row, int32_t dtype) {
  if (dtype >= 0 && dtype < 32 && (row.dtypes >> dtype & 1)) return "";
  return "does not take " + std::string(dtype_name(dtype));
}

std::string too_large(const char* name, int64_t value, int64_t limit) {
  if (limit == 0 || value <= limit) return "";
  return "takes " + std::string(name) + " <= " + std::to_string(limit) + ", got " + std::to_string(value);
}

std::string too_many_queries(const KernelRow& row, int64_t seqlen_q) {
  const std::string reason = too_large("seqlen_q", seqlen_q, row.max_seqlen_q);
  const bool hard = (row.needs & kPrefersFewQueries) == 0;
  return hard || reason.empty() ? reason : "is made for" + reason.substr(std::string_view("takes").size());
}

// Rows: queries times the query heads that share a key head.
std::string wrong_number_of_rows(const KernelRow& row, const fw_attention& a) {
  const int64_t rows = a.seqlen_q * (a.heads_q / a.heads_k);
  const char* const name = "seqlen_q * heads_q / heads_k";
  if (row.needs & kNeedsFewRows) {
    if (std::string reason = too_large(name, rows, kFewRows); !reason.empty()) return reason;
  }
  if ((row.needs & kPrefersSeveralRows) == 0 || rows > kVeryFewRows) return "";
  return "is made for " + std::string(name) + " > " + std::to_string(kVeryFewRows) + ", got " + std::to_string(rows);
}

// Rows of these lie at multiples of `bytes`, as do their ends.
std::string misaligned(const fw_attention& a, int64_t bytes) {
  const int64_t elements = bytes / (a.q.dtype == FW_F32 ? 4 : 2);
  const std::string multiple = "multiples of " + std::to_string(bytes) + " bytes";
  if (a.dim_qk % elements != 0 || a.dim_v % elements != 0) return "takes head dimensions that are " + multiple;
  const std::pair<const char*, const fw_tensor*> tensors[] = {{"q", &a.q}, {"k", &a.k}, {"v", &a.v}, {"o", &a.o}};
  for (const auto& [name, tensor] : tensors) {
    bool aligned = reinterpret_cast<uintptr_t>(tensor->data) % static_cast<uintptr_t>(bytes) == 0;
    for (int i = 0; i < 3; ++i) aligned = aligned && tensor->stride[i] % elements == 0;
    if (!aligned) return "takes " + std::string(name) + " with rows at " + multiple;
  }
  return "";
}

std::string rows_too_far_apart(const KernelRow& row, const fw_attention& a) {
  const std::tuple<const char*, const fw_tensor*, int32_t> tensors[] = {
      {"q", &a.q, row.tile_q}, {"k", &a.k, row.tile_k}, {"v", &a.v, row.tile_k}, {"o", &a.o, row.tile_q}};
  for (const auto& [name, tensor, rows] : tensors) {
    const int64_t limit = (int64_t{1} << 30) / rows;  // elements of 2 bytes
    if (tensor->stride[1] < limit) continue;
    return "takes " + std::string(name) + " with rows less than " + std::to_string(limit) + " elements apart";
  }
  return "";
}

std::string unmet_need(const KernelRow& row, const Problem& problem) {
  const fw_attention& a = problem.a;
  if (std::string reason = wrong_number_of_rows(row, a); !reason.empty()) return reason;
  if ((row.needs & kNeedsPositiveScale) && !(problem.scale() > 0)) return "takes softmax_scale > 0";
  if ((row.needs & kNeedsPagesOf64) && problem.paged() && a.page_size % 64 != 0) {
    return "takes a page_size that is a multiple of 64, got " + std::to_string(a.page_size);
  }
  if ((row.needs & kNeedsPagesOf8) && problem.paged()) {
    if (a.page_size % 8 != 0) return "takes a page_size that is a multiple of 8, got " + std::to_string(a.page_size);
    if (a.leftpad_k != nullptr) return "does not take leftpad_k together with block_table";
  }
  if ((row.needs & kNeedsNoLse) && a.lse.data != nullptr) return "sums rounded weights, too rough for lse";
  if ((row.needs & kNeedsFastRounding) && !problem.fast_rounding()) {
    return "rounds towards zero, which FW_FAST_ROUNDING allows";
  }
  if ((row.needs & kNeeds8Columns) && (a.dim_qk < 8 || a.dim_v < 8)) return "takes head dimensions >= 8";
  if (row.needs & kNeedsNearRows) {
    if (std::string reason = rows_too_far_apart(row, a); !reason.empty()) return reason;
  }
  if (row.needs & (kNeeds16Bytes | kNeedsTensorMaps)) return misaligned(a, 16);
  if (row.needs & kNeedsDwords) return misaligned(a, 4);
  return "";
}

// The first reason, in the order given.
std::string first_of(std::initializer_list<std::string> reasons) {
  const auto* found = std::ranges::find_if(reasons, [](const std::string& reason) { return !reason.empty(); });
  return found == reasons.end() ? "" : *found;
}

}  // namespace

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
  return features;
}

std::string refusal(const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  const fw_attention& a = problem.a;
  if (std::string reason = wrong_device(row, device); !reason.empty()) return reason;
  if (!serves(row, problem)) return row.op == Op::kAppend ? "has nothing to append" : wrong_op(row, op_of(problem));
  std::string reason =
      first_of({missing_isa(row, device), too_little_shared_memory(row, device), wrong_dtype(row, a.q.dtype),
                too_large("dim_qk", a.dim_qk, row.max_dim_qk), too_large("dim_v", a.dim_v, row.max_dim_v),
                too_many_queries(row, a.seqlen_q), too_large("seqlen_k", a.seqlen_k + a.seqlen_new, row.max_seqlen_k)});
  if (!reason.empty()) return reason;
  if (const uint32_t missing = features_of(problem) & ~row.features) {
    return "does not support " + feature_names(missing);
  }
  return unmet_need(row, problem);
}

std::string refusal(const KernelRow& row, const Rotary& rotary, const DeviceInfo& device) {
  if (std::string reason = wrong_device(row, device); !reason.empty()) return reason;
  if (row.op != Op::kRotary) return wrong_op(row, Op::kRotary);
  return first_of(
      {missing_isa(row, device), wrong_dtype(row, rotary.r.x.dtype), too_large("dim", rotary.r.dim, row.max_dim_qk)});
}

namespace {

// Whether the row refuses nothing but the number of queries, which it can do with all the same.
bool takes_unwillingly(KernelRow row, Problem problem, const DeviceInfo& device) {
  if ((row.needs & (kPrefersFewQueries | kPrefersSeveralRows)) == 0) return false;
  if (row.needs & kPrefersFewQueries) problem.a.seqlen_q = std::min<int64_t>(problem.a.seqlen_q, row.max_seqlen_q);
  row.needs &= ~uint32_t{kPrefersSeveralRows};
  return refusal(row, problem, device).empty();
}
bool takes_unwillingly(const KernelRow&, const Rotary&, const DeviceInfo&) { return false; }

// Naming a kernel is leave for what it does.
Problem with_leave(Problem problem) {
  problem.a.flags |= FW_FAST_ROUNDING;
  return problem;
}
Rotary with_leave(Rotary rotary) { return rotary; }

// Whether the row is refused for one of the plain reasons: most are.
bool plainly_refused(const KernelRow& row, const Problem& problem, const DeviceInfo& device) {
  const fw_attention& a = problem.a;
  const auto exceeds = [](int64_t value, int64_t limit) { return limit != 0 && value > limit; };
  return (row.isa & ~device.isa) != 0 || (row.dtypes >> a.q.dtype & 1) == 0 || exceeds(a.dim_qk, row.max_dim_qk) ||
         exceeds(a.dim_v, row.max_dim_v);
}
bool plainly_refused(const KernelRow& row, const Rotary& rotary, const DeviceInfo& device) {
  return (row.isa & ~device.isa) != 0 || (row.dtypes >> rotary.r.x.dtype & 1) == 0;
}

template <class AnyProblem>
Selection select_for(const AnyProblem& problem, const DeviceInfo& device, const char* forced, Reasons reasons) {
  Selection selection;
  if (forced != nullptr) {
    const auto rows = catalog();
    const auto row = std::ranges::find_if(rows, [&](const KernelRow& r) { return std::string_view(r.name) == forced; });
    if (row == rows.end()) {
      selection.refused.push_back({nullptr, unknown_kernel(forced, op_of(problem), device)});
      return selection;
    }
    std::string reason = can_be_chosen(row->op) ? refusal(*row, with_leave(problem), device)
                                                : "accompanies other kernels and cannot be forced";
    if (reason.empty() || takes_unwillingly(*row, with_leave(problem), device)) {
      selection.row = &*row;
    } else {
      selection.refused.push_back({&*row, std::move(reason)});
    }
    return selection;
  }
  const KernelRow* unwilling = nullptr;
  for (const KernelRow& row : catalog()) {
    if (row.op != op_of(problem) || row.device != row_kind(device)) continue;
    if (reasons == Reasons::kSome && plainly_refused(row, problem, device)) continue;
    std::string reason = row.only_forced ? "runs only when forced" : refusal(row, problem, device);
    if (reason.empty()) {
      // One that takes everything is slower than one that is used for more queries than it is made for.
      selection.row = unwilling != nullptr && row.features == kAllFeatures ? unwilling : &row;
      break;
    }
    if (unwilling == nullptr && (row.needs & kPrefersFewQueries) && takes_unwillingly(row, problem, device)) {
      unwilling = &row;
    }
    selection.refused.push_back({&row, std::move(reason)});
  }
  return selection;
}

}  // namespace

Selection select(const Problem& problem, const DeviceInfo& device, const char* forced, Reasons reasons) {
  return select_for(problem, device, forced, reasons);
}

Selection select(const Rotary& rotary, const DeviceInfo& device, const char* forced, Reasons reasons) {
  return select_for(rotary, device, forced, reasons);
}

}  // namespace flashwave

// Why a kernel does not run, in words: for explain and for errors. A choice makes none of them.
#include <algorithm>
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace flashwave {
namespace {

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

std::string feature_names(uint32_t features) {
  std::string names;
  for (uint32_t bit = 1; bit & kAllFeatures; bit <<= 1) {
    if (features & bit) names += (names.empty() ? "" : ", ") + std::string(feature_name(static_cast<Feature>(bit)));
  }
  return names;
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

std::string bytes_multiple(int64_t bytes) { return "multiples of " + std::to_string(bytes) + " bytes"; }

}  // namespace

std::string sentence(const Reason& reason, const KernelRow& row, const DeviceInfo& device) {
  const std::string name = reason.name, limit = std::to_string(reason.limit), got = std::to_string(reason.got);
  switch (reason.rule) {
    case Reason::kNone:
      return "";
    case Reason::kOtherDevice:
      return "runs on " + std::string(row.device) + " devices, not on " + device.name;
    case Reason::kOtherOp:
      return "computes the " + std::string(op_name(row.op)) + ", not the " + op_name(static_cast<Op>(reason.got));
    case Reason::kNothingToAppend:
      return "has nothing to append";
    case Reason::kIsa:
      return "needs " + isa_names(static_cast<uint32_t>(reason.got)) +
             ((reason.got & device.refused_isa) != 0
                  ? ", which the operating system refused"
                  : std::string(", which this ") + (device.kind == "cpu" ? "CPU" : "device") + " does not have");
    case Reason::kLds:
      return "needs " + got + " bytes of shared memory, this device has " + limit;
    case Reason::kDtype:
      return "does not take " + std::string(dtype_name(static_cast<int32_t>(reason.got)));
    case Reason::kTooLarge:
      return "takes " + name + " <= " + limit + ", got " + got;
    case Reason::kMadeForLess:
      return "is made for " + name + " <= " + limit + ", got " + got;
    case Reason::kMadeForMore:
      return "is made for " + name + " > " + limit + ", got " + got;
    case Reason::kFeatures:
      return "does not support " + feature_names(static_cast<uint32_t>(reason.got));
    case Reason::kScale:
      return "takes softmax_scale > 0";
    case Reason::kTinyScale:
      return "divides LSE by softmax_scale, which must be 1e-30 or more";
    case Reason::kPageSize:
      return "takes a page_size that is a multiple of " + limit + ", got " + got;
    case Reason::kPagesWithLeftpad:
      return "does not take leftpad_k together with block_table";
    case Reason::kSoftcap:
      return "is made for a softcap, and there is none";
    case Reason::kAlibi:
      return "is made for ALiBi, and there are no slopes";
    case Reason::kBias:
      return "takes a bias of the dtype of q with keys side by side, and rows at " + bytes_multiple(reason.limit);
    case Reason::kLse:
      return "sums rounded weights, too rough for lse";
    case Reason::kRounding:
      return "rounds towards zero, which FW_FAST_ROUNDING allows";
    case Reason::kFewColumns:
      return "takes head dimensions >= " + limit;
    case Reason::kFarRows:
      return "takes " + name + " with rows less than " + limit + " elements apart";
    case Reason::kHeadDims:
      return "takes head dimensions that are " + bytes_multiple(reason.limit);
    case Reason::kRowAddresses:
      return "takes " + name + " with rows at " + bytes_multiple(reason.limit);
    case Reason::kManyBlocks:
      return "is made for blocks of queries too few to fill the GPU, and keys enough to attend to in parts";
    case Reason::kAnyOrder:
      return "is made for sums in any order, FW_DETERMINISTIC asks for a fixed one";
    case Reason::kFewHeads:
      return "makes sums in a fixed order one head at a time, and " + name + " = " + got +
             " are too few to fill the GPU";
    case Reason::kNoCode:
      return "has no machine code for " + device.arch + " in this build of flashwave";
    case Reason::kOnlyForced:
      return "runs only when forced";
    case Reason::kSlowPath:
      return "is the slow path, which FW_NO_SLOW_PATH excludes";
    case Reason::kCompanion:
      return "accompanies other kernels and cannot be forced";
  }
  return "?";
}

std::string unknown_kernel(std::string_view name, Op op, const DeviceInfo& device) {
  std::string nearest, all;
  size_t nearest_distance = name.size() / 3 + 1;  // farther ones are not typing errors
  for (const KernelRow& row : catalog_of(row_kind(device))) {
    if (row.op != op) continue;
    all += (all.empty() ? "" : ", ") + std::string(row.name);
    const size_t distance = edit_distance(name, row.name);
    if (distance < nearest_distance) nearest_distance = distance, nearest = row.name;
  }
  std::string reason = "there is no kernel named '" + std::string(name) + "'";
  if (!nearest.empty()) reason += "; did you mean " + nearest + "?";
  const std::string kernels = op_name(op) + std::string(" kernels for ") + device.name;
  if (all.empty()) return reason + "; there are no " + kernels;
  return reason + (nearest.empty() ? "; " : " ") + "the " + kernels + " are " + all;
}

}  // namespace flashwave

// Which kernel runs a problem on a device, how its work is cut up, and what memory that takes. Pure functions of the
// problem and the device's description: no device need be present.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "catalog/catalog.h"
#include "device/driver.h"
#include "kernels/abi/conversion.h"
#include "kernels/abi/params.h"
#include "kernels/abi/tensor_maps.h"
#include "problem/merging.h"
#include "problem/problem.h"
#include "problem/rotary.h"

namespace flashwave {

abi::Params params_of(const Problem& problem);  // what its kernels receive; q_rotated is left open
abi::Params params_of(const Rotary& rotary);
abi::Params params_of(const Merging& merging);
struct Conversion;
abi::Params params_of(const Problem& problem, const Conversion& conversion);

// Of a row with kNeedsTensorMaps or kNeedsGradientMaps, in the order of abi::TensorMaps.
struct TensorMapDescriptions {
  std::array<abi::TensorMapDescription, sizeof(abi::TensorMaps) / sizeof(abi::TensorMap)> maps;
  size_t count;  // of them that the row's kernel uses

  const abi::TensorMapDescription& operator[](size_t i) const { return maps[i]; }
  std::span<const abi::TensorMapDescription> used() const { return std::span(maps).first(count); }
};
TensorMapDescriptions describe_tensor_maps(const KernelRow& row, const abi::Params& params);

// Work::kPackedSplits: heads whose rows lie in one tile. As many of those that share a key head as are a power of two.
int32_t packed_heads(int32_t heads_q, int32_t heads_k);

uint32_t features_of(const Problem& problem);  // Feature bits the problem needs

// Why a row does not take a problem: the rule and its numbers, all that a choice needs. Sentences are for who asks.
struct Reason {
  enum Rule : uint8_t {
    kNone,  // it takes the problem
    kOtherDevice,
    kOtherOp,
    kNothingToAppend,
    kIsa,
    kLds,
    kDtype,
    kTooLarge,
    kMadeForLess,  // it could, but is made for smaller ones
    kMadeForMore,
    kFeatures,
    kScale,
    kTinyScale,
    kPageSize,
    kPagesWithLeftpad,
    kSoftcap,
    kAlibi,
    kBias,
    kLse,
    kRounding,
    kFewColumns,
    kFarRows,
    kHeadDims,
    kRowAddresses,
    kManyBlocks,  // it could, but is made for too few blocks of queries to fill the GPU
    kAnyOrder,    // it could, but is made for sums in any order
    kFewHeads,    // it could, but makes sums in a fixed order one head at a time, and there are few
    kNoCode,
    kOnlyForced,
    kSlowPath,
    kCompanion,
  };
  Rule rule = kNone;
  const char* name = "";  // of the argument
  int64_t limit = 0, got = 0;

  bool refuses() const { return rule != kNone; }
};
Reason why_not(const KernelRow& row, const Problem& problem, const DeviceInfo& device);
Reason why_not(const KernelRow& row, const Rotary& rotary, const DeviceInfo& device);
Reason why_not(const KernelRow& row, const Merging& merging, const DeviceInfo& device);
std::string sentence(const Reason& reason, const KernelRow& row, const DeviceInfo& device);  // "" for kNone
// What is said of a kernel's name that no row has.
std::string unknown_kernel(std::string_view name, Op op, const DeviceInfo& device);
std::string_view row_kind(const DeviceInfo& device);  // KernelRow::device of the rows that run there

// Empty if the row can run the problem on the device, else a sentence why not.
std::string refusal(const KernelRow& row, const Problem& problem, const DeviceInfo& device);
std::string refusal(const KernelRow& row, const Rotary& rotary, const DeviceInfo& device);

struct Refusal {
  const KernelRow* row;
  std::string reason;
  Reason::Rule rule = Reason::kNone;  // kNone: what is said is of no row's
};

struct Selection {
  const KernelRow* row = nullptr;  // the first candidate that takes the problem; nullptr if none does
  std::vector<Refusal> refused;    // those before it, in order, if reasons are wanted
};
// Sentences for all refusals take longer than the choice: a call that nobody asks about does without.
enum class Reasons : uint8_t { kAll, kNone };

struct PlanOptions {
  const char* force_kernel = nullptr;  // name of the only candidate
  int32_t threads = 1;
  Reasons reasons = Reasons::kAll;  // wanted even if some candidate takes the problem
  bool slow_path = true;            // may be chosen
};
Selection select(const Problem& problem, const DeviceInfo& device, const PlanOptions& options = {});
Selection select(const Rotary& rotary, const DeviceInfo& device, const PlanOptions& options = {});
Selection select(const Merging& merging, const DeviceInfo& device, const PlanOptions& options = {});

// One launch: the kernel and how its work is cut up.
struct Step {
  const KernelRow* row;
  abi::Schedule schedule;
};

// By cpu_schedule() or gpu_schedule(). threads: at most so many run the call; they decide how many rows of queries a
// task of a CPU takes, and no bit of a result.
abi::Schedule schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row, int32_t threads);
abi::Schedule cpu_schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row, int32_t threads);
// Whether a kernel by Work::kPackedSplits is expected to be faster than one that takes blocks of one head with all
// keys.
bool splits_pay(const Problem& problem, const DeviceInfo& device, const KernelRow& row);
// Whether a kernel with kOrdersByHeads is expected to be faster than a pair of kernels that make no sums.
bool order_pays(const Problem& problem, const DeviceInfo& device, const KernelRow& row);
abi::Schedule gpu_schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row);
abi::Schedule schedule(const Rotary& rotary);
abi::Schedule schedule(const Merging& merging, const KernelRow& row);
abi::Schedule append_schedule(const Problem& problem, const KernelRow& row);
abi::Schedule fill_schedule(const DeviceInfo& device, const KernelRow& row);
// schedule.splits, or what stands for it where the kernel shares the keys out itself.
int32_t reported_splits(const Problem& problem, const KernelRow& row, const abi::Schedule& schedule);
// What goes before the chosen kernel, beside an append. Fails if a kernel it takes is not there.
Status steps_before(const Problem& problem, const DeviceInfo& device, const KernelRow& row,
                    const abi::Schedule& schedule, std::vector<Step>* steps);
// What follows the chosen kernel. Fails if a kernel it takes is not there.
Status steps_after(const Problem& problem, const DeviceInfo& device, const KernelRow& row,
                   const abi::Schedule& schedule, std::vector<Step>* steps);

// A tensor of a problem, copied in another element type.
struct Conversion {
  fw_tensor from, to;
  abi::ConvertedRows rows;
  int64_t heads, columns;
};
// A problem of fp16 tensors as one of bf16: q, k, v and d_o are copied, gradients copied back. O, of which a kernel has
// more than bf16 holds, is in fp32.
struct Bf16Problem {
  Problem problem;
  std::vector<Conversion> before, after;
  size_t bytes = 0;  // of the copies
};
// memory: where the copies go; nullptr where they are only planned for. bf16_products is not set in the answer.
Bf16Problem as_bf16(const Problem& problem, char* memory);
bool can_be_bf16(const Problem& problem);
abi::Schedule schedule(const Problem& problem, const Conversion& conversion);

struct Plan {
  Selection selection;
  abi::Schedule schedule{};
  int32_t splits = 1;                  // parts of the keys; see fw_report
  const KernelRow* append = nullptr;   // pre-pass that writes k_new, v_new into the cache and rotates q
  const KernelRow* fill = nullptr;     // what writes rows of no sequence, before all others
  std::vector<Step> before;            // launches that prepare what the chosen kernel reads
  std::vector<Step> after;             // launches that finish what the chosen kernel began, in order
  const KernelRow* convert = nullptr;  // the rest is the plan of as_bf16(problem): what copies its tensors
  const KernelRow* merge = nullptr;    // GPUs: what adds the results, which go to the workspace, to those there are
  int32_t threads = 1;
  // workspace = copies | q_rotated | o and lse to be merged | the kernel's | scratch of each worker, each 64-byte
  // aligned
  size_t copies_bytes = 0;
  size_t q_rotated_bytes = 0;
  size_t part_o_bytes = 0, part_lse_bytes = 0;
  size_t kernel_bytes = 0;
  size_t scratch_bytes = 0;
  size_t workspace_bytes() const {
    return copies_bytes + q_rotated_bytes + part_o_bytes + part_lse_bytes + kernel_bytes + scratch_bytes;
  }
};

// Fails with FW_UNSUPPORTED and the reasons when no candidate (or not the forced one) takes the problem.
Status make_plan(const Problem& problem, const DeviceInfo& device, const PlanOptions& options, Plan* plan);
Status find_fill(const Problem& problem, const DeviceInfo& device, const KernelRow** row);
Status make_plan(const Rotary& rotary, const DeviceInfo& device, const PlanOptions& options, Plan* plan);
Status make_plan(const Merging& merging, const DeviceInfo& device, const PlanOptions& options, Plan* plan);

std::string explain_text(const Problem& problem, const DeviceInfo& device, const Plan& plan, const Status& planned);
std::string explain_json(const Problem& problem, const DeviceInfo& device, const Plan& plan, const Status& planned);

struct RunOptions {
  void* stream = nullptr;
  char* workspace = nullptr;  // nullptr: allocate's, else from the device's cache
  size_t workspace_size = 0;
  const fw_executor* executor = nullptr;
  void* (*allocate)(void* context, size_t bytes) = nullptr;  // asked where there is no workspace
  void* allocate_context = nullptr;
};
Status run(Device& device, const Problem& problem, const Plan& plan, const RunOptions& options);
// Of a problem where fills_rows(), no more than that: for those in which nothing is attended.
Status run_fill(Device& device, const Problem& problem, void* stream);
Status run(Device& device, const Rotary& rotary, const Plan& plan, const RunOptions& options);
Status run(Device& device, const Merging& merging, const Plan& plan, const RunOptions& options);

}  // namespace flashwave

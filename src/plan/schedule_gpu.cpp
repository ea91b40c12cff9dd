// How the kernels of GPUs cut up their work into workgroups. As on the CPU, splits of the keys depend on the problem
// and the device, never on anything that changes from call to call.
#include <algorithm>

#include "kernels/abi/backward_blocks.h"
#include "kernels/abi/decode_line.h"
#include "kernels/abi/generic_backward.h"
#include "kernels/abi/head_backward.h"
#include "kernels/abi/partials.h"
#include "kernels/abi/score_gradients.h"
#include "kernels/abi/tiny_schedule.h"
#include "plan/plan.h"

namespace flashwave {
namespace {

// Splits: each costs a part of the results written and read again in fp32, so no more than fill the GPU one and a half
// times, and none of fewer keys than this.
constexpr int64_t kMinKeysPerSplit = 512;
constexpr int64_t kMaxSplits = 64;

constexpr int32_t kCounterBytes = 64;
// Blocks of queries that go by number are few and short. With a mask, to whom the blocks fall matters more than a
// launch does, the more so the longer each takes: so many rounds times keys and head dim, or, from dim 256 on, so many
// keys.
constexpr int64_t kMostRounds = 8, kShortKeys = 1024, kShortMasked = 256, kMaskedWork = 4 * 512 * 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

abi::Schedule one_part(const Problem& problem, int32_t rows_per_task, int64_t tasks) {
  abi::Schedule s{};
  s.splits = 1;
  s.rows_per_task = rows_per_task;
  s.heads_per_task = 1;
  s.keys_per_split = std::max<int64_t>(problem.a.seqlen_k + problem.a.seqlen_new, 1);
  s.tasks = tasks;
  return s;
}

// Whether kernels that can split the keys leave fp32 sums for the one that combines them: with several parts, and where
// that one is to write O in fp32. There is a workspace then, by which the kernels know.
bool makes_parts(const Problem& problem, int64_t splits) { return splits > 1 || problem.float_out(); }

abi::Schedule packed_rows(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const fw_attention& a = problem.a;
  const int64_t rows = a.seqlen_q * problem.group(), keys = std::max<int64_t>(a.seqlen_k + a.seqlen_new, 1);
  const int64_t blocks = a.batch * a.heads_k * std::max<int64_t>(ceil_div(rows, row.tile_q), 1);
  int64_t splits = a.num_splits;
  if (splits == 0) {
    const int64_t wanted = 3 * device.compute_units / (2 * std::max<int64_t>(blocks, 1));
    splits = std::clamp<int64_t>(keys / kMinKeysPerSplit, 1, std::clamp<int64_t>(wanted, 1, kMaxSplits));
  }
  abi::Schedule s = one_part(problem, row.tile_q, 0);
  s.keys_per_split = ceil_div(ceil_div(keys, splits), row.tile_k) * row.tile_k;
  if (a.num_splits == 0) splits = ceil_div(keys, s.keys_per_split);
  s.splits = static_cast<int32_t>(splits);
  s.tasks = blocks * splits;
  if (makes_parts(problem, splits)) {
    s.workspace_bytes =
        abi::PartialResults(nullptr, a.batch * a.heads_k * rows, splits, static_cast<int>(a.dim_v)).bytes;
  }
  return s;
}

// The time of workgroups that each take all blocks of keys of a part, one after another, in units of a block. Starting
// and ending a part takes as long as some blocks; combining them a launch, and their sums in fp32 written and read.
struct SplitCost {
  int64_t workgroups, key_blocks, tile_bytes, parts_bytes;
  static constexpr int64_t kEnds = 4, kLaunch = 3;

  // Whatever the number of parts.
  int64_t at_least(int64_t tasks) const { return tasks * (key_blocks + kEnds) / workgroups; }
  int64_t of(int64_t tasks, int64_t splits) const {
    const int64_t alone = ceil_div(tasks * splits, workgroups) * (ceil_div(key_blocks, splits) + kEnds);
    if (splits == 1) return alone;
    return alone + kLaunch + ceil_div(2 * splits * parts_bytes, tile_bytes * workgroups);
  }
};

struct PackedBlocks {
  int32_t heads;   // of a tile
  int64_t blocks;  // tiles of rows
  SplitCost cost;

  PackedBlocks(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
    const fw_attention& a = problem.a;
    heads = packed_heads(static_cast<int32_t>(a.heads_q), static_cast<int32_t>(a.heads_k));
    const int64_t queries = row.tile_q / heads;
    blocks = ceil_div(a.seqlen_q, queries) * (a.heads_q / heads) * a.batch;
    const abi::Params p = params_of(problem);
    const int64_t keys = std::max<int64_t>(a.seqlen_k + a.seqlen_new, 1);
    const int64_t seen = std::min(keys, std::min(p.window_left, keys) + std::min(p.window_right, keys) + queries);
    cost = {.workgroups = device.compute_units,
            .key_blocks = ceil_div(seen, row.tile_k),
            .tile_bytes = row.tile_k * (a.dim_qk + a.dim_v) * 2,
            .parts_bytes = a.batch * a.heads_q * a.seqlen_q * a.dim_v * 4};
  }
  // The number of parts: what is asked for, or what takes the least time.
  int64_t splits(const fw_attention& a) const {
    if (a.num_splits > 0) return a.num_splits;
    int64_t best = 1;
    for (int64_t splits = 2; splits <= std::min(kMaxSplits, cost.key_blocks / 2); ++splits) {
      if (cost.of(blocks, splits) < cost.of(blocks, best)) best = splits;
    }
    return best;
  }
};

abi::Schedule packed_splits(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const fw_attention& a = problem.a;
  const PackedBlocks packed(problem, device, row);
  const int64_t splits = packed.splits(a);
  abi::Schedule s = one_part(problem, row.tile_q,
                             std::max<int64_t>(std::min<int64_t>(packed.blocks * splits, device.compute_units), 1));
  s.splits = static_cast<int32_t>(splits);
  s.heads_per_task = packed.heads;
  if (makes_parts(problem, splits)) {
    s.workspace_bytes =
        abi::PartialResults(nullptr, a.batch * a.heads_q * a.seqlen_q, splits, static_cast<int>(a.dim_v)).bytes;
  }
  return s;
}

// Where lengths are in device memory, the kernel shares the keys out itself: splits = 0 leaves that to it.
abi::Schedule line(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const fw_attention& a = problem.a;
  const int64_t units = abi::decode_units(a.batch, a.heads_k, a.seqlen_q * problem.group(), row.tile_q);
  const int64_t workgroups = std::min<int64_t>(device.compute_units, abi::kMostDecodeParts);
  abi::Schedule s = one_part(problem, row.tile_q, 0);
  s.splits = a.num_splits;
  if (units == 0) return s;
  if (s.splits == 0 && !problem.varlen_q() && !problem.varlen_k() && !a.seqused_k && !a.leftpad_k) {
    const int64_t keys = a.seqlen_k + a.seqlen_new;
    const int64_t first = abi::decode_first_key(a.seqlen_q, keys, params_of(problem).window_left);
    s.splits = static_cast<int32_t>(
        abi::decode_parts<int64_t>(abi::decode_tiles(keys - first), units, workgroups, row.threads / 32));
  }
  s.tasks = s.splits > 0 ? units * s.splits : workgroups;
  s.workspace_bytes = abi::DecodeParts(nullptr, abi::decode_slots(s.splits, s.tasks), row.tile_q, a.dim_v).bytes;
  return s;
}

// Whether several workgroups add to the sums of dQ in the workspace; else another kernel computes it.
bool sums_dq(const KernelRow& row) {
  return row.work != Work::kKeyBlocks || (row.needs & (kNeedsAnyOrder | kOrdersByHeads)) != 0;
}

// Sums of dQ in a fixed order (kOrdersByHeads): the tiles of keys of a head are dealt out to so many workgroups, which
// go through theirs one after the other and have sums of their own. The fewest of those that take the least time.
constexpr int64_t kMostChains = 4;  // each has its sums in fp32

struct KeyChains {
  int64_t heads, tiles, units;
  int64_t rounds(int64_t chains) const { return ceil_div(heads * chains, units) * ceil_div(tiles, chains); }
  int64_t best() const {
    int64_t best = 1;
    for (int64_t chains = 2; chains <= std::min(kMostChains, tiles); ++chains) {
      if (rounds(chains) < rounds(best)) best = chains;
    }
    return best;
  }
};
KeyChains key_chains(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const fw_attention& a = problem.a;
  return {.heads = a.heads_k * a.batch,
          .tiles = std::max<int64_t>(ceil_div(a.seqlen_k, row.tile_k), 1),
          .units = std::max<int64_t>(device.compute_units, 1)};
}

// Whether the gradients of bias and slopes are made by the tiles of this kernel: bias by a kernel with the same ones,
// slopes by sums that it leaves itself. Others have passes of their own for both (kernels/abi/score_gradients.h).
bool by_own_tiles(const KernelRow& row) { return row.work == Work::kKeySums; }

// Whether one tile has all keys of a head, so that the kernel writes dQ at once.
bool writes_dq(const KernelRow& row) { return row.max_seqlen_k > 0 && row.max_seqlen_k <= row.tile_k; }

// Workgroups take tiles of keys until none is left, counted where the pass before put a 0. At least one starts, and
// finds that there are none.
abi::Schedule key_tiles(const Problem& problem, const DeviceInfo& device, const KernelRow& row, int64_t workgroups) {
  const fw_attention& a = problem.a;
  const int64_t tiles = std::max<int64_t>(ceil_div(a.seqlen_k, row.tile_k) * a.heads_k * a.batch, 1);
  abi::Schedule s = one_part(problem, row.tile_q, workgroups * std::min(tiles, device.compute_units / workgroups));
  s.in_order = problem.deterministic();
  s.dq_columns = static_cast<int16_t>(row.work == Work::kKeyPairs ? row.max_dim_qk : 0);  // to clear
  const int64_t rows = problem.varlen_q() ? a.total_q : a.seqlen_q;
  s.workspace_bytes = abi::backward_bytes(a.batch, a.heads_q, rows, problem.varlen_q(), row.tile_q, row.max_dim_qk);
  return s;
}

// A workgroup for each tile of rows of k and v. At least one starts, and finds that there are none.
abi::Schedule key_blocks(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const fw_attention& a = problem.a;
  const int64_t tiles = ceil_div(a.seqlen_k, row.tile_k) * a.heads_k * a.batch;
  abi::Schedule s = one_part(problem, row.tile_q, std::max<int64_t>(tiles, 1));
  s.in_order = problem.deterministic();
  if (s.in_order && (row.needs & kOrdersByHeads)) {
    const int64_t chains = key_chains(problem, device, row).best();
    s.splits = static_cast<int32_t>(chains * abi::backward_sums_of_tile(row.threads, row.max_dim_qk));
    s.tasks = std::max<int64_t>(chains * a.heads_k * a.batch, 1);
  }
  s.dq_columns = static_cast<int16_t>(sums_dq(row) ? row.max_dim_qk * s.splits : 0);
  s.lse_by_scale = (row.needs & kTakesLseByScale) != 0;
  const int64_t rows = problem.varlen_q() ? a.total_q : a.seqlen_q;
  s.workspace_bytes = abi::backward_bytes(a.batch, a.heads_q, rows, problem.varlen_q(), row.tile_q, s.dq_columns);
  if (row.work == Work::kKeySums) s.keys_per_split = row.tile_k;
  if (problem.g.d_slopes != nullptr) {
    const abi::Params params = params_of(problem);
    s.workspace_bytes +=
        4 * (by_own_tiles(row) ? abi::backward_slope_floats(params, row.tile_k) : abi::slope_parts(params));
  }
  return s;
}

// A backward by kernels that have all queries and keys of a head in a workgroup.
bool by_heads(const KernelRow& row) {
  return row.op == Op::kBackward && row.work == Work::kQueryBlocks && !is_slow_path(row);
}
abi::Schedule whole_heads(const Problem& problem, const KernelRow& row) {
  const fw_attention& a = problem.a;
  const int32_t block = std::min(row.tile_q, abi::kHeadBlock);
  abi::Schedule s = one_part(problem, block, a.heads_q * a.batch);
  // Where queries pass by tiles of keys, dQ is summed over the tiles.
  const bool sums = row.tile_q < row.max_seqlen_q && a.seqlen_k > row.tile_k;
  s.dq_columns = static_cast<int16_t>(sums ? row.max_dim_qk : 0);
  s.lse_by_scale = (row.needs & kTakesLseByScale) != 0;
  const int64_t rows = problem.varlen_q() ? a.total_q : a.seqlen_q;
  s.workspace_bytes = abi::backward_bytes(a.batch, a.heads_q, rows, problem.varlen_q(), block, s.dq_columns);
  return s;
}

int64_t bias_blocks(const Problem& problem, const KernelRow& row) {
  const abi::BiasBlocks n = abi::backward_bias_blocks(params_of(problem), row.tile_q, row.tile_k);
  return n.batches * n.heads * n.blocks * n.tiles;
}

// The kernel that prepares or finishes the blocks of this one. Some take blocks of any size, told by the schedule, and
// dQ is cut up in its own way, by a kernel of the same kind: what is prepared is the same for both.
const KernelRow* companion(Op op, const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const bool by_blocks = row.work == Work::kKeyBlocks || row.work == Work::kKeySums || by_heads(row);
  for (const KernelRow& other : catalog_of(row_kind(device))) {
    if (other.op != op || why_not(other, problem, device).refuses()) continue;
    if ((other.work == Work::kAnyBlocks) != (by_blocks && op != Op::kDq && !(op == Op::kDBias && by_own_tiles(row))))
      continue;
    if (other.work == Work::kAnyBlocks) return &other;
    if (other.max_dim_qk == row.max_dim_qk && other.max_dim_v == row.max_dim_v &&
        (op == Op::kDq ? other.features == row.features : other.tile_q == row.tile_q)) {
      return &other;
    }
  }
  return nullptr;
}

bool by_key_tiles(const KernelRow& row) {
  return row.work == Work::kKeyTiles || row.work == Work::kKeyPairs || row.work == Work::kKeyBlocks ||
         row.work == Work::kKeySums;
}

int64_t blocks_of_queries(const Problem& problem, int64_t tile_q) {
  return std::max<int64_t>(ceil_div(problem.a.seqlen_q, tile_q), 1) * problem.a.heads_q * problem.a.batch;
}

Status add_companion(Op op, const Problem& problem, const DeviceInfo& device, const KernelRow& row,
                     const abi::Schedule& schedule, int64_t tasks, std::vector<Step>* steps) {
  const KernelRow* other = companion(op, problem, device, row);
  if (other == nullptr) return {FW_INTERNAL_ERROR, std::string(row.name) + ": no kernel to " + op_name(op)};
  steps->push_back({other, schedule});
  steps->back().schedule.tasks = op == Op::kDq                           ? blocks_of_queries(problem, other->tile_q)
                                 : op == Op::kDBias && by_own_tiles(row) ? bias_blocks(problem, *other)
                                                                         : tasks;
  steps->back().schedule.zeroed_bytes = 0;
  return {};
}

}  // namespace

abi::Schedule gpu_schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const fw_attention& a = problem.a;
  switch (row.work) {
    case Work::kQueryBlocks: {
      if (by_heads(row)) return whole_heads(problem, row);
      abi::Schedule s = one_part(problem, row.tile_q, ceil_div(a.seqlen_q, row.tile_q) * a.heads_q * a.batch);
      if (row.op == Op::kBackward) s.workspace_bytes = abi::generic_backward_bytes(params_of(problem));
      return s;
    }
    case Work::kPackedRows:
      return packed_rows(problem, device, row);
    case Work::kStreams:
      return one_part(problem, row.tile_q, abi::tiny_tasks(a.batch, a.seqlen_q, a.heads_k, row.tile_q));
    case Work::kPersistent: {
      const int64_t blocks = ceil_div(a.seqlen_q, row.tile_q) * a.heads_q * a.batch;
      abi::Schedule s = one_part(problem, row.tile_q, std::min<int64_t>(blocks, device.compute_units));
      // The next block to take. Few that are short and alike go by number: to clear a counter is a launch of its own.
      const bool is_short = (features_of(problem) & kMask) == 0 ? a.seqlen_k <= kShortKeys
                            : row.max_dim_qk < 256 ? blocks * a.seqlen_k * row.max_dim_qk <= kMaskedWork * s.tasks
                                                   : a.seqlen_k <= kShortMasked;
      const bool few = blocks <= kMostRounds * s.tasks && is_short && !problem.varlen_q();
      if (blocks > s.tasks && !few) s.zeroed_bytes = s.workspace_bytes = kCounterBytes;
      return s;
    }
    case Work::kPackedSplits:
      return packed_splits(problem, device, row);
    case Work::kKeyTiles:
      return key_tiles(problem, device, row, 1);
    case Work::kKeyPairs:
      return key_tiles(problem, device, row, 2);
    case Work::kKeyBlocks:
    case Work::kKeySums:
      return key_blocks(problem, device, row);
    case Work::kLine:
      return line(problem, device, row);
    case Work::kAnyBlocks:  // never by itself
    case Work::kRows:
      break;
  }
  return one_part(problem, 1, a.batch * (a.seqlen_q + a.seqlen_new));
}

int32_t packed_heads(int32_t heads_q, int32_t heads_k) {
  const int32_t group = heads_q / heads_k;
  return std::min(group & -group, 64);
}

bool order_pays(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const KeyChains chains = key_chains(problem, device, row);
  // Five products of queries and keys against the seven of two kernels without sums, which fill the GPU whatever the
  // number of heads.
  return 5 * chains.rounds(chains.best()) * chains.units < 7 * chains.heads * chains.tiles;
}

bool splits_pay(const Problem& problem, const DeviceInfo& device, const KernelRow& row) {
  const fw_attention& a = problem.a;
  const PackedBlocks packed(problem, device, row);
  const int64_t limit = 9 * packed.cost.of(ceil_div(a.seqlen_q, row.tile_q) * a.heads_q * a.batch, 1);
  // Long prompts are planned often, and end here: no number of parts is tried for them.
  if (10 * packed.cost.at_least(packed.blocks) >= limit) return false;
  return 10 * packed.cost.of(packed.blocks, packed.splits(a)) < limit;
}

int32_t reported_splits(const Problem& problem, const KernelRow& row, const abi::Schedule& schedule) {
  if (schedule.splits > 0) return schedule.splits;
  const fw_attention& a = problem.a;
  const int64_t units = abi::decode_units(a.batch, a.heads_k, a.seqlen_q * problem.group(), row.tile_q);
  return static_cast<int32_t>(std::max<int64_t>(ceil_div(schedule.tasks, std::max<int64_t>(units, 1)), 1));
}

abi::Schedule schedule(const Merging& merging, const KernelRow& row) {
  const fw_merging& m = merging.m;
  abi::Schedule s{};
  s.splits = 1;
  if (row.threads > 0) {
    s.rows_per_task = abi::kCombineRows;
    s.tasks = abi::combine_tasks(merging.rows() * m.heads);
  } else {
    constexpr int64_t kBytesPerTask = 64 << 10;  // far more than handing out a task costs, and in the first cache
    s.rows_per_task = static_cast<int32_t>(std::max<int64_t>(kBytesPerTask / (m.heads * m.dim * 12), 1));
    s.tasks = ceil_div(merging.rows(), s.rows_per_task);
  }
  return s;
}

abi::Schedule append_schedule(const Problem& problem, const KernelRow& row) {
  const int64_t rows = problem.a.seqlen_new + (problem.a.rotary_cos.data != nullptr ? problem.a.seqlen_q : 0);
  return one_part(problem, 1, row.threads > 0 ? problem.a.batch * rows : problem.a.batch);
}

// Every workgroup reads all offsets, so no more of them than run at once.
abi::Schedule fill_schedule(const DeviceInfo& device, const KernelRow& row) {
  abi::Schedule s{};
  s.splits = 1;
  s.tasks = row.threads > 0 ? std::max<int64_t>(device.compute_units, 1) : 1;
  return s;
}

Status steps_before(const Problem& problem, const DeviceInfo& device, const KernelRow& row,
                    const abi::Schedule& schedule, std::vector<Step>* steps) {
  if (!by_key_tiles(row)) return {};
  return add_companion(Op::kPrepare, problem, device, row, schedule, blocks_of_queries(problem, row.tile_q), steps);
}

Status steps_after(const Problem& problem, const DeviceInfo& device, const KernelRow& row,
                   const abi::Schedule& schedule, std::vector<Step>* steps) {
  if (row.threads == 0) return {};  // kernels of CPUs do everything in one call
  const auto add = [&](const KernelRow& other, int64_t tasks) {
    steps->push_back({&other, schedule});
    steps->back().schedule.tasks = tasks;
    steps->back().schedule.zeroed_bytes = 0;
  };
  const auto follows = [&](const KernelRow& other, Op op) {
    return other.op == op && !why_not(other, problem, device).refuses();
  };
  const bool splits_keys = row.work == Work::kPackedRows || row.work == Work::kPackedSplits;
  if (row.op == Op::kForward && splits_keys && schedule.workspace_bytes > 0) {
    for (const KernelRow& other : catalog_of(row_kind(device))) {
      if (!follows(other, Op::kCombine)) continue;
      add(other, abi::combine_tasks(problem.a.batch * problem.a.heads_q * problem.a.seqlen_q));
      return {};
    }
    return {FW_UNSUPPORTED, "no kernel of " + device.name + " combines the parts of the keys"};
  }
  if (by_key_tiles(row)) {
    Status status;
    if (problem.g.dq.data != nullptr && !writes_dq(row)) {
      const Op op = sums_dq(row) ? Op::kFinish : Op::kDq;
      status = add_companion(op, problem, device, row, schedule, blocks_of_queries(problem, row.tile_q), steps);
    }
    if (by_own_tiles(row)) {
      if (status.ok() && problem.g.d_bias.data != nullptr) {
        status = add_companion(Op::kDBias, problem, device, row, schedule, 0, steps);
        if (status.ok() && steps->back().schedule.tasks == 0) steps->pop_back();
      }
    } else {
      const auto add_scores = [&](Op op, int64_t waves) {  // none where there are no queries
        if (!status.ok() || waves == 0) return;
        status = add_companion(op, problem, device, row, schedule, abi::score_tasks(waves), steps);
      };
      const abi::Params params = params_of(problem);
      add_scores(Op::kDBias, params.d_bias.data != nullptr ? abi::d_bias_waves(params) : 0);
      add_scores(Op::kDSlopes, params.d_slopes != nullptr ? abi::slope_parts(params) : 0);
    }
    if (status.ok() && (problem.g.d_sinks != nullptr || problem.g.d_slopes != nullptr)) {
      status = add_companion(Op::kSums, problem, device, row, schedule, problem.a.heads_q, steps);
    }
    return status;
  }
  if (by_heads(row)) {
    if (problem.g.d_sinks == nullptr) return {};
    return add_companion(Op::kSums, problem, device, row, schedule, problem.a.heads_q, steps);
  }
  if (row.op == Op::kBackward) {
    const abi::Params params = params_of(problem);
    int pass = 0;
    for (const KernelRow& other : catalog_of(row_kind(device))) {
      if (!follows(other, Op::kGradients)) continue;
      const int64_t tasks = abi::generic_backward_tasks(static_cast<abi::GenericPass>(++pass), params);
      if (tasks > 0) add(other, tasks);
    }
    if (pass != abi::kGenericPasses - 1) return {FW_INTERNAL_ERROR, std::string(row.name) + ": a pass is missing"};
  }
  return {};
}

}  // namespace flashwave

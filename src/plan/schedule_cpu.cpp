// How the CPU kernels cut up their work. Splits of the keys change the order of summation, so they depend on the
// problem and the machine, never on how many threads a call may use; blocks of rows, and how many splits are the work
// of one task, do not change a single bit.
#include <algorithm>

#include "kernels/abi/amx_scratch.h"
#include "kernels/abi/cpu_scratch.h"
#include "plan/plan.h"

namespace flashwave {
namespace {

constexpr int64_t kMaxRowsPerTask = 1024;  // enough to hide the packing of K and V; more only costs cache
constexpr int64_t kMinRowsPerTask = 192;   // below this packing costs 4-6 % (kernels/cpu/NOTES.md)
constexpr int64_t kRowsOfOneTask = 96;     // with no more rows than this per task, split the keys instead
constexpr int64_t kMinKeysPerSplit = 512;
constexpr int64_t kMaxSplits = 256;
constexpr int64_t kBackwardChunk = 1536;        // most query rows packed at a time
constexpr int64_t kBackwardBytes = 4 << 20;     // and most memory for them and their dQ (kernels/cpu/NOTES.md)
constexpr int64_t kAmxBackwardChunk = 1024;     // on tiles: most query rows; half as many if that is more than
constexpr int64_t kAmxBackwardBytes = 1 << 20;  // so much memory, half of a second-level cache
constexpr int64_t kMinBlocksPerSplit = 4;       // backward: key blocks that share one packing of the queries
constexpr int64_t kAmxBlocksPerSplit = 2;       // the same on tiles, whose blocks have more keys

constexpr int64_t kRotaryBytesPerTask = 32 << 10;  // far more than handing out a task costs, and in the first cache

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

struct Shape {
  int64_t heads;  // independent (sequence, key head) pairs
  int64_t rows;   // query rows of one, GQA group packed
  int64_t keys;
  int32_t dim_qk, dim_v;

  explicit Shape(const Problem& p)
      : heads(p.a.batch * p.a.heads_k),
        rows(p.a.seqlen_q * p.group()),
        keys(std::max<int64_t>(p.a.seqlen_k, 1)),
        dim_qk(int32_t(p.a.dim_qk)),
        dim_v(int32_t(p.a.dim_v)) {}
};

bool on_tiles(const KernelRow& row) { return (row.isa & kIsaTiles) != 0; }
// Of how many numbers on tiles one in memory is the sum: fp16 on tiles of bf16 is two.
int parts_on_tiles(const KernelRow& row) { return row.isa == kIsaAmx && (row.dtypes & kRowF16) != 0 ? 2 : 1; }

abi::CpuTile tile_of(const KernelRow& row) {
  return abi::cpu_tile(row.tile_q, row.isa == kIsaNone || row.isa == kIsaAvx2 ? 16 : 32, row.isa == kIsaZen4 ? 2 : 1);
}

abi::Schedule forward_schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row,
                               int32_t threads) {
  const Shape shape(problem);
  const abi::CpuTile tile = tile_of(row);
  const int64_t few = on_tiles(row) ? kFewRows : tile.lanes;  // see kDotRows in kernels/cpu/decode_tasks.h
  const bool dot = row.max_seqlen_q > 0 && shape.rows <= few;

  // Each task packs K and V again: tasks for the threads of this call, not for all cores there are.
  const int64_t workers = std::clamp<int64_t>(threads, 1, device.compute_units);
  const int64_t wanted = ceil_div(2 * workers, std::max<int64_t>(shape.heads, 1));
  const int64_t least = workers > 8 ? kMinRowsPerTask / 2 : kMinRowsPerTask;
  int64_t rows_per_task = std::clamp(ceil_div(shape.rows, wanted), least, kMaxRowsPerTask);
  const int64_t blocks = std::max<int64_t>(ceil_div(shape.rows, rows_per_task), 1);
  rows_per_task = round_up(std::max<int64_t>(ceil_div(shape.rows, blocks), 1), row.tile_q);

  // Where the heads of a token lie side by side, one decode task reads them all.
  const bool token_major = problem.a.k.stride[2] < problem.a.k.stride[1];
  const int64_t heads_per_task = token_major ? std::min<int64_t>(problem.a.heads_k, abi::kDecodeHeads) : 1;
  const int64_t independent = dot ? problem.a.batch * ceil_div(problem.a.heads_k, heads_per_task)
                                  : shape.heads * ceil_div(shape.rows, kRowsOfOneTask);

  // Few rows: enough tasks for the machine, by way of the keys. How many depends on the machine, not on the call.
  const int64_t tasks = std::max<int64_t>(16, 2 * device.compute_units);
  int64_t splits = problem.a.num_splits;
  if (splits == 0) {
    splits = independent >= tasks / 2 ? 1
                                      : std::min({ceil_div(tasks, std::max<int64_t>(independent, 1)),
                                                  ceil_div(shape.keys, kMinKeysPerSplit), kMaxSplits});
  }
  const int64_t key_step = on_tiles(row) ? abi::kAmxKeyStep : abi::kKeyBlock;
  const int64_t keys_per_split = round_up(ceil_div(shape.keys, splits), key_step);
  if (problem.a.num_splits == 0) splits = ceil_div(shape.keys, keys_per_split);

  abi::Schedule s{};
  s.splits = int32_t(splits);
  s.keys_per_split = keys_per_split;
  if (dot) {
    s.rows_per_task = int32_t(shape.rows);
    s.heads_per_task = int32_t(heads_per_task);
    s.tasks = independent * splits;
    s.scratch_bytes =
        heads_per_task * (on_tiles(row) ? abi::AmxDecodeScratch(nullptr, shape.dim_qk, shape.dim_v).bytes
                                        : abi::DecodeScratch(nullptr, tile, shape.dim_qk, shape.dim_v).bytes);
  } else {
    s.rows_per_task = int32_t(rows_per_task);
    s.heads_per_task = 1;
    s.tasks = ceil_div(shape.rows, rows_per_task) * splits * shape.heads;
    const int64_t panels = rows_per_task / row.tile_q;
    s.scratch_bytes =
        on_tiles(row) ? abi::AmxForwardScratch(nullptr, shape.dim_qk, shape.dim_v, panels, parts_on_tiles(row)).bytes
                      : abi::ForwardScratch(nullptr, tile, shape.dim_qk, shape.dim_v, panels).bytes;
  }
  if (splits > 1 || dot || problem.a.probs.data != nullptr) {
    s.workspace_bytes = abi::PartialResults(nullptr, shape.heads * shape.rows, splits, shape.dim_v).bytes;
  }
  return s;
}

// Query rows that a backward by vectors packs at a time: whole blocks, so that their number changes no bit where
// nothing is accumulated.
int64_t backward_chunk(const Shape& shape, const abi::CpuTile& tile) {
  const int64_t floats_of_row = 2 * (tile.units(shape.dim_qk) + tile.units(shape.dim_v)) + shape.dim_qk;
  const int64_t fit = kBackwardBytes / (floats_of_row * int64_t{sizeof(float)});
  return std::clamp<int64_t>(fit / abi::kQueryBlock * abi::kQueryBlock, abi::kQueryBlock, kBackwardChunk);
}

// The same on tiles, in whole jobs: Q and dO in two forms each, and dQ. Of numbers in two parts never the larger chunk.
int64_t tile_chunk(const Shape& shape, int parts) {
  const int64_t dim_qk = abi::amx_dim(shape.dim_qk), dim_v = abi::amx_dim(shape.dim_v);
  const int64_t bytes_of_row =
      2 * (dim_qk + dim_v) * parts * int64_t{sizeof(uint16_t)} + dim_qk * int64_t{sizeof(float)};
  return parts == 1 && bytes_of_row * kAmxBackwardChunk <= kAmxBackwardBytes ? kAmxBackwardChunk
                                                                             : kAmxBackwardChunk / 2;
}

abi::Schedule backward_schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row,
                                int32_t threads) {
  const Shape shape(problem);
  const bool tiles = on_tiles(row);
  const int64_t block_keys = tiles ? abi::kAmxBackwardKeys : abi::kKeyBlock;
  const int64_t block_rows = tiles ? abi::kAmxSide : abi::kQueryBlock;
  const int64_t key_blocks = ceil_div(shape.keys, block_keys);
  // Parts for all cores of the machine, none of which need be there for this call.
  const int64_t heads = std::max<int64_t>(shape.heads, 1);
  const int64_t most_tasks = problem.a.num_splits == 1 ? 1 : std::max<int64_t>(4, device.compute_units);
  const int64_t least_blocks = tiles ? kAmxBlocksPerSplit : kMinBlocksPerSplit;
  const int64_t splits = std::clamp<int64_t>(key_blocks / least_blocks, 1, ceil_div(most_tasks, heads));
  // Each task packs the queries again, so that it has as many parts of a head as the threads of the call leave to it;
  // one thread has nothing to balance.
  const int64_t ranges = threads <= 1 ? 1 : std::min(ceil_div(int64_t{2} * threads, heads), splits);
  const abi::CpuTile tile = tile_of(row);
  const int64_t most = tiles ? tile_chunk(shape, parts_on_tiles(row)) : backward_chunk(shape, tile);
  const int64_t chunk = std::clamp<int64_t>(round_up(shape.rows, block_rows), block_rows, most);
  const bool one_block = shape.rows <= chunk || problem.accumulate();
  const int64_t accumulators = one_block ? 1 : ceil_div(key_blocks, splits) * ceil_div(splits, ranges);
  const bool sums = ranges == 1 && splits > 1;

  abi::Schedule s{};
  s.splits = int32_t(splits);
  s.rows_per_task = int32_t(chunk);
  s.keys_per_split = ceil_div(key_blocks, splits) * block_keys;
  s.tasks = shape.heads * ranges;
  s.scratch_bytes =
      tiles
          ? abi::AmxBackwardScratch(nullptr, shape.dim_qk, shape.dim_v, chunk, accumulators, sums, parts_on_tiles(row))
                .bytes
          : abi::BackwardScratch(nullptr, tile, shape.dim_qk, shape.dim_v, chunk, accumulators, sums).bytes;
  if (problem.g.d_bias.data != nullptr) {
    s.scratch_bytes =
        std::max(s.scratch_bytes, abi::BiasGradientScratch(nullptr, tile, shape.dim_qk, shape.dim_v).bytes);
  }
  s.workspace_bytes = abi::BackwardShared(nullptr, shape.heads * shape.rows, splits, ranges, shape.dim_qk,
                                          problem.g.d_slopes != nullptr)
                          .bytes;
  return s;
}

}  // namespace

abi::Schedule cpu_schedule(const Problem& problem, const DeviceInfo& device, const KernelRow& row, int32_t threads) {
  if (row.tile_k > 1 && row.op == Op::kForward) return forward_schedule(problem, device, row, threads);
  if (row.tile_k > 1 && row.op == Op::kBackward) return backward_schedule(problem, device, row, threads);
  // Plain loops: the kernel hands out its own tasks and needs no memory from the plan.
  abi::Schedule s{};
  s.splits = 1;
  s.rows_per_task = 1;
  s.keys_per_split = std::max<int64_t>(problem.a.seqlen_k, 1);
  s.tasks = std::max<int64_t>(problem.a.batch * problem.a.heads_q * problem.a.seqlen_q, 1);
  return s;
}

abi::Schedule schedule(const Rotary& rotary) {
  const int64_t row_bytes = rotary.r.heads * rotary.r.dim * (rotary.r.x.dtype == FW_F32 ? 4 : 2);
  abi::Schedule s{};
  s.splits = 1;
  s.rows_per_task = int32_t(std::max<int64_t>(kRotaryBytesPerTask / row_bytes, 1));
  s.tasks = ceil_div(rotary.rows(), s.rows_per_task);
  return s;
}

}  // namespace flashwave

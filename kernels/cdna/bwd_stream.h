// The walk of a backward along the queries that see a tile of keys: through the heads of the group, and in each through
// the tiles of queries. All scalar, and without branches: the descriptors of the next tile follow from those before in
// steps that fit in the gaps of the loop. Rows past the end of a sequence, and whole tiles past the last, read 0.
#pragma once

#include "kernels/cdna/bwd_config.h"
#include "kernels/common/key_tiles.h"

namespace flashwave {

template <class C>
struct BackwardStream {
  const char *q, *d_o;  // of the next tile to load
  const char* block;    // of the tile before it
  const char* sums;     // block of the next tile whose dQ is added
  int64_t q_step, d_o_step, q_wrap, d_o_wrap, block_step,
      block_wrap;                                 // to the next tile: of the head, of the next head
  uint32_t q_stride, d_o_stride, q_row, d_o_row;  // bytes: from row to row, of a row in use
  int32_t tiles, total;                           // of a head, of the group
  int32_t first_rows;                             // of the sequence, from the first tile on
  int32_t rows, in_head, left;                    // loads: rows from the next tile on; tiles left in the head, in all
  int32_t count;                                  // rows of the next tile
  uint32_t bytes;                                 // to the end of its rows
  int32_t sums_in_head, sums_at;
  Buffer q_tile, d_o_tile, numbers_tile, sums_tile;

  // Lengths and places of sequences may come through the vector unit; descriptors need scalars.
  FW_METHOD void start(const GpuArguments& args, const Sequence& seq, int key_head, const QueryTiles& range,
                       int chain) {
    const Params& p = args.params;
    const int group = uint32_t(p.heads_q) / uint32_t(p.heads_k), head = key_head * group;
    const int64_t row = int64_t{range.first} * kQueryTile;
    tiles = uniform(range.end - range.first), total = uniform(tiles * group);
    q_stride = uint32_t(p.q.stride[1]) * 2, d_o_stride = uint32_t(p.d_o.stride[1]) * 2;
    q_row = uint32_t(p.dim_qk) * 2, d_o_row = uint32_t(p.dim_v) * 2;
    q = static_cast<const char*>(p.q.data) + uniform(query_offset(p.q, seq, row, head) * 2);
    d_o = static_cast<const char*>(p.d_o.data) + uniform(query_offset(p.d_o, seq, row, head) * 2);
    const int64_t first = abi::backward_first_block(p, seq.b, kQueryTile) + range.first;
    // Fused kernels have blocks with as many sums as workgroups and waves add to apart.
    const int64_t block_bytes =
        C::kFused ? abi::backward_block_bytes(kQueryTile, args.schedule.dq_columns) : int64_t{C::kBlockBytes};
    block = sums = args.shared + abi::kBackwardHeaderBytes + uniform((first * p.heads_q + head) * block_bytes);
    if (C::kFused && args.schedule.in_order) sums += uniform(chain) * (C::kSumsOfTile * C::kSumBytes);
    q_step = int64_t{q_stride} * kQueryTile, d_o_step = int64_t{d_o_stride} * kQueryTile;
    block_step = p.heads_q * block_bytes;
    q_wrap = p.q.stride[2] * 2 - (tiles - 1) * q_step, d_o_wrap = p.d_o.stride[2] * 2 - (tiles - 1) * d_o_step;
    block_wrap = block_bytes - (tiles - 1) * block_step;
    first_rows = rows = uniform(int32_t(seq.queries - row));
    in_head = sums_in_head = tiles, left = total;
    count = 0, sums_at = 0;
    block -= block_wrap;  // the first step goes on as from the head before
  }

  // A step, of about five instructions: 0 and 1 describe the numbers of the tile before, 2 to 9 the next tile to load,
  // 10 to 12 the next one whose dQ is added. What a step does is not to move to another gap.
  static constexpr int kStepsOfTile = 10, kDescribeSums = 10, kSteps = C::kFused ? 13 : kStepsOfTile;
  template <int kStep>
  FW_METHOD void advance() {
    all_here(rows, in_head, count, sums_in_head);
    const bool wraps = in_head == 1;
    if constexpr (kStep == 0) numbers_tile = make_buffer(block, count > 0 ? 2 * kQueryTile * 4 : 0);
    if constexpr (kStep == 1) block += in_head == tiles ? block_wrap : block_step;
    if constexpr (kStep == 2) {
      count = left > 0 ? (rows < kQueryTile ? rows : kQueryTile) : 0;
      --left;
    }
    if constexpr (kStep == 3) bytes = here(bytes_of(q_stride, q_row));
    if constexpr (kStep == 4) q_tile = make_buffer(q, bytes);
    if constexpr (kStep == 5) bytes = here(bytes_of(d_o_stride, d_o_row));
    if constexpr (kStep == 6) d_o_tile = make_buffer(d_o, bytes);
    if constexpr (kStep == 7) q += wraps ? q_wrap : q_step;
    if constexpr (kStep == 8) d_o += wraps ? d_o_wrap : d_o_step;
    if constexpr (kStep == 9) {
      rows = wraps ? first_rows : rows - kQueryTile;
      in_head = wraps ? tiles : in_head - 1;
    }
    if constexpr (kStep == kDescribeSums) describe_sums();
    if constexpr (kStep == 11) sums += sums_in_head == 1 ? block_wrap : block_step;
    if constexpr (kStep == 12) {
      sums_in_head = sums_in_head == 1 ? tiles : sums_in_head - 1;
      ++sums_at;
    }
  }
  FW_METHOD void next_tile() {
    advance<0>(), advance<1>(), advance<2>(), advance<3>(), advance<4>();
    advance<5>(), advance<6>(), advance<7>(), advance<8>(), advance<9>();
  }
  FW_METHOD void describe_sums() {
    sums_tile = make_buffer(sums, uint32_t(sums_at) < uint32_t(total) ? C::kBlockBytes : 0);
  }
  // The loop adds dQ of tiles before: of none at first.
  FW_METHOD void go_behind(int tiles_behind) {
    sums_tile = make_buffer(sums, 0);
    sums -= tiles_behind * block_step;
    sums_in_head += tiles_behind;
    sums_at = -tiles_behind;
  }

 private:
  // Whole rows but the last. A single row may have any stride, also 0.
  FW_METHOD uint32_t bytes_of(uint32_t stride, uint32_t row) const {
    return count > 0 ? uint32_t(count - 1) * stride + row : 0;
  }
};

}  // namespace flashwave

// How K and V reach shared memory in decode.cu: every team of warps (mostly one) streams its own tiles through its own
// ring of stages, so no workgroup barrier is in the loop, and the copies run ahead across the borders of units.
#pragma once

#include "kernels/nvidia/decode_line.h"

namespace flashwave {

// Shared memory of a workgroup. A stage is a tile of K and one of V, rows of kDim elements, the 16-byte chunks of row r
// exchanged by (chunk ^ r % 8): neither the copies nor ldmatrix have bank conflicts.
// kWarpRows: the most rows a warp works on, as its registers allow; more rows take more warps.
template <int kDimQK_, int kDimV_, int kRows_, int kWarps_, int kSharedBytes>
struct DecodeShape {
  static constexpr int kDimQK = kDimQK_, kDimV = kDimV_, kRows = kRows_, kWarps = kWarps_, kThreads = kWave * kWarps;
  static constexpr int kTileK = kTileKeys * kDimQK * 2, kTileV = kTileKeys * kDimV * 2, kStage = kTileK + kTileV;
  static constexpr int kMergeRows = kThreads * 2 / kDimV > 4 ? 4 : kThreads * 2 / kDimV < 1 ? 1 : kThreads * 2 / kDimV;
  static constexpr int kWarpRows = kDimV > 128 ? 8 : 16;
  static constexpr int kMergeBytes = kWarps * kMergeRows * kDimV * 4, kSumBytes = kWarps * kWarpRows * 8;
  static constexpr int kFixed = kMergeBytes + kSumBytes;
  static constexpr int kStages = (kSharedBytes - kFixed) / (kWarps * kStage);
  static constexpr int kRing = kWarps * kStages * kStage;
  static_assert(kStages >= 2 && kSharedBytes == kRing + kFixed, "shared_bytes of the row is not what its ring takes");

  // When parts are combined, the ring holds their weights, and the sums those of all rows.
  static_assert(abi::kMostDecodeParts * kRows * 4 <= kRing && kRows * 8 <= kSumBytes);
  static constexpr int kMergeAt = kRing, kSumsAt = kMergeAt + kMergeBytes;
};

// Bytes from the start of a tile to a 16-byte chunk, and from there to the one `chunks` (even) further in the same row.
template <int kDim>
FW_DEVICE uint32_t chunk_at(uint32_t row, uint32_t chunk) {
  return row * (kDim * 2) + ((chunk ^ (row & 7)) << 4);
}
FW_DEVICE uint32_t chunk_further(uint32_t first, int chunks) {
  return (first ^ ((chunks & 7) << 4)) + chunks / 8 * 128;
}

// A tile to copy, its rows found: lane r and r + 16 know those of row r.
struct TileRequest {
  int page, row;  // dense: row of the batch, row of this lane in it
  int count;      // rows that exist; < 0: no tile is left
  int head;
};

// A team's tiles, one after the other: every warp of it finds the same.
template <int kTeams>
struct TileRequests {
  Unit unit;
  const int team, end, blocks;
  int tile, last;  // of the unit

  FW_METHOD TileRequests(const Share& share, int team_, int blocks_)
      : unit(share.unit),
        team(team_),
        end(share.end),
        blocks(blocks_),
        tile(max(share.begin - share.unit.start, 0) + team_),
        last(min(share.unit.tiles, share.end - share.unit.start)) {}

  FW_METHOD TileRequest next(const Params& p) {
    while (tile >= last) {
      if (unit.next_start(p) >= end) return {0, 0, -1, 0};
      unit.next(p, blocks);
      tile = team, last = min(unit.tiles, end - unit.start);
    }
    const int first = tile * kTileKeys, mine = lane_index() % kTileKeys;
    TileRequest request{unit.k_batch, unit.k_row + first + mine, unit.keys - unit.first_key - first, unit.head};
    if (p.block_table) {
      const uint32_t size = uint32_t(p.page_size), page = uint32_t(request.row) / size;
      request.row -= int(page * size);
      request.page = mine < request.count
                         ? abi::at_most(load_constant(p.block_table + unit.b * p.block_table_stride + page), p.k.most)
                         : 0;
    }
    tile += kTeams;
    return request;
  }
};

// The copies of a team's member: 16 bytes of a row for each lane. Dense rows lie a fixed step apart.
template <int kDim, int kTeam>
FW_DEVICE void copy_dense(const abi::Tensor& t, int dim, const TileRequest& request, int member, uint32_t stage) {
  constexpr uint32_t kChunks = kDim / 8, kStep = kTeam * kWave;
  const uint32_t i = member * kWave + lane_index();
  const int64_t first_row = request.row - lane_index() % kTileKeys;
  const uint16_t* from = static_cast<const uint16_t*>(t.data) + request.page * t.stride[0] + first_row * t.stride[1] +
                         request.head * t.stride[2];
  if constexpr (kStep % kChunks == 0) {
    const int r = int(i / kChunks), column = int(i % kChunks) * 8;
    const int count = column < dim ? request.count - r : 0;
    from += r * t.stride[1] + column;
    const int64_t step = kStep / kChunks * t.stride[1];
    const uint32_t place = stage + chunk_at<kDim>(r, i % kChunks);
    constexpr int kRows = kStep / kChunks;
    FW_UNROLL for (int n = 0; n * kRows < kTileKeys; ++n) {
      copy_async_once((place ^ ((n * kRows & 7) << 4)) + n * kRows * (kDim * 2), from, n * kRows < count);
      from += step;
    }
  } else {
    FW_UNROLL for (uint32_t n = 0; n * kStep < kTileKeys * kChunks; ++n) {
      const uint32_t r = (i + n * kStep) / kChunks, chunk = (i + n * kStep) % kChunks;
      copy_async_once(stage + chunk_at<kDim>(r, chunk), from + r * t.stride[1] + chunk * 8,
                      int(r) < request.count && int(chunk * 8) < dim);
    }
  }
}

// Where every row may lie in a page of its own: lane r knows where row r does. The loop is not unrolled much: all at
// once, the addresses would need registers that O has.
template <class Shape, int kTeam>
FW_DEVICE void copy_scattered(const Params& p, const TileRequest& request, int member, uint32_t stage) {
  constexpr uint32_t kStep = kTeam * kWave;
  const auto copy = [&]<int kDim>(const abi::Tensor& t, int dim, uint32_t i, int64_t row_offset, uint32_t to) {
    const uint32_t r = i / (kDim / 8), chunk = i % (kDim / 8);
    copy_async_once(to + chunk_at<kDim>(r, chunk), static_cast<const uint16_t*>(t.data) + row_offset + chunk * 8,
                    int(r) < request.count && int(chunk * 8) < dim);
  };
  const auto offset_in = [&](const abi::Tensor& t) {
    return request.page * t.stride[0] + request.row * t.stride[1] + request.head * t.stride[2];
  };
  const int64_t k_row = offset_in(p.k), v_row = offset_in(p.v);
  const uint32_t first = member * kWave + lane_index();
  if constexpr (Shape::kDimQK == Shape::kDimV) {
#pragma unroll 2
    for (uint32_t i = first; i < Shape::kTileK / 16; i += kStep) {
      const int r = int(i / (Shape::kDimQK / 8));
      const int64_t from_k = from_lane(k_row, r), from_v = from_lane(v_row, r);
      copy.template operator()<Shape::kDimQK>(p.k, p.dim_qk, i, from_k, stage);
      copy.template operator()<Shape::kDimV>(p.v, p.dim_v, i, from_v, stage + Shape::kTileK);
    }
  } else {
#pragma unroll 2
    for (uint32_t i = first; i < Shape::kTileK / 16; i += kStep) {
      const int64_t from = from_lane(k_row, int(i / (Shape::kDimQK / 8)));
      copy.template operator()<Shape::kDimQK>(p.k, p.dim_qk, i, from, stage);
    }
#pragma unroll 2
    for (uint32_t i = first; i < Shape::kTileV / 16; i += kStep) {
      const int64_t from = from_lane(v_row, int(i / (Shape::kDimV / 8)));
      copy.template operator()<Shape::kDimV>(p.v, p.dim_v, i, from, stage + Shape::kTileK);
    }
  }
}

template <class Shape, int kTeam>
FW_DEVICE void copy_tile(const Params& p, TileRequest request, int member, uint32_t stage) {
  if (request.count < 0) return;
  if (p.block_table) {
    // Pages of 16 rows and more mostly hold all of the tile.
    const int mine = lane_index() % kTileKeys, page = from_lane(request.page, 0);
    const int row = from_lane(request.row, 0) + mine;
    if (!all_lanes(mine >= request.count || (request.page == page && request.row == row))) {
      copy_scattered<Shape, kTeam>(p, request, member, stage);
      return;
    }
    request.page = page, request.row = row;
  }
  copy_dense<Shape::kDimQK, kTeam>(p.k, p.dim_qk, request, member, stage);
  copy_dense<Shape::kDimV, kTeam>(p.v, p.dim_v, request, member, stage + Shape::kTileK);
}

}  // namespace flashwave

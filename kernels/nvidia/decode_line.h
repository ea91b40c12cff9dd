// Which keys a workgroup of decode.cu has. A unit is a sequence, a key head and a block of rows (query, head of the
// group); the keys that any of its queries sees are cut into tiles of kTileKeys. All units' tiles form one line, of
// which every workgroup takes an equal share, whatever the lengths; or each unit is cut into the same number of parts,
// one for each workgroup: where a number of splits is asked for, and where that gives nearly every workgroup a part and
// they are equal. Then none pays for two ends. Behind a unit's tiles the line has places that stand for what a unit
// costs apart from them, so that many short units are not taken for as little work as one long one.
#pragma once

#include "kernels/abi/decode_line.h"
#include "kernels/common/sequence.h"
#include "kernels/nvidia/narrow.h"

namespace flashwave {

inline constexpr int kTileKeys = abi::kDecodeTileKeys;

FW_DEVICE bool lengths_differ(const Params& p) {
  return p.cu_seqlens_q || p.cu_seqlens_k || p.seqused_k || p.leftpad_k;
}

// Places behind a unit's tiles: about 1.5 us, in which an SM reads 48 KB of K and V.
FW_DEVICE int places_of_end(const Params& p) { return p.dim_qk <= 64 ? 12 : p.dim_qk <= 128 ? 6 : 3; }

struct Unit {
  int b, head, block;
  int k_batch, k_row;  // as in Sequence, but k_row is that of the first tile's first key
  int first_key, keys, queries;
  int tiles, start;  // start: of the first tile, on the line

  // All that follows from the sequence.
  FW_METHOD void enter_sequence(const Params& p, int sequence) {
    b = k_batch = sequence, keys = p.seqlen_k + int(p.seqlen_new), queries = p.seqlen_q, k_row = 0;
    if (lengths_differ(p) || p.cache_batch_idx) {
      const Sequence s = sequence_of(p, sequence);
      k_batch = int(s.k_batch), keys = int(s.keys), queries = int(s.queries), k_row = int(s.k_row);
    }
    first_key = int(abi::decode_first_key(queries, keys, p.window_left));
    k_row += first_key;
    tiles = int(abi::decode_tiles(keys - first_key));
  }
  FW_METHOD int next_start(const Params& p) const { return start + tiles + places_of_end(p); }
  FW_METHOD void next(const Params& p, int blocks) {
    start = next_start(p);
    if (++block < blocks) return;
    block = 0;
    if (++head < p.heads_k) return;
    head = 0;
    enter_sequence(p, b + 1);
  }
};

FW_DEVICE int tiles_of_sequence(const Params& p, int b) {
  Unit unit;
  unit.enter_sequence(p, b);
  return unit.tiles;
}

struct Line {
  int workgroups;     // that have anything to do
  int parts;          // of each unit; 0: equal shares of the line
  int share, longer;  // places of a workgroup; the first `longer` have one more

  FW_METHOD int start_of(int workgroup) const { return workgroup * share + min(workgroup, longer); }
  FW_METHOD int workgroup_at(int place) const {
    const int past = place - longer * (share + 1);
    return past < 0 ? quotient(place, share + 1) : longer + quotient(past, share);
  }

  // Called by whole warps, which all find the same. splits: 0 = choose.
  FW_METHOD Line(const Params& p, int splits, int most_workgroups, int blocks, int least) {
    const int units = p.batch * p.heads_k * blocks;
    share = longer = 0;
    if (splits > 0) {
      parts = splits, workgroups = units * splits;
      return;
    }
    int shortest, longest, sum;
    if (p.batch > 1 && lengths_differ(p)) {
      shortest = 1 << 30, longest = 0, sum = 0;
#pragma unroll 4
      for (int b = lane_index(); b < p.batch; b += kWave) {
        const int tiles = tiles_of_sequence(p, b);
        shortest = min(shortest, tiles), longest = max(longest, tiles), sum += tiles;
      }
      shortest = lowest_of_lanes(shortest), longest = highest_of_lanes(longest), sum = sum_of_lanes(sum);
    } else {
      shortest = longest = tiles_of_sequence(p, 0), sum = p.batch * longest;
    }
    parts = shortest == longest ? abi::decode_parts(longest, units, most_workgroups, least) : 0;
    workgroups = parts * units;
    if (parts > 0) return;
    const int places = (sum + p.batch * places_of_end(p)) * p.heads_k * blocks;
    workgroups = min(most_workgroups, (places + least - 1) / least);
    share = quotient(places, workgroups), longer = places - share * workgroups;
  }
};

// Places [begin, end) of the line; with parts, the line is the unit alone.
struct Share {
  Unit unit;  // the first that has tiles there
  int begin, end;
  int part;  // of the unit, where each has parts
  bool has_tiles = true;

  FW_METHOD Share(const Params& p, const Line& line, int workgroup, int blocks) : part(0) {
    if (line.parts > 0) {
      const int index = quotient(workgroup, line.parts), head_index = blocks > 1 ? quotient(index, blocks) : index;
      const int b = quotient(head_index, p.heads_k);
      part = workgroup - index * line.parts;
      unit.block = index - head_index * blocks, unit.head = head_index - b * p.heads_k, unit.start = 0;
      unit.enter_sequence(p, b);
      const int tiles = quotient(unit.tiles, line.parts), more = unit.tiles - tiles * line.parts;
      begin = part * tiles + min(part, more);
      end = begin + tiles + (part < more ? 1 : 0);
      return;
    }
    begin = line.start_of(workgroup), end = line.start_of(workgroup + 1);
    const int repeats = p.heads_k * blocks;  // of each sequence's places
    int first, b;                            // the sequence, and its first place
    if (lengths_differ(p)) {
      find_sequence(p, repeats, b, first);
    } else {
      const int places = (tiles_of_sequence(p, 0) + places_of_end(p)) * repeats;
      b = quotient(begin, places), first = b * places;
    }
    unit.enter_sequence(p, b);
    const int places = unit.tiles + places_of_end(p), index = quotient(begin - first, places);
    unit.head = quotient(index, blocks), unit.block = index - unit.head * blocks;
    unit.start = first + index * places;
    if (begin - unit.start >= unit.tiles) {
      has_tiles = unit.next_start(p) < end;
      if (has_tiles) unit.next(p, blocks);
    }
  }

  // 32 sequences at a time: a sum over the lanes to the left.
  FW_METHOD void find_sequence(const Params& p, int repeats, int& b, int& first) const {
    first = 0;
    for (int from = 0;; from += kWave) {
      const int b_mine = from + lane_index();
      const int mine = b_mine < p.batch ? (tiles_of_sequence(p, b_mine) + places_of_end(p)) * repeats : 0;
      const int sum = prefix_sum(mine);
      const uint32_t ends_behind = lanes_where(first + sum > begin);
      if (ends_behind) {
        const int lane = lowest_bit(ends_behind);
        b = from + lane, first += from_lane(sum - mine, lane);
        return;
      }
      first += from_lane(sum, kWave - 1);
    }
  }
};

// The workgroups that have a part of a unit, in order. All have it in their first slot, but perhaps the first of them:
// a unit that begins behind the start of a share is in the second.
struct Contributors {
  int first, last;
  bool in_second;

  FW_METHOD Contributors(const Line& line, const Unit& unit, int workgroup, int part) {
    if (line.parts > 0) {
      first = workgroup - part, last = first + line.parts - 1;
      in_second = false;
    } else {
      first = line.workgroup_at(unit.start), last = line.workgroup_at(unit.start + unit.tiles - 1);
      in_second = line.start_of(first) < unit.start;
    }
  }
  FW_METHOD int slot(int workgroup, int slots_each) const {
    return workgroup * slots_each + (workgroup == first && in_second ? 1 : 0);
  }
};

}  // namespace flashwave

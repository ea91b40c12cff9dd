// The warpgroup that hands out tasks and copies their queries, keys, values and biases to shared memory.
#pragma once

#include "kernels/hopper/tasks.h"

namespace flashwave {

// The first row of a task's sequence in the map of q or o.
FW_DEVICE MapPlace query_place(const Params& p, const abi::Tensor& t, const ForwardTask& task) {
  const int64_t batch = p.cu_seqlens_q ? 0 : task.batch;
  return abi::map_place(t, abi::query_map_rows(p), task.queries, batch * t.stride[0] + task.q_row * t.stride[1]);
}

// Three warps produce, so that none waits for what another waits for: one hands out the tasks and loads their queries,
// one loads the blocks of K, one those of V. A fourth loads those of the bias.
template <class C>
struct Producer {
  const Params& p;
  const abi::Schedule& schedule;
  const TensorMaps& maps;
  const int lane;

  FW_METHOD Producer(const GpuArguments& args, const TensorMaps& tensor_maps)
      : p(args.params), schedule(args.schedule), maps(tensor_maps), lane(lane_index()) {}

  // taken: tasks of all CTAs after the first of each; 0 when the kernel starts, and not there where they are few. Those
  // go by number, to and fro: with a mask the longest go first, and who had the longest of one round has the shortest
  // of the next. Packed: by number, too, all in one direction (store_part).
  FW_METHOD void tasks_and_queries(uint32_t* taken) const {
    const int tile_queries = C::kConsumers * head_rows<C>(schedule);
    const uint32_t parts = C::kPacked ? schedule.splits : 1;
    const TaskOrder order(p, tile_queries, C::kPacked ? schedule.heads_per_task : 1);
    uint32_t index = block_index_x();
    for (uint32_t n = 0;; ++n) {
      const TaskOrder::Place at = order.at(index / parts);
      if (at.batch < 0) {
        publish({.query = -1}, n);
        break;
      }
      const Sequence seq = sequence_of(p, at.batch);
      ForwardTask task = {int32_t(at.block * tile_queries),
                          at.head,
                          at.batch,
                          int32_t(seq.q_row),
                          int32_t(seq.queries),
                          int32_t(seq.keys),
                          0,
                          0};
      const int rows = min(tile_queries, task.queries - task.query);
      const SeenKeys seen = seen_keys(edges_of(p, task, task.query, rows), rows, task.keys);
      task.first_block = seen.some_first / C::kTileK;
      // Without a key, one block of which no row sees any: every task has scores and an output.
      task.last_block = max((seen.some_end + C::kTileK - 1) / C::kTileK - 1, task.first_block);
      if (parts > 1) take_part(task, int32_t(index % parts), int32_t(parts), C::kTileK);
      publish(task, n);
      load_queries(task, n);
      // The next one is asked for when its queries can come in time, not sooner: the CTAs are to end together.
      barrier_wait(C::kAsk, n & 1);
      if (C::kPacked) {
        index += grid_size_x();
      } else if (!taken) {
        index = (n + 1) * grid_size_x() + (n & 1 ? block_index_x() : grid_size_x() - 1 - block_index_x());
      } else {
        if (lane == 0) index = grid_size_x() + fetch_add(taken, 1);
        index = from_lane(index, 0);
      }
    }
  }

  // All blocks of K or of V, one task after another.
  template <bool kOfV>
  FW_METHOD void blocks() const {
    constexpr int kPanels = kOfV ? C::kPanelsV : C::kPanelsQk;
    const abi::Tensor& t = kOfV ? p.v : p.k;
    const int part_rows = abi::key_map_box(p, C::kTileK);  // of a block that are loaded at once
    uint32_t count = 0;
    for (uint32_t n = 0;; ++n) {
      const ForwardTask task = take_task(n);
      if (task.query < 0) break;
      const Sequence seq = sequence_of(p, task.batch);
      const int kv_head = task.head / (p.heads_q / p.heads_k), ask_at = min(task.last_block, task.first_block + 3);
      MapPlace place{};
      if (!p.block_table) place = sequence_place(t, seq);
      for (int j = task.last_block; j >= task.first_block; --j, ++count) {
        load_block<kPanels>(t, kOfV ? maps.v : maps.k, kOfV ? C::kV : C::kK, kOfV ? C::kVFull : C::kKFull,
                            kOfV ? C::kVFree : C::kKFree, count, seq, place, kv_head, j * C::kTileK, part_rows);
        if (!kOfV && j == ask_at && lane == 0) barrier_arrive(C::kAsk);
      }
    }
  }

  // All blocks of the bias: rows of a task's queries, columns of a block's keys. What lies past the last row or the
  // last column is written as 0.
  FW_METHOD void biases() const {
    uint32_t count = 0;
    for (uint32_t n = 0;; ++n) {
      const ForwardTask task = take_task(n);
      if (task.query < 0) break;
      for (int j = task.last_block; j >= task.first_block; --j, ++count) {
        const uint32_t slot = slot_of<C::kBiasStages>(count), full = C::kBiasFull + 8 * slot;
        barrier_wait(C::kBiasFree + 8 * slot, parity_of<C::kBiasStages>(count) ^ 1);
        if (lane == 0) {
          barrier_expect(full, C::kBiasBytes);
          FW_UNROLL for (int w = 0; w < C::kConsumers; ++w) {
            const MapPlace at = bias_place(p, task.batch, task.query + 64 * w);
            FW_UNROLL for (int panel = 0; panel < C::kPanelsBias; ++panel)
                tma_load(C::kBiases + slot * C::kBiasBytes + w * C::kBiasRowsBytes + panel * 64 * kPanelRowBytes,
                         maps.bias, full, j * C::kTileK + panel * kPanel, task.head, at, kEvictFirst);
          }
        }
        wave_barrier();
      }
    }
  }

 private:
  // The n-th task, by one of the warps that load what it needs.
  FW_METHOD ForwardTask take_task(uint32_t n) const {
    const uint32_t slot = slot_of<2>(n);
    barrier_wait(C::kTaskFull + 8 * slot, parity_of<2>(n));
    const ForwardTask task = load_task(C::kTasks + 32 * slot);
    wave_barrier();
    if (lane == 0) barrier_arrive(C::kTaskFree + 8 * slot);
    return task;
  }
  // Row 0 of the sequence in the map of k or v.
  FW_METHOD MapPlace sequence_place(const abi::Tensor& t, const Sequence& seq) const {
    return abi::map_place(t, abi::key_map_rows(p), seq.keys, seq.k_batch * t.stride[0] + seq.k_row * t.stride[1]);
  }
  // The same in pages, for the page that holds `row`.
  FW_METHOD MapPlace page_place(const abi::Tensor& t, const Sequence& seq, int32_t row) const {
    const int32_t map_rows = int32_t(abi::key_map_rows(p)), page = row / map_rows;
    const int32_t used = min(int32_t(seq.keys) - page * map_rows, map_rows);
    if (used <= 0) return {map_rows, 0, 0};  // all out of bounds
    const int64_t place = abi::at_most(p.block_table[seq.b * p.block_table_stride + page], p.k.most);
    MapPlace at = abi::map_place(t, map_rows, used, place * t.stride[0]);
    at.row -= page * map_rows;
    return at;
  }

  // The block of keys that starts with `row`, to slot n of a ring. Rows past the last key are written as 0.
  template <int kPanels>
  FW_METHOD void load_block(const abi::Tensor& t, const TensorMap& map, uint32_t ring, uint32_t full, uint32_t free,
                            uint32_t n, const Sequence& seq, const MapPlace& place, int kv_head, int row,
                            int part_rows) const {
    constexpr int kBytes = C::kTileK * kPanelRowBytes * kPanels;
    const uint32_t slot = slot_of<C::kStages>(n), to = ring + slot * kBytes, barrier = full + 8 * slot;
    if (!p.block_table) {
      barrier_wait(free + 8 * slot, parity_of<C::kStages>(n) ^ 1);
      if (lane == 0) {
        barrier_expect(barrier, kBytes);
        load_panels<kPanels>(to, map, barrier, kv_head, {place.row + row, place.fine, place.coarse});
      }
    } else {
      const MapPlace mine = page_place(t, seq, row + lane * part_rows);  // lane 0: the first part, ...
      barrier_wait(free + 8 * slot, parity_of<C::kStages>(n) ^ 1);
      if (lane == 0) barrier_expect(barrier, kBytes);
      for (int part = 0; part * part_rows < C::kTileK; ++part) {
        const MapPlace at = {from_lane(mine.row, part) + row + part * part_rows, from_lane(mine.fine, part),
                             from_lane(mine.coarse, part)};
        if (lane == 0) load_panels<kPanels>(to + part * part_rows * kPanelRowBytes, map, barrier, kv_head, at);
      }
    }
    wave_barrier();
  }
  template <int kPanels>
  FW_METHOD static void load_panels(uint32_t to, const TensorMap& map, uint32_t barrier, int kv_head,
                                    const MapPlace& at) {
    FW_UNROLL for (int panel = 0; panel < kPanels; ++panel)
        tma_load(to + panel * C::kTileK * kPanelRowBytes, map, barrier, panel * kPanel, kv_head, at,
                 C::kPacked ? kEvictFirst : kEvictLast);
  }

  FW_METHOD void load_queries(const ForwardTask& task, uint32_t n) const {
    const MapPlace first = query_place(p, p.q, task);
    for (int w = 0; w < C::kConsumers; ++w) {
      const uint32_t slot = slot_of<C::kQSlots>(n) * C::kConsumers + w, full = C::kQFull + 8 * slot;
      barrier_wait(C::kQFree + 8 * slot, parity_of<C::kQSlots>(n) ^ 1);
      if (lane == 0) {
        barrier_expect(full, C::kQBytes);
        const MapPlace at = {first.row + task.query + head_rows<C>(schedule) * w, first.fine, first.coarse};
        FW_UNROLL for (int panel = 0; panel < C::kPanelsQk; ++panel)
            tma_load(C::kQ + slot * C::kQBytes + panel * 64 * kPanelRowBytes, maps.q, full, panel * kPanel, task.head,
                     at, kEvictFirst);
      }
      wave_barrier();
    }
  }

  FW_METHOD void publish(const ForwardTask& task, uint32_t n) const {
    const uint32_t slot = slot_of<2>(n);
    barrier_wait(C::kTaskFree + 8 * slot, parity_of<2>(n) ^ 1);
    if (lane == 0) {
      store_task(C::kTasks + 32 * slot, task);
      barrier_arrive(C::kTaskFull + 8 * slot);
    }
    wave_barrier();
  }
};

}  // namespace flashwave

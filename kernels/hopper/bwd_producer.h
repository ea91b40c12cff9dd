// The warpgroup that hands out the tiles of keys and copies what they take to shared memory; in a pair it also sends dS
// to the other CTA.
#pragma once

#include "kernels/hopper/bwd_tasks.h"

namespace flashwave {

// The n-th task: wait for it; where it lies; and that this warp is done with it, which every one that takes tasks says.
template <class C>
FW_DEVICE uint32_t wait_backward_task(uint32_t here, uint32_t n) {
  const uint32_t slot = n & 1;
  if constexpr (C::kPair) {
    barrier_wait_acquire(here + C::kTaskFull + 8 * slot, n >> 1 & 1);
  } else {
    barrier_wait(here + C::kTaskFull + 8 * slot, n >> 1 & 1);
  }
  return here + C::kTasks + C::kTaskBytes * slot;
}
template <class C>
FW_DEVICE void release_backward_task(uint32_t n) {
  wave_barrier();
  if (lane_index() == 0) {
    if constexpr (C::kPair) {
      barrier_arrive_in(C::kTaskFree + 8 * (n & 1), 0);
    } else {
      barrier_arrive(C::kTaskFree + 8 * (n & 1));
    }
  }
}
// Warps that take tasks, of each CTA: 12 that compute, one that copies, one that tells and one that lets add or, in a
// pair, sends.
template <class C>
inline constexpr int kTaskReaders = C::kCtas * (C::kAlone ? 13 : 15);

template <class C>
struct BackwardProducer {
  const Params& p;
  const TensorMaps& maps;
  char* const blocks;  // kernels/abi/backward_blocks.h
  const uint32_t rank, here;
  const bool first_lane;
  Ring<C::kQStages> q_ring;
  Ring<C::kDoStages> do_ring;

  FW_METHOD BackwardProducer(const GpuArguments& args, const TensorMaps& tensor_maps, uint32_t cta)
      : p(args.params),
        maps(tensor_maps),
        blocks(args.shared + abi::kBackwardHeaderBytes),
        rank(cta),
        here(C::here(cta)),
        first_lane(lane_index() == 0) {}

  // Hands out the tiles, for both CTAs of a pair. The next one is asked for when the copies of this one's last block
  // begin: soon enough to be there when they end, and not sooner, since the CTAs are to end together. A warp of its
  // own, since the answer of the L2 cache and the places of the tile take as long as a block. taken: tasks of all
  // clusters after the first of each; 0 when the kernel starts.
  FW_METHOD void hand_out(uint32_t* taken, bool in_order) const {
    if (rank != 0) return;
    const KeyTileOrder order(p, C::kPairKeys, in_order);
    uint32_t index = uint32_t(block_index_x()) / C::kCtas;
    for (uint32_t n = 0;; ++n) {
      const KeyTileOrder::Place at = order.at(index);
      BackwardTask task;
      task.key = -1;
      if (at.batch >= 0) task = backward_task<C>(p, at.key, at.head, at.batch);
      publish(task, n);
      if (task.key < 0) break;
      barrier_wait(here + C::kAsk, n & 1);
      if (first_lane) index = grid_size_x() / C::kCtas + fetch_add(taken, 1);
      index = from_lane(index, 0);
    }
  }

  // Copies what tile after tile takes.
  FW_METHOD void run() {
    for (uint32_t n = 0;; ++n) {
      const BackwardTask task = load_backward_task(wait_backward_task<C>(here, n));
      release_backward_task<C>(n);
      if (task.key < 0) break;
      if (task.blocks > 0) {
        copy(task);
      } else {
        ask();
      }
    }
  }

  // A pair: dQ of every other query block is formed by the other CTA, over the keys of both, and takes this CTA's dS,
  // one key warpgroup's after the other's, as it is multiplied there. (The slot is free again when the receiver has
  // multiplied it: it says so here, at kDsFree.)
  FW_METHOD void send() const {
    uint32_t count = 0;
    for (uint32_t n = 0;; ++n) {
      const BackwardTask task = load_backward_task(wait_backward_task<C>(here, n));
      release_backward_task<C>(n);
      if (task.key < 0) break;
      for (int left = uniform(task.blocks) * (p.heads_q / p.heads_k); left > 0; --left, ++count) {
        const uint32_t slot = count & 1;
        if (slot == rank) continue;
        FW_UNROLL for (uint32_t w = 0; w < 2; ++w) {
          barrier_wait(here + C::kDsFull + 16 * slot + 8 * w, count >> 1 & 1);
          if (first_lane) {
            bulk_send(in_cta(C::kIn, rank ^ 1) + w * (C::kDsBytes / 2),
                      here + C::kDs + slot * C::kDsBytes + w * (C::kDsBytes / 2), C::kDsBytes / 2,
                      in_cta(C::kInFull, rank ^ 1) + 8 * w);
          }
          wave_barrier();
        }
      }
    }
  }

  // Single CTAs: lets the warpgroup of dQ add to block after block of queries, and says whether it is the first there:
  // then it stores, so that nobody has to clear the sums. The others wait until that is done, or in order for their
  // turn. Asked for before dQ is there: the answers of the L2 cache take as long as the products. Who has begun with a
  // block was let to the one before, so that it waits for nobody.
  FW_METHOD void let_add(bool in_order) const {
    for_own_blocks([&](const BackwardTask& task, int block, char* at, uint32_t n) {
      const uint32_t slot = n & 1;
      barrier_wait(here + C::kTold + 8 * slot, (n >> 1 & 1) ^ 1);
      if (!first_lane) return;
      const int* const turn = reinterpret_cast<const int*>(at + abi::backward_turn_at(C::kTileQ));
      int before;
      if (in_order) {
        before = turn_of<C>(p, task, block);
        wait_until_equal(turn, before);
      } else {
        before = int(fetch_add(reinterpret_cast<uint32_t*>(at + abi::backward_begun_at(C::kTileQ)), 1));
        if (before > 0) wait_until_not_0(turn);
      }
      store_shared(here + C::kFirst + 4 * slot, before == 0);
      barrier_arrive(here + C::kMayAdd + 8 * slot);
    });
  }
  // Tells the other CTAs what the warpgroup of dQ has added: in order everything, else that the first is there, which
  // only single CTAs need. Here, since the fence takes as long as the products.
  FW_METHOD void tell(bool in_order) const {
    if (C::kPair && !in_order) {
      for_own_blocks([](const BackwardTask&, int, char*, uint32_t) {});
      return;
    }
    for_own_blocks([&](const BackwardTask&, int, char* at, uint32_t n) {
      const uint32_t slot = n & 1;
      barrier_wait(here + C::kAdded + 8 * slot, n >> 1 & 1);
      if (!first_lane) return;
      if (in_order || load_shared(here + C::kFirst + 4 * slot)) {
        memory_fence();
        raise(reinterpret_cast<int*>(at + abi::backward_turn_at(C::kTileQ)));
      }
      barrier_arrive(here + C::kTold + 8 * slot);
    });
  }

 private:
  uint32_t tiles = 0;  // with something to copy

  FW_METHOD void ask() const {
    if (rank == 0 && first_lane) barrier_arrive(here + C::kAsk);
  }

  // visit(task, block, its place in memory, number) for every block of queries whose dQ this CTA forms.
  template <class Visit>
  FW_METHOD void for_own_blocks(Visit&& visit) const {
    uint32_t count = 0;
    for (uint32_t n = 0;; ++n) {
      const BackwardTask task = load_backward_task(wait_backward_task<C>(here, n));
      release_backward_task<C>(n);
      if (task.key < 0) break;
      const int group = p.heads_q / p.heads_k;
      for (int g = 0; g < group; ++g) {
        for (int i = 0; i < task.blocks; ++i, ++count) {
          if (C::kPair && (count & 1) != rank) continue;
          const int block = task.first_query_block + i;
          visit(task, block,
                blocks + (int64_t{task.first_block + block} * p.heads_q + task.head * group + g) * C::kBlockBytes,
                count / C::kCtas);
          wave_barrier();
        }
      }
    }
  }

  FW_METHOD void publish(const BackwardTask& t, uint32_t n) const {
    const uint32_t slot = n & 1, at = C::kTasks + C::kTaskBytes * slot;
    barrier_wait(here + C::kTaskFree + 8 * slot, (n >> 1 & 1) ^ 1);
    if (first_lane) {
      const int4 words[] = {make_int4(t.key, t.head, t.batch, t.rows),
                            make_int4(t.keys, t.first_query_block, t.blocks, t.first_block),
                            make_int4(t.left_edge, t.right_edge, t.queries, 0)};
      FW_UNROLL for (uint32_t cta = 0; cta < C::kCtas; ++cta) {
        FW_UNROLL for (int i = 0; i < 3; ++i) put(at + 16 * i, cta, words[i]);
        FW_UNROLL for (int w = 0; w < 2; ++w) {
          const BlockRange r = block_range<C>(t, C::first_key(t.key, cta, w));
          put(at + 48 + 16 * w, cta, make_int4(r.all_first, r.all_last, r.first, r.end));
        }
      }
      if constexpr (C::kPair) {
        barrier_arrive_releasing(C::kTaskFull + 8 * slot, 0), barrier_arrive_releasing(C::kTaskFull + 8 * slot, 1);
      } else {
        barrier_arrive(C::kTaskFull + 8 * slot);
      }
    }
    wave_barrier();
  }

  FW_METHOD static void put(uint32_t at, uint32_t cta, int4 words) {
    if constexpr (C::kPair) {
      store_shared4_in(at, cta, words);
    } else {
      store_shared4(at, words);
    }
  }

  FW_METHOD void copy(const BackwardTask& t) {
    const Sequence seq = sequence_of(p, t.batch);
    const int first_key = t.key + int(rank) * C::kTileK;
    const auto keys_at = [&](const abi::Tensor& tensor) {
      MapPlace at = abi::map_place(tensor, abi::key_map_rows(p), seq.keys,
                                   seq.k_batch * tensor.stride[0] + seq.k_row * tensor.stride[1]);
      at.row += first_key;
      return at;
    };
    const auto queries_at = [&](const abi::Tensor& tensor) {
      return abi::map_place(tensor, abi::query_map_rows(p), seq.queries,
                            seq.q_batch * tensor.stride[0] + seq.q_row * tensor.stride[1]);
    };
    const MapPlace k = keys_at(p.k), v = keys_at(p.v), q = queries_at(p.q), d_o = queries_at(p.d_o);
    // A pair has no second place for K, which the last dQ of the tile before still reads: what does not wait for that
    // goes first.
    if constexpr (!C::kPair) copy_k(t.head, k);
    const int group = p.heads_q / p.heads_k;
    for (int g = 0; g < group; ++g) {
      const int head = t.head * group + g;
      const char* block = blocks + (int64_t{t.first_block + t.first_query_block} * p.heads_q + head) * C::kBlockBytes;
      for (int i = 0; i < t.blocks; ++i, block += p.heads_q * C::kBlockBytes) {
        const int row = (t.first_query_block + i) * C::kTileQ;
        if (g + 1 == group && i + 1 == t.blocks) ask();
        barrier_wait(here + C::kQFree + 8 * q_ring.slot, q_ring.parity ^ 1);
        copy_block<C::kBiasBytes>(C::kQ + q_ring.slot * C::kQueryBytes, maps.q, C::kQFull + 8 * q_ring.slot, q, row,
                                  head, block, C::kLse + q_ring.slot * C::kRowBytes);
        if constexpr (C::kBias) copy_bias(t.batch, head, row, first_key);
        q_ring.step();
        if (g == 0 && i == 0) copy_v(t.head, v);
        barrier_wait(here + C::kDoFree + 8 * do_ring.slot, do_ring.parity ^ 1);
        copy_block<0>(C::kDo + do_ring.slot * C::kQueryBytes, maps.o, C::kDoFull + 8 * do_ring.slot, d_o, row, head,
                      block + abi::backward_delta_at(C::kTileQ), C::kDelta + do_ring.slot * C::kRowBytes);
        do_ring.step();
        if (C::kPair && g == 0 && i == 0) copy_k(t.head, k);
      }
    }
    ++tiles;
  }

  // In a pair each CTA copies its own K for both: dQ takes the keys of both.
  FW_METHOD void copy_k(int head, const MapPlace& at) const {
    const uint32_t slot = C::kPair ? 0 : tiles & 1, use = C::kPair ? tiles : tiles >> 1;
    const uint32_t full = here + C::kKFull + 8 * slot;
    barrier_wait(here + C::kKFree + 8 * slot, (use & 1) ^ 1);
    if (first_lane) {
      barrier_expect(full, C::kCtas * C::kKeyBytes);
      const uint32_t to = here + C::kK + (C::kPair ? rank : slot) * C::kKeyBytes;
      for (int i = 0; i < C::kTileK / 64 * C::kPanels; ++i) {
        const MapPlace box = {at.row + i / C::kPanels * 64, at.fine, at.coarse};
        load_shared_box(to + i * C::kBoxBytes, maps.k, full, i % C::kPanels * kPanel, head, box, kEvictFirst);
      }
    }
    wave_barrier();
  }
  FW_METHOD void copy_v(int head, const MapPlace& at) const {
    const uint32_t slot = C::kVSlots == 2 ? tiles & 1 : 0, use = C::kVSlots == 2 ? tiles >> 1 : tiles;
    const uint32_t full = here + C::kVFull + 8 * slot;
    barrier_wait(here + C::kVFree + 8 * slot, (use & 1) ^ 1);
    if (first_lane) {
      barrier_expect(full, C::kKeyBytes);
      for (int i = 0; i < C::kTileK / 64 * C::kPanels; ++i) {
        const MapPlace box = {at.row + i / C::kPanels * 64, at.fine, at.coarse};
        tma_load(here + C::kV + slot * C::kKeyBytes + i * C::kBoxBytes, maps.v, full, i % C::kPanels * kPanel, head,
                 box, kEvictFirst);
      }
    }
    wave_barrier();
  }
  // The bias of a block of queries and this CTA's keys, which comes with the queries.
  FW_METHOD void copy_bias(int batch, int head, int row, int first_key) const {
    if (first_lane) {
      const MapPlace at = bias_place(p, batch, row);
      FW_UNROLL for (int panel = 0; panel < C::kTileK / kPanel; ++panel)
          tma_load(here + C::kBiases + q_ring.slot * C::kBiasBytes + panel * C::kTileQ * kPanelRowBytes, maps.bias,
                   here + C::kQFull + 8 * q_ring.slot, first_key + panel * kPanel, head, at, kEvictFirst);
    }
    wave_barrier();
  }
  // A block of Q or dO with its lse or delta; kMoreBytes: of what else comes with it. In a pair each CTA copies half of
  // the boxes for both.
  template <int kMoreBytes>
  FW_METHOD void copy_block(uint32_t to, const TensorMap& map, uint32_t full, const MapPlace& at, int row, int head,
                            const char* numbers, uint32_t numbers_to) const {
    if (first_lane) {
      barrier_expect(here + full, C::kQueryBytes + C::kRowBytes + kMoreBytes);
      constexpr int kHalves = C::kTileQ / 64, kBoxes = C::kPanels * kHalves, kMine = kBoxes / C::kCtas;
      FW_UNROLL for (int i = 0; i < kMine; ++i) {
        const int box = (C::kPair ? int(rank) * kMine : 0) + i;
        const MapPlace place = {at.row + row + box % kHalves * 64, at.fine, at.coarse};
        load_shared_box(here + to + box * C::kBoxBytes, map, here + full, box / kHalves * kPanel, head, place,
                        kEvictLast);
      }
      bulk_load(here + numbers_to, numbers, C::kRowBytes, here + full);
    }
    wave_barrier();
  }
  // For both CTAs of a pair.
  FW_METHOD static void load_shared_box(uint32_t to, const TensorMap& map, uint32_t full, int column, int head,
                                        const MapPlace& at, uint64_t priority) {
    if constexpr (C::kPair) {
      tma_load_both(to, map, full, column, head, at, priority);
    } else {
      tma_load(to, map, full, column, head, at, priority);
    }
  }
};

}  // namespace flashwave

// The warpgroup of dQ (bwd.h). Single CTAs: the first tile of keys to come to a block of queries stores its part of the
// sums, the others add theirs (BackwardProducer::let_add).
#pragma once

#include "kernels/hopper/bwd_producer.h"

namespace flashwave {

template <class C>
struct QueryGradients {
  using Element = typename C::Element;
  // 64 x 64 of dQ at a time, so that 32 accumulators are enough.
  static constexpr int kPieces = C::kTileQ * C::kDim / 4096;
  using Product = Wgmma<Element, 64>;

  const Params& p;
  char* const blocks;
  const bool in_order;
  const uint32_t rank, here;
  const int thread;
  uint32_t block_count = 0, tile_count = 0;
  float sum[32];
  uint32_t
      k_transposed[C::kTransposedDq ? 32 : 1];  // K^T as the first operand of dQ^T = K^T dS^T, read once for a tile

  FW_METHOD QueryGradients(const GpuArguments& args, uint32_t cta)
      : p(args.params),
        blocks(args.shared + abi::kBackwardHeaderBytes),
        in_order(args.schedule.in_order != 0),
        rank(cta),
        here(C::here(cta)),
        thread(thread_index() % kWarpgroup) {}

  FW_METHOD void run() {
    for (uint32_t n = 0;; ++n) {
      const BackwardTask task = load_backward_task(wait_backward_task<C>(here, n));
      if (uniform(task.key) < 0) break;
      if (uniform(task.blocks) > 0) tile(task);
      release_backward_task<C>(n);
    }
  }

 private:
  FW_METHOD void release_k(uint32_t k_slot) const {
    if constexpr (C::kPair) {
      wave_barrier();
      if (thread % 32 < 2) barrier_arrive_in(C::kKFree, thread % 32);
    } else {
      if (thread % 32 == 0) barrier_arrive(C::kKFree + 8 * k_slot);
    }
  }

  FW_METHOD void tile(const BackwardTask& task) {
    const uint32_t k_slot = C::kPair ? 0 : tile_count & 1, own_k = C::kPair ? rank : k_slot;
    barrier_wait(here + C::kKFull + 8 * k_slot, (C::kPair ? tile_count : tile_count >> 1) & 1);
    if constexpr (C::kTransposedDq) {
      const int lane = thread % 32, unit = (2 * (thread / 32) + lane / 8 % 2) ^ lane % 8;
      FW_UNROLL for (int k = 0; k < 8; ++k) load_matrices_transposed(
          k_transposed + 4 * k, here + C::kK + own_k * C::kKeyBytes + k / 4 * C::kHalfBytes +
                                    (k % 4 * 16 + lane / 16 * 8 + lane % 8) * kPanelRowBytes + (unit << 4));
      wave_barrier();
      if constexpr (!C::kPair) release_k(k_slot);
    }
    const int first_block = uniform(task.first_query_block), count = uniform(task.blocks);
    int block = first_block, head = uniform(task.head) * (p.heads_q / p.heads_k);
    const int end_head = head + p.heads_q / p.heads_k;
    FW_NO_UNROLL for (; head < end_head; ++head) {
      char* at = blocks + (int64_t{uniform(task.first_block) + first_block} * p.heads_q + head) * C::kBlockBytes;
      FW_NO_UNROLL for (block = first_block; block < first_block + count; ++block, ++block_count) {
        const bool last = head + 1 == end_head && block + 1 == first_block + count;
        if (!C::kPair || (block_count & 1) == rank) {
          add_block(task, block, head, at, k_slot, last);
        } else if (last) {
          release_k(k_slot);
        }
        at += p.heads_q * C::kBlockBytes;
      }
    }
    ++tile_count;
  }

  // 64 columns from `column` on of 64 queries, straight from registers: the four lanes that share a row exchange their
  // columns for 8 in a row each.
  FW_METHOD void store_piece(const BackwardTask& task, int block, int head, int column) const {
    if (!p.dq.data) return;
    const int place = thread % 4, row = block * C::kTileQ + thread / 32 * 16 + thread % 32 / 4;
    uint16_t* const to = static_cast<uint16_t*>(p.dq.data) + query_offset(p.dq, sequence_of(p, task.batch), row, head) +
                         column + 8 * place;
    FW_UNROLL for (int k = 0; k < 2; ++k) {
      FW_UNROLL for (int i = 0; i < 2; ++i) {
        uint32_t x[4];
        FW_UNROLL for (int j = 0; j < 4; ++j) x[j] = Element::pack(sum[16 * k + 4 * j + 2 * i] * p.softmax_scale,
                                                                   sum[16 * k + 4 * j + 2 * i + 1] * p.softmax_scale);
        transpose_quad(x, place);
        if (row + 8 * i < task.queries && column + 32 * k + 8 * place < p.dim_qk)
          *reinterpret_cast<uint4*>(to + 8 * i * p.dq.stride[1] + 32 * k) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }

  FW_METHOD void add_block(const BackwardTask& task, int block, int head, char* at, uint32_t k_slot, bool last) {
    if (C::kPair && thread < 2) barrier_expect(here + C::kInFull + 8 * thread, C::kDsBytes / 2);
    // In a pair slot = rank, but made anew each time: otherwise 32 descriptors are kept in registers that are not
    // there.
    const uint32_t slot = last_bit(block_count), parity = block_count >> 1 & 1;
    const uint64_t ds = operand(C::kDs, 16) + slot * (C::kDsBytes / 16), in = operand(C::kIn, 16);
    const uint64_t k = operand(C::kK, C::kBoxBytes), own_k = k + (C::kPair ? slot : k_slot) * (C::kKeyBytes / 16),
                   other_k = k + (slot ^ 1) * (C::kKeyBytes / 16);
    const uint32_t count_slot = block_count / C::kCtas & 1, count_parity = block_count / C::kCtas >> 1 & 1;
    bool first = false;  // to come to this block
    float* const to = reinterpret_cast<float*>(at + abi::backward_dq_at(C::kTileQ)) + thread * 4;
    // In order: the keys of CTA 0 first, whichever of the pair does it. Otherwise this CTA's own, which are there
    // first.
    const bool other_first = C::kPair && in_order && rank;
    FW_UNROLL for (int piece = 0; piece < kPieces; ++piece) {
      hold(sum);
      wgmma_fence();
      // 64 keys at a time, each as soon as its warpgroup, or the other CTA's, has delivered.
      FW_UNROLL for (int q = 0; q < 2 * C::kCtas; ++q) {
        const bool own = !C::kPair || (q < 2) != other_first;
        const uint32_t full = here + (own ? C::kDsFull + 16 * slot : C::kInFull);
        if constexpr (C::kWide) {  // one block of 64 keys in each CTA, its halves by queries
          if (q & 1) continue;
          if (piece == 0) barrier_wait(full, parity), barrier_wait(full + 8, parity);
        } else {
          if (piece == 0) barrier_wait(full + 8 * (q & 1), parity);
        }
        const uint64_t scores = (own ? ds : in) + (q & 1) * (C::kTileQ * kPanelRowBytes / 16);
        const uint64_t keys = (own ? own_k : other_k) + (q & 1) * (C::kHalfBytes / 16);
        FW_UNROLL for (int i = 0; i < 4; ++i) {
          const bool more = q + i != 0;
          if constexpr (C::kTransposedDq) {
            const uint64_t b = scores + piece * (C::kBoxBytes / 16) + 2 * i;
            if (own) {
              Product::template registers_shared<0>(sum, k_transposed + 16 * (q & 1) + 4 * i, b, more);
            } else {
              Product::template shared_shared<1, 0>(sum, keys + 128 * i, b, more);
            }
          } else {
            Product::template shared_shared<0, 1>(sum, scores + 2 * i, keys + piece * (C::kBoxBytes / 16) + 128 * i,
                                                  more);
          }
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
      hold(sum);
      if (piece == kPieces - 1) {
        if constexpr (C::kPair) {
          if (thread < 2) barrier_arrive_in(C::kDsFree + 8 * (block_count & 1), thread);
        } else {
          if (thread == 0) barrier_arrive(C::kDsFree + 8 * (block_count & 1));
        }
        if ((!C::kTransposedDq || C::kPair) && last) release_k(k_slot);
      }
      if constexpr (C::kAlone) {
        store_piece(task, block, head, piece * 64);
        continue;
      }
      if constexpr (!C::kPair) {
        if (piece == 0) {
          barrier_wait(here + C::kMayAdd + 8 * count_slot, count_parity);
          first = uniform(load_shared(here + C::kFirst + 4 * count_slot)) != 0;
        }
      } else if (piece == 0 && in_order) {
        const int* const turn = reinterpret_cast<const int*>(at + abi::backward_turn_at(C::kTileQ));
        if (thread == 0) wait_until_equal(turn, turn_of<C>(p, task, block));
        named_sync(1, kWarpgroup);
      }
      // A burst of these would fill the load/store queue and delay the loads of the other warpgroups.
      const uint32_t start = clock_now();
      FW_UNROLL for (int j = 0; j < 8; ++j) {
        float* const at_sum = to + (piece * 8 + j) * 512;
        if (!C::kPair && first) {
          *reinterpret_cast<float4*>(at_sum) = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
        } else {
          add_to_memory(at_sum, sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
        }
        while (clock_now() - start < (j + 1) * C::kPace) {
        }
      }
    }
    if (!C::kAlone && (!C::kPair || in_order)) {
      if constexpr (C::kPair) barrier_wait(here + C::kTold + 8 * count_slot, count_parity ^ 1);
      wave_barrier();
      if (thread % 32 == 0) barrier_arrive(here + C::kAdded + 8 * count_slot);
    }
  }
};

}  // namespace flashwave

// Key warpgroups of a CTA of 64 keys, in a pair: dim 256, whose dK and dV of 64 keys are too many registers for one,
// and dim 128 with score modifiers or dropout, which need registers of their own. Each forms S^T and dP^T for
// 32 of the 64 queries of a block, and holds half of the columns of dK and dV of all keys. P and dS of its own queries
// are register operands; those of the other's come through shared memory, with two barriers a block.
#pragma once

#include "kernels/hopper/bwd.h"
#include "kernels/hopper/bwd_modify.h"

namespace flashwave {

template <class C>
struct WideKeys : KeyWarpgroup<C> {
  using Base = KeyWarpgroup<C>;
  using Base::become, Base::block_count, Base::do_ring, Base::here, Base::lane, Base::p, Base::q_ring, Base::rank,
      Base::thread, Base::w;
  static constexpr int kQueries = 32, kColumns = C::kDim / 2;
  static constexpr uint32_t kPanelBytes = C::kTileQ * kPanelRowBytes, kHalfRows = kQueries * kPanelRowBytes;
  using Scores = Wgmma<typename C::Element, kQueries>;
  using Sums = Wgmma<typename C::Element, kColumns>;

  float s[kQueries / 2], dk[kColumns / 2], dv[kColumns / 2];
  uint32_t weights[kQueries / 4];      // the operand
  Modified<C, kQueries / 2> modified;  // of the block at work

  FW_METHOD WideKeys(const Params& params, int warpgroup, uint32_t cta) : Base(params, warpgroup, cta) {}

  // keys: K or V; queries: this warpgroup's of Q or dO.
  FW_METHOD void issue_scores(uint64_t keys, uint64_t queries) {
    hold(s);
    wgmma_fence();
    FW_UNROLL for (int k = 0; k < C::kDim / 16; ++k) Scores::template shared_shared<0, 0>(
        s, keys + k % 4 * 2 + k / 4 * (C::kBoxBytes / 16), queries + k % 4 * 2 + k / 4 * (kPanelBytes / 16), k != 0);
    wgmma_commit();
  }
  // other: P or dS of the other's queries; queries: this warpgroup's columns of dO or Q.
  FW_METHOD void issue_sums(float (&d)[kColumns / 2], uint64_t other, uint64_t queries) {
    hold(weights);
    hold(d);
    wgmma_fence();
    FW_UNROLL for (int k = 0; k < 2; ++k)
        Sums::template registers_shared<1>(d, weights + 4 * k, queries + (2 * w + k) * 128, 1);
    FW_UNROLL for (int k = 0; k < 2; ++k)
        Sums::template shared_shared<1, 1>(d, other + k * 128, queries + (2 * (w ^ 1) + k) * 128, 1);
    wgmma_commit();
  }
  FW_METHOD uint64_t k_operand() const { return operand(C::kK + rank * C::kKeyBytes, 16); }
  FW_METHOD uint64_t queries_of(uint32_t ring, uint32_t slot) const {
    return operand(ring + w * kHalfRows, 16) + slot * (C::kQueryBytes / 16);
  }
  FW_METHOD uint64_t columns_of(uint32_t ring, uint32_t slot) const {
    return operand(ring + w * (C::kPanels / 2) * kPanelBytes, kPanelBytes) + slot * (C::kQueryBytes / 16);
  }
  FW_METHOD uint64_t other_p() const { return operand(C::kP + (w ^ 1) * kHalfRows, 16); }
  FW_METHOD uint64_t other_ds() const {
    return operand(C::kDs + (w ^ 1) * kHalfRows, 16) + this->ds_slot() * (C::kDsBytes / 16);
  }
  FW_METHOD void put(uint32_t at, const uint32_t (&x)[kQueries / 4]) const {
    Base::store_pieces(here + at + w * kHalfRows + this->piece_place(), x);
    async_proxy_fence();
  }
  FW_METHOD void wait_for_both(int barrier) const { named_sync(barrier, 2 * kWarpgroup); }

  FW_METHOD void tile(uint32_t task_at, int first) {
    BlockWalk<C> walk(p, task_at, w);
    // S -> P in x, and what of it dO is weighted with in `kept`, the same without dropout.
    const auto weigh = [&](uint32_t (&x)[kQueries / 4], uint32_t (&kept)[kQueries / 4]) {
      const int query = walk.block * C::kTileQ + w * kQueries;
      if constexpr (C::kModified) modified.scores(p, load_backward_task(task_at), walk.head, query, first, thread, s);
      if constexpr (C::kBias) this->add_bias(s, w * kHalfRows);
      if (walk.masked) mask_unseen(s, task_at, first, query, thread);
      if constexpr (C::kModified) {
        modified.exponentials(*this, s, 1.f, x);
        if (p.dropout_threshold) {
          const BackwardTask task = load_backward_task(task_at);
          modified.drop(modified.draw(p, task, walk.head, query, first, thread), x, kept);
        } else {
          FW_UNROLL for (int i = 0; i < kQueries / 4; ++i) kept[i] = x[i];
        }
      } else {
        this->exponentials(s, this->scale, this->lse(0), x);
      }
    };
    uint32_t x[kQueries / 4], kept[C::kModified ? kQueries / 4 : 1], probs[C::kModified ? kQueries / 4 : 1];
    FW_UNROLL for (int i = 0; i < kColumns / 2; ++i) dk[i] = dv[i] = 0;

    const int some_first = first_seeing<C>(task_at, first);
    while (walk.left > 1 && walk.block < some_first) {  // as in bwd.h
      this->wait_ds_free();
      this->wait_q(), this->wait_do();
      this->release_q(q_ring.slot), this->release_do();
      FW_UNROLL for (int i = 0; i < kQueries / 4; ++i) x[i] = 0;
      put(C::kDs + this->ds_slot() * C::kDsBytes, x);
      this->publish_ds();
      q_ring.step(), do_ring.step(), ++block_count, --walk.left, walk.step();
    }
    this->wait_k(0);
    this->wait_q();
    issue_scores(k_operand(), queries_of(C::kQ, q_ring.slot));
    wgmma_wait<0>();
    hold(s);
    if constexpr (C::kModified) {
      weigh(probs, weights);
    } else {
      weigh(weights, weights);
    }
    put(C::kP, weights);
    this->wait_v();
    this->wait_do();
    uint32_t q_before;
    FW_NO_UNROLL for (;;) {
      issue_scores(operand(C::kV, 16), queries_of(C::kDo, do_ring.slot));
      wait_for_both(2);  // P
      issue_sums(dv, other_p(), columns_of(C::kDo, do_ring.slot));
      wgmma_wait<1>();
      hold(s);
      if constexpr (C::kModified) {
        modified.score_gradients(*this, s, probs, weights, x);
      } else {
        this->score_gradients(s, weights, this->delta(0), x);
      }
      this->wait_ds_free();
      put(C::kDs + this->ds_slot() * C::kDsBytes, x);
      wgmma_wait<0>();
      hold(dv);
      hold(weights);
      become(weights, x);
      this->release_do();
      do_ring.step();
      q_before = q_ring.slot;
      q_ring.step();
      if (--walk.left == 0) break;
      walk.step();
      this->wait_q();
      issue_scores(k_operand(), queries_of(C::kQ, q_ring.slot));
      wait_for_both(3);  // dS; and both have done with P
      issue_sums(dk, other_ds(), columns_of(C::kQ, q_before));
      this->publish_ds();
      wgmma_wait<1>();
      hold(s);
      if constexpr (C::kModified) {
        weigh(probs, kept);
        put(C::kP, kept);
      } else {
        weigh(x, x);
        put(C::kP, x);
      }
      this->wait_do();
      wgmma_wait<0>();
      hold(dk);
      hold(weights);
      if constexpr (C::kModified) {
        become(weights, kept);
      } else {
        become(weights, x);
      }
      this->release_q(q_before);
      ++block_count;
    }
    wait_for_both(2);  // dS
    issue_sums(dk, other_ds(), columns_of(C::kQ, q_before));
    this->publish_ds();
    this->release_keys(0);
    ++this->tile_count;
    const float kept_scale = C::kModified ? 1.f / (1.f - p.dropout_p) : 1.f;
    store_keys<C, kColumns>(p, p.dv, p.dim_v, load_backward_task(task_at), first, w * kColumns, dv, kept_scale, thread);
    wgmma_wait<0>();
    hold(dk);
    hold(weights);
    this->release_q(q_before);
    ++block_count;
    store_keys<C, kColumns>(p, p.dk, p.dim_qk, load_backward_task(task_at), first, w * kColumns, dk, p.softmax_scale,
                            thread);
  }
};

}  // namespace flashwave

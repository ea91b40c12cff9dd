// Attention's gradients by TMA and wgmma. A CTA owns a tile of keys and walks over the blocks of queries that see it,
// and over the heads of its group, so that dK and dV are summed in registers. Four warpgroups:
//   0     copies (bwd_producer.h)
//   1, 2  64 keys each:  S^T = K Q^T,  dP^T = V dO^T,  dV += P^T dO,  dK += dS^T Q.  Keys are the rows, so P^T and
//         dS^T leave the accumulators as the register operands of the next products; only dS goes to shared memory, for
//   3     dQ = dS K, added to fp32 sums in the L2 cache straight from registers. It has no softmax: its products fill
//         the tensor cores while 1 and 2 compute exponentials, and those two never wait for each other.
// A key warpgroup issues S_{j+1} and dK_j and takes exponentials under dK_j; then dP_{j+1} and dV_{j+1}, and forms dS
// under dV_{j+1}. S and dP share one set of accumulators, P and dS one set of operand registers: that is what makes dK
// and dV of 64 keys fit beside them (dim 128: 24 + 128 + 32 + 16 = 200 of 208 registers).
//
// A pair of CTAs owns two tiles and walks together. Each copies half of Q and dO for both. dQ of every other block of
// queries is formed by CTA 0, of the rest by CTA 1, over the keys of both: half the sums, which are what limits dim
// 128. For this both hold the K of both, and each sends the dS of the other's blocks to it.
//
// Sums in order (Schedule::in_order): each block of queries has a counter of the tiles that have added to it, and a
// tile waits for its turn; the same bits whatever the order of the CTAs.
//
// Two small kernels frame this one (bwd_frame.h).
#pragma once

#include "kernels/hopper/bwd_keys.h"
#include "kernels/hopper/bwd_modify.h"

namespace flashwave {

// The barriers and operands that both kinds of key warpgroups use.
template <class C>
struct KeyWarpgroup {
  using Element = typename C::Element;
  const Params& p;
  const uint32_t rank, here;
  const int w, thread, lane;
  const float scale;         // of a score, to units of log2
  uint32_t block_count = 0;  // blocks of queries done
  uint32_t tile_count = 0;   // tiles with any
  Ring<C::kQStages> q_ring;  // the block of Q whose scores come next
  Ring<C::kDoStages> do_ring;

  // The thread's number goes through a shuffle so that ptxas keeps it, and does not read the special register again in
  // the loop.
  FW_METHOD KeyWarpgroup(const Params& params, int warpgroup, uint32_t cta)
      : p(params),
        rank(cta),
        here(C::here(cta)),
        w(warpgroup),
        thread(from_lane(thread_index() % kWarpgroup, thread_index() % 32)),
        lane(thread % 32),
        scale(params.softmax_scale * kLog2e) {}

  // Warp by warp, since lse and delta are read by ordinary loads.
  FW_METHOD void release(uint32_t free) const {
    wave_barrier();
    if constexpr (C::kPair) {
      if (lane < 2) barrier_arrive_in(free, lane);
    } else {
      if (lane == 0) barrier_arrive(free);
    }
  }
  FW_METHOD void release_q(uint32_t slot) const { release(C::kQFree + 8 * slot); }
  FW_METHOD void release_do() const { release(C::kDoFree + 8 * do_ring.slot); }
  FW_METHOD void release_keys(uint32_t k_slot) const {
    if constexpr (C::kPair) {
      if (thread < 2) barrier_arrive_in(C::kKFree, thread);
    } else {
      if (thread == 0) barrier_arrive(C::kKFree + 8 * k_slot);
    }
    if (thread == 0) barrier_arrive(here + C::kVFree + 8 * v_slot());
  }
  FW_METHOD void wait_q() const { barrier_wait(here + C::kQFull + 8 * q_ring.slot, q_ring.parity); }
  FW_METHOD void wait_do() const { barrier_wait(here + C::kDoFull + 8 * do_ring.slot, do_ring.parity); }
  FW_METHOD void wait_k(uint32_t k_slot) const {
    barrier_wait(here + C::kKFull + 8 * k_slot, (C::kPair ? tile_count : tile_count >> 1) & 1);
  }
  FW_METHOD uint32_t v_slot() const { return C::kVSlots == 2 ? tile_count & 1 : 0; }
  FW_METHOD void wait_v() const {
    barrier_wait(here + C::kVFull + 8 * v_slot(), (C::kVSlots == 2 ? tile_count >> 1 : tile_count) & 1);
  }
  FW_METHOD uint32_t ds_slot() const { return block_count & 1; }
  FW_METHOD void wait_ds_free() const { barrier_wait(here + C::kDsFree + 8 * ds_slot(), (block_count >> 1 & 1) ^ 1); }
  // dS is there for warpgroup 3. Nothing here waits for it, so it comes after the next products are issued.
  FW_METHOD void publish_ds() const {
    if constexpr (!C::kWide) async_proxy_fence();  // there the other key warpgroup needed it before
    wave_barrier();
    if (lane == 0) barrier_arrive(here + C::kDsFull + 16 * ds_slot() + 8 * w);
  }
  FW_METHOD float4 lse(int i) const { return numbers(C::kLse + q_ring.slot * C::kRowBytes, i); }
  FW_METHOD float4 delta(int i) const { return numbers(C::kDelta + do_ring.slot * C::kRowBytes, i); }
  // A thread's four queries of the i-th 16 that the warpgroup has scores of (abi::backward_row_place).
  FW_METHOD float4 numbers(uint32_t at, int i) const {
    return load_shared_floats(here + at + (C::kWide ? w * 128 : 0) + i * 64 + lane % 4 * 16);
  }

  // q.k -> scores with their bias, in units of log2. The tile of the bias has keys side by side: transposed, it comes
  // as the scores are. first: of the rows that this warpgroup has.
  template <int N>
  FW_METHOD void add_bias(float (&s)[N], uint32_t first) const {
    const uint32_t at = here + C::kBiases + q_ring.slot * C::kBiasBytes + first + piece_place();
    FW_UNROLL for (int k = 0; k < N / 8; ++k) {
      uint32_t bias[4];
      load_matrices_transposed(bias, at + k * 16 * kPanelRowBytes);
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        s[8 * k + 2 * i] = multiply_add(s[8 * k + 2 * i], scale, in_log2(Element::low(bias[i])));
        s[8 * k + 2 * i + 1] = multiply_add(s[8 * k + 2 * i + 1], scale, in_log2(Element::high(bias[i])));
      }
    }
  }

  // P = 2^(s c - lse), packed.
  template <int N>
  FW_METHOD void exponentials(const float (&s)[N], float c, float4 first, uint32_t (&x)[N / 2]) const {
    const auto exponential = [c](float score, float l) {  // with a bias as in Modified::exponentials
      return exp2_fast(C::kBias ? fminf(score - l, 0.f) : multiply_add(score, c, -l));
    };
    FW_UNROLL for (int k = 0; k < N / 8; ++k) {
      const float4 l = k == 0 ? first : lse(k);
      FW_UNROLL for (int i = 0; i < 4; ++i) x[4 * k + i] = Element::pack(
          exponential(s[8 * k + 2 * i], i < 2 ? l.x : l.z), exponential(s[8 * k + 2 * i + 1], i < 2 ? l.y : l.w));
    }
  }
  // dS = P (dP - delta), packed.
  template <int N>
  FW_METHOD void score_gradients(const float (&dp)[N], const uint32_t (&weights)[N / 2], float4 first,
                                 uint32_t (&x)[N / 2]) const {
    FW_UNROLL for (int k = 0; k < N / 8; ++k) {
      const float4 d = k == 0 ? first : delta(k);
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        const float low = dp[8 * k + 2 * i] - (i < 2 ? d.x : d.z), high = dp[8 * k + 2 * i + 1] - (i < 2 ? d.y : d.w);
        const uint32_t weight = weights[4 * k + i];
        if constexpr (C::kShortProduct) {
          x[4 * k + i] = Element::multiply(weight, Element::pack(low, high));
        } else {
          x[4 * k + i] = Element::pack(low * Element::low(weight), high * Element::high(weight));
        }
      }
    }
  }
  // Where this lane stores 16 x 16 pieces of P or dS, [query][key]: query 8 (lane / 16) + lane % 8, 8 keys by lane / 8
  // % 2.
  FW_METHOD uint32_t piece_place() const {
    return (lane / 16 * 8 + lane % 8) * kPanelRowBytes + (((2 * (thread / 32) + lane / 8 % 2) ^ lane % 8) << 4);
  }
  template <int N>
  FW_METHOD static void store_pieces(uint32_t at, const uint32_t (&x)[N]) {
    FW_UNROLL for (int k = 0; k < N / 4; ++k)
        store_matrices_transposed(at + k * 16 * kPanelRowBytes, x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
  }
  // One set of registers is the operand of P and of dS. The products that read the one are still running when the other
  // is made, over the dead accumulators; it moves after the wait. A plain copy would become a second set: there is no
  // room.
  template <int N>
  FW_METHOD void become(uint32_t (&operand_registers)[N], const uint32_t (&x)[N]) const {
    FW_UNROLL for (int i = 0; i < N; ++i) operand_registers[i] = x[i] + p.o.most;  // 0, which ptxas does not know
  }
};

// Every tile, by the kind of key warpgroup that `keys` is. Where both have all keys, one stores what no query sees.
template <class C, class Keys>
FW_DEVICE void for_each_tile(Keys&& keys) {
  for (uint32_t n = 0;; ++n) {
    const uint32_t task_at = wait_backward_task<C>(keys.here, n);
    const BackwardTask task = load_backward_task(task_at);
    if (uniform(task.key) < 0) break;
    const int first = C::first_key(uniform(task.key), keys.rank, keys.w);
    const bool pads = task.key == 0 && keys.rank == 0 && keys.w == 0;
    if (!C::kWide || keys.w == 0) store_unseen<C>(keys.p, task, first, pads, keys.thread);
    if (uniform(task.blocks) > 0) keys.tile(task_at, first);
    release_backward_task<C>(n);
  }
}

template <class C>
struct NarrowKeys : KeyWarpgroup<C> {
  using Base = KeyWarpgroup<C>;
  using Base::become, Base::block_count, Base::do_ring, Base::here, Base::lane, Base::p, Base::q_ring, Base::rank,
      Base::thread, Base::w;
  static constexpr int kDim = C::kDim, kTileQ = C::kTileQ;
  using Scores = Wgmma<typename C::Element, kTileQ>;
  using Sums = Wgmma<typename C::Element, kDim>;

  float s[kTileQ / 2], dk[kDim / 2], dv[kDim / 2];
  uint32_t weights[kTileQ / 4];
  Modified<C, kTileQ / 2> modified;  // of the block at work

  FW_METHOD NarrowKeys(const Params& params, int warpgroup, uint32_t cta) : Base(params, warpgroup, cta) {}

  // S^T = K Q^T, dP^T = V dO^T: keys and queries of 16 columns a step.
  FW_METHOD void issue_scores(uint64_t keys, uint64_t queries) {
    hold(s);
    wgmma_fence();
    FW_UNROLL for (int k = 0; k < kDim / 16; ++k)
        Scores::template shared_shared<0, 0>(s, keys + k % 4 * 2 + k / 4 * (C::kBoxBytes / 16),
                                             queries + k % 4 * 2 + k / 4 * (kTileQ * kPanelRowBytes / 16), k != 0);
    wgmma_commit();
  }
  // dV += P^T dO, dK += dS^T Q: 16 queries a step.
  FW_METHOD void issue_sums(float (&d)[kDim / 2], uint64_t queries) {
    hold(weights);
    hold(d);
    wgmma_fence();
    FW_UNROLL for (int k = 0; k < kTileQ / 16; ++k)
        Sums::template registers_shared<1>(d, weights + 4 * k, queries + k * (16 * kPanelRowBytes / 16), 1);
    wgmma_commit();
  }
  FW_METHOD uint64_t k_operand(uint32_t slot) const {
    // Bits that are set in a descriptor take fewer registers than sums. (Dim 64 has them left: there the sum is as
    // fast.)
    return (C::kTransposedDq || C::kRoomy) && !C::kPair
               ? operand(C::kK + w * C::kHalfBytes, 16) + slot * (C::kKeyBytes / 16)
               : operand(C::kK + (C::kPair ? rank : slot) * C::kKeyBytes + w * C::kHalfBytes, 16);
  }
  FW_METHOD uint64_t q_operand(uint32_t panel_bytes, uint32_t slot) const {
    return operand(C::kQ, panel_bytes) + slot * (C::kQueryBytes / 16);
  }
  FW_METHOD uint64_t do_operand(uint32_t panel_bytes) const {
    return operand(C::kDo, panel_bytes) + do_ring.slot * (C::kQueryBytes / 16);
  }
  static constexpr uint32_t kPanelBytes = kTileQ * kPanelRowBytes;

  FW_METHOD void tile(uint32_t task_at, int first) {
    BlockWalk<C> walk(p, task_at, w);
    const uint32_t k_slot = C::kPair ? 0 : this->tile_count & 1;
    const uint32_t ds_at = here + C::kDs + w * (kTileQ * kPanelRowBytes) + this->piece_place();
    // S -> P in x; with score modifiers P is in `probs`, and in x what of it is not dropped.
    uint32_t probs[C::kModified ? kTileQ / 4 : 1];
    const auto weigh = [&](uint32_t (&x)[kTileQ / 4], float4 l) {
      const int query = walk.block * kTileQ;
      if constexpr (C::kModified) {
        float c = this->scale;
        if (walk.masked || !modified.only_scales(p)) {
          modified.scores(p, load_backward_task(task_at), walk.head, query, first, thread, s);
          c = 1.f;
        }
        if (walk.masked) mask_unseen(s, task_at, first, query, thread);
        modified.exponentials(*this, s, c, probs);
        if (p.dropout_threshold) {
          modified.drop(modified.draw(p, load_backward_task(task_at), walk.head, query, first, thread), probs, x);
        } else {
          FW_UNROLL for (int i = 0; i < kTileQ / 4; ++i) x[i] = probs[i];
        }
      } else {
        if constexpr (C::kBias) this->add_bias(s, w * (kTileQ * kPanelRowBytes));
        if (walk.masked) mask_unseen(s, task_at, first, query, thread);
        this->exponentials(s, this->scale, l, x);
      }
    };
    FW_UNROLL for (int i = 0; i < kDim / 2; ++i) dk[i] = dv[i] = 0;

    // The first blocks may lie wholly before this warpgroup's keys: dS is 0 and nothing is multiplied. Their slots are
    // released unseen; the wait for dS's keeps the warpgroups less than a ring apart, so that phases cannot mix. In a
    // pair both key warpgroups of a CTA may do so: somebody must see the block arrive before its slot is written again.
    const int some_first = first_seeing<C>(task_at, first);
    while ((kTileQ == 64 || C::kPair) && walk.left > 1 && walk.block < some_first) {
      this->wait_ds_free();
      if constexpr (C::kPair) this->wait_q(), this->wait_do();
      this->release_q(q_ring.slot), this->release_do();
      FW_UNROLL for (int k = 0; k < kTileQ / 16; ++k)
          store_matrices_transposed(ds_at + this->ds_slot() * C::kDsBytes + k * 16 * kPanelRowBytes, 0, 0, 0, 0);
      this->publish_ds();
      q_ring.step(), do_ring.step(), ++block_count, --walk.left, walk.step();
      if constexpr (!C::kPair) break;
    }
    this->wait_k(k_slot);
    this->wait_q();
    issue_scores(k_operand(k_slot), q_operand(16, q_ring.slot));
    wgmma_wait<0>();
    hold(s);
    weigh(weights, this->lse(0));
    this->wait_v();
    this->wait_do();
    uint32_t q_before;
    FW_NO_UNROLL for (;;) {
      issue_scores(operand(C::kV + w * C::kHalfBytes, 16) + this->v_slot() * (C::kKeyBytes / 16), do_operand(16));
      issue_sums(dv, do_operand(kPanelBytes));
      const float4 d0 = this->delta(0);
      wgmma_wait<1>();
      hold(s);
      uint32_t x[kTileQ / 4];
      if constexpr (C::kModified) {
        modified.score_gradients(*this, s, probs, weights, x);
      } else {
        this->score_gradients(s, weights, d0, x);
      }
      this->wait_ds_free();  // also keeps ptxas from moving the wait below over the products above
      Base::store_pieces(ds_at + this->ds_slot() * C::kDsBytes, x);
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
      issue_scores(k_operand(k_slot), q_operand(16, q_ring.slot));
      issue_sums(dk, q_operand(kPanelBytes, q_before));
      this->publish_ds();
      const float4 l0 = this->lse(0);
      wgmma_wait<1>();
      hold(s);
      weigh(x, l0);
      this->wait_do();
      wgmma_wait<0>();
      hold(dk);
      hold(weights);
      become(weights, x);
      this->release_q(q_before);
      ++block_count;
    }
    issue_sums(dk, q_operand(kPanelBytes, q_before));
    this->publish_ds();
    this->release_keys(k_slot);
    ++this->tile_count;
    const float kept_scale = C::kModified ? 1.f / (1.f - p.dropout_p) : 1.f;
    store_keys<C, kDim>(p, p.dv, p.dim_v, load_backward_task(task_at), first, 0, dv, kept_scale, thread);
    wgmma_wait<0>();
    hold(dk);
    hold(weights);
    this->release_q(q_before);
    ++block_count;
    store_keys<C, kDim>(p, p.dk, p.dim_qk, load_backward_task(task_at), first, 0, dk, p.softmax_scale, thread);
  }
};

}  // namespace flashwave

// Forward attention by TMA and wgmma. One CTA per SM: warpgroup 0 produces (producer.h), the others consume 64 queries
// each. A consumer runs S_j = Q K_j^T and O += P_{j-1} V_{j-1} on the tensor cores while it turns
// S_j into P_j; the consumers take turns at issuing, so that the tensor cores have one's products while another
// computes exponentials. Blocks of keys go from last to first: those cut by a causal mask come first, and the long loop
// has none.
//
// The softmax of the long loop is optimistic. A reference m per row comes from the exact maximum over the blocks
// before; P = 2^(s c - m) is computed at once, without a maximum, and only then is the largest P looked at, as packed
// integers. Where one is too large, which is rare, its warp takes the exact maximum of the block, scales what it has
// accumulated and computes P again. The result is exact for any scores. One modifier alone is part of that loop: a
// softcap, a bias, which comes as a tile beside K and V, or ALiBi, which on either side of the diagonal is a line; and
// so is dropout.
#pragma once

#include "kernels/abi/partials.h"
#include "kernels/common/row_end.h"
#include "kernels/hopper/producer.h"
#include "kernels/hopper/score.h"

namespace flashwave {

template <class C>
struct Consumer {
  using Element = typename C::Element;
  static constexpr int kScores = C::kTileK / 2, kWeights = C::kTileK / 4, kOutputs = C::kColumns / 2;
  static constexpr float kSteepest = 0x1p12f;  // slope of ALiBi over the scale of q.k
  // Where the keys of a block lie: behind or before the diagonals of all rows, or it does not matter.
  enum Side { kBehind, kBefore, kNoSide = 3 };

  const GpuArguments& args;
  const Params& p;
  const TensorMaps& maps;
  const int group;    // which consumer
  const bool speaks;  // one thread of the warpgroup does
  const float scale;  // of a score that the softmax takes, to units of log2
  // Of q.k, to what tanh takes, to units of log2 (ALiBi), or to units of e, in which a bias is added.
  const float from_dot;
  const float cap;  // of tanh, to units of log2
  // Blocks whose output is done. Scores run one block ahead of it: all counts and places in the rings follow from this.
  uint32_t done = 0;

  // Of this thread's two rows, lane / 4 and 8 more: scores, results, weights, reference (units of log2), sum of
  // weights.
  float s[kScores], o[kOutputs];
  uint32_t pa[kWeights], pb[C::kTwoWeights ? kWeights : 1];
  float m0, m1, l0, l1;
  uint32_t keeps[2];  // which of the weights at work are not dropped
  bool too_large;     // a weight of this warp

  uint32_t task_number = 0, queries;  // queries: where they lie
  bool first_output;                  // the next one is
  int open_first, open_last;          // all rows of this warpgroup see these blocks of keys, whole
  // ALiBi: the key on the diagonal of this thread's first row, less its first column (kSlopeByMma: not less that);
  // what a score gains from key to key on the side of the diagonals where the work is, in units of log2; where that
  // lies as an operand.
  int diagonal;
  float per_key;
  uint32_t slopes;

  FW_METHOD Consumer(const GpuArguments& arguments, const TensorMaps& tensor_maps, int consumer)
      : args(arguments),
        p(arguments.params),
        maps(tensor_maps),
        group(consumer),
        speaks(thread_index() % kWarpgroup == 0),
        scale(C::kPlain ? p.softmax_scale * kLog2e : 1.f),
        from_dot(C::kCapped  ? p.softmax_scale / p.softcap
                 : C::kAlibi ? p.softmax_scale * kLog2e
                             : p.softmax_scale),
        cap(C::kCapped ? p.softcap * kLog2e : 0.f) {}

  FW_METHOD void wait_k(uint32_t n) const {
    barrier_wait(C::kKFull + 8 * slot_of<C::kStages>(n), parity_of<C::kStages>(n));
  }
  FW_METHOD void wait_v(uint32_t n) const {
    barrier_wait(C::kVFull + 8 * slot_of<C::kStages>(n), parity_of<C::kStages>(n));
  }
  // First query of this warpgroup, and the place of its queries.
  FW_METHOD int row_of(const ForwardTask& t) const { return t.query + head_rows<C>(args.schedule) * group; }
  FW_METHOD uint32_t q_slot(uint32_t n) const { return slot_of<C::kQSlots>(n) * C::kConsumers + group; }
  FW_METHOD uint32_t q_at(uint32_t n) const { return C::kQ + q_slot(n) * C::kQBytes; }

  // The first of this thread's two rows of a warpgroup's 64, and the first of its columns of 8.
  FW_METHOD static int first_row() { return thread_again() % kWarpgroup / 32 * 16 + thread_again() % 32 / 4; }
  FW_METHOD static int first_column() { return thread_again() % 4 * 2; }
  // Of one of the 64: its query, after the first, and its head, after that of the task.
  FW_METHOD int query_of(int row) const { return C::kPacked ? row & (head_rows<C>(args.schedule) - 1) : row; }
  FW_METHOD int head_of(int row) const { return C::kPacked ? row >> lowest_bit(head_rows<C>(args.schedule)) : 0; }
  FW_METHOD void release_k(uint32_t n) const {
    if (speaks) barrier_arrive(C::kKFree + 8 * slot_of<C::kStages>(n));
  }
  FW_METHOD void release_v(uint32_t n) const {
    if (speaks) barrier_arrive(C::kVFree + 8 * slot_of<C::kStages>(n));
  }

  // The queries of the n-th task may be overwritten: after the last scores, or after the stores have read their place.
  FW_METHOD void release_queries(uint32_t n) const {
    if (speaks) barrier_arrive(C::kQFree + 8 * q_slot(n));
  }

  // S = Q K^T for the n-th block. 16 columns are 32 bytes along the rows of a panel. kSlopeByMma: one more step adds
  // what a score gains from the first key of the block on, on this side of the diagonals (store_slopes).
  FW_METHOD void issue_scores(uint32_t n, Side side = kNoSide) {
    const uint64_t q = operand(queries, 16), k = operand(C::kK, 16) + slot_of<C::kStages>(n) * (C::kKBytes / 16);
    hold(s);
    wgmma_fence();
    FW_UNROLL for (int i = 0; i < C::kDimQk / 16; ++i)
        Wgmma<Element, C::kTileK>::shared_shared(s, q + i % 4 * 2 + i / 4 * (64 * kPanelRowBytes / 16),
                                                 k + i % 4 * 2 + i / 4 * (C::kTileK * kPanelRowBytes / 16), i != 0);
    if constexpr (C::kSlopeByMma)
      Wgmma<Element, C::kTileK>::shared_shared(s, slopes_at(side), narrow_operand(C::kNumbers, 128, 128), 1);
    wgmma_commit();
  }
  // O += P V. 16 keys are 2048 bytes. With sums, the panel after V's is the tile of ones: the distance to it shrinks as
  // the address grows. The first output of a task overwrites O, so that nothing else has to while other products run.
  FW_METHOD void issue_output(uint32_t (&weights)[kWeights]) {
    constexpr uint64_t kForward = C::kSumByMma ? 1 - (uint64_t{1} << 16) : 1;
    const uint64_t v = operand(C::kV, C::kSumByMma ? C::kOnes - C::kV : C::kTileK * kPanelRowBytes) +
                       slot_of<C::kStages>(done) * (C::kVBytes / 16) * kForward;
    hold(weights);
    hold(o);
    wgmma_fence();
    FW_UNROLL for (int i = 0; i < C::kTileK / 16; ++i) Wgmma<Element, C::kColumns>::registers_shared(
        o, weights + 4 * i, v + i * 128 * kForward, i > 0 || !first_output);
    wgmma_commit();
    first_output = false;
  }
  // One turn: the scores of a block and the output of the block before. Returns when the scores are there.
  FW_METHOD void issue_both(uint32_t (&weights)[kWeights], int block, bool last, Side side = kNoSide) {
    named_sync(turn_barrier(group), 2 * kWarpgroup);
    issue_scores(done + 1, side);
    wait_v(done);
    issue_output(weights);
    named_arrive(turn_barrier((group + 1) % C::kConsumers), 2 * kWarpgroup);
    draw(block);
    wgmma_wait<1>();
    take_scores(done + 1, last);
  }
  // The scores of the n-th block are there.
  FW_METHOD void take_scores(uint32_t n, bool last) {
    hold(s);
    release_k(n);
    if constexpr (C::kQSlots == 1)
      if (last) release_queries(task_number);
    if constexpr (C::kBias) add_bias(n);
  }
  // kLater: products issued after the output.
  template <int kLater = 0>
  FW_METHOD void wait_output(uint32_t (&weights)[kWeights]) {
    wgmma_wait<kLater>();
    hold(o);
    hold(weights);
    release_v(done++);
  }

  // The task at work. It is read again where it is needed: registers are scarce.
  FW_METHOD ForwardTask task_again() const { return load_task(C::kTasks + 32 * slot_of<2>(task_number)); }

  // Scores of keys that a row does not see become -inf.
  FW_METHOD void mask(int block) {
    const ForwardTask task = task_again();
    const int key = block * C::kTileK + first_column();
    const Edges edges = edges_of(p, task, row_of(task), 64);
    const int row0 = query_of(first_row()), row1 = query_of(first_row() + 8);
    const int last0 = edges.end(row0, task.keys) - key, last1 = edges.end(row1, task.keys) - key;
    FW_UNROLL for (int j = 0; j < C::kTileK / 8; ++j) {
      FW_UNROLL for (int e = 0; e < 2; ++e) {
        if (8 * j + e >= last0) s[4 * j + e] = -kInf;
        if (8 * j + e >= last1) s[4 * j + 2 + e] = -kInf;
      }
    }
    if (p.window_left >= abi::kNoWindow) return;
    const int first0 = edges.first(row0) - key, first1 = edges.first(row1) - key;
    FW_UNROLL for (int j = 0; j < C::kTileK / 8; ++j) {
      FW_UNROLL for (int e = 0; e < 2; ++e) {
        if (8 * j + e < first0) s[4 * j + e] = -kInf;
        if (8 * j + e < first1) s[4 * j + 2 + e] = -kInf;
      }
    }
  }

  // The exact maximum so far, and so much more, becomes the reference, if it is not higher already. Returns what
  // everything accumulated before is to be scaled by.
  FW_METHOD float2 raise_reference(float headroom = 0) {
    float n0 = s[0], n1 = s[2];
    FW_UNROLL for (int j = 0; j < C::kTileK / 8; ++j) {
      n0 = fmaxf(n0, fmaxf(s[4 * j], s[4 * j + 1]));
      n1 = fmaxf(n1, fmaxf(s[4 * j + 2], s[4 * j + 3]));
    }
    n0 = fmaxf(quad_max(n0) * scale + headroom, m0), n1 = fmaxf(quad_max(n1) * scale + headroom, m1);
    const float2 factor = make_float2(exp2_fast(m0 - reference_of(n0)), exp2_fast(m1 - reference_of(n1)));
    l0 *= factor.x, l1 *= factor.y, m0 = n0, m1 = n1;
    return factor;
  }

  FW_METHOD void rescale(float2 factor) {
    FW_UNROLL for (int i = 0; i < C::kColumns / 8; ++i) {
      o[4 * i] *= factor.x, o[4 * i + 1] *= factor.x;
      o[4 * i + 2] *= factor.y, o[4 * i + 3] *= factor.y;
    }
  }

  // Softcap by the tanh of the special function unit, whose error is below that of rounding a score to 16 bits
  // (docs/numerics.md).
  FW_METHOD void cap_scores() { FW_UNROLL for (int i = 0; i < kScores; ++i) s[i] = tanh_fast(s[i] * from_dot) * cap; }

  // Scores with their bias, in units of e: the differences of two that are far below every other stay right in them.
  FW_METHOD void add_bias(uint32_t n) {
    const uint32_t slot = slot_of<C::kBiasStages>(n), thread = uint32_t(thread_again());
    const uint32_t row = thread % kWarpgroup / 32 * 16 + thread % 16;
    const uint32_t at = C::kBiases + slot * C::kBiasBytes + group * C::kBiasRowsBytes;
    barrier_wait(C::kBiasFull + 8 * slot, parity_of<C::kBiasStages>(n));
    FW_UNROLL for (int k = 0; k < C::kTileK / 16; ++k) {
      uint32_t bias[4];
      load_matrices(bias, at + k / 4 * 64 * kPanelRowBytes + swizzled(row, k % 4 * 2 + thread / 16 % 2));
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        s[8 * k + 2 * i] = multiply_add(s[8 * k + 2 * i], from_dot, Element::low(bias[i]));
        s[8 * k + 2 * i + 1] = multiply_add(s[8 * k + 2 * i + 1], from_dot, Element::high(bias[i]));
      }
    }
    wave_barrier();
    if (lane_index() == 0) barrier_arrive(C::kBiasFree + 8 * slot);
  }

  // P = 2^(s c - m), packed as the A operand of P V. Returns this thread's sums. kWatched: of a block that all rows
  // see, whose scores stay as they came; P may be too large.
  template <bool kWatched>
  FW_METHOD float2 exponentials(uint32_t (&weights)[kWeights], float r0, float r1) {
    const float c = !kWatched ? scale : C::kCapped ? cap : C::kAlibi ? from_dot : C::kBias ? kLog2e : scale;
    uint32_t largest = Element::kLargest;
    float2 sum = make_float2(0, 0);
    FW_UNROLL for (int k = 0; k < C::kTileK / 16; ++k) {
      FW_UNROLL for (int i = 0; i < 4; ++i) {
        float s0 = s[8 * k + 2 * i], s1 = s[8 * k + 2 * i + 1], x0 = i & 1 ? -r1 : -r0, x1 = x0;
        if constexpr (C::kCapped && kWatched) s0 = tanh_fast(s0 * from_dot), s1 = tanh_fast(s1 * from_dot);
        if constexpr (C::kAlibi && !C::kSlopeByMma && kWatched) {
          const int key = 16 * k + i / 2 * 8;
          x0 = multiply_add(per_key, float(key), x0), x1 = multiply_add(per_key, float(key + 1), x1);
        }
        const float e0 = exp2_fast(multiply_add(s0, c, x0)), e1 = exp2_fast(multiply_add(s1, c, x1));
        if constexpr (!C::kSumByMma) (i & 1 ? sum.y : sum.x) += e0 + e1;
        weights[4 * k + i] = Element::pack(e0, e1);
      }
      if constexpr (kWatched) {
        largest = max3_pairs(largest, weights[4 * k], weights[4 * k + 1]);
        largest = max3_pairs(largest, weights[4 * k + 2], weights[4 * k + 3]);
      }
    }
    if constexpr (kWatched) {
      // Below such a reference a score that is cut off (in_log2) would not be.
      const bool cut_off = C::kBias && fminf(m0, m1) < -kLargest / 2;
      too_large = any_lane(largest != Element::kLargest || cut_off);
    }
    return sum;
  }
  FW_METHOD float2 exponentials(uint32_t (&weights)[kWeights]) {
    return exponentials<false>(weights, reference_of(m0), reference_of(m1));
  }
  FW_METHOD void add(float2 x) { l0 += x.x, l1 += x.y; }

  FW_METHOD ScoreRows<C::kTileK> score_rows(int block) const {
    const ForwardTask task = task_again();
    return {p,
            {task.batch, task.head, row_of(task) + first_row(), block * C::kTileK + first_column(), task.queries,
             task.keys}};
  }
  // What is done to the scores of a block before the softmax, and to its weights after the sum.
  FW_METHOD void modify(int block) {
    if constexpr (C::kModified || C::kAlibi) score_rows(block).template modify<C::kAlibi>(s);
    if constexpr (C::kCapped) cap_scores();
    if constexpr (C::kBias) FW_UNROLL for (int i = 0; i < kScores; ++i) s[i] = in_log2(s[i]);
  }
  FW_METHOD void modify_and_mask(int block) {
    modify(block);
    if (block >= open_last || block < open_first) mask(block);
  }
  // Random numbers are drawn while the scores are waited for.
  FW_METHOD void draw(int block) {
    if constexpr (C::kDropout)
      if (!C::kModified || p.dropout_threshold) score_rows(block).draw(keeps);
  }
  FW_METHOD void drop(uint32_t (&weights)[kWeights]) const {
    if constexpr (C::kDropout)
      if (!C::kModified || p.dropout_threshold) ScoreRows<C::kTileK>::drop(keeps, weights);
  }

  // A block of which some keys may be hidden from some rows.
  FW_METHOD void checked_block(int block, bool last) {
    issue_both(pa, block, last);
    modify_and_mask(block);
    const float2 factor = raise_reference();
    hold(s);
    if (!last) wait_k(done + 2);  // a loop: keeps ptxas from moving the wait for the output up over the maximum
    wait_output(pa);
    add(exponentials(pa));
    drop(pa);
    rescale(factor);
  }

  // ALiBi. On one side of all rows' diagonals a score is that of the first key of the block, or of the thread's first,
  // and what it gains from there on; this is what that key loses, in the thread's two rows.
  FW_METHOD float2 first_key_loss(int block) const {
    const float first = float(diagonal - block * C::kTileK);
    return make_float2(per_key * first, per_key * (first + 8.f));
  }
  // per_key in units of q.k as A operands, with either sign: in every row three 16-bit numbers whose sum it is, in
  // columns 0 to 2. The 8 rows that are stored serve as all 64. They are read after the next turn; a barrier of their
  // own, or a branch, and ptxas does not see any more what is uniform in the loops: each thread stores a word, half of
  // them to where nobody reads.
  FW_METHOD void store_slopes() const {
    const float whole = per_key / from_dot, high = Element::low(Element::pack(whole, 0));
    const float middle = Element::low(Element::pack(whole - high, 0)), low = whole - high - middle;
    const int thread = thread_again() % kWarpgroup, pair = thread % 4;
    const uint32_t columns = pair == 0 ? Element::pack(high, middle) : pair == 1 ? Element::pack(low, 0) : 0;
    store_shared(slopes + 4 * (thread < 96 ? thread : thread - 32), columns ^ (thread < 32 ? 0 : 0x80008000u));
    async_proxy_fence();
  }
  // Columns 8 to 15 are those of kNoSide, zeros: their distance shrinks as the address grows.
  FW_METHOD uint64_t slopes_at(Side side) const {
    return narrow_operand(slopes, kNoSide * 128, 0) + uint32_t(side) * (8 - (uint64_t{8} << 16));
  }

  // P by the reference of the blocks before.
  FW_METHOD float2 optimistic(uint32_t (&weights)[kWeights], int block) {
    if constexpr (!C::kAlibi) return exponentials<true>(weights, m0, m1);
    const float2 loss = first_key_loss(block);
    return exponentials<true>(weights, m0 + loss.x, m1 + loss.y);
  }
  // The scores of such a block as modify() leaves them.
  FW_METHOD void settle(int block) {
    if constexpr (!C::kSlopeByMma) return modify(block);
    const float2 loss = first_key_loss(block);
    FW_UNROLL for (int i = 0; i < kScores; ++i) s[i] = multiply_add(s[i], from_dot, i & 2 ? -loss.y : -loss.x);
  }

  // A block that all rows see.
  FW_METHOD void optimistic_block(uint32_t (&before)[kWeights], uint32_t (&weights)[kWeights], int block, bool last,
                                  Side side) {
    issue_both(before, block, last, side);
    float2 x;
    if constexpr (C::kTwoWeights) {
      x = optimistic(weights, block);
      hold(weights);
      if (!last) wait_k(done + 2);  // as above
      wait_output(before);
    } else {
      wait_output(before);
      x = optimistic(weights, block);
      if (!last) wait_k(done + 1);
    }
    if (__builtin_expect(too_large, 0)) {
      settle(block);
      rescale(raise_reference(Element::kHeadroom));
      x = exponentials(weights);
    }
    add(x);
    drop(weights);
  }

  FW_METHOD bool task_exists(uint32_t n) const {
    barrier_wait(C::kTaskFull + 8 * slot_of<2>(n), parity_of<2>(n));
    return uniform(load_task(C::kTasks + 32 * slot_of<2>(n)).query) >= 0;
  }
  // The first scores of the n-th task, whose first block has this number.
  FW_METHOD void begin(uint32_t n, uint32_t block) {
    barrier_wait(C::kQFull + 8 * q_slot(n), parity_of<C::kQSlots>(n));
    wait_k(block);
    queries = uniform(q_at(n));
    issue_scores(block);
  }

  // The first block of a task, whose scores were asked for before: there is no output to compute beside it.
  FW_METHOD void first_block(int block, bool last, float headroom) {
    draw(block);
    wgmma_wait<0>();
    take_scores(done, last);
    first_output = true;
    m0 = m1 = -kInf, l0 = l1 = 0;
    modify_and_mask(block);
    raise_reference(headroom);
    add(exponentials(pa));
    drop(pa);
    if (C::kQSlots > 1 && task_number > 0) {
      if (speaks) tma_wait_stores_read();
      release_queries(task_number - 1);
    }
  }

  // Blocks j, j - 1, ... down to `end`. `first` is the last of the task.
  FW_METHOD void checked_blocks(int& j, int end, int first) {
    FW_NO_UNROLL for (; j >= end; --j) checked_block(j, j == first);
  }
  FW_METHOD void optimistic_blocks(int& j, int end, int first, Side side = kNoSide) {
    if constexpr (C::kTwoWeights) {  // two at a time, so that no weights are moved
      FW_NO_UNROLL while (j > end) {
        optimistic_block(pa, pb, j, j == first, side), --j;
        optimistic_block(pb, pa, j, j == first, side), --j;
      }
      if (j == end) {
        optimistic_block(pa, pb, j, j == first, side), --j;
        FW_UNROLL for (int i = 0; i < kWeights; ++i) pa[i] = pb[i];
      }
    } else {
      FW_NO_UNROLL for (; j >= end; --j) optimistic_block(pa, pa, j, j == first, side);
    }
  }

  // All blocks of the task, from last to first, but the last output: those that end with hidden keys, those that all
  // rows see, which are most, and those that begin with hidden keys.
  FW_METHOD void attend() {
    const ForwardTask task = task_again();
    int j = uniform(task.last_block);
    const int first = uniform(task.first_block);
    const int rows = head_rows<C>(args.schedule);
    const SeenKeys seen = seen_keys(edges_of(p, task, row_of(task), rows), rows, task.keys);
    open_first = uniform(max(first, (seen.all_first + C::kTileK - 1) / C::kTileK));
    open_last = uniform(seen.all_end / C::kTileK);

    // ALiBi: blocks whose keys all lie before the diagonals of all rows, and from which on they all lie behind.
    int before = 0, behind = INT32_MAX;
    if constexpr (C::kAlibi) {
      const int key = row_of(task) + task.keys - task.queries;  // on the diagonal of the warpgroup's first row
      diagonal = key + first_row() - (C::kSlopeByMma ? 0 : first_column());
      per_key = -p.alibi_slopes[task.batch * p.alibi_batch_stride + task.head] * kLog2e;
      if constexpr (C::kSlopeByMma) store_slopes();
      // Where it does not fit a product, or drowns q.k in it, every block is checked.
      const bool fits = !C::kSlopeByMma || fabsf(per_key) <= kSteepest * fabsf(from_dot);
      before = uniform(fits ? max(key + 1, 0) / C::kTileK : 0);
      behind = uniform(fits ? (max(key + 63, 0) + C::kTileK - 1) / C::kTileK : INT32_MAX);
    }

    // Behind the diagonal scores grow towards it.
    first_block(j, j == first, C::kAlibi && j >= behind ? Element::kHeadroom : 0);
    if (--j >= first) wait_k(done + 1);
    if constexpr (C::kAlibi) {  // the blocks on the diagonal are checked, too
      FW_NO_UNROLL for (int side = kBehind; side <= kBefore; ++side) {
        checked_blocks(j, max(first, side == kBefore ? before : open_last), first);
        optimistic_blocks(j, max(open_first, side == kBefore ? 0 : behind), first, Side(side));
        per_key = -per_key;
      }
    } else if constexpr (!C::kModified) {
      checked_blocks(j, max(first, open_last), first);
      optimistic_blocks(j, open_first, first);
    }
    checked_blocks(j, first, first);
  }

  // Normalises O and stores it; rows past the last query are not written.
  FW_METHOD void finish() {
    const ForwardTask task = task_again();
    if constexpr (C::kSumByMma) {
      l0 = o[C::kDimV / 2], l1 = o[C::kDimV / 2 + 2];
    } else {
      l0 = quad_sum(l0), l1 = quad_sum(l1);
    }
    if (C::kPacked && args.schedule.workspace_bytes > 0) {
      store_part(task);
      named_sync(warpgroup_barrier(group), kWarpgroup);
      if (speaks) barrier_arrive(C::kTaskFree + 8 * slot_of<2>(task_number));  // all have read it
      return;
    }
    const int head0 = task.head + head_of(first_row()), head1 = task.head + head_of(first_row() + 8);
    constexpr bool kBias = C::kBias || C::kModified;
    const RowEnd end0 = finish_row<kBias, C::kDropout>(p, head0, m0, l0);
    const RowEnd end1 = finish_row<kBias, C::kDropout>(p, head1, m1, l1);

    if (!C::kSumByMma && p.lse.data && first_column() == 0) {
      const int query0 = row_of(task) + query_of(first_row()), query1 = row_of(task) + query_of(first_row() + 8);
      float* const lse = static_cast<float*>(p.lse.data) + (p.cu_seqlens_q ? 0 : task.batch * p.lse.stride[0]) +
                         task.q_row * p.lse.stride[1];
      if (query0 < task.queries) lse[query0 * p.lse.stride[1] + head0 * p.lse.stride[2]] = end0.lse;
      if (query1 < task.queries) lse[query1 * p.lse.stride[1] + head1 * p.lse.stride[2]] = end1.lse;
    }
    if constexpr (C::kQSlots > 1) {
      stage(end0.scale, end1.scale);
    } else {
      store(task, end0.scale, end1.scale);
    }
    named_sync(warpgroup_barrier(group), kWarpgroup);
    if (speaks) {
      if constexpr (C::kQSlots > 1) store_staged(task);
      barrier_arrive(C::kTaskFree + 8 * slot_of<2>(task_number));  // all have read it
    }
  }

  // O by TMA, through the queries' place in shared memory.
  FW_METHOD void stage(float f0, float f1) const {
    const uint32_t thread = uint32_t(thread_again()), row = thread % kWarpgroup / 32 * 16 + thread % 16;
    FW_UNROLL for (int k = 0; k < C::kDimV / 16; ++k) {
      const uint32_t at = q_at(task_number) + k / 4 * 64 * kPanelRowBytes + swizzled(row, k % 4 * 2 + thread / 16 % 2);
      store_matrices(
          at, Element::pack(o[8 * k] * f0, o[8 * k + 1] * f0), Element::pack(o[8 * k + 2] * f1, o[8 * k + 3] * f1),
          Element::pack(o[8 * k + 4] * f0, o[8 * k + 5] * f0), Element::pack(o[8 * k + 6] * f1, o[8 * k + 7] * f1));
    }
    async_proxy_fence();
  }
  FW_METHOD void store_staged(const ForwardTask& task) const {
    MapPlace at = query_place(p, p.o, task);
    at.row += row_of(task);
    FW_UNROLL for (int panel = 0; panel < C::kPanelsV; ++panel)
        tma_store(maps.o, q_at(task_number) + panel * 64 * kPanelRowBytes, panel * kPanel, task.head, at);
    tma_commit_stores();
  }

  // O straight from registers, so that the next queries can come where the last ones were: four lanes that share a row
  // exchange their columns for 8 in a row each.
  FW_METHOD void store(const ForwardTask& task, float f0, float f1) const {
    const int place = thread_again() % 4;
    const Sequence seq = {task.batch, p.cu_seqlens_q ? 0 : task.batch, task.q_row, 0, 0, 0, 0};
    FW_UNROLL for (int i = 0; i < 2; ++i) {
      const int query = row_of(task) + query_of(first_row() + 8 * i), head = task.head + head_of(first_row() + 8 * i);
      uint16_t* const row = static_cast<uint16_t*>(p.o.data) + query_offset(p.o, seq, query, head) + 8 * place;
      FW_UNROLL for (int k = 0; k < C::kDimV / 32; ++k) {
        uint32_t x[4];
        FW_UNROLL for (int j = 0; j < 4; ++j) {
          const float f = i ? f1 : f0;
          x[j] = Element::pack(o[16 * k + 4 * j + 2 * i] * f, o[16 * k + 4 * j + 2 * i + 1] * f);
        }
        transpose_quad(x, place);
        if (query < task.queries && 32 * k + 8 * place < p.dim_v)
          *reinterpret_cast<uint4*>(row + 32 * k) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }

  // What this part of the keys gives, for the kernel that combines the parts.
  FW_METHOD void store_part(const ForwardTask& task) const {
    const int heads = p.heads_q / p.heads_k, splits = args.schedule.splits;
    const int64_t rows_max = int64_t{p.seqlen_q} * heads;
    const abi::PartialResults parts(args.shared, int64_t{p.batch} * p.heads_k * rows_max, splits, p.dim_v);
    const int64_t part = (block_index_x() + task_number * grid_size_x()) % uint32_t(splits);
    FW_UNROLL for (int i = 0; i < 2; ++i) {
      const int query = row_of(task) + query_of(first_row() + 8 * i), head = task.head + head_of(first_row() + 8 * i);
      if (query >= task.queries) continue;
      const int64_t row = (int64_t{task.batch} * p.heads_k + head / heads) * rows_max + query * heads + head % heads;
      const int64_t place = part * parts.rows + row;
      if (first_column() == 0) parts.m[place] = i ? m1 : m0, parts.l[place] = i ? l1 : l0;
      float* const to = parts.o + place * p.dim_v + first_column();
      FW_UNROLL for (int k = 0; k < C::kDimV / 8; ++k) if (8 * k < p.dim_v) * reinterpret_cast<float2*>(to + 8 * k) =
          make_float2(o[4 * k + 2 * i], o[4 * k + 2 * i + 1]);
    }
  }

  FW_METHOD void run() {
    if (group == 0) named_arrive(turn_barrier(0), 2 * kWarpgroup);  // the first turn
    FW_UNROLL for (int i = 0; i < kOutputs; ++i) o[i] = 0;
    if (!task_exists(0)) return;
    if constexpr (C::kSlopeByMma) slopes = uniform(C::kSlopes + group * C::kSlopeBytes);
    begin(0, 0);
    for (;;) {
      attend();
      const bool last = !task_exists(task_number + 1);
      wait_v(done);
      if (last) break;
      issue_output(pa);
      // The first scores of the next task are computed while this one is finished. With one place for queries, the
      // next ones come while the output is computed. ptxas follows this only without a branch between the products.
      if constexpr (C::kQSlots > 1) {
        begin(task_number + 1, done + 1);
        wait_output<1>(pa);
      } else {
        wait_output(pa);
        begin(task_number + 1, done);
      }
      finish();
      ++task_number;
    }
    issue_output(pa);
    wait_output(pa);
    finish();
    if (speaks) tma_wait_stores();
  }
};

template <class C>
FW_DEVICE void forward(const GpuArguments& args, const TensorMaps& maps) {
  check_shared_base();
  const int warpgroup = from_lane(thread_index() / kWarpgroup, 0);
  if (thread_index() == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(C::kKFull + 8 * i, 1), barrier_init(C::kKFree + 8 * i, C::kConsumers);
      barrier_init(C::kVFull + 8 * i, 1), barrier_init(C::kVFree + 8 * i, C::kConsumers);
    }
    for (int i = 0; i < C::kQSlots * C::kConsumers; ++i)
      barrier_init(C::kQFull + 8 * i, 1), barrier_init(C::kQFree + 8 * i, 1);
    for (int i = 0; i < 2; ++i)
      barrier_init(C::kTaskFull + 8 * i, 1), barrier_init(C::kTaskFree + 8 * i, C::kConsumers + (C::kBias ? 3 : 2));
    for (int i = 0; i < C::kBiasStages; ++i)
      barrier_init(C::kBiasFull + 8 * i, 1), barrier_init(C::kBiasFree + 8 * i, C::kConsumers * kWarpgroup / kWave);
    barrier_init(C::kAsk, 1);
    barrier_init_done();
    prefetch_map(maps.q), prefetch_map(maps.k), prefetch_map(maps.v), prefetch_map(maps.o);
  }
  if constexpr (C::kSumByMma) {
    for (int i = thread_index(); i < 512; i += C::kThreads) store_shared(C::kOnes + 4 * i, C::Element::kOnes);
    async_proxy_fence();
  }
  if constexpr (C::kSlopeByMma) {
    for (int i = thread_index(); i < C::kNumbersBytes / 4; i += C::kThreads)
      store_shared(C::kNumbers + 4 * i, C::Element::pack(float(i / 4), float(i / 4)));
    for (int i = thread_index(); i < C::kConsumers * C::kSlopeBytes / 4; i += C::kThreads)
      store_shared(C::kSlopes + 4 * i, 0);
    async_proxy_fence();
  }
  let_next_start();
  wait_for_kernel_before();
  workgroup_barrier();
  if (warpgroup == 0) {
    give_registers<C::kProducerRegisters>();
    const Producer<C> producer(args, maps);
    if (wave_index() == 0) producer.tasks_and_queries(reinterpret_cast<uint32_t*>(args.shared));
    if (wave_index() == 1) producer.template blocks<false>();
    if (wave_index() == 2) producer.template blocks<true>();
    if constexpr (C::kBias)
      if (wave_index() == 3) producer.biases();
  } else {
    take_registers<C::kConsumerRegisters>();
    Consumer<C>(args, maps, warpgroup - 1).run();
  }
}

}  // namespace flashwave

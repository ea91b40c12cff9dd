// One workgroup's share of a backward (bwd_config.h): S = A X^T and dP = G Y^T of a tile of 16 rows of A and G that
// passes by, P and dS, and the sums they go into.
//
// An operand of WMMA has in a lane the index that stays, and in registers the one that is summed; an accumulator has
// its column in the lane.
//   S, dP                          lane: kept row; registers: streamed rows. -lse / scale and -delta are the first C
//                                  operands (keys kept: of each register, queries kept: of the lane), so that both
//                                  subtractions are free.
//   dY^T += G^T P, dX^T += A^T dS  lane: kept row; registers: 8 contiguous columns.
//   dA = dS X                      lane: column; registers: streamed rows. dS once more, transposed.
//
// Between two barriers the score waves make P and dS of tile i, the sum waves and the dA waves use those of tile i - 1,
// and the sum waves store rows of tile i + 1 and transposes of tile i.
#pragma once

#include "kernels/rdna/bwd_task.h"

namespace flashwave {

template <class T, class C>
struct Backward : BackwardTask<T, C> {
  using Base = BackwardTask<T, C>;
  using Base::block, Base::current, Base::dx, Base::kept_rows, Base::lane, Base::lds, Base::stream, Base::wave, Base::x,
      Base::y;
  static constexpr int kAhead = C::kAhead, kSteps = C::kSteps, kScoreTiles = C::kScoreTiles;
  static constexpr bool kXtThroughLds = C::kFused && !kRdna4;

  // Which half of LDS: score waves, of this tile; others, of the tile before it. In loops that have both it is kHalf.
  uint32_t half;

  FW_METHOD Backward(const GpuArguments& args, char* shared) : Base(args, shared) {}

  FW_METHOD void other_half() {
    if constexpr (!C::kBothHalves) half ^= C::kBufferBytes;
  }
  // LDS from this half on, or if kHalf does not say it, from the first one on; and an offset with what is missing then.
  template <int kHalf>
  FW_METHOD char* in_half() const {
    return lds + (C::kBothHalves ? kHalf * C::kBufferBytes : 0);
  }
  FW_METHOD uint32_t from_half(int at) const { return C::kBothHalves ? at : here(half + at); }
  // tile.template operator()<kHalf>(left), left = count .. 1
  template <class Tile>
  FW_METHOD static void for_tiles(int left, const Tile& tile) {
    if constexpr (C::kBothHalves) {
      FW_NO_UNROLL for (; left > 1; left -= 2) {
        tile.template operator()<0>(left);
        tile.template operator()<1>(left - 1);
      }
      if (left > 0) tile.template operator()<0>(left);
    } else {
      FW_NO_UNROLL for (; left > 0; --left) tile.template operator()<0>(left);
    }
  }
  FW_METHOD static Fragment operand(const char* from, uint32_t at, int fragment) {
    return read_fragment(from + at + fragment * kFragmentBytes);
  }

  // ------------------------------------------------------------------------------------------------------ score waves
  Fragment xf[kScoreTiles][kSteps], yf[kScoreTiles][kSteps];
  F32x8 s[kScoreTiles], dp[kScoreTiles];
  // -lse / scale (with modifiers: -lse) and -delta as the registers of an accumulator have them. Of queries that pass
  // by they are those of a tile, the same for all of its kept rows.
  static constexpr int kNumbers = C::kKeepsKeys ? 1 : kScoreTiles;
  F32x8 minus_lse[kNumbers], minus_delta[kNumbers];
  KeptPairs<8> kept[kScoreTiles];
  DropoutOfKept<C> of_kept[kScoreTiles];  // dropout alone
  int of_head;
  F32x8 rest[kScoreTiles];
  U32x8 raw_bias[kScoreTiles];
  uint32_t rows_at, scores_to, ds_t_to;

  FW_METHOD void load_kept() {
    const Buffer from_x = x.buffer(kept_rows()), from_y = y.buffer(kept_rows());
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) {
      FW_UNROLL for (int step = 0; step < kSteps; ++step) {
        xf[w][step] = this->kept_operand(x, from_x, w, step);
        yf[w][step] = this->kept_operand(y, from_y, w, step);
      }
      if constexpr (!C::kKeepsKeys) {
        minus_lse[w] = this->number(w, 0);
        minus_delta[w] = this->number(w, 1);
      }
    }
  }
  // Of the block of queries that is loaded.
  FW_METHOD F32x8 numbers(int which) const {
    const Buffer b = make_buffer(block + which * C::kStreamed * 4, 64);
    const uint32_t from = (lane & 16) * 2;
    return __builtin_bit_cast(F32x8, joined(buffer_load16(b, from), buffer_load16(b, from + 16)));
  }
  FW_METHOD void load_lse() {
    if constexpr (C::kKeepsKeys) minus_lse[0] = numbers(0);
  }
  FW_METHOD void load_delta() {
    if constexpr (C::kKeepsKeys) minus_delta[0] = numbers(1);
  }
  FW_METHOD const F32x8& lse_of(int w) const { return minus_lse[C::kKeepsKeys ? 0 : w]; }
  FW_METHOD const F32x8& delta_of(int w) const { return minus_delta[C::kKeepsKeys ? 0 : w]; }

  // S -> P. The stages keep equal operations on consecutive registers together, which is what pairing needs.
  template <int kHalf>
  FW_METHOD void weights() {
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) hold(s[w]);
    if (__builtin_expect(!this->is_clean(), 0)) {
      FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) this->mask(s[w], w);
    }
    const float c = here(this->scale);
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) s[w] *= c;
    schedule_fence();
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) {
      FW_UNROLL for (int r = 0; r < 8; ++r) s[w][r] = exp2_fast(s[w][r]);
    }
    schedule_fence();
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) store_weights<kHalf>(w, s[w]);
    schedule_fence();
  }
  template <uint32_t kModifiers>
  FW_METHOD void load_bias() {
    if constexpr (kModifiers == kFloatBias || kModifiers == kOwnBias) {
      FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) {
        raw_bias[w] = this->template modifiers<kModifiers, 8>(w).load_bias();
      }
    }
  }
  // Dropout alone, where there are registers for it: dS = P' dP - P delta, P' without those that are dropped, instead
  // of choosing between dP - delta and -delta.
  template <uint32_t kModifiers>
  static constexpr bool kDropsByProducts = kModifiers == kDropout;
  template <uint32_t kModifiers, int kHalf>
  FW_METHOD void modified_weights() {
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) hold(s[w]);
    if constexpr (kModifiers == kDropout) this->draw(of_kept, of_head, kept);
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) {
      Vec<float, C::kKeepsKeys ? 8 : 1> lse;
      if constexpr (C::kKeepsKeys)
        lse = minus_lse[0];
      else
        lse[0] = minus_lse[w][0];
      F32x8 used;
      const auto use = [&](F32x8 weights) {
        store_weights<kHalf>(w, weights);
        used = weights;
      };
      Base::template modified_weights<kModifiers>(s[w], lse, raw_bias[w], use, kept[w], w);
      if constexpr (kDropsByProducts<kModifiers>) {
        rest[w] = s[w] * delta_of(w);
        hold(rest[w]);
        s[w] = used;
      }
      schedule_fence();
    }
  }
  template <int kHalf>
  FW_METHOD void store_weights(int w, F32x8 weights) {
    if constexpr (!C::kKeepsKeys) return;
    U32x4 packed;
    T::pack_weights(weights, packed);
    *reinterpret_cast<U32x4*>(in_half<kHalf>() + scores_to + C::kP + w * kFragmentBytes) = packed;
  }

  // P, dP -> dS. For dA the kept row becomes the index that is summed: 2 bytes each, with rows exchanged so that no
  // bank is met twice.
  template <uint32_t kModifiers, int kHalf>
  FW_METHOD void store_gradients() {
    uint32_t to[4];
    if constexpr (C::kFused) {
      to[0] = ds_t_to;
      FW_UNROLL for (int j = 1; j < 4; ++j) to[j] = to[0] ^ (kRdna4 ? j * 32 : 64);
    }
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) {
      if constexpr (kDropsByProducts<kModifiers>) {
        add_products(rest[w], dp[w], s[w]);
        dp[w] = rest[w];
      } else {
        if constexpr (C::kModified) this->template drop_gradients<kModifiers>(dp[w], delta_of(w), kept[w]);
        dp[w] *= s[w];
      }
      hold(dp[w]);
      schedule_fence();
      U32x4 packed;
      T::template pack_weights<Base::template kGradientFactor<kModifiers>>(dp[w], packed);
      *reinterpret_cast<U32x4*>(in_half<kHalf>() + scores_to + C::kDs + w * kFragmentBytes) = packed;
      if constexpr (C::kFused) {
        FW_UNROLL for (int r = 0; r < 8; ++r) {
          const uint32_t at = kRdna4 ? to[r >> 1] + (r & 1) * 16 : to[r >> 1 & 1] + (r & 1) * 32 + (r >> 2) * 128;
          *reinterpret_cast<uint16_t*>(in_half<kHalf>() + at + C::kDsT + w * kFragmentBytes) =
              uint16_t(packed[r / 2] >> (r & 1 ? 16 : 0));
        }
      }
      schedule_fence();
    }
  }

  // Fragment k of a tile's rows: of A, then of G.
  template <int kHalf>
  FW_METHOD Fragment row_fragment(int k) const {
    return operand(in_half<kHalf>() + C::kA, rows_at, k);
  }
  template <uint32_t kModifiers, int kHalf, int k>
  FW_METHOD void score_step(Fragment* f, bool more) {
    if constexpr (k + kAhead < 2 * kSteps) f[k + kAhead] = row_fragment<kHalf>(k + kAhead);
    constexpr int step = k % kSteps;
    FW_UNROLL for (int w = 0; w < kScoreTiles; ++w) {
      if constexpr (k == 0)
        s[w] = C::kModified ? T::multiply(f[k], xf[w][0]) : T::multiply_keeping(f[k], xf[w][0], lse_of(w));
      else if constexpr (k < kSteps)
        s[w] = T::multiply(f[k], xf[w][step], s[w]);
      else if constexpr (k == kSteps)
        dp[w] = kDropsByProducts<kModifiers> ? T::multiply(f[k], yf[w][0])
                                             : T::multiply_keeping(f[k], yf[w][0], delta_of(w));
      else
        dp[w] = T::multiply(f[k], yf[w][step], dp[w]);
      schedule_fence();
    }
    if constexpr (k == 0) {
      load_bias<kModifiers>();
      this->advance(more);
      if constexpr (!C::kModified) load_lse();
    }
    if constexpr (k == kSteps - 1) {
      if constexpr (C::kModified) {
        modified_weights<kModifiers, kHalf>();
        load_lse();
        if constexpr (kDropsByProducts<kModifiers>) load_delta();
      } else {
        weights<kHalf>();
      }
    }
    if constexpr (k == kSteps && !C::kModified) load_delta();
    schedule_fence();
  }
  // Recursion: a loop of so many instructions is not unrolled.
  template <uint32_t kModifiers, int kHalf, int k>
  FW_METHOD void score_steps(Fragment* f, bool more) {
    if constexpr (k < 2 * kSteps) {
      score_step<kModifiers, kHalf, k>(f, more);
      score_steps<kModifiers, kHalf, k + 1>(f, more);
    }
  }
  template <uint32_t kModifiers, int kHalf>
  FW_METHOD void score_tile(bool more) {
    this->start_tile();
    int mine = lane;
    if constexpr (C::kModified && !C::kBothHalves) hold(mine);  // a register less through all loops
    rows_at = operand_base(mine) + from_half(0);
    scores_to = lane * 16 + from_half(wave * kScoreTiles * kFragmentBytes);
    if constexpr (C::kFused) ds_t_to = this->ds_t_place() + from_half(wave * kScoreTiles * kFragmentBytes);
    Fragment f[2 * kSteps];
    FW_UNROLL for (int k = 0; k < kAhead; ++k) f[k] = row_fragment<kHalf>(k);
    score_steps<kModifiers, kHalf, 0>(f, more);
    store_gradients<kModifiers, kHalf>();
    if constexpr (C::kModified && !kDropsByProducts<kModifiers>) load_delta();
    workgroup_barrier();
    other_half();
  }
  FW_METHOD void make_scores() {
    load_kept();
    load_lse();
    load_delta();
    if constexpr (kXtThroughLds) workgroup_barrier();
    workgroup_barrier();
    of_head = -1;
    this->by_modifiers(this->all_modifiers(), [&]<uint32_t kModifiers>() __attribute__((always_inline)) {
      for_tiles(this->all_tiles(),
                [&]<int kHalf>(int left) __attribute__((always_inline)) { score_tile<kModifiers, kHalf>(left > 1); });
    });
    workgroup_barrier();  // that of the others' last tile
  }

  // -------------------------------------------------------------------------------------------------------- sum waves
  FW_METHOD int load_wave() const { return C::load_wave(wave); }
  // Rows go to the half that is read, transposes to the other one.
  template <int kHalf>
  FW_METHOD void bring(bool more) {
    stream.store_rows(in_half<kHalf>() + from_half(0), load_wave(), lane);
    stream.store_transposes(in_half<1 - kHalf>() + (C::kBothHalves ? 0 : here(C::kBufferBytes - half)), load_wave());
    load_next(more);
  }
  FW_METHOD void load_next(bool more) {
    stream.load_transposes(load_wave(), lane);
    this->advance(more);
    stream.load_rows();
    schedule_fence();
  }
  // X^T, two tiles of 16 rows at a time, goes the way of the stream's transposes.
  FW_METHOD void bring_kept_transposed() {
#if !defined(__GFX12__)
    const int second = Stream<C>::has_g(load_wave());
    FW_NO_UNROLL for (int t = 0; t < C::kKeptTiles; t += 2) {
      HeadRows rows = x;
      rows.data += int64_t{t + second} * 16 * x.stride;
      stream.load_transposes_of(rows, kept_rows() - 16 * (t + second), load_wave());
      stream.store_transposes_to(lds + C::kXt + t * C::kRowBytes);
    }
#endif
  }

  template <int kHalf, int k>
  FW_METHOD void sum_steps(Fragment* a, const Fragment* b, uint32_t at, int left) {
    if constexpr (k < C::kSumTiles) {
      if constexpr (k + 2 < C::kSumTiles) a[k + 2] = operand(in_half<kHalf>(), at, k + 2);
      if constexpr (k == C::kSumTiles - 1) {
        schedule_fence();
        workgroup_barrier();  // all is read: the last products follow
      }
      FW_UNROLL for (int t = 0; t < C::kSumRows; ++t) {
        dx[t][k] = T::multiply(a[k], b[t], dx[t][k]);
        schedule_fence();
      }
      if constexpr (k == 0) {
        FW_UNROLL for (int t = 0; t < C::kSumRows; ++t) hold(dx[t][k]);  // or products follow a branch in `bring`
        bring<kHalf>(left > 2);
      }
      sum_steps<kHalf, k + 1>(a, b, at, left);
    }
  }
  template <int kHalf>
  FW_METHOD void sum_tile(int left) {
    const bool of_x = C::sums_x(wave);
    const int scores = (of_x ? C::kDs : C::kP) + C::sum_x(wave) * C::kSumRows * kFragmentBytes;
    const int columns = (of_x ? C::kAt : C::kGt) + C::sum_column(wave) * C::kSumTiles * kFragmentBytes;
    const uint32_t scores_at = operand_base(lane) + from_half(scores);
    const uint32_t columns_at = operand_base(lane) + from_half(columns);
    Fragment a[C::kSumTiles], b[C::kSumRows];
    FW_UNROLL for (int t = 0; t < C::kSumRows; ++t) b[t] = operand(in_half<kHalf>(), scores_at, t);
    FW_UNROLL for (int d = 0; d < 2; ++d) a[d] = operand(in_half<kHalf>(), columns_at, d);
    sum_steps<kHalf, 0>(a, b, columns_at, left);
    FW_UNROLL for (int t = 0; t < C::kSumRows; ++t) { FW_UNROLL for (int d = 0; d < C::kSumTiles; ++d) hold(dx[t][d]); }
    other_half();
  }
  FW_METHOD void make_sums() {
    const int count = this->all_tiles();
    stream.start(load_wave(), lane);
    if constexpr (kXtThroughLds) bring_kept_transposed();
    stream.load_rows();
    stream.store_rows(lds, load_wave(), lane);
    if constexpr (kXtThroughLds) workgroup_barrier();
    load_next(count > 1);
    workgroup_barrier();
    other_half();
    bring<1>(count > 2);
    workgroup_barrier();
    other_half();
    this->clear_sums();
    for_tiles(count, [&]<int kHalf>(int left) __attribute__((always_inline)) { sum_tile<kHalf>(left - 1); });
  }

  // --------------------------------------------------------------------------------------------------------- dA waves
  static constexpr int kDaSteps = C::kFused ? C::kKeptTiles : 1, kDaColumns = C::kDaTiles;
  Fragment xt[kDaSteps][kDaColumns];
  F32x8 da[kDaColumns];

  // The wave's columns of X^T: lane = column.
  FW_METHOD void load_kept_transposed() {
    const int column = C::da_wave(wave) * kDaColumns;
    FW_UNROLL for (int t = 0; t < kDaSteps; ++t) {
#if defined(__GFX12__)
      const int row = least(t * 16 + (lane >> 4) * 8 + (lane & 7), kept_rows() - 1);
#endif
      FW_UNROLL for (int d = 0; d < kDaColumns; ++d) {
#if defined(__GFX12__)
        const int at = least((column + d) * 32 + (lane & 8) * 2, x.columns - 16);
        xt[t][d] = load_transposed(x.data, row * x.stride + at);
#else
        xt[t][d] = operand(lds + C::kXt, operand_base(lane), t * kSteps + column + d);
#endif
      }
    }
    // Behind all loads: to hold one is to wait for it.
    FW_UNROLL for (int t = 0; t < kDaSteps; ++t) { FW_UNROLL for (int d = 0; d < kDaColumns; ++d) hold(xt[t][d]); }
  }
  template <int kHalf>
  FW_METHOD Fragment ds_transposed(uint32_t from, int t) const {
    const char* const at = in_half<kHalf>() + C::kDsT + t * kFragmentBytes;
#if defined(__GFX12__)
    return read_fragment(at + from);
#else
    return joined(*reinterpret_cast<const U32x4*>(at + from), *reinterpret_cast<const U32x4*>(at + (from ^ 64) + 256));
#endif
  }
  template <int kHalf, int t>
  FW_METHOD void da_steps(Fragment* f, uint32_t from, int left) {
    if constexpr (t < kDaSteps) {
      if constexpr (t + 2 < kDaSteps) f[t + 2] = ds_transposed<kHalf>(from, t + 2);
      if constexpr (t == kDaSteps - 1) {
        schedule_fence();
        workgroup_barrier();
      }
      FW_UNROLL for (int d = 0; d < kDaColumns; ++d) {
        if constexpr (C::kHead)
          da[d] = T::multiply(xt[t][d], f[t], da[d]);
        else
          da[d] = t ? T::multiply(f[t], xt[t][d], da[d]) : T::multiply(f[t], xt[t][d]);
        schedule_fence();
      }
      da_steps<kHalf, t + 1>(f, from, left);
    }
  }

  // Of a head: dA^T, whose lane has 8 contiguous columns of one query. Sums of blocks of keys before this one are the
  // first C operands, and the last block writes dQ.
  static constexpr int kDaBytes = 1024;  // of an accumulator
  FW_METHOD const char* da_sums() const {
    return block + abi::backward_dq_at(C::kStreamed) + C::da_wave(wave) * kDaColumns * kDaBytes;
  }
  FW_METHOD void start_da() {
    const Buffer b = make_buffer(da_sums(), this->loaded >= this->first_from ? 0 : kDaColumns * kDaBytes);
    FW_UNROLL for (int d = 0; d < kDaColumns; ++d) {
      const uint32_t from = lane * 32 + d * kDaBytes;
      da[d] = __builtin_bit_cast(F32x8, joined(buffer_load16(b, from), buffer_load16(b, from + 16)));
    }
  }
  FW_METHOD void finish_da() {
    FW_UNROLL for (int d = 0; d < kDaColumns; ++d) hold(da[d]);
    if (this->loaded < this->last_end) {
      this->store_queries(da, C::da_wave(wave) * kDaColumns * 16);
    } else {
      const Buffer b = make_buffer(da_sums(), kDaColumns * kDaBytes);
      FW_UNROLL for (int d = 0; d < kDaColumns; ++d) {
        const U32x8 x = __builtin_bit_cast(U32x8, da[d]);
        buffer_store16(b, lane * 32 + d * kDaBytes, __builtin_shufflevector(x, x, 0, 1, 2, 3));
        buffer_store16(b, lane * 32 + d * kDaBytes + 16, __builtin_shufflevector(x, x, 4, 5, 6, 7));
      }
    }
  }

  template <int kHalf>
  FW_METHOD void da_tile(int left) {
    const uint32_t place =
        kRdna4 ? lane / 16 * 256 + ((lane & 15) ^ lane / 16 * 4 ^ (lane >> 3 & 1) * 2) * 16 : operand_base(lane);
    const uint32_t from = place + from_half(0);
    Fragment f[kDaSteps];
    FW_UNROLL for (int t = 0; t < 2; ++t) f[t] = ds_transposed<kHalf>(from, t);
    da_steps<kHalf, 0>(f, from, left);
    if constexpr (C::kHead)
      finish_da();
    else
      this->add_da(da, block, C::da_wave(wave) * kDaColumns * 16);
    this->advance(left > 0);
    if constexpr (C::kHead) start_da();
    other_half();
  }
  FW_METHOD void make_da() {
    if constexpr (kXtThroughLds) workgroup_barrier();
    load_kept_transposed();
    workgroup_barrier();
    workgroup_barrier();
    if constexpr (C::kHead) start_da();
    for_tiles(this->all_tiles(), [&]<int kHalf>(int left) __attribute__((always_inline)) { da_tile<kHalf>(left - 1); });
  }

  // ---------------------------------------------------------------------------------------------------------- the work
  FW_METHOD void run(const GpuArguments& args) {
    if (this->choose_task(args.schedule)) attend(args);
    this->clear_pad(args.schedule);
  }
  FW_METHOD void attend(const GpuArguments& args) {
    half = 0;
    const bool any = this->all_tiles() > 0;
    if (wave < C::kScoreWaves) {
      this->start_stream(args);
      if (any) make_scores();
    } else if (wave < C::kScoreWaves + C::kLoadWaves) {
      this->start_stream(args);
      any ? make_sums() : this->clear_sums();
      this->store(C::sums_x(wave), dx);
    } else if constexpr (C::kFused) {
      this->start_stream(args);
      if (any) make_da();
    }
  }
};

}  // namespace flashwave

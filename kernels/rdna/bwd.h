// One workgroup's share of a backward (bwd_config.h): S = A X^T and dP = G Y^T of a tile of 32 rows of A and G that
// passes by, P and dS, and the sums they go into.
//
// An operand of WMMA has in a lane the index that stays, and in registers the one that is summed; an accumulator has
// its column in the lane.
//   S, dP                          lane: kept row; registers: streamed rows. -lse / scale and -delta are the first C
//                                  operands (keys kept: of each register, queries kept: of the lane), so that both
//                                  subtractions are free.
//   dY^T += G^T P, dX^T += A^T dS  lane: kept row; registers: 8 contiguous columns.
//   dA = dS X                      lane: column; registers: streamed rows. dS once more, transposed.
// P and dS pass through LDS, whichever wave made them: tiles of S and tiles of the sums are dealt to waves
// independently, and RDNA3's exchange between the halves of a wave costs nothing extra.
#pragma once

#include "kernels/rdna/bwd_task.h"

namespace flashwave {

template <class T, class C>
struct Backward : BackwardTask<T, C> {
  using Base = BackwardTask<T, C>;
  using Base::block, Base::current, Base::dx, Base::dy, Base::kept_rows, Base::lane, Base::lds, Base::minus_delta,
      Base::minus_lse, Base::stream, Base::wave, Base::x, Base::y;
  static constexpr int kAhead = C::kAhead, kSteps = C::kSteps;

  const char* before;  // of the tile before, whose dA is summed: its block of queries
  // Addresses in LDS of this lane's share of fragments; `parity`: which buffer of dS^T is written.
  uint32_t rows_at, y_at, xt_at, ds_t_at, scores_at, sums_at, ds_t_target, parity;

  Fragment xf[kSteps], yf[C::kYInLds ? 1 : kSteps], xt[C::kXtInLds || !C::kFused ? 1 : C::kKeptTiles], ahead[kAhead];
  F32x8 s[C::kScoreTiles], dp[C::kScoreTiles], da[C::kDaTiles];

  FW_METHOD Backward(const GpuArguments& args, char* shared) : Base(args, shared) {}

  FW_METHOD int score_x() const { return C::score_x(wave); }
  FW_METHOD int score_a(int w) const { return C::score_a(wave, w); }
  FW_METHOD int da_column() const { return C::da_column(wave); }
  FW_METHOD int da_row(int n) const { return C::da_row(wave, n); }
  FW_METHOD static uint32_t near(uint32_t at) { return C::kTight ? here(at) : at; }
  FW_METHOD uint32_t operand_at(uint32_t at) const { return operand_base(lane) + near(at); }
  FW_METHOD uint32_t unit_at(uint32_t at) const { return lane * 16 + near(at); }

  // -------------------------------------------------------------------------------------------------------- fragments
  FW_METHOD void load_kept() {
    const Buffer from_x = x.buffer(kept_rows()), from_y = y.buffer(kept_rows());
    FW_UNROLL for (int step = 0; step < kSteps; ++step) {
      xf[step] = this->kept_operand(x, from_x, step);
      if constexpr (!C::kYInLds) yf[step] = this->kept_operand(y, from_y, step);
    }
    if constexpr (C::kYInLds) {
      constexpr int kEach = C::kKeptTiles * kSteps / C::kWaves;
      FW_UNROLL for (int j = 0; j < kEach; ++j) {
        const int fragment = wave * kEach + j, row = fragment / kSteps * 16 + (lane & 15);
        const int column = fragment % kSteps * 32 + (lane >> 4) * 16;
        const bool there = column < y.columns && row < kept_rows();
        *reinterpret_cast<U32x4*>(lds + C::kY + fragment * kFragmentBytes + lane * 16) =
            buffer_load16(from_y, there ? row * y.stride + column : kNowhere);
      }
    }
  }
  // The wave's columns of X^T, for dA: lane = column. RDNA3 takes them through the place of the stream's transposes,
  // four tiles of 16 rows at a time.
  FW_METHOD void load_kept_transposed() {
#if defined(__GFX12__)
    FW_UNROLL for (int t = 0; t < C::kKeptTiles; ++t) {
      const int row = least(t * 16 + (lane >> 4) * 8 + (lane & 7), kept_rows() - 1);
      xt[t] = load_transposed(x.data, row * x.stride + least(da_column() * 32 + (lane & 8) * 2, x.columns - 16));
    }
#else
    FW_UNROLL for (int t = 0; t < C::kKeptTiles; t += 4) {
      HeadRows second = x, first = x;
      first.data += int64_t{t} * 16 * x.stride;
      second.data += int64_t{t + 2} * 16 * x.stride;
      stream.template load_transposes_of<true>(first, kept_rows() - 16 * t, second, kept_rows() - 16 * (t + 2), wave);
      stream.template store_transposes_to<true>(lds, C::kXtInLds ? C::kXt + t / 2 * C::kRowBytes : C::kAt, wave);
      if constexpr (!C::kXtInLds) {
        workgroup_barrier();
        FW_UNROLL for (int j = 0; j < 4; ++j) {
          const int from = (j < 2 ? C::kAt : C::kGt) + (j % 2 * kSteps + da_column()) * kFragmentBytes;
          xt[t + j] = read_fragment(lds + operand_base(lane) + from);
          hold(xt[t + j]);
        }
        if (t + 4 < C::kKeptTiles) workgroup_barrier();  // else the barrier before the first tile does
      }
    }
#endif
  }

  // Fragment k of a tile in the order of use (bwd_config.h).
  FW_METHOD Fragment fragment(int k) const {
    if (k < C::kEndS) {
      return read_fragment(lds + rows_at + C::kA + (k % C::kScoreTiles * kSteps + k / C::kScoreTiles) * kFragmentBytes);
    }
    if (k < C::kEndDp) {
      const int step = (k - C::kEndS) / C::kPerStep, j = (k - C::kEndS) % C::kPerStep;
      if (C::kYInLds && j == 0) return read_fragment(lds + y_at + C::kY + step * kFragmentBytes);
      return read_fragment(lds + rows_at + C::kG + ((j - C::kYInLds) * kSteps + step) * kFragmentBytes);
    }
    if (k < C::kEndDa) {
      const int n = (k - C::kEndDp) % C::kPerKept - C::kXtInLds, t = (k - C::kEndDp) / C::kPerKept;
      if (n < 0) return read_fragment(lds + xt_at + C::kXt + t * kSteps * kFragmentBytes);
      const char* const at = lds + C::kDsT + (n * C::kKeptTiles + t) * kFragmentBytes;
#if defined(__GFX12__)
      return read_fragment(at + ds_t_at);
#else
      return joined(*reinterpret_cast<const U32x4*>(at + ds_t_at),
                    *reinterpret_cast<const U32x4*>(at + (ds_t_at ^ 64) + 256));
#endif
    }
    const bool of_y = k < C::kEndDy;
    const int tile = (k - C::kEndDa) % (C::kStreamTiles * C::kSumFragments) / C::kSumFragments;
    const int j = (k - C::kEndDa) % C::kSumFragments;
    if (j < 2) {
      return read_fragment(lds + scores_at + (of_y ? C::kP : C::kDs) + (j * C::kStreamTiles + tile) * kFragmentBytes);
    }
    return read_fragment(lds + sums_at + (of_y ? C::kGt : C::kAt) + (tile * kSteps + j - 2) * kFragmentBytes);
  }
  // Addresses of the fragments before and behind the first barrier. dS^T has its rows exchanged so that storing it
  // meets no bank twice (store_gradients).
  FW_METHOD void place_scores() {
    rows_at = operand_at(C::kScoreTiles == 1 ? score_a(0) * kSteps * kFragmentBytes : 0);
    if constexpr (C::kYInLds) y_at = operand_at(score_x() * kSteps * kFragmentBytes);
    if constexpr (C::kXtInLds) xt_at = operand_at(da_column() * kFragmentBytes);
    if constexpr (C::kFused) {
      const uint32_t from =
          here((C::kDaTiles == 1 ? da_row(0) * C::kKeptTiles * kFragmentBytes : 0) + (parity ^ C::kScoreBytes));
      if constexpr (kRdna4) {
        ds_t_at = lane / 16 * 256 + ((lane & 15) ^ lane / 16 * 4 ^ (lane >> 3 & 1) * 2) * 16 + from;
      } else {
        ds_t_at = operand_base(lane) + from;
      }
    }
  }
  FW_METHOD void place_sums() {
    scores_at = operand_at(C::sum_x(wave) * 2 * C::kStreamTiles * kFragmentBytes);
    sums_at = operand_at(C::sum_column(wave) * C::kSumTiles * kFragmentBytes);
  }

  // ----------------------------------------------------------------------------------------------------------- scores
  // -lse / scale (which = 0) or -delta (1) of 16 queries, as the registers of an accumulator have them.
  FW_METHOD F32x8 numbers(const char* from, int w, int which) const {
    const Buffer b = make_buffer(from + (which * C::kStreamed + score_a(w) * 16) * 4, 64);
    const uint32_t at = (lane & 16) * 2;
    return __builtin_bit_cast(F32x8, joined(buffer_load16(b, at), buffer_load16(b, at + 16)));
  }
  FW_METHOD void start_scores() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      if constexpr (C::kGeneral) continue;  // 0, written into the first products
      s[w] = C::kKeepsKeys ? numbers(block, w, 0) : F32x8(minus_lse);
      if (!C::kLateDelta) dp[w] = C::kKeepsKeys ? numbers(block, w, 1) : F32x8(minus_delta);
    }
  }

  // S -> P. The stages keep equal operations on consecutive registers together, which is what pairing needs.
  FW_METHOD void weights() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) hold(s[w]);
    if (__builtin_expect(!this->is_clean(), 0)) {
      FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) this->mask(s[w], w);
    }
    const float c = here(this->scale);
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) s[w] *= c;
    schedule_fence();
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      FW_UNROLL for (int r = 0; r < 8; ++r) s[w][r] = exp2_fast(s[w][r]);
    }
    schedule_fence();
    if constexpr (C::kKeepsKeys) {
      FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) store_weights(w, s[w]);
      schedule_fence();
    }
  }
  FW_METHOD void store_weights(int w, F32x8 x) {
    U32x4 packed;
    T::pack_weights(x, packed);
    *reinterpret_cast<U32x4*>(lds + unit_at(score_at(w)) + C::kP) = packed;
  }

  FW_METHOD void modified_weights() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) hold(s[w]);
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      const auto minus = [&] { return C::kKeepsKeys ? numbers(current, w, 0) : F32x8(minus_lse); };
      const auto use = [&](F32x8 weights) {
        if constexpr (C::kKeepsKeys) store_weights(w, weights);
      };
      Base::modified_weights(s[w], minus, use, w);
      schedule_fence();
    }
  }
  FW_METHOD uint32_t score_at(int w) const { return (score_x() * C::kStreamTiles + score_a(w)) * kFragmentBytes; }

  // P, dP -> dS. For dA the kept row becomes the index that is summed: 2 bytes each.
  FW_METHOD void store_gradients() {
    FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) {
      if constexpr (C::kGeneral) {
        this->modify_gradients(s[w], dp[w], C::kKeepsKeys ? numbers(current, w, 1) : F32x8(minus_delta));
      }
      dp[w] *= s[w];
      hold(dp[w]);
      schedule_fence();
      U32x4 packed;
      T::pack_weights(dp[w], packed);
      *reinterpret_cast<U32x4*>(lds + unit_at(score_at(w)) + C::kDs) = packed;
      if constexpr (C::kFused) {
        uint32_t to[4];
        to[0] = ds_t_target + here(parity + score_a(w) * C::kKeptTiles * kFragmentBytes);
        FW_UNROLL for (int j = 1; j < 4; ++j) to[j] = to[0] ^ (kRdna4 ? j * 32 : 64);
        FW_UNROLL for (int r = 0; r < 8; ++r) {
          const uint32_t at = kRdna4 ? to[r >> 1] + (r & 1) * 16 : to[r >> 1 & 1] + (r & 1) * 32 + (r >> 2) * 128;
          *reinterpret_cast<uint16_t*>(lds + at + C::kDsT) = uint16_t(packed[r / 2] >> (r & 1 ? 16 : 0));
        }
      }
      schedule_fence();
    }
  }
  // --------------------------------------------------------------------------------------------------------------- dA
  FW_METHOD void multiply_da(int k, const Fragment* f) {
    const int n = (k - C::kEndDp) % C::kPerKept - C::kXtInLds, t = (k - C::kEndDp) / C::kPerKept;
    if (n < 0) return;
    const Fragment b = C::kXtInLds ? f[k - 1 - n] : xt[C::kXtInLds ? 0 : t];
    da[n] = t ? T::multiply(f[k], b, da[n]) : T::multiply(f[k], b);
  }
  FW_METHOD void add_da() {
    Base::add_da(da, before, [&](int n) { return da_row(n); }, [&](int) { return da_column(); });
  }

  // ------------------------------------------------------------------------------------------------------------ a tile
  FW_METHOD void load_next() {
    stream.load_transposes(wave, lane);
    start_scores();
    schedule_fence();
  }
  FW_METHOD void store_rows() {
    // Else the compiler moves products behind the branch that clears tails.
    if constexpr (C::kFused) {
      FW_UNROLL for (int n = 0; n < C::kDaTiles; ++n) hold(da[n]);
    }
    stream.store_rows(lds, unit_at(wave * C::kRowLoads * kFragmentBytes), wave, lane);
  }

  // Fragment by fragment: read kAhead before its use; a barrier stands where the reads change to what it publishes.
  template <int k>
  FW_METHOD void step(Fragment* f, bool more) {
    constexpr int soon = k + kAhead;
    if constexpr (!C::kFused && k == C::kEndDp) {
      store_gradients();
      workgroup_barrier();
      place_sums();
      FW_UNROLL for (int j = 0; j < kAhead; ++j) f[C::kEndDa + j] = fragment(C::kEndDa + j);
      store_rows();
      load_next();
    }
    if constexpr (C::kFused && soon == C::kEndDa) {
      schedule_fence();
      workgroup_barrier();
      store_rows();
      place_sums();
    }
    if constexpr (soon == C::kEnd) {
      schedule_fence();
      workgroup_barrier();
      parity ^= C::kScoreBytes;
      place_scores();
    }
    if constexpr (soon < (C::kFused ? C::kEnd : C::kEndDa)) {
      f[soon] = fragment(soon);
    } else if constexpr (k >= C::kEndDp) {
      f[soon] = fragment(soon < C::kEnd ? soon : soon - C::kEnd);
    }
    multiply<k>(f);
    schedule_fence();
    if constexpr (k == C::kStoreTransposes) {
      stream.store_transposes(lds, unit_at(wave * C::kTransposes / 2 * kFragmentBytes), wave);
    }
    if constexpr (k == 1) {
      if (C::kLateDelta) {
        FW_UNROLL for (int w = 0; w < C::kScoreTiles; ++w) dp[w] = numbers(block, w, 1);
      }
      this->advance(more);
      stream.load_rows();
      schedule_fence();
    }
    if constexpr (k == C::kEndS - 1) {
      if constexpr (C::kGeneral)
        modified_weights();
      else
        weights();
    }
    if constexpr (C::kFused && k == C::kEndDp - 1) store_gradients();
    if constexpr (C::kFused && k == C::kEndDa) add_da();
    if constexpr (C::kFused && k == C::kEndDa + 2) load_next();
  }
  template <int k>
  FW_METHOD void multiply(const Fragment* f) {
    if constexpr (k < C::kEndS) {
      F32x8& sum = s[k % C::kScoreTiles];
      if constexpr (C::kGeneral && k < C::kScoreTiles)
        sum = T::multiply(f[k], xf[0]);
      else
        sum = T::multiply(f[k], xf[k / C::kScoreTiles], sum);
    } else if constexpr (k < C::kEndDp) {
      constexpr int step = (k - C::kEndS) / C::kPerStep, j = (k - C::kEndS) % C::kPerStep - C::kYInLds;
      if constexpr (j >= 0) {
        const Fragment b = C::kYInLds ? f[C::kEndS + step * C::kPerStep] : yf[C::kYInLds ? 0 : step];
        if constexpr (C::kGeneral && step == 0)
          dp[j] = T::multiply(f[k], b);
        else
          dp[j] = T::multiply(f[k], b, dp[j]);
      }
    } else if constexpr (k < C::kEndDa) {
      multiply_da(k, f);
    } else if constexpr ((k - C::kEndDa) % C::kSumFragments >= 2) {
      constexpr int j = (k - C::kEndDa) % C::kSumFragments;
      FW_UNROLL for (int t = 0; t < 2; ++t) {
        F32x8& sum = k < C::kEndDy ? dy[t][j - 2] : dx[t][j - 2];
        sum = T::multiply(f[k], f[k - j + t], sum);
        schedule_fence();
      }
    }
  }
  // Recursion: a loop of so many instructions is not unrolled.
  template <int k>
  FW_METHOD void steps(Fragment* f, bool more) {
    if constexpr (k < C::kEnd) {
      step<k>(f, more);
      steps<k + 1>(f, more);
    }
  }
  FW_METHOD void tile(bool more) {
    Fragment f[C::kEnd + kAhead];
    FW_UNROLL for (int k = 0; k < kAhead; ++k) f[k] = ahead[k];
    this->start_tile();
    steps<0>(f, more);
    this->hold_sums();
    FW_UNROLL for (int k = 0; k < kAhead; ++k) ahead[k] = f[C::kEnd + k];
    before = current;
  }

  // ----------------------------------------------------------------------------------------------------------- the end
  FW_METHOD void run(const GpuArguments& args) {
    if (this->choose_task(args.schedule)) attend(args);
    this->clear_pad(args.schedule);
  }
  FW_METHOD void attend(const GpuArguments& args) {
    this->start_stream(args.shared);
    before = block;
    this->clear_sums();
    if (this->all_tiles() > 0) {
      load_kept();
      if constexpr (C::kFused) {
        load_kept_transposed();
        // The first tile has none before it: its dS is 0.
        FW_UNROLL for (int j = 0; j < C::kScoreTiles; ++j) {
          const int at = C::kDsT + C::kScoreBytes + (wave * C::kScoreTiles + j) * kFragmentBytes;
          *reinterpret_cast<U32x4*>(lds + at + lane * 16) = U32x4(0);
        }
        ds_t_target = this->ds_t_place();
      }
      if constexpr (!C::kKeepsKeys) this->load_numbers();
      parity = 0;
      stream.load_rows();
      stream.load_transposes(wave, lane);
      start_scores();
      store_rows();
      workgroup_barrier();
      place_scores();
      FW_UNROLL for (int k = 0; k < kAhead; ++k) ahead[k] = fragment(k);
      FW_NO_UNROLL for (int left = this->all_tiles(); left > 0; --left) tile(left > 1);
      if constexpr (C::kFused) {  // dA of the last tile
        Fragment f[C::kEndDa];
        FW_UNROLL for (int k = C::kEndDp; k < C::kEndDa; ++k) {
          f[k] = fragment(k);
          multiply_da(k, f);
        }
        add_da();
      }
    }
    this->store();
  }
};

}  // namespace flashwave

// The backward for head dims above 128 (WideConfig in bwd_config.h). The products and layouts are those of bwd.h; the
// schedule is plain: parts of S and dP | barrier | P and dS | barrier | sums.
#pragma once

#include "kernels/rdna/bwd_task.h"

namespace flashwave {

template <class T, class C>
struct WideBackward : BackwardTask<T, C> {
  using Base = BackwardTask<T, C>;
  using Base::block, Base::current, Base::dx, Base::dy, Base::kept_rows, Base::lane, Base::lds, Base::p, Base::stream,
      Base::wave, Base::x, Base::y;
  static constexpr int kOwnSteps = C::kOwnSteps, kSumTiles = C::kSumTiles;

  Fragment xf[kOwnSteps], yf[kOwnSteps], xt[C::kKeptTiles][C::kDaTiles];
  float minus[2];               // queries kept: -lse and -delta of this lane's
  uint32_t all;                 // modifiers
  DropoutOfKept<C> of_kept[1];  // dropout alone
  int of_head;

  FW_METHOD WideBackward(const GpuArguments& args, char* shared) : Base(args, shared) {}

  FW_METHOD int share() const { return wave % C::kSharing; }
  FW_METHOD Fragment operand(int at) const { return read_fragment(lds + operand_base(lane) + at); }

  FW_METHOD void load_kept() {
    const Buffer from_x = x.buffer(kept_rows()), from_y = y.buffer(kept_rows());
    FW_UNROLL for (int i = 0; i < kOwnSteps; ++i) {
      xf[i] = this->kept_operand(x, from_x, 0, share() * kOwnSteps + i);
      yf[i] = this->kept_operand(y, from_y, 0, share() * kOwnSteps + i);
    }
  }
  // The wave's columns of X^T, for dA: lane = column. RDNA3 takes them through the place of the stream's transposes.
  FW_METHOD void load_kept_transposed() {
#if defined(__GFX12__)
    FW_UNROLL for (int t = 0; t < C::kKeptTiles; ++t) {
      const int row = least(t * 16 + (lane >> 4) * 8 + (lane & 7), kept_rows() - 1);
      FW_UNROLL for (int d = 0; d < C::kDaTiles; ++d) {
        const int column = (wave * C::kDaTiles + d) * 32 + (lane & 8) * 2;
        xt[t][d] = load_transposed(x.data, row * x.stride + least(column, x.columns - 16));
      }
    }
#else
    const int tile = Stream<C>::has_g(wave);
    HeadRows rows = x;
    rows.data += int64_t{tile} * 16 * x.stride;
    stream.load_transposes_of(rows, kept_rows() - 16 * tile, wave);
    stream.store_transposes_to(lds + C::kAt);
    workgroup_barrier();
    FW_UNROLL for (int t = 0; t < C::kKeptTiles; ++t) {
      FW_UNROLL for (int d = 0; d < C::kDaTiles; ++d) {
        xt[t][d] = operand(C::kAt + t * C::kRowBytes + (wave * C::kDaTiles + d) * kFragmentBytes);
        hold(xt[t][d]);
      }
    }
#endif
  }

  // -lse / scale (or, with modifiers, -lse; which = 0) or -delta (1) of the two queries in the wave's registers.
  FW_METHOD F32x2 numbers(int which) const {
    if constexpr (!C::kKeepsKeys) return F32x2(minus[which]);
    const Buffer b = make_buffer(current + which * C::kStreamed * 4, 64);
    return __builtin_bit_cast(F32x2, buffer_load8(b, (lane & 16) * 2 + share() * C::kOwnRegisters * 4));
  }

  // Parts of S and dP over the wave's columns, stored by pairs of registers.
  FW_METHOD int part_at(int which, int of) const {
    return C::kParts + (which * C::kWaves + C::score_x(wave, 0) * C::kSharing + of) * C::kPartBytes + lane * 8;
  }
  FW_METHOD void store_part(int which, const Fragment (&kept)[kOwnSteps]) {
    F32x8 sum;
    FW_UNROLL for (int i = 0; i < kOwnSteps; ++i) {
      const int at = (which ? C::kG : C::kA) + (share() * kOwnSteps + i) * kFragmentBytes;
      sum = i ? T::multiply(operand(at), kept[i], sum) : T::multiply(operand(at), kept[i]);
    }
    FW_UNROLL for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<F32x2*>(lds + part_at(which, share()) + i * 256) = F32x2{sum[2 * i], sum[2 * i + 1]};
    }
  }
  FW_METHOD F32x2 sum_of_parts(int which) const {
    F32x2 sum = 0.f;
    FW_UNROLL for (int of = 0; of < C::kSharing; ++of) {
      sum += *reinterpret_cast<const F32x2*>(lds + part_at(which, of) + share() * 256);
    }
    return sum;
  }

  // P and dS of two registers.
  template <uint32_t kModifiers>
  FW_METHOD void store_scores(F32x2 lse, F32x2 delta) {
    F32x2 s = sum_of_parts(0), dp = sum_of_parts(1);
    char* const to = lds + C::score_x(wave, 0) * kFragmentBytes + lane * 16 + share() * 4;
    F32x2 used;
    const auto use = [&](F32x2 weights) {
      if constexpr (C::kKeepsKeys) *reinterpret_cast<uint32_t*>(to + C::kP) = T::pack_weights(weights);
      used = weights;
    };
    const int first_register = share() * C::kOwnRegisters;
    if constexpr (C::kModified) {
      Vec<float, C::kKeepsKeys ? 2 : 1> minus_lse;
      FW_UNROLL for (int r = 0; r < (C::kKeepsKeys ? 2 : 1); ++r) minus_lse[r] = lse[r];
      KeptPairs<2> kept[1];
      const auto raw = this->template modifiers<kModifiers, 2>(0, first_register).load_bias();
      if constexpr (kModifiers == kDropout) this->draw(of_kept, of_head, kept, first_register);
      this->template modified_weights<kModifiers>(s, minus_lse, raw, use, kept[0], 0, first_register);
      if constexpr (kModifiers == kDropout) {  // as in bwd.h
        F32x2 rest = s * delta;
        add_products(rest, dp, used);
        dp = rest;
      } else {
        dp += delta;
        this->template drop_gradients<kModifiers>(dp, delta, kept[0]);
        dp *= s;
      }
    } else {
      s += lse;
      if (!this->is_clean()) this->mask(s, 0, first_register);
      s *= this->scale;
      FW_UNROLL for (int r = 0; r < 2; ++r) s[r] = exp2_fast(s[r]);
      use(s);
      dp += delta;
      dp *= s;
    }
    const uint32_t packed = T::template pack_weights<Base::template kGradientFactor<kModifiers>>(dp);
    *reinterpret_cast<uint32_t*>(to + C::kDs) = packed;
    if constexpr (C::kFused) {
      // As in bwd.h: registers 2 share() and the next.
      const uint32_t place = this->ds_t_place() + C::score_x(wave, 0) * kFragmentBytes;
      const uint32_t at = kRdna4 ? place ^ share() * 32 : (place ^ (share() & 1) * 64) + (share() >> 1) * 128;
      *reinterpret_cast<uint16_t*>(lds + C::kDsT + at) = uint16_t(packed);
      *reinterpret_cast<uint16_t*>(lds + C::kDsT + at + (kRdna4 ? 16 : 32)) = uint16_t(packed >> 16);
    }
  }

  // dY^T += G^T P or dX^T += A^T dS: 32 kept rows, the wave's columns.
  FW_METHOD void add_sums(int scores, int transposed, F32x8 (&sums)[2][kSumTiles]) {
    Fragment b[2];
    FW_UNROLL for (int t = 0; t < 2; ++t) b[t] = operand(scores + t * kFragmentBytes);
    FW_UNROLL for (int d = 0; d < kSumTiles; ++d) {
      const Fragment a = operand(transposed + (wave * kSumTiles + d) * kFragmentBytes);
      FW_UNROLL for (int t = 0; t < 2; ++t) sums[t][d] = T::multiply(a, b[t], sums[t][d]);
    }
  }
  FW_METHOD void hold_sums() {
    FW_UNROLL for (int t = 0; t < C::kSumRows; ++t) {
      FW_UNROLL for (int d = 0; d < kSumTiles; ++d) {
        hold(dx[t][d]);
        if (C::kKeepsKeys) hold(dy[t][d]);
      }
    }
  }
  FW_METHOD Fragment ds_transposed(int t) const {
    const char* const at = lds + C::kDsT + t * kFragmentBytes;
#if defined(__GFX12__)
    return read_fragment(at + lane / 16 * 256 + ((lane & 15) ^ lane / 16 * 4 ^ (lane >> 3 & 1) * 2) * 16);
#else
    return joined(*reinterpret_cast<const U32x4*>(at + operand_base(lane)),
                  *reinterpret_cast<const U32x4*>(at + (operand_base(lane) ^ 64) + 256));
#endif
  }
  FW_METHOD void sum_da() {
    F32x8 da[C::kDaTiles];
    FW_UNROLL for (int t = 0; t < C::kKeptTiles; ++t) {
      const Fragment a = ds_transposed(t);
      FW_UNROLL for (int d = 0; d < C::kDaTiles; ++d) da[d] =
          t ? T::multiply(a, xt[t][d], da[d]) : T::multiply(a, xt[t][d]);
    }
    this->add_da(da, current, wave * C::kDaTiles * 16);
  }

  FW_METHOD void tile(bool more) {
    this->start_tile();
    const F32x2 lse = numbers(0), delta = numbers(1);
    this->advance(more);
    stream.load_rows();
    store_part(0, xf);
    store_part(1, yf);
    workgroup_barrier();  // the parts are there, and all is read that the stores below replace
    stream.store_transposes(lds, wave);
    // One loop, unlike in bwd.h: nothing but LDS comes out of the branches.
    this->by_modifiers(
        here(all), [&]<uint32_t kModifiers>() __attribute__((always_inline)) { store_scores<kModifiers>(lse, delta); });
    stream.store_rows(lds, wave, lane);
    workgroup_barrier();  // P, dS, the transposes and the next rows are there
    stream.load_transposes(wave, lane);
    if constexpr (C::kKeepsKeys) add_sums(C::kP, C::kGt, dy);
    add_sums(C::kDs, C::kAt, dx);
    hold_sums();
    if constexpr (C::kFused) sum_da();
  }

  FW_METHOD void run(const GpuArguments& args) {
    if (this->choose_task(args.schedule)) attend(args);
    this->clear_pad(args.schedule);
  }
  FW_METHOD void attend(const GpuArguments& args) {
    this->start_stream(args);
    stream.start(wave, lane);
    this->clear_sums();
    if (this->all_tiles() > 0) {
      load_kept();
      if constexpr (C::kFused) load_kept_transposed();
      if constexpr (!C::kKeepsKeys) {
        FW_UNROLL for (int which = 0; which < 2; ++which) minus[which] = this->number(0, which);
      }
      stream.load_rows();
      stream.load_transposes(wave, lane);
      stream.store_rows(lds, wave, lane);
      workgroup_barrier();
      all = this->all_modifiers();
      of_head = -1;
      FW_NO_UNROLL for (int left = this->all_tiles(); left > 0; --left) tile(left > 1);
    }
    this->store(true, dx);
    if constexpr (C::kKeepsKeys) this->store(false, dy);
  }
};

}  // namespace flashwave

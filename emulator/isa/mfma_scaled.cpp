// MFMA of gfx950 on 8-, 6- and 4-bit floats, the two inputs each of a type of its own, and the same with a scale for
// every 32 elements. AMD "CDNA4 ISA", chapter 7; layouts also in "Matrix Core Programming on AMD CDNA3 and CDNA4
// architecture" (ROCm blogs, 2025).
#include <limits>

#include "isa/lanes.h"
#include "isa/matrix_pairs.h"

EMU_MATRIX_BEGIN
std::span<const Opcode> scaled_mfma_opcodes();

namespace {
constexpr int kPerLane = 32, kBlock = 32;  // elements of a lane; elements with one scale

// Formats as CBSZ (for A) and BLGP (for B) number them.
constexpr Element kFormats[] = {Element::fp8, Element::bf8, Element::fp6, Element::bf6, Element::fp4};
constexpr int kFormatCount = 5;
constexpr int registers_of(int format) {
  return size_of(kFormats[format]);
}  // 32 elements fill as many as they have bits

// Calls f<Element>() for the format.
template <class F>
auto with_format(int format, F f) {
  switch (kFormats[format]) {
    case Element::fp8:
      return f.template operator()<Element::fp8>();
    case Element::bf8:
      return f.template operator()<Element::bf8>();
    case Element::fp6:
      return f.template operator()<Element::fp6>();
    case Element::bf6:
      return f.template operator()<Element::bf6>();
    default:
      return f.template operator()<Element::fp4>();
  }
}

// 8-bit types: a group of lanes has 16 neighbours in k, and 16 more after all groups had theirs. Others: 32 neighbours.
// Of numbers, or of `Together` numbers at a time.
template <int M, int Together>
const int* offsets_of(int format) {
  constexpr int kGroups = kLanes / M, kCount = kPerLane * kGroups / Together;
  static constexpr auto kSplit = k_offsets<kCount, kGroups, M, 16 / Together>();
  static constexpr auto kWhole = k_offsets<kCount, kGroups, M, 32 / Together>();
  return (size_of(kFormats[format]) == 8 ? kSplit : kWhole).data();
}

// Byte op_sel + 2 * op_sel_hi of each lane's scale register: the exponent of a power of two, 255: NaN.
void read_scales(const Wave& w, const Instruction& in, int which, double (&scale)[kLanes]) {
  Row space;
  const u32* row = plain_row(w, in.source(3 + which), space);
  const int byte = (in.op_sel >> which & 1) + 2 * (in.op_sel_hi >> which & 1);
  for (int l = 0; l < kLanes; ++l) {
    const int exponent = static_cast<int>(row[l] >> (8 * byte) & 0xff);
    const double power = as_f64(static_cast<u64>(exponent - 127 + 1023) << 52);
    scale[l] = exponent == 255 ? std::numeric_limits<double>::quiet_NaN() : power;
  }
}

// Rows of tiles from row `first` on. Returns the first row that could not be done, or M. a, b: rows of numbers, or of
// `Together` numbers at a time.
template <int M, bool Scaled, int Together, class T, class Rows>
int multiply_f8f6f4(Wave& w, const Instruction& in, const T* a, const T* b, const Rows& c, int first = 0) {
  constexpr int kGroups = kLanes / M, kRows = kTileRows<M>, kStep = kBlock / Together;
  const int *a_offsets = offsets_of<M, Together>(in.cbsz), *b_offsets = offsets_of<M, Together>(in.blgp);
  double a_scale[kLanes], b_scale[kLanes];  // of row (column) l % M and the elements k of block l / M
  if constexpr (Scaled) {
    read_scales(w, in, 0, a_scale);
    read_scales(w, in, 1, b_scale);
  }
  for (; first < M; first += kRows) {
    const u32* from[kRows];
    u32* d[kRows];
    for (int h = 0; h < kRows; ++h) {
      const int reg = register_of_row<M>(first + h), lane = lane_of_row<M>(first + h);
      from[h] = c[reg] + lane;
      d[h] = w.vgpr[in.operand[0].reg + reg] + lane;
    }
    if constexpr (!Scaled) {
      if (!multiply_tile<kGroups * kStep, M>(a + first, b, a_offsets, b_offsets, from, d)) break;
      continue;
    }
    float total[kRows][M];
    for (int h = 0; h < kRows; ++h) std::memcpy(total[h], from[h], sizeof(total[h]));
    for (int block = 0; block < kGroups; ++block) {
      // The scales apply to the sum of the block's products. Their product may be outside f32.
      u32 sum[kRows][M];
      u32* sums[kRows];
      for (int h = 0; h < kRows; ++h) sums[h] = sum[h];
      const int *a_block = a_offsets + block * kStep, *b_block = b_offsets + block * kStep;
      multiply_tile<kStep, M, true>(a + first, b, a_block, b_block, from, sums);
      for (int h = 0; h < kRows; ++h) {
        const double left = a_scale[block * M + first + h];
#if defined(__clang__)  // unrolled first, it would become vectors over h, gathered
#pragma clang loop unroll(disable)
#endif
        for (int j = 0; j < M; ++j) {
          total[h][j] = static_cast<float>(as_f32(sum[h][j]) * (left * b_scale[block * M + j]) + total[h][j]);
        }
      }
    }
    for (int h = 0; h < kRows; ++h) std::memcpy(d[h], total[h], sizeof(total[h]));
  }
  return first;
}

#ifdef EMU_MATRIX_WIDE
// An operand as pairs. One in the same registers as in the instruction before is often the same: code that multiplies
// matrices holds one operand and changes the other. Such a one is kept, and converted again only if it has changed; one
// that had changed when it was looked at first is not kept for a while, as copying takes a quarter of the conversion.
class LastPairs {
 public:
  Pairs<kPerLane> pairs;
  bool fits = false;  // convert_pairs()

  void convert(const Wave& w, int first_register, int format) {
    const auto& from = w.vgpr[first_register];
    const size_t size = sizeof(from) * static_cast<size_t>(registers_of(format));
    const bool again = first_register == first_register_ && format == format_;
    if (again && kept_) {
      if (std::memcmp(copy_, from, size) == 0) {
        used_ = true;
        return;
      }
      if (!used_) pause_ = kPause;
    }
    used_ = false;
    if (pause_ > 0) --pause_;
    kept_ = again && pause_ == 0;
    first_register_ = first_register;
    format_ = format;
    if (kept_) std::memcpy(copy_, from, size);
    fits = with_format(format, [&]<Element Type>() { return convert_pairs<Type>(&from, pairs); });
  }

 private:
  static constexpr int kPause = 16;
  int first_register_ = -1, format_ = -1, pause_ = 0;
  bool kept_ = false, used_ = false;  // copy_ has the registers of `pairs`, and they were the same once
  alignas(64) u32 copy_[kPerLane / 4][kLanes];
};
thread_local struct {
  LastPairs a, b;
} last_operands;
#endif

template <int M, bool Scaled>
void mfma_f8f6f4(Wave& w, const Instruction& in) {
  const AccumulatorRows<M * M / kLanes> c(w, in.source(2), in.operand[0].reg);
  Converted<float, kPerLane> a, b;
#ifdef EMU_MATRIX_WIDE
  if (cpu_has_bf16_products()) {
    auto& [x, y] = last_operands;
    x.convert(w, in.source(0).reg, in.cbsz);
    y.convert(w, in.source(1).reg, in.blgp);
    int done = 0;
    if (x.fits && y.fits) done = multiply_f8f6f4<M, Scaled, 2>(w, in, x.pairs.value[0], y.pairs.value[0], c);
    if (done == M) return;
    widen_pairs(x.pairs, a);  // of the registers D may have overwritten some
    widen_pairs(y.pairs, b);
    multiply_f8f6f4<M, Scaled, 1>(w, in, a.value[0], b.value[0], c, done);
    return;
  }
#endif
  with_format(in.cbsz, [&]<Element Type>() { convert<Type>(&w.vgpr[in.source(0).reg], a); });
  with_format(in.blgp, [&]<Element Type>() { convert<Type>(&w.vgpr[in.source(1).reg], b); });
  multiply_f8f6f4<M, Scaled, 1>(w, in, a.value[0], b.value[0], c);
}

template <int M>
std::string bind_f8f6f4(Instruction& in, const Target&) {
  if (in.cbsz >= kFormatCount || in.blgp >= kFormatCount) return "a format that is not defined";
  if (in.abid || in.neg_lo || in.neg_hi) return "f8f6f4 forms have no abid and no neg";
  for (int i = 0; i < 2; ++i) {
    if (in.source(i).width < registers_of(i ? in.blgp : in.cbsz)) return "too few registers for the format";
  }
  const bool has_8_bits = in.cbsz < 2 || in.blgp < 2;
  in.cycles = static_cast<u16>((M == 32 ? 32 : 16) * (has_8_bits ? 2 : 1));
  return {};
}

template <int M, bool Scaled>
constexpr Opcode row(const char* name) {
  return {name,
          mfma_f8f6f4<M, Scaled>,
          Class::matrix,
          Scaled ? "x=xxfuu" : "x=xxf",
          Scaled ? kTakesMatrix | kTakesPacked : kTakesMatrix,
          kIgnoresExec,
          64,
          bind_f8f6f4<M>,
          1u << static_cast<int>(Family::gfx9)};
}

constexpr Opcode kScaled[] = {
    row<16, false>("v_mfma_f32_16x16x128_f8f6f4"),
    row<32, false>("v_mfma_f32_32x32x64_f8f6f4"),
    row<16, true>("v_mfma_scale_f32_16x16x128_f8f6f4"),
    row<32, true>("v_mfma_scale_f32_32x32x64_f8f6f4"),
};

}  // namespace

std::span<const Opcode> scaled_mfma_opcodes() { return kScaled; }

EMU_MATRIX_END

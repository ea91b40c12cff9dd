// MFMA of gfx950 on 8-, 6- and 4-bit floats, the two inputs each of a type of its own, and the same with a scale for
// every 32 elements. AMD "CDNA4 ISA", chapter 7; layouts also in "Matrix Core Programming on AMD CDNA3 and CDNA4
// architecture" (ROCm blogs, 2025).
#include <cmath>
#include <limits>

#include "isa/lanes.h"
#include "isa/matrix_rows.h"

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

void convert_format(int format, const u32 (*registers)[kLanes], Converted<float, kPerLane>& out) {
  switch (kFormats[format]) {
    case Element::fp8:
      return convert<Element::fp8>(registers, out);
    case Element::bf8:
      return convert<Element::bf8>(registers, out);
    case Element::fp6:
      return convert<Element::fp6>(registers, out);
    case Element::bf6:
      return convert<Element::bf6>(registers, out);
    default:
      return convert<Element::fp4>(registers, out);
  }
}

// 8-bit types: a group of lanes has 16 neighbours in k, and 16 more after all groups had theirs. Others: 32 neighbours.
template <int M>
const std::array<int, kPerLane * kLanes / M>& offsets_of(int format) {
  constexpr int kGroups = kLanes / M;
  static constexpr auto kSplit = k_offsets<kPerLane * kGroups, kGroups, M, 16>();
  static constexpr auto kWhole = k_offsets<kPerLane * kGroups, kGroups, M, 32>();
  return size_of(kFormats[format]) == 8 ? kSplit : kWhole;
}

// Byte op_sel + 2 * op_sel_hi of each lane's scale register: the exponent of a power of two, 255: NaN.
void read_scales(const Wave& w, const Instruction& in, int which, double (&scale)[kLanes]) {
  Row space;
  const u32* row = plain_row(w, in.source(3 + which), space);
  const int byte = (in.op_sel >> which & 1) + 2 * (in.op_sel_hi >> which & 1);
  for (int l = 0; l < kLanes; ++l) {
    const int exponent = static_cast<int>(row[l] >> (8 * byte) & 0xff);
    scale[l] = exponent == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, exponent - 127);
  }
}

template <int M, bool Scaled>
void mfma_f8f6f4(Wave& w, const Instruction& in) {
  constexpr int kGroups = kLanes / M, kK = kPerLane * kGroups, kRows = kTileRows<M>;
  Converted<float, kPerLane> a, b;
  convert_format(in.cbsz, &w.vgpr[in.source(0).reg], a);
  convert_format(in.blgp, &w.vgpr[in.source(1).reg], b);
  const int *a_offsets = offsets_of<M>(in.cbsz).data(), *b_offsets = offsets_of<M>(in.blgp).data();
  double a_scale[kLanes], b_scale[kLanes];  // of row (column) l % M and the elements k of block l / M
  if constexpr (Scaled) {
    read_scales(w, in, 0, a_scale);
    read_scales(w, in, 1, b_scale);
  }
  const u16 destination = in.operand[0].reg;
  const AccumulatorRows<M * M / kLanes> c(w, in.source(2), destination);
  for (int first = 0; first < M; first += kRows) {
    const u32* from[kRows];
    u32* d[kRows];
    for (int h = 0; h < kRows; ++h) {
      const int reg = register_of_row<M>(first + h), lane = lane_of_row<M>(first + h);
      from[h] = c[reg] + lane;
      d[h] = w.vgpr[destination + reg] + lane;
    }
    if constexpr (!Scaled) {
      multiply_tile<kK, M>(a.value[0] + first, b.value[0], a_offsets, b_offsets, from, d);
      continue;
    }
    float total[kRows][M];
    for (int h = 0; h < kRows; ++h) std::memcpy(total[h], from[h], sizeof(total[h]));
    for (int block = 0; block < kGroups; ++block) {
      // The scales apply to the sum of the block's products. Their product may be outside f32.
      u32 sum[kRows][M] = {};
      const u32* zero[kRows];
      u32* sums[kRows];
      for (int h = 0; h < kRows; ++h) zero[h] = sums[h] = sum[h];
      multiply_tile<kBlock, M>(a.value[0] + first, b.value[0], a_offsets + block * kBlock, b_offsets + block * kBlock,
                               zero, sums);
      for (int h = 0; h < kRows; ++h) {
        const double left = a_scale[block * M + first + h];
        for (int j = 0; j < M; ++j) {
          total[h][j] = static_cast<float>(as_f32(sum[h][j]) * (left * b_scale[block * M + j]) + total[h][j]);
        }
      }
    }
    for (int h = 0; h < kRows; ++h) std::memcpy(d[h], total[h], sizeof(total[h]));
  }
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

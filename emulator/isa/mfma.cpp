// Dense matrix fused multiply-add of CDNA: D = A * B + C in blocks of 4x4, 16x16 or 32x32. EXEC is ignored.
// AMD "Instinct MI300 ISA", chapter 7, also for the modifiers CBSZ, ABID and BLGP.
#include <algorithm>

#include "isa/matrix_pairs.h"

EMU_MATRIX_BEGIN
std::span<const Opcode> dense_mfma_opcodes();

namespace {
// One form: Blocks products of an M x K and a K x M matrix.
template <Element A, Element B, int M, int K, int Blocks, bool LowRate = false>
struct Form {
  static constexpr int kPerLane = K * M * Blocks / kLanes;        // elements of A, and of B, that a lane holds
  static constexpr int kGroups = kLanes / (M * Blocks);           // lanes that share a row of A, each with its own k
  static constexpr int kRegisters = M == 4 ? 4 : M * M / kLanes;  // of D, per block (4x4: for all blocks together)
  static constexpr int kAllRegisters = M == 4 ? 4 : kRegisters * Blocks;
  using Number = std::conditional_t<is_integer(A), i32, float>;
  static constexpr std::array<int, K> kOffsets = k_offsets<K, kGroups, M * Blocks, kPerLane>();
};

// Row of D that register r of a block holds in its first M lanes; every further M lanes hold the row 4 below.
constexpr int first_row(int m, int r) { return m == 32 ? r / 4 * 8 + r % 4 : r; }

// CBSZ, ABID: the blocks of each group of 2^CBSZ all take A from block ABID of their group.
int block_of_a(const Instruction& in, int block) { return (block >> in.cbsz << in.cbsz) + in.abid; }

// BLGP: B's lanes in groups of 16; which group's values each group gets.
constexpr u8 kGroupSource[8][4] = {{0, 1, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}, {1, 2, 3, 0},
                                   {0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
template <class T, int PerLane>
void permute_lane_groups(Converted<T, PerLane>& b, int pattern) {
  for (auto& row : b.value) {
    T old[kLanes];
    std::copy(row, row + kLanes, old);
    for (int l = 0; l < kLanes; ++l) row[l] = old[kGroupSource[pattern][l / 16] * 16 + l % 16];
  }
}

// D's element (register, lane) with the rounding of the hardware.
template <class F, class Rows>
void multiply_as_hardware(Wave& w, const Instruction& in, const float* a, const float* b, const Rows& c,
                          const DotModel& model, int m, int blocks) {
  constexpr int kCount = static_cast<int>(F::kOffsets.size());
  for (int r = 0; r < F::kAllRegisters; ++r) {
    u32* d = w.vgpr[in.operand[0].reg + r];
    const u32* from = c[r];
    for (int l = 0; l < kLanes; ++l) {
      const int block = m == 4 ? l / 4 : r / F::kRegisters;
      const int row = m == 4 ? r : first_row(m, r % F::kRegisters) + l / m * 4;
      float x[kCount], y[kCount];
      for (int k = 0; k < kCount; ++k) {
        const int offset = F::kOffsets[static_cast<size_t>(k)];
        x[k] = a[offset + (blocks > 1 ? block_of_a(in, block) : 0) * m + row];
        y[k] = b[offset + block * m + l % m];
      }
      d[l] = bits_of(dot(model, x, y, kCount, as_f32(from[l])));
    }
  }
}

// Tiles of all blocks of 16x16 or 32x32, of which there are kTiles, from `tile` on. Returns the first that could not be
// done, or kTiles. Offsets: k_offsets of the numbers, or of pairs of them.
template <int M, int Blocks>
constexpr int kTiles = Blocks * M / kTileRows<M>;
template <class F, int M, int Blocks, size_t K, class T, class Rows>
inline int multiply_blocks(Wave& w, const Instruction& in, const T* a, const T* b, const std::array<int, K>& offsets,
                           const Rows& c, int tile = 0) {
  constexpr int kRows = kTileRows<M>;
  const u16 destination = in.operand[0].reg;
  for (; tile < kTiles<M, Blocks>; ++tile) {
    const int block = tile * kRows / M, first = tile * kRows % M;
    const T* left = a + (Blocks > 1 ? block_of_a(in, block) : 0) * M;
    const T* right = b + block * M;
    const u32* from[kRows];
    u32* d[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int index = block * F::kRegisters + register_of_row<M>(first + r), lane = lane_of_row<M>(first + r);
      from[r] = c[index] + lane;
      d[r] = w.vgpr[destination + index] + lane;
    }
    if (!multiply_tile<static_cast<int>(K), M>(left + first, right, offsets.data(), offsets.data(), from, d)) break;
  }
  return tile;
}

template <Element A, Element B, int M, int K, int Blocks, bool LowRate, bool Flush>
void mfma(Wave& w, const Instruction& in) {
  using F = Form<A, B, M, K, Blocks, LowRate>;
  using Number = typename F::Number;
  const u16 destination = in.operand[0].reg;
  const AccumulatorRows<F::kAllRegisters> c(w, in.operand[3], destination);
  const auto &a_registers = w.vgpr[in.operand[1].reg], &b_registers = w.vgpr[in.operand[2].reg];
#ifdef EMU_MATRIX_WIDE
  if constexpr (M != 4 && kFitsBf16<A> && kFitsBf16<B> && F::kPerLane % 2 == 0) {
    if (cpu_has_bf16_products() && !in.blgp && matrix_numerics() == MatrixNumerics::chain) {
      Pairs<F::kPerLane> x, y;
      const bool a_fits = convert_pairs<A>(&a_registers, x), b_fits = convert_pairs<B>(&b_registers, y);
      static constexpr auto kOffsets = k_offsets<K / 2, F::kGroups, M * Blocks, F::kPerLane / 2>();
      int done = 0;
      if (a_fits && b_fits) done = multiply_blocks<F, M, Blocks>(w, in, x.value[0], y.value[0], kOffsets, c);
      if (done == kTiles<M, Blocks>) return;
      Converted<float, F::kPerLane> a, b;  // of the registers D may have overwritten some
      widen_pairs<Flush>(x, a);
      widen_pairs<Flush>(y, b);
      multiply_blocks<F, M, Blocks>(w, in, a.value[0], b.value[0], F::kOffsets, c, done);
      return;
    }
  }
#endif
  Converted<Number, F::kPerLane> a, b;
  convert<A, kLanes, Flush>(&a_registers, a);
  convert<B, kLanes, Flush>(&b_registers, b);
  if (in.blgp) permute_lane_groups(b, in.blgp);
  if constexpr (!is_integer(A)) {
    if (matrix_numerics() == MatrixNumerics::hardware) {
      const DotModel model = dot_model(A, B, LowRate, w.target->cdna);
      multiply_as_hardware<F>(w, in, a.value[0], b.value[0], c, model, M, Blocks);
      return;
    }
  }
  if constexpr (M == 4) {
    static_assert(F::kGroups == 1);
    int source[kLanes];  // the lane with row 0 of A for each lane's block
    for (int l = 0; l < kLanes; ++l) source[l] = block_of_a(in, l / 4) * 4;
    for (int r = 0; r < 4; ++r) {
      u32* d = w.vgpr[destination + r];
      const u32* from = c[r];
      for (int l = 0; l < kLanes; ++l) {
        if constexpr (is_integer(A)) {
          u32 sum = from[l];
          for (int k = 0; k < K; ++k) {
            sum += static_cast<u32>(a.value[k][source[l] + r]) * static_cast<u32>(b.value[k][l]);
          }
          d[l] = sum;
        } else {
          float sum = as_f32(from[l]);
          for (int k = 0; k < K; ++k) sum = __builtin_fmaf(a.value[k][source[l] + r], b.value[k][l], sum);
          d[l] = bits_of(sum);
        }
      }
    }
  } else {
    multiply_blocks<F, M, Blocks>(w, in, a.value[0], b.value[0], F::kOffsets, c);
  }
}

// f64: rows of D go to the lanes in another order than with 32 bits: row 4 * r + lane / 16 in register pair r, or one
// row of each block in 4 lanes. The bits of blgp are neg: they negate A, B, C.
template <int M, int Blocks>
void mfma_f64(Wave& w, const Instruction& in) {
  constexpr int kK = 4, kPairs = M == 4 ? 1 : 4;
  const auto number = [&w](const Operand& o, int lane) {
    return as_f64(w.vgpr[o.reg][lane] | static_cast<u64>(w.vgpr[o.reg + 1][lane]) << 32);
  };
  double a[kLanes], b[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    a[l] = number(in.operand[1], l);
    b[l] = number(in.operand[2], l);
    if (in.blgp & 1) a[l] = -a[l];
    if (in.blgp & 2) b[l] = -b[l];
  }
  const u16 destination = in.operand[0].reg;
  const AccumulatorRows<2 * kPairs, true> c(w, in.operand[3], destination);
  for (int p = 0; p < kPairs; ++p) {
    for (int l = 0; l < kLanes; ++l) {
      const int row = 4 * p + l / 16, first = M == 4 ? l / 4 % 4 * 4 : 0;
      double sum = as_f64(c[2 * p][l] | static_cast<u64>(c[2 * p + 1][l]) << 32);
      if (in.blgp & 4) sum = -sum;
      for (int k = 0; k < kK; ++k) {
        sum = __builtin_fma(a[16 * k + first + (M == 4 ? l / 16 : row)], b[16 * k + first + l % M], sum);
      }
      const u64 bits = bits_of(sum);
      w.vgpr[destination + 2 * p][l] = static_cast<u32>(bits);
      w.vgpr[destination + 2 * p + 1][l] = static_cast<u32>(bits >> 32);
    }
  }
}

// --- binding ---------------------------------------------------------------------------------------------------------
// Clocks one SIMD's matrix core is busy: AMD matrix instruction calculator ("execution cycles"), for gfx950 LLVM's
// scheduling model (4 clocks a pass).
constexpr u16 cycles_of(int m, int blocks, bool full_precision, int cdna) {
  if (m == 4) return 8;
  const bool half_rate = blocks > 1 || full_precision || cdna < 3;
  return static_cast<u16>((m == 32 ? 32 : 16) * (half_rate ? 2 : 1));
}

std::string refuse_modifiers(const Instruction& in, int blocks, bool lane_patterns) {
  if (in.neg_lo || in.neg_hi) return "neg is only for f64";
  if (in.cbsz > 4 || 1 << in.cbsz > blocks) return "cbsz is larger than the number of blocks";
  if (in.abid >= 1 << in.cbsz) return "abid names a block that cbsz does not broadcast";
  if (in.blgp && !lane_patterns) return "this form has no blgp";
  return {};
}

template <Element A, Element B, int M, int K, int Blocks, bool LowRate>
std::string bind_mfma(Instruction& in, const Target& target) {
  constexpr bool kFull = A == Element::f32;
  in.cycles = cycles_of(M, Blocks, kFull, target.cdna);
  constexpr bool k16Bit = A == Element::f16 || A == Element::bf16;
  if constexpr (k16Bit) {
    if (target.flushes_f16_matrix) in.execute = mfma<A, B, M, K, Blocks, LowRate, true>;
  }
  constexpr auto fnuz = [](Element type) { return type == Element::fp8 ? Element::fp8_fnuz : Element::bf8_fnuz; };
  if constexpr (A == Element::fp8 || A == Element::bf8) {
    if (target.cdna == 3) in.execute = mfma<fnuz(A), fnuz(B), M, K, Blocks, LowRate, false>;
  }
  return refuse_modifiers(in, Blocks, target.cdna < 3 || Blocks > 1 || kFull);
}

template <int M>
std::string bind_mfma_f64(Instruction& in, const Target& target) {
  in.cycles = M == 4 ? 16 : target.cdna >= 4 ? 64 : 32;
  if (in.cbsz || in.abid || in.neg_lo || in.neg_hi) return "f64 forms have no cbsz, abid, neg_lo, neg_hi";
  // Documented as neg from gfx942 on.
  if (in.blgp && target.cdna < 3) return "what blgp does to f64 is not documented for this target";
  return {};
}

template <Element A, Element B, int M, int K, int Blocks = 1, bool LowRate = false>
constexpr Opcode row(const char* name) {
  return {name,
          mfma<A, B, M, K, Blocks, LowRate, false>,
          Class::matrix,
          is_integer(A) ? "x=xxu" : "x=xxf",
          kTakesMatrix,
          kIgnoresExec,
          64,
          bind_mfma<A, B, M, K, Blocks, LowRate>,
          1u << static_cast<int>(Family::gfx9)};
}
template <int M, int Blocks>
constexpr Opcode row_f64(const char* name) {
  return {name,    mfma_f64<M, Blocks>, Class::matrix,
          "x=xxd", kTakesMatrix,        kIgnoresExec,
          32,      bind_mfma_f64<M>,    1u << static_cast<int>(Family::gfx9)};
}

constexpr Element f32 = Element::f32, f16e = Element::f16, bf16 = Element::bf16, fp8 = Element::fp8, bf8 = Element::bf8,
                  int8 = Element::i8, xf32 = Element::xf32;

// gfx908 and gfx90a spell forms without separators; gfx942 on separates the type and names the number of blocks.
constexpr Opcode kDense[] = {
    row<f32, f32, 32, 1, 2>("v_mfma_f32_32x32x1f32"),
    row<f32, f32, 32, 1, 2>("v_mfma_f32_32x32x1_2b_f32"),
    row<f32, f32, 16, 1, 4>("v_mfma_f32_16x16x1f32"),
    row<f32, f32, 16, 1, 4>("v_mfma_f32_16x16x1_4b_f32"),
    row<f32, f32, 4, 1, 16>("v_mfma_f32_4x4x1f32"),
    row<f32, f32, 4, 1, 16>("v_mfma_f32_4x4x1_16b_f32"),
    row<f32, f32, 32, 2>("v_mfma_f32_32x32x2f32"),
    row<f32, f32, 32, 2>("v_mfma_f32_32x32x2_f32"),
    row<f32, f32, 16, 4>("v_mfma_f32_16x16x4f32"),
    row<f32, f32, 16, 4>("v_mfma_f32_16x16x4_f32"),
    row<xf32, xf32, 32, 4>("v_mfma_f32_32x32x4_xf32"),
    row<xf32, xf32, 16, 8>("v_mfma_f32_16x16x8_xf32"),
    row<f16e, f16e, 32, 4, 2>("v_mfma_f32_32x32x4f16"),
    row<f16e, f16e, 32, 4, 2>("v_mfma_f32_32x32x4_2b_f16"),
    row<f16e, f16e, 16, 4, 4>("v_mfma_f32_16x16x4f16"),
    row<f16e, f16e, 16, 4, 4>("v_mfma_f32_16x16x4_4b_f16"),
    row<f16e, f16e, 4, 4, 16>("v_mfma_f32_4x4x4f16"),
    row<f16e, f16e, 4, 4, 16>("v_mfma_f32_4x4x4_16b_f16"),
    row<f16e, f16e, 32, 8>("v_mfma_f32_32x32x8f16"),
    row<f16e, f16e, 32, 8>("v_mfma_f32_32x32x8_f16"),
    row<f16e, f16e, 16, 16>("v_mfma_f32_16x16x16f16"),
    row<f16e, f16e, 16, 16>("v_mfma_f32_16x16x16_f16"),
    row<f16e, f16e, 32, 16>("v_mfma_f32_32x32x16_f16"),
    row<f16e, f16e, 16, 32>("v_mfma_f32_16x16x32_f16"),
    row<bf16, bf16, 32, 2, 2, true>("v_mfma_f32_32x32x2bf16"),
    row<bf16, bf16, 16, 2, 4, true>("v_mfma_f32_16x16x2bf16"),
    row<bf16, bf16, 4, 2, 16, true>("v_mfma_f32_4x4x2bf16"),
    row<bf16, bf16, 32, 4, 1, true>("v_mfma_f32_32x32x4bf16"),
    row<bf16, bf16, 16, 8, 1, true>("v_mfma_f32_16x16x8bf16"),
    row<bf16, bf16, 32, 4, 2>("v_mfma_f32_32x32x4bf16_1k"),
    row<bf16, bf16, 32, 4, 2>("v_mfma_f32_32x32x4_2b_bf16"),
    row<bf16, bf16, 16, 4, 4>("v_mfma_f32_16x16x4bf16_1k"),
    row<bf16, bf16, 16, 4, 4>("v_mfma_f32_16x16x4_4b_bf16"),
    row<bf16, bf16, 4, 4, 16>("v_mfma_f32_4x4x4bf16_1k"),
    row<bf16, bf16, 4, 4, 16>("v_mfma_f32_4x4x4_16b_bf16"),
    row<bf16, bf16, 32, 8>("v_mfma_f32_32x32x8bf16_1k"),
    row<bf16, bf16, 32, 8>("v_mfma_f32_32x32x8_bf16"),
    row<bf16, bf16, 16, 16>("v_mfma_f32_16x16x16bf16_1k"),
    row<bf16, bf16, 16, 16>("v_mfma_f32_16x16x16_bf16"),
    row<bf16, bf16, 32, 16>("v_mfma_f32_32x32x16_bf16"),
    row<bf16, bf16, 16, 32>("v_mfma_f32_16x16x32_bf16"),
    row<fp8, fp8, 32, 16>("v_mfma_f32_32x32x16_fp8_fp8"),
    row<fp8, bf8, 32, 16>("v_mfma_f32_32x32x16_fp8_bf8"),
    row<bf8, fp8, 32, 16>("v_mfma_f32_32x32x16_bf8_fp8"),
    row<bf8, bf8, 32, 16>("v_mfma_f32_32x32x16_bf8_bf8"),
    row<fp8, fp8, 16, 32>("v_mfma_f32_16x16x32_fp8_fp8"),
    row<fp8, bf8, 16, 32>("v_mfma_f32_16x16x32_fp8_bf8"),
    row<bf8, fp8, 16, 32>("v_mfma_f32_16x16x32_bf8_fp8"),
    row<bf8, bf8, 16, 32>("v_mfma_f32_16x16x32_bf8_bf8"),
    row<int8, int8, 32, 4, 2>("v_mfma_i32_32x32x4i8"),
    row<int8, int8, 32, 4, 2>("v_mfma_i32_32x32x4_2b_i8"),
    row<int8, int8, 16, 4, 4>("v_mfma_i32_16x16x4i8"),
    row<int8, int8, 16, 4, 4>("v_mfma_i32_16x16x4_4b_i8"),
    row<int8, int8, 4, 4, 16>("v_mfma_i32_4x4x4i8"),
    row<int8, int8, 4, 4, 16>("v_mfma_i32_4x4x4_16b_i8"),
    row<int8, int8, 32, 8>("v_mfma_i32_32x32x8i8"),
    row<int8, int8, 16, 16>("v_mfma_i32_16x16x16i8"),
    row<int8, int8, 32, 16>("v_mfma_i32_32x32x16_i8"),
    row<int8, int8, 16, 32>("v_mfma_i32_16x16x32_i8"),
    row<int8, int8, 32, 32>("v_mfma_i32_32x32x32_i8"),
    row<int8, int8, 16, 64>("v_mfma_i32_16x16x64_i8"),
    row_f64<16, 1>("v_mfma_f64_16x16x4f64"),
    row_f64<16, 1>("v_mfma_f64_16x16x4_f64"),
    row_f64<4, 4>("v_mfma_f64_4x4x4f64"),
    row_f64<4, 4>("v_mfma_f64_4x4x4_4b_f64"),
};

}  // namespace

std::span<const Opcode> dense_mfma_opcodes() { return kDense; }

EMU_MATRIX_END

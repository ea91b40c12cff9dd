// Sparse matrix multiply-accumulate of gfx942 and gfx950: D += A * B where of every four neighbours in a row of A two
// are kept. AMD "Instinct MI300 ISA", chapter 7.
#include "isa/matrix_rows.h"

EMU_MATRIX_BEGIN
std::span<const Opcode> sparse_mfma_opcodes();

namespace {
template <Element A, Element B, int M, int K>
void smfmac(Wave& w, const Instruction& in) {
  constexpr int kGroups = kLanes / M;
  using Number = std::conditional_t<is_integer(A), i32, float>;
  Converted<Number, K / 2 / kGroups> a;
  Converted<Number, K / kGroups> b;
  convert<A>(&w.vgpr[in.source(0).reg], a);
  convert<B>(&w.vgpr[in.source(1).reg], b);
  // ABID names the set of indices, unless CBSZ says to take the first.
  const int shift = in.cbsz ? 0 : in.abid * (K / kGroups);
  const u32* indices = w.vgpr[in.source(2).reg];
  for (int i = 0; i < M; ++i) {
    u32* d = w.vgpr[in.operand[0].reg + register_of_row<M>(i)] + lane_of_row<M>(i);
    multiply_sparse_row<M, kGroups>(a, b, indices, shift, i, d);
  }
}

template <Element A, Element B, int M, int K>
std::string bind_smfmac(Instruction& in, const Target& target) {
  in.cycles = M == 32 ? 32 : 16;
  constexpr auto fnuz = [](Element type) { return type == Element::fp8 ? Element::fp8_fnuz : Element::bf8_fnuz; };
  if constexpr (A == Element::fp8 || A == Element::bf8) {
    if (target.cdna == 3) in.execute = smfmac<fnuz(A), fnuz(B), M, K>;
  }
  if (in.blgp || in.neg_lo || in.neg_hi) return "sparse forms have no blgp and no neg";
  // An index of two bits for each of the lane's elements of A.
  constexpr int kSets = 32 / (K * M / kLanes);
  if (!in.cbsz && in.abid >= kSets) return "abid names a set of indices that is not there";
  return {};
}

template <Element A, Element B, int M, int K>
constexpr Opcode row(const char* name) {
  return {name,
          smfmac<A, B, M, K>,
          Class::matrix,
          "x=xxu",
          kTakesMatrix,
          kIgnoresExec | kReadsDest,
          32,
          bind_smfmac<A, B, M, K>,
          1u << static_cast<int>(Family::gfx9)};
}

constexpr Element half = Element::f16, bf16 = Element::bf16, fp8 = Element::fp8, bf8 = Element::bf8, int8 = Element::i8;

constexpr Opcode kSparse[] = {
    row<half, half, 16, 32>("v_smfmac_f32_16x16x32_f16"),     row<half, half, 32, 16>("v_smfmac_f32_32x32x16_f16"),
    row<bf16, bf16, 16, 32>("v_smfmac_f32_16x16x32_bf16"),    row<bf16, bf16, 32, 16>("v_smfmac_f32_32x32x16_bf16"),
    row<half, half, 16, 64>("v_smfmac_f32_16x16x64_f16"),     row<half, half, 32, 32>("v_smfmac_f32_32x32x32_f16"),
    row<bf16, bf16, 16, 64>("v_smfmac_f32_16x16x64_bf16"),    row<bf16, bf16, 32, 32>("v_smfmac_f32_32x32x32_bf16"),
    row<fp8, fp8, 16, 64>("v_smfmac_f32_16x16x64_fp8_fp8"),   row<fp8, bf8, 16, 64>("v_smfmac_f32_16x16x64_fp8_bf8"),
    row<bf8, fp8, 16, 64>("v_smfmac_f32_16x16x64_bf8_fp8"),   row<bf8, bf8, 16, 64>("v_smfmac_f32_16x16x64_bf8_bf8"),
    row<fp8, fp8, 32, 32>("v_smfmac_f32_32x32x32_fp8_fp8"),   row<fp8, bf8, 32, 32>("v_smfmac_f32_32x32x32_fp8_bf8"),
    row<bf8, fp8, 32, 32>("v_smfmac_f32_32x32x32_bf8_fp8"),   row<bf8, bf8, 32, 32>("v_smfmac_f32_32x32x32_bf8_bf8"),
    row<fp8, fp8, 16, 128>("v_smfmac_f32_16x16x128_fp8_fp8"), row<fp8, bf8, 16, 128>("v_smfmac_f32_16x16x128_fp8_bf8"),
    row<bf8, fp8, 16, 128>("v_smfmac_f32_16x16x128_bf8_fp8"), row<bf8, bf8, 16, 128>("v_smfmac_f32_16x16x128_bf8_bf8"),
    row<fp8, fp8, 32, 64>("v_smfmac_f32_32x32x64_fp8_fp8"),   row<fp8, bf8, 32, 64>("v_smfmac_f32_32x32x64_fp8_bf8"),
    row<bf8, fp8, 32, 64>("v_smfmac_f32_32x32x64_bf8_fp8"),   row<bf8, bf8, 32, 64>("v_smfmac_f32_32x32x64_bf8_bf8"),
    row<int8, int8, 16, 64>("v_smfmac_i32_16x16x64_i8"),      row<int8, int8, 32, 32>("v_smfmac_i32_32x32x32_i8"),
    row<int8, int8, 16, 128>("v_smfmac_i32_16x16x128_i8"),    row<int8, int8, 32, 64>("v_smfmac_i32_32x32x64_i8"),
};

}  // namespace

std::span<const Opcode> sparse_mfma_opcodes() { return kSparse; }

EMU_MATRIX_END

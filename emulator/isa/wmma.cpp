// Wave matrix multiply-accumulate of RDNA: 16 x 16 results. EXEC is ignored.
// gfx11 (AMD "RDNA3 ISA", chapter 7): every 16 lanes hold all of A and of B. gfx12 ("RDNA4 ISA", chapter 7): the
// lanes share them; also fp8 and bf8, and the sparse SWMMAC. How the hardware rounds sums is not published: here they
// are a chain of f32 fma, rounded once more where the result is 16 bits wide.
#include <algorithm>
#include <limits>

#include "core/report.h"
#include "isa/matrix_rows.h"

EMU_MATRIX_BEGIN
std::span<const Opcode> all_wmma_opcodes();

namespace {
constexpr int kSide = 16;
enum class Out : u8 { f32, f16, bf16, i32 };

// --- where D and C are -----------------------------------------------------------------------------------------------
struct Place {
  int reg, lane, half;
};
// Row i of the result starts at lane `lane` of register `reg`; 16-bit results of gfx12 are in halves.
template <Family Arch, bool Is16Bit>
Place place_of_row(int i, int lanes) {
  if constexpr (Arch == Family::gfx11) {
    const int rows = lanes / kSide;  // in one register
    return {i / rows, i % rows * kSide, 0};
  } else {
    return Is16Bit ? Place{i / 2 % 4, i / 8 * kSide, i % 2} : Place{i % 8, i / 8 * kSide, 0};
  }
}

using Tile = u32[kSide][kSide];

u32 with_sign_modifiers(u32 value, const Instruction& in, u32 sign) {
  if (in.neg_hi & 4) value &= ~sign;  // |C|
  if (in.neg_lo & 4) value ^= sign;
  return value;
}

template <Out Result>
float widen(u32 half) {
  return Result == Out::f16 ? f32_of_f16(half & 0xffff) : f32_of_bf16(half & 0xffff);
}

// Rows of C as f32 or i32, and rows to put the sums in: straight in the registers where they are kept that way, else in
// `tile`.
template <Family Arch, Out Result>
struct Accumulator {
  static constexpr bool kIs16Bit = Result == Out::f16 || Result == Out::bf16;
  const u32* c[kSide];
  u32* d[kSide];
  alignas(64) Tile tile;
  alignas(64) u32 copy[8][kLanes];

  // `source`: C, or the destination again for sparse instructions. `from_zero`: C is to be added by finish().
  Accumulator(Wave& w, const Instruction& in, const Operand& source, bool from_zero) {
    const bool modified = Result != Out::i32 && ((in.neg_lo | in.neg_hi) & 4);
    const bool direct = !kIs16Bit && !modified && !from_zero && source.is_vgpr();
    const u32(*registers)[kLanes] = source.is_vgpr() ? &w.vgpr[source.reg] : nullptr;
    const int distance = static_cast<int>(source.reg) - static_cast<int>(in.operand[0].reg);
    if (direct && distance != 0 && std::abs(distance) < 8) {  // D overlaps C in part
      std::memcpy(copy, registers, sizeof(copy));
      registers = copy;
    }
    for (int i = 0; i < kSide; ++i) {
      const Place place = place_of_row<Arch, kIs16Bit>(i, w.lanes);
      if (direct) {
        c[i] = registers[place.reg] + place.lane;
      } else {
        const int shift = half_of(in, place) * 16;
        for (int j = 0; j < kSide; ++j) {
          const u32 word = registers ? registers[place.reg][place.lane + j] >> (kIs16Bit ? shift : 0)
                                     : static_cast<u32>(source.constant);
          tile[i][j] = kIs16Bit   ? bits_of(widen<Result>(with_sign_modifiers(word, in, 0x8000)))
                       : modified ? with_sign_modifiers(word, in, 0x80000000)
                                  : word;
          if (from_zero) tile[i][j] = 0;
        }
        c[i] = tile[i];
      }
      d[i] = kIs16Bit || from_zero ? tile[i] : w.vgpr[in.operand[0].reg + place.reg] + place.lane;
    }
  }

  // gfx11 writes 16-bit results to the halves op_sel names and leaves the others.
  static int half_of(const Instruction& in, const Place& place) {
    return Arch == Family::gfx11 ? in.op_sel >> 2 & 1 : place.half;
  }
  void store_halves(Wave& w, const Instruction& in) {
    for (int i = 0; i < kSide; ++i) {
      const Place place = place_of_row<Arch, true>(i, w.lanes);
      const int shift = half_of(in, place) * 16;
      u32* row = w.vgpr[in.operand[0].reg + place.reg] + place.lane;
      for (int j = 0; j < kSide; ++j) {
        const u32 half = Result == Out::f16 ? f16_of_f32(as_f32(tile[i][j])) : bf16_of_f32(as_f32(tile[i][j]));
        row[j] = (row[j] & ~(0xffffu << shift)) | half << shift;
      }
    }
  }
  // clamp: the sum with C does not wrap around.
  void add_saturating(Wave& w, const Instruction& in, const Operand& source) {
    for (int i = 0; i < kSide; ++i) {
      const Place place = place_of_row<Arch, false>(i, w.lanes);
      for (int j = 0; j < kSide; ++j) {
        const u32 start =
            source.is_vgpr() ? w.vgpr[source.reg + place.reg][place.lane + j] : static_cast<u32>(source.constant);
        const i64 sum = static_cast<i64>(static_cast<i32>(start)) + static_cast<i32>(tile[i][j]);
        tile[i][j] = static_cast<u32>(
            static_cast<i32>(std::clamp<i64>(sum, std::numeric_limits<i32>::min(), std::numeric_limits<i32>::max())));
      }
    }
    for (int i = 0; i < kSide; ++i) {
      const Place place = place_of_row<Arch, false>(i, w.lanes);
      std::memcpy(w.vgpr[in.operand[0].reg + place.reg] + place.lane, tile[i], sizeof(tile[i]));
    }
  }
  void finish(Wave& w, const Instruction& in, const Operand& source, bool from_zero) {
    if constexpr (kIs16Bit) {
      store_halves(w, in);
    } else if (from_zero) {
      add_saturating(w, in, source);
    }
  }
};

// --- inputs ----------------------------------------------------------------------------------------------------------
// 16-bit floats: neg_lo negates elements in the low halves of registers, neg_hi those in the high halves.
template <int PerLane>
void negate_halves(Converted<float, PerLane>& x, const Instruction& in, int which) {
  for (int e = 0; e < PerLane; ++e) {
    if (!((e % 2 ? in.neg_hi : in.neg_lo) >> which & 1)) continue;
    for (float& value : x.value[e]) value = -value;
  }
}
template <Element Type, int Lanes, class T, int PerLane>
void read_input(const Wave& w, const Instruction& in, int which, Converted<T, PerLane>& out) {
  const u32(*registers)[kLanes] = &w.vgpr[in.source(which).reg];
  if constexpr (is_integer(Type)) {
    constexpr bool kBytes = size_of(Type) == 8;
    if (in.neg_lo >> which & 1) {  // signed
      convert<kBytes ? Element::i8 : Element::i4, Lanes>(registers, out);
    } else {
      convert<kBytes ? Element::u8 : Element::u4, Lanes>(registers, out);
    }
  } else {
    convert<Type, Lanes>(registers, out);
    if (size_of(Type) == 16 && ((in.neg_lo | in.neg_hi) >> which & 1)) negate_halves(out, in, which);
  }
}

void check_replication(Wave& w, const Instruction& in) {
  for (int which = 0; which < 2; ++which) {
    for (int r = 0; r < in.source(which).width; ++r) {
      const int reg = in.source(which).reg + r;
      for (int lane = kSide; lane < w.lanes; ++lane) {
        if (w.vgpr[reg][lane] == w.vgpr[reg][lane % kSide]) continue;
        w.group->log->add(Check::replication, w, in,
                          "v" + std::to_string(reg) + " of WMMA's " + (which ? "B" : "A") + " differs in lanes " +
                              std::to_string(lane) + " and " + std::to_string(lane % kSide),
                          lane);
        break;
      }
    }
  }
}

// --- instructions ----------------------------------------------------------------------------------------------------
// Lanes that hold different parts of A, and neighbours in k that a lane holds before the next 16 lanes go on.
template <Family Arch, Element Type, int K>
struct InputLayout {
  static constexpr int kGroups = Arch == Family::gfx11 ? 1 : 2;
  static constexpr int kPerLane = K / kGroups;
  static constexpr int kChunk = Arch == Family::gfx12 && size_of(Type) == 16 ? 4 : kPerLane;
  static constexpr std::array<int, K> kOffsets = k_offsets<K, kGroups, kSide, kChunk>();
};

template <Family Arch, Element A, Element B, Out Result, int K>
void wmma(Wave& w, const Instruction& in) {
  using Layout = InputLayout<Arch, A, K>;
  using Number = std::conditional_t<is_integer(A), i32, float>;
  constexpr int kInputLanes = Layout::kGroups * kSide;
  if (Arch == Family::gfx11 && w.checker) check_replication(w, in);
  Converted<Number, Layout::kPerLane> a, b;
  read_input<A, kInputLanes>(w, in, 0, a);
  read_input<B, kInputLanes>(w, in, 1, b);
  const bool saturate = is_integer(A) && in.clamp;
  Accumulator<Arch, Result> sums(w, in, in.source(2), saturate);
  constexpr int kRows = kTileRows<kSide>;
  for (int i = 0; i < kSide; i += kRows) {
    const u32* c[kRows];
    u32* d[kRows];
    std::copy(sums.c + i, sums.c + i + kRows, c);
    std::copy(sums.d + i, sums.d + i + kRows, d);
    multiply_tile<K, kSide>(a.value[0] + i, b.value[0], Layout::kOffsets.data(), Layout::kOffsets.data(), c, d);
  }
  sums.finish(w, in, in.source(2), saturate);
}

// D += A * B, A sparse; the third source has the indices, of which index_key names a set.
template <Element A, Element B, Out Result, int K>
void swmmac(Wave& w, const Instruction& in) {
  using Number = std::conditional_t<is_integer(A), i32, float>;
  Converted<Number, K / 4> a;
  Converted<Number, K / 2> b;
  read_input<A, 2 * kSide>(w, in, 0, a);
  read_input<B, 2 * kSide>(w, in, 1, b);
  const bool saturate = is_integer(A) && in.clamp;
  Accumulator<Family::gfx12, Result> sums(w, in, in.operand[0], saturate);
  for (int i = 0; i < kSide; ++i) {
    if (sums.c[i] != sums.d[i]) std::memcpy(sums.d[i], sums.c[i], kSide * sizeof(u32));
    multiply_sparse_row<kSide, 2>(a, b, w.vgpr[in.source(2).reg], in.index_key * (K / 2), i, sums.d[i]);
  }
  sums.finish(w, in, in.operand[0], saturate);
}

// --- binding ---------------------------------------------------------------------------------------------------------
template <Element Type>
std::string refuse_modifiers(const Instruction& in, bool has_c) {
  if ((in.op_sel_hi & 7) != 7) return "op_sel_hi has no meaning here";
  constexpr int kInputs = is_integer(Type) || size_of(Type) == 16 ? 3 : 0;  // that take neg
  const int accumulator = has_c && !is_integer(Type) ? 4 : 0;
  if ((in.neg_lo & ~(kInputs | accumulator)) || (in.neg_hi & ~((is_integer(Type) ? 0 : kInputs) | accumulator))) {
    return "neg on an operand that does not take it";
  }
  return {};
}

// Clocks: AMD matrix instruction calculator.
template <Family Arch, Element Type, Out Result, int K>
std::string bind_wmma(Instruction& in, const Target&) {
  in.cycles = Arch == Family::gfx11 ? (size_of(Type) == 4 ? 16 : 32) : (size_of(Type) == 16 ? 16 : 8);
  constexpr bool kIs16Bit = Result == Out::f16 || Result == Out::bf16;
  if (in.op_sel & ~(Arch == Family::gfx11 && kIs16Bit ? 4 : 0)) return "op_sel has no meaning here";
  if (Arch == Family::gfx12 && in.operand[0].width != (kIs16Bit ? 4 : 8)) return "only the form of wave32 is known";
  return refuse_modifiers<Type>(in, true);
}
template <Element Type, Out Result, int K>
std::string bind_swmmac(Instruction& in, const Target&) {
  in.cycles = size_of(Type) == 16 ? 16 : 8;
  constexpr bool kIs16Bit = Result == Out::f16 || Result == Out::bf16;
  if (in.op_sel || in.cbsz || in.abid || in.blgp) return "op_sel, cbsz, abid, blgp have no meaning here";
  if (in.index_key >= 32 / (K / 2)) return "index_key names a set of indices that is not there";
  if (in.operand[0].width != (kIs16Bit ? 4 : 8)) return "only the form of wave32 is known";
  return refuse_modifiers<Type>(in, false);
}

constexpr u32 family_bit(Family family) { return 1u << static_cast<int>(family); }
constexpr const char* signature_of(Out result) {
  return result == Out::f32 ? "x=xxf" : result == Out::f16 ? "x=xxh" : result == Out::bf16 ? "x=xxb" : "x=xxu";
}
template <Element A>
constexpr u32 modifiers_of() {
  return is_integer(A) ? kTakesPacked | kTakesClamp : u32{kTakesPacked};
}

template <Family Arch, Element A, Element B, Out Result, int K = 16>
constexpr Opcode row(const char* name) {
  return {name, wmma<Arch, A, B, Result, K>,   Class::matrix,   signature_of(Result), modifiers_of<A>(), kIgnoresExec,
          32,   bind_wmma<Arch, A, Result, K>, family_bit(Arch)};
}
template <Element A, Element B, Out Result, int K = 32>
constexpr Opcode sparse_row(const char* name) {
  return {name,    swmmac<A, B, Result, K>,          Class::matrix,
          "x=xxu", modifiers_of<A>() | kTakesMatrix, kIgnoresExec | kReadsDest,
          16,      bind_swmmac<A, Result, K>,        family_bit(Family::gfx12)};
}

constexpr Family gfx11 = Family::gfx11, gfx12 = Family::gfx12;
constexpr Element half = Element::f16, bf16 = Element::bf16, fp8 = Element::fp8, bf8 = Element::bf8, iu8 = Element::u8,
                  iu4 = Element::u4;

constexpr Opcode kRows[] = {
    row<gfx11, half, half, Out::f32>("v_wmma_f32_16x16x16_f16"),
    row<gfx11, bf16, bf16, Out::f32>("v_wmma_f32_16x16x16_bf16"),
    row<gfx11, half, half, Out::f16>("v_wmma_f16_16x16x16_f16"),
    row<gfx11, bf16, bf16, Out::bf16>("v_wmma_bf16_16x16x16_bf16"),
    row<gfx11, iu8, iu8, Out::i32>("v_wmma_i32_16x16x16_iu8"),
    row<gfx11, iu4, iu4, Out::i32>("v_wmma_i32_16x16x16_iu4"),
    row<gfx12, half, half, Out::f32>("v_wmma_f32_16x16x16_f16"),
    row<gfx12, bf16, bf16, Out::f32>("v_wmma_f32_16x16x16_bf16"),
    row<gfx12, half, half, Out::f16>("v_wmma_f16_16x16x16_f16"),
    row<gfx12, bf16, bf16, Out::bf16>("v_wmma_bf16_16x16x16_bf16"),
    row<gfx12, iu8, iu8, Out::i32>("v_wmma_i32_16x16x16_iu8"),
    row<gfx12, iu4, iu4, Out::i32>("v_wmma_i32_16x16x16_iu4"),
    row<gfx12, iu4, iu4, Out::i32, 32>("v_wmma_i32_16x16x32_iu4"),
    row<gfx12, fp8, fp8, Out::f32>("v_wmma_f32_16x16x16_fp8_fp8"),
    row<gfx12, fp8, bf8, Out::f32>("v_wmma_f32_16x16x16_fp8_bf8"),
    row<gfx12, bf8, fp8, Out::f32>("v_wmma_f32_16x16x16_bf8_fp8"),
    row<gfx12, bf8, bf8, Out::f32>("v_wmma_f32_16x16x16_bf8_bf8"),
    sparse_row<half, half, Out::f32>("v_swmmac_f32_16x16x32_f16"),
    sparse_row<bf16, bf16, Out::f32>("v_swmmac_f32_16x16x32_bf16"),
    sparse_row<half, half, Out::f16>("v_swmmac_f16_16x16x32_f16"),
    sparse_row<bf16, bf16, Out::bf16>("v_swmmac_bf16_16x16x32_bf16"),
    sparse_row<iu8, iu8, Out::i32>("v_swmmac_i32_16x16x32_iu8"),
    sparse_row<iu4, iu4, Out::i32>("v_swmmac_i32_16x16x32_iu4"),
    sparse_row<iu4, iu4, Out::i32, 64>("v_swmmac_i32_16x16x64_iu4"),
    sparse_row<fp8, fp8, Out::f32>("v_swmmac_f32_16x16x32_fp8_fp8"),
    sparse_row<fp8, bf8, Out::f32>("v_swmmac_f32_16x16x32_fp8_bf8"),
    sparse_row<bf8, fp8, Out::f32>("v_swmmac_f32_16x16x32_bf8_fp8"),
    sparse_row<bf8, bf8, Out::f32>("v_swmmac_f32_16x16x32_bf8_bf8"),
};

}  // namespace

std::span<const Opcode> all_wmma_opcodes() { return kRows; }

EMU_MATRIX_END

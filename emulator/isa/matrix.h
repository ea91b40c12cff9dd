// What the matrix instructions share: converting operands to rows of numbers, and multiplying those rows.
//
// Every matrix instruction keeps element e of lane l of an input in the same place of l's registers: bits
// [e * size, (e + 1) * size) of the operand. So converting register by register gives rows [e][lane]; which (row, lane)
// is A[i][k] is then a matter of addresses alone. Register layouts: AMD "Instinct MI300 ISA", chapter 7, and the same
// chapter of the RDNA3 and RDNA4 ISA documents; tests/emulator/matrix_layouts.txt restates them for the tests.
#pragma once

#include <array>
#include <atomic>
#include <span>
#include <type_traits>

#include "core/opcode.h"
#include "core/wave.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define EMU_MATRIX_AVX2 1
#else
#define EMU_MATRIX_AVX2 0
#endif

namespace emu {

// How sums of products are rounded. `chain`: one fused multiply-add after the other in f32, k ascending: fast, and
// within the rounding of the hardware. `hardware`: bit for bit what the hardware does where that has been published
// (see mfma_numerics.cpp for which forms), the chain elsewhere. For the whole process; instructions already executing
// may still use the old mode.
enum class MatrixNumerics : u8 { chain, hardware };
void set_matrix_numerics(MatrixNumerics numerics);
extern std::atomic<MatrixNumerics> matrix_numerics_mode;
inline MatrixNumerics matrix_numerics() { return matrix_numerics_mode.load(std::memory_order_relaxed); }

namespace matrix {

// fp8, bf8: OCP E4M3 and E5M2; _fnuz: gfx942's. fp6: E2M3, bf6: E3M2, fp4: E2M1. xf32: f32 of which 10 bits of
// fraction are used.
enum class Element : u8 { f64, f32, xf32, f16, bf16, fp8, bf8, fp8_fnuz, bf8_fnuz, fp6, bf6, fp4, i8, u8, i4, u4 };

constexpr int size_of(Element type) {
  switch (type) {
    case Element::f64:
      return 64;
    case Element::f32:
    case Element::xf32:
      return 32;
    case Element::f16:
    case Element::bf16:
      return 16;
    case Element::fp6:
    case Element::bf6:
      return 6;
    case Element::fp4:
    case Element::i4:
    case Element::u4:
      return 4;
    default:
      return 8;
  }
}
constexpr bool is_integer(Element type) {
  return type == Element::i8 || type == Element::u8 || type == Element::i4 || type == Element::u4;
}

// --- eight numbers at a time -----------------------------------------------------------------------------------------
#if EMU_MATRIX_AVX2
struct Floats8 {
  __m256 v;
  static Floats8 load(const void* from) { return {_mm256_loadu_ps(static_cast<const float*>(from))}; }
  static Floats8 all(float value) { return {_mm256_set1_ps(value)}; }
  void store(void* to) const { _mm256_storeu_ps(static_cast<float*>(to), v); }
  void add_product(Floats8 a, Floats8 b) { v = _mm256_fmadd_ps(a.v, b.v, v); }
};
// Integers wrap around.
struct Ints8 {
  __m256i v;
  static Ints8 load(const void* from) { return {_mm256_loadu_si256(static_cast<const __m256i*>(from))}; }
  static Ints8 all(i32 value) { return {_mm256_set1_epi32(value)}; }
  void store(void* to) const { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
  void add_product(Ints8 a, Ints8 b) { v = _mm256_add_epi32(_mm256_mullo_epi32(a.v, b.v), v); }
};
#else
template <class T>
struct Numbers8 {
  T v[8];
  static Numbers8 load(const void* from) {
    Numbers8 result;
    std::memcpy(result.v, from, sizeof(result.v));
    return result;
  }
  static Numbers8 all(T value) {
    Numbers8 result;
    for (T& lane : result.v) lane = value;
    return result;
  }
  void store(void* to) const { std::memcpy(to, v, sizeof(v)); }
  void add_product(Numbers8 a, Numbers8 b) {
    for (int l = 0; l < 8; ++l) {
      if constexpr (std::is_same_v<T, float>) {
        v[l] = __builtin_fmaf(a.v[l], b.v[l], v[l]);
      } else {  // wraps around
        v[l] = static_cast<T>(static_cast<u32>(a.v[l]) * static_cast<u32>(b.v[l]) + static_cast<u32>(v[l]));
      }
    }
  }
};
using Floats8 = Numbers8<float>;
using Ints8 = Numbers8<i32>;
#endif
template <class T>
using Vector8 = std::conditional_t<std::is_same_v<T, float>, Floats8, Ints8>;

// --- converting ------------------------------------------------------------------------------------------------------
// The low and the high halves of a row as f32. Flush: denormals become +0.
template <int Lanes, bool Flush>
inline void widen_f16(const u32* row, float* low, float* high) {
#if EMU_MATRIX_AVX2
  const __m256i low_half = _mm256_set1_epi32(0xffff);
  const auto store = [](float* to, __m128i halves) {
    __m256 x = _mm256_cvtph_ps(halves);
    if constexpr (Flush) {
      const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
      x = _mm256_and_ps(x, _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-14f), _CMP_NLT_UQ));
    }
    _mm256_storeu_ps(to, x);
  };
  for (int l = 0; l < Lanes; l += 16) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + l));
    const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + l + 8));
    // Packing works within 128-bit halves, so the result's quarters need putting in order: 0 2 1 3.
    const __m256i lows = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(_mm256_and_si256(x, low_half), _mm256_and_si256(y, low_half)), 0xd8);
    const __m256i highs =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(x, 16), _mm256_srli_epi32(y, 16)), 0xd8);
    store(low + l, _mm256_castsi256_si128(lows));
    store(low + l + 8, _mm256_extracti128_si256(lows, 1));
    store(high + l, _mm256_castsi256_si128(highs));
    store(high + l + 8, _mm256_extracti128_si256(highs, 1));
  }
#else
  const auto widen = [](u32 half) { return Flush && !(half & 0x7c00) ? 0.0f : f32_of_f16(half & 0xffff); };
  for (int l = 0; l < Lanes; ++l) {
    low[l] = widen(row[l]);
    high[l] = widen(row[l] >> 16);
  }
#endif
}

// Floats of up to 8 bits: sign, exponent, fraction.
struct SmallFloat {
  int exponent_bits, fraction_bits, bias;
};
constexpr SmallFloat small_float(Element type) {
  switch (type) {
    case Element::fp8:
      return {4, 3, 7};
    case Element::fp8_fnuz:
      return {4, 3, 8};
    case Element::bf8:
      return {5, 2, 15};
    case Element::bf8_fnuz:
      return {5, 2, 16};
    case Element::fp6:
      return {2, 3, 1};
    case Element::bf6:
      return {3, 2, 3};
    default:
      return {2, 1, 1};  // fp4
  }
}
// Without branches and tables, so that loops over it become vector code.
template <Element Type>
inline float widen_small(u32 code) {
  constexpr SmallFloat kFormat = small_float(Type);
  constexpr int kSign = kFormat.exponent_bits + kFormat.fraction_bits;
  constexpr u32 kNaN = 0x7fc00000, kInfinity = 0x7f800000;
  const u32 magnitude = code & ((1u << kSign) - 1);
  const u32 normal = (magnitude << (23 - kFormat.fraction_bits)) + (static_cast<u32>(127 - kFormat.bias) << 23);
  // Denormals count units of the smallest one: 2^(1 - bias - fraction bits).
  constexpr float kUnit = std::bit_cast<float>(static_cast<u32>(128 - kFormat.bias - kFormat.fraction_bits) << 23);
  const u32 denormal = bits_of(static_cast<float>(static_cast<i32>(magnitude)) * kUnit);
  u32 bits = magnitude >> kFormat.fraction_bits ? normal : denormal;
  if constexpr (Type == Element::fp8) bits = magnitude == 0x7f ? kNaN : bits;
  if constexpr (Type == Element::bf8) bits = magnitude > 0x7c ? kNaN : magnitude == 0x7c ? kInfinity : bits;
  if constexpr (Type == Element::fp8_fnuz || Type == Element::bf8_fnuz) bits = code == 0x80 ? kNaN : bits;
  return as_f32(bits | (code >> kSign) << 31);
}

// Rows [element of the lane][lane] of one input operand.
template <class T, int PerLane>
struct alignas(64) Converted {
  T value[PerLane][kLanes];
};

// The first `Lanes` lanes of an operand's registers. Flush: denormals of 16-bit types are taken as +0 (gfx90a).
template <Element Type, int Lanes = kLanes, bool Flush = false, class T, int PerLane>
inline void convert(const u32 (*__restrict registers)[kLanes], Converted<T, PerLane>& __restrict out) {
  constexpr int kBits = size_of(Type);
  if constexpr (Type == Element::f32 || Type == Element::xf32) {
    constexpr u32 kMask = Type == Element::xf32 ? 0xffffe000u : 0xffffffffu;
    for (int e = 0; e < PerLane; ++e) {
      for (int l = 0; l < Lanes; ++l) out.value[e][l] = as_f32(registers[e][l] & kMask);
    }
  } else if constexpr (Type == Element::f16) {
    for (int e = 0; e < PerLane; e += 2) widen_f16<Lanes, Flush>(registers[e / 2], out.value[e], out.value[e + 1]);
  } else if constexpr (Type == Element::bf16) {
    for (int e = 0; e < PerLane; e += 2) {
      for (int l = 0; l < Lanes; ++l) {
        const u32 low = registers[e / 2][l] << 16, high = registers[e / 2][l] & 0xffff0000u;
        out.value[e][l] = as_f32(Flush && !(low & 0x7f800000) ? 0 : low);
        out.value[e + 1][l] = as_f32(Flush && !(high & 0x7f800000) ? 0 : high);
      }
    }
  } else if constexpr (is_integer(Type)) {
    constexpr bool kSigned = Type == Element::i8 || Type == Element::i4;
    for (int e = 0; e < PerLane; ++e) {
      const u32* row = registers[e * kBits / 32];
      const int shift = e * kBits % 32;
      for (int l = 0; l < Lanes; ++l) {
        const u32 top = row[l] << (32 - kBits - shift);
        out.value[e][l] = kSigned ? static_cast<i32>(top) >> (32 - kBits) : static_cast<i32>(top >> (32 - kBits));
      }
    }
  } else {
    constexpr u32 kMask = (1u << kBits) - 1;
    for (int e = 0; e < PerLane; ++e) {
      const int shift = e * kBits % 32;
      const u32* row = registers[e * kBits / 32];
      if (shift + kBits <= 32) {
        for (int l = 0; l < Lanes; ++l) out.value[e][l] = widen_small<Type>(row[l] >> shift & kMask);
      } else {  // 6 bits may straddle two registers
        const u32* next = registers[e * kBits / 32 + 1];
        for (int l = 0; l < Lanes; ++l) {
          out.value[e][l] = widen_small<Type>((row[l] >> shift | next[l] << (32 - shift)) & kMask);
        }
      }
    }
  }
}

// --- multiplying -----------------------------------------------------------------------------------------------------
// Where the k-th column of A and row of B start in converted rows, for lanes in `Groups` groups of `GroupLanes` of
// which each has `Chunk` consecutive k before the next group goes on: k = (chunk, group, element of the chunk).
template <int K, int Groups, int GroupLanes, int Chunk>
constexpr std::array<int, K> k_offsets() {
  std::array<int, K> offsets{};
  for (int k = 0; k < K; ++k) {
    const int element = k / (Chunk * Groups) * Chunk + k % Chunk;
    offsets[static_cast<size_t>(k)] = element * kLanes + k / Chunk % Groups * GroupLanes;
  }
  return offsets;
}

// A tile of the result: Rows rows of Cols columns, 64 numbers in all, so that eight vector registers hold it.
// d[r][j] = c[r][j] + sum over k of a[a_offsets[k] + r * RowStep] * b[b_offsets[k] + j].
template <int K, int Rows, int Cols, int RowStep, class T>
inline void multiply_tile(const T* a, const T* b, const int* a_offsets, const int* b_offsets,
                          const u32* const (&c)[Rows], u32* const (&d)[Rows]) {
  static_assert(Rows * Cols == 64);
  constexpr int kVectors = Cols / 8;
  using Vector = Vector8<T>;
  Vector sum[Rows][kVectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Vector::load(c[r] + 8 * v);
  }
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) {
    const T* rows = a + a_offsets[k];
    Vector column[kVectors];
    for (int v = 0; v < kVectors; ++v) column[v] = Vector::load(b + b_offsets[k] + 8 * v);
    for (int r = 0; r < Rows; ++r) {
      const Vector scale = Vector::all(rows[r * RowStep]);
      for (int v = 0; v < kVectors; ++v) sum[r][v].add_product(scale, column[v]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v].store(d[r] + 8 * v);
  }
}

// One row of a sparse product. Of every four k in a row, a lane holds two elements of A; the two bits of `indices` for
// each say which of the four. Element e of A goes with elements 4 * (e / 2) ... + 3 of B in the same group of lanes.
// d[j] += ..., j < Cols.
template <int Cols, int Groups, class T, int Kept, int PerLane>
inline void multiply_sparse_row(const Converted<T, Kept>& a, const Converted<T, PerLane>& b, const u32* indices,
                                int shift, int i, u32* d) {
  static_assert(PerLane == 2 * Kept);
  using Vector = Vector8<T>;
  Vector sum[Cols / 8];
  for (int v = 0; v < Cols / 8; ++v) sum[v] = Vector::load(d + 8 * v);
  for (int g = 0; g < Groups; ++g) {
    const int lane = g * Cols + i;
    const u32 index = indices[lane] >> shift;
    for (int e = 0; e < Kept; ++e) {
      const Vector scale = Vector::all(a.value[e][lane]);
      const T* row = b.value[e / 2 * 4 + (index >> (2 * e) & 3)] + g * Cols;
      for (int v = 0; v < Cols / 8; ++v) sum[v].add_product(scale, Vector::load(row + 8 * v));
    }
  }
  for (int v = 0; v < Cols / 8; ++v) sum[v].store(d + 8 * v);
}

// --- sums as the hardware makes them (mfma_numerics.cpp) -------------------------------------------------------------
struct DotModel {
  enum class Kind : u8 { chain, exact, pairwise, truncated, truncated_pairs } kind = Kind::chain;
  int group = 1;                                     // products summed at a time
  int a_min_exponent = -126, b_min_exponent = -126;  // of normal numbers of the input types
};
// What is known for inputs of type A and B on CDNA generation `cdna`; `low_rate`: the bf16 forms without _1k.
DotModel dot_model(Element a, Element b, bool low_rate, int cdna);
float dot(const DotModel& model, const float* a, const float* b, int count, float c);

// --- the accumulator -------------------------------------------------------------------------------------------------
// Rows of the C operand: registers, or a constant in every lane. D may overlap C; where it does so partly, C is copied
// before D is written.
template <int Registers, bool Wide = false>
class AccumulatorRows {
 public:
  AccumulatorRows(const Wave& wave, const Operand& c, u16 destination) {
    if (!c.is_vgpr()) {
      for (int half = 0; half < (Wide ? 2 : 1); ++half) {
        for (u32& lane : copy_[half]) lane = static_cast<u32>(c.constant >> (32 * half));
      }
      first_ = copy_;
      step_ = Wide ? 1 : 0;
      return;
    }
    first_ = &wave.vgpr[c.reg];
    const int distance = c.reg > destination ? c.reg - destination : destination - c.reg;
    if (distance != 0 && distance < Registers) {
      std::memcpy(copy_, first_, sizeof(copy_));
      first_ = copy_;
    }
    step_ = Registers;
  }
  // A constant repeats after one row, or two where an element takes two.
  const u32* operator[](int r) const { return first_[step_ == Registers ? r : r & step_]; }

 private:
  const u32 (*first_)[kLanes];
  int step_;
  alignas(64) u32 copy_[Registers][kLanes];
};

}  // namespace matrix
}  // namespace emu

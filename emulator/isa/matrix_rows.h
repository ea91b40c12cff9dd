// Converting operands of matrix instructions to rows of numbers, and multiplying those rows.
//
// Every matrix instruction keeps element e of lane l of an input in the same place of l's registers: bits
// [e * size, (e + 1) * size) of the operand. So converting register by register gives rows [e][lane]; which (row, lane)
// is A[i][k] is then a matter of addresses alone. Register layouts: AMD "Instinct MI300 ISA", chapter 7, and the same
// chapter of the RDNA3 and RDNA4 ISA documents; tests/emulator/matrix_layouts.txt restates them for the tests.
//
// The files that include this are compiled twice: as they are, and from *_wide.cpp for CPUs with AVX-512, all code
// between EMU_MATRIX_BEGIN and EMU_MATRIX_END (and no code of the headers above it) being for those only. Sums are
// made in the same order, so the results are the same. Of AVX512-BF16 the compiler uses nothing by itself;
// matrix_pairs.h does, where the CPU has it.
#pragma once

#include <array>
#include <span>
#include <type_traits>

#include "core/opcode.h"
#include "core/wave.h"
#include "isa/matrix.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define EMU_MATRIX_AVX2 1
#else
#define EMU_MATRIX_AVX2 0
#endif

#ifdef EMU_MATRIX_WIDE
// clang-format off
#define EMU_MATRIX_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512dq,avx512vbmi,avx512bf16\"))), apply_to = function)") \
  namespace emu::matrix::wide {
// clang-format on
#define EMU_MATRIX_END \
  }                    \
  _Pragma("clang attribute pop")
#else
#define EMU_MATRIX_BEGIN namespace emu::matrix::narrow {
#define EMU_MATRIX_END }
#endif

EMU_MATRIX_BEGIN

// --- vectors of numbers ----------------------------------------------------------------------------------------------
// finish(): the sum is made before the code that follows. The compiler would load numbers for many steps first, more
// than there are registers.
#if defined(EMU_MATRIX_WIDE)
struct Floats {
  static constexpr int kCount = 16;
  __m512 v;
  static Floats load(const void* from) { return {_mm512_loadu_ps(from)}; }
  static Floats all(float value) { return {_mm512_set1_ps(value)}; }
  void store(void* to) const { _mm512_storeu_ps(to, v); }
  void add_product(Floats a, Floats b) { v = _mm512_fmadd_ps(a.v, b.v, v); }
  void finish() { asm volatile("" : "+v"(v)); }
};
// Integers wrap around.
struct Ints {
  static constexpr int kCount = 16;
  __m512i v;
  static Ints load(const void* from) { return {_mm512_loadu_si512(from)}; }
  static Ints all(i32 value) { return {_mm512_set1_epi32(value)}; }
  void store(void* to) const { _mm512_storeu_si512(to, v); }
  void add_product(Ints a, Ints b) { v = _mm512_add_epi32(_mm512_mullo_epi32(a.v, b.v), v); }
  void finish() { asm volatile("" : "+v"(v)); }
};
// Two neighbours in k as bf16, the first in the high half, and sums of such products.
struct Pair {
  u32 bits;
};
struct PairSums {
  static constexpr int kCount = 16;
  __m512 v;
  static PairSums load(const void* from) { return {_mm512_loadu_ps(from)}; }
  static PairSums all(Pair value) { return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<i32>(value.bits)))}; }
  void store(void* to) const { _mm512_storeu_ps(to, v); }
  // Adds the product of the high halves, rounds, adds that of the low ones, rounds.
  void add_product(PairSums a, PairSums b) { v = _mm512_dpbf16_ps(v, (__m512bh)a.v, (__m512bh)b.v); }
  void finish() { asm volatile("" : "+v"(v)); }
  // Which lanes are denormal, NaN or infinite, whose sums would not be those of a chain (matrix_pairs.h).
  __mmask16 other() const {
    constexpr int kQuietNaN = 1, kInfinities = 0x18, kDenormal = 0x20, kSignallingNaN = 0x80;
    return _mm512_fpclass_ps_mask(v, kQuietNaN | kInfinities | kDenormal | kSignallingNaN);
  }
};
#elif EMU_MATRIX_AVX2
struct Floats {
  static constexpr int kCount = 8;
  __m256 v;
  static Floats load(const void* from) { return {_mm256_loadu_ps(static_cast<const float*>(from))}; }
  static Floats all(float value) { return {_mm256_set1_ps(value)}; }
  void store(void* to) const { _mm256_storeu_ps(static_cast<float*>(to), v); }
  void add_product(Floats a, Floats b) { v = _mm256_fmadd_ps(a.v, b.v, v); }
  void finish() {}
};
struct Ints {
  static constexpr int kCount = 8;
  __m256i v;
  static Ints load(const void* from) { return {_mm256_loadu_si256(static_cast<const __m256i*>(from))}; }
  static Ints all(i32 value) { return {_mm256_set1_epi32(value)}; }
  void store(void* to) const { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
  void add_product(Ints a, Ints b) { v = _mm256_add_epi32(_mm256_mullo_epi32(a.v, b.v), v); }
  void finish() {}
};
#else
template <class T>
struct Numbers {
  static constexpr int kCount = 8;
  T v[8];
  static Numbers load(const void* from) {
    Numbers result;
    std::memcpy(result.v, from, sizeof(result.v));
    return result;
  }
  static Numbers all(T value) {
    Numbers result;
    for (T& lane : result.v) lane = value;
    return result;
  }
  void store(void* to) const { std::memcpy(to, v, sizeof(v)); }
  void finish() {}
  void add_product(Numbers a, Numbers b) {
    for (int l = 0; l < 8; ++l) {
      if constexpr (std::is_same_v<T, float>) {
        v[l] = __builtin_fmaf(a.v[l], b.v[l], v[l]);
      } else {  // wraps around
        v[l] = static_cast<T>(static_cast<u32>(a.v[l]) * static_cast<u32>(b.v[l]) + static_cast<u32>(v[l]));
      }
    }
  }
};
using Floats = Numbers<float>;
using Ints = Numbers<i32>;
#endif
template <class T>
struct VectorOf {
  using Type = std::conditional_t<std::is_same_v<T, float>, Floats, Ints>;
};
#if defined(EMU_MATRIX_WIDE)
template <>
struct VectorOf<Pair> {
  using Type = PairSums;
};
#endif
template <class T>
using Vector = typename VectorOf<T>::Type;

// --- converting ------------------------------------------------------------------------------------------------------
// The low and the high halves of a row as f32. Flush: denormals become +0.
template <int Lanes, bool Flush>
inline void widen_f16(const u32* row, float* low, float* high) {
#if defined(EMU_MATRIX_WIDE)
  const auto store = [](float* to, __m256i halves) {
    __m512 x = _mm512_cvtph_ps(halves);
    if constexpr (Flush) {
      const __mmask16 normal = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0x1p-14f), _CMP_NLT_UQ);
      x = _mm512_maskz_mov_ps(normal, x);
    }
    _mm512_storeu_ps(to, x);
  };
  for (int l = 0; l < Lanes; l += 16) {
    const __m512i x = _mm512_loadu_si512(row + l);
    store(low + l, _mm512_cvtepi32_epi16(x));
    store(high + l, _mm512_cvtepi32_epi16(_mm512_srli_epi32(x, 16)));
  }
#elif EMU_MATRIX_AVX2
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

template <int Lanes, bool Flush>
inline void widen_bf16(const u32* row, float* low, float* high) {
#if defined(EMU_MATRIX_WIDE)
  const auto store = [](float* to, __m512i bits) {
    if constexpr (Flush) {
      bits = _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x7f800000)), bits);
    }
    _mm512_storeu_si512(to, bits);
  };
  for (int l = 0; l < Lanes; l += 16) {
    const __m512i x = _mm512_loadu_si512(row + l);
    store(low + l, _mm512_slli_epi32(x, 16));
    store(high + l, _mm512_and_si512(x, _mm512_set1_epi32(static_cast<i32>(0xffff0000))));
  }
#else
  for (int l = 0; l < Lanes; ++l) {
    const u32 first = row[l] << 16, second = row[l] & 0xffff0000u;
    low[l] = as_f32(Flush && !(first & 0x7f800000) ? 0 : first);
    high[l] = as_f32(Flush && !(second & 0x7f800000) ? 0 : second);
  }
#endif
}

// Without branches and tables, so that loops over it become vector code.
template <Element Type>
constexpr float widen_small(u32 code) {
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

#ifdef EMU_MATRIX_WIDE
// Bits 31:24 and 23:16 of the f32 of each magnitude of an 8-bit type; the others are 0.
struct ByteTables {
  u8 high[128] = {}, low[128] = {};
};
template <Element Type>
constexpr ByteTables byte_tables() {
  ByteTables tables;
  for (u32 code = 0; code < 128; ++code) {
    const u32 bits = std::bit_cast<u32>(widen_small<Type>(code));
    tables.high[code] = static_cast<u8>(bits >> 24);
    tables.low[code] = static_cast<u8>(bits >> 16);
  }
  return tables;
}

// The two bytes of each byte of 16 lanes.
template <Element Type>
class ByteLookup {
 public:
  struct Result {
    __m512i high, low, magnitude;  // magnitude: high without the sign
  };
  ByteLookup()
      : high0_(_mm512_loadu_si512(kTables.high)),
        high1_(_mm512_loadu_si512(kTables.high + 64)),
        low0_(_mm512_loadu_si512(kTables.low)),
        low1_(_mm512_loadu_si512(kTables.low + 64)) {}
  Result operator()(__m512i x) const {
    __m512i high = _mm512_permutex2var_epi8(high0_, x, high1_), low = _mm512_permutex2var_epi8(low0_, x, low1_);
    const __m512i sign = _mm512_set1_epi8(-128);
    if constexpr (Type == Element::fp8_fnuz || Type == Element::bf8_fnuz) {  // where -0 would be is NaN
      const __mmask64 nan = _mm512_cmpeq_epi8_mask(x, sign);
      high = _mm512_mask_mov_epi8(high, nan, _mm512_set1_epi8(0x7f));
      low = _mm512_mask_mov_epi8(low, nan, _mm512_set1_epi8(-64));
    }
    return {_mm512_ternarylogic_epi32(high, x, sign, 0xf8), low, high};  // high | (x & sign)
  }

 private:
  static constexpr ByteTables kTables = byte_tables<Type>();
  __m512i high0_, high1_, low0_, low1_;
};

// The four bytes of each lane of a row, of which the first 16 rows of `to` at a time are given: to[e * kLanes + l].
template <Element Type, int Lanes>
inline void widen_bytes(const u32* row, float* to) {
  const ByteLookup<Type> lookup;
  const __m512i second = _mm512_set1_epi32(0x00ff0000);
  for (int l = 0; l < Lanes; l += 16) {
    const auto [high, low, magnitude] = lookup(_mm512_loadu_si512(row + l));
    const auto store = [&](int e, __m512i top, __m512i next) {
      // (next & second) | (top & ~(second | what is below it)): both are shifted so that their byte is in place.
      const __m512i bits = _mm512_or_si512(_mm512_and_si512(next, second),
                                           _mm512_and_si512(top, _mm512_set1_epi32(static_cast<i32>(0xff000000))));
      _mm512_storeu_si512(to + e * kLanes + l, bits);
    };
    store(0, _mm512_slli_epi32(high, 24), _mm512_slli_epi32(low, 16));
    store(1, _mm512_slli_epi32(high, 16), _mm512_slli_epi32(low, 8));
    store(2, _mm512_slli_epi32(high, 8), low);
    store(3, high, _mm512_srli_epi32(low, 8));
  }
}
#endif

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
    for (int e = 0; e < PerLane; e += 2) widen_bf16<Lanes, Flush>(registers[e / 2], out.value[e], out.value[e + 1]);
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
#ifdef EMU_MATRIX_WIDE
  } else if constexpr (kBits == 8 && Lanes % 16 == 0) {
    for (int e = 0; e < PerLane; e += 4) widen_bytes<Type, Lanes>(registers[e / 4], out.value[e]);
#endif
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

// Rows of a tile of the result with Cols columns: as many as keep the multiply-adds busy, each waiting for the one
// before it, and fit in the vector registers.
template <int Cols>
constexpr int kTileRows = 8 * Vector<float>::kCount * (Vector<float>::kCount == 16 ? 2 : 1) / Cols;

// A tile of the result. d[r][j] = c[r][j] + sum over k of a[a_offsets[k] + r] * b[b_offsets[k] + j]; FromZero: without
// c. Returns whether it was done: pairs are not where c has numbers that they cannot take.
template <int K, int Cols, bool FromZero = false, class T>
inline bool multiply_tile(const T* a, const T* b, const int* a_offsets, const int* b_offsets,
                          const u32* const (&c)[kTileRows<Cols>], u32* const (&d)[kTileRows<Cols>]) {
  using V = Vector<T>;
  constexpr int kRows = kTileRows<Cols>, kVectors = Cols / V::kCount;
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = FromZero ? V::all({}) : V::load(c[r] + V::kCount * v);
  }
  if constexpr (requires { sum[0][0].other(); } && !FromZero) {
    u32 other = 0;
    for (const auto& row : sum) {
      for (const V& vector : row) other |= vector.other();
    }
    if (other) return false;
  }
#pragma GCC unroll 16
  for (int k = 0; k < K; ++k) {
    const T* rows = a + a_offsets[k];
    V column[kVectors];
    for (int v = 0; v < kVectors; ++v) column[v] = V::load(b + b_offsets[k] + V::kCount * v);
    for (int r = 0; r < kRows; ++r) {
      const V scale = V::all(rows[r]);
      for (int v = 0; v < kVectors; ++v) sum[r][v].add_product(scale, column[v]);
    }
    for (auto& row : sum) {
      for (V& vector : row) vector.finish();
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v].store(d[r] + V::kCount * v);
  }
  return true;
}

// Row i of an M x M result of MFMA: four rows to a register and group of lanes.
template <int M>
constexpr int register_of_row(int i) {
  return (M == 32 ? i / 8 * 4 : 0) + i % 4;
}
template <int M>
constexpr int lane_of_row(int i) {
  return i / 4 % (kLanes / M) * M;
}

// One row of a sparse product. Of every four k in a row, a lane holds two elements of A; the two bits of `indices` for
// each say which of the four. Element e of A goes with elements 4 * (e / 2) ... + 3 of B in the same group of lanes.
// d[j] += ..., j < Cols.
template <int Cols, int Groups, class T, int Kept, int PerLane>
inline void multiply_sparse_row(const Converted<T, Kept>& a, const Converted<T, PerLane>& b, const u32* indices,
                                int shift, int i, u32* d) {
  static_assert(PerLane == 2 * Kept);
  using V = Vector<T>;
  constexpr int kVectors = Cols / V::kCount;
  V sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = V::load(d + V::kCount * v);
  for (int g = 0; g < Groups; ++g) {
    const int lane = g * Cols + i;
    const u32 index = indices[lane] >> shift;
    for (int e = 0; e < Kept; ++e) {
      const V scale = V::all(a.value[e][lane]);
      const T* row = b.value[e / 2 * 4 + (index >> (2 * e) & 3)] + g * Cols;
      for (int v = 0; v < kVectors; ++v) sum[v].add_product(scale, V::load(row + V::kCount * v));
    }
  }
  for (int v = 0; v < kVectors; ++v) sum[v].store(d + V::kCount * v);
}

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

EMU_MATRIX_END

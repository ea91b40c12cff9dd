// Products of two neighbours in k by one instruction of AVX512-BF16, for types whose numbers bf16 holds exactly.
//
// VDPBF16PS adds the product of the high halves and then that of the low ones, each sum rounded to nearest even as by a
// fused multiply-add, but takes denormals as 0 and makes 0 of them (Intel SDM; AMD APM volume 4). So it makes the same
// sums as the chain where no denormal can occur. Let elements be 0 or at least 2^-44, with the 8 bits that bf16 has:
// products are 0, or at least 2^-88 and multiples of 2^-102. A sum of at least 2^-103 is a multiple of 2^-126, so one
// with a product is 0 or normal; a smaller sum is less than half of any product. NaN is left to the chain, too.
#pragma once

#include "core/cpu.h"
#include "isa/matrix_rows.h"

EMU_MATRIX_BEGIN
#ifdef EMU_MATRIX_WIDE

template <Element Type>
constexpr bool kFitsBf16 = Type == Element::bf16 || (!is_integer(Type) && size_of(Type) <= 8);

// Rows [pair of the lane][lane] of one input operand.
template <int PerLane>
struct alignas(64) Pairs {
  Pair value[PerLane / 2][kLanes];
};

// Of a row of C: neither denormals nor NaN nor infinity.
inline bool is_ordinary(const u32* row) {
  constexpr int kQuietNaN = 1, kInfinities = 0x18, kDenormal = 0x20, kSignallingNaN = 0x80;
  __mmask16 other = 0;
  for (int l = 0; l < kLanes; l += 16) {
    other |= _mm512_fpclass_ps_mask(_mm512_loadu_ps(row + l), kQuietNaN | kInfinities | kDenormal | kSignallingNaN);
  }
  return other == 0;
}
template <int Registers>
inline bool is_ordinary(const AccumulatorRows<Registers>& c) {
  bool ordinary = true;
  for (int r = 0; r < Registers; ++r) ordinary &= is_ordinary(c[r]);
  return ordinary;
}

// Returns whether all elements are such that the sums will be those of the chain.
template <Element Type, int PerLane>
inline bool convert_pairs(const u32 (*__restrict registers)[kLanes], Pairs<PerLane>& __restrict out) {
  if constexpr (Type == Element::bf16) {
    constexpr i16 kLeast = (127 - 44) << 7, kInfinity = 0x7f80;
    __mmask32 other = 0;
    for (int p = 0; p < PerLane / 2; ++p) {
      for (int l = 0; l < kLanes; l += 16) {
        const __m512i x = _mm512_loadu_si512(registers[p] + l);
        const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
        // In 0 < magnitude < kLeast, or not finite.
        other |= _mm512_mask_cmplt_epi16_mask(_mm512_test_epi16_mask(magnitude, magnitude), magnitude,
                                              _mm512_set1_epi16(kLeast)) |
                 _mm512_cmpge_epi16_mask(magnitude, _mm512_set1_epi16(kInfinity));
        _mm512_storeu_si512(out.value[p] + l, _mm512_rol_epi32(x, 16));
      }
    }
    return other == 0;
  } else if constexpr (size_of(Type) == 8) {
    const ByteLookup<Type> lookup;
    // Bytes of the pairs (0, 1) and (2, 3) of a lane: low 1, high 1, low 0, high 0, and the same of 2 and 3.
    const auto order = [](u32 bytes) {  // of each dword; its place is added
      const __m128i places = _mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
      return _mm512_broadcast_i32x4(_mm_add_epi8(_mm_set1_epi32(static_cast<i32>(bytes)), places));
    };
    constexpr __mmask64 kHighs = 0xaaaaaaaaaaaaaaaa, kLows = ~kHighs;
    const __m512i first = order(0x00000101), second = order(0x02020303);
    __mmask64 other = 0;
    for (int p = 0; p < PerLane / 2; p += 2) {
      for (int l = 0; l < kLanes; l += 16) {
        const auto [high, low] = lookup(_mm512_loadu_si512(registers[p / 2] + l));
        const __m512i exponent = _mm512_set1_epi8(0x7f);  // all ones only in NaN and infinity
        other |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(high, exponent), exponent);
        const auto pair = [&](__m512i places) {
          return _mm512_or_si512(_mm512_maskz_shuffle_epi8(kHighs, high, places),
                                 _mm512_maskz_shuffle_epi8(kLows, low, places));
        };
        _mm512_storeu_si512(out.value[p] + l, pair(first));
        _mm512_storeu_si512(out.value[p + 1] + l, pair(second));
      }
    }
    return other == 0;
  } else {  // 6 and 4 bits: no NaN
    Converted<float, PerLane> wide;
    convert<Type>(registers, wide);
    for (int p = 0; p < PerLane / 2; ++p) {
      for (int l = 0; l < kLanes; ++l) {
        out.value[p][l].bits = bits_of(wide.value[2 * p][l]) | bits_of(wide.value[2 * p + 1][l]) >> 16;
      }
    }
    return true;
  }
}

#endif
EMU_MATRIX_END

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

// As numbers of their own. Flush as in convert().
template <bool Flush = false, int PerLane>
inline void widen_pairs(const Pairs<PerLane>& pairs, Converted<float, PerLane>& out) {
  for (int p = 0; p < PerLane / 2; ++p) {
    widen_bf16<kLanes, Flush>(&pairs.value[p][0].bits, out.value[2 * p + 1], out.value[2 * p]);
  }
}

// The bf16 of each code of a type of 6 or 4 bits, repeated.
template <Element Type>
constexpr std::array<u16, 64> bf16_table() {
  std::array<u16, 64> table{};
  for (u32 code = 0; code < 64; ++code) {
    table[code] = static_cast<u16>(std::bit_cast<u32>(widen_small<Type>(code & ((1u << size_of(Type)) - 1))) >> 16);
  }
  return table;
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
    __m512i most = _mm512_setzero_si512();
    for (int p = 0; p < PerLane / 2; p += 2) {
      for (int l = 0; l < kLanes; l += 16) {
        const auto [high, low, magnitude] = lookup(_mm512_loadu_si512(registers[p / 2] + l));
        most = _mm512_max_epu8(most, magnitude);
        const auto pair = [&](__m512i places) {
          return _mm512_or_si512(_mm512_maskz_shuffle_epi8(kHighs, high, places),
                                 _mm512_maskz_shuffle_epi8(kLows, low, places));
        };
        _mm512_storeu_si512(out.value[p] + l, pair(first));
        _mm512_storeu_si512(out.value[p + 1] + l, pair(second));
      }
    }
    return _mm512_cmpeq_epi8_mask(most, _mm512_set1_epi8(0x7f)) == 0;  // only of NaN and infinity
  } else {                                                             // 6 and 4 bits: no NaN
    constexpr int kBits = size_of(Type);
    static constexpr std::array<u16, 64> kTable = bf16_table<Type>();
    const __m512i table0 = _mm512_loadu_si512(kTable.data()), table1 = _mm512_loadu_si512(kTable.data() + 32);
    for (int p = 0; p < PerLane / 2; ++p) {
      const int word = 2 * p * kBits / 32, shift = 2 * p * kBits % 32;
      for (int l = 0; l < kLanes; l += 16) {
        __m512i x = _mm512_srli_epi32(_mm512_loadu_si512(registers[word] + l), static_cast<unsigned>(shift));
        if (shift + 2 * kBits > 32) {  // straddles two registers
          const __m512i next = _mm512_loadu_si512(registers[word + 1] + l);
          x = _mm512_or_si512(x, _mm512_slli_epi32(next, static_cast<unsigned>(32 - shift)));
        }
        // The first code at the bottom of the high half, the second at that of the low one. Bits above them are not
        // looked at: 6 bits choose from two tables, 5 from one, which has the codes of 4 bits twice.
        const __m512i codes =
            _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(x, kBits), _mm512_slli_epi32(x, 16));
        _mm512_storeu_si512(out.value[p] + l, kBits == 6 ? _mm512_permutex2var_epi16(table0, codes, table1)
                                                         : _mm512_permutexvar_epi16(codes, table0));
      }
    }
    return true;
  }
}

#endif
EMU_MATRIX_END

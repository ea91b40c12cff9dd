// Words for what AVX-512 does with numbers of 16 bits and with bits of lanes: the instructions of the kernels for Zen 4
// and for AMX that vec.h has no name for. Included by zen4.cpp and amx.cpp after vec.h.

typedef uint16_t VU16x32 __attribute__((vector_size(64)));
typedef __mmask16 LaneBits;

// ---- 32 numbers of 16 bits -----------------------------------------------------------------------------------------

FW_INLINE uint32_t first_bits(int n) { return n >= 32 ? ~0u : (1u << n) - 1; }

FW_INLINE VU16x32 load_32(const void* p) { return (VU16x32)_mm512_loadu_si512(p); }
// The first n of them, the rest 0. Never reads past them.
FW_INLINE VU16x32 load_part_32(const void* p, int n) { return (VU16x32)_mm512_maskz_loadu_epi16(first_bits(n), p); }
FW_INLINE VU16x32 load_aligned_32(const void* p) { return (VU16x32)_mm512_load_si512(p); }
FW_INLINE void store_32(void* p, VU16x32 x) { _mm512_store_si512(p, (__m512i)x); }  // p at a multiple of 64 bytes
FW_INLINE void store_part_32(void* p, VU16x32 x, int n) {
  if (n >= 32) return _mm512_storeu_si512(p, (__m512i)x);
  _mm512_mask_storeu_epi16(p, first_bits(n), (__m512i)x);
}

FW_INLINE VU16x32 max_32(VU16x32 a, VU16x32 b) { return (VU16x32)_mm512_max_epu16((__m512i)a, (__m512i)b); }
FW_INLINE uint32_t at_least_32(VU16x32 x, uint16_t limit) {  // a bit for each
  return _mm512_cmpge_epu16_mask((__m512i)x, _mm512_set1_epi16(int16_t(limit)));
}
// Number i: that with number from[i] of those of a, then of b.
FW_INLINE VU16x32 pick_32(VU16x32 a, VU16x32 from, VU16x32 b) {
  return (VU16x32)_mm512_permutex2var_epi16((__m512i)a, (__m512i)from, (__m512i)b);
}
// Numbers of a and b in turn, of the lower or the upper half of each 128 bits.
FW_INLINE VU16x32 interleave_low(VU16x32 a, VU16x32 b) {
  return (VU16x32)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
}
FW_INLINE VU16x32 interleave_high(VU16x32 a, VU16x32 b) {
  return (VU16x32)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
}

// ---- bf16 and fp16 -------------------------------------------------------------------------------------------------

template <class T>
FW_INLINE VU16x32 round_32(V low, V high) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return (VU16x32)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  } else {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m256i first = _mm512_cvtps_ph((__m512)low, kNearest), second = _mm512_cvtps_ph((__m512)high, kNearest);
    return (VU16x32)_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  }
}
// 32 numbers of fp16, each as the sum of two of bf16, exactly: 11 bits in 8 and the rest. The second of an infinity is
// 0.
FW_INLINE void split_32(VU16x32 x, VU16x32& high, VU16x32& low) {
  const __m512 a = _mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)x));
  const __m512 b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)x, 1));
  high = round_32<BFloat16>((V)a, (V)b);
  const auto widened = [](__m256i h) __attribute__((always_inline)) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  };
  const auto rest = [](__m512 of, __m512 part) __attribute__((always_inline)) {
    return (V)_mm512_maskz_sub_ps(_mm512_cmp_ps_mask(of, part, _CMP_NEQ_UQ), of, part);
  };
  low = round_32<BFloat16>(rest(a, widened(_mm512_castsi512_si256((__m512i)high))),
                           rest(b, widened(_mm512_extracti64x4_epi64((__m512i)high, 1))));
}
// The upper halves of two registers, in turn: a0, b0, a1, b1, ...
FW_INLINE VU16x32 upper_halves(V a, V b) {  // b ? a : c, bit by bit: a permutation of words would be three instructions
  const __m512i lower = _mm512_srli_epi32((__m512i)a, 16);
  return (VU16x32)_mm512_ternarylogic_epi32((__m512i)b, _mm512_set1_epi32(int32_t(0xFFFF0000)), lower, 0xE2);
}
// The first and the second of 16 pairs of bf16.
FW_INLINE V first_of_pairs(VU16x32 x) { return (V)((VU)x << 16); }
FW_INLINE V second_of_pairs(VU16x32 x) { return (V)((VU)x & 0xFFFF0000u); }
FW_INLINE void store_rounded(void* p, V x) {  // 16 numbers of bf16
  _mm256_storeu_si256(static_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh((__m512)x));
}
// Lane i: sum + a[2i] b[2i] + a[2i + 1] b[2i + 1]. Subnormal numbers, results among them, count as 0.
FW_INLINE V add_pair_products(V sum, VU16x32 a, VU16x32 b) {
  return (V)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
// Lane i: sum + x[2i]^2 + x[2i + 1]^2.
template <class T>
FW_INLINE V add_squares(V sum, VU16x32 x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return add_pair_products(sum, x, x);
  } else {
    const V even = (V)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x));
    const V odd = (V)_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)x, 16)));
    return sum + even * even + odd * odd;
  }
}

// ---- bits of lanes -------------------------------------------------------------------------------------------------

// Lanes with first <= x < last.
FW_INLINE LaneBits lanes_around(int32_t x, VI first, VI last) {
  const __m512i all = _mm512_set1_epi32(x);
  return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask((__m512i)first, all), (__m512i)last, all);
}
template <bool kMasked>
FW_INLINE V multiply_kept(LaneBits keep, V a, V b) {  // the other lanes 0, if there are any
  return kMasked ? (V)_mm512_maskz_mul_ps(keep, (__m512)a, (__m512)b) : (V)_mm512_mul_ps((__m512)a, (__m512)b);
}
FW_INLINE V keep_lanes(LaneBits keep, V x) { return (V)_mm512_maskz_mov_ps(keep, (__m512)x); }  // the other lanes 0
#if defined(__BMI2__)
FW_INLINE uint32_t deposit_bits(uint32_t bits, uint32_t places) { return _pdep_u32(bits, places); }
#endif

// ---- subnormal numbers ---------------------------------------------------------------------------------------------

// Of fp32 in vectors: 0, as operands and as results. Returns the mode before; fp16 keeps its own (Intel SDM,
// VCVTPH2PS).
FW_INLINE uint32_t take_subnormals_as_zero() {
  const uint32_t before = _mm_getcsr();
  _mm_setcsr(before | 0x8040u);
  return before;
}
FW_INLINE void set_float_mode(uint32_t mode) { _mm_setcsr(mode); }

// ---- numbers of fp32 -----------------------------------------------------------------------------------------------

FW_INLINE V fused(V a, V b, V c) { return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }  // a b + c
FW_INLINE V square_roots(V x) { return (V)_mm512_sqrt_ps((__m512)x); }
FW_INLINE V max_number(V a, V b) { return (V)_mm512_max_ps((__m512)a, (__m512)b); }
FW_INLINE float largest_lane(V x) { return _mm512_reduce_max_ps((__m512)x); }
FW_INLINE V no_nan(V x) {  // infinity instead
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  return (V)_mm512_mask_mov_ps((__m512)x, nan, _mm512_set1_ps(kInf));
}

// 2^x beside tile products, by few instructions: while these run, most have one port instead of two (NOTES.md).
// VREDUCEPS leaves x - floor(x), of which a polynomial of degree 4 (relative error 2.9e-6; exactly 1 at 0), and
// VSCALEFPS takes the floor of x itself. Lanes outside `keep` are 0.
template <bool kMasked>
FW_INLINE V exp2_beside_tiles(V x, LaneBits keep) {
  const __m512 f = _mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0.01342668f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05224247f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2412802f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69304484f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
  return (V)(kMasked ? _mm512_maskz_scalef_ps(keep, p, (__m512)x) : _mm512_scalef_ps(p, (__m512)x));
}

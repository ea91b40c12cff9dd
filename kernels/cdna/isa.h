// CDNA (gfx908, gfx90a, gfx942, gfx950): matrix instructions, conversions, LDS and lane words. Everything that names an
// instruction of this family is here.
//
// MFMA 32x32 (amd_matrix_instruction_calculator; h = lane >> 5):
//   A, B: row or column lane & 31; k = 4h + e (32x32x8), 8h + e (32x32x16, gfx950), 2h + e (32x32x4 bf16, gfx908)
//   C, D: register r of a lane is row 8(r >> 2) + 4h + (r & 3), column lane & 31
// The order of k is free as long as A and B agree, so a fragment is always the 8 elements of one 16-byte LDS read, and
// feeds kSteps instructions: fragments look the same on all targets.
#pragma once

#include "kernels/amd/gpu.h"

namespace flashwave {

#if defined(__gfx950__)
inline constexpr bool kIsGfx950 = true, kIsGfx942 = false;
inline constexpr int kXcds = 8, kUnitsPerXcd = 32;  // accelerator dies, compute units of one
#elif defined(__gfx942__)
inline constexpr bool kIsGfx950 = false, kIsGfx942 = true;
inline constexpr int kXcds = 8, kUnitsPerXcd = 38;
#else
inline constexpr bool kIsGfx950 = false, kIsGfx942 = false;
inline constexpr int kXcds = 1, kUnitsPerXcd = 110;
#endif
#if defined(__gfx908__)
inline constexpr bool kIsGfx908 = true;
#else
inline constexpr bool kIsGfx908 = false;
#endif

// Whether packed f32 arithmetic pays in the shadow of matrix instructions. On gfx950 others measured gains of 4 %;
// before, hand-written kernels avoid it there.
inline constexpr bool kPackedBesideMatrix = kIsGfx950;

using S16x2 = Vec<short, 2>;
using S16x4 = Vec<short, 4>;
using F16x4 = Vec<_Float16, 4>;
using F16x8 = Vec<_Float16, 8>;
using BF16x8 = Vec<__bf16, 8>;

// P is rounded to 16 bits on its way into the second product. kTruncate drops bits and adds their mean,
// log2(1 + 0.7213 * 2^-8), to the exponent: no mean error, but twice the largest one.
enum class Rounding { kNearestEven, kTruncate };

// An element type. P = 2^(score - reference + kShift + kBias) is exact enough up to kLimit, the largest sum of a lane's
// keys of one step. Rounding a pair takes three stages of *Slots vector
// instructions, so that a schedule can spread them.
template <Rounding kRounding>
struct BF16 {
  static constexpr float kShift = 0.f, kLimit = 0x1p40f;
  static constexpr bool kNearest = kRounding == Rounding::kNearestEven;
#if defined(__gfx950__)
  static constexpr int kSteps = 1, kRoundSlots = 0, kPackSlots = 1;
  static constexpr float kBias = 0.f;
  template <int kStep>
  FW_METHOD static F32x16 multiply(U32x4 a, U32x4 b, F32x16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(BF16x8, a), __builtin_bit_cast(BF16x8, b), c, 0,
                                                   0, 0);
  }
  FW_METHOD static uint32_t pack(float low, float high) {
    return __builtin_bit_cast(uint32_t, __builtin_convertvector((F32x2){low, high}, BF16x2));
  }
  FW_METHOD static void round_first(uint32_t*, float, float) {}
  FW_METHOD static void round_second(uint32_t*, float, float) {}
  FW_METHOD static uint32_t pack_rounded(const uint32_t*, float low, float high) { return pack(low, high); }
#else
  static constexpr int kRoundSlots = kNearest ? 2 : 0, kPackSlots = 1;
  static constexpr float kBias = kNearest ? 0.f : 0.0040600f;
#if defined(__gfx908__)
  static constexpr int kSteps = 4;
  template <int kStep>
  FW_METHOD static F32x16 multiply(U32x4 a, U32x4 b, F32x16 c) {
    const uint32_t x = a[kStep], y = b[kStep];  // clang 22 takes element 0 for __builtin_bit_cast of an element
    return __builtin_amdgcn_mfma_f32_32x32x4bf16(__builtin_bit_cast(S16x2, x), __builtin_bit_cast(S16x2, y), c, 0, 0,
                                                 0);
  }
#else
  static constexpr int kSteps = 2;
  template <int kStep>
  FW_METHOD static F32x16 multiply(U32x4 a, U32x4 b, F32x16 c) {
    const U32x2 x = {a[2 * kStep], a[2 * kStep + 1]}, y = {b[2 * kStep], b[2 * kStep + 1]};
    return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(S16x4, x), __builtin_bit_cast(S16x4, y), c, 0, 0,
                                                    0);
  }
#endif
  // Nearest even by integers: add 0x7FFF and the last bit that stays, then take the high halves.
  FW_METHOD static uint32_t last_bit(float x) { return bits_of(x) >> 16 & 1; }
  FW_METHOD static uint32_t high_halves(uint32_t high, uint32_t low) { return permute_bytes(high, low, 0x07060302); }
  FW_METHOD static void round_first(uint32_t* r, float low, float high) { r[0] = last_bit(low), r[1] = last_bit(high); }
  FW_METHOD static void round_second(uint32_t* r, float low, float high) {
    r[0] = bits_of(low) + 0x7FFFu + r[0], r[1] = bits_of(high) + 0x7FFFu + r[1];
  }
  FW_METHOD static uint32_t pack_rounded(const uint32_t* r, float low, float high) {
    return kNearest ? high_halves(r[1], r[0]) : high_halves(bits_of(high), bits_of(low));
  }
  FW_METHOD static uint32_t pack(float low, float high) {
    return high_halves(bits_of(high) + 0x7FFFu + last_bit(high), bits_of(low) + 0x7FFFu + last_bit(low));
  }
#endif
};

// MFMA of CDNA2 flushes denormals of fp16, hence the shift to the upper part of the exponent range.
struct F16 {
  static constexpr float kShift = 8.f, kLimit = 0x1p15f, kBias = 0.f;
  static constexpr int kRoundSlots = 0, kPackSlots = kIsGfx950 ? 1 : 3;
#if defined(__gfx950__)
  static constexpr int kSteps = 1;
  template <int kStep>
  FW_METHOD static F32x16 multiply(U32x4 a, U32x4 b, F32x16 c) {
    return __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(F16x8, a), __builtin_bit_cast(F16x8, b), c, 0, 0,
                                                  0);
  }
#else
  static constexpr int kSteps = 2;
  template <int kStep>
  FW_METHOD static F32x16 multiply(U32x4 a, U32x4 b, F32x16 c) {
    const U32x2 x = {a[2 * kStep], a[2 * kStep + 1]}, y = {b[2 * kStep], b[2 * kStep + 1]};
    return __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(F16x4, x), __builtin_bit_cast(F16x4, y), c, 0, 0, 0);
  }
#endif
  FW_METHOD static uint32_t pack(float low, float high) {
    return __builtin_bit_cast(uint32_t, __builtin_convertvector((F32x2){low, high}, F16x2));
  }
  FW_METHOD static void round_first(uint32_t*, float, float) {}
  FW_METHOD static void round_second(uint32_t*, float, float) {}
  FW_METHOD static uint32_t pack_rounded(const uint32_t*, float low, float high) { return pack(low, high); }
};

// Two values to 16 bits, to nearest, in stages that a schedule can spread. bf16 without an instruction for it: halfway
// cases away from zero, which takes one instruction less than to even.
template <class Element>
struct Near {
  static constexpr bool kByIntegers = Element::kRoundSlots > 0;
  static constexpr int kRoundSlots = kByIntegers ? 2 : 0;
  FW_METHOD static uint32_t round(float x) { return kByIntegers ? bits_of(x) + 0x8000u : bits_of(x); }
  FW_METHOD static uint32_t pack(uint32_t low, uint32_t high) {
    if constexpr (kByIntegers) return permute_bytes(high, low, 0x07060302);
    return Element::pack(float_of(low), float_of(high));
  }
};

// lane_index() computed anew: no register holds it, or what follows from it, through a loop.
FW_DEVICE int lane_index_again() {
  return int(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, here(0))));
}

// The value of lane ^ 32.
FW_DEVICE uint32_t other_half(uint32_t x) {
#if defined(__gfx950__)
  const auto both = __builtin_amdgcn_permlane32_swap(x, x, false, false);
  return lane_index_again() < 32 ? both[1] : both[0];
#else
  return uint32_t(__builtin_amdgcn_ds_bpermute((lane_index_again() ^ 32) << 2, int(x)));
#endif
}
FW_DEVICE float other_half(float x) { return float_of(other_half(bits_of(x))); }

FW_DEVICE bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }

// On gfx908 a product is in accumulation registers.
#if defined(__gfx908__)
FW_DEVICE void hold(F32x16& x) { asm volatile("" : "+a"(x)); }
#endif

// LDS by byte address.
#define FW_LDS __attribute__((address_space(3)))
FW_DEVICE U32x4 lds_read16(uint32_t address) { return *(const FW_LDS U32x4*)address; }
FW_DEVICE void lds_write16(uint32_t address, U32x4 x) { *(FW_LDS U32x4*)address = x; }
FW_DEVICE void lds_write4(uint32_t address, uint32_t x) { *(FW_LDS uint32_t*)address = x; }
FW_DEVICE void lds_write8(uint32_t address, U32x2 x) { *(FW_LDS U32x2*)address = x; }
FW_DEVICE void lds_write_low(uint32_t address, uint32_t x) { *(FW_LDS uint16_t*)address = uint16_t(x); }
FW_DEVICE void lds_write_high(uint32_t address, uint32_t x) { *(FW_LDS uint16_t*)address = uint16_t(x >> 16); }

// Transposes while reading (gfx950): in each group of 16 lanes, lane l gives the address of elements 4(l & 3) .. + 3 of
// row l >> 2 and receives column l of the 4 rows.
#if defined(__gfx950__)
FW_DEVICE U32x2 lds_read_transposed(uint32_t address) {
  return __builtin_bit_cast(U32x2, __builtin_amdgcn_ds_read_tr16_b64_v4i16((FW_LDS S16x4*)address));
}
#endif

// Straight from memory to LDS: lane l's kBytes (4; gfx950 also 16) go to address + l * kBytes. The compiler does not
// wait for it before a read of that LDS.
template <int kBytes>
FW_DEVICE void load_to_lds(Buffer buffer, uint32_t address, uint32_t offset) {
  static_assert(kBytes == 4 || (kIsGfx950 && kBytes == 16));
#if defined(__gfx950__)
  if constexpr (kBytes == 16) {
    __builtin_amdgcn_raw_ptr_buffer_load_lds(buffer, (FW_LDS void*)address, 16, int(offset), 0, 0, 0);
    return;
  }
#endif
  __builtin_amdgcn_raw_ptr_buffer_load_lds(buffer, (FW_LDS void*)address, 4, int(offset), 0, 0, 0);
}

// As without `further`, a uniform offset that takes no vector instruction to add. It counts in the check of the range.
FW_DEVICE uint32_t buffer_load4(Buffer b, uint32_t at, uint32_t further) {
  return __builtin_amdgcn_raw_buffer_load_b32(b, at, further, 0);
}
FW_DEVICE U32x4 buffer_load16(Buffer b, uint32_t at, uint32_t further) {
  return __builtin_amdgcn_raw_buffer_load_b128(b, at, further, 0);
}
FW_DEVICE uint16_t buffer_load2(Buffer b, uint32_t at, uint32_t further) {
  return __builtin_amdgcn_raw_buffer_load_b16(b, at, further, 0);
}
FW_DEVICE void add_to_memory(Buffer buffer, uint32_t offset, uint32_t further, float x) {
  __builtin_amdgcn_raw_ptr_buffer_atomic_fadd_f32(x, buffer, int(offset), int(further), 0);
}

// x, which only matrix instructions read, in accumulation registers: elsewhere it would be copied back and forth.
template <class T>
FW_DEVICE void keep_in_accumulators(T& x) {
  asm volatile("" : "+a"(x));
}

// The value of another lane, by a DPP control.
template <int kControl>
FW_DEVICE uint32_t lane_moved(uint32_t x) {
  return uint32_t(__builtin_amdgcn_update_dpp(0, int(x), kControl, 0xF, 0xF, true));
}
FW_DEVICE uint32_t other_of_pair(uint32_t x) { return lane_moved<0xB1>(x); }  // quad_perm [1,0,3,2]

// Lane kLane of each 16 lanes: a DPP operand of the instruction that takes it (row_newbcast), which MI100 has not.
template <int kLane>
FW_DEVICE float of_sixteen(float x) {
#if defined(__gfx908__)
  const int first = (lane_index() & ~15) << 2;
  return float_of(uint32_t(__builtin_amdgcn_ds_bpermute(first + 4 * kLane, int(bits_of(x)))));
#else
  return dpp<0x150 + kLane>(x);
#endif
}

// Until all LDS and scalar operations and all but the kLoads youngest vector memory operations are done.
template <int kLoads>
FW_DEVICE void wait_for_memory() {
  static_assert(kLoads < 64);
  __builtin_amdgcn_s_waitcnt((kLoads & 15) | kLoads >> 4 << 14 | 0x70);
}
// Until all but the kLoads youngest vector memory operations are done.
template <int kLoads>
FW_DEVICE void wait_for_loads() {
  static_assert(kLoads < 64);
  __builtin_amdgcn_s_waitcnt((kLoads & 15) | kLoads >> 4 << 14 | 0xf70);
}

}  // namespace flashwave

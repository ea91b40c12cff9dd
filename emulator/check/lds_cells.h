// What the checker of LDS keeps of a dword.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "core/bits.h"

namespace emu {

// The last write of a byte, in one word so that equal ones compare at once.
struct Write {
  u64 bits = 0;  // 0: never written
  bool operator==(const Write&) const = default;
  static constexpr int kSignals = 32, kWave = 54, kMemory = 60, kAtomic = 61, kValid = 62, kSplit = 63;
  static constexpr u64 kSignalMask = (1ull << (kWave - kSignals)) - 1;

  static Write make(u32 sequence, u32 signals, int wave, bool from_memory, bool atomic) {
    return {sequence | (signals & kSignalMask) << kSignals | static_cast<u64>(wave) << kWave |
            static_cast<u64>(from_memory) << kMemory | static_cast<u64>(atomic) << kAtomic | 1ull << kValid};
  }
  bool valid() const { return bits >> kValid & 1; }
  bool split() const { return bits >> kSplit & 1; }
  u32 sequence() const { return static_cast<u32>(bits); }
  u32 signals() const { return static_cast<u32>(bits >> kSignals & kSignalMask); }
  int wave() const { return static_cast<int>(bits >> kWave & 63); }
  bool from_memory() const { return bits >> kMemory & 1; }
  bool atomic() const { return bits >> kAtomic & 1; }
};

struct alignas(16) Cell {
  Write write;
  // Waves that have read since, and the number of barriers they had signalled (the latest such number only).
  u32 readers = 0, reader_signals = 0;
  bool operator==(const Cell&) const = default;
};

// Marks cells as read by a wave, if one write made all of them and no reader has signalled more barriers than it.
// Readers since an earlier signal are forgotten.
class ReadMark {
 public:
  ReadMark(u32 signals, u32 bit) : signals_(signals), bit_(bit) { written_by({~0ull}); }  // by nobody

#ifdef __AVX2__
  void written_by(Write w) {
    // {write, readers, reader_signals}
    marked_ = _mm256_set_epi64x(0, static_cast<i64>(w.bits), 0, static_cast<i64>(w.bits));
    marked_ = _mm256_or_si256(marked_, _mm256_set_epi32(static_cast<i32>(signals_), static_cast<i32>(bit_), 0, 0,
                                                        static_cast<i32>(signals_), static_cast<i32>(bit_), 0, 0));
  }
  template <u32 Dwords>
  bool set(Cell* cell) const {
    if constexpr (Dwords == 1) {
      const __m128i c = _mm_load_si128(reinterpret_cast<const __m128i*>(cell));
      const __m128i marked = _mm256_castsi256_si128(marked_);
      const __m128i same = _mm_cmpeq_epi32(c, marked), later = _mm_cmpgt_epi32(c, marked);
      // Both dwords of the write are the same, and the signals not more.
      const int bits = _mm_movemask_ps(_mm_castsi128_ps(_mm_blend_epi32(same, later, 8)));
      if ((bits & 0b1011) != 0b0011) return false;
      const __m128i kept = _mm_and_si128(c, _mm_srli_epi64(same, 32));
      _mm_store_si128(reinterpret_cast<__m128i*>(cell),
                      _mm_or_si128(marked, _mm_blend_epi32(_mm_setzero_si128(), kept, 4)));
      return true;
    } else {
      __m256i c[Dwords / 2], same[Dwords / 2];
      __m256i wrong = _mm256_setzero_si256();
      for (u32 i = 0; i < Dwords / 2; ++i) {
        c[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cell + 2 * i));
        same[i] = _mm256_cmpeq_epi32(c[i], marked_);
        const __m256i different = _mm256_xor_si256(c[i], marked_), later = _mm256_cmpgt_epi32(c[i], marked_);
        wrong = _mm256_or_si256(wrong, _mm256_blend_epi32(different, later, 0b10001000));
      }
      const __m256i tested = _mm256_set_epi32(-1, 0, -1, -1, -1, 0, -1, -1);  // all but the readers
      if (!_mm256_testz_si256(wrong, tested)) return false;
      for (u32 i = 0; i < Dwords / 2; ++i) {
        const __m256i kept = _mm256_and_si256(c[i], _mm256_srli_epi64(same[i], 32));
        const __m256i readers = _mm256_blend_epi32(_mm256_setzero_si256(), kept, 0b01000100);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(cell + 2 * i), _mm256_or_si256(marked_, readers));
      }
      return true;
    }
  }

 private:
  __m256i marked_;
#else
  void written_by(Write w) { write_ = w; }
  template <u32 Dwords>
  bool set(Cell* cell) const {
    for (u32 i = 0; i < Dwords; ++i) {
      if (cell[i].write.bits != write_.bits || cell[i].reader_signals > signals_) return false;
    }
    for (u32 i = 0; i < Dwords; ++i) {
      cell[i].readers = cell[i].reader_signals == signals_ ? cell[i].readers | bit_ : bit_;
      cell[i].reader_signals = signals_;
    }
    return true;
  }

 private:
  Write write_;
#endif
  u32 signals_, bit_;
};

// Marks cells as written, if one earlier write made all of them and their readers, if any, came before the last barrier
// that was passed.
class WriteMark {
 public:
  WriteMark(Write mine, u32 signals, u32 passed) : mine_{mine, 0, signals}, passed_(passed) {}
  void written_by(Write w) { before_ = w; }
  template <u32 Dwords>
  bool set(Cell* cell) const {
    u64 different = 0;
    u32 earlier = ~0u;
    for (u32 i = 0; i < Dwords; ++i) {
      different |= cell[i].write.bits ^ before_.bits;
      earlier &= static_cast<u32>(cell[i].reader_signals < passed_);
    }
    if (different || !earlier) return false;
    for (u32 i = 0; i < Dwords; ++i) cell[i] = mine_;
    return true;
  }

 private:
  Cell mine_;
  Write before_{~0ull};  // nobody's
  u32 passed_;
};

}  // namespace emu

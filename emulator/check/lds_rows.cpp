// Rows of LDS accesses that are in order (lds_cells.h). Lines of AVX-512 have been tried: on Zen 4 they take longer.
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <cstring>

#include "check/lds_cells.h"

namespace emu {
namespace {

// Cells that are looked at together.
template <u32 Cells>
struct Line {
#ifdef __AVX2__
  static_assert(Cells == 2 || Cells == 4);
  __m256i v[Cells / 2];
  static Line load(const Cell* cell) {
    Line line;
    for (u32 i = 0; i < Cells / 2; ++i) line.v[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(cell + 2 * i));
    return line;
  }
  static Line all(const u32 (&dword)[4]) {
    Line line;
    for (__m256i& part : line.v) {
      part = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(dword)));
    }
    return line;
  }
  void store(Cell* cell) const {
    for (u32 i = 0; i < Cells / 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(cell + 2 * i), v[i]);
  }
  bool fits(const Line& mask, const Line& expected, const Line& limit) const {
    __m256i all = _mm256_set1_epi32(-1);
    for (u32 i = 0; i < Cells / 2; ++i) {
      const __m256i x = _mm256_xor_si256(_mm256_and_si256(v[i], mask.v[i]), expected.v[i]);
      all = _mm256_and_si256(all, _mm256_cmpeq_epi32(_mm256_min_epu32(x, limit.v[i]), x));
    }
    return _mm256_movemask_epi8(all) == -1;
  }
  // The readers since as many signals as those of `reader` stay.
  Line read_by(const Line& reader) const {
    Line line;
    for (u32 i = 0; i < Cells / 2; ++i) {
      const __m256i same = _mm256_srli_epi64(_mm256_cmpeq_epi32(v[i], reader.v[i]), 32);
      const __m256i kept = _mm256_blend_epi32(_mm256_set1_epi32(-1), same, 0b11001100);
      line.v[i] = _mm256_or_si256(_mm256_and_si256(v[i], kept), reader.v[i]);
    }
    return line;
  }
#else
  u32 v[Cells][4];
  static Line load(const Cell* cell) {
    Line line;
    std::memcpy(line.v, cell, sizeof(line.v));
    return line;
  }
  static Line all(const u32 (&dword)[4]) {
    Line line;
    for (auto& part : line.v) std::memcpy(part, dword, sizeof(part));
    return line;
  }
  void store(Cell* cell) const { std::memcpy(cell, v, sizeof(v)); }
  bool fits(const Line& mask, const Line& expected, const Line& limit) const {
    bool all = true;
    for (u32 i = 0; i < 4 * Cells; ++i) {
      const u32 d = i % 4;
      all &= ((v[i / 4][d] & mask.v[i / 4][d]) ^ expected.v[i / 4][d]) <= limit.v[i / 4][d];
    }
    return all;
  }
  Line read_by(const Line& reader) const {
    Line line = *this;
    for (u32 i = 0; i < Cells; ++i) {
      line.v[i][2] = (v[i][3] == reader.v[i][3] ? v[i][2] : 0) | reader.v[i][2];
      line.v[i][3] = reader.v[i][3];
    }
    return line;
  }
#endif
};

#ifdef __AVX2__
template <>
struct Line<1> {
  __m128i v;
  static Line load(const Cell* cell) { return {_mm_load_si128(reinterpret_cast<const __m128i*>(cell))}; }
  static Line all(const u32 (&dword)[4]) { return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(dword))}; }
  void store(Cell* cell) const { _mm_store_si128(reinterpret_cast<__m128i*>(cell), v); }
  bool fits(Line mask, Line expected, Line limit) const {
    const __m128i x = _mm_xor_si128(_mm_and_si128(v, mask.v), expected.v);
    return _mm_movemask_epi8(_mm_cmpeq_epi32(_mm_min_epu32(x, limit.v), x)) == 0xffff;
  }
  Line read_by(Line reader) const {
    const __m128i same = _mm_srli_epi64(_mm_cmpeq_epi32(v, reader.v), 32);
    const __m128i kept = _mm_blend_epi32(_mm_set1_epi32(-1), same, 0b1100);
    return {_mm_or_si128(_mm_and_si128(v, kept), reader.v)};
  }
};
#endif
// A case of accesses that are in order: a cell is one if (x & mask) ^ expected <= limit in each of its dwords.
struct CellTest {
  u32 mask[4] = {}, expected[4] = {}, limit[4] = {};
};
constexpr u32 kReadCases = 4, kWriteCases = 9;

// The dwords of a cell: sequence of the write, the rest of the write, readers, their signals.
enum { kSequence, kRest, kReaders, kReaderSignals };
constexpr u32 rest(u64 bits) { return static_cast<u32>(bits >> 32); }
constexpr u32 kValid = rest(1ull << Write::kValid), kMemory = rest(1ull << Write::kMemory);
constexpr u32 kSignals = rest(Write::kSignalMask << Write::kSignals), kWaves = rest(63ull << Write::kWave);

void require(CellTest& test, int dword, u32 mask, u32 expected, u32 limit) {
  test.mask[dword] = mask;
  test.expected[dword] = expected;
  test.limit[dword] = limit;
}
// Values below `count`; of none of them is any.
void require_below(CellTest& test, int dword, u32 mask, u32 expected, u32 count) {
  if (count == 0) {
    require(test, dword, 0, 1, 0);
  } else {
    require(test, dword, mask, expected, count - 1);
  }
}
// Written before the barrier that was passed, or at any time by the wave itself; by LDS instructions or by loads.
void require_writer(CellTest& test, const CellAccess& access, bool own, bool memory) {
  const u32 kind = kValid | (memory ? kMemory : 0);
  if (own) {
    const u32 wave = static_cast<u32>(access.mine.wave()) << (Write::kWave - 32);
    require(test, kRest, kValid | kMemory | kWaves, kind | wave, 0);
  } else {
    require_below(test, kRest, kValid | kMemory | kSignals, kind, access.passed);
  }
  if (memory) require(test, kSequence, ~0u, 0, own ? access.own_memory_done : access.memory_done);
}

CellTest read_case(const CellAccess& access, u32 number) {
  const bool own = number & 1, memory = number & 2;
  CellTest test;
  require_writer(test, access, own, memory);
  if (!own && !memory) require(test, kSequence, ~0u, 0, access.lds_done);
  require(test, kReaderSignals, ~0u, 0, access.signals);
  return test;
}

CellTest write_case(const CellAccess& access, u32 number) {
  CellTest test;
  if (number == kWriteCases - 1) {  // never written
    require(test, kSequence, ~0u, 0, 0);
    require(test, kRest, ~0u, 0, 0);
    require(test, kReaders, ~access.bit, 0, 0);
    return test;
  }
  require_writer(test, access, number & 1, number & 2);
  if (number & 4) {
    require(test, kReaders, ~access.bit, 0, 0);
  } else {
    require_below(test, kReaderSignals, ~0u, 0, access.passed);
  }
  return test;
}

template <u32 Cells>
struct Test {  // a CellTest
  Line<Cells> mask, expected, limit;
  explicit Test(const CellTest& t)
      : mask(Line<Cells>::all(t.mask)), expected(Line<Cells>::all(t.expected)), limit(Line<Cells>::all(t.limit)) {}
  bool holds(const Line<Cells>& x) const { return x.fits(mask, expected, limit); }
};

template <u32 Dwords, bool Writes>
u64 mark_rows(Cell* cells, const CellAccess& access, const u32* address, u64 lanes, u32& usual) {
  constexpr u32 kCases = Writes ? kWriteCases : kReadCases;
  const auto test_of = [&](u32 number) {
    return Test<Dwords>(Writes ? write_case(access, number) : read_case(access, number));
  };
  const Cell cell_of_mine = Writes ? access.written() : Cell{{}, access.bit, access.signals};
  u32 dwords[4];
  std::memcpy(dwords, &cell_of_mine, sizeof(dwords));
  const Line<Dwords> mine = Line<Dwords>::all(dwords);
  u64 left = 0;
  while (lanes) {
    // As long as cells are of this case, all that is needed stays in registers.
    const Test<Dwords> test = test_of(usual);
    Cell* cell = nullptr;
    for (; lanes; lanes &= lanes - 1) {
      const int lane = __builtin_ctzll(lanes);
      const u32 from = address[lane];
      if (from & 3) {
        left |= 1ull << lane;
        continue;
      }
      cell = cells + from / 4;
      const Line<Dwords> x = Line<Dwords>::load(cell);
      if (!test.holds(x)) break;
      (Writes ? mine : x.read_by(mine)).store(cell);
    }
    if (!lanes) break;
    u32 step = 1;
    while (step < kCases && !test_of((usual + step) % kCases).holds(Line<Dwords>::load(cell))) ++step;
    usual = (usual + step) % kCases;
    if (step < kCases) continue;
    left |= lanes & -lanes;
    lanes &= lanes - 1;
  }
  return left;
}

}  // namespace

const RowFunctions kRowFunctions = {{mark_rows<1, false>, mark_rows<2, false>, mark_rows<4, false>},
                                    {mark_rows<1, true>, mark_rows<2, true>, mark_rows<4, true>}};

}  // namespace emu

// The tile instructions. Included by amx.cpp after isa.h; tests/amx_model has the same words in plain C++.
//
// A tile is 16 rows of 64 bytes, of which there are 8. C (16 x 16 fp32) += A B, over 32 numbers of 16 bits:
//   A  row-major: 16 rows of 32 numbers
//   B  "VNNI": row j holds the pairs (2j, 2j + 1) along the sum, one pair for each of the 16 columns
// TDPBF16PS takes subnormal numbers as 0, TDPFP16PS does not; subnormal sums are 0 with both (Intel SDM).
//
// GCC's intrinsics take digits alone, and GCC 12 has none for fp16: assembly there.

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
FW_INLINE void configure_tiles(const TileConfig& config) { _tile_loadconfig(&config); }
FW_INLINE void release_tiles() { _tile_release(); }

// tile_load_once (TILELOADDT1): with the hint that the data need not stay in the first-level cache, which the CPU that
// was measured heeds (NOTES.md).
#if defined(__clang__)

template <int Tile>
FW_INLINE void tile_zero() {
  _tile_zero(Tile);
}
template <int Tile>
FW_INLINE void tile_load(const void* p, int64_t bytes_apart) {
  _tile_loadd(Tile, p, bytes_apart);
}
template <int Tile>
FW_INLINE void tile_load_once(const void* p, int64_t bytes_apart) {
  _tile_stream_loadd(Tile, p, bytes_apart);
}
template <int Tile>
FW_INLINE void tile_store(void* p, int64_t bytes_apart) {
  _tile_stored(Tile, p, bytes_apart);
}
template <class T, int C, int A, int B>
FW_INLINE void tile_multiply() {
  if constexpr (std::is_same_v<T, BFloat16>) {
    _tile_dpbf16ps(C, A, B);
  } else {
    _tile_dpfp16ps(C, A, B);
  }
}

#else

template <int Tile>
FW_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Tile>
FW_INLINE void tile_load(const void* p, int64_t bytes_apart) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(bytes_apart), "i"(Tile) : "memory");
}
template <int Tile>
FW_INLINE void tile_load_once(const void* p, int64_t bytes_apart) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(bytes_apart), "i"(Tile) : "memory");
}
template <int Tile>
FW_INLINE void tile_store(void* p, int64_t bytes_apart) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(bytes_apart), "i"(Tile) : "memory");
}
template <class T, int C, int A, int B>
FW_INLINE void tile_multiply() {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  } else {  // TDPFP16PS is VEX.128.F2.0F38.W0 5C; assemblers know it from binutils 2.40 on
    asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((~B & 15) << 3 | 3), "i"(0xC0 | C << 3 | A));
  }
}

#endif

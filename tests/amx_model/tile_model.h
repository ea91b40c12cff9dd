// The words of kernels/cpu/amx_isa.h in plain C++ and AVX-512: the tile unit modelled after the operations in Intel's
// SDM (LDTILECFG, TILELOADD, TDPBF16PS, TDPFP16PS, ...), so that the AMX kernels run on CPUs without tiles. What the
// unit would refuse with #GP or #UD ends the program. Included by amx.cpp in the place of amx_isa.h.

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct TileModel {
  bool configured = false;
  TileConfig config;
  alignas(64) uint8_t bytes[8][16][64] = {};
};
thread_local TileModel tile_model;  // tiles belong to a thread

[[noreturn]] FW_NOINLINE void tile_fault(const char* what) {
  std::fprintf(stderr, "tile model: %s\n", what);
  std::abort();
}
FW_INLINE TileModel& tiles_in_use() {
  if (!tile_model.configured) tile_fault("a tile is used that nobody configured");
  return tile_model;
}

FW_NOINLINE void configure_tiles(const TileConfig& config) {
  bool sound = config.palette == 1 && config.start_row == 0;
  for (const uint8_t x : config.reserved) sound = sound && x == 0;
  for (int i = 0; i < 16; ++i) {
    const bool used = config.rows[i] != 0, described = config.bytes_per_row[i] != 0;
    sound = sound && used == described && config.rows[i] <= 16 && config.bytes_per_row[i] <= 64 && (i < 8 || !used);
  }
  if (!sound) tile_fault("LDTILECFG takes no such configuration");
  if (tile_model.configured) tile_fault("tiles are configured twice");  // allowed, but a mistake of a kernel
  tile_model.configured = true;
  tile_model.config = config;
  __builtin_memset(tile_model.bytes, 0, sizeof tile_model.bytes);
}
FW_NOINLINE void release_tiles() { tile_model.configured = false; }

template <int Tile>
FW_NOINLINE void tile_zero() {
  __builtin_memset(tiles_in_use().bytes[Tile], 0, sizeof tile_model.bytes[Tile]);
}
template <int Tile>
FW_NOINLINE void tile_load(const void* p, int64_t bytes_apart) {
  TileModel& model = tiles_in_use();
  __builtin_memset(model.bytes[Tile], 0, sizeof model.bytes[Tile]);
  for (int r = 0; r < model.config.rows[Tile]; ++r) {
    __builtin_memcpy(model.bytes[Tile][r], static_cast<const char*>(p) + r * bytes_apart,
                     model.config.bytes_per_row[Tile]);
  }
}
template <int Tile>
FW_INLINE void tile_load_once(const void* p, int64_t bytes_apart) {
  tile_load<Tile>(p, bytes_apart);
}
template <int Tile>
FW_NOINLINE void tile_store(void* p, int64_t bytes_apart) {
  const TileModel& model = tiles_in_use();
  for (int r = 0; r < model.config.rows[Tile]; ++r) {
    __builtin_memcpy(static_cast<char*>(p) + r * bytes_apart, model.bytes[Tile][r], model.config.bytes_per_row[Tile]);
  }
}

FW_INLINE V flushed(V x) { return abs(x) < 0x1p-126f ? (V)((VU)x & 0x80000000u) : x; }
FW_INLINE V flushing_fma(V a, V b, V c) { return flushed((V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c)); }

// The first and the second of 16 pairs of numbers of 16 bits.
template <class T>
FW_INLINE void widen_pairs(const void* pairs, V& first, V& second) {
  VU x;
  __builtin_memcpy(&x, pairs, sizeof x);
  if constexpr (std::is_same_v<T, BFloat16>) {
    first = flushed((V)(x << 16)), second = flushed((V)(x & 0xFFFF0000u));
  } else {  // subnormal numbers of fp16 are taken as they are
    first = (V)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x));
    second = (V)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)(x >> 16)));
  }
}

// All products of the first of each pair along the sum, all of the second, their sum, then what is there already; FMAs
// of fp32 that round to nearest and flush.
template <class T, int C, int A, int B>
FW_NOINLINE void tile_multiply() {
  TileModel& model = tiles_in_use();
  const TileConfig& size = model.config;
  if (size.rows[A] != size.rows[C] || size.bytes_per_row[A] != 4 * size.rows[B] ||
      size.bytes_per_row[B] != size.bytes_per_row[C] || C == A || C == B || A == B) {
    tile_fault("tiles of these sizes cannot be multiplied");
  }
  V b[16][2];
  for (int k = 0; k < 16; ++k) widen_pairs<T>(model.bytes[B][k], b[k][0], b[k][1]);
  for (int m = 0; m < size.rows[C]; ++m) {
    alignas(64) float a[2][16];
    V first, second, sum[2] = {V{}, V{}}, c;
    widen_pairs<T>(model.bytes[A][m], first, second);
    store(a[0], first), store(a[1], second);
    for (int k = 0; k < size.rows[B]; ++k) {
      for (int i = 0; i < 2; ++i) sum[i] = flushing_fma(splat(a[i][k]), b[k][i], sum[i]);
    }
    __builtin_memcpy(&c, model.bytes[C][m], sizeof c);
    c = flushed(flushed(c) + flushed(sum[0] + sum[1]));
    __builtin_memcpy(model.bytes[C][m], &c, size.bytes_per_row[C]);
  }
}

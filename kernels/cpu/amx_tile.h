// Tile registers: their configuration, the product of 2 x 2 tiles that every product of both directions runs through,
// and the packing that feeds it. Included by amx.cpp after rows.h.
//
// A tile is 16 rows of 64 bytes. C (16 x 16 fp32) += A B, over 32 numbers of bf16:
//   A  row-major: 16 rows of 32 numbers
//   B  "VNNI": row j holds the pairs (2j, 2j + 1) along the sum, one pair for each of the 16 columns
// Tile products treat subnormal inputs and results as 0 (Intel SDM, TDPBF16PS).

typedef uint16_t VU16x32 __attribute__((vector_size(64)));
constexpr int kSide = abi::kAmxSide, kUnit = abi::kAmxUnit;
static_assert(kSide == NQ);

// The tiles are configured while it lives. One per task: on the caller's or OpenMP's threads other code configures
// tiles for itself, and a tile state left behind costs 8 KiB at every context switch. Costs 70 to 100 ns.
struct TileScope {
  FW_INLINE TileScope() {
    struct alignas(64) {
      uint8_t palette, start_row, reserved[14];
      uint16_t bytes_per_row[16];
      uint8_t rows[16];
    } config{};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) config.bytes_per_row[i] = 64, config.rows[i] = 16;
    _tile_loadconfig(&config);
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  FW_INLINE ~TileScope() { _tile_release(); }
};

// ---- products ------------------------------------------------------------------------------------------------------

struct Place {  // of 2 x 2 tiles of results: 32 x 32 floats, ld apart
  float* at = nullptr;
  int64_t ld = 0;
};
enum class Start { kGoOn, kZero, kLoad };

template <int Tile>
FW_INLINE float* quarter(Place p) {
  return p.at + (Tile / 2) * 16 * p.ld + (Tile % 2) * 16;
}

// 2 x 2 results (tiles 0..3) += A (4, 5) * B (6, 7). Where new results start, the old ones go to `done` first: a store
// right after its product would hold up everything behind it. between(i) is called after product i: vector
// instructions run beside a product only if they stand right behind it (NOTES.md).
template <Start kStart, class Between>
FW_INLINE void step_2x2(const uint16_t* a0, const uint16_t* a1, int64_t a_bytes, const uint16_t* b, Place done,
                        Place from, Between&& between) {
#define FW_START(T)                                                           \
  if (kStart != Start::kGoOn) _tile_stored(T, quarter<T>(done), done.ld * 4); \
  if (kStart == Start::kZero) _tile_zero(T);                                  \
  if (kStart == Start::kLoad) _tile_loadd(T, quarter<T>(from), from.ld * 4);
  _tile_loadd(6, b, 64);
  _tile_loadd(4, a0, a_bytes);
  FW_START(0)
  _tile_dpbf16ps(0, 4, 6);
  between(0);
  _tile_loadd(7, b + 512, 64);
  FW_START(1)
  _tile_dpbf16ps(1, 4, 7);
  between(1);
  _tile_loadd(5, a1, a_bytes);
  FW_START(2)
  _tile_dpbf16ps(2, 5, 6);
  between(2);
  FW_START(3)
  _tile_dpbf16ps(3, 5, 7);
  between(3);
#undef FW_START
}
FW_INLINE void store_2x2(Place to) {
  _tile_stored(0, quarter<0>(to), to.ld * 4);
  _tile_stored(1, quarter<1>(to), to.ld * 4);
  _tile_stored(2, quarter<2>(to), to.ld * 4);
  _tile_stored(3, quarter<3>(to), to.ld * 4);
}

// 32 rows of A (a, dim numbers apart) times B, summed over dim: one unit of scores.
template <class Between>
FW_INLINE void score_unit(const uint16_t* a, const uint16_t* b, int dim, Place done, Between&& between) {
  const uint16_t* a1 = a + 16 * dim;
  step_2x2<Start::kZero>(a, a1, dim * 2, b, done, {}, between);
  FW_NO_UNROLL for (int c = 32; c < dim; c += 32) {
    step_2x2<Start::kGoOn>(a + c, a1 + c, dim * 2, b + c * 32, {}, {}, between);
  }
}

// ---- 2^x -----------------------------------------------------------------------------------------------------------

// While tile products run, FMAs, multiplications and vscalefps have one port instead of two; additions keep both. Floor
// by an addition that rounds down, a polynomial of degree 4 on the fraction (relative error 2.9e-6; exactly 1 at 0).
// |x| < 2^22; lanes outside `keep` are 0.
template <bool kMasked>
FW_INLINE __m512 exp2_beside_tiles(__m512 x, __mmask16 keep) {
  const __m512 magic = _mm512_set1_ps(12582912.f);  // 1.5 * 2^23
  const __m512 n = _mm512_sub_ps(_mm512_add_round_ps(x, magic, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), magic);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.01342668f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05224247f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2412802f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69304484f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
  return kMasked ? _mm512_maskz_scalef_ps(keep, p, n) : _mm512_scalef_ps(p, n);
}

// Bits [first, last) of 32, both clamped.
FW_INLINE uint32_t bits_between(int32_t first, int32_t last) {
  const auto below = [](int32_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1; };
  return below(last) & ~below(first);
}

// ---- packing -------------------------------------------------------------------------------------------------------

// Numbers [c, c + 32) of a row of n; beyond it, and of a null row, 0.
FW_INLINE __m512i load_row(const BFloat16* row, int c, int n) {
  if (!row || c >= n) return _mm512_setzero_si512();
  return n - c >= 32 ? _mm512_loadu_si512(row + c) : _mm512_maskz_loadu_epi16((1u << (n - c)) - 1, row + c);
}

// 16 x 16 transpose of 32-bit units.
FW_INLINE void transpose_pairs(__m512i (&r)[16]) {
  V x[W];
  FW_UNROLL for (int i = 0; i < W; ++i) x[i] = (V)r[i];
  transpose(x);
  FW_UNROLL for (int i = 0; i < W; ++i) r[i] = (__m512i)x[i];
}

FW_INLINE __m512 no_nan(__m512 x) {  // infinity instead
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_ps(kInf));
}

// 32 rows as A: [row][dim], dim = n padded.
FW_NOINLINE void pack_rows(const BFloat16* const* rows, int n, int dim, uint16_t* out) {
  for (int r = 0; r < kSide; ++r) {
    for (int c = 0; c < dim; c += 32) _mm512_store_si512(out + r * dim + c, load_row(rows[r], c, n));
  }
}

// 32 rows as B of a sum over their columns: [32 columns][16 rows][1 KiB]. Returns the largest length of a row squared.
FW_NOINLINE float pack_transposed(const BFloat16* const* rows, int n, int dim, uint16_t* out) {
  __m512 length = _mm512_setzero_ps();
  for (int g = 0; g < kSide; g += 16) {
    __m512 squares = _mm512_setzero_ps();
    for (int c = 0; c < dim; c += 32) {
      __m512i r[16];
      FW_UNROLL for (int i = 0; i < 16; ++i) r[i] = load_row(rows[g + i], c, n);
      transpose_pairs(r);
      FW_UNROLL for (int i = 0; i < 16; ++i) {
        _mm512_store_si512(out + c * 32 + g * 32 + i * 32, r[i]);
        squares = _mm512_dpbf16_ps(squares, (__m512bh)r[i], (__m512bh)r[i]);
      }
    }
    length = _mm512_max_ps(length, no_nan(squares));
  }
  return _mm512_reduce_max_ps(length);
}

// 32 rows as B of a sum over the rows: [32 columns][2 tiles]. The columns of a pair of tiles are in the order in which
// unpacking leaves them (ordered_columns). Returns the largest magnitude, infinity for NaN, if asked to.
template <bool kExtent>
FW_NOINLINE float pack_pairs(const BFloat16* const* rows, int n, int dim, uint16_t* out) {
  __m512i top = _mm512_setzero_si512();
  for (int j = 0; j < 16; ++j) {
    for (int c = 0; c < dim; c += 32) {
      const __m512i a = load_row(rows[2 * j], c, n), b = load_row(rows[2 * j + 1], c, n);
      _mm512_store_si512(out + c * 32 + j * 32, _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(out + c * 32 + 512 + j * 32, _mm512_unpackhi_epi16(a, b));
      if (!kExtent) continue;
      const __m512i sign = _mm512_set1_epi16(0x7FFF);
      top = _mm512_max_epu16(top, _mm512_max_epu16(_mm512_and_si512(a, sign), _mm512_and_si512(b, sign)));
    }
  }
  if (!kExtent) return 0.f;
  alignas(64) uint16_t t[32];
  _mm512_store_si512(t, top);
  uint16_t largest = 0;
  for (const uint16_t x : t) largest = x > largest ? x : largest;
  return largest >= 0x7F80 ? kInf : to_float(BFloat16{largest});
}

// 32 rows of [row][dim] -> [dim][row], as A of a sum over the rows. Returns the largest length of a row squared.
FW_NOINLINE float transpose_rows(const uint16_t* rows, int dim, uint16_t* out) {
  VU16x32 even;
  FW_UNROLL for (int i = 0; i < 32; ++i) even[i] = uint16_t(i < 16 ? 2 * i : 32 + 2 * (i - 16));
  __m512 squares[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int c = 0; c < dim; c += 32) {
    __m512i r[2][16];
    FW_UNROLL for (int g = 0; g < 2; ++g) {
      FW_UNROLL for (int i = 0; i < 16; ++i) r[g][i] = _mm512_load_si512(rows + (g * 16 + i) * dim + c);
      transpose_pairs(r[g]);
    }
    FW_UNROLL for (int i = 0; i < 16; ++i) {
      const __m512i a = r[0][i], b = r[1][i];
      squares[0] = _mm512_dpbf16_ps(squares[0], (__m512bh)a, (__m512bh)a);
      squares[1] = _mm512_dpbf16_ps(squares[1], (__m512bh)b, (__m512bh)b);
      _mm512_store_si512(out + (c + 2 * i) * kSide, _mm512_permutex2var_epi16(a, (__m512i)even, b));
      _mm512_store_si512(out + (c + 2 * i + 1) * kSide, _mm512_permutex2var_epi16(a, (__m512i)(even + 1), b));
    }
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(no_nan(squares[0]), no_nan(squares[1])));
}

// Two registers of 16 results whose columns are in the order pack_pairs() left -> columns 0..15 and 16..31.
FW_INLINE void ordered_columns(V& lo, V& hi) {
  const V a = lo, b = hi;
  lo = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  hi = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
}
// Writes columns of a row of results that pack_pairs() put out of order, scaled.
template <class T>
FW_INLINE void write_ordered(T* out, const float* x, int n, float factor) {
  for (int c = 0; c < n; c += 32) {
    V lo = load(x + c) * factor, hi = load(x + c + 16) * factor;
    ordered_columns(lo, hi);
    if constexpr (std::is_same_v<T, BFloat16>) {
      const uint32_t mask = n - c >= 32 ? ~0u : (1u << (n - c)) - 1;
      _mm512_mask_storeu_epi16(out + c, mask, (__m512i)_mm512_cvtne2ps_pbh((__m512)hi, (__m512)lo));
    } else {
      store_part(out + c, lo, n - c);
      if (n - c > 16) store_part(out + c + 16, hi, n - c - 16);
    }
  }
}

// The same in fp32, with `keep` times what is there.
FW_INLINE void add_ordered(float* out, const float* x, int n, float factor, float keep) {
  for (int c = 0; c < n; c += 32) {
    V lo = load(x + c) * factor, hi = load(x + c + 16) * factor;
    ordered_columns(lo, hi);
    add_part(out + c, lo, n - c, keep);
    if (n - c > 16) add_part(out + c + 16, hi, n - c - 16, keep);
  }
}

// count (<= 32) rows from `at` on; null beyond.
FW_INLINE void unit_pointers(const Scope& scope, const abi::Tensor& t, int64_t key, int64_t end,
                             const BFloat16** rows) {
  for (int i = 0; i < kSide; ++i) {
    rows[i] = key + i < end ? scope.key_pointer<const BFloat16>(t, key + i) : nullptr;
  }
}

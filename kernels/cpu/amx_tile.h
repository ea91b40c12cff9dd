// Tile registers: their configuration, the product of 2 x 2 tiles that every product of both directions runs through,
// and the packing that feeds it. Included by amx.cpp after rows.h.

constexpr int kSide = abi::kAmxSide, kUnit = abi::kAmxUnit;
static_assert(kSide == NQ);

// Vectors take subnormal numbers as 0 while it lives, as tile products do: each would cost more than 100 cycles, and
// weights have them.
struct TileArithmetic {
  const uint32_t float_mode;
  FW_INLINE TileArithmetic() : float_mode(take_subnormals_as_zero()) {}
  TileArithmetic(const TileArithmetic&) = delete;
  TileArithmetic& operator=(const TileArithmetic&) = delete;
  FW_INLINE ~TileArithmetic() { set_float_mode(float_mode); }
};

// The tiles are configured while it lives. One per task: on the caller's or OpenMP's threads other code configures
// tiles for itself, and a tile state left behind costs 8 KiB at every context switch. Costs 70 to 100 ns.
struct TileScope {
  const TileArithmetic arithmetic;
  FW_INLINE TileScope() { configure_tiles(TileConfig{}); }
  FW_INLINE ~TileScope() { release_tiles(); }
};

// ---- element types -------------------------------------------------------------------------------------------------

// What the kernels call an element: a type in memory, and of how many numbers of which type it is the sum on tiles.
template <class Element>
struct InTiles {
  using Number = Element;
  using Part = Element;
  static constexpr int kParts = 1;
};
// fp16 for tiles of bf16: x = high + low, x y = low high + high high + high low. What is left out, low low, is 2^-18 of
// it.
struct SplitHalf {};
template <>
struct InTiles<SplitHalf> {
  using Number = Half;
  using Part = BFloat16;
  static constexpr int kParts = 2;
};
template <class Element>
using Number = typename InTiles<Element>::Number;
template <class Element>
using Part = typename InTiles<Element>::Part;
template <class Element>
constexpr int kParts = InTiles<Element>::kParts;

// ---- products ------------------------------------------------------------------------------------------------------

// Operands, and results that are added to, lie in memory tile by tile, 1 KiB each, rows 64 bytes apart: a tile read out
// of a wider matrix has its rows in few sets of the first-level cache. Scores, which vectors read, lie row by row
// (NOTES.md). The low parts of numbers that are two lie behind the high parts of the same two tiles.
constexpr int kTileFloats = 256, kTileHalves = 512;
constexpr int64_t kRowBytes = 64;

struct Place {  // of 2 x 2 tiles of results, 32 x 32 numbers
  float* at = nullptr;
  int64_t row_bytes = kRowBytes;
  int right = kTileFloats;  // from the left tiles to the right ones; to the lower ones it is two tiles

  template <int kTile>
  FW_INLINE float* tile() const {
    return at + kTile / 2 * 2 * kTileFloats + kTile % 2 * right;
  }
};
FW_INLINE Place by_rows(float* at) { return {at, kSide * 4, 16}; }

// Where number (r, c) lies tile by tile; c may go on into the 32 columns that follow, and so on.
FW_INLINE constexpr unsigned in_tiles(unsigned r, unsigned c) {
  return c / kSide * kUnit + (r / 16 * 2 + c % kSide / 16) * kTileFloats + r % 16 * 16 + c % 16;
}

enum class Start { kGoOn, kZero, kLoad };

// 2 x 2 results (tiles 0..3) += A (4, 5) * B (6, 7). Where new results start, the old ones go to `done` first: a store
// right after its product would hold up everything behind it. between(i) is called after product i: vector
// instructions run beside a product only if they stand right behind it (NOTES.md). B streams from the second-level
// cache and leaves what is in the first where it is.
//
// kFirst: the number of the first product. Tiles of A or B that are not loaded are those of before.
template <class T, int kFirst, bool kLoadA, bool kLoadB, class Prepare, class Between>
FW_INLINE void multiply_2x2(const uint16_t* a, const uint16_t* b, Prepare&& prepare, Between&& between) {
  if constexpr (kLoadB) tile_load_once<6>(b, kRowBytes);
  if constexpr (kLoadA) tile_load<4>(a, kRowBytes);
  prepare(std::integral_constant<int, 0>{});
  tile_multiply<T, 0, 4, 6>();
  between(kFirst);
  if constexpr (kLoadB) tile_load_once<7>(b + kTileHalves, kRowBytes);
  prepare(std::integral_constant<int, 1>{});
  tile_multiply<T, 1, 4, 7>();
  between(kFirst + 1);
  if constexpr (kLoadA) tile_load<5>(a + kTileHalves, kRowBytes);
  prepare(std::integral_constant<int, 2>{});
  tile_multiply<T, 2, 5, 6>();
  between(kFirst + 2);
  prepare(std::integral_constant<int, 3>{});
  tile_multiply<T, 3, 5, 7>();
  between(kFirst + 3);
}
template <class Element>
constexpr int kProducts = kParts<Element> == 1 ? 4 : 12;  // of a step

template <class Element, Start kStart, class Between>
FW_INLINE void step_2x2(const uint16_t* a, const uint16_t* b, Place done, const float* from, Between&& between) {
  const auto start = [&](auto tile) __attribute__((always_inline)) {
    constexpr int kTile = decltype(tile)::value;
    if constexpr (kStart != Start::kGoOn) tile_store<kTile>(done.tile<kTile>(), done.row_bytes);
    if constexpr (kStart == Start::kZero) tile_zero<kTile>();
    if constexpr (kStart == Start::kLoad) tile_load<kTile>(from + kTile * kTileFloats, kRowBytes);
  };
  using T = Part<Element>;
  if constexpr (kParts<Element> == 1) {
    multiply_2x2<T, 0, true, true>(a, b, start, between);
  } else {  // each tile is loaded once, and B in the order in which it lies
    const auto go_on = [](auto) __attribute__((always_inline)) {};
    multiply_2x2<T, 0, true, true>(a + 2 * kTileHalves, b, start, between);
    multiply_2x2<T, 4, true, false>(a, nullptr, go_on, between);
    multiply_2x2<T, 8, false, true>(nullptr, b + 2 * kTileHalves, go_on, between);
  }
}
FW_INLINE void store_2x2(Place to) {
  tile_store<0>(to.tile<0>(), to.row_bytes);
  tile_store<1>(to.tile<1>(), to.row_bytes);
  tile_store<2>(to.tile<2>(), to.row_bytes);
  tile_store<3>(to.tile<3>(), to.row_bytes);
}

// 32 rows of A times B, summed over dim: one unit of scores.
template <class Element, class Between>
FW_INLINE void score_unit(const uint16_t* a, const uint16_t* b, int dim, Place done, Between&& between) {
  constexpr int kColumn = 32 * kParts<Element>;
  step_2x2<Element, Start::kZero>(a, b, done, nullptr, between);
  FW_NO_UNROLL for (int c = 32; c < dim; c += 32) {
    step_2x2<Element, Start::kGoOn>(a + c * kColumn, b + c * kColumn, {}, nullptr, between);
  }
}

// Results += A * B of numbers in two parts by vectors, a number at a time: an infinity times a low part of 0 would be
// NaN.
FW_NOINLINE void plain_step_2x2(const uint16_t* a, const uint16_t* b, Place results) {
  for (int i = 0; i < kSide * 2; ++i) {
    const int r = i / 2, right = i % 2;
    float* const c = results.at + r / 16 * 2 * kTileFloats + right * results.right + r % 16 * (results.row_bytes / 4);
    V sum = load(c);
    for (int k = 0; k < 32; ++k) {
      const uint16_t *x = a + r * 32 + k, *y = b + right * kTileHalves + k / 2 * 32;
      const auto widened = [&](const uint16_t* pairs) __attribute__((always_inline)) {
        return k % 2 ? second_of_pairs(load_aligned_32(pairs)) : first_of_pairs(load_aligned_32(pairs));
      };
      sum += (to_float(BFloat16{x[0]}) + to_float(BFloat16{x[kUnit]})) * (widened(y) + widened(y + kUnit));
    }
    store(c, sum);
  }
}
FW_INLINE void plain_score_unit(const uint16_t* a, const uint16_t* b, int dim, float* scores) {
  __builtin_memset(scores, 0, kUnit * sizeof(float));
  for (int c = 0; c < dim; c += 32) plain_step_2x2(a + c * 64, b + c * 64, by_rows(scores));
}

// Bits [first, last) of 32, both clamped.
FW_INLINE uint32_t bits_between(int32_t first, int32_t last) {
  const auto below = [](int32_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1; };
  return below(last) & ~below(first);
}

// ---- packing -------------------------------------------------------------------------------------------------------

// Numbers [c, c + 32) of a row of n; beyond it, and of a null row, 0.
template <class T>
FW_INLINE VU16x32 load_row(const T* row, int c, int n) {
  if (!row || c >= n) return VU16x32{};
  return n - c >= 32 ? load_32(row + c) : load_part_32(row + c, n - c);
}

// 16 x 16 transpose of 32-bit units.
FW_INLINE void transpose_pairs(VU16x32 (&r)[16]) {
  V x[W];
  FW_UNROLL for (int i = 0; i < W; ++i) x[i] = (V)r[i];
  transpose(x);
  FW_UNROLL for (int i = 0; i < W; ++i) r[i] = (VU16x32)x[i];
}

// The parts of 32 numbers.
template <class Element>
FW_INLINE void parts_of(VU16x32 x, VU16x32 (&parts)[kParts<Element>]) {
  if constexpr (kParts<Element> == 1) {
    parts[0] = x;
  } else {
    split_32(x, parts[0], parts[1]);
  }
}

// 32 rows as A: [32 columns][part][row], dim = n padded.
template <class Element>
FW_NOINLINE void pack_rows(const Number<Element>* const* rows, int n, int dim, uint16_t* out) {
  for (int r = 0; r < kSide; ++r) {
    for (int c = 0; c < dim; c += 32) {
      VU16x32 x[kParts<Element>];
      parts_of<Element>(load_row(rows[r], c, n), x);
      for (int i = 0; i < kParts<Element>; ++i) store_32(out + (c * kParts<Element> + i * kSide + r) * 32, x[i]);
    }
  }
}

// 32 rows as B of a sum over their columns: [32 columns][part][16 rows][1 KiB]. Returns the largest length of a row
// squared, of the first parts: within 2^-8 of it.
template <class Element>
FW_NOINLINE float pack_transposed(const Number<Element>* const* rows, int n, int dim, uint16_t* out) {
  V length{};
  for (int g = 0; g < kSide; g += 16) {
    V squares{};
    for (int c = 0; c < dim; c += 32) {
      VU16x32 r[kParts<Element>][16];
      FW_UNROLL for (int i = 0; i < 16; ++i) {
        VU16x32 x[kParts<Element>];
        parts_of<Element>(load_row(rows[g + i], c, n), x);
        FW_UNROLL for (int part = 0; part < kParts<Element>; ++part) r[part][i] = x[part];
      }
      FW_UNROLL for (int part = 0; part < kParts<Element>; ++part) {
        uint16_t* const to = out + (c * kParts<Element> + part * kSide + g) * 32;
        transpose_pairs(r[part]);
        FW_UNROLL for (int i = 0; i < 16; ++i) {
          store_32(to + i * 32, r[part][i]);
          if (part == 0) squares = add_squares<Part<Element>>(squares, r[part][i]);
        }
      }
    }
    length = max_number(length, no_nan(squares));
  }
  return largest_lane(length);
}

template <class T>
constexpr uint16_t kInfinityBits = std::is_same_v<T, Half> ? 0x7C00 : 0x7F80;

// 32 rows as B of a sum over the rows: [32 columns][part][2 tiles]. The columns of a pair of tiles are in the order in
// which unpacking leaves them (ordered_columns); pairs of rows are those that store_weights() makes of keys. Returns
// the largest magnitude, infinity for NaN, if asked to.
template <class Element, bool kExtent>
FW_NOINLINE float pack_pairs(const Number<Element>* const* rows, int n, int dim, uint16_t* out) {
  using T = Number<Element>;
  constexpr bool kSplit = kParts<Element> == 2;
  VU16x32 top{};
  for (int j = 0; j < 16; ++j) {
    for (int c = 0; c < dim; c += 32) {
      const VU16x32 a = load_row(rows[kSplit ? j : 2 * j], c, n), b = load_row(rows[kSplit ? j + 16 : 2 * j + 1], c, n);
      VU16x32 a_parts[kParts<Element>], b_parts[kParts<Element>];
      parts_of<Element>(a, a_parts), parts_of<Element>(b, b_parts);
      FW_UNROLL for (int part = 0; part < kParts<Element>; ++part) {
        uint16_t* const to = out + (c * kParts<Element> + part * kSide + j) * 32;
        store_32(to, interleave_low(a_parts[part], b_parts[part]));
        store_32(to + kTileHalves, interleave_high(a_parts[part], b_parts[part]));
      }
      if (!kExtent) continue;
      top = max_32(top, max_32(a & 0x7FFF, b & 0x7FFF));
    }
  }
  if (!kExtent) return 0.f;
  alignas(64) uint16_t t[32];
  store_32(t, top);
  uint16_t largest = 0;
  for (const uint16_t x : t) largest = x > largest ? x : largest;
  return largest >= kInfinityBits<T> ? kInf : to_float(T{largest});
}

// A row of 32 weights, as A of a sum over its columns. The two parts are the upper half of each number and that of the
// rest: no conversion, which would take a port from tile products (NOTES.md), and columns in the order 0, 16, 1, 17,
// ... kFinite: there is no infinity among them, whose rest would be NaN.
template <class Element, bool kFinite = true>
FW_INLINE void store_weights(uint16_t* out, V low, V high) {
  if constexpr (kParts<Element> == 1) {
    store_32(out, round_32<Number<Element>>(low, high));
  } else {
    const auto rest = [](V x) __attribute__((always_inline)) {
      const V upper = (V)((VU)x & 0xFFFF0000u);
      return kFinite ? x - upper : x == upper ? V{} : x - upper;
    };
    store_32(out, upper_halves(low, high));
    store_32(out + kUnit, upper_halves(rest(low), rest(high)));
  }
}

// 32 rows as pack_rows() leaves them -> [32 columns][part][column][row], as A of a sum over the rows. Returns the
// largest length of a row squared, as pack_transposed().
template <class Element>
FW_NOINLINE float transpose_rows(const uint16_t* rows, int dim, uint16_t* out) {
  VU16x32 even;
  FW_UNROLL for (int i = 0; i < 32; ++i) even[i] = uint16_t(i < 16 ? 2 * i : 32 + 2 * (i - 16));
  V squares[2] = {V{}, V{}};
  for (int c = 0; c < dim * kParts<Element>; c += 32) {
    VU16x32 r[2][16];
    FW_UNROLL for (int g = 0; g < 2; ++g) {
      FW_UNROLL for (int i = 0; i < 16; ++i) r[g][i] = load_aligned_32(rows + (c + g * 16 + i) * 32);
      transpose_pairs(r[g]);
    }
    const bool first_part = kParts<Element> == 1 || c / 32 % 2 == 0;
    FW_UNROLL for (int i = 0; i < 16; ++i) {
      const VU16x32 a = r[0][i], b = r[1][i];
      if (first_part) {
        squares[0] = add_squares<Part<Element>>(squares[0], a);
        squares[1] = add_squares<Part<Element>>(squares[1], b);
      }
      store_32(out + (c + 2 * i) * kSide, pick_32(a, even, b));
      store_32(out + (c + 2 * i + 1) * kSide, pick_32(a, even + 1, b));
    }
  }
  return largest_lane(max_number(no_nan(squares[0]), no_nan(squares[1])));
}

// Two registers of 16 results whose columns are in the order pack_pairs() left -> columns 0..15 and 16..31.
FW_INLINE void ordered_columns(V& lo, V& hi) {
  const V a = lo, b = hi;
  lo = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  hi = __builtin_shufflevector(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
}
// The same for 32 columns of a row of results, scaled; `row` is in the left tile.
FW_INLINE void load_ordered(const float* row, float factor, V& lo, V& hi) {
  lo = load(row) * factor, hi = load(row + kTileFloats) * factor;
  ordered_columns(lo, hi);
}
// Writes n columns of a row; those from 32 on lie `next` numbers away, and so on.
template <class T>
FW_INLINE void write_ordered(T* out, const float* row, int next, int n, float factor) {
  for (int c = 0; c < n; c += 32, row += next) {
    V lo, hi;
    load_ordered(row, factor, lo, hi);
    if constexpr (sizeof(T) == 2) {
      store_part_32(out + c, round_32<T>(lo, hi), n - c);
    } else {
      store_part(out + c, lo, n - c);
      if (n - c > 16) store_part(out + c + 16, hi, n - c - 16);
    }
  }
}

// The same in fp32, with `keep` times what is there.
FW_INLINE void add_ordered(float* out, const float* row, int next, int n, float factor, float keep) {
  for (int c = 0; c < n; c += 32, row += next) {
    V lo, hi;
    load_ordered(row, factor, lo, hi);
    add_part(out + c, lo, n - c, keep);
    if (n - c > 16) add_part(out + c + 16, hi, n - c - 16, keep);
  }
}

// count (<= 32) rows from `at` on; null beyond.
template <class T>
FW_INLINE void unit_pointers(const Scope& scope, const abi::Tensor& t, int64_t key, int64_t end, const T** rows) {
  for (int i = 0; i < kSide; ++i) {
    rows[i] = key + i < end ? scope.key_pointer<const T>(t, key + i) : nullptr;
  }
}

// Tiles: the register micro-kernel that every product of both directions runs through, and the packing that feeds it.
// Included by the per-instruction-set files after products.h.

// c[M][NQ] += sum over k < count of A[i, k] * B[k, 0..NQ): A's unit at a[i * RowStride + k * StepStride], B's row at
// b + k * Ldb. M * NV accumulators stay in registers; one broadcast of A serves NV FMAs.
template <int M, int RowStride, int StepStride, int Ldb>
FW_INLINE void multiply_tile(V (&c)[M][NV], const float* __restrict a, const float* __restrict b, int count) {
  auto step = [&](const float* x, const float* y) __attribute__((always_inline)) {
    V b0 = load(y), b1 = load(y + W);
    const Factors<M, RowStride> factors(x);
    FW_UNROLL for (int i = 0; i < M; ++i) {
      const V s = factors[i];
      c[i][0] = Product::add(c[i][0], s, b0);
      c[i][1] = Product::add(c[i][1], s, b1);
    }
  };
  int k = 0;
  FW_NO_UNROLL for (; k + 2 <= count; k += 2) {
    step(a, b);
    step(a + StepStride, b + Ldb);
    a += 2 * StepStride;
    b += 2 * Ldb;
  }
  if (k < count) step(a, b);
}

template <int M>
FW_INLINE void clear(V (&c)[M][NV]) {
  FW_UNROLL for (int i = 0; i < M; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) c[i][j] = V{};
}
template <int M, int Ld>
FW_INLINE void load_tile(V (&c)[M][NV], const float* p) {
  FW_UNROLL for (int i = 0; i < M; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) c[i][j] = load(p + i * Ld + j * W);
}
template <int M, int Ld>
FW_INLINE void store_tile(float* p, const V (&c)[M][NV]) {
  FW_UNROLL for (int i = 0; i < M; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) store(p + i * Ld + j * W, c[i][j]);
}
template <int M, int Ld>
FW_INLINE void add_tile(float* p, const V (&c)[M][NV]) {
  FW_UNROLL for (int i = 0; i < M; ++i) FW_UNROLL for (int j = 0; j < NV; ++j) {
    float* at = p + i * Ld + j * W;
    store(at, load(at) + c[i][j]);
  }
}

// ---- strips: how a head dimension is cut into tile rows -------------------------------------------------------------

// d rows as full strips of MR, then strips of 2/3 MR, or a single one of 1/3 MR when d is that small. 64 = 10*6 + 4
// and 128 = 20*6 + 2*4 on AVX2: a last strip of 2 rows would leave the FMA units half idle.
struct Strips {
  static constexpr int kUnit = MR / 3;
  int full, wide, thin;  // counts of MR, 2*kUnit and kUnit rows

  explicit FW_INLINE Strips(int d) {
    const int units = (d + kUnit - 1) / kUnit;
    full = units / 3, wide = 0, thin = 0;
    if (units % 3 == 2) wide = 1;
    if (units % 3 == 1) {
      if (full > 0) {
        --full, wide = 2;
      } else {
        thin = 1;
      }
    }
  }
  FW_INLINE int rows() const { return full * MR + (wide * 2 + thin) * kUnit; }  // = kTile.strip_rows(d)

  // body(std::integral_constant<int, M>, first row) for each strip.
  template <class Body>
  FW_INLINE void for_each(Body&& body) const {
    int row = 0;
    for (int s = 0; s < full; ++s, row += MR) body(std::integral_constant<int, MR>{}, row);
    for (int s = 0; s < wide; ++s, row += 2 * kUnit) body(std::integral_constant<int, 2 * kUnit>{}, row);
    for (int s = 0; s < thin; ++s, row += kUnit) body(std::integral_constant<int, kUnit>{}, row);
  }
};

// ---- packing: any storage type and layout to tiles of units --------------------------------------------------------

// Rows come as pointers, so that dense, varlen, paged and GQA-packed inputs all look alike; a null row packs as zeros.
// Stores are W wide and overlap: what one leaves past its M units the next overwrites, hence kSlack at the end.

constexpr int kSlack = W;
constexpr int kPieces = (MR + W - 1) / W;  // registers that hold MR floats

constexpr int round_up(int x, int to) { return (x + to - 1) / to * to; }
constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// Rows of one head lie far apart, where the hardware does not look ahead.
template <class T>
FW_INLINE void prefetch_row(const T* row, int n) {
  for (int byte = 0; byte < n * int(sizeof(T)); byte += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
}

// W rows by W units from unit c on (n numbers exist), scaled, transposed: r[j] = unit c + j of the W rows.
template <class Of, class T>
FW_INLINE void load_transposed(V (&r)[W], const T* const* rows, int valid_rows, int c, int n, float scale) {
  FW_UNROLL for (int i = 0; i < W; ++i) { r[i] = i < valid_rows && rows[i] ? Of::load(rows[i], c, n, scale) : V{}; }
  transpose(r);
}

// NQ rows of n -> [unit][NQ]: one panel of queries, the B side of a product over the head dimension. While it waits for
// these rows it fetches `ahead`, those of the next panel (or null): a transpose alone has too few loads under way.
template <class Of, class T>
FW_NOINLINE void pack_panel(const T* const* rows, const T* const* ahead, int n, float scale, float* out) {
  constexpr int kNumbers = Of::kNumbers;
  const int units = (n + kNumbers - 1) / kNumbers;
  for (int g = 0; g < NQ; g += W) {
    for (int c = 0; c < units; c += W) {
      V r[W];
      load_transposed<Of>(r, rows + g, W, c, n, scale);
      if (ahead && c * kNumbers * int(sizeof(T)) % 64 == 0) {
        FW_UNROLL for (int i = 0; i < W; ++i) {
          if (ahead[g + i]) __builtin_prefetch(ahead[g + i] + c * kNumbers, 0, 2);
        }
      }
      const int m = units - c < W ? units - c : W;
      for (int j = 0; j < m; ++j) store(out + (c + j) * NQ + g, r[j]);
    }
  }
}

// count rows -> groups of MR: [ceil(count/MR)][unit][MR], the A side of a product over the head dimension.
template <class T>
FW_NOINLINE void pack_groups(const T* const* rows, int count, int n, float* out) {
  const int units = units_of(n);
  for (int first = 0; first < count; first += MR, out += units * MR) {
    const int valid = count - first < MR ? count - first : MR;
    for (int c = 0; c < units; c += W) {
      V r[kPieces][W];
      FW_UNROLL for (int i = 0; i < kPieces; ++i) {
        load_transposed<Product>(r[i], rows + first + i * W, valid - i * W, c, n, 1.f);
      }
      const int m = units - c < W ? units - c : W;
      for (int j = 0; j < m; ++j) {
        FW_UNROLL for (int i = 0; i < kPieces; ++i) store_u(out + (c + j) * MR + i * W, r[i][j]);
      }
    }
  }
}

// Columns [c, c + W) of a row of n, of which only those below n matter. Near the end the row's last full register is
// moved down, which costs a shuffle where a bounded copy would cost a call.
template <class T>
FW_INLINE V load_columns(const T* row, int c, int n) {
  if (c + W <= n) return load_as_float(row + c);
  if (n < W) return c < n ? load_part(row + c, n - c) : V{};
  VI lanes;
  FW_UNROLL for (int i = 0; i < W; ++i) lanes[i] = i;
  return permuted(load_as_float(row + n - W), (lanes + (c - (n - W))) & (W - 1));
}

// count rows -> strips of columns: strip at first column f lies at out + f * ld, unit r of rows at + r * M; the A side
// of a product over the rows. Strip s starts where ld units of the strips before it end, so ld >= units + kSlack.
// Columns past n hold anything finite: what is computed from them is never read.
template <class T>
FW_NOINLINE void pack_strips(const T* const* rows, int count, int n, const Strips& strips, int ld, float* out) {
  for (int r = 0; r < count; r += kPer) {
    strips.for_each([&](auto m, int f) __attribute__((always_inline)) {
      constexpr int M = decltype(m)::value;
      FW_UNROLL for (int i = 0; i < M; i += W) {
        const auto of = [&](int row) __attribute__((always_inline)) {
          return rows[r + row] ? load_columns(rows[r + row], f + i, n) : V{};
        };
        store_u(out + f * ld + r / kPer * M + i, Product::join(of));
      }
    });
  }
}

// count rows -> [ceil(n/NQ)][ld units][NQ]: panels of columns, the B side of a product over the rows. Rows past count
// are zeros up to a multiple of NQ, which is as far as products read.
template <class T>
FW_NOINLINE void pack_columns(const T* const* rows, int count, int n, int ld, float* out) {
  const int width = round_up(n, NQ);  // the last panel may be half empty
  for (int r = 0; r < round_up(count, NQ); r += kPer, out += NQ) {
    for (int c = 0; c < width; c += W) {
      const auto of = [&](int i) __attribute__((always_inline)) {
        const T* row = r + i < count ? rows[r + i] : nullptr;
        return row && c < n ? load_part(row + c, n - c) : V{};
      };
      store(out + (c / NQ) * ld * NQ + c % NQ, Product::join(of));
    }
  }
}

// [n][NQ] -> rows, each lane scaled: the inverse of pack_panel. put(row, first column, numbers) for each W of a row.
template <class Put>
FW_INLINE void unpack_rows(const float* in, int n, const float* lane_scale, Put&& put) {
  for (int g = 0; g < NQ; g += W) {
    const V scale = load(lane_scale + g);
    for (int c = 0; c < n; c += W) {
      V r[W];
      FW_UNROLL for (int j = 0; j < W; ++j) r[j] = c + j < n ? scale * load(in + (c + j) * NQ + g) : V{};
      transpose(r);
      for (int i = 0; i < W; ++i) put(g + i, c, r[i]);
    }
  }
}

// Null rows are skipped.
template <class T>
FW_NOINLINE void unpack_panel(const float* in, int n, const float* lane_scale, T* const* rows) {
  unpack_rows(in, n, lane_scale, [&](int i, int c, V x) __attribute__((always_inline)) {
    if (rows[i]) store_part(rows[i] + c, x, n - c);
  });
}

// W numbers of a row, with `keep` times what is there; with keep = 0 that is not read.
FW_INLINE void add_part(float* row, V x, int n, float keep) {
  if (keep != 0.f) x += keep * load_part(row, n);
  store_part(row, x, n);
}

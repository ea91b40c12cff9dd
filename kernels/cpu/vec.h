// The vector vocabulary of the CPU kernels, on the compiler's vector extensions: one source for every width.
//
// Included once per instruction set (avx2.cpp, avx512.cpp, zen4.cpp, neon.cpp, portable.cpp), always inside an unnamed
// namespace of that file: nothing here may be shared between sets by the linker.
//
//   W   lanes of a register          16 (AVX-512)   8 (AVX2)   4 (NEON)   4 (portable)
//   MR  rows of the register tile    12             6          12         6
//   NQ  columns of it = 2 registers  32             16         8          8
// 12 x 2 accumulators of 32 registers, or 6 x 2 of 16: the largest tiles that clang keeps without spilling
// (a 4 x 3 tile needs all 16 registers and spills: measured at 0.4 of peak instead of 0.95).
//
// FLASHWAVE_NEON: this file is neon.cpp. The compiler's own macro will not do: on aarch64 portable.cpp has NEON too.

#if defined(__AVX512F__)
constexpr int W = 16, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int W = 8, kRegisters = 16;
#elif defined(FLASHWAVE_NEON)
constexpr int W = 4, kRegisters = 32;
#else
constexpr int W = 4, kRegisters = 16;
#endif
constexpr int NV = 2, NQ = NV * W;
#if defined(FW_ZEN4)
constexpr int kPer = 2;  // numbers in a unit of an operand: see products.h
#else
constexpr int kPer = 1;
#endif
constexpr abi::CpuTile kTile = abi::cpu_tile(NQ, kRegisters, kPer);
constexpr int MR = kTile.rows;
static_assert(kTile.lanes == W && kTile.columns() == NQ);

typedef float V __attribute__((vector_size(W * 4)));
typedef float VUnaligned __attribute__((vector_size(W * 4), aligned(4)));
typedef int32_t VI __attribute__((vector_size(W * 4)));
typedef uint32_t VU __attribute__((vector_size(W * 4)));
typedef uint64_t VU64 __attribute__((vector_size(W * 8)));
typedef uint16_t VU16 __attribute__((vector_size(W * 2)));

#define FW_INLINE inline __attribute__((always_inline))
#define FW_NOINLINE __attribute__((noinline))
// Finish this row before the next: left alone, clang starts all rows of an epilogue at once and spills most of them.
#define FW_KEEP_ORDER asm volatile("" ::: "memory")

// The compiler may not look through this: under -ffp-contract=fast neither a pragma nor __arithmetic_fence keeps it
// from fusing a product with a sum.
FW_INLINE V rounded(V x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

FW_INLINE V load(const float* p) { return *reinterpret_cast<const V*>(p); }
FW_INLINE V load_u(const float* p) { return *reinterpret_cast<const VUnaligned*>(p); }
FW_INLINE VI load_i(const int32_t* p) { return *reinterpret_cast<const VI*>(p); }
FW_INLINE void store(float* p, V x) { *reinterpret_cast<V*>(p) = x; }
FW_INLINE void store_u(float* p, V x) { *reinterpret_cast<VUnaligned*>(p) = x; }
FW_INLINE V splat(float x) { return x - V{}; }  // x - 0 is x, sign of zero included, so it folds to a broadcast
FW_INLINE VI splat_i(int32_t x) { return VI{} + x; }
FW_INLINE V max(V a, V b) { return a > b ? a : b; }
FW_INLINE V min(V a, V b) { return a < b ? a : b; }
FW_INLINE V abs(V a) { return (V)((VI)a & 0x7FFFFFFF); }
FW_INLINE V permuted(V x, VI from) {  // lane i gets lane from[i]
#if defined(__clang__)
  return __builtin_shufflevector(x, from);
#else
  return __builtin_shuffle(x, from);
#endif
}
FW_INLINE V zero_unless(VI keep, V x) { return (V)((VI)x & keep); }  // keep: all ones or all zeros per lane

// M units of memory, Stride apart: [i] is unit i in every lane.
template <int M, int Stride>
class Factors {
 public:
#if defined(FLASHWAVE_NEON)
  // NEON multiplies by one lane of a register, so that nothing is broadcast.
  explicit FW_INLINE Factors(const float* p) {
    if constexpr (Stride == 1 && M % W == 0) {
      FW_UNROLL for (int i = 0; i < M / W; ++i) side_by_side_[i] = load_u(p + i * W);
    } else {
      FW_UNROLL for (int i = 0; i < M; ++i) {
        apart_[i] = p[i * Stride];
        asm("" : "+w"(apart_[i]));  // else clang broadcasts what it loads, by an instruction that cannot add an offset
      }
    }
  }
  FW_INLINE V operator[](int i) const {
    if constexpr (Stride == 1 && M % W == 0) return splat(side_by_side_[i / W][i % W]);
    return splat(apart_[i]);
  }

 private:
  V side_by_side_[(M + W - 1) / W];
  float apart_[M];
#else
  explicit FW_INLINE Factors(const float* p) : p_(p) {}
#if defined(FW_ZEN4)  // the bits of two numbers
  FW_INLINE V operator[](int i) const { return (V)splat_i(__builtin_bit_cast(int32_t, p_[i * Stride])); }
#else
  FW_INLINE V operator[](int i) const { return splat(p_[i * Stride]); }
#endif

 private:
  const float* p_;
#endif
};

FW_INLINE bool any(VI mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(FLASHWAVE_NEON)
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < W; ++i) all |= mask[i];
  return all != 0;
#endif
}

FW_INLINE float sum_lanes(V x) {
  float s = 0;
  FW_UNROLL for (int i = 0; i < W; ++i) s += x[i];
  return s;
}

// 2^x for x <= about 120: integer part by the magic-number add, fraction by a degree-5 minimax polynomial, exponent by
// integer add. Largest relative error 2.1e-7. Below -126 it returns 2^-126, which is nothing beside a row sum >= 1.
FW_INLINE V exp2_fast(V x) {
  const float magic = 12582912.f;  // 1.5 * 2^23
  x = max(splat(-126.f), x);       // in this order a NaN stays: max(a, b) is b unless a > b
  const V z = x + magic;
  const V f = x - (z - magic);
  V p = 0.0013276472f * f + 0.00967554133f;
  p = p * f + 0.0555071327f;
  p = p * f + 0.240221197f;
  p = p * f + 0.693146967f;
  p = p * f + 1.00000007f;
  return (V)((VI)p + ((VI)z << 23));
}
// The same, but exactly 0 for masked scores (-inf).
FW_INLINE V exp2_masked(V x) { return zero_unless(~(x < -126.f), exp2_fast(x)); }

// tanh: odd polynomial near 0 (no cancellation), 1 - 2/(e^2x + 1) beyond. Relative error about 2e-7.
FW_INLINE V tanh_fast(V x) {
  const V a = abs(x), z = x * x;
  V p = -5.70498872745e-3f * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const V near = p * z * x + x;
  const V far = 1.f - 2.f / (exp2_fast(min(a * (2.f * kLog2e), splat(60.f))) + 1.f);
  const V signed_far = (V)((VI)far | ((VI)x & (int32_t)0x80000000));
  return a < 0.625f ? near : signed_far;
}

// ---- storage types -------------------------------------------------------------------------------------------------

FW_INLINE V load_as_float(const float* p) { return load_u(p); }
FW_INLINE V load_as_float(const BFloat16* p) {
  VU16 h;
  __builtin_memcpy(&h, p, sizeof h);
  return (V)(__builtin_convertvector(h, VU) << 16);
}
FW_INLINE V load_as_float(const Half* p) {
#if defined(__F16C__)
  typedef _Float16 VH __attribute__((vector_size(W * 2)));
  VH h;
  __builtin_memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, V);
#elif defined(FLASHWAVE_NEON)
  uint16x4_t h;
  __builtin_memcpy(&h, p, sizeof h);
  return (V)vcvt_f32_f16(vreinterpret_f16_u16(h));
#else
  V r{};
  for (int i = 0; i < W; ++i) r[i] = to_float(p[i]);
  return r;
#endif
}

FW_INLINE void store_from_float(float* p, V x) { store_u(p, x); }
FW_INLINE void store_from_float(BFloat16* p, V x) {
  const VU u = (VU)x;
  const VU rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16, quieted = (u >> 16) | 0x40u;
  const VU16 h = __builtin_convertvector((VI)(x == x) ? rounded : quieted, VU16);
  __builtin_memcpy(p, &h, sizeof h);
}
FW_INLINE void store_from_float(Half* p, V x) {
#if defined(__F16C__)
  typedef _Float16 VH __attribute__((vector_size(W * 2)));
  const VH h = __builtin_convertvector(x, VH);
  __builtin_memcpy(p, &h, sizeof h);
#elif defined(FLASHWAVE_NEON)
  const uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x));
  __builtin_memcpy(p, &h, sizeof h);
#else
  for (int i = 0; i < W; ++i) p[i] = from_float<Half>(x[i]);
#endif
}

// The first n (0 < n <= W) elements, the rest 0. Never reads past them: a row may end at the end of a page.
template <class T>
FW_INLINE V load_part(const T* p, int n) {
  if (n >= W) return load_as_float(p);
  T part[W] = {};
  __builtin_memcpy(part, p, n * sizeof(T));
  return load_as_float(part);
}
template <class T>
FW_INLINE void store_part(T* p, V x, int n) {
  if (n >= W) return store_from_float(p, x);
  T part[W];
  store_from_float(part, x);
  __builtin_memcpy(p, part, n * sizeof(T));
}

// ---- transpose -----------------------------------------------------------------------------------------------------

// One stage: rows `step` apart exchange the lanes that lie in the other's half.
template <int Step, int... L>
FW_INLINE void exchange(V& a, V& b, std::integer_sequence<int, L...>) {
  const V low = __builtin_shufflevector(a, b, ((L & Step) ? W + L - Step : L)...);
  const V high = __builtin_shufflevector(a, b, ((L & Step) ? W + L : L + Step)...);
  a = low, b = high;
}
template <int Step>
FW_INLINE void transpose_stages(V (&r)[W]) {
  if constexpr (Step < W) {
    FW_UNROLL for (int i = 0; i < W; ++i) {
      if ((i & Step) == 0) exchange<Step>(r[i], r[i + Step], std::make_integer_sequence<int, W>{});
    }
    transpose_stages<Step * 2>(r);
  }
}
FW_INLINE void transpose(V (&r)[W]) { transpose_stages<1>(r); }

// Lane i: the sum of the lanes of r[i]. Sums after each stage, so half the exchanges of a transpose, and in the order
// in which registers are interleaved by one instruction: lanes within a quarter first, then whole quarters.
template <int... L>
FW_INLINE V add_lanes(V a, V b, std::integer_sequence<int, L...>) {  // of 4: a0 + a2, b0 + b2, a1 + a3, b1 + b3
  return __builtin_shufflevector(a, b, (L / 4 * 4 + L % 4 / 2 + L % 2 * W)...) +
         __builtin_shufflevector(a, b, (L / 4 * 4 + L % 4 / 2 + L % 2 * W + 2)...);
}
template <int... L>
FW_INLINE V add_pairs(V a, V b, std::integer_sequence<int, L...>) {  // of 4: a0 + a2, a1 + a3, b0 + b2, b1 + b3
  return __builtin_shufflevector(a, b, (L / 4 * 4 + L % 2 + L % 4 / 2 * W)...) +
         __builtin_shufflevector(a, b, (L / 4 * 4 + L % 2 + L % 4 / 2 * W + 2)...);
}
template <int... L>
FW_INLINE V add_quarters(V a, V b, std::integer_sequence<int, L...>) {  // neighbours, first those of a
  return __builtin_shufflevector(a, b, (L / (W / 2) * W + L % (W / 2) / 4 * 8 + L % 4)...) +
         __builtin_shufflevector(a, b, (L / (W / 2) * W + L % (W / 2) / 4 * 8 + L % 4 + 4)...);
}
FW_INLINE V sum_each(const V (&r)[W]) {
  constexpr auto kLanes = std::make_integer_sequence<int, W>{};
  V x[W / 4];
  FW_UNROLL for (int i = 0; i < W / 4; ++i) {
    const V* of = r + 4 * i;
    x[i] = add_pairs(add_lanes(of[0], of[1], kLanes), add_lanes(of[2], of[3], kLanes), kLanes);
  }
  if constexpr (W > 4) {
    FW_UNROLL for (int n = W / 8; n > 0; n /= 2) {
      FW_UNROLL for (int i = 0; i < n; ++i) x[i] = add_quarters(x[2 * i], x[2 * i + 1], kLanes);
    }
  }
  return x[0];
}

// ---- dropout -------------------------------------------------------------------------------------------------------

// kernels/common/philox.h for W queries at once.
struct VPhilox {
  VU word[4];
};
FW_INLINE void multiply(VU a, uint32_t b, VU& high, VU& low) {
  const VU64 product = __builtin_convertvector(a, VU64) * uint64_t{b};
  high = __builtin_convertvector(product >> 32, VU);
  low = __builtin_convertvector(product, VU);
}
FW_INLINE VPhilox philox(VU c0, VU c1, VU c2, VU c3, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    VU ah, al, bh, bl;
    multiply(c0, kPhiloxMul0, ah, al);
    multiply(c2, kPhiloxMul1, bh, bl);
    const VU n0 = bh ^ c1 ^ key0, n2 = ah ^ c3 ^ key1;
    c1 = bl, c3 = al, c0 = n0, c2 = n2;
    key0 += kPhiloxWeyl0, key1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// What products multiply. Included after vec.h and, on Zen 4, isa.h.
//
// The operands are units of 32 bits along what is summed over: a number of fp32, or two of bf16 on CPUs that multiply
// and add pairs of them as fast as single numbers (Zen 4). Sums are fp32. A unit of two takes half the instructions,
// half the memory and nothing to widen; weights and their gradients are rounded to bf16, as standard attention does.

struct Singles {
  static constexpr int kNumbers = 1;  // of a unit
  FW_INLINE static V add(V sum, V a, V b) { return sum + a * b; }

  // The scale of the scores is in the queries, and what is added to them may start the sum.
  FW_INLINE static V start(V base) { return base; }
  FW_INLINE static V score(V sum, float) { return sum; }
  FW_INLINE static V score_from(V sum, float, V) { return sum; }

  // Units [c, c + W) of a row of n numbers, scaled; 0 past its end.
  template <class T>
  FW_INLINE static V load(const T* row, int c, int n, float scale) {
    return scale * load_part(row + c, n - c);
  }
  // A number of each row of a unit: of(i) gives W of them, in fp32, of row i.
  template <class Of>
  FW_INLINE static V join(Of&& of) {
    return of(0);
  }
  // The same, to be multiplied; in the order of rows.
  FW_INLINE static V rounded(const V (&x)[1]) { return x[0]; }
  // Clears those of row i of a unit outside `keep`.
  FW_INLINE static V keep(V unit, int, VI keep) { return zero_unless(keep, unit); }
};

#if defined(FW_ZEN4)

// vdpbf16ps takes subnormal numbers as 0, as operands and as sums, and has no other mode.
struct Pairs {
  static constexpr int kNumbers = 2;
  FW_INLINE static V add(V sum, V a, V b) { return add_pair_products(sum, (VU16x32)a, (VU16x32)b); }

  // Queries are multiplied as they are: with the scale in them they would be rounded again.
  FW_INLINE static V start(V) { return V{}; }
  FW_INLINE static V score(V sum, float scale) { return sum * scale; }
  FW_INLINE static V score_from(V sum, float scale, V base) { return sum * scale + base; }

  FW_INLINE static V load(const BFloat16* row, int c, int n, float) { return (V)load_part_32(row + 2 * c, n - 2 * c); }
  template <class Of>
  FW_INLINE static V join(Of&& of) {
    return (V)(((VU)of(0) >> 16) | (VU)of(1));
  }
  FW_INLINE static V rounded(const V (&x)[2]) {
    return interleaved(round_32<BFloat16>(x[0], x[1]), std::make_integer_sequence<int, 32>{});
  }
  FW_INLINE static V keep(V unit, int i, VI keep) { return zero_unless(keep | (i ? 0xFFFF : ~0xFFFF), unit); }

  // Columns [W j, W j + W) of two rows of 32.
  template <int J>
  FW_INLINE static V columns(VU16x32 one, VU16x32 two) {
    return pairs_of<J * W>(one, two, std::make_integer_sequence<int, 32>{});
  }

 private:
  template <int... L>
  FW_INLINE static V interleaved(VU16x32 x, std::integer_sequence<int, L...>) {
    return (V)__builtin_shufflevector(x, x, (L / 2 + L % 2 * W)...);
  }
  template <int First, int... L>
  FW_INLINE static V pairs_of(VU16x32 one, VU16x32 two, std::integer_sequence<int, L...>) {
    return (V)__builtin_shufflevector(one, two, (First + L / 2 + L % 2 * 32)...);
  }
};
using Product = Pairs;

#else
using Product = Singles;
#endif

static_assert(Product::kNumbers == kPer);

// Units that n numbers take.
FW_INLINE constexpr int units_of(int n) { return (n + kPer - 1) / kPer; }

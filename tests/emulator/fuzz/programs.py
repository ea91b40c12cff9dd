"""Random programs that mean the same on a CPU and on a GPU, to the bit.

No undefined behaviour: integers wrap (-fwrapv), shifts are masked, divisors are odd, floats are clamped before they
become integers. No contraction (-ffp-contract=off), no functions that hardware only approximates. What IEEE 754 leaves
open stays inside: bits of NaNs and the sign of the zero that min and max choose are never looked at.
"""

import random
import re

ITEMS = 128  # work-items of a program, in workgroups of 64
INTEGERS = {"i8": 8, "u8": 8, "i16": 16, "u16": 16, "i32": 32, "u32": 32, "i64": 64, "u64": 64}
FLOATS = ("f16", "f32", "f64")
VECTORS = ("s2", "h2")
TYPES = (*INTEGERS, *FLOATS, *VECTORS)
OUTPUTS = len(TYPES) * 2  # 64-bit values per work-item

PREAMBLE = r"""
typedef signed char i8; typedef unsigned char u8; typedef short i16; typedef unsigned short u16;
typedef int i32; typedef unsigned int u32; typedef long i64; typedef unsigned long u64;
typedef _Float16 f16; typedef float f32; typedef double f64;
typedef short s2 __attribute__((ext_vector_type(2)));
typedef _Float16 h2 __attribute__((ext_vector_type(2)));
#ifdef __HIP__
#define FN static __attribute__((device)) inline
#define OUTLINE static __attribute__((device, noinline))
#else
#define FN static inline
#define OUTLINE static __attribute__((noinline))
#endif
// What an arm of a branch leaves behind passes through here: clang 22 hoists values that cost nothing (a negated float,
// a shuffle, a truncation) out of the default of a switch and loses them for some lanes (StructurizeCFG; the related
// fix is llvm/llvm-project#183792). An empty asm is not free.
#ifdef __HIP__
template <class T> FN T pinned(T x) { asm("" : "+v"(x)); return x; }
FN i8 pinned(i8 x) { i32 y = x; asm("" : "+v"(y)); return (i8)y; }
FN u8 pinned(u8 x) { i32 y = x; asm("" : "+v"(y)); return (u8)y; }
#else
template <class T> FN T pinned(T x) { return x; }
#endif
// clang 22 folds 0 - x into a sign of the instruction that uses it (SelectVOP3ModsImpl), which makes +0 a -0: that
// instruction must not see the difference. Nor the sum or a fused multiply-add of 0, since 0 + -x and -1 * x + 0 become
// the same. Doubles take another path.
template <class T> FN T seen_alone(T x) { return sizeof(T) < 8 ? pinned(x) : x; }
// clang 22 makes one instruction of a product that is rounded to half, v_fma_mixlo_f16 x, y, 0, and so +0 of -0.
FN f16 narrowed(f32 x) { return (f16)pinned(x); }
// clang 22 for gfx11 loses a value that all lanes share, if a vector instruction computed it (a float always) and it
// becomes the high half of a pair in another block (SIFixSGPRCopies takes the wrong half of a register).
template <class T> FN T high_half(T x) {
#ifdef __GFX11__
  x = pinned(x);
#endif
  return x;
}
// clang 22 lets float instructions of GPUs with SDWA read a byte or word of an integer themselves (SIPeepholeSDWA) and
// forgets to extend it by its sign.
template <class F, class U> FN F float_of(U bits) {
#ifdef __GFX9__
  if constexpr (sizeof(U) < 8) bits = pinned(bits);
#endif
  return __builtin_bit_cast(F, bits);
}
template <class T> FN T divide(T a, T b) { b |= 1; return b == (T)-1 && (T)-1 < (T)0 ? (T)(0 - a) : (T)(a / b); }
template <class T> FN T modulo(T a, T b) { b |= 1; return b == (T)-1 && (T)-1 < (T)0 ? (T)0 : (T)(a % b); }
template <class T, class F> FN T to_int(F x, F low, F high) {
  return x != x ? (T)0 : x < low ? (T)low : x > high ? (T)high : (T)x;
}
FN u16 bits_of(f16 x) { return x != x ? 0x7e00 : __builtin_bit_cast(u16, x); }
FN u32 bits_of(f32 x) { return x != x ? 0x7fc00000u : __builtin_bit_cast(u32, x); }
FN u64 bits_of(f64 x) { return x != x ? 0x7ff8000000000000ul : __builtin_bit_cast(u64, x); }
// LLVM takes min and max to return either of two zeros, and drops additions of zero beside them: one zero is chosen.
// (What is left of the additions keeps signalling NaNs out.)
template <class T> FN T one_zero(T x) { return x == (T)0 ? (T)0 : x; }
FN f32 lesser(f32 a, f32 b) { return one_zero(__builtin_fminf(a + 0.f, b + 0.f)); }
FN f32 larger(f32 a, f32 b) { return one_zero(__builtin_fmaxf(a + 0.f, b + 0.f)); }
FN f64 lesser(f64 a, f64 b) { return one_zero(__builtin_fmin(a + 0., b + 0.)); }
FN f64 larger(f64 a, f64 b) { return one_zero(__builtin_fmax(a + 0., b + 0.)); }
FN f16 lesser(f16 a, f16 b) { return (f16)one_zero(__builtin_fminf((f32)a + 0.f, (f32)b + 0.f)); }
FN f16 larger(f16 a, f16 b) { return (f16)one_zero(__builtin_fmaxf((f32)a + 0.f, (f32)b + 0.f)); }
FN f32 with_sign(f32 a, f32 b) { return __builtin_copysignf(a, b != b ? 1.f : b); }
FN f64 with_sign(f64 a, f64 b) { return __builtin_copysign(a, b != b ? 1. : b); }
FN f16 with_sign(f16 a, f16 b) { return (f16)__builtin_copysignf((f32)a, b != b ? 1.f : (f32)b); }
FN f32 fused(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
FN f64 fused(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#ifdef __HIP__
FN f16 fused(f16 a, f16 b, f16 c) { return __builtin_fmaf16(a, b, c); }
#else
// The product is exact in f64; a sum rounded to odd keeps the second rounding right.
FN f16 fused(f16 a, f16 b, f16 c) {
  const f64 p = (f64)a * (f64)b, d = (f64)c, s = p + d, back = s - p, error = (p - (s - back)) + (d - back);
  u64 bits = __builtin_bit_cast(u64, s);
  if (s - s == 0 && error == error && error != 0 && !(bits & 1)) bits += (error > 0) == (s > 0) ? 1 : -1;
  return (f16)__builtin_bit_cast(f64, bits);
}
#endif
FN f32 root(f32 x) { return __builtin_sqrtf(__builtin_fabsf(x)); }
FN f64 root(f64 x) { return __builtin_sqrt(__builtin_fabs(x)); }
FN f16 root(f16 x) { return (f16)__builtin_sqrtf(__builtin_fabsf((f32)x)); }
FN f32 scaled(f32 x, i32 n) { return __builtin_ldexpf(x, (n & 63) - 32); }
FN f64 scaled(f64 x, i32 n) { return __builtin_ldexp(x, (n & 127) - 64); }
FN f16 scaled(f16 x, i32 n) { return (f16)__builtin_ldexpf((f32)x, (n & 15) - 8); }
#define ROUNDING(name, builtin) \
  FN f32 name(f32 x) { return __builtin_##builtin##f(x); } \
  FN f64 name(f64 x) { return __builtin_##builtin(x); } \
  FN f16 name(f16 x) { return (f16)__builtin_##builtin##f((f32)x); }
ROUNDING(down, floor) ROUNDING(up, ceil) ROUNDING(towards_zero, trunc) ROUNDING(to_even, rint) ROUNDING(magnitude, fabs)
FN u64 out_bits(i8 x) { return (u64)(i64)x; }
FN u64 out_bits(u8 x) { return x; }
FN u64 out_bits(i16 x) { return (u64)(i64)x; }
FN u64 out_bits(u16 x) { return x; }
FN u64 out_bits(i32 x) { return (u64)(i64)x; }
FN u64 out_bits(u32 x) { return x; }
FN u64 out_bits(i64 x) { return (u64)x; }
FN u64 out_bits(u64 x) { return x; }
FN u64 out_bits(f16 x) { return bits_of(x); }
FN u64 out_bits(f32 x) { return bits_of(x); }
FN u64 out_bits(f64 x) { return bits_of(x); }
FN u64 out_bits(s2 x) { return (u64)(u16)x.x | (u64)(u16)x.y << 16; }
FN u64 out_bits(h2 x) { return (u64)bits_of(x.x) | (u64)bits_of(x.y) << 16; }
"""


class Program:
    """One program: .source(host) defines kernel `program_SEED` or, for the host, a function of that name."""

    def __init__(self, seed):
        self.seed = seed
        self.random = random.Random(f"program {seed}")
        self.variables = {t: [f"{t}_{k}" for k in range(2)] for t in TYPES}
        self.counters = []  # loop variables in scope: i32, read only
        self.fresh = 0
        self.helpers = []  # (name, result type, argument types)
        self.in_helper = None
        texts = [self._helper(k) for k in range(self.random.randint(1, 3))]
        self.helper_text = "\n".join(texts)
        self.body = "\n".join(self._statement(2, "  ") for _ in range(self.random.randint(6, 12)))

    # --- expressions ---

    def pick(self, *choices):
        return self.random.choice(choices)

    def leaf(self, t):
        if self.in_helper is not None:
            fitting = [n for n, kind in self.in_helper if kind == t]
            if fitting and self.random.random() < 0.7:
                return self.pick(*fitting)
        elif self.random.random() < 0.75:
            if t == "i32" and self.counters and self.random.random() < 0.3:
                return self.pick(*self.counters)
            return self.pick(*self.variables[t])
        return self.constant(t)

    def constant(self, t):
        r = self.random
        if t in INTEGERS:
            bits = INTEGERS[t]
            value = r.choice(
                [
                    0,
                    1,
                    -1,
                    r.randint(-20, 20),
                    r.getrandbits(bits),
                    1 << r.randrange(bits),
                    (1 << r.randrange(bits)) - 1,
                ]
            )
            return f"({t}){value & (1 << bits) - 1:#x}ull"
        if t in FLOATS:
            value = r.choice(
                [0.0, 1.0, -1.0, 0.5, round(r.uniform(-8, 8), 3), r.uniform(-1, 1) * 10.0 ** r.randint(-6, 4)]
            )
            return f"({t}){value!r}"
        part = {"s2": "i16", "h2": "f16"}[t]
        return f"({t}){{{self.constant(part)}, {self.constant(part)}}}"

    def expr(self, t, depth):
        if depth <= 0:
            return self.leaf(t)
        if self.random.random() < 0.12:
            return f"({self.condition(depth - 1)} ? {self.expr(t, depth - 1)} : {self.expr(t, depth - 1)})"
        if self.helpers and self.in_helper is None and self.random.random() < 0.06:
            name, result, kinds = self.pick(*self.helpers)
            if result == t:
                return f"{name}({', '.join(self.expr(k, depth - 1) for k in kinds)})"
        if t in INTEGERS:
            return self.integer(t, depth)
        return self.floating(t, depth) if t in FLOATS else self.vector(t, depth)

    def integer(self, t, depth):
        bits, sub = INTEGERS[t], lambda kind=t: self.expr(kind, depth - 1)
        unsigned = "u" + t[1:]
        kinds = (
            ["binary"] * 5
            + ["shift"] * 2
            + ["divide", "unary", "convert", "convert", "from_float", "order", "saturate", "bits", "field"]
        )
        if self.in_helper is None:
            kinds += ["array", "lds", "input"]
        kind = self.pick(*kinds)
        if kind == "binary":
            return f"({t})({sub()} {self.pick('+', '-', '*', '&', '|', '^')} {sub()})"
        if kind == "shift":
            if self.random.random() < 0.5:
                return f"({t})(({unsigned}){sub()} << ({sub('i32')} & {bits - 1}))"
            return f"({t})({sub()} >> ({sub('i32')} & {bits - 1}))"
        if kind == "divide":
            return f"{self.pick('divide', 'modulo')}<{t}>({sub()}, {sub()})"
        if kind == "unary":
            return f"({t})({self.pick('-', '~')}{sub()})"
        if kind == "convert":
            return f"({t})({sub(self.pick(*INTEGERS))})"
        if kind == "from_float":
            source = self.pick(*FLOATS)
            if source == "f16":
                return f"({t})to_int<i32, f32>((f32){sub('f16')}, -70000.f, 70000.f)"
            wide = "i64" if bits == 64 and source == "f64" else "i32"
            limit = {"i64": 9.0e18, "i32": 2.0e9}[wide]
            if t == "u32" and self.random.random() < 0.5:
                return f"to_int<u32, {source}>({sub(source)}, 0, ({source})4.0e9)"
            return f"({t})to_int<{wide}, {source}>({sub(source)}, ({source})-{limit!r}, ({source}){limit!r})"
        if kind == "order":
            return f"__builtin_elementwise_{self.pick('min', 'max')}({sub()}, {sub()})"
        if kind == "saturate":
            return f"__builtin_elementwise_{self.pick('add', 'sub')}_sat({sub()}, {sub()})"
        if kind == "field":
            shift = self.random.randrange(bits)
            return f"({t})(({unsigned})({sub()}) >> {shift} & {(1 << self.random.randint(1, bits - shift)) - 1:#x}ull)"
        if kind == "array":
            return f"({t})table[{sub('i32')} & 7]"
        if kind == "lds":
            return f"({t})lds[{sub('i32')} & 3]"
        if kind == "input":
            source = {8: "I", 16: "I", 32: "I", 64: "L"}[bits]
            return f"({t}){source}[(t + {self.random.randint(0, 9)}) & {ITEMS - 1}]"
        value = f"({unsigned})({sub()})"
        choices = [
            f"({t})__builtin_bitreverse{bits}({value})",
            f"({t})__builtin_rotateleft{bits}({value}, ({unsigned})({sub('i32')} & {bits - 1}))",
        ]
        if bits in (16, 32):  # clang 22 -O0 loses bits of 64 for gfx11: it copies v0.l where all of v0 is needed
            choices.append(f"({t})__builtin_bswap{bits}({value})")
        long = "l" if bits == 64 else ""
        choices.append(f"({t})__builtin_popcount{long}({value})")
        if bits >= 32:
            choices += [
                f"({t})__builtin_clz{long}({value} | 1)",
                f"({t})__builtin_ctz{long}({value} | ({unsigned})1 << {bits - 1})",
            ]
            wide = {"i32": "i64", "u32": "u64", "i64": "__int128", "u64": "unsigned __int128"}[t]
            choices.append(f"({t})((({wide}){sub()} * ({wide}){sub()}) >> {bits})")
        if bits == 16:
            choices += [f"({t})bits_of({sub('f16')})", f"({t})({sub('s2')}).{self.pick('x', 'y')}"]
        if bits == 32:
            choices.append(f"({t})bits_of({sub('f32')})")
        if bits == 64:
            choices.append(f"({t})bits_of({sub('f64')})")
        return self.pick(*choices)

    def floating(self, t, depth):
        def sub(kind=t):
            return self.expr(kind, depth - 1)

        kind = self.pick(
            *["binary"] * 6,
            "divide",
            "fma",
            "fma",
            "root",
            "round",
            "order",
            "sign",
            "scale",
            "convert",
            "convert",
            "negate",
            "bits",
        )
        if kind == "binary":
            return self.float_binary(t, sub)
        if kind == "divide":
            return f"({t})({sub()} / {sub()})"
        if kind == "fma":
            first, second, added = sub(), sub(), sub()
            value = f"fused(({t}){first}, ({t}){second}, ({t}){added})"
            may_add_zero = not re.search(r"\b(f16|f32|f64|h2)_[01]\b", added)
            return f"seen_alone({value})" if may_add_zero else value
        if kind == "root":
            return f"root(({t}){sub()})"
        if kind == "round":
            return f"{self.pick('down', 'up', 'towards_zero', 'to_even', 'magnitude')}(({t}){sub()})"
        if kind == "order":
            return f"{self.pick('lesser', 'larger')}(({t}){sub()}, ({t}){sub()})"
        if kind == "sign":
            return f"with_sign(({t}){sub()}, ({t}){sub()})"
        if kind == "scale":
            return f"scaled(({t}){sub()}, {sub('i32')})"
        if kind == "negate":
            return f"({t})(-{sub()})"
        if kind == "bits":
            source = {"f16": "u16", "f32": "u32", "f64": "u64"}[t]
            return f"float_of<{t}>(({source}){sub(source)})"
        if t == "f16":
            if self.random.random() < 0.3:
                return f"(f16)({sub('h2')}).{self.pick('x', 'y')}"
            source = self.pick("f32", "i16", "u16", "i32", "i8")
            value = sub(source)
            # Not of what may be a product; a fused multiply-add is left as it is.
            return f"{'narrowed' if source == 'f32' and not value.startswith('fused(') else '(f16)(f32)'}({value})"
        other = self.pick("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f64" if t == "f32" else "f32")
        return f"({t})({sub(other)})"

    def float_binary(self, t, sub):
        left, operator, right = sub(), self.pick("+", "-", "*"), sub()
        value = f"({t})({left} {operator} {right})"
        return value if operator == "*" else f"seen_alone({value})"

    def vector(self, t, depth):
        part = {"s2": "i16", "h2": "f16"}[t]

        def sub(kind=t):
            return self.expr(kind, depth - 1)

        kind = self.pick("binary", "binary", "binary", "make", "swizzle", "special", "special")
        if kind == "binary":
            return self.float_binary(t, sub) if t == "h2" else f"({t})({sub()} {self.pick('+', '-', '*')} {sub()})"
        if kind == "make":
            low, high = sub(part), sub(part)
            is_constant = re.fullmatch(r"\(\w+\)[-\w.]+", high)
            return f"({t}){{({part}){low}, {f'({part}){high}' if is_constant else f'high_half(({part}){high})'}}}"
        if kind == "swizzle":
            return f"({t})(({sub()}).yx)"
        if t == "s2":
            return self.pick(
                f"__builtin_elementwise_{self.pick('min', 'max')}({sub()}, {sub()})",
                f"__builtin_elementwise_{self.pick('add', 'sub')}_sat({sub()}, {sub()})",
                f"(s2)({sub()} {self.pick('<<', '>>')} ({sub()} & (s2){{15, 15}}))",
                f"(s2)({sub()} {self.pick('&', '|', '^')} {sub()})",
            )
        return f"(h2)(-{sub()})"

    def condition(self, depth):
        kind = self.random.random()
        if depth > 0 and kind < 0.15:
            return f"({self.condition(depth - 1)} {self.pick('&&', '||')} {self.condition(depth - 1)})"
        if kind < 0.2:
            return f"!{self.condition(depth - 1)}" if depth > 0 else "true"
        t = self.pick(*INTEGERS, *FLOATS)
        if t in FLOATS and kind < 0.3:
            f = f"({t})({self.expr(t, depth)})"
            return f"({f} != {f})" if kind < 0.25 else f"({f} - {f} == 0)"
        return f"({self.expr(t, depth)} {self.pick('<', '>', '<=', '>=', '==', '!=')} {self.expr(t, depth)})"

    # --- statements ---

    def _helper(self, k):
        result = self.pick(*TYPES)
        kinds = [self.pick(*TYPES) for _ in range(self.random.randint(1, 5))]
        name = f"helper_{self.seed}_{k}"
        self.in_helper = [(f"x{i}", kind) for i, kind in enumerate(kinds)]
        arguments = ", ".join(f"{kind} {n}" for n, kind in self.in_helper)
        first, second = self.expr(result, 2), self.expr(result, 3)
        condition = self.condition(1)
        self.in_helper = None
        self.helpers.append((name, result, kinds))
        return f"OUTLINE {result} {name}({arguments}) {{\n  if ({condition}) return {first};\n  return {second};\n}}"

    def _name(self, stem):
        self.fresh += 1
        return f"{stem}{self.fresh}"

    def _block(self, depth, indent, most=3):
        return "\n".join(self._statement(depth, indent) for _ in range(self.random.randint(1, most)))

    def _statement(self, depth, indent):
        kinds = ["assign"] * 6 + ["array", "lds", "call"]
        if depth > 0:
            kinds += ["if", "if", "for", "while", "switch"]
        return getattr(self, "_" + self.pick(*kinds))(depth, indent)

    def _assign(self, depth, indent):
        t = self.pick(*TYPES)
        name, value = self.pick(*self.variables[t]), self.expr(t, 3)
        inside_branch = len(indent) > len("  ")
        return f"{indent}{name} = pinned(({t}){value});" if inside_branch else f"{indent}{name} = {value};"

    def _array(self, depth, indent):
        return f"{indent}table[{self.expr('i32', 1)} & 7] = {self.expr('u32', 2)};"

    def _lds(self, depth, indent):
        return f"{indent}lds[{self.expr('i32', 1)} & 3] = {self.expr('u64', 2)};"

    def _call(self, depth, indent):
        name, result, kinds = self.pick(*self.helpers)
        return f"{indent}{self.pick(*self.variables[result])} = {name}({', '.join(self.expr(k, 1) for k in kinds)});"

    def _if(self, depth, indent):
        text = f"{indent}if ({self.condition(2)}) {{\n{self._block(depth - 1, indent + '  ')}\n{indent}}}"
        if self.random.random() < 0.6:
            text += f" else {{\n{self._block(depth - 1, indent + '  ')}\n{indent}}}"
        return text

    def _leave(self, indent):
        if self.random.random() < 0.5:
            return ""
        return f"\n{indent}if ({self.condition(1)}) {self.pick('break', 'continue')};"

    def _for(self, depth, indent):
        k, n = self._name("k"), self._name("n")
        text = f"{indent}for (i32 {k} = 0, {n} = {self.expr('i32', 2)} & {self.pick(3, 7)}; {k} < {n}; {k}++) {{\n"
        self.counters.append(k)
        text += (
            self._block(depth - 1, indent + "  ", 2)
            + self._leave(indent + "  ")
            + "\n"
            + self._block(0, indent + "  ", 1)
        )
        self.counters.remove(k)
        return text + f"\n{indent}}}"

    def _while(self, depth, indent):
        g = self._name("g")
        text = f"{indent}for (i32 {g} = 0; {g} < 6 && {self.condition(2)}; {g}++) {{\n"
        self.counters.append(g)
        text += self._block(depth - 1, indent + "  ", 2) + self._leave(indent + "  ")
        self.counters.remove(g)
        return text + f"\n{indent}}}"

    def _switch(self, depth, indent):
        text = f"{indent}switch ({self.expr('i32', 2)} & 7) {{"
        for case in self.random.sample(range(8), self.random.randint(2, 6)):
            leave = f"\n{indent}    break;" if self.random.random() < 0.8 else ""
            text += f"\n{indent}  case {case}:\n{self._block(depth - 1, indent + '    ', 2)}{leave}"
        if self.random.random() < 0.7:
            text += f"\n{indent}  default:\n{self._block(0, indent + '    ', 1)}"
        return text + f"\n{indent}}}"

    # --- the whole ---

    def source(self):
        initial = []
        for t, names in self.variables.items():
            for k, name in enumerate(names):
                at = f"[t + {k} & {ITEMS - 1}]" if k else "[t]"
                if t in INTEGERS:
                    value = f"({t}){'L' if INTEGERS[t] == 64 else 'I'}{at}"
                elif t in FLOATS:
                    value = {"f16": "H", "f32": "F", "f64": "D"}[t] + at
                else:
                    part, source, other = ("i16", "I", "L") if t == "s2" else ("f16", "H", "H")
                    value = f"({t}){{({part}){source}{at}, ({part}){other}[t ^ 1]}}"
                initial.append(f"  {t} {name} = {value};")
        final = [
            f"  out[{i}] = out_bits({name});"
            for i, name in enumerate(n for names in self.variables.values() for n in names)
        ]
        parameters = "const i32* I, const i64* L, const f16* H, const f32* F, const f64* D"
        declare = [
            f"FN void body_{self.seed}({parameters}, i32 t, u64* lds, u64* out) {{",
            "  u32 table[8] = {1, 2, 3, 5, 8, 13, 21, 34};",
            "  lds[0] = lds[1] = lds[2] = lds[3] = (u64)t;",
        ]
        function = "\n".join([self.helper_text, *declare, *initial, self.body, *final, "}"])
        entry = f"""
#ifdef __HIP__
extern "C" __attribute__((global, amdgpu_flat_work_group_size(64, 64)))
void program_{self.seed}({parameters}, u64* out) {{
  __attribute__((shared)) u64 lds[64 * 4];
  const i32 lane = (i32)__builtin_amdgcn_workitem_id_x(), t = (i32)__builtin_amdgcn_workgroup_id_x() * 64 + lane;
  body_{self.seed}(I, L, H, F, D, t, lds + 4 * lane, out + {OUTPUTS} * t);
}}
#else
extern "C" void program_{self.seed}({parameters}, u64* out) {{
  u64 lds[4];
  for (i32 t = 0; t < {ITEMS}; t++) body_{self.seed}(I, L, H, F, D, t, lds, out + {OUTPUTS} * t);
}}
#endif
"""
        return function + entry


def output_names():
    return [f"{t}_{k}" for t in TYPES for k in range(2)]

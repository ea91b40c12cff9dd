"""Arithmetic, 8-bit floats and cross-lane operations of kernels/*.hip, to the bit."""

import fractions
import math

import ml_dtypes
import numpy as np
import pytest

from references import BF16, F16, F32, F64, I32, I64, U32, U64, fp8_types, random, same_bits

MASK32, MASK64 = 2**32 - 1, 2**64 - 1


def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def quotient(a, b):
    """As C divides: towards zero."""
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def bit_facts(u, bits):
    leading = bits - (u | 1).bit_length()
    top = u | 1 << (bits - 1)
    return bin(u).count("1"), leading, (top & -top).bit_length() - 1


def interesting(seed, bits, count=128):
    draw = random(seed)
    info = np.iinfo(f"i{bits // 8}")
    values = draw.integers(info.min, info.max, count, dtype=f"i{bits // 8}")
    values >>= draw.integers(0, bits - 1, count).astype(values.dtype)
    values[:6] = [0, 1, -1, info.min, info.max, info.min + 1]
    return values


def test_wide_integers(gpu):
    a, b = interesting(1, 64), interesting(2, 64)[::-1].copy()
    out = np.zeros((128, 16), U64)
    gpu.run("arithmetic", "wide", 2, 64, [a, b, out])
    # clang 22 at -O0 miscompiles bswap64 for gfx1100: of each half it copies the low 16 bits alone (v_mov_b16 v0.l,
    # v1.l) and then permutes the bytes of all 32 (v_perm_b32 v0, 0, v0, s2).
    checked = slice(0, 15 if (gpu.arch, gpu.opt) == ("gfx1100", "O0") else 16)
    for x, y, got in zip(a.tolist(), b.tolist(), out.tolist()):
        u, v, s = x & MASK64, y & MASK64, y & 63
        pop, lead, trail = bit_facts(u, 64)
        expected = [u + v, u - v, u * v, u * v >> 64, x * y >> 64, u // (v | 1), u % (v | 1)]
        half = x >> 1
        q = quotient(half, signed(v | 1, 64))
        expected += [q, half - q * signed(v | 1, 64), u << s, u >> s, x >> s]
        expected += [(x < y) | (u < v) << 1 | (x == y) << 2, pop | lead << 8 | trail << 16]
        expected += [int(f"{u:064b}"[::-1], 2), int.from_bytes(u.to_bytes(8, "little"), "big")]
        assert got[checked] == [e & MASK64 for e in expected][checked], (x, y)


def test_narrow_integers(gpu):
    a, b = interesting(3, 32), interesting(4, 32)[::-1].copy()
    out = np.zeros((128, 16), U32)
    gpu.run("arithmetic", "narrow", 2, 64, [a, b, out])
    for x, y, got in zip(a.tolist(), b.tolist(), out.tolist()):
        u, v = x & MASK32, y & MASK32
        pop, lead, trail = bit_facts(u, 32)
        half, odd = x >> 1, signed(v | 1, 32)
        q = quotient(half, odd)
        expected = [u * v, u * v >> 32, x * y >> 32, u // (v | 1), u % (v | 1), q, half - q * odd]
        expected += [int(f"{u:032b}"[::-1], 2), pop | lead << 8 | trail << 16, u << (v & 31) | u >> (-(v & 31) & 31)]
        expected += [min(max(x + y, -(2**31)), 2**31 - 1), max(u - v, 0)]
        expected += [signed(x, 16) * signed(y, 16) + (u + v & 0xFFFF)]
        expected += [signed(x, 8) * 3 + (v >> 3 & 255) + (u >> 5 & 0x3FF)]
        expected += [min(max(x, -1000), 1000) + min(u, v), (u & v) | ((~u & (v >> 3)) ^ 0x5A5A5A5A)]
        if v & 31 == 0:
            expected[9] = u
        assert got == [e & MASK32 for e in expected], (x, y)


def finite(seed, dtype, count=128, spread=6):
    draw = random(seed)
    values = draw.standard_normal(count) * np.exp2(draw.integers(-spread, spread, count))
    values[draw.random(count) < 0.2] = draw.integers(-5, 6)
    values[:2] = [0.5, -1.5]
    return values.astype(dtype)


def exact_fma(x, y, z, dtype):
    """Rounded once. Fractions are exact, and so is their conversion to double; halves fit doubles without rounding."""
    if dtype == F64:
        return np.array(
            [float(fractions.Fraction(a) * fractions.Fraction(b) + fractions.Fraction(c)) for a, b, c in zip(x, y, z)]
        )
    # A product of two f32 is exact in f64; odd rounding of the sum keeps the second rounding right.
    product = x.astype(F64) * y.astype(F64)
    total = product + z.astype(F64)
    error = [
        fractions.Fraction(p) + fractions.Fraction(c) - fractions.Fraction(t)
        for p, c, t in zip(product.tolist(), z.astype(F64).tolist(), total.tolist())
    ]
    bits = total.view(I64)
    for i, e in enumerate(error):
        if e and not bits[i] & 1:
            bits[i] += 1 if (e > 0) == (total[i] > 0) else -1
    return bits.view(F64).astype(dtype)


@pytest.mark.parametrize("kernel, dtype", [("floats", F32), ("doubles", F64)])
def test_floats(gpu, kernel, dtype):
    x, y, z = (finite(seed, dtype) for seed in (1, 2, 3))
    y[y == 0] = 1
    out = np.zeros((128, 16), dtype)
    gpu.run("arithmetic", kernel, 2, 64, [x, y, z, out])
    with np.errstate(all="ignore"):
        expected = [
            x + y,
            x * y,
            exact_fma(x, y, z, dtype),
            x / y,
            np.sqrt(abs(x)),
            np.floor(x),
            np.trunc(y),
            np.rint(z),
        ]
        expected += [np.minimum(x, y), np.maximum(y, z)]
        narrow = F16 if dtype == F32 else F32
        expected += [
            x.astype(narrow).astype(dtype),
            y.astype(I32).astype(dtype),
            (z * dtype(1e6)).astype(I64).astype(dtype),
        ]
        if dtype == F32:
            expected += [abs(x).astype(U32).astype(dtype), np.ceil(y), np.copysign(x, z)]
        else:
            expected += [
                (abs(x) * 1e6).astype(U64).astype(dtype),
                np.where(x < y, x - z, np.ceil(y)),
                np.copysign(x, z),
            ]
    for i, column in enumerate(expected):
        same_bits(out[:, i].copy(), column.astype(dtype))


def test_halves(gpu):
    x, y, z = (finite(seed, F16) for seed in (4, 5, 6))
    y[y == 0] = 1
    out = np.zeros((128, 12), F16)
    gpu.run("arithmetic", "halves", 2, 64, [x, y, z, out])
    wx, wy, wz = (v.astype(F64) for v in (x, y, z))
    fused = (wx * wy + wz).astype(F16)
    expected = [x + y, x - y, x * y, fused, (wx / wy).astype(F16), np.sqrt(abs(wx)).astype(F16), np.floor(x)]
    expected += [
        np.trunc(y),
        np.trunc(z),
        np.where(x < y, z, -z),
        np.minimum(x, y),
        (wx + wy * wz).astype(F32).astype(F16),
    ]
    for i, column in enumerate(expected):
        if i in (7, 8):  # through an integer, which has no -0
            column = column + F16(0)
        same_bits(out[:, i].copy(), column.astype(F16))


def test_packed(gpu):
    x, y = finite(7, F16, 256).reshape(128, 2), finite(8, F16, 256).reshape(128, 2)
    draw = random(9)
    p, q = (draw.integers(-(2**15), 2**15, (128, 2)).astype(np.int16) for _ in range(2))
    out, ints = np.zeros((128, 6, 2), F16), np.zeros((128, 8, 2), np.int16)
    gpu.run("arithmetic", "packed", 2, 64, [x, y, p, q, out, ints])
    wx, wy = x.astype(F64), y.astype(F64)
    mixed = np.stack([x[:, 0], y[:, 1]], 1)
    expected = [x + y, x * y, (wx * wy + wx).astype(F16), np.maximum(x, y), x[:, ::-1] - y, mixed * -y]
    for i, column in enumerate(expected):
        same_bits(out[:, i].copy(), column)
    wp, wq = p.astype(I32), q.astype(I32)
    expected = [
        wp + wq,
        wp - wq,
        wp * wq + wp,
        np.minimum(p, q),
        np.maximum(p[:, ::-1], q),
        wp << (wq & 15),
        wp >> (wq & 15),
    ]
    expected += [np.clip(wp + wq, -(2**15), 2**15 - 1)]
    for i, column in enumerate(expected):
        same_bits(ints[:, i].copy(), column.astype(np.int16))


def test_brains(gpu):
    a, b = finite(10, F32), finite(11, F32)
    a[:4] = [np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8]
    out, stored = np.zeros((128, 3), F32), np.zeros(128, BF16)
    gpu.run("arithmetic", "brains", 2, 64, [a, b, out, stored.view("u2")])
    x, y = a.astype(BF16).astype(F32), b.astype(BF16).astype(F32)
    with np.errstate(invalid="ignore"):
        for i, column in enumerate([x, (x * y).astype(BF16).astype(F32), (x + y).astype(BF16).astype(F32)]):
            same_bits(out[:, i].copy(), column)
        same_bits(stored, (a * b).astype(BF16))


# --- 8-bit floats ----------------------------------------------------------------------------------------------------


def test_fp8(gpu):
    if gpu.arch not in ("gfx942", "gfx950", "gfx1201"):
        pytest.skip("this GPU has no 8-bit floats")
    types = fp8_types(gpu.arch)
    words = np.arange(256, dtype=np.uint8).reshape(64, 4)
    out = np.zeros((64, 12), F32)
    gpu.run("fp8", "from_fp8", 1, 64, [words.view(U32), out])
    fp8, bf8 = (words.view(t).astype(F32) for t in types)
    same_bits(out, np.concatenate([fp8, bf8, fp8[:, :2], bf8[:, 2:]], 1))

    x = finite(12, F32, 256, spread=8)
    # Every value, every midpoint between neighbours, and a hair beside it: in the range of both types.
    ladder = np.unique(np.concatenate([v[np.isfinite(v)] for v in (fp8.ravel(), bf8.ravel())]))
    ladder = ladder[abs(ladder) <= 200]
    middle = (ladder[1:] + ladder[:-1]) / 2
    x = np.concatenate(
        [x[abs(x) <= 200], ladder, middle, np.nextafter(middle, F32(1000)), np.nextafter(middle, F32(-1000))]
    )
    x = np.concatenate([x, np.zeros(-len(x) % 128, F32)]).astype(F32)
    out = np.zeros((len(x) // 2, 2), U32)
    gpu.run("fp8", "to_fp8", len(x) // 128, 64, [x, out])
    pairs = x.reshape(-1, 2)
    order = pairs[:, [0, 1, 1, 0]]
    got = out.view(np.uint8).reshape(-1, 2, 4)
    for i, kind in enumerate(types):
        same_bits(got[:, i].copy().view(kind), order.astype(kind))


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_read_lanes(gpu):
    w = gpu.wave
    x = random().integers(0, 1000, w).astype(I32)
    out = np.zeros((w, 8), I32)
    gpu.run("lanes", "read_lanes", 1, w, [x, out])
    t = np.arange(w)
    pushed = np.zeros(w, I32)
    pushed[t * 5 % w] = x
    # A permute inside a branch sees only the lanes that took it; t + 2 is odd too.
    expected = [np.full(w, x[0]), np.full(w, x[5]), np.full(w, x[x[0] & 31]), x[t * 7 % w], pushed]
    expected += [np.where(t % 3 == 0, x[0] + 1, -1), t, np.where(t % 2, x[(t + 2) % w], 0)]
    assert (out == np.stack(expected, 1)).all()


def dpp_source(control, lane, wave):
    """The lane a DPP control reads, or None; ISA manuals, "Data Parallel Processing"."""
    row, at = lane // 16 * 16, lane % 16
    if control < 0x100:
        return lane // 4 * 4 + (control >> 2 * (lane % 4) & 3)
    kind, n = control >> 4, control & 15
    if kind == 0x10:
        return row + at + n if at + n < 16 else None
    if kind == 0x11:
        return row + at - n if at >= n else None
    if kind == 0x12:
        return row + (at - n) % 16
    if control == 0x130:
        return lane + 1 if lane + 1 < wave else None
    if control == 0x138:
        return lane - 1 if lane else None
    if control == 0x140:
        return row + 15 - at
    if control == 0x141:
        return row + (at & 8) + 7 - at % 8
    if control == 0x142:
        return row - 1 if row else None
    if control == 0x143:
        return 31 if lane >= 32 else None
    if kind == 0x15:
        return row + n
    if kind == 0x16:
        return row + (at ^ n)
    raise ValueError(hex(control))


def test_dpp(gpu):
    w = gpu.wave
    x = random().integers(0, 1000, w).astype(I32)
    out = np.zeros((w, 16), I32)
    gpu.run("lanes", "dpp", 1, w, [x, out])

    def column(control, rows=15, banks=15, bound=False):
        result = np.full(w, -7, I32)
        for lane in range(w):
            if not (rows >> lane // 16 & 1 and banks >> lane // 4 % 4 & 1):
                continue
            source = dpp_source(control, lane, w)
            if source is not None:
                result[lane] = x[source]
            elif bound:
                result[lane] = 0
        return result

    expected = [column(0x1B), column(0x4E, bound=True), column(0x101), column(0x103, bound=True), column(0x112)]
    expected += [column(0x11F, bound=True), column(0x121), column(0x128, rows=5), column(0x140), column(0x141, banks=3)]
    expected += [column(0x111, 3, 14, True)]
    if w == 64:
        expected += [
            column(0x130),
            column(0x138, bound=True),
            column(0x142, rows=10),
            column(0x143, rows=12),
            column(0x1B),
        ]
    else:
        rows = x.reshape(2, 16)
        eight = [0xFAC688 >> 3 * i & 7 for i in range(8)]
        expected += [
            column(0x153),
            column(0x165),
            x,
            rows[::-1, [7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8]].ravel(),
        ]
        expected += [x.reshape(-1, 8)[:, eight].ravel()]
    assert (out == np.stack(expected, 1)).all()


def test_swaps(gpu):
    if gpu.arch != "gfx950":
        pytest.skip("only gfx950 swaps halves of a wave")
    x = random().integers(0, 1000, 64).astype(I32)
    out = np.zeros((64, 4), I32)
    gpu.run("lanes", "swaps", 1, 64, [x, out])
    a, b = x, x + 1000
    # The upper half of the first register changes places with the lower half of the second.
    assert (out[:, 0] == np.concatenate([a[:32], b[:32]])).all() and (
        out[:, 1] == np.concatenate([a[32:], b[32:]])
    ).all()
    ra, rb = a.reshape(4, 16), b.reshape(4, 16)
    assert (out[:, 2] == np.concatenate([ra[0], rb[0], ra[2], rb[2]])).all()
    assert (out[:, 3] == np.concatenate([ra[1], rb[1], ra[3], rb[3]])).all()


def test_uniform(gpu):
    w = gpu.wave
    x = random().integers(0, 300, w).astype(I32)
    out = np.zeros_like(x)
    a, b = 12345, -77
    gpu.run("lanes", "uniform", 1, w, [x, out, a, b])
    u = int(x[0])
    s = signed(a * u + b, 32)
    s = s ^ b if s > 100 else signed(s + signed(b << (u & 7), 32), 32)
    low = (s & MASK32) | 16
    s = signed(s + bin(s & MASK32).count("1") + (low & -low).bit_length() - 1 + int(math.fmod(s >> 3, 7)), 32)
    wide = signed(s * a * 1000003 + (b << 20), 64)
    for i in range(u & 15):
        s = signed(s * 3 + signed(wide >> (i & 31), 32), 32)
    leading = 64 - ((wide & MASK64) | 1).bit_length()
    assert out.tolist() == [signed(s + v + leading, 32) for v in x.tolist()]


def test_types_are_what_they_seem():
    """The references themselves: ml_dtypes rounds to nearest even and keeps what these tests rely on."""
    assert float(np.float32(1 + 2**-8).astype(BF16)) == 1.0
    assert float(np.float32(1 + 3 * 2**-8).astype(BF16)) == 1 + 2**-6
    assert float(np.float32(17).astype(ml_dtypes.float8_e4m3fn)) == 16.0

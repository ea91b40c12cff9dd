"""Ordinary kernels (kernels/*.hip) at every optimisation level on every GPU: right results and no report."""

import struct

import numpy as np
import pytest

import hip
from references import BF16, F16, F32, F64, I32, I64, U32, U64, attention_reference, fp8_types, random

# --- sums, scans, transposes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"seed": 7}, {"reverse": 1}, {"order": "lockstep"}, {"order": "compare"}],
    ids=["in-order", "interleaved", "reversed", "lockstep", "compared"],
)
def test_sum_shuffle(gpu, options):
    x = random().integers(-50, 50, 1000).astype(F32)
    out = np.zeros(3, F32)
    gpu.run("reduce", "sum_shuffle", 3, 256, [x, out, 1000], **options)
    assert out.sum() == x.sum()
    padded = np.zeros(1536, F32)
    padded[:1000] = x
    assert (out == padded.reshape(2, 3, 256).sum((0, 2))).all()


def test_max_dpp(gpu):
    x = random().integers(-(2**31), 2**31 - 1, 256).astype(I32)
    out = np.zeros(256 // gpu.wave, I32)
    gpu.run("reduce", "max_dpp", 1, 256, [x, out])
    assert (out == x.reshape(-1, gpu.wave).max(1)).all()


def test_sum_swizzle(gpu):
    x = random().integers(-50, 50, 256).astype(F32)
    out = np.zeros(8, F32)
    gpu.run("reduce", "sum_swizzle", 2, 128, [x, out])
    assert (out == x.reshape(-1, 32).sum(1)).all()


def test_sum_tree(gpu):
    x = random().integers(-(2**40), 2**40, 512).astype(F64)
    out = np.zeros(2, F64)
    gpu.run("reduce", "sum_tree", 2, 256, [x, out])
    assert (out == x.reshape(2, 256).sum(1)).all()


@pytest.mark.parametrize("seed", [0, 3])
def test_transpose(gpu, seed):
    x = random().standard_normal((70, 45)).astype(F32)
    out = np.zeros((45, 70), F32)
    gpu.run("shared", "transpose", (2, 3), (32, 8), [x, out, 70, 45], seed=seed)
    assert (out == x.T).all()


def test_transpose_half(gpu):
    x = random().standard_normal((64, 128)).astype(F16)
    out = np.zeros((128, 64), F16)
    gpu.run("shared", "transpose_half", (2, 1), 256, [x, out, 64, 128])
    assert (out == x.T).all()


@pytest.mark.parametrize("seed", [0, 5])
def test_scan(gpu, seed):
    x = random().integers(-1000, 1000, 512).astype(I32)
    out = np.zeros_like(x)
    gpu.run("shared", "scan", 2, 256, [x, out], seed=seed)
    assert (out == x.reshape(2, 256).cumsum(1).reshape(-1)).all()


@pytest.mark.parametrize("seed", [0, 5])
def test_scan_exclusive(gpu, seed):
    x = random().integers(-(2**50), 2**50, 512)
    out = np.zeros_like(x)
    gpu.run("shared", "scan_exclusive", 1, 256, [x, out], seed=seed)
    assert (out == x.cumsum() - x).all()


def test_dynamic_shared(gpu):
    x = random().integers(0, 1 << 30, 300).astype(I32)
    out = np.zeros_like(x)
    gpu.run("shared", "reverse_dynamic", 1, 128, [x, out, 300], shared=1200)
    assert (out == x[::-1]).all()
    x = np.arange(64, dtype=I32)
    out = np.zeros(64, I32)
    gpu.run("shared", "both_kinds", 1, 64, [x, out], shared=256)
    assert (out == x[::-1] + np.roll(x, -1) * 10).all()


def test_lds_widths(gpu):
    x = random().integers(0, 1 << 32, 64).astype(U32)
    out = np.zeros_like(x)
    gpu.run("shared", "lds_widths", 1, 64, [x, out])
    words = x[::-1].astype(object)
    expected = []
    for w in words:
        b = struct.pack("<IIQ4I", w, w * 3 & 0xFFFFFFFF, w << 20, *[(w + k) & 0xFFFFFFFF for k in range(4)])
        s = w
        for term in (
            struct.unpack_from("<b", b, 4)[0],
            b[5],
            struct.unpack_from("<h", b, 6)[0],
            struct.unpack_from("<H", b, 8)[0],
            struct.unpack_from("<Q", b, 8)[0] >> 16,
            w + (w + 1) * 5 + (w + 2) * 7 + (w + 3) * 11,
        ):
            s = (s * 31 + term) & 0xFFFFFFFF
        expected.append(s)
    assert (out == np.array(expected, U32)).all()


# --- matrices --------------------------------------------------------------------------------------------------------


def small_values(shape, dtype, seed=1):
    """Values whose products and sums are exact in every type involved."""
    return random(seed).integers(-4, 5, shape).astype(F32).astype(dtype)


def gemm(gpu, kernel, dtype, out_dtype, tile, depth, block, groups=(2, 2), k_blocks=3):
    m, n, k = tile * groups[1], tile * groups[0], depth * k_blocks
    a, b = small_values((m, k), dtype, 1), small_values((k, n), dtype, 2)
    out = np.zeros((m, n), out_dtype)
    carrier = np.dtype(dtype).itemsize
    gpu.run("gemm", kernel, groups, block, [a.view(f"u{carrier}"), b.view(f"u{carrier}"), out, n, k])
    assert (out.astype(F64) == a.astype(F64) @ b.astype(F64)).all()


def test_gemm_plain(gpu):
    gemm(gpu, "gemm_f32", F32, F32, 16, 16, 256)
    gemm(gpu, "gemm_f64", F64, F64, 16, 16, 256)


def test_gemm_matrix_instructions(gpu):
    fp8, bf8 = fp8_types(gpu.arch)
    cdna3_on = gpu.arch in ("gfx942", "gfx950")
    kernels = [
        ("gemm_f16", F16, F32, 16, 16),
        ("gemm_bf16", BF16, F32, 16, 8 if gpu.arch == "gfx908" else 16),
        ("gemm_i8", np.int8, I32, 16, 32 if cdna3_on else 16),
    ]
    if gpu.cdna:
        kernels += [
            ("gemm_f16_32", F16, F32, 32, 8),
            ("gemm_f32_matrix", F32, F32, 16, 4),
            ("gemm_f32_matrix_32", F32, F32, 32, 2),
        ]
        if gpu.arch != "gfx908":
            kernels += [("gemm_bf16_32", BF16, F32, 32, 8), ("gemm_f64_matrix", F64, F64, 16, 4)]
    if cdna3_on:
        kernels += [("gemm_fp8", fp8, F32, 16, 32), ("gemm_bf8_32", bf8, F32, 32, 16)]
    if gpu.arch == "gfx950":
        kernels += [("gemm_f16_deep", F16, F32, 16, 32), ("gemm_bf16_deep", BF16, F32, 32, 16)]
    if gpu.arch == "gfx1201":
        kernels += [("gemm_fp8", fp8, F32, 16, 16), ("gemm_bf8", bf8, F32, 16, 16)]
    for kernel, dtype, out, tile, depth in kernels:
        gemm(gpu, kernel, dtype, out, tile, depth, gpu.wave)


# --- softmax, norm, attention ----------------------------------------------------------------------------------------


def test_softmax(gpu):
    x = (random().standard_normal((3, 700)) * 4).astype(F32)
    out = np.zeros_like(x)
    gpu.run("softmax", "softmax", 3, 256, [x, out, 700])
    e = np.exp(x.astype(F64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=4e-6, atol=1e-12)


def test_layer_norm(gpu):
    x = (random().standard_normal((2, 384)) * 3 + 1).astype(F16)
    scale = random(2).standard_normal(384).astype(F16)
    out = np.zeros_like(x)
    gpu.run("softmax", "layer_norm", 2, 128, [x, scale, out, 384, 1e-5])
    w = x.astype(F64)
    expected = (w - w.mean(1, keepdims=True)) / np.sqrt(w.var(1, keepdims=True) + 1e-5) * scale.astype(F64)
    np.testing.assert_allclose(out.astype(F64), expected, rtol=1.1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "kernel, d, length, keys",
    [("attention_64", 64, 70, 90), ("attention_64_causal", 64, 80, 80), ("attention_128", 128, 64, 50)],
)
def test_attention(gpu, kernel, d, length, keys):
    if gpu.opt == "O0" and d == 128:
        pytest.skip("the same code as for d = 64, and slow without optimisation")
    draw = random()
    q = draw.standard_normal((2, length, d)).astype(F16)
    k, v = (draw.standard_normal((2, keys, d)).astype(F16) for _ in range(2))
    out, lse = np.zeros_like(q), np.zeros((2, length), F32)
    scale = d**-0.5
    gpu.run("attention", kernel, ((length + 63) // 64, 2), 4 * gpu.wave, [q, k, v, out, lse, length, keys, scale])
    expected, expected_lse = attention_reference(q, k, v, scale, "causal" in kernel)
    np.testing.assert_allclose(out.astype(F64), expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)


# --- atomics ---------------------------------------------------------------------------------------------------------


def test_histogram(gpu):
    x = random().integers(0, 256, 3000).astype(np.uint8)
    out = np.zeros(256, U32)
    gpu.run("atomics", "histogram", 2, 256, [x, out, 3000], seed=3)
    assert (out == np.bincount(x, minlength=256)).all()


def cells_after(x, unsigned):
    u = x.view(unsigned)
    one = x.dtype.type
    with np.errstate(over="ignore"):
        return np.array(
            [
                x.sum(dtype=x.dtype),
                one(0) - x.sum(dtype=x.dtype),
                min(0, x.min()),
                max(0, x.max()),
                0,
                u.max().astype(x.dtype),
                np.bitwise_and.reduce(x | one(0xFF0)),
                np.bitwise_or.reduce(x & one(0xFF0F)),
                np.bitwise_xor.reduce(x),
            ],
            x.dtype,
        )


@pytest.mark.parametrize("kernel, dtype, unsigned", [("int_cells", I32, U32), ("long_cells", I64, U64)])
def test_integer_atomics(gpu, kernel, dtype, unsigned):
    info = np.iinfo(dtype)
    x = random().integers(info.min, info.max, 256, dtype=dtype)
    cells = np.zeros(9, dtype)
    cells[6] = -1
    gpu.run("atomics", kernel, 2, 128, [x, cells], seed=5)
    assert (cells == cells_after(x, unsigned)).all()


def test_lds_atomics(gpu):
    x = random().integers(-(2**31), 2**31 - 1, 128).astype(I32)
    out, longs = np.zeros(9, I32), np.zeros(6, I64)
    gpu.run("atomics", "lds_cells", 1, 128, [x, out, longs])
    expected = cells_after(x, U32)
    expected[6] = 0
    expected[7] = np.bitwise_or.reduce(x)
    assert (out == expected).all()
    w = x.astype(I64) << 8
    assert (
        longs
        == [w.sum(), min(0, w.min()), max(0, w.max()), np.bitwise_or.reduce(w), np.bitwise_xor.reduce(w), -w.sum()]
    ).all()


def test_tickets(gpu):
    counter, taken, shared = np.zeros(1, U32), np.zeros(512, U32), np.zeros(512, U32)
    gpu.run("atomics", "tickets", 4, 128, [counter, taken, shared], seed=2)
    assert counter[0] == 512 and (np.sort(taken) == np.arange(512)).all()
    assert (np.sort(shared.reshape(4, 128), 1) == np.arange(128)).all()


def test_compare_and_swap(gpu):
    head, following = np.full(1, -1, I32), np.zeros(256, I32)
    wide, seen = np.full(1, -1, I64), np.zeros(256, I64)
    gpu.run("atomics", "chain", 2, 128, [head, following, wide, seen], seed=9)
    order, at = [], head[0]
    while at != -1:
        order.append(at)
        at = following[at]
    assert sorted(order) == list(range(256))
    values = [i << 32 | i for i in range(256)]
    assert sorted([*seen.tolist(), int(wide[0])]) == [-1, *values]


def test_float_atomics(gpu):
    x = random().integers(-100, 100, 256).astype(F32)
    cells, doubles = np.zeros(3, F32), np.zeros(3, F64)
    shared, shared_double = np.zeros(2, F32), np.zeros(2, F64)
    gpu.run("atomics", "float_cells", 2, 128, [x, cells, doubles, shared, shared_double], seed=4)
    expected = [x.sum(), min(0, x.min()), max(0, x.max())]
    assert (cells == expected).all() and (doubles == expected).all()
    halves = x.reshape(2, 128).sum(1)
    assert (shared == halves).all() and (shared_double == halves).all()
    cells = np.zeros(2, F32)
    gpu.run("atomics", "float_loops", 2, 128, [x, cells])
    assert (cells == [x.sum(), max(0, x.max())]).all()


def test_packed_atomics(gpu):
    if gpu.arch in ("gfx908", "gfx1100"):
        pytest.skip("this GPU has no packed atomics with 16-bit floats in memory")
    x = random().integers(-3, 4, 128).astype(F32)
    both = [x.sum(), -x.sum()]
    lds_too = gpu.arch != "gfx90a"
    sums, shared = np.zeros(2, F16), np.zeros((2, 2), F16)
    gpu.run("atomics", "packed_cells", 2, 64, [x, sums, shared])
    assert (sums == both).all()
    assert (shared.sum(0) == (both if lds_too else 0)).all()
    if lds_too:
        sums, shared = np.zeros(2, BF16), np.zeros((2, 2), BF16)
        gpu.run("atomics", "packed_bf16_cells", 2, 64, [x, sums.view("u2"), shared.view("u2")])
        assert (sums.astype(F32) == both).all() and (shared.astype(F32).sum(0) == both).all()


# --- calls and private memory ----------------------------------------------------------------------------------------


def test_recursion(gpu):
    x = random().integers(0, 9, 128).astype(I32)
    out = np.zeros_like(x)
    gpu.run("calls", "recursion", 2, 64, [x, out])
    fibonacci = [0, 1]
    for _ in range(10):
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    assert (out == np.array(fibonacci)[x]).all()
    gpu.run("calls", "mutual", 2, 64, [x, out])
    assert (out == (x % 2 == 0)).all()


def test_deep_frames(gpu):
    x = random().integers(-50, 50, 64).astype(I32)
    out = np.zeros_like(x)
    gpu.run("calls", "deep", 1, 64, [x, out])

    def nested(values, depth):
        local = [values[(i + depth) & 3] + depth for i in range(4)]
        return local[0] if depth == 0 else nested(local, depth - 1) + local[depth & 3]

    assert out.tolist() == [nested([v, v + 1, v * 2, -v], v & 7) for v in x.tolist()]


def test_function_pointers(gpu):
    x = random().integers(-20, 20, 128).astype(I32)
    which = random(2).integers(0, 4, 128).astype(I32)
    out = np.zeros_like(x)
    gpu.run("calls", "pointers", 2, 64, [x, which, out])
    functions = [lambda v: v + 3, lambda v: v * 5, lambda v: v * v, lambda v: -v]
    expected = []
    for v, w in zip(x.tolist(), which.tolist()):
        for k in range(3):
            v = functions[(w + k) & 3](v)
        expected.append(v)
    assert out.tolist() == expected
    x = np.abs(x)
    gpu.run("calls", "virtual_calls", 2, 64, [x, out])
    assert out.tolist() == [[v * v, v * 7, v][v % 3] for v in x.tolist()]


def test_big_arguments(gpu):
    x = random().integers(0, 1000, 64).astype(I32)
    out = np.zeros(64, F64)
    gpu.run("calls", "big_arguments", 1, 64, [x, out])
    expected = []
    for v in x.tolist():
        a = [v + (k + (v & 7)) % 6 + k * k for k in range(6)]
        expected.append(v * 0.5 * 2 + 1000 - 5 + 0.25 + 3 + (v & 3) + sum(a[k] * (k + 1) for k in range(6)))
    assert out.tolist() == expected


def test_private_arrays(gpu):
    x = random().integers(0, 1 << 32, 128).astype(U32)
    out = np.zeros_like(x)
    gpu.run("calls", "private_arrays", 2, 64, [x, out])
    mask = 0xFFFFFFFF

    def one(x):
        words = [x * k & mask for k in range(40)]
        octets = [(x + k) & 255 for k in range(24)]
        shorts = [(x ^ k) & 0xFFFF for k in range(12)]
        longs = [x << k for k in range(8)]
        total = 0
        for k in range(16):
            x = (x * 1664525 + 1013904223) & mask
            words[(x >> 8) % 40] = (words[(x >> 8) % 40] + k) & mask
            octets[(x >> 5) % 24] ^= k
            shorts[(x >> 9) % 12] = (shorts[(x >> 9) % 12] + k) & 0xFFFF
            longs[(x >> 11) % 8] = (longs[(x >> 11) % 8] - x) & (2**64 - 1)
            signed_byte = (octets[(x >> 20) % 24] ^ 128) - 128
            signed_short = (shorts[(x >> 21) % 12] ^ 32768) - 32768
            total = total * 33 + words[(x >> 16) % 40] + octets[(x >> 17) % 24] + shorts[(x >> 18) % 12]
            total = (total + (longs[(x >> 19) % 8] >> 7) + signed_byte + signed_short) & mask
        return total

    assert out.tolist() == [one(v) for v in x.tolist()]


def test_flat_addresses(gpu):
    x = random().integers(-100, 100, 64).astype(I32)
    given, out = x.copy(), np.zeros_like(x)
    gpu.run("calls", "flat", 1, 64, [given, out])
    expected = []
    for t, v in enumerate(x.tolist()):
        local, shared = [v * 2, 5], v * 3
        before = v if t % 3 == 0 else shared if t % 3 == 1 else local[t & 1]
        if t % 3 == 1:
            shared += 1
        elif t % 3 == 2:
            local[t & 1] += 1
        expected.append(before * 1000 + before + 1 + local[0] + shared)
    assert out.tolist() == expected
    assert (given == x + (np.arange(64) % 3 == 0)).all()


# --- control flow ----------------------------------------------------------------------------------------------------


def test_collatz(gpu):
    x = random().integers(1, 3000, 100).astype(U32)
    out = np.zeros_like(x)
    gpu.run("control", "collatz", 2, 64, [x, out, 100])

    def steps(v):
        n = 0
        while v != 1:
            v = 3 * v + 1 if v & 1 else v // 2
            n += 1
            if n > 500:
                break
        return n

    assert out.tolist() == [steps(v) for v in x.tolist()]


def test_switches(gpu):
    x = random().integers(0, 2000, 256).astype(I32)
    out = np.zeros_like(x)
    gpu.run("control", "switches", 4, 64, [x, out])

    def one(x):
        total, k = 0, 0
        while k < 5:
            case, skip = x & 15, False
            if case in (0, 1):
                total = (total + (case == 0)) * 3
            elif case == 2:
                total ^= 0x55
            elif case == 3:
                skip = total > 100
                total -= 0 if skip else 7
            elif case == 5:
                total += x
            elif case == 7:
                total = -total
            elif case == 8:
                return total
            elif case == 11:
                total <<= 1
            elif case == 13:
                k += 1
            else:
                total += 1000
            if not skip:
                x = x // 3 + 1
            k += 1
        return total

    assert out.tolist() == [one(v) for v in x.tolist()]


def test_nested_loops(gpu):
    x = random().integers(0, 500, 128).astype(I32)
    out = np.zeros_like(x)
    gpu.run("control", "nested", 2, 64, [x, out, 20])

    def one(x):
        total = 0
        for a in range(x & 7):
            for b in range(a, 20):
                if (a + b + x) % 5 == 0:
                    continue
                if b > (x >> 3 & 15):
                    break
                for c in range(b & 3):
                    total += a * b + c
            if total > 5000:
                return total
        return total + 7

    assert out.tolist() == [one(v) for v in x.tolist()]


def test_ballots(gpu):
    x = random().integers(0, 100, 128).astype(I32)
    out = np.zeros((128, 2), U64)
    gpu.run("control", "ballots", 1, 128, [x, out])
    for wave, values in enumerate(x.reshape(-1, gpu.wave)):
        odd = sum(1 << i for i, v in enumerate(values) if v & 1)
        large = sum(1 << i for i, v in enumerate(values) if v & 1 and v > 50)
        for i, v in enumerate(values):
            assert out[wave * gpu.wave + i].tolist() == [odd, large if v & 1 else 0]


def test_early_exit(gpu):
    x = random().integers(0, 1000, 256).astype(I32)
    out = np.full(256, -1, I32)
    waves = 256 // gpu.wave
    gpu.run("control", "early_exit", 1, 256, [x, out, waves], seed=8)
    assert (out[: gpu.wave] == x[:: gpu.wave].sum()).all() and (out[gpu.wave :] == -1).all()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_bytes_and_shorts(gpu):
    draw = random()
    a, b = draw.integers(-128, 128, 100).astype(np.int8), draw.integers(0, 256, 100).astype(np.uint8)
    c, d = draw.integers(-(2**15), 2**15, 100).astype(np.int16), draw.integers(0, 2**16, 100).astype(np.uint16)
    total, octets, shorts = np.zeros(100, I32), np.zeros(100, np.uint8), np.zeros(100, np.int16)
    gpu.run("memory", "bytes_and_shorts", 2, 50, [a, b, c, d, total, octets, shorts])
    assert (total == a.astype(I32) + b * I32(2) + c * I32(3) + d * I32(5)).all()
    assert (octets == (a.view(np.uint8) ^ b)).all()
    assert (shorts == (c.astype(I32) - d).astype(np.int16)).all()


def test_widths(gpu):
    x = random().integers(-1000, 1000, 256).astype(I32)
    odd = np.zeros(64, np.dtype([("tag", "i1"), ("value", "i4"), ("extra", "i2"), ("number", "f8")]))
    for name, high in (("tag", 100), ("value", 1 << 30), ("extra", 1 << 14), ("number", 1 << 20)):
        odd[name] = random(3).integers(-high, high, 64)
    out, numbers = np.zeros((64, 12), I32), np.zeros(64, F64)
    gpu.run("memory", "widths", 1, 64, [x, out, odd, numbers])
    assert (out[:, :4] == x.reshape(64, 4) + 1).all()
    assert (out[:, 4:6] == x[:128].reshape(64, 2)).all() and (out[:, 6:9] == x[:192].reshape(64, 3)).all()
    assert (out[:, 9] == odd["tag"]).all() and (out[:, 10] == odd["value"]).all() and (out[:, 11] == odd["extra"]).all()
    assert (numbers == odd["number"]).all()


def test_structures(gpu):
    values = random().integers(-100, 100, 90).astype(F32)
    out = np.full(128, -1, F32)
    with hip.Session(gpu.arch) as session:
        buffer = session.buffer(values)
        inner = [struct.pack("<h5bx", 7, 1, 2, 3, 4, 5), struct.pack("<h5bx", 9, -5, -4, -3, -2, -1)]
        by_value = struct.pack("<i8s8sf", 90, *inner, 0.5) + struct.pack("<Qqe6x", buffer.address, 1 << 33, 0.25)
        args = [by_value, hip.i8(-3), hip.f64(2.5), struct.pack("<h5bx", 0, 0, 0, 0, 0, 77), out]
        session.run(gpu.code("memory"), "structures", 2, 64, args)
    expected = values * F32(0.5)
    for term in (F32(1 << 33), F32(0.25)):
        expected = expected + term
    expected = expected + np.array([-5, -4, -3, -2, -1], F32)[np.arange(90) % 5]
    for term in (7, -3, 2.5, 77):
        expected = expected + F32(term)
    # The compiler may contract the first product and sum.
    np.testing.assert_allclose(out[:90], expected, rtol=3e-7)
    assert (out[90:] == -1).all()


def test_globals(gpu):
    x = random().integers(0, 100, 64).astype(I32)
    out, table = np.zeros(64, F32), np.arange(1, 9).astype(F32)
    with hip.Session(gpu.arch) as session:
        code = gpu.code("memory")
        address, size = session.variable(code, "settable")
        assert size == 32
        hip.call("hipMemcpy", address, table.ctypes.data, 32, hip.HOST_TO_DEVICE)
        session.run(code, "globals", 1, 64, [x, out])
        session.run(code, "globals", 1, 64, [x, out])
        counter = np.zeros(1, I32)
        hip.call("hipMemcpy", counter.ctypes.data, session.variable(code, "counter")[0], 4, hip.DEVICE_TO_HOST)
    digits = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3], F32)
    assert (out == digits[x & 15] * np.tile(table, 8)).all()
    assert counter[0] == 44


def test_buffers(gpu):
    n, limit, out_limit = 128, 1000, 5000
    x = random().integers(0, 1 << 32, 512).astype(U32)
    out = np.full(8192 // 4, 0xABABABAB, U32)
    gpu.run("memory", "buffers", 2, 64, [x, out, limit, out_limit])
    image = bytearray(out.size * 4)
    image[:] = b"\xab" * len(image)
    data = x.tobytes()

    def load(offset, size):
        return int.from_bytes(data[offset : offset + size], "little") if offset + size <= limit else 0

    def store(offset, size, value):
        if offset + size <= out_limit:
            image[offset : offset + size] = value.to_bytes(size, "little")

    for i in range(n):
        four = [load(i * 16 + 16 + 4 * k, 4) for k in range(4)]
        s, b = load(i * 2 + 4, 2), load(i, 1)
        total = load(i * 4, 4) + four[0] + four[3] * 3 + load(i * 8 + 12, 4) * 5 + s + b
        store(i * 4, 4, total & 0xFFFFFFFF)
        store(1024 + i, 1, b)
        store(2048 + i * 2, 2, s)
        for k in range(4):
            store(4096 + i * 16 + 4 * k, 4, four[k])
    assert (out == np.frombuffer(bytes(image), U32)).all()


def test_nontemporal(gpu):
    x, flags = random().standard_normal(64).astype(F32), np.arange(64, dtype=I32)
    out = np.zeros_like(x)
    gpu.run("memory", "nontemporal", 1, 64, [x, out, flags])
    assert (out == x * 2).all() and (flags == np.arange(64) + 2).all()


# --- where am I ------------------------------------------------------------------------------------------------------


def test_grid(gpu):
    groups, sizes = (3, 2, 2), (8, 4, 3)
    total = [g * s for g, s in zip(groups, sizes)]
    out = np.zeros((total[2], total[1], total[0], 12), I32)
    gpu.run("grid", "where", groups, sizes, [out])
    z, y, x = np.indices(out.shape[:3])
    for i, (axis, size) in enumerate(zip((x, y, z), sizes)):
        assert (out[..., i] == axis % size).all() and (out[..., 3 + i] == axis // size).all()
        assert (out[..., 6 + i] == size).all() and (out[..., 9 + i] == total[i]).all()
    out = np.zeros(15, I32)
    gpu.run("grid", "packet", groups, sizes, [out, 77])
    assert out.tolist() == [*sizes, *total, *groups, *sizes, 0, 3, 77]

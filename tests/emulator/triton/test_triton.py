"""Kernels that Triton compiles (kernels.py), run on every emulated GPU: right results and no report."""

import math

import build
import ml_dtypes
import numpy as np
import pytest

import hip
from references import BF16, F16, F32, F64, I32, attention_reference, random

full = pytest.mark.full

FLOATS = {
    "fp16": F16,
    "bf16": BF16,
    "fp32": F32,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
}
# The 8-bit types of the hardware, and on the others those that are converted in software.
FP8 = {"gfx942": ("fp8e4b8", "fp8e5b16"), "gfx950": ("fp8e4nv", "fp8e5"), "gfx1201": ("fp8e4nv", "fp8e5")}


def launch(arch, kernel, grid, args, signature, constants, num_warps=4, **options):
    build_options = {k: options.pop(k) for k in ("num_stages", "aligned") if k in options}
    code, notes = build.build(arch, kernel, signature, constants, num_warps=num_warps, **build_options)
    # After the kernel's own arguments come pointers to scratch memory of Triton's tools, which nothing here uses.
    kinds = [k for k in hip.argument_kinds(code, notes["name"]) if not k.startswith("hidden_")]
    assert set(kinds[len(args) :]) <= {"global_buffer"}
    args = [a.view(f"u{a.itemsize}") if isinstance(a, np.ndarray) and a.dtype.kind == "V" else a for a in args]
    args += [None] * (len(kinds) - len(args))
    with hip.Session(arch, **options) as session:
        session.run(code, notes["name"], grid, num_warps * hip.wave_size(arch), args, shared=notes["shared"])


@full
def test_add(arch):
    n = 3000
    x, y = random(1).standard_normal((2, n)).astype(F32)
    out = np.zeros_like(x)
    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
    launch(arch, "add", 3, [x, y, out, n], types, {"BLOCK": 1024})
    assert (out == x + y).all()


def test_softmax(arch):
    x = (random(1).standard_normal((3, 800)) * 3).astype(F32)
    out = np.zeros_like(x)
    types = {"x": "*fp32", "out": "*fp32", "columns": "i32", "stride": "i32"}
    launch(arch, "softmax", 3, [x, out, 800, 800], types, {"BLOCK": 1024})
    e = np.exp(x.astype(F64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=full), 3])
def test_layer_norm(arch, seed):
    columns = 600
    x = (random(1).standard_normal((2, columns)) * 2 + 1).astype(F16)
    weight, bias = random(2).standard_normal((2, columns)).astype(F32)
    out, mean = np.zeros_like(x), np.zeros(2, F32)
    types = {"x": "*fp16", "weight": "*fp32", "bias": "*fp32", "out": "*fp16", "mean_out": "*fp32"}
    types.update(columns="i32", epsilon="fp32")
    launch(
        arch,
        "layer_norm",
        2,
        [x, weight, bias, out, mean, columns, 1e-5],
        types,
        {"BLOCK": 256},
        aligned=False,
        seed=seed,
    )
    w = x.astype(F64)
    expected = (w - w.mean(1, keepdims=True)) / np.sqrt(w.var(1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(out.astype(F64), expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(mean, w.mean(1), rtol=1e-5)


def test_sort_and_scan(arch):
    x = random(1).integers(-500, 500, (2, 256)).astype(F32)
    ordered, scanned, largest = np.zeros_like(x), np.zeros_like(x), np.zeros(2, I32)
    types = {"x": "*fp32", "out_sorted": "*fp32", "out_scan": "*fp32", "out_argmax": "*i32"}
    launch(arch, "sort_and_scan", 2, [x, ordered, scanned, largest], types, {"BLOCK": 256})
    assert (ordered == np.sort(x, 1)).all() and (scanned == x.cumsum(1)).all() and (largest == x.argmax(1)).all()


def test_mathematics(arch):
    n = 700
    x = (random(1).standard_normal(n) * 3).astype(F32)
    out = np.zeros((8, n), F32)
    launch(arch, "mathematics", 2, [x, out, n], {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 512})
    w = x.astype(F64)
    erf = np.vectorize(math.erf)(w)
    expected = [
        np.exp(-w * w),
        np.log(abs(w) + 1),
        np.sin(w),
        np.cos(w),
        erf,
        1 / np.sqrt(abs(w) + 0.5),
        np.sqrt(abs(w)),
        1 / (1 + np.exp(-w)),
    ]
    np.testing.assert_allclose(out, np.array(expected), rtol=3e-5, atol=3e-6)


def philox(seed, offset):
    """tl.randint: Philox 4x32, ten rounds."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3, k0, k1 = offset, 0, 0, 0, seed, 0
    for _ in range(10):
        a, b = c0, c2
        c0 = (0xCD9E8D57 * b >> 32) ^ c1 ^ k0
        c2 = (0xD2511F53 * a >> 32) ^ c3 ^ k1
        c1, c3 = 0xCD9E8D57 * b & mask, 0xD2511F53 * a & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0


@full
def test_dropout(arch):
    n, seed, probability = 900, 1234, 0.3
    x = random(1).standard_normal(n).astype(F32)
    out = np.zeros_like(x)
    types = {"x": "*fp32", "out": "*fp32", "n": "i32", "probability": "fp32", "seed": "i32"}
    launch(arch, "dropout", 2, [x, out, n, probability, seed], types, {"BLOCK": 512})
    numbers = np.array([philox(seed, i) for i in range(n)], np.uint32).view(I32)
    uniform = np.where(numbers < 0, -numbers - 1, numbers) * F32(4.6566127342e-10)
    np.testing.assert_allclose(out, np.where(uniform > F32(probability), x / (1 - F32(probability)), 0), rtol=3e-7)


def matmul(arch, kind, tile, stages, split, m=112, n=144, k=160, seed=0):
    bm, bn, bk = tile
    draw = random(3)
    a, b = (draw.integers(-2, 3, shape).astype(F32).astype(FLOATS[kind]) for shape in ((m, k), (k, n)))
    out_kind = "fp32" if split > 1 or kind.startswith("fp8") else kind
    c = np.zeros((m, n), FLOATS[out_kind])
    types = {"a": "*" + kind, "b": "*" + kind, "c": "*" + out_kind, "M": "i32", "N": "i32", "K": "i32"}
    constants = {"BM": bm, "BN": bn, "BK": bk, "SPLIT": split}
    grid = (-(-m // bm), -(-n // bn), split)
    aligned = m % 16 == n % 16 == k % 16 == 0
    args = [x.view(f"u{x.itemsize}") for x in (a, b, c)]
    launch(arch, "matmul", grid, [*args, m, n, k], types, constants, num_stages=stages, aligned=aligned, seed=seed)
    expected = (a.astype(F64) @ b.astype(F64)).astype(F32).astype(FLOATS[out_kind])
    assert (c.astype(F64) == expected.astype(F64)).all()


SHAPES = {
    "one-stage": ((64, 64, 32), 1, 1),
    "two-stages": ((128, 64, 32), 2, 1),
    "three-stages": ((64, 128, 64), 3, 1),
    "split": ((64, 64, 32), 2, 3),
}
ALWAYS = [("fp16", "three-stages"), ("bf16", "split")]


@pytest.mark.parametrize(
    "kind, shape",
    [
        pytest.param(kind, shape, marks=() if (kind, shape) in ALWAYS else full)
        for kind in ("fp16", "bf16")
        for shape in SHAPES
    ],
)
def test_matmul(arch, kind, shape):
    matmul(arch, kind, *SHAPES[shape])


@full
def test_matmul_interleaved(arch):
    matmul(arch, "fp16", (128, 64, 32), 2, 1, seed=11)


def test_matmul_ragged(arch):
    matmul(arch, "fp16", (32, 32, 32), 2, 1, m=50, n=45, k=70)


@pytest.mark.parametrize("which", [0, pytest.param(1, marks=full)])
def test_matmul_fp8(arch, which):
    matmul(arch, FP8.get(arch, ("fp8e5", "fp8e4nv"))[which], (64, 64, 64), 2, 1, m=64, n=80, k=128)


@pytest.mark.parametrize(
    "kind, stages, causal",
    [("fp16", 1, False), *(pytest.param(*case, marks=full) for case in [("fp16", 1, True), ("bf16", 2, False)]),
     ("bf16", 2, True)],
)  # fmt: skip
def test_attention(arch, kind, stages, causal):
    length, keys, d = 80, 80 if causal else 100, 64
    draw = random(5)
    q = draw.standard_normal((2, length, d)).astype(FLOATS[kind])
    k, v = (draw.standard_normal((2, keys, d)).astype(FLOATS[kind]) for _ in range(2))
    out, lse = np.zeros_like(q), np.zeros((2, length), F32)
    types = {name: "*" + kind for name in "qkvo"}
    types.update(lse="*fp32", length="i32", keys="i32", scale="fp32")
    args = [x.view("u2") for x in (q, k, v, out)]
    constants = {"BM": 64, "BN": 64, "D": d, "CAUSAL": causal}
    launch(arch, "attention", (2, 2), [*args, lse, length, keys, 0.125], types, constants, num_stages=stages)
    expected, expected_lse = attention_reference(q, k, v, 0.125, causal)
    tolerance = 2e-3 if kind == "fp16" else 2e-2
    np.testing.assert_allclose(out.astype(F64), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)

"""The installed package on aarch64, called with NumPy arrays alone: forward and backward against attention in double."""

import platform

import numpy as np

import flashwave
from flashwave import arrays

SEQLEN, DIM = 100, 64


def in_double(q, k, v, d_out):
    """Causal attention and its gradients by their definition."""
    q, k, v, d_out = (x.astype(np.float64) for x in (q, k, v, d_out))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
    s[..., np.triu(np.ones((SEQLEN, SEQLEN), bool), 1)] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("bqhd,bkhd->bhqk", d_out, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / DIM**0.5
    return {
        "out": np.einsum("bhqk,bkhd->bqhd", p, v),
        "dq": np.einsum("bhqk,bkhd->bqhd", ds, k),
        "dk": np.einsum("bhqk,bqhd->bkhd", ds, q),
        "dv": np.einsum("bhqk,bqhd->bkhd", p, d_out),
    }


def main():
    assert platform.machine() == "aarch64"
    arch = flashwave.devices()[0]["arch"]
    assert arch == "aarch64+neon", arch
    generator = np.random.default_rng(1)
    q, k, v, d_out = (generator.standard_normal((2, SEQLEN, 4, DIM)).astype(np.float32) for _ in range(4))
    out, lse = arrays.attention(q, k, v, causal=True, return_lse=True)
    gradients = arrays.attention_backward(d_out, q, k, v, out, lse, causal=True)
    expected = in_double(q, k, v, d_out)
    for name, got in {"out": out, "dq": gradients.dq, "dk": gradients.dk, "dv": gradients.dv}.items():
        error = np.abs(got - expected[name]).max()
        print(f"{name}: largest error {error:.1e}")
        assert got.dtype == np.float32 and error < 1e-5
    half = flashwave.attention(*(x.astype(np.float16) for x in (q, k, v)), causal=True)
    error = np.abs(half - expected["out"]).max()
    print(f"out in fp16: largest error {error:.1e}")
    assert half.dtype == np.float16 and error < 4e-3
    print(
        f"flashwave {flashwave.__version__}, {arch}, Python {platform.python_version()}, {' '.join(platform.libc_ver())}"
    )


main()

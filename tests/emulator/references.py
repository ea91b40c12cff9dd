"""Types, comparisons and reference results that the tests share."""

import ml_dtypes
import numpy as np

I32, U32, I64, U64 = np.int32, np.uint32, np.int64, np.uint64
F16, F32, F64, BF16 = np.float16, np.float32, np.float64, ml_dtypes.bfloat16


def random(seed=1):
    return np.random.default_rng(seed)


def same_bits(got, expected):
    """Equal to the bit, except that NaNs are alike."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    alike = got.view(f"u{got.itemsize}") == expected.view(f"u{got.itemsize}")
    if got.dtype.kind not in "iu":
        alike |= np.isnan(got.astype(F64)) & np.isnan(expected.astype(F64))
    assert alike.all(), (
        f"{(~alike).sum()} differ, first at {np.argwhere(~alike)[0]}: {got[~alike][0]!r}, not {expected[~alike][0]!r}"
    )


def fp8_types(arch):
    if arch == "gfx942":
        return ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz
    return ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def attention_reference(q, k, v, scale, causal):
    s = np.einsum("hqd,hkd->hqk", q.astype(F64), k.astype(F64)) * scale
    if causal:
        seen = np.arange(k.shape[1])[None] <= np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        s = np.where(seen, s, -np.inf)
    top = s.max(2, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(2, keepdims=True)
    return np.einsum("hqk,hkd->hqd", p / total, v.astype(F64)), (top + np.log(total))[..., 0]

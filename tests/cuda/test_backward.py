"""The backward by tensor cores: which kernel runs, exact sums, and the same bits in every run.

The kernels of other GPUs run on one of compute capability 9.0 too, where they are named.
"""

from __future__ import annotations

import json
import math
import re

import pytest
import torch

import flashwave
from flashwave import _library as fw
from flashwave import dispatch
from flashwave.attention import make_problem
from flashwave.backends.native import calls as native
from sample import normal


def _on_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


pytestmark = pytest.mark.skipif(not _on_hopper(), reason="the kernels are for compute capability 9.0")


def kernels(family: str = "hopper|ampere") -> list[str]:
    if not _on_hopper():
        return []
    return [name for name in fw.kernels(fw.device("cuda:0")) if re.search(rf"^({family})_bwd_(bf16|f16)_d\d+", name)]


def kind(kernel: str) -> tuple[torch.dtype, int]:
    """The element type and head dim that a kernel is made for."""
    found = re.search(r"_(bf16|f16)_d(\d+)", kernel)
    return (torch.bfloat16 if found[1] == "bf16" else torch.float16), int(found[2])


def gradients(q, k, v, dout, **arguments):
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    flashwave.flash_attn_func(*leaves, **arguments).backward(dout)
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dim", [64, 80, 128, 192, 256])
@pytest.mark.parametrize(
    "arguments", [{}, {"causal": True}, {"window": (100, 0)}, {"softcap": 30.0}, {"dropout_p": 0.1}]
)
def test_no_call_falls_to_the_slow_path(dim, arguments):
    q, k, v = (normal(2, 300, heads, dim) for heads in (4, 2, 2))
    plan = json.loads(flashwave.explain(q, k, v, backward=True, json=True, **arguments))
    assert plan["kernel"].startswith("hopper_bwd_"), plan["kernel"]
    assert not plan["slow_path"]


@pytest.mark.parametrize("arguments", [{}, {"dropout_p": 0.1}])
def test_few_keys_take_two_kernels(arguments):
    """One tile has all keys of a head: dQ is written at once."""
    q, k, v = normal(2, 500, 4, 64), normal(2, 128, 4, 64), normal(2, 128, 4, 64)
    plan = json.loads(flashwave.explain(q, k, v, backward=True, json=True, **arguments))
    assert "_d64_m64n128_short" in plan["kernel"], plan["kernel"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [1, 77, 128])
@pytest.mark.parametrize("queries", [1, 63, 500])
def test_few_keys_leave_no_query_out(queries, keys, causal):
    """Queries before the first key see none of them: their gradient is 0, and somebody has to write that."""
    q, k, v, dout = (normal(2, rows, 2, 64) for rows in (queries, keys, keys, queries))
    torch.full_like(q, math.nan)  # what memory that is not written is likely to hold
    dq = gradients(q, k, v, dout, causal=causal)[0].transpose(1, 2).double()

    qd, kd, vd, dod = (tensor.transpose(1, 2).double() for tensor in (q, k, v, dout))
    qd.requires_grad_()
    unseen = torch.ones(queries, keys, device="cuda").triu(keys - queries + 1).bool() & causal
    weights = (qd @ kd.mT / 8).masked_fill(unseen, -math.inf).softmax(-1).nan_to_num()
    (want,) = torch.autograd.grad(weights @ vd, qd, dod)
    assert (dq - want.nan_to_num()).abs().max() <= 0.02 + 0.02 * want.nan_to_num().abs().max()


@pytest.mark.parametrize("rows", [100, 300])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_probability_of_almost_1_drops_everything(dim, rows):
    """The threshold of 16-bit random numbers is then 2^16, one more than fits."""
    q, k, v, dout = (normal(1, rows, 2, dim) for _ in range(4))
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    out = flashwave.flash_attn_func(*leaves, dropout_p=0.999999)
    out.backward(dout)
    assert not out.any() and not any(leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_bits_repeat(dim, causal, deterministic):
    q, k, v, dout = (normal(2, 3000, heads, dim) for heads in (8, 2, 2, 8))
    first = gradients(q, k, v, dout, causal=causal, deterministic=deterministic)
    for _ in range(4):
        again = gradients(q, k, v, dout, causal=causal, deterministic=deterministic)
        assert torch.equal(again[1], first[1]) and torch.equal(again[2], first[2])
        assert not deterministic or torch.equal(again[0], first[0])


@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_gradients_of_bias_and_slopes(dim):
    q, k, v = (normal(2, 300, heads, dim) for heads in (4, 2, 2))
    bias, slopes = normal(1, 4, 300, 300, dtype=torch.float32), torch.rand(4, device="cuda")
    for arguments in ({"bias": bias.requires_grad_()}, {"alibi_slopes": slopes.requires_grad_()}):
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        out = flashwave.attention(*leaves, **arguments)
        monitored = [*leaves, *arguments.values()]
        gradients_of = torch.autograd.grad(out.float().square().sum(), monitored)
        wanted = torch.autograd.grad(
            flashwave.attention(*(leaf.float() for leaf in leaves), **arguments).square().sum(), monitored
        )
        for got, want in zip(gradients_of, wanted):
            assert (got.float() - want.float()).norm() <= 0.02 * want.float().norm()


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (300, 90), (200, -1)])
@pytest.mark.parametrize("kernel", kernels("ampere"))
def test_bits_repeat_by_the_kernels_of_other_gpus(kernel, window, monkeypatch):
    dtype, dim = kind(kernel)
    q, k, v, dout = (normal(2, 2000, heads, dim, dtype=dtype) for heads in (8, 2, 2, 8))
    out, lse = flashwave.attention(q, k, v, window=window, return_lse=True)
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", kernel)
    found = {}
    for deterministic in (False, True):
        problem = make_problem(q, k, v, window_size=window, deterministic=deterministic)
        found[deterministic] = [dispatch.backward(problem, dout, None, out, lse, native.DQ_DK_DV)[:3] for _ in range(4)]
    dq, dk, dv = found[True][0]
    assert all(torch.equal(again[0], dq) for again in found[True])
    assert all(torch.equal(a[1], dk) and torch.equal(a[2], dv) for a in found[True] + found[False])
    assert (found[False][0][0].float() - dq.float()).norm() <= 1e-2 * dq.float().norm()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", kernels())
def test_integers_stay_exact(kernel, causal, monkeypatch):
    """A scale that vanishes makes every weight 1 / (number of keys), a power of two, and all else is small integers: a
    register that is overwritten while a matrix instruction still reads it shows."""
    dtype, dim = kind(kernel)
    digits, rows = 7 if dtype == torch.bfloat16 else 10, 128 if "_short" in kernel else 1024
    q, k, v, dout = (torch.randint(-2, 3, (1, rows, 2, dim), device="cuda").to(dtype) for _ in range(4))
    scale = 2.0**-30
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", kernel)
    bias = torch.zeros(1, 2, rows, rows, dtype=dtype, device="cuda") if kernel.endswith("_bias") else None
    problem = make_problem(q, k, v, causal=causal, softmax_scale=scale, bias=bias)
    out = torch.zeros_like(q)
    lse = torch.full((1, 2, rows), 5 * math.log(2), device="cuda")  # every weight is 1 / 32
    dq, dk, dv = dispatch.backward(problem, dout, None, out, lse, native.DQ_DK_DV)[:3]

    weights = torch.full((rows, rows), 1 / 32, device="cuda", dtype=torch.double)
    weights = weights.tril() if causal else weights
    heads = [tensor.transpose(1, 2).double() for tensor in (q, k, v, dout)]
    ds = ((heads[3] @ heads[2].mT) * weights).to(dtype).double()
    expected = (ds @ heads[1] * scale, ds.mT @ heads[0] * scale, weights.T @ heads[3])
    for name, got, want in zip(("dq", "dk", "dv"), (dq, dk, dv), expected):
        if name != "dv" and dtype == torch.float16:
            continue  # below what fp16 can hold
        want = want.transpose(1, 2).to(dtype).double()
        assert ((got.double() - want).abs() <= want.abs() * 2.0**-digits + 1e-12).double().mean() > 1 - 1e-3, name

"""Weights that are powers of two and values that are integers: every product and sum is exact in fp32, so a register
that is overwritten while a matrix instruction still reads it shows in the result, however small its weight. (ptxas
before 13.3 could do that to wgmma's operands in registers.)"""

from __future__ import annotations

import math
import re

import pytest
import torch

import flashwave
from flashwave import _library as fw


def kernels() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [name for name in fw.kernels(fw.device("cuda:0")) if re.search(r"_fwd_(bf16|f16)_d\d+", name)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", kernels())
def test_integers_stay_exact(kernel, causal, monkeypatch):
    found = re.search(r"_fwd_(bf16|f16)_d(\d+)(?:v(\d+))?", kernel)
    dtype, digits = (torch.bfloat16, 7) if found[1] == "bf16" else (torch.float16, 10)
    dim, dim_v, rows = int(found[2]), int(found[3] or found[2]), 2048
    index = torch.arange(rows, device="cuda")
    q = torch.zeros(1, rows, 2, dim, device="cuda", dtype=dtype)
    q[0, index, :, index % dim] = 1  # picks one column of k: the score is an integer
    k = torch.randint(-6, 1, (1, rows, 2, dim), device="cuda").to(dtype)
    v = torch.randint(-64, 65, (1, rows, 2, dim_v), device="cuda").to(dtype)
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", kernel)
    try:
        out = flashwave.flash_attn_func(q, k, v, softmax_scale=math.log(2), causal=causal)
    except flashwave.Unsupported as refusal:
        pytest.skip(str(refusal))

    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double())
    if causal:
        scores.masked_fill_(index[None, :] > index[:, None], -math.inf)
    weights = torch.exp2(scores)
    exact = torch.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdim=True), v.double()).to(dtype).double()
    difference = (out.double() - exact).abs()
    # The division alone rounds: now and then to the other neighbour.
    assert (difference <= exact.abs() * 2.0**-digits + 1e-6).all()
    assert (difference > 0).double().mean() < 1e-3

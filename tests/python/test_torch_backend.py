"""PyTorch operations asked for by name: gradients by finite differences for every feature, results in every type."""

from __future__ import annotations

import os

import pytest
import torch

import flashwave
from cases import Features, make, to
from flashwave import autograd as operators
from flashwave.backends.torch import blocks

DEVICE = os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")
INPUTS = ("q", "k", "v", "alibi_slopes", "bias", "sinks")

FEATURES = {
    "plain": Features(),
    "causal": Features(causal=True),
    "window": Features(window=(2, 1)),
    "grouped heads": Features(heads=(4, 1)),
    "another dim of v": Features(dims=(2, 3)),
    "softcap": Features(softcap=1.5),
    "slopes": Features(slopes="bh"),
    "bias": Features(bias="bhqk"),
    "bias that broadcasts": Features(bias="hq"),
    "sinks": Features(sinks=True),
    "dropout": Features(dropout=0.3),
    "packed": Features(packed_q=True, keys="packed", causal=True, batch=3, seed=3),
    "lengths": Features(seqused=True, leftpad=True, seed=5),
    "all": Features(window=(3, 1), softcap=1.5, slopes="h", bias="qk", sinks=True, dropout=0.3, seed=1),
}


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request, monkeypatch):
    if request.param == "many tiles":
        monkeypatch.setattr(blocks, "score_budget", lambda q: 24)


@pytest.mark.parametrize("name", list(FEATURES))
def test_gradcheck(name, tiles):
    f = FEATURES[name]
    dims = f.dims if f.dims != Features().dims else (2, 2)
    p = to(make(f._replace(longest_q=3, longest_k=5, dims=dims)), DEVICE)
    assert p.q.dtype == torch.float64
    # Perturbing a NaN or an infinity says nothing.
    present = [n for n in INPUTS if getattr(p, n) is not None]
    leaves = [torch.nan_to_num(getattr(p, n), 0.5, 0.5, 0.5).requires_grad_() for n in present]

    def attend(*tensors):
        with flashwave.backend("torch"):
            out, lse, _ = operators.attend(p._replace(**dict(zip(present, tensors))))
        return out, torch.where(lse.isinf(), torch.zeros_like(lse), lse)

    assert torch.autograd.gradcheck(attend, leaves, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_type(dtype):
    q, k, v = (torch.randn(2, 33, 4, 16, device=DEVICE).to(dtype).requires_grad_() for _ in range(3))
    with flashwave.backend("torch"):
        out = flashwave.flash_attn_func(q, k, v, causal=True)
    wide = [tensor.detach().double().requires_grad_() for tensor in (q, k, v)]
    heads_first = [tensor.transpose(1, 2) for tensor in wide]
    expected = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
    weight = torch.randn_like(out)
    close = {"atol": 16 * torch.finfo(dtype).eps, "rtol": 16 * torch.finfo(dtype).eps}
    torch.testing.assert_close(out.double(), expected, **close)
    ours = torch.autograd.grad(out, (q, k, v), weight)
    for mine, theirs in zip(ours, torch.autograd.grad(expected, wide, weight.double())):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), theirs, **close)


def test_many_tiles_give_what_one_does(monkeypatch):
    q, k, v = (torch.randn(2, 65, 4, 16, device=DEVICE, dtype=torch.float64) for _ in range(3))
    terms = {"causal": True, "window_size": (30, 0), "sinks": torch.randn(4, device=DEVICE), "softcap": 5.0}
    with flashwave.backend("torch"):
        whole, whole_lse = flashwave.flash_attn_func(q, k, v, return_lse=True, **terms)
        monkeypatch.setattr(blocks, "score_budget", lambda q: 4 * 16 * 10)
        tiled, tiled_lse = flashwave.flash_attn_func(q, k, v, return_lse=True, **terms)
    torch.testing.assert_close(tiled, whole, atol=1e-13, rtol=0)
    torch.testing.assert_close(tiled_lse, whole_lse, atol=1e-13, rtol=0)
    assert not torch.equal(tiled, whole)  # it was cut otherwise indeed

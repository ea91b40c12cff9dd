"""Gradients of the oracle by autograd, for backends whose backward is called by itself."""

from __future__ import annotations

import torch

import oracle
from flashwave.problem import Problem

NAMES = ("q", "k", "v", "alibi_slopes", "bias", "sinks")


def all_needed(p: Problem) -> tuple[bool, ...]:
    return tuple(getattr(p, name) is not None for name in NAMES)


def incoming(p: Problem, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """dout and dlse for a problem whose results are out and lse: N(0, 1), NaN in rows of no sequence."""
    generator = torch.Generator().manual_seed(1)
    dout = torch.randn(out.shape, generator=generator).to(p.q.dtype)
    dlse = torch.randn(lse.shape, generator=generator)
    if p.cu_seqlens_q is not None:
        last = int(p.cu_seqlens_q[-1])
        dout[last:], dlse[:, last:] = float("nan"), float("nan")
    return dout.to(out.device), dlse.to(out.device)


def of_oracle(
    p: Problem, dout: torch.Tensor, dlse: torch.Tensor, dtype: torch.dtype
) -> tuple[oracle.Result, list[torch.Tensor | None]]:
    """The forward's results and the gradients of NAMES (None where there is no tensor), in `dtype` on the CPU."""
    given = {name: getattr(p, name) for name in NAMES if getattr(p, name) is not None}
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in given.items()}
    result = oracle.attention(p._replace(**leaves), dtype)
    seen = result.lse.isfinite()
    total = (result.out.double() * dout.cpu().double()).nansum()
    total = total + (result.lse[seen].double() * dlse.cpu().double()[seen]).sum()
    total = total + sum(leaf.flatten()[:0].sum() for leaf in leaves.values())  # 0, for what no row depends on
    found = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()))))
    return result, [found.get(name) for name in NAMES]

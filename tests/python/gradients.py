"""Gradients of the oracle by autograd, for backends whose backward is called by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

import oracle
from flashwave.problem import Problem
from numeric import ULP, error

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


def assert_within_rule(
    p: Problem,
    results: Sequence[torch.Tensor | None],
    exact: Sequence[torch.Tensor | None],
    naive: Sequence[torch.Tensor | None],
) -> None:
    """The rule of docs/numerics.md for gradients, with its allowance for those that add up many rows."""

    def unit(size: float) -> float:
        return 1e-6 * (1 + size) if p.q.dtype == torch.float32 else ULP[p.q.dtype] * size

    def largest(tensor: torch.Tensor) -> float:
        return tensor.abs().max().item() if tensor.numel() else 0.0

    common = max(largest(gradient) for gradient in exact[:3])
    rows = p.q.shape[:-1].numel() * (1 if p.q.dtype == torch.float32 else p.v.shape[-1])
    for name, result, reference, rough in zip(NAMES, results, exact, naive):
        if reference is None:
            assert result is None, name
            continue
        assert result.shape == getattr(p, name).shape and result.dtype == getattr(p, name).dtype, name
        allowance = unit(largest(reference))
        if name not in ("q", "k", "v"):
            allowance = unit(max(largest(reference), common)) / 4 * math.sqrt(rows)
        mine, allowed = error(result, reference), 3 * error(rough, reference) + allowance
        assert mine <= allowed, f"gradient of {name}: error {mine:.3e} is more than {allowed:.3e}"

"""PyTorch operations as a backend : any device and floating-point type, every feature."""

from __future__ import annotations

from typing import Any

import torch

from ... import settings
from ...problem import Problem
from . import backward as torch_backward
from . import forward as torch_forward

Tensor = torch.Tensor


def settings_of(q: Tensor) -> dict[str, Any]:
    """AMD's performance mode is a choice of the operands of products; other devices keep to the exact ones."""
    on_amd = q.is_cuda and torch.version.hip is not None
    if not (on_amd and settings.performance_mode() and q.dtype in (torch.float16, torch.bfloat16)):
        return {}
    return {"products": torch.bfloat16, "round_toward_zero": settings.round_toward_zero()}


def forward(
    problem: Problem, out: Tensor | None = None, lse: bool = True, probs: bool = False
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    results = torch_forward(problem, probs, **settings_of(problem.q))
    if out is None:
        return results
    out.copy_(results[0])
    return out, results[1], results[2]


def backward(
    problem: Problem, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: tuple[bool, ...]
) -> tuple:
    return torch_backward(problem, dout, dlse, out, lse, needs, **settings_of(problem.q))

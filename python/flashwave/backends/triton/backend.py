"""Attention by Triton kernels: forward and backward, on NVIDIA and AMD GPUs.

Importing this module does not import Triton. `refusal` says whether a call can be computed here, and why not; a Triton
that is absent, old or broken is a reason like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

import torch

from .support import WIDEST_ROW, seed_on_device, why_no_device, why_no_triton

if TYPE_CHECKING:
    from torch import Tensor

    from ...problem import Problem

_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_LARGEST_DIM = 256
_MOST_PAIRS = 1 << 30  # of which the gradient of a bias holds an fp32 number each
_NOT_HERE = ("block_table", "cache_batch_idx", "k_new", "rotary_cos")


def refusal(problem: Problem, op: str, needs: Sequence[bool] | None = None, probs: bool = False) -> str | None:
    """Why the kernels do not compute this call, in a sentence; None if they do. op: "forward" or "backward"."""
    if op not in ("forward", "backward"):
        raise ValueError(f'op must be "forward" or "backward", got {op!r}')
    return why_no_triton() or why_no_device(problem.q) or _why_not_problem(problem, needs, probs)


def _why_not_problem(p: Problem, needs: Sequence[bool] | None, probs: bool) -> str | None:
    if p.q.dtype not in _TYPES:
        return f"the Triton kernels take fp16, bf16 and fp32, not {p.q.dtype}"
    if p.q.device.type == "cpu" and p.q.dtype == torch.bfloat16:
        return "Triton's interpreter does not multiply bf16"
    if max(p.q.shape[-1], p.v.shape[-1]) > _LARGEST_DIM:
        return f"the Triton kernels take head dims up to {_LARGEST_DIM}"
    if probs:
        return "the Triton kernels do not write the softmax matrix"
    for name in _NOT_HERE:
        if getattr(p, name) is not None:
            return f"the Triton kernels do not take {name}"
    for tensor in p[:3]:
        if tensor.stride(-3) >= WIDEST_ROW:
            return f"the Triton kernels take rows up to {WIDEST_ROW - 1} elements apart"
    if p.bias is not None and max(p.bias.stride()[2:]) >= WIDEST_ROW:
        return f"the Triton kernels take rows of bias up to {WIDEST_ROW - 1} elements apart"
    if needs is not None and needs[4]:
        pairs = p.batch * p.q.shape[-2] * p.max_seqlen_q * p.max_seqlen_k
        if pairs > _MOST_PAIRS:
            return f"the Triton kernels hold the gradients of all {pairs} pairs for that of bias, which is too much"
    return None


@functools.cache
def _launcher():  # type: ignore[no-untyped-def]  # a module
    reason = why_no_triton()
    if reason is not None:
        raise RuntimeError(reason)
    from . import launch

    return launch


def forward(problem: Problem, out: Tensor | None = None, lse: bool = True) -> tuple[Tensor, Optional[Tensor], None]:
    """(out, lse if wanted, None). The problem is one that `refusal` accepts."""
    return (*_launcher().forward(seed_on_device(problem), out, lse), None)


def backward(
    problem: Problem, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: Sequence[bool]
) -> tuple[Optional[Tensor], ...]:
    """Gradients of q, k, v, alibi_slopes, bias and sinks, None where not needed. out and lse are the forward's."""
    return _launcher().backward(seed_on_device(problem), dout, dlse, out, lse, needs)

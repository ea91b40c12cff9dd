"""The library's kernels as a backend; what they need of torch is in `calls`."""

from __future__ import annotations

import torch

from ...problem import Problem
from . import calls as native
from .calls import Gradient6, Plan

Tensor = torch.Tensor
_SEED = "the seed of the dropout is on the GPU, and inside the capture of a graph the host cannot read it"


def plan(problem: Problem, needs: tuple[bool, ...] | None = None, probs: bool = False, dlse: bool = False) -> Plan:
    """The library's plan of the forward, or with needs of the backward. Raises InvalidArgument for a wrong problem."""
    device = native.device_of(problem.q)
    if device is not None and not native.seed_is_out_of_reach(problem):
        return native.plan(device, problem, needs, probs, dlse)
    native.validate(problem, backward=needs is not None)
    return Plan(None, False, native.why_no_device(problem.q) if device is None else _SEED)


def forward(
    problem: Problem, out: Tensor | None = None, lse: bool = True, probs: bool = False, key: tuple | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """(out, lse, probs); None where there is no kernel after all."""
    device = native.device_of(problem.q)
    return None if device is None else native.forward(device, problem, out, lse, probs, key)


def backward(
    problem: Problem, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: tuple[bool, ...]
) -> Gradient6 | None:
    """The gradients that are needed; None where there is no kernel after all."""
    device = native.device_of(problem.q)
    return None if device is None else native.backward(device, problem, dout, dlse, out, lse, needs)

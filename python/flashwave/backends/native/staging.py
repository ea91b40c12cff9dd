"""CPU tensors through any device of the library: copied there, computed, copied back. For tests and emulated GPUs."""

from __future__ import annotations

from typing import Any

import torch

from ... import _library as fw
from ... import shapes
from ...autograd import DIFFERENTIABLE, Outputs, is_differentiated, no_jvp, no_second_derivative, tell_autograd
from ...errors import InvalidArgument
from ...problem import FORWARD_FIELDS, Problem
from . import calls as native
from . import structs
from .device_memory import contiguous, staged_backward, staged_forward

Tensor = torch.Tensor


def _forward(device: str, problem: Problem, probs: bool) -> Outputs:
    shapes.check(problem)
    if not problem.q.is_cpu:
        raise InvalidArgument(f"device='{device}' takes CPU tensors, got q on {problem.q.device}")
    if problem.q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise InvalidArgument(f"device='{device}' takes float16, bfloat16 and float32, got q in {problem.q.dtype}")
    handle, here = fw.device(device), contiguous(problem)
    # Whatever torch's default dtype and device are.
    exact = {"dtype": torch.float32, "device": "cpu"}
    out = torch.empty(structs.out_shape(here), dtype=here.q.dtype, device="cpu")
    lse = torch.empty(structs.lse_shape(here), **exact)
    matrix = torch.empty(structs.probs_shape(here), **exact) if probs else None
    staged_forward(handle, here, out, lse, matrix, flags=fw.FILL_UNUSED)
    if problem.k_new is not None:  # the caller's caches, where they had to be copied to lie without gaps
        for cache, copy in ((problem.k, here.k), (problem.v, here.v)):
            if cache is not copy:
                cache.copy_(copy)
    return out, lse, matrix


def _backward(
    device: str, problem: Problem, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, needs: tuple
) -> native.Gradient6:
    handle, here = fw.device(device), contiguous(problem)
    dout, dlse = dout.contiguous(), None if dlse is None else dlse.contiguous()
    results = native.empty_gradients(here, needs)
    staged_backward(handle, here, dout, dlse, out, lse, results, flags=fw.FILL_UNUSED)
    return results


class _Staged(torch.autograd.Function):
    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(ctx: Any, device: str, probs: bool, *fields: Any) -> Outputs:  # type: ignore[override]
        results = _forward(device, Problem(*fields), probs)
        if results[2] is not None:
            ctx.mark_non_differentiable(results[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*fields[:13], *results[:2])
        ctx.device, ctx.scalars = device, fields[13:]
        return results

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Any) -> tuple:  # type: ignore[override]
        *tensors, out, lse = ctx.saved_tensors
        needs = tuple([bool(ctx.needs_input_grad[2 + place]) for place in DIFFERENTIABLE])
        dout = torch.zeros_like(out) if dout is None else dout
        problem = Problem(*tensors, *ctx.scalars)
        results = _StagedGradients.apply((ctx.device, problem, dlse, out, lse, needs), dout, *tensors)
        gradients: list = [None] * len(ctx.needs_input_grad)
        for place, gradient in zip(DIFFERENTIABLE, results):
            gradients[2 + place] = gradient
        return tuple(gradients)


class _StagedGradients(torch.autograd.Function):
    """What must not be differentiated again depends on dout and the tensors, which are given for autograd to see."""

    @staticmethod
    def forward(ctx: Any, call: tuple, dout: Tensor, *tensors: Any) -> tuple:  # type: ignore[override]
        device, problem, *rest = call
        return _backward(device, problem, dout, *rest)

    backward = staticmethod(no_second_derivative)


def staged_attend(device: str, problem: Problem, out: Tensor | None, probs: bool) -> Outputs:
    """As autograd.attend, on the named device of the library."""
    if is_differentiated(*problem[:3], *problem[9:12]):
        if problem.k_new is not None:
            raise InvalidArgument("k cannot be appended to a cache when an input requires a gradient")
        results = _Staged.apply(device, probs, *problem[: len(FORWARD_FIELDS)])
    else:
        results = _forward(device, problem, probs)
        if problem.k_new is not None:
            tell_autograd(problem.k, problem.v)
    if out is None:
        return results
    if results[0].requires_grad:
        raise InvalidArgument("out cannot be used when an input requires a gradient")
    return out.copy_(results[0]), results[1], results[2]

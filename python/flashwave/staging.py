"""CPU tensors through any device of the library: copied there, computed, copied back. For tests and emulated GPUs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import _library as fw
from . import native, shapes, structs
from .device_memory import Memory, contiguous
from .errors import InvalidArgument
from .operators import DIFFERENTIABLE, Outputs, needs_gradient
from .problem import FORWARD_FIELDS, Problem

Tensor = torch.Tensor


def _forward(device: str, problem: Problem, probs: bool) -> Outputs:
    shapes.check(problem)
    if not problem.q.is_cpu:
        raise InvalidArgument(f"device='{device}' takes CPU tensors, got q on {problem.q.device}")
    handle, here = fw.device(device), contiguous(problem)
    out = torch.zeros(structs.out_shape(here), dtype=here.q.dtype)
    lse = torch.full(structs.lse_shape(here), -torch.inf)
    matrix = torch.empty(structs.probs_shape(here)) if probs else None
    attention = structs.fill(here)
    structs.put_outputs(attention, out, lse, matrix)
    if here.rng_state is not None:
        structs.set_seed(attention, here.rng_state)
    with Memory(handle) as memory:
        memory.place_inputs(attention, here)
        attention.o.data, attention.lse.data = memory.place(out, True), memory.place(lse, True)
        if matrix is not None:
            attention.probs.data = memory.place(matrix, True)
        fw.check(fw.lib.fw_forward(handle, ctypes.addressof(attention), None))
        memory.fetch()
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
    attention = structs.fill(here)
    structs.put_outputs(attention, out, lse, None)
    if here.rng_state is not None:
        structs.set_seed(attention, here.rng_state)
    results = native.empty_gradients(here, needs)
    gradients = structs.fill_gradients(dout, dlse, results)
    with Memory(handle) as memory:
        memory.place_inputs(attention, here)
        attention.o.data, attention.lse.data = memory.place(out), memory.place(lse)
        memory.place_gradients(gradients, dout, dlse, results)
        fw.check(fw.lib.fw_backward(handle, ctypes.addressof(attention), ctypes.addressof(gradients), None))
        memory.fetch()
    return results


class _Staged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, device: str, probs: bool, *fields: Any) -> Outputs:  # type: ignore[override]
        problem = Problem(*fields)
        out, lse, matrix = _forward(device, problem, probs)
        ctx.set_materialize_grads(False)
        if matrix is not None:
            ctx.mark_non_differentiable(matrix)
        ctx.device, ctx.scalars = device, fields[13:]
        ctx.save_for_backward(*fields[:13], out, lse)
        return out, lse, matrix

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: Any) -> tuple:  # type: ignore[override]
        *tensors, out, lse = ctx.saved_tensors
        gradients: list = [None] * len(ctx.needs_input_grad)
        needs = tuple([bool(ctx.needs_input_grad[2 + place]) for place in DIFFERENTIABLE])
        dout = torch.zeros_like(out) if dout is None else dout
        results = _backward(ctx.device, Problem(*tensors, *ctx.scalars), dout, dlse, out, lse, needs)
        for place, gradient in zip(DIFFERENTIABLE, results):
            gradients[2 + place] = gradient
        return tuple(gradients)


def staged_attend(device: str, problem: Problem, out: Tensor | None, probs: bool) -> Outputs:
    """As operators.attend, on the named device of the library."""
    if needs_gradient(problem):
        if problem.k_new is not None:
            raise InvalidArgument("k cannot be appended to a cache when an input requires a gradient")
        results = _Staged.apply(device, probs, *problem[: len(FORWARD_FIELDS)])
    else:
        results = _forward(device, problem, probs)
    if out is None:
        return results
    if results[0].requires_grad:
        raise InvalidArgument("out cannot be used when an input requires a gradient")
    return out.copy_(results[0]), results[1], results[2]

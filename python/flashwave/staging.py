"""CPU tensors through any device of the library: copied there, computed, copied back. For tests and for emulated GPUs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import _library as fw
from . import native, shapes
from .errors import InvalidArgument
from .operators import DIFFERENTIABLE, Outputs, needs_gradient
from .problem import FORWARD_FIELDS, Problem

Tensor = torch.Tensor
_TO_DEVICE, _TO_HOST = 0, 1


class _Memory:
    """Memory of one device for the length of one call."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.results: list[tuple[int, Tensor]] = []  # what comes back: (address there, tensor here)
        self.addresses: list[int] = []

    def __enter__(self) -> _Memory:
        return self

    def __exit__(self, *_: Any) -> None:
        for address in self.addresses:
            fw.lib.fw_device_free(self.device, address)

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        if size > 0:
            fw.check(fw.lib.fw_device_copy(self.device, to, source, size, kind, None))

    def place(self, tensor: Tensor, written: bool = False) -> int:
        """The address of a copy of the tensor; what a kernel writes there returns into the tensor."""
        assert tensor.is_contiguous()
        size = tensor.numel() * tensor.element_size()
        address = ctypes.c_void_p()
        fw.check(fw.lib.fw_device_alloc(self.device, size, ctypes.byref(address)))
        if address.value is None:
            return 0
        self.addresses.append(address.value)
        self._copy(address.value, tensor.data_ptr(), size, _TO_DEVICE)
        if written:
            self.results.append((address.value, tensor))
        return address.value

    def fetch(self) -> None:
        fw.check(fw.lib.fw_device_synchronize(self.device, None))
        for address, tensor in self.results:
            self._copy(tensor.data_ptr(), address, tensor.numel() * tensor.element_size(), _TO_HOST)
        fw.check(fw.lib.fw_device_synchronize(self.device, None))


def _contiguous(problem: Problem) -> Problem:
    copies = {}
    for name in problem._fields:
        value = getattr(problem, name)
        if isinstance(value, Tensor) and not value.is_contiguous():
            copies[name] = value.contiguous()
    return problem._replace(**copies)


def _place_inputs(memory: _Memory, attention: fw.Attention, problem: Problem) -> None:
    words = memoryview(attention).cast("B").cast("Q")
    for place, word in native.ADDRESSES:
        if problem[place] is not None:
            appended_to = problem.k_new is not None and Problem._fields[place] in ("k", "v")
            words[word] = memory.place(problem[place], written=appended_to)


def _forward(device: str, problem: Problem, probs: bool) -> Outputs:
    shapes.check(problem)
    if not problem.q.is_cpu:
        raise InvalidArgument(f"device='{device}' takes CPU tensors, got q on {problem.q.device}")
    handle, here = fw.device(device), _contiguous(problem)
    out = torch.zeros(native.out_shape(here), dtype=here.q.dtype)
    lse = torch.full(native.lse_shape(here), -torch.inf)
    matrix = torch.empty(native.probs_shape(here)) if probs else None
    attention = native.fill(here)
    native.put_outputs(attention, out, lse, matrix)
    native.set_seed(attention, here.rng_state)
    with _Memory(handle) as memory:
        _place_inputs(memory, attention, here)
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
    handle, here = fw.device(device), _contiguous(problem)
    dout, dlse = dout.contiguous(), None if dlse is None else dlse.contiguous()
    attention = native.fill(here)
    native.put_outputs(attention, out, lse, None)
    native.set_seed(attention, here.rng_state)
    gradients, results = native.fill_gradients(here, dout, dlse, needs)
    dq, dk, dv, dslopes, dbias, dsinks = results
    with _Memory(handle) as memory:
        _place_inputs(memory, attention, here)
        attention.o.data, attention.lse.data = memory.place(out), memory.place(lse)
        gradients.d_o.data = memory.place(dout)
        if dlse is not None:
            gradients.d_lse.data = memory.place(dlse)
        for to, tensor in ((gradients.dq, dq), (gradients.dk, dk), (gradients.dv, dv), (gradients.d_bias, dbias)):
            if tensor is not None:
                to.data = memory.place(tensor, True)
        if dslopes is not None:
            gradients.d_slopes = memory.place(dslopes, True)
        if dsinks is not None:
            gradients.d_sinks = memory.place(dsinks, True)
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

"""Memory of a device of the library, into which the tensors of one call are copied. They are `structs`' tensors."""

from __future__ import annotations

import ctypes
from typing import Any

from ... import _library as fw
from ...problem import TENSOR_FIELDS, Problem
from .structs import ADDRESSES, Tensor, Tensor6, fill, fill_gradients, put_outputs, set_seed

_TO_DEVICE, _TO_HOST = 0, 1


def _plain(tensor: Tensor) -> Tensor:
    """A torch tensor may say that its numbers are the negative of what lies in memory."""
    resolved = getattr(tensor, "resolve_neg", None)
    return (tensor if resolved is None else resolved()).contiguous()


def contiguous(problem: Problem) -> Problem:
    """The problem with copies of the tensors that have gaps: only their bytes travel."""
    tensors = {name: getattr(problem, name) for name in TENSOR_FIELDS}
    return problem._replace(**{name: _plain(tensor) for name, tensor in tensors.items() if tensor is not None})


class Memory:
    """Memory of one device for the length of one call."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.results: list[tuple[int, Tensor]] = []  # what comes back: (address there, tensor here)
        self.addresses: list[int] = []

    def __enter__(self) -> Memory:
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

    def place_inputs(self, attention: fw.Attention, problem: Problem) -> None:
        words = memoryview(attention).cast("B").cast("Q")
        for place, word in ADDRESSES:
            if problem[place] is not None:
                appended_to = problem.k_new is not None and Problem._fields[place] in ("k", "v")
                words[word] = self.place(problem[place], written=appended_to)

    def place_gradients(self, gradients: fw.Gradients, dout: Tensor, dlse: Tensor | None, results: Tensor6) -> None:
        dq, dk, dv, dslopes, dbias, dsinks = results
        gradients.d_o.data = self.place(dout)
        if dlse is not None:
            gradients.d_lse.data = self.place(dlse)
        for to, tensor in ((gradients.dq, dq), (gradients.dk, dk), (gradients.dv, dv), (gradients.d_bias, dbias)):
            if tensor is not None:
                to.data = self.place(tensor, True)
        if dslopes is not None:
            gradients.d_slopes = self.place(dslopes, True)
        if dsinks is not None:
            gradients.d_sinks = self.place(dsinks, True)

    def fetch(self) -> None:
        fw.check(fw.lib.fw_device_synchronize(self.device, None))
        for address, tensor in self.results:
            self._copy(tensor.data_ptr(), address, tensor.numel() * tensor.element_size(), _TO_HOST)
        fw.check(fw.lib.fw_device_synchronize(self.device, None))


def staged_forward(
    device: int,
    problem: Problem,
    out: Tensor,
    lse: Tensor,
    probs: Tensor | None,
    exec_: fw.Exec | None = None,
    flags: int = 0,
) -> None:
    """fw_forward of tensors without gaps, through the device's memory; caches that are appended to come back too."""
    attention = fill(problem)
    attention.flags |= flags
    put_outputs(attention, out, lse, probs)
    set_seed(attention, problem.rng_state)
    with Memory(device) as memory:
        memory.place_inputs(attention, problem)
        attention.o.data, attention.lse.data = memory.place(out, True), memory.place(lse, True)
        if probs is not None:
            attention.probs.data = memory.place(probs, True)
        exec_address = None if exec_ is None else ctypes.addressof(exec_)
        fw.check(fw.lib.fw_forward(device, ctypes.addressof(attention), exec_address))
        memory.fetch()


def staged_backward(
    device: int,
    problem: Problem,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    results: Tensor6,
    exec_: fw.Exec | None = None,
    flags: int = 0,
) -> None:
    """fw_backward in the same way."""
    attention, gradients = fill(problem), fill_gradients(dout, dlse, results)
    attention.flags |= flags
    put_outputs(attention, out, lse, None)
    set_seed(attention, problem.rng_state)
    with Memory(device) as memory:
        memory.place_inputs(attention, problem)
        attention.o.data, attention.lse.data = memory.place(out), memory.place(lse)
        memory.place_gradients(gradients, dout, dlse, results)
        exec_address = None if exec_ is None else ctypes.addressof(exec_)
        fw.check(fw.lib.fw_backward(device, ctypes.addressof(attention), ctypes.addressof(gradients), exec_address))
        memory.fetch()

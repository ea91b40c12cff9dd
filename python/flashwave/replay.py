"""Calls that were made before: tensors of the same layouts, the same scalars, nothing to differentiate or trace.

Such a call needs none of the steps from arguments to a filled struct again, only the new addresses. That leaves about
a third of the time a call otherwise spends in Python, which counts where attention itself takes microseconds: decoding.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Callable, NamedTuple

import torch

from . import _library as fw
from . import dispatch
from .autograd import attend, is_plain
from .backends.native import calls as native
from .problem import Problem

Tensor = torch.Tensor
_MOST_KEPT = 1024  # a program with more different calls than this starts over


class _Call(NamedTuple):
    device: int  # the library's handle
    attention: fw.Attention
    words: memoryview  # of the attention
    exec_: fw.Exec
    attention_address: int
    exec_address: int
    inputs: tuple[tuple[int, int], ...]  # (place among the tensors, word that takes the address)
    out_shape: tuple[int, ...] | None  # None: that of q, which lies without gaps


_calls: dict[tuple, _Call] = {}
_fw_forward, _num_threads, _autocast = fw.lib.fw_forward, torch.get_num_threads, torch._C._is_any_autocast_enabled


def _key(tensors: tuple, scalars: tuple, differentiable: bool) -> tuple | None:
    """What must be the same for a call to be the same; None if it is none that can be repeated."""
    q = tensors[0]
    if not is_plain(q) or _autocast() or dispatch.steered():
        return None
    if differentiable and torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return None
    if q.is_cpu:  # a device takes longer to hash
        return tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.is_cpu) for t in tensors]), scalars
    return tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors]), scalars


def _repeat(known: _Call, tensors: tuple) -> Tensor | None:
    q, words = tensors[0], known.words
    shape = known.out_shape
    out = torch.empty_like(q) if shape is None else torch.empty(shape, dtype=q.dtype, device=q.device)
    for place, word in known.inputs:
        words[word] = tensors[place].data_ptr()
    words[native.O] = out.data_ptr()
    if q.is_cpu:
        known.exec_.num_threads = _num_threads()
        status = _fw_forward(known.device, known.attention_address, known.exec_address)
    else:
        workspace = native.lend(q, known.exec_)
        status = _fw_forward(known.device, known.attention_address, known.exec_address)
        del workspace
    if status == 0:
        return out
    if status in (fw.UNSUPPORTED, fw.WORKSPACE_TOO_SMALL):
        return None
    raise fw.error_of(status)


def _learn(tensors: tuple, problem: Problem) -> _Call | None:
    """How to repeat a call whose problem reads just these tensors, where they lie, on a device of the library."""
    device = native.device_of(problem.q)
    if device is None or native.readable(problem) is not problem or not dispatch.forward_is_native(problem):
        return None
    places = {id(tensor): place for place, tensor in enumerate(tensors) if tensor is not None}
    fields = [(place, word) for place, word in native.ADDRESSES if problem[place] is not None]
    if any(id(problem[place]) not in places for place, _ in fields):
        return None
    attention, exec_, shape = native.fill(problem), fw.new_exec(), native.out_shape(problem)
    native.put_outputs(attention, torch.empty(shape, dtype=problem.q.dtype, device=problem.q.device), None, None)
    native.lend(problem.q, exec_)
    if not problem.q.is_cpu and not native.ask_workspace(device, exec_, ctypes.addressof(attention)):
        return None  # PyTorch operations computed it
    return _Call(
        device,
        attention,
        memoryview(attention).cast("B").cast("Q"),
        exec_,
        ctypes.addressof(attention),
        ctypes.addressof(exec_),
        tuple((places[id(problem[place])], word) for place, word in fields),
        None if problem.q.is_contiguous() and shape == tuple(problem.q.shape) else shape,
    )


def attend_or_repeat(
    tensors: tuple, scalars: tuple, make: Callable[[], Problem], differentiable: bool = True
) -> Tensor:
    """The result of make(), which is a dense problem of these tensors (q is the first) and scalars without dropout."""
    key = _key(tensors, scalars, differentiable)
    known = None if key is None else _calls.pop(key, None)  # taken out while in use: other threads take the long way
    if known is not None:
        result = _repeat(known, tensors)
        _calls[key] = known
        if result is not None:
            return result
    with contextlib.nullcontext() if differentiable else torch.no_grad():
        problem = make()
        result = attend(problem, None, False)[0]
    known = None if key is None else _learn(tensors, problem)
    if known is not None:
        if len(_calls) >= _MOST_KEPT:
            _calls.clear()
        _calls[key] = known
    return result


def calls() -> dict[tuple, _Call]:
    """The calls that can be repeated."""
    return _calls

"""Triton launches that were made before: the same kernels for tensors of the same layouts and the same numbers.

For every launch Triton finds the compiled kernel anew, by all of some fifty arguments, which are put together from a
problem before. Beside a small attention that is most of the time. So a plain call, of q, k, v, a seed and numbers, is
recorded when it is made for the second time (the first may try configurations), and later ones only start the compiled
kernels with the new tensors.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import torch

if TYPE_CHECKING:
    from ...problem import Problem

Tensor = torch.Tensor
Results = tuple[Optional[Tensor], ...]

_OLDEST = (3, 6)  # from it on a compiled kernel takes all arguments of the function, constants too
_MOST_KEPT = 1024  # a program with more different calls than this starts over
_SEEN, _NEVER = "seen once", "cannot be repeated"


class _Start(NamedTuple):
    run: Callable[..., None]  # the compiled kernel with its grid
    arguments: list[Any]  # of the function, in order
    tensors: tuple[tuple[int, int], ...]  # (place among the arguments, which of the call's tensors)


class _Call(NamedTuple):
    """A call's tensors are those it is given, then those it makes."""

    starts: tuple[_Start, ...]
    made: tuple[tuple[torch.Size, torch.dtype], ...]
    results: tuple[int | None, ...]  # which of the call's tensors


_known: dict[tuple, _Call | str] = {}
_thread = threading.local()


def start(kernel: Any, grid: int, arguments: dict[str, Any], options: dict[str, Any]) -> None:
    """kernel[(grid,)](**arguments, **options), and a note of it where a call is being recorded."""
    compiled = kernel[(grid,)](**arguments, **options)
    record = getattr(_thread, "record", None)
    if record is not None:
        record.append((compiled, grid, [arguments[name] for name in kernel.arg_names]))


@functools.cache
def _triton_is_known() -> bool:
    import triton

    return tuple(int(part) for part in triton.__version__.split("+")[0].split(".")[:2]) >= _OLDEST


def _is_plain(problem: Problem, others: tuple[Tensor | None, ...]) -> bool:
    """Whether launches are all there is to the call: no copies, nothing to fill or to sum up, no lengths to look at."""
    if not problem.q.is_cuda or any([tensor is not None for tensor in problem[3:12]]) or not _triton_is_known():
        return False
    for tensor in (*problem[:3], *others):
        if tensor is not None and tensor.stride(-1) != 1:
            return False
    return True


def repeated(
    problem: Problem, others: tuple[Tensor | None, ...], scalars: tuple, make: Callable[[Problem], Results]
) -> Results:
    """make(problem), which depends on nothing else but the other tensors and scalars."""
    if not _is_plain(problem, others):
        return make(problem)
    tensors = (*problem[:3], problem.rng_state, *others)
    layouts = [t if t is None else (t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16) for t in tensors]
    key = (tuple(layouts), problem[13:23], scalars)
    known = _known.get(key)
    if isinstance(known, _Call):
        return _repeat(known, tensors)
    if known is None:
        if len(_known) >= _MOST_KEPT:
            _known.clear()
        _known[key] = _SEEN
    if known is not _SEEN or torch.cuda.is_current_stream_capturing():  # where no configurations are tried
        return make(problem)
    _thread.record = record = []
    try:
        results = make(problem)
    finally:
        _thread.record = None
    _known[key] = _learn(record, tensors, results) or _NEVER
    return results


def _learn(record: list[tuple[Any, int, list[Any]]], tensors: tuple, results: Results) -> _Call | None:
    """How to repeat a call; None where a kernel was given a copy of a tensor, or a result is not what one wrote."""
    which = {id(tensor): place for place, tensor in enumerate(tensors) if tensor is not None}
    used = {id(value) for _, _, arguments in record for value in arguments}
    if not which.keys() <= used:
        return None
    made, starts = [], []
    for compiled, grid, arguments in record:
        places = []
        for place, value in enumerate(arguments):
            if not isinstance(value, Tensor):
                continue
            if id(value) not in which:
                if not value.is_contiguous():
                    return None
                which[id(value)] = len(tensors) + len(made)
                made.append((value.shape, value.dtype))
            places.append((place, which[id(value)]))
        kept = [None if isinstance(value, Tensor) else value for value in arguments]
        starts.append(_Start(compiled[(grid, 1, 1)], kept, tuple(places)))
    if any(result is not None and id(result) not in which for result in results):
        return None
    return _Call(tuple(starts), tuple(made), tuple([None if r is None else which[id(r)] for r in results]))


def _repeat(call: _Call, tensors: tuple) -> Results:
    device = tensors[0].device
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _repeat(call, tensors)
    everything = [*tensors, *[torch.empty(shape, dtype=dtype, device=device) for shape, dtype in call.made]]
    for run, arguments, places in call.starts:
        values = arguments.copy()
        for place, tensor in places:
            values[place] = everything[tensor]
        run(*values)
    return tuple([None if place is None else everything[place] for place in call.results])

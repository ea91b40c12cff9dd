"""What a call from Python costs above the call of the library that it makes, on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .. import _library as fw
from .. import functions as interface
from .. import replay
from ..attention import make_problem
from ..backends.native import calls as native
from ..problem import FORWARD_FIELDS
from .timing import Call, no_garbage_collection

_BATCH, _QUERIES, _KEYS, _HEADS, _DIM = 1, 1, 16, 4, 64


class Overhead(NamedTuple):
    """Microseconds: of the call from Python and of the library's."""

    name: str
    python_least: float
    python_median: float
    library_least: float
    library_median: float


def _new(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _plain(gradient: bool) -> Call:
    q = _new(_BATCH, _QUERIES, _HEADS, _DIM).requires_grad_(gradient)
    k = _new(_BATCH, _KEYS, _HEADS, _DIM)
    return lambda: interface.flash_attn_func(q, k, k)


def _varlen() -> Call:
    q, k = _new(_QUERIES, _HEADS, _DIM), _new(_KEYS, _HEADS, _DIM)
    rows_q, rows_k = (torch.tensor([0, rows], dtype=torch.int32) for rows in (_QUERIES, _KEYS))
    return lambda: interface.flash_attn_varlen_func(q, k, k, rows_q, rows_k, _QUERIES, _KEYS)


def _decode() -> Call:
    """One token appended to a cache and attended; the length stays as it is, so every call does the same."""
    q, k = _new(_BATCH, 1, _HEADS, _DIM), _new(_BATCH, 1, _HEADS, _DIM)
    k_cache, v_cache = (_new(_BATCH, _KEYS, _HEADS, _DIM) for _ in range(2))
    used = torch.full((_BATCH,), _KEYS - 1, dtype=torch.int32)
    return lambda: interface.flash_attn_with_kvcache(q, k_cache, v_cache, k, k, cache_seqlens=used, causal=True)


def _operator() -> Call:
    q, k = _new(_BATCH, _QUERIES, _HEADS, _DIM), _new(_BATCH, _KEYS, _HEADS, _DIM)
    arguments = make_problem(q, k, k)[: len(FORWARD_FIELDS)]
    forward = torch.ops.flashwave.forward.default
    return lambda: forward(*arguments, False)


CASES: dict[str, Callable[[], Call]] = {
    "flash_attn_func, no gradient": lambda: _plain(False),
    "flash_attn_func, q requires a gradient": lambda: _plain(True),
    "flash_attn_varlen_func": _varlen,
    "flash_attn_with_kvcache, one token appended": _decode,
    "torch.ops.flashwave.forward": _operator,
}


def _library_call(call: Call) -> tuple[Call, Any]:
    """The library's call that a call from Python makes, alone, and what must live as long as it is used.

    The package keeps the structs of calls it has seen, and the last one is this call's. Its outputs are gone by then,
    so it is given others.
    """
    _forget()
    result = call()
    ((_, kept),) = (replay.calls() or native.kept()).items()
    _forget()  # or the next call from Python would write its own addresses into it
    out = torch.empty_like(result[0] if isinstance(result, tuple) else result)
    lse = torch.empty(out.numel())  # enough for any
    kept.words[native.O] = out.data_ptr()
    if kept.words[native.LSE]:
        kept.words[native.LSE] = lse.data_ptr()
    forward, device = fw.lib.fw_forward, fw.device("cpu")
    attention, exec_ = kept.attention_address, kept.exec_address
    return lambda: fw.check(forward(device, attention, exec_)), (kept, out, lse)


def _forget() -> None:
    replay.calls().clear()
    native.kept().clear()


def _microseconds(calls: tuple[Call, ...], repeats: int) -> list[list[float]]:
    """Samples of each call, taken in turn."""
    clock = time.perf_counter_ns
    samples: list[list[float]] = [[] for _ in calls]
    with no_garbage_collection():
        for call in calls:
            call()
        for _ in range(repeats):
            for call, found in zip(calls, samples):
                start = clock()
                call()
                found.append((clock() - start) / 1e3)
    return samples


def measure_overheads(repeats: int) -> list[Overhead]:
    """All cases on one thread: the problem is too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = []
    try:
        for name, make in CASES.items():
            call = make()
            library_call, alive = _library_call(call)
            python, library = _microseconds((call, library_call), repeats)
            del alive
            results.append(
                Overhead(name, min(python), statistics.median(python), min(library), statistics.median(library))
            )
    finally:
        torch.set_num_threads(threads)
    return results


def table(results: list[Overhead]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows."""
    header = (
        "call",
        "Python least, µs",
        "library least, µs",
        "difference",
        "Python median, µs",
        "library median, µs",
        "difference",
    )
    rows = []
    for one in results:
        least = (one.python_least, one.library_least, one.python_least - one.library_least)
        median = (one.python_median, one.library_median, one.python_median - one.library_median)
        rows.append((one.name, *[f"{value:.1f}" for value in (*least, *median)]))
    return header, rows

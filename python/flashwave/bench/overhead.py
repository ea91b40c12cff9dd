"""What a call from Python costs above the calls of the library that it makes, and beside torch's own attention, on the
CPU: python -m flashwave.bench.overhead. With --device cuda: the host's time of a call and of torch's, on a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from .. import _library as fw
from .. import functions, operators
from ..attention import make_problem
from ..backends.native import calls as native
from ..backends.native import structs
from ..problem import FORWARD_FIELDS, Problem
from .timing import Call, no_garbage_collection

_AT_ONCE = 50  # calls of a sample
_SHAPE = _BATCH, _ROWS, _HEADS, _DIM = 1, 16, 1, 32


class Overhead(NamedTuple):
    """Microseconds: of the call from Python, of the library's, and of SDPA's where there is one."""

    name: str
    python_least: float
    python_median: float
    library_least: float
    library_median: float
    sdpa_least: float | None = None
    sdpa_median: float | None = None


class Case(NamedTuple):
    call: Call
    problem: Problem  # of the library's call that it makes
    lse: bool = False
    dout: torch.Tensor | None = None  # where there is a backward, too
    sdpa: Call | None = None


def _new(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _plain(gradient: bool, backward: bool = False) -> Case:
    q, k, v = (_new(*_SHAPE).requires_grad_(gradient) for _ in range(3))
    heads = [tensor.detach().transpose(1, 2).contiguous().requires_grad_(gradient) for tensor in (q, k, v)]
    ours, theirs = functions.flash_attn_func, F.scaled_dot_product_attention
    if not backward:
        return Case(lambda: ours(q, k, v), make_problem(q, k, v), gradient, None, lambda: theirs(*heads))
    dout, grad = _new(*_SHAPE), torch.autograd.grad
    dout_heads = dout.transpose(1, 2).contiguous()
    return Case(
        lambda: grad(ours(q, k, v), (q, k, v), dout),
        make_problem(q, k, v),
        True,
        dout,
        lambda: grad(theirs(*heads), heads, dout_heads),
    )


def _varlen() -> Case:
    q, k, v = (_new(_ROWS, _HEADS, _DIM) for _ in range(3))
    rows = torch.tensor([0, 9, _ROWS], dtype=torch.int32)
    lengths = {"cu_seqlens_q": rows, "cu_seqlens_k": rows, "max_seqlen_q": 9, "max_seqlen_k": 9}
    return Case(lambda: functions.flash_attn_varlen_func(q, k, v, rows, rows, 9, 9), make_problem(q, k, v, **lengths))


def _decode(append: bool) -> Case:
    """One token appended to a cache and attended; the length stays as it is, so every call does the same."""
    q, k, v = (_new(_BATCH, 1, _HEADS, _DIM) for _ in range(3))
    k_cache, v_cache = (_new(_BATCH, 64, _HEADS, _DIM) for _ in range(2))
    used = torch.full((_BATCH,), 20, dtype=torch.int32)
    problem = make_problem(q, k_cache, v_cache, seqused_k=used, causal=True)
    new = (k, v) if append else (None, None)
    return Case(
        lambda: functions.flash_attn_with_kvcache(q, k_cache, v_cache, *new, cache_seqlens=used, causal=True),
        problem._replace(k_new=new[0], v_new=new[1]),
    )


def _operator() -> Case:
    problem = make_problem(*(_new(*_SHAPE) for _ in range(3)))
    forward, arguments = torch.ops.flashwave.forward.default, problem[: len(FORWARD_FIELDS)]
    return Case(lambda: forward(*arguments, False), problem, True)


CASES: dict[str, Callable[[], Case]] = {
    "flash_attn_func, no gradient": lambda: _plain(False),
    "flash_attn_func, with a gradient": lambda: _plain(True),
    "flash_attn_func, forward and backward": lambda: _plain(True, True),
    "flash_attn_varlen_func": _varlen,
    "flash_attn_with_kvcache": lambda: _decode(False),
    "flash_attn_with_kvcache, one token appended": lambda: _decode(True),
    "torch.ops.flashwave.forward": _operator,
}


def _library_call(case: Case) -> Call:
    """The forward of the library alone, and its backward where there is one, on structs that are filled once."""
    problem = case.problem
    attention, exec_ = structs.fill(problem), fw.new_exec()
    out = torch.empty(structs.out_shape(problem))
    lse = torch.empty(structs.lse_shape(problem)) if case.lse else None
    structs.put_outputs(attention, out, lse, None)
    exec_.num_threads = 1
    forward, backward, device = fw.lib.fw_forward, fw.lib.fw_backward, fw.device("cpu")
    first, last = ctypes.addressof(attention), ctypes.addressof(exec_)
    if case.dout is None:

        def call(alive: tuple = (attention, exec_, out, lse, problem)) -> None:
            fw.check(forward(device, first, last))

        return call
    results = native.empty_gradients(problem, (True, True, True, False, False, False))
    gradients = structs.fill_gradients(case.dout, None, results)
    between = ctypes.addressof(gradients)

    def both(alive: tuple = (attention, exec_, out, lse, problem, results, gradients)) -> None:
        fw.check(forward(device, first, last))
        fw.check(backward(device, first, between, last))

    return both


def _microseconds(calls: tuple[Call, ...], repeats: int) -> list[list[float]]:
    """Samples of each call, taken in turn: CPU time of this thread, which other programs hardly disturb."""
    clock = time.thread_time_ns
    samples: list[list[float]] = [[] for _ in calls]
    with no_garbage_collection():
        for call in calls:
            call()
        for _ in range(-(-repeats // _AT_ONCE)):
            for call, found in zip(calls, samples):
                start = clock()
                for _ in range(_AT_ONCE):
                    call()
                found.append((clock() - start) / 1e3 / _AT_ONCE)
    return samples


def measure_overheads(repeats: int) -> list[Overhead]:
    """All cases on one thread: the problem is too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = []
    try:
        for name, make in CASES.items():
            case = make()
            calls = (case.call, _library_call(case), *filter(None, [case.sdpa]))
            times = [(min(found), statistics.median(found)) for found in _microseconds(calls, repeats)]
            results.append(Overhead(name, *itertools.chain.from_iterable(times)))
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
        "SDPA least, µs",
        "SDPA median, µs",
    )
    rows = []
    for one in results:
        least = (one.python_least, one.library_least, one.python_least - one.library_least)
        median = (one.python_median, one.library_median, one.python_median - one.library_median)
        sdpa = (one.sdpa_least, one.sdpa_median)
        rows.append((one.name, *["" if value is None else f"{value:.1f}" for value in (*least, *median, *sdpa)]))
    return header, rows


# --------------------------------------------------------------------------------------------------------- on a GPU


def _host_times(calls: dict[str, Call], repeats: int) -> dict[str, tuple[float, float]]:
    """(least, median) microseconds of the host for calls that are queued and not waited for, a few at a time."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    torch.cuda.synchronize()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(10):
                call()
            found[name].append((time.perf_counter_ns() - start) / 1e4)
            torch.cuda.synchronize()
    return {name: (min(times), statistics.median(times)) for name, times in found.items()}


def _gpu_calls(shape: tuple[int, ...]) -> dict[str, Call]:
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    head_leaves = [t.detach().clone().requires_grad_() for t in heads]
    dout = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    sdpa, attend, grad = F.scaled_dot_product_attention, functions.flash_attn_func, torch.autograd.grad
    return {
        "forward": lambda: attend(q, k, v),
        "SDPA forward": lambda: sdpa(*heads),
        "forward with a gradient": lambda: attend(*leaves),
        "SDPA forward with a gradient": lambda: sdpa(*head_leaves),
        "forward and backward": lambda: grad(attend(*leaves), leaves, dout),
        "SDPA forward and backward": lambda: grad(sdpa(*head_leaves), head_leaves, dout.transpose(1, 2)),
    }


def on_gpu(repeats: int) -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, binding: {operators.why_no_binding or 'yes'}")
    for shape in ((1, 16, 1, 64), (1, 128, 8, 128)):
        print(f"\nb{shape[0]} s{shape[1]} h{shape[2]} d{shape[3]}, bf16, microseconds of the host: least, median")
        for name, (least, median) in _host_times(_gpu_calls(shape), repeats).items():
            print(f"  {name:32} {least:8.1f} {median:8.1f}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--repeats", type=int, default=2000)
    options = arguments.parse_args()
    if options.device == "cuda":
        on_gpu(max(1, options.repeats // 20))
        return
    header, rows = table(measure_overheads(options.repeats))
    for row in (header, *rows):
        print(" | ".join(row))


if __name__ == "__main__":
    main()

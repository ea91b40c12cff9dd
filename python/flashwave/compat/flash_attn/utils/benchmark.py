"""flash_attn.utils.benchmark: times, traces and memory of any function, on the device of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from flashwave.bench.memory import peak_of

__all__ = [
    "benchmark_all",
    "benchmark_backward",
    "benchmark_combined",
    "benchmark_forward",
    "benchmark_fwd_bwd",
    "benchmark_memory",
    "pytorch_profiler",
]

_WARM_UP = 30  # calls before a profile


class _Run:
    """A function with its arguments, under autocast if asked."""

    def __init__(self, fn: Callable, inputs: tuple, kwinputs: dict, amp: bool, amp_dtype: torch.dtype):
        self.fn, self.inputs, self.kwinputs = fn, inputs, kwinputs
        self.tensors = [x for x in (*inputs, *kwinputs.values()) if isinstance(x, torch.Tensor)]
        self.device = self.tensors[0].device if self.tensors else torch.device("cpu")
        self.autocast = {"device_type": self.device.type, "dtype": amp_dtype, "enabled": amp}

    def forward(self) -> Any:
        """The first result of the function."""
        with torch.autocast(**self.autocast):
            out = self.fn(*self.inputs, **self.kwinputs)
        return out[0] if isinstance(out, tuple) else out

    def backward(self, out: torch.Tensor, grad: torch.Tensor) -> None:
        for tensor in self.tensors:  # so that no time goes into adding to the last gradient
            tensor.grad = None
        out.backward(grad, retain_graph=True)

    def both(self, grad: torch.Tensor) -> None:
        self.backward(self.forward(), grad)

    def gradient(self, out: torch.Tensor, grad: torch.Tensor | None) -> torch.Tensor:
        if grad is None:
            return torch.randn_like(out)
        if grad.shape != out.shape:
            raise RuntimeError(f"grad: its shape {tuple(grad.shape)} is not that of the output, {tuple(out.shape)}")
        return grad


def _time(what: str, call: Callable, repeats: int, desc: str, verbose: bool) -> tuple:
    if verbose:
        print(desc, f"- {what} pass")
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    measurement = timer.timeit(repeats)
    if verbose:
        print(measurement)
    return timer, measurement


def benchmark_forward(
    fn, *inputs, repeats=10, desc="", verbose=True, amp=False, amp_dtype=torch.float16, **kwinputs
) -> tuple:
    """(Timer, Measurement) of fn(*inputs, **kwinputs)."""
    run = _Run(fn, inputs, kwinputs, amp, amp_dtype)
    return _time("Forward", run.forward, repeats, desc, verbose)


def benchmark_backward(
    fn, *inputs, grad=None, repeats=10, desc="", verbose=True, amp=False, amp_dtype=torch.float16, **kwinputs
) -> tuple:
    """(Timer, Measurement) of the backward alone, from a graph that is made once."""
    run = _Run(fn, inputs, kwinputs, amp, amp_dtype)
    out = run.forward()
    gradient = run.gradient(out, grad)
    return _time("Backward", lambda: run.backward(out, gradient), repeats, desc, verbose)


def benchmark_combined(
    fn, *inputs, grad=None, repeats=10, desc="", verbose=True, amp=False, amp_dtype=torch.float16, **kwinputs
) -> tuple:
    """(Timer, Measurement) of forward and backward together."""
    run = _Run(fn, inputs, kwinputs, amp, amp_dtype)
    gradient = run.gradient(run.forward(), grad)
    return _time("Forward + Backward", lambda: run.both(gradient), repeats, desc, verbose)


def benchmark_fwd_bwd(fn, *inputs, grad=None, **options) -> tuple:
    """`benchmark_forward` and `benchmark_backward`."""
    return benchmark_forward(fn, *inputs, **options), benchmark_backward(fn, *inputs, grad=grad, **options)


def benchmark_all(fn, *inputs, grad=None, **options) -> tuple:
    """`benchmark_forward`, `benchmark_backward` and `benchmark_combined`."""
    pair = benchmark_fwd_bwd(fn, *inputs, grad=grad, **options)
    return *pair, benchmark_combined(fn, *inputs, grad=grad, **options)


def pytorch_profiler(
    fn,
    *inputs,
    trace_filename=None,
    backward=False,
    amp=False,
    amp_dtype=torch.float16,
    cpu=False,
    verbose=True,
    **kwinputs,
) -> None:
    """Torch's profile of one call after warming up, printed and, with trace_filename, written as a trace."""
    run = _Run(fn, inputs, kwinputs, amp, amp_dtype)
    grad = torch.randn_like(run.forward()) if backward else None
    call = run.forward if grad is None else lambda: run.both(grad)
    for _ in range(_WARM_UP):
        call()
    on_gpu = run.device.type == "cuda"
    activities = [ProfilerActivity.CPU] if cpu or not on_gpu else []
    with profile(activities=[*activities, *([ProfilerActivity.CUDA] if on_gpu else [])], record_shapes=True) as record:
        call()
    if verbose:
        print(record.key_averages().table(row_limit=50))
    if trace_filename is not None:
        record.export_chrome_trace(str(trace_filename))


def benchmark_memory(fn, *inputs, desc="", verbose=True, **kwinputs) -> float:
    """Peak memory of a call in gigabytes of 1000 MiB, as upstream counts: on a GPU all that is allocated then, on a CPU
    what the call adds."""
    run = _Run(fn, inputs, kwinputs, False, torch.float16)
    before = torch.cuda.memory_allocated(run.device) if run.device.type == "cuda" else 0
    gigabytes = (before + peak_of(lambda: fn(*inputs, **kwinputs), run.device)) / (2**20 * 1000)
    if verbose:
        print(f"{desc} max memory: {gigabytes}GB")
    return gigabytes

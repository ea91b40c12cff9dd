"""Calls of the library on torch tensors through ctypes: for torch before 2.9, and for what the binding does not take.

Every call fills its structs anew.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import torch

from ... import _library as fw
from ... import shapes
from ...errors import FlashwaveError, NoDevice, Unsupported
from ...problem import Problem
from . import threads
from .structs import (
    fill,
    fill_gradients,
    lse_shape,
    out_shape,
    probs_shape,
    put_outputs,
    readable,
    set_seed,
)

DTYPES = {torch.float16: fw.F16, torch.bfloat16: fw.BF16, torch.float32: fw.F32}
_SOME_ADDRESS = 64  # stands for a tensor that is there

Tensor = torch.Tensor
Gradient6 = tuple[Optional[Tensor], ...]  # of q, k, v, alibi_slopes, bias, sinks
DQ_DK_DV = (True, True, True, False, False, False)


# ------------------------------------------------------------------------------------------------------------ devices


def device_of(q: Tensor) -> int:
    """The library's handle of the device that holds q. Raises Unsupported where there is none, or not for its dtype."""
    if q.dtype not in DTYPES:
        raise Unsupported(f"the library has no kernels for {q.dtype}")
    if fw.lib is None:
        raise Unsupported(fw.why_no_library)
    if q.device.type == "cpu":
        return fw.device("cpu")
    if q.device.type != "cuda":
        raise Unsupported(f"the library has no devices of type '{q.device.type}'")
    kind = "hip" if torch.version.hip else "cuda"
    try:
        return fw.device(f"{kind}:{q.device.index}")
    except FlashwaveError as error:
        raise Unsupported(str(error)) from None


class Execution:
    """fw_exec of one call: torch's threads for CPU tensors; on a GPU torch's current stream, and its memory.

    That is of torch's allocator: inside the capture of a graph it is the graph's, and when it is dropped it is free in
    the order of the stream, while the kernel may still run.
    """

    def __init__(self, q: Tensor, slow_path: bool = True) -> None:
        self.exec_, self.report = fw.new_exec(), fw.Report(struct_size=ctypes.sizeof(fw.Report))
        self.exec_.report = ctypes.addressof(self.report)
        self.exec_.flags = 0 if slow_path else fw.NO_SLOW_PATH
        self.address = ctypes.addressof(self.exec_)
        if q.is_cpu:
            self.exec_.num_threads, self.exec_.executor = torch.get_num_threads(), threads.executor()
            return
        memory: list[Tensor] = []

        def allocate(_: Any, size: int) -> int:
            memory.append(torch.empty(size, dtype=torch.uint8, device=q.device))
            return memory[-1].data_ptr()

        self.exec_.stream = torch._C._cuda_getCurrentRawStream(q.device.index)
        self.memory, self.allocate = memory, fw.ALLOCATE(allocate)
        self.exec_.allocate = ctypes.cast(self.allocate, ctypes.c_void_p)

    def check(self, status: int) -> str:
        """The name of the kernel that ran; raises for a status that is not 0."""
        fw.check(status)
        return self.report.kernel.decode() or "none"


# ------------------------------------------------------------------------------------------------- forward and backward


def _put_seed(attention: fw.Attention, problem: Problem) -> None:
    state = problem.rng_state
    if state is None or problem.dropout_p == 0:
        return
    if state.is_cpu:
        set_seed(attention, state)
    else:  # read by the kernels: nothing waits for the GPU, and a graph may change it
        attention.dropout_state = state.data_ptr()


def forward(
    problem: Problem, out: Tensor | None = None, lse: bool = True, probs: bool = False, slow_path: bool = True
) -> tuple[tuple[Tensor, Tensor | None, Tensor | None], str]:
    """(out, lse, probs), the last two if wanted, and the kernel's name. Raises Unsupported where there is no kernel."""
    device = device_of(problem.q)
    shapes.check(problem)
    problem = readable(problem)
    q, kind = problem.q, {"device": problem.q.device}
    result = out
    if out is None or (out.shape[-1] > 1 and out.stride(-1) != 1):
        result = torch.empty(out_shape(problem), dtype=q.dtype, **kind)
    row_lse = torch.empty(lse_shape(problem), dtype=torch.float32, **kind) if lse else None
    matrix = torch.empty(probs_shape(problem), dtype=torch.float32, **kind) if probs else None
    attention = fill(problem)
    attention.flags |= fw.FILL_UNUSED
    put_outputs(attention, result, row_lse, matrix)
    _put_seed(attention, problem)
    execution = Execution(q, slow_path)
    kernel = execution.check(fw.lib.fw_forward(device, ctypes.addressof(attention), execution.address))
    if out is not None and result is not out:
        out.copy_(result)
        result = out
    return (result, row_lse, matrix), kernel


def _gradient_of(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def empty_gradients(problem: Problem, needs: tuple[bool, ...]) -> Gradient6:
    """Where the gradients of q, k, v, alibi_slopes, bias and sinks go."""
    p, (need_q, need_k, need_v, need_slopes, need_bias, need_sinks) = problem, needs
    return (
        _gradient_of(p.q) if need_q else None,
        _gradient_of(p.k) if need_k else None,
        _gradient_of(p.v) if need_v else None,
        torch.empty_like(p.alibi_slopes, memory_format=torch.contiguous_format) if need_slopes else None,
        torch.empty_like(p.bias, memory_format=torch.contiguous_format) if need_bias else None,
        torch.empty_like(p.sinks) if need_sinks else None,
    )


def backward(
    problem: Problem,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    needs: tuple[bool, ...],
    slow_path: bool = True,
) -> tuple[Gradient6, str]:
    """Gradients of q, k, v, alibi_slopes, bias, sinks, those that are needed, and the kernel's name."""
    device = device_of(problem.q)
    shapes.check(problem)
    problem = readable(problem)
    if dout.shape[-1] > 1 and dout.stride(-1) != 1:
        dout = dout.contiguous()
    attention = fill(problem)
    attention.flags |= fw.FILL_UNUSED
    put_outputs(attention, out, lse, None)
    _put_seed(attention, problem)
    results = empty_gradients(problem, needs)
    gradients = fill_gradients(dout, dlse, results)
    execution = Execution(problem.q, slow_path)
    addresses = ctypes.addressof(attention), ctypes.addressof(gradients), execution.address
    return results, execution.check(fw.lib.fw_backward(device, *addresses))


# ----------------------------------------------------------------------------------------------------- asking about it


def layouts(problem: Problem, needs: tuple[bool, ...] | None) -> tuple[fw.Attention, fw.Gradients | None]:
    """The structs of a call that is only asked about, a backward with needs: results need no memory."""
    attention = fill(problem)
    out = torch.empty(out_shape(problem), dtype=problem.q.dtype, device="meta")
    lse = torch.empty(lse_shape(problem), dtype=torch.float32, device="meta")
    put_outputs(attention, out, lse, None)
    attention.o.data = attention.lse.data = _SOME_ADDRESS
    if needs is None:
        return attention, None
    tensors = [tensor if needed else None for tensor, needed in zip(problem[:3], needs)]
    results = [None if t is None else torch.empty(t.shape, dtype=t.dtype, device="meta") for t in tensors]
    gradients = fill_gradients(out, None, (*results, None, None, None))
    gradients.d_o.data = _SOME_ADDRESS
    for place, result in zip((gradients.dq, gradients.dk, gradients.dv), results):
        place.data = None if result is None else _SOME_ADDRESS
    return attention, gradients


def validate(problem: Problem, backward: bool = False) -> None:
    """The library's rules, without running anything: for problems that some other code will compute.

    Of lengths, offsets and tables in the CPU's memory the values are checked, too.
    """
    shapes.check(problem)
    if fw.lib is None:
        return
    problem = readable(problem)
    cpu, filled = fw.device("cpu"), layouts(problem, DQ_DK_DV if backward else None)
    parts = [None if part is None else ctypes.addressof(part) for part in filled]
    if problem.q.is_cpu:
        cost = fw.Cost(struct_size=ctypes.sizeof(fw.Cost))
        fw.check(fw.lib.fw_problem_cost(cpu, *parts, ctypes.byref(cost)))
    size = ctypes.c_size_t()
    fw.check(fw.lib.fw_workspace_size(cpu, *parts, None, ctypes.byref(size)))


def explain(problem: Problem, backward: bool = False, json: bool = False, name: str | None = None) -> str:
    """Which kernel the library would run, and why not others: on the device that holds q, or on the one named."""
    try:
        device = device_of(problem.q) if name is None else fw.device(name)
    except Unsupported as error:
        raise NoDevice(str(error)) from None
    shapes.check(problem)
    problem = readable(problem)
    attention, gradients = layouts(problem, DQ_DK_DV if backward else None)
    return fw.explain(device, attention, gradients, json=json)

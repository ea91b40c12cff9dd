"""Calls of the library on torch tensors: memory, streams, kept structs.

Filling a struct from Python takes longer than a small attention, so a struct is kept for each layout that was seen:
the next call with the same shapes, strides and scalars writes only addresses into it.
"""

from __future__ import annotations

import ctypes
import json
from typing import NamedTuple, Optional

import torch

from ... import _library as fw
from ... import shapes
from ...errors import FlashwaveError, NoDevice
from ...problem import Problem
from . import threads
from .structs import (
    ADDRESSES,
    LSE,
    PROBS,
    O,
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
_MOST_KEPT = 1024  # structs; a program with more layouts than this starts over
_fw_forward, _num_threads = fw.lib.fw_forward, torch.get_num_threads
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a torch without GPUs has none
_SOME_ADDRESS = 64  # stands for a tensor that is there

Tensor = torch.Tensor
Gradient6 = tuple[Optional[Tensor], ...]  # of q, k, v, alibi_slopes, bias, sinks


# ------------------------------------------------------------------------------------------------------------ devices

_handles: dict[torch.device, tuple[int | None, str]] = {}


def _open(device: torch.device) -> tuple[int | None, str]:
    if device.type == "cpu":
        return fw.device("cpu"), ""
    if device.type != "cuda":
        return None, f"the library has no devices of type '{device.type}'"
    kind = "hip" if torch.version.hip else "cuda"
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        return fw.device(f"{kind}:{index}"), ""
    except FlashwaveError as error:
        return None, str(error)


def device_of(q: Tensor) -> int | None:
    """The library's handle of the device that holds q, or None if it has none for it or does not know q's dtype."""
    found = _handles.get(q.device)
    if found is None:
        found = _handles[q.device] = _open(q.device)
    return found[0] if q.dtype in DTYPES else None


def why_no_device(q: Tensor) -> str:
    """The reason for device_of(q) being None."""
    if q.dtype not in DTYPES:
        return f"the library has no kernels for {q.dtype}"
    return _handles[q.device][1]


# ------------------------------------------------------------------------------------------------------------ forward


class _Shapes(NamedTuple):
    """Of the outputs, None for one that is not wanted."""

    out: tuple[int, ...] | None  # None: that of q, which lies without gaps
    lse: tuple[int, ...] | None
    probs: tuple[int, ...] | None


class _Kept(NamedTuple):
    """The structs of one layout of the forward, and a view of the words of fw_attention."""

    attention: fw.Attention
    words: memoryview
    exec_: fw.Exec
    attention_address: int
    exec_address: int
    inputs: tuple[tuple[int, int], ...]  # (place in the problem, word) of every tensor that is there
    shapes: _Shapes


_kept: dict[tuple, _Kept] = {}


def kept() -> dict[tuple, _Kept]:
    """The structs that are kept, by layout."""
    return _kept


def _layout(tensor: Tensor | None) -> tuple | None:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def layout_key(problem: Problem, out: Tensor | None, lse: bool, probs: bool) -> tuple:
    """Everything the struct holds but addresses and the seed of the dropout, and where they point to."""
    layouts = tuple([_layout(tensor) for tensor in problem[:3]])
    for tensor in problem[3:13]:
        if tensor is not None:
            layouts += tuple([_layout(tensor) for tensor in problem[3:13]])
            break
    if problem[23] is not None:
        layouts += (*map(_layout, problem[23:27]), problem[27])
    return layouts, problem[13:23], _layout(out), lse, probs


def _prepare(problem: Problem, shapes_: _Shapes, results: tuple) -> _Kept:
    attention, exec_ = fill(problem), fw.new_exec()
    put_outputs(attention, *results)
    inputs = tuple((place, word) for place, word in ADDRESSES if problem[place] is not None)
    words = memoryview(attention).cast("B").cast("Q")
    return _Kept(attention, words, exec_, ctypes.addressof(attention), ctypes.addressof(exec_), inputs, shapes_)


def _all_rows_used(cu_seqlens: Tensor | None, rows: int) -> bool:
    """Whether every packed row belongs to a sequence. Unknown, hence no, where asking would wait for a GPU."""
    return cu_seqlens is None or (cu_seqlens.is_cpu and int(cu_seqlens[-1]) == rows)


def _empty_outputs(
    problem: Problem, shapes_: _Shapes, out: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    q, device = problem.q, problem.q.device
    if out is None:  # empty_like takes half the time
        out = torch.empty_like(q) if shapes_.out is None else torch.empty(shapes_.out, dtype=q.dtype, device=device)
    lse = None if shapes_.lse is None else torch.empty(shapes_.lse, dtype=torch.float32, device=device)
    if problem.cu_seqlens_q is not None and not _all_rows_used(problem.cu_seqlens_q, q.shape[0]):
        out.zero_()  # kernels do not write rows of no sequence
        if lse is not None:
            lse.fill_(-torch.inf)
    probs = None if shapes_.probs is None else torch.empty(shapes_.probs, dtype=torch.float32, device=device)
    return out, lse, probs


def ask_workspace(device: int, exec_: fw.Exec, attention: int, gradients: int | None = None) -> bool:
    """Puts the size of the workspace into exec_; False if the device has no kernel, which the call itself will say."""
    size = ctypes.c_size_t()
    exec_.workspace, exec_.workspace_size = None, 0
    status = fw.lib.fw_workspace_size(device, attention, gradients, ctypes.addressof(exec_), ctypes.byref(size))
    exec_.workspace_size = size.value
    if status == fw.UNSUPPORTED:
        return False
    fw.check(status)
    return True


def lend(q: Tensor, exec_: fw.Exec) -> Tensor | None:
    """Gives exec_ torch's threads for CPU tensors; on a GPU torch's current stream, and as much memory as exec_ names.

    The memory is of torch's allocator: inside the capture of a graph it is the graph's, and when the tensor returned
    is dropped it is free in the order of the stream, while the kernel may still run.
    """
    if q.is_cpu:
        exec_.num_threads, exec_.executor = _num_threads(), threads.executor()
        return None
    exec_.stream = _raw_stream(q.device.index)
    if exec_.workspace_size == 0:
        exec_.workspace = _SOME_ADDRESS  # never NULL: a call that turns out to need more fails, and allocates nothing
        return None
    workspace = torch.empty(exec_.workspace_size, dtype=torch.uint8, device=q.device)
    exec_.workspace = workspace.data_ptr()
    return workspace


def seed_is_out_of_reach(problem: Problem) -> bool:
    """Whether the seed of the dropout is a number that only a replay will know: inside the capture of a graph.

    The library takes it by value. Triton's kernels and PyTorch operations, which read it on the device, compute such a
    call. The latter need a handle of cuBLAS, which cannot be made during a capture: calls before it, to warm up, make
    one.
    """
    if problem.rng_state is None or not problem.q.is_cuda:
        return False
    if torch.cuda.is_current_stream_capturing():
        return problem.rng_state.is_cuda
    torch.cuda.current_blas_handle()
    return False


def forward(
    device: int,
    problem: Problem,
    out: Tensor | None = None,
    lse: bool = True,
    probs: bool = False,
    key: tuple | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
    """(out, lse, probs) of the library, the last two if wanted; None where it has no kernel for the problem.

    key is the layout_key of the arguments, if the caller has it.
    """
    if seed_is_out_of_reach(problem):
        return None
    if key is None:
        key = layout_key(problem, out, lse, probs)
    kept = _kept.pop(key, None)  # taken out while in use: another thread makes its own
    if kept is None:
        shapes.check(problem)
        taken = readable(problem)
        if taken is not problem:
            return forward(device, taken, out, lse, probs)
        shape = out_shape(problem)
        wanted = _Shapes(
            None if problem.q.is_contiguous() and shape == problem.q.shape else shape,
            lse_shape(problem) if lse else None,
            probs_shape(problem) if probs else None,
        )
        results = _empty_outputs(problem, wanted, out)
        kept = _prepare(problem, wanted, results)
        if not problem.q.is_cpu:
            ask_workspace(device, kept.exec_, kept.attention_address)
    else:
        results = _empty_outputs(problem, kept.shapes, out)
        words = kept.words
        for place, word in kept.inputs:
            words[word] = problem[place].data_ptr()
        words[O] = results[0].data_ptr()
        if lse:
            words[LSE] = results[1].data_ptr()
        if probs:
            words[PROBS] = results[2].data_ptr()
    set_seed(kept.attention, problem.rng_state)
    workspace = lend(problem.q, kept.exec_)
    status = _fw_forward(device, kept.attention_address, kept.exec_address)
    if status == fw.WORKSPACE_TOO_SMALL:  # other addresses, or another setting, can mean another kernel
        ask_workspace(device, kept.exec_, kept.attention_address)
        workspace = lend(problem.q, kept.exec_)
        status = _fw_forward(device, kept.attention_address, kept.exec_address)
    del workspace
    if status:
        if status == fw.UNSUPPORTED:
            return None
        raise fw.error_of(status)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[key] = kept
    return results


def _gradient_of(tensor: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    gradient = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return gradient if _all_rows_used(cu_seqlens, tensor.shape[0]) else gradient.zero_()


def empty_gradients(problem: Problem, needs: tuple[bool, ...]) -> Gradient6:
    """Where the gradients of q, k, v, alibi_slopes, bias and sinks go."""
    p, (need_q, need_k, need_v, need_slopes, need_bias, need_sinks) = problem, needs
    return (
        _gradient_of(p.q, p.cu_seqlens_q) if need_q else None,
        _gradient_of(p.k, p.cu_seqlens_k) if need_k else None,
        _gradient_of(p.v, p.cu_seqlens_k) if need_v else None,
        torch.empty_like(p.alibi_slopes, memory_format=torch.contiguous_format) if need_slopes else None,
        torch.empty_like(p.bias, memory_format=torch.contiguous_format) if need_bias else None,
        torch.empty_like(p.sinks) if need_sinks else None,
    )


def backward(
    device: int,
    problem: Problem,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    needs: tuple[bool, ...],
) -> Gradient6 | None:
    """Gradients of q, k, v, alibi_slopes, bias, sinks, those that are needed; None where there is no kernel."""
    if seed_is_out_of_reach(problem):
        return None
    problem = readable(problem)
    if dout.shape[-1] > 1 and dout.stride(-1) != 1:
        dout = dout.contiguous()
    attention, exec_ = fill(problem), fw.new_exec()
    put_outputs(attention, out, lse, None)
    set_seed(attention, problem.rng_state)
    results = empty_gradients(problem, needs)
    gradients = fill_gradients(dout, dlse, results)
    addresses = ctypes.addressof(attention), ctypes.addressof(gradients)
    if not problem.q.is_cpu and not ask_workspace(device, exec_, *addresses):
        return None
    workspace = lend(problem.q, exec_)
    status = fw.lib.fw_backward(device, *addresses, ctypes.addressof(exec_))
    del workspace
    if status == fw.UNSUPPORTED:
        return None
    fw.check(status)
    return results


DQ_DK_DV = (True, True, True, False, False, False)


def layouts(
    problem: Problem, needs: tuple[bool, ...] | None, probs: bool = False, dlse: bool = False
) -> tuple[fw.Attention, fw.Gradients | None]:
    """The structs of a call that is only asked about, a backward with needs: results need no memory."""
    attention = fill(problem)
    out = torch.empty(out_shape(problem), dtype=problem.q.dtype, device="meta")
    lse = torch.empty(lse_shape(problem), dtype=torch.float32, device="meta")
    matrix = torch.empty(probs_shape(problem), dtype=torch.float32, device="meta") if probs else None
    put_outputs(attention, out, lse, matrix)
    attention.o.data = attention.lse.data = _SOME_ADDRESS
    if probs:
        attention.probs.data = _SOME_ADDRESS
    if needs is None:
        return attention, None
    results: list[Tensor | None] = []
    for name, needed in zip(("q", "k", "v", "alibi_slopes", "bias", "sinks"), needs):
        tensor = getattr(problem, name) if needed else None
        results.append(
            None if tensor is None else torch.empty_like(tensor, device="meta", memory_format=torch.contiguous_format)
        )
    gradients = fill_gradients(out, lse if dlse else None, tuple(results))
    places = (gradients.dq, gradients.dk, gradients.dv, None, gradients.d_bias, None)
    for place, result in zip(places, results):
        if place is not None and result is not None:
            place.data = _SOME_ADDRESS
    gradients.d_o.data = _SOME_ADDRESS
    gradients.d_lse.data = _SOME_ADDRESS if dlse else None
    gradients.d_slopes = None if results[3] is None else _SOME_ADDRESS
    gradients.d_sinks = None if results[5] is None else _SOME_ADDRESS
    return attention, gradients


def validate(problem: Problem, backward: bool = False) -> None:
    """The library's rules, without running anything: for problems that some other code will compute.

    Of lengths, offsets and tables in the CPU's memory the values are checked, too.
    """
    shapes.check(problem)
    cpu, filled = fw.device("cpu"), layouts(readable(problem), DQ_DK_DV if backward else None)
    parts = [None if part is None else ctypes.addressof(part) for part in filled]
    if problem.q.is_cpu:
        cost = fw.Cost(struct_size=ctypes.sizeof(fw.Cost))
        fw.check(fw.lib.fw_problem_cost(cpu, *parts, ctypes.byref(cost)))
    size = ctypes.c_size_t()
    fw.check(fw.lib.fw_workspace_size(cpu, *parts, None, ctypes.byref(size)))


class Plan(NamedTuple):
    """What the library would do about a call."""

    kernel: str | None  # None also for a problem without a single row
    slow_path: bool  # the kernel takes any problem, and is slower than the device's others
    refusal: str | None  # why there is no kernel


def plan(
    device: int, problem: Problem, needs: tuple[bool, ...] | None = None, probs: bool = False, dlse: bool = False
) -> Plan:
    """The library's plan of a forward, or with needs of a backward that is asked for these gradients."""
    shapes.check(problem)
    attention, gradients = layouts(readable(problem), needs, probs, dlse)
    told = json.loads(fw.explain(device, attention, gradients, json=True))
    return Plan(told["kernel"], told.get("slow_path", False), None if told["status"] == "ok" else told["message"])


def explain(problem: Problem, backward: bool = False, json: bool = False) -> str:
    """The library's account of which kernel it would run on the device that holds q, and why not others."""
    device = device_of(problem.q)
    if device is None:
        raise NoDevice(why_no_device(problem.q))
    shapes.check(problem)
    attention, gradients = layouts(readable(problem), DQ_DK_DV if backward else None)
    return fw.explain(device, attention, gradients, json=json)

"""Attention on NumPy arrays, and on any object in the memory of the CPU that speaks DLPack. Needs no torch.

The types are float16, float32 and bfloat16; NumPy knows the latter with the package ml_dtypes. Results are NumPy
arrays. There is no automatic differentiation: `attention_backward` is the gradient.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional

import numpy as np

from .. import _library as fw
from .. import shapes
from ..backends.native import structs
from ..backends.native.device_memory import contiguous, staged_backward, staged_forward
from ..errors import InvalidArgument
from ..problem import Problem
from . import views
from .views import View

DTYPES = ("float16", "bfloat16", "float32")


class Gradients(NamedTuple):
    """None where not wanted."""

    dq: Optional[np.ndarray] = None
    dk: Optional[np.ndarray] = None
    dv: Optional[np.ndarray] = None
    dalibi_slopes: Optional[np.ndarray] = None
    dbias: Optional[np.ndarray] = None
    dsinks: Optional[np.ndarray] = None


_WANTABLE = tuple(name[1:] for name in Gradients._fields)


# --------------------------------------------------------------------------------------------- arguments to a problem


def _bias(value: Any, q: View) -> View:
    bias = views.view("bias", value)
    if bias.dtype not in views.FLOATS:
        raise InvalidArgument(f"bias must hold floating-point numbers (use -inf to hide a key), got {bias.dtype}")
    if bias.dim() > 4:
        raise InvalidArgument(f"bias must have at most 4 dimensions, got {bias.dim()}")
    bias = View(bias.array.reshape((1,) * (4 - bias.dim()) + bias.shape), bias.dtype, bias.owner)
    return bias if bias.dtype in (q.dtype, "float32") else views.as_float32(bias)


def _rng_state(seed: int, offset: int) -> View:
    for name, value in (("seed", seed), ("offset", offset)):
        if not 0 <= value < 1 << 64:
            raise InvalidArgument(f"{name} must be in [0, 2**64), got {value}")
    return views.view("rng_state", np.array([seed, offset], np.uint64))


def _longest(name: str, cu_seqlens: View) -> int:
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() == 0:
        raise InvalidArgument(f"{name} must be (batch + 1), got shape {cu_seqlens.shape}")
    return int(np.max(np.diff(cu_seqlens.array), initial=0))


def _max_seqlen(tensor: View, name: str, cu_seqlens: View | None, block_table: View | None = None) -> int:
    """The most rows that a sequence of the tensor can have."""
    if block_table is not None:
        return tensor.shape[1] * block_table.shape[-1] if tensor.dim() == 4 else 0
    if cu_seqlens is not None:
        return _longest(name, cu_seqlens)
    return tensor.shape[1] if tensor.dim() > 1 else 0


def _problem(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    bias: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Any = None,
    leftpad_k: Any = None,
    cache_batch_idx: Any = None,
    block_table: Any = None,
    num_splits: int = 0,
    deterministic: bool = False,
    k_new: Any = None,
    v_new: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = False,
) -> Problem:
    """The problem that the arguments mean, its tensors as views; shapes are checked, the rest is the library's."""
    q, k, v = views.view("q", q), views.view("k", k), views.view("v", v)
    if q.dtype not in DTYPES:
        raise InvalidArgument(f"q must be float16, bfloat16 or float32, got {q.dtype}")
    offsets_q, offsets_k = views.indices("cu_seqlens_q", cu_seqlens_q), views.indices("cu_seqlens_k", cu_seqlens_k)
    table = views.indices("block_table", block_table)

    def optional(name: str, value: Any) -> View | None:
        return None if value is None else views.view(name, value)

    problem = Problem(
        q,
        k,
        v,
        offsets_q,
        offsets_k,
        views.indices("seqused_k", seqused_k),
        views.indices("leftpad_k", leftpad_k),
        views.indices("cache_batch_idx", cache_batch_idx),
        table,
        views.float32("alibi_slopes", alibi_slopes),
        None if bias is None else _bias(bias, q),
        views.float32("sinks", sinks),
        _rng_state(seed, offset) if dropout_p > 0.0 else None,
        _max_seqlen(q, "cu_seqlens_q", offsets_q) if max_seqlen_q is None else max_seqlen_q,
        _max_seqlen(k, "cu_seqlens_k", offsets_k, table) if max_seqlen_k is None else max_seqlen_k,
        softmax_scale,
        causal,
        window[0],
        window[1],
        softcap,
        dropout_p,
        num_splits,
        deterministic,
        optional("k_new", k_new),
        optional("v_new", v_new),
        optional("rotary_cos", rotary_cos),
        optional("rotary_sin", rotary_sin),
        rotary_interleaved,
    )
    shapes.check(problem)
    return problem


# ----------------------------------------------------------------------------------------------------------- execution


def _exec(kernel: str | None) -> fw.Exec:
    exec_ = fw.new_exec()
    if kernel is not None:
        exec_.force_kernel = kernel.encode()
    return exec_


def _is_cpu(handle: int) -> bool:
    return fw.query(handle)["kind"] == "cpu"


def _checked_output(name: str, value: Any, shape: tuple[int, ...], dtype: str) -> View:
    """A caller's array as the place of a result."""
    given = views.view(name, value)
    if given.shape != shape or given.dtype != dtype:
        raise InvalidArgument(f"{name} must be {shape}, {dtype}, got {given.shape}, {given.dtype}")
    views.check_writeable(name, given)
    if shape[-1] > 1 and given.stride(-1) != 1:
        raise InvalidArgument(f"{name} must be contiguous in its last dimension, got strides {given.stride()}")
    return given


def _result(name: str, shape: tuple[int, ...], dtype: str, packed: bool = False) -> View:
    """A new array. A packed one may have rows of no sequence, which kernels do not write: they are 0."""
    if dtype == "bfloat16" and views.bfloat16 is None:
        raise InvalidArgument(
            f"{name} would be bfloat16, which NumPy knows with the package ml_dtypes only; give {name}="
        )
    result = views.empty(shape, dtype)
    if packed:
        result.array.fill(0)
    return result


def _run_forward(handle: int, problem: Problem, out: View, lse: View, probs: View | None, kernel: str | None) -> None:
    exec_ = _exec(kernel)
    if _is_cpu(handle):
        taken = structs.readable(problem)  # holds the copies for the length of the call
        attention = structs.fill(taken)
        structs.put_outputs(attention, out, lse, probs)
        structs.set_seed(attention, taken.rng_state)
        fw.check(fw.lib.fw_forward(handle, ctypes.addressof(attention), ctypes.addressof(exec_)))
        return
    here, out_here = contiguous(problem), out.contiguous()
    staged_forward(handle, here, out_here, lse, probs, exec_)
    for copy, original in ((out_here, out), (here.k, problem.k), (here.v, problem.v)):
        if copy.array is not original.array and (original is out or problem.k_new is not None):
            original.array[...] = copy.array


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    return_lse: bool = False,
    return_probs: bool = False,
    out: Any = None,
    device: str = "cpu",
    kernel: str | None = None,
    **arguments: Any,
) -> Any:
    """softmax(q k^T) v with everything docs/semantics.md describes.

    q (batch, seqlen_q, heads, dim), k and v (batch, seqlen_k, heads_k, dim); packed (total, heads, dim) with
    cu_seqlens_*; k and v (pages, page_size, heads_k, dim) with block_table. Other arguments, all by name, are those of
    flashwave.Problem: causal, window=(left, right), softmax_scale, softcap, alibi_slopes, bias, sinks, dropout_p with
    seed and offset, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, leftpad_k, cache_batch_idx,
    block_table, num_splits, deterministic, k_new, v_new, rotary_cos, rotary_sin, rotary_interleaved.

    Returns out, or a tuple of out, lse (batch, heads, seqlen_q) or (heads, total_q), and probs as asked for. device
    names a device of the library, through whose memory the arrays are staged; kernel runs this one or fails.
    """
    problem = _problem(q, k, v, **arguments)
    if problem.k_new is not None:
        views.check_writeable("k", problem.k)
        views.check_writeable("v", problem.v)
    shape, dtype = structs.out_shape(problem), problem.q.dtype
    if out is None:
        result = _result("out", shape, dtype, problem.cu_seqlens_q is not None)
    else:
        result = _checked_output("out", out, shape, dtype)
    lse = View(np.full(structs.lse_shape(problem), -np.inf, np.float32), "float32")
    probs = View(np.zeros(structs.probs_shape(problem), np.float32), "float32") if return_probs else None
    _run_forward(fw.device(device), problem, result, lse, probs, kernel)
    wanted = [result.array if out is None else out]
    if return_lse:
        wanted.append(lse.array)
    if probs is not None:
        wanted.append(probs.array)
    return wanted[0] if len(wanted) == 1 else tuple(wanted)


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    dlse: Any = None,
    wanted: tuple[str, ...] = ("q", "k", "v"),
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    device: str = "cpu",
    kernel: str | None = None,
    **arguments: Any,
) -> Gradients:
    """The gradients of sum(dout * out) + sum(dlse * lse), where out and lse are what `attention` gave.

    wanted: of which inputs, among "q", "k", "v", "alibi_slopes", "bias" and "sinks". dq, dk and dv may be given as the
    arrays to write to. Other arguments as for `attention`.
    """
    for name in wanted:
        if name not in _WANTABLE:
            raise InvalidArgument(f"wanted must be names among {', '.join(_WANTABLE)}, got {name!r}")
        if name not in ("q", "k", "v") and arguments.get(name) is None:
            raise InvalidArgument(f"wanted names {name}, which is not given")
    problem = structs.readable(_problem(q, k, v, **arguments))
    if "bias" in wanted:  # every element has a gradient of its own, also where the array repeats one in memory
        problem = problem._replace(bias=problem.bias.contiguous())
    dtype, lse_shape = problem.q.dtype, structs.lse_shape(problem)
    given = {}
    for name, value, shape, kind in (
        ("dout", dout, structs.out_shape(problem), dtype),
        ("out", out, structs.out_shape(problem), dtype),
        ("lse", lse, lse_shape, "float32"),
        ("dlse", dlse, lse_shape, "float32"),
    ):
        if value is None and name == "dlse":
            continue
        tensor = views.view(name, value)
        if tensor.shape != shape or tensor.dtype != kind:
            raise InvalidArgument(f"{name} must be {shape}, {kind}, got {tensor.shape}, {tensor.dtype}")
        given[name] = tensor.contiguous()
    results = []
    for name, place, packed in (
        ("q", dq, problem.cu_seqlens_q is not None),
        ("k", dk, problem.cu_seqlens_k is not None),
        ("v", dv, problem.cu_seqlens_k is not None),
    ):
        tensor = getattr(problem, name)
        if name not in wanted:
            results.append(None)
        elif place is None:
            results.append(_result("d" + name, tensor.shape, dtype, packed))
        else:
            results.append(_checked_output("d" + name, place, tensor.shape, dtype))
    for name in ("alibi_slopes", "bias", "sinks"):
        tensor = getattr(problem, name)
        results.append(_result("d" + name, tensor.shape, tensor.dtype) if name in wanted else None)
    _run_backward(fw.device(device), problem, given, tuple(results), kernel)
    return Gradients(*[None if result is None else result.array for result in results])


def _run_backward(
    handle: int, problem: Problem, given: dict[str, View], results: tuple[View | None, ...], kernel: str | None
) -> None:
    exec_ = _exec(kernel)
    dout, dlse, out, lse = given["dout"], given.get("dlse"), given["out"], given["lse"]
    if _is_cpu(handle):
        attention, gradients = structs.fill(problem), structs.fill_gradients(dout, dlse, results)
        structs.put_outputs(attention, out, lse, None)
        structs.set_seed(attention, problem.rng_state)
        addresses = [ctypes.addressof(struct) for struct in (attention, gradients, exec_)]
        fw.check(fw.lib.fw_backward(handle, *addresses))
        return
    places = tuple([None if result is None else result.contiguous() for result in results])
    staged_backward(handle, contiguous(problem), dout, dlse, out, lse, places, exec_)
    for place, result in zip(places, results):
        if result is not None and place.array is not result.array:
            result.array[...] = place.array

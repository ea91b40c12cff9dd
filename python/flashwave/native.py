"""Calls of the library on torch tensors: filling its structs, memory, streams.

Filling a struct from Python takes longer than a small attention, so a struct is kept for each layout that was seen:
the next call with the same shapes, strides and scalars writes only addresses into it.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Optional

import torch

from . import _library as fw
from . import shapes
from .errors import FlashwaveError, InvalidArgument, NoDevice
from .problem import TENSOR_FIELDS, Problem

DTYPES = {torch.float16: fw.F16, torch.bfloat16: fw.BF16, torch.float32: fw.F32}
_MOST_KEPT = 1024  # structs; a program with more layouts than this starts over
_MASK64 = (1 << 64) - 1
_SOME_ADDRESS = 64  # stands for a tensor that is there

Tensor = torch.Tensor
Gradient6 = tuple[Optional[Tensor], ...]  # of q, k, v, alibi_slopes, bias, sinks


def _word(struct: type, *path: str) -> int:
    """Where a field lies, in 8-byte words."""
    offset = 0
    for name in path:
        field = getattr(struct, name)
        offset += field.offset
        struct = dict(struct._fields_)[name]
    assert offset % 8 == 0
    return offset // 8


# (Place in a problem, word of fw_attention that takes its address) of every tensor; rng_state is read, not passed.
ADDRESSES = tuple(
    (place, _word(fw.Attention, name, *(["data"] if dict(fw.Attention._fields_)[name] is fw.Tensor else [])))
    for place, name in enumerate(Problem._fields)
    if name in TENSOR_FIELDS and name != "rng_state"
)
_O, _LSE = _word(fw.Attention, "o", "data"), _word(fw.Attention, "lse", "data")
_PROBS = _word(fw.Attention, "probs", "data")


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


# ------------------------------------------------------------------------------------------------------------ structs


def _put(to: fw.Tensor, tensor: Tensor, strides: tuple[int, ...], dtype: int | None = None) -> None:
    to.data = tensor.data_ptr()
    to.stride[:] = strides
    to.dtype = DTYPES.get(tensor.dtype, fw.F32) if dtype is None else dtype


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides as (batch, seq, head, dim); a packed tensor has no batch."""
    return (0, *tensor.stride()) if tensor.dim() == 3 else tensor.stride()


def _lse_strides(tensor: Tensor) -> tuple[int, ...]:
    """(batch, heads, seq) or packed (heads, seq), as the library's (batch, seq, head, -)."""
    strides = tensor.stride()
    return (strides[0], strides[2], strides[1], 0) if len(strides) == 3 else (0, strides[1], strides[0], 0)


def _broadcast_strides(tensor: Tensor) -> tuple[int, ...]:
    """An extent of 1 broadcasts: its stride is 0 to the library."""
    return tuple(0 if n == 1 else stride for n, stride in zip(tensor.shape, tensor.stride()))


def fill(problem: Problem) -> fw.Attention:
    """fw_attention of a problem, without its outputs. A dtype the library does not know is filled in as float32."""
    p, q, k, v = problem, problem.q, problem.k, problem.v
    a = fw.new_attention()
    a.flags = (
        fw.CAUSAL * bool(p.causal)
        | fw.DETERMINISTIC * bool(p.deterministic)
        | fw.ROTARY_INTERLEAVED * bool(p.rotary_interleaved)
    )
    a.batch, a.seqlen_q, a.seqlen_k = p.batch, p.max_seqlen_q, p.max_seqlen_k
    a.heads_q, a.heads_k, a.dim_qk, a.dim_v = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    for name in ("q", "k", "v"):
        _put(getattr(a, name), getattr(p, name), _strides(getattr(p, name)))
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "leftpad_k", "cache_batch_idx", "block_table", "sinks"):
        tensor = getattr(p, name)
        if tensor is not None:
            setattr(a, name, tensor.data_ptr())
    if p.cu_seqlens_q is not None:
        a.total_q = q.shape[0]
    if p.block_table is not None:
        a.block_table_stride, a.page_size, a.batch_k = p.block_table.stride(0), k.shape[1], k.shape[0]
    elif p.cu_seqlens_k is not None:
        a.total_k = k.shape[0]
    elif p.cache_batch_idx is not None:
        a.batch_k = k.shape[0]
    if p.k_new is not None:
        a.seqlen_new = p.k_new.shape[1]
        for name in ("k_new", "v_new"):
            _put(getattr(a, name), getattr(p, name), getattr(p, name).stride())
    if p.rotary_cos is not None:
        a.rotary_seqlen, a.rotary_dim = p.rotary_cos.shape[0], 2 * p.rotary_cos.shape[1]
        for name in ("rotary_cos", "rotary_sin"):
            _put(getattr(a, name), getattr(p, name), (*getattr(p, name).stride(), 0, 0))
    a.window_left, a.window_right = p.window_left, p.window_right
    a.softmax_scale, a.softcap, a.num_splits = p.softmax_scale, p.softcap, p.num_splits
    if p.alibi_slopes is not None:
        a.alibi_slopes = p.alibi_slopes.data_ptr()
        a.alibi_batch_stride = p.alibi_slopes.stride(0) if p.alibi_slopes.dim() == 2 else 0
    if p.bias is not None:
        _put(a.bias, p.bias, _broadcast_strides(p.bias))
    a.dropout_p = p.dropout_p
    return a


def lse_shape(problem: Problem) -> tuple[int, ...]:
    q = problem.q
    return (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])


def probs_shape(problem: Problem) -> tuple[int, ...]:
    return (problem.batch, problem.q.shape[-2], problem.max_seqlen_q, problem.max_seqlen_k)


def _needs_copy(name: str, tensor: Tensor) -> bool:
    """Whether the library cannot read the tensor where it lies."""
    if name in ("q", "k", "v", "k_new", "v_new", "rotary_cos", "rotary_sin"):
        return tensor.shape[-1] > 1 and tensor.stride(-1) != 1
    if name == "bias":
        return False
    if name in ("block_table", "alibi_slopes"):
        return tensor.shape[-1] > 1 and tensor.stride(-1) != 1
    return tensor.dim() > 0 and not tensor.is_contiguous()


def readable(problem: Problem) -> Problem:
    """The problem with copies of the tensors that are laid out in a way the library does not take."""
    copies = {}
    for name in problem._fields:
        value = getattr(problem, name)
        if isinstance(value, Tensor) and _needs_copy(name, value):
            if name in ("k", "v") and problem.k_new is not None:
                raise InvalidArgument(
                    f"{name} must be contiguous in its last dimension: the new keys are written into it"
                )
            copies[name] = value.contiguous()
    return problem._replace(**copies) if copies else problem


class _Kept(NamedTuple):
    """The structs of one layout of the forward, and a view of the words of fw_attention."""

    attention: fw.Attention
    words: memoryview
    exec_: fw.Exec
    attention_address: int
    exec_address: int
    inputs: tuple[tuple[int, int], ...]  # (place in the problem, word) of every tensor that is there
    shapes: tuple[tuple[int, ...], ...]  # of out, lse and, if wanted, probs


_kept: dict[tuple, _Kept] = {}


def _layout(tensor: Tensor | None) -> tuple | None:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def _key(problem: Problem, out: Tensor | None, probs: bool) -> tuple:
    """Everything the struct holds but addresses and the seed of the dropout."""
    tensors = tuple([None if t is None else (t.shape, t.stride(), t.dtype) for t in problem[:12]])
    append = None if problem.k_new is None else (*map(_layout, problem[23:27]), problem.rotary_interleaved)
    return tensors, problem[13:23], append, _layout(out), probs, problem.q.device


def put_outputs(attention: fw.Attention, out: Tensor, lse: Tensor, probs: Tensor | None) -> None:
    _put(attention.o, out, _strides(out))
    _put(attention.lse, lse, _lse_strides(lse))
    if probs is not None:
        _put(attention.probs, probs, probs.stride())


def _prepare(problem: Problem, shapes_: tuple[tuple[int, ...], ...], results: tuple) -> _Kept:
    attention, exec_ = fill(problem), fw.new_exec()
    put_outputs(attention, *results)
    inputs = tuple((place, word) for place, word in ADDRESSES if problem[place] is not None)
    words = memoryview(attention).cast("B").cast("Q")
    return _Kept(attention, words, exec_, ctypes.addressof(attention), ctypes.addressof(exec_), inputs, shapes_)


def _all_rows_used(cu_seqlens: Tensor | None, rows: int) -> bool:
    """Whether every packed row belongs to a sequence. Unknown, hence no, where asking would wait for a GPU."""
    return cu_seqlens is None or (cu_seqlens.is_cpu and int(cu_seqlens[-1]) == rows)


def out_shape(problem: Problem) -> tuple[int, ...]:
    return (*problem.q.shape[:-1], problem.v.shape[-1])


def _empty_outputs(
    problem: Problem, shapes_: tuple[tuple[int, ...], ...], out: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    q, device = problem.q, problem.q.device
    if out is None:
        out = torch.empty(shapes_[0], dtype=q.dtype, device=device)
    lse = torch.empty(shapes_[1], dtype=torch.float32, device=device)
    if not _all_rows_used(problem.cu_seqlens_q, q.shape[0]):  # kernels do not write rows of no sequence
        out.zero_()
        lse.fill_(-torch.inf)
    return out, lse, torch.empty(shapes_[2], dtype=torch.float32, device=device) if len(shapes_) > 2 else None


def set_seed(attention: fw.Attention, rng_state: Tensor | None) -> None:
    if rng_state is not None:
        seed, offset = rng_state.tolist()
        attention.dropout_seed, attention.dropout_offset = seed & _MASK64, offset & _MASK64


def _set_stream_and_workspace(
    device: int, q: Tensor, exec_: fw.Exec, attention: int, gradients: int | None
) -> Tensor | None:
    """On a GPU: torch's current stream, and memory from torch's allocator, which a graph capture allows."""
    if q.is_cpu:
        exec_.num_threads = torch.get_num_threads()
        return None
    exec_.stream = torch.cuda.current_stream(q.device).cuda_stream
    size = ctypes.c_size_t()
    status = fw.lib.fw_workspace_size(device, attention, gradients, ctypes.addressof(exec_), ctypes.byref(size))
    if status == fw.UNSUPPORTED:
        return None  # the call itself will say so
    fw.check(status)
    workspace = torch.empty(size.value, dtype=torch.uint8, device=q.device)
    exec_.workspace, exec_.workspace_size = workspace.data_ptr(), size.value
    return workspace


def forward(
    device: int, problem: Problem, out: Tensor | None = None, probs: bool = False
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """(out, lse, probs) of the library; None where it has no kernel for the problem."""
    key = _key(problem, out, probs)
    kept = _kept.pop(key, None)  # taken out while in use: another thread makes its own
    if kept is None:
        shapes.check(problem)
        taken = readable(problem)
        if taken is not problem:
            return forward(device, taken, out, probs)
        wanted = (out_shape(problem), lse_shape(problem), *([probs_shape(problem)] if probs else []))
        results = _empty_outputs(problem, wanted, out)
        kept = _prepare(problem, wanted, results)
    else:
        results = _empty_outputs(problem, kept.shapes, out)
        words = kept.words
        for place, word in kept.inputs:
            words[word] = problem[place].data_ptr()
        words[_O], words[_LSE] = results[0].data_ptr(), results[1].data_ptr()
        if probs:
            words[_PROBS] = results[2].data_ptr()
    set_seed(kept.attention, problem.rng_state)
    workspace = _set_stream_and_workspace(device, problem.q, kept.exec_, kept.attention_address, None)
    status = fw.lib.fw_forward(device, kept.attention_address, kept.exec_address)
    del workspace  # freed in stream order
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


def fill_gradients(
    problem: Problem, dout: Tensor, dlse: Tensor | None, needs: tuple[bool, ...]
) -> tuple[fw.Gradients, Gradient6]:
    """fw_gradients, and the tensors that its outputs lie in."""
    p, g = problem, fw.new_gradients()
    _put(g.d_o, dout, _strides(dout))
    if dlse is not None:
        _put(g.d_lse, dlse, _lse_strides(dlse))
    need_q, need_k, need_v, need_slopes, need_bias, need_sinks = needs
    dq = _gradient_of(p.q, p.cu_seqlens_q) if need_q else None
    dk = _gradient_of(p.k, p.cu_seqlens_k) if need_k else None
    dv = _gradient_of(p.v, p.cu_seqlens_k) if need_v else None
    for to, gradient in ((g.dq, dq), (g.dk, dk), (g.dv, dv)):
        if gradient is not None:
            _put(to, gradient, _strides(gradient))
    dslopes = torch.empty_like(p.alibi_slopes, memory_format=torch.contiguous_format) if need_slopes else None
    dbias = torch.empty_like(p.bias, memory_format=torch.contiguous_format) if need_bias else None
    dsinks = torch.empty_like(p.sinks) if need_sinks else None
    if dslopes is not None:
        g.d_slopes = dslopes.data_ptr()
    if dbias is not None:
        _put(g.d_bias, dbias, _broadcast_strides(dbias))
    if dsinks is not None:
        g.d_sinks = dsinks.data_ptr()
    return g, (dq, dk, dv, dslopes, dbias, dsinks)


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
    problem = readable(problem)
    if dout.shape[-1] > 1 and dout.stride(-1) != 1:
        dout = dout.contiguous()
    attention, exec_ = fill(problem), fw.new_exec()
    put_outputs(attention, out, lse, None)
    set_seed(attention, problem.rng_state)
    gradients, results = fill_gradients(problem, dout, dlse, needs)
    addresses = ctypes.addressof(attention), ctypes.addressof(gradients)
    workspace = _set_stream_and_workspace(device, problem.q, exec_, *addresses)
    status = fw.lib.fw_backward(device, *addresses, ctypes.addressof(exec_))
    del workspace
    if status == fw.UNSUPPORTED:
        return None
    fw.check(status)
    return results


def _layouts(problem: Problem, backward: bool) -> tuple[fw.Attention, fw.Gradients | None]:
    """The structs of a call that is only asked about: outputs need no memory."""
    attention, gradients = fill(problem), None
    out = torch.empty(out_shape(problem), dtype=problem.q.dtype, device="meta")
    lse = torch.empty(lse_shape(problem), dtype=torch.float32, device="meta")
    put_outputs(attention, out, lse, None)
    attention.o.data = attention.lse.data = _SOME_ADDRESS
    if backward:
        gradients = fw.new_gradients()
        _put(gradients.d_o, out, _strides(out))
        for name in ("q", "k", "v"):
            tensor = torch.empty_like(getattr(problem, name), device="meta", memory_format=torch.contiguous_format)
            _put(getattr(gradients, "d" + name), tensor, _strides(tensor))
        for tensor in (gradients.d_o, gradients.dq, gradients.dk, gradients.dv):
            tensor.data = _SOME_ADDRESS
    return attention, gradients


def validate(problem: Problem, backward: bool = False) -> None:
    """The library's rules, without running anything: for problems that some other code will compute."""
    shapes.check(problem)
    structs = _layouts(readable(problem), backward)
    size = ctypes.c_size_t()
    parts = [None if part is None else ctypes.addressof(part) for part in structs]
    fw.check(fw.lib.fw_workspace_size(fw.device("cpu"), *parts, None, ctypes.byref(size)))


def explain(problem: Problem, backward: bool = False, json: bool = False) -> str:
    """The library's account of which kernel it would run on the device that holds q, and why not others."""
    device = device_of(problem.q)
    if device is None:
        raise NoDevice(why_no_device(problem.q))
    shapes.check(problem)
    attention, gradients = _layouts(readable(problem), backward)
    return fw.explain(device, attention, gradients, json=json)

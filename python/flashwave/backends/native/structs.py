"""Filling the library's structs from a problem, whatever its tensors are: torch's, or the views of `arrays`.

A tensor here is an object with torch's shape, stride(), dim(), data_ptr(), dtype, is_contiguous() and contiguous().
"""

from __future__ import annotations

from typing import Any, Optional

from ... import _library as fw
from ...errors import InvalidArgument
from ...problem import TENSOR_FIELDS, Problem

Tensor = Any
Tensor6 = tuple[Optional[Tensor], ...]  # of q, k, v, alibi_slopes, bias, sinks

_DTYPES = {"float16": fw.F16, "bfloat16": fw.BF16, "float32": fw.F32}
_MASK64 = (1 << 64) - 1


def dtype_name(dtype: Any) -> str:
    """The name that torch, NumPy and ml_dtypes agree on: "bfloat16"."""
    return str(dtype).rpartition(".")[2]


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


def put(to: fw.Tensor, tensor: Tensor, strides: tuple[int, ...]) -> None:
    to.data = tensor.data_ptr()
    to.stride[:] = strides
    to.dtype = _DTYPES.get(dtype_name(tensor.dtype), fw.F32)  # others are only asked about


def row_strides(tensor: Tensor) -> tuple[int, ...]:
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
        put(getattr(a, name), getattr(p, name), row_strides(getattr(p, name)))
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
            put(getattr(a, name), getattr(p, name), getattr(p, name).stride())
    if p.rotary_cos is not None:
        a.rotary_seqlen, a.rotary_dim = p.rotary_cos.shape[0], 2 * p.rotary_cos.shape[1]
        for name in ("rotary_cos", "rotary_sin"):
            put(getattr(a, name), getattr(p, name), (*getattr(p, name).stride(), 0, 0))
    a.window_left, a.window_right = p.window_left, p.window_right
    if p.softmax_scale is not None:
        a.softmax_scale = p.softmax_scale
    a.softcap, a.num_splits = p.softcap, p.num_splits
    if p.alibi_slopes is not None:
        a.alibi_slopes = p.alibi_slopes.data_ptr()
        a.alibi_batch_stride = p.alibi_slopes.stride(0) if p.alibi_slopes.dim() == 2 and p.batch > 1 else 0
    if p.bias is not None:
        put(a.bias, p.bias, _broadcast_strides(p.bias))
    a.dropout_p = p.dropout_p
    return a


def lse_shape(problem: Problem) -> tuple[int, ...]:
    q = problem.q
    return (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])


def probs_shape(problem: Problem) -> tuple[int, ...]:
    return (problem.batch, problem.q.shape[-2], problem.max_seqlen_q, problem.max_seqlen_k)


def _needs_copy(name: str, tensor: Tensor) -> bool:
    """Whether the library cannot read the tensor where it lies."""
    if name == "bias" or tensor.numel() == 0:
        return False
    if name in ("q", "k", "v", "k_new", "v_new", "rotary_cos", "rotary_sin", "block_table"):
        return tensor.shape[-1] > 1 and tensor.stride(-1) != 1
    return tensor.dim() > 0 and not tensor.is_contiguous()


def readable(problem: Problem) -> Problem:
    """The problem with copies of the tensors that are laid out in a way the library does not take."""
    copies = {}
    for name in TENSOR_FIELDS:
        value = getattr(problem, name)
        if value is not None and _needs_copy(name, value):
            if name in ("k", "v") and problem.k_new is not None:
                raise InvalidArgument(
                    f"{name} must be contiguous in its last dimension: the new keys are written into it"
                )
            copies[name] = value.contiguous()
    return problem._replace(**copies) if copies else problem


def out_shape(problem: Problem) -> tuple[int, ...]:
    return (*problem.q.shape[:-1], problem.v.shape[-1])


def put_outputs(attention: fw.Attention, out: Tensor, lse: Tensor | None, probs: Tensor | None) -> None:
    put(attention.o, out, row_strides(out))
    if lse is not None:
        put(attention.lse, lse, _lse_strides(lse))
    if probs is not None:
        put(attention.probs, probs, probs.stride())


def set_seed(attention: fw.Attention, rng_state: Tensor | None) -> None:
    """Reads the state, so it is not part of `fill`: to ask about a problem must not wait for a GPU."""
    if rng_state is None:
        return
    seed, offset = rng_state.tolist()
    attention.dropout_seed, attention.dropout_offset = seed & _MASK64, offset & _MASK64


def fill_gradients(dout: Tensor, dlse: Tensor | None, results: Tensor6) -> fw.Gradients:
    """fw_gradients with room for its results, contiguous tensors; None where a gradient is not wanted."""
    g = fw.new_gradients()
    put(g.d_o, dout, row_strides(dout))
    if dlse is not None:
        put(g.d_lse, dlse, _lse_strides(dlse))
    dq, dk, dv, dslopes, dbias, dsinks = results
    for to, gradient in ((g.dq, dq), (g.dk, dk), (g.dv, dv)):
        if gradient is not None:
            put(to, gradient, row_strides(gradient))
    if dslopes is not None:
        g.d_slopes = dslopes.data_ptr()
    if dbias is not None:
        put(g.d_bias, dbias, _broadcast_strides(dbias))
    if dsinks is not None:
        g.d_sinks = dsinks.data_ptr()
    return g

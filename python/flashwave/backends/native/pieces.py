"""Calls of the library on pieces of sequences: results that are added to others, and gradients in float32."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ... import _library as fw
from ... import shapes
from ...problem import Piece, Problem
from .calls import Execution, Gradient6, _put_seed, device_of
from .structs import _lse_strides, fill, fill_gradients, put, put_outputs, readable, row_strides

Tensor = torch.Tensor


def _filled(problem: Problem, piece: Piece | None) -> fw.Attention:
    attention = fill(problem)
    _put_seed(attention, problem)
    if piece is not None:
        attention.dropout_first, attention.dropout_heads = piece.dropout_first, piece.dropout_heads
        if piece.position_q is not None:
            attention.flags |= fw.POSITIONS
            attention.position_q, attention.position_k = piece.position_q, piece.position_k
    return attention


def forward(problem: Problem, piece: Piece | None, out: Tensor, lse: Tensor, accumulate: bool) -> str:
    """Writes out and lse, or adds to them; out is of q's dtype or float32. The kernel's name."""
    device = device_of(problem.q)
    shapes.check(problem)
    problem = readable(problem)
    attention = _filled(problem, piece)
    attention.flags |= fw.ACCUMULATE * accumulate
    put_outputs(attention, out, lse, None)
    execution = Execution(problem.q)
    return execution.check(fw.lib.fw_forward(device, ctypes.addressof(attention), execution.address))


def backward(
    problem: Problem,
    piece: Piece | None,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    results: Gradient6,
    accumulate: bool = False,
) -> str:
    """Writes gradients of q, k, v, alibi_slopes, bias and sinks, those of the first three of q's dtype or float32.

    accumulate: those of the first three are added to what is there, which is float32.
    """
    device = device_of(problem.q)
    shapes.check(problem)
    problem = readable(problem)
    dout = dout.resolve_neg()
    if dout.shape[-1] > 1 and dout.stride(-1) != 1:
        dout = dout.contiguous()
    if dlse is not None:
        dlse = dlse.resolve_neg()
    attention = _filled(problem, piece)
    attention.flags |= fw.ACCUMULATE * accumulate
    put_outputs(attention, out, lse, None)
    gradients = fill_gradients(dout, dlse, results)
    execution = Execution(problem.q)
    addresses = ctypes.addressof(attention), ctypes.addressof(gradients), execution.address
    return execution.check(fw.lib.fw_backward(device, *addresses))


def merge(o: Tensor, lse: Tensor, o_part: Tensor, lse_part: Tensor) -> None:
    """(o, lse) takes in (o_part, lse_part)."""
    device = device_of(o)
    merging: Any = fw.new_merging()
    packed = o.dim() == 3
    merging.batch, merging.seqlen = (1, o.shape[0]) if packed else o.shape[:2]
    merging.heads, merging.dim = o.shape[-2:]
    for to, tensor in ((merging.o, o), (merging.o_part, o_part)):
        put(to, tensor, row_strides(tensor))
    for to, tensor in ((merging.lse, lse), (merging.lse_part, lse_part)):
        put(to, tensor, _lse_strides(tensor))
    execution = Execution(o)
    execution.check(fw.lib.fw_merge(device, ctypes.addressof(merging), execution.address))

"""Attention over keys that come in pieces: results that are added up, and merged.

`add`, `gradients` and `add_gradients` are what `flashwave.distributed` is made of: nothing here knows of autograd or
processes. Log-sum-exps are -inf in rows that have seen nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import dispatch
from .autograd import is_differentiated
from .backends.native import pieces as native
from .errors import BackendRefused, InvalidArgument, Unsupported
from .problem import Piece, Problem

Tensor = torch.Tensor
_INFINITY = float("inf")


def _by_torch() -> bool:
    """Whether PyTorch operations are asked for; Triton's kernels know no pieces."""
    choice = dispatch.chosen()
    if choice == dispatch.TRITON:
        raise BackendRefused(choice, "piece of attention", "its kernels know no positions")
    return choice == dispatch.TORCH


def _torch() -> Any:
    from .backends.torch import backend  # takes a while to import

    return backend


def add(problem: Problem, piece: Piece | None, out: Tensor, lse: Tensor) -> None:
    """Adds what the problem's queries find among its keys to out, which is float32 (or float64), and lse."""
    _forward(problem, piece, out, lse, accumulate=True)


def write(problem: Problem, piece: Piece | None, out: Tensor, lse: Tensor) -> None:
    """Overwrites out, which is of q's dtype or float32, and lse with what the problem's queries find."""
    _forward(problem, piece, out, lse, accumulate=False)


def _forward(problem: Problem, piece: Piece | None, out: Tensor, lse: Tensor, accumulate: bool) -> None:
    if not _by_torch():
        try:
            native.forward(problem, piece, out, lse, accumulate=accumulate)
            return
        except Unsupported:
            pass
    backend = _torch()
    settings = backend.settings_of(problem.q)
    part, lse_part, _ = backend.torch_forward(problem, piece=piece, exact=True, **settings)
    if accumulate:
        _merge_into(out, lse, part, lse_part)
    else:
        out.copy_(part)
        lse.copy_(lse_part)


def gradients(
    problem: Problem,
    piece: Piece | None,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, alibi_slopes and bias, where needed; out and lse are those of all keys.

    Those of q, k and v are float32 where that costs nothing, which is on CPUs.
    """
    p = problem
    if not _by_torch():
        try:
            wide = torch.float32 if p.q.is_cpu and p.q.dtype in (torch.float16, torch.bfloat16) else p.q.dtype
            dtypes = (wide,) * 3 + (None,) * 2
            results = tuple(
                [
                    torch.empty_like(t, dtype=dtype, memory_format=torch.contiguous_format) if need else None
                    for t, need, dtype in zip((*p[:3], p.alibi_slopes, p.bias), needs, dtypes)
                ]
            )
            if any(needs):
                native.backward(p, piece, dout, dlse, out, lse, (*results, None))
            return results
        except Unsupported:
            pass
    return _by_operations(p, piece, dout, dlse, out, lse, needs)


def add_gradients(
    problem: Problem,
    piece: Piece | None,
    dout: Tensor,
    dlse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    sums: tuple[Tensor | None, Tensor | None, Tensor | None],
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Adds the gradients of q, k and v to the sums, in float32 (or float64), where given.

    out and lse are those of all keys. Returns the gradients of alibi_slopes and of bias, where needed.
    """
    p = problem
    if not any(needs) and all(total is None for total in sums):
        return None, None
    if not _by_torch():
        extras = zip((p.alibi_slopes, p.bias), needs)
        dslopes, dbias = (torch.empty_like(t) if need else None for t, need in extras)
        # The kernels of GPUs write their results, which torch adds.
        adds = p.q.is_cpu
        parts = sums if adds else [None if total is None else t.new_empty(t.shape) for total, t in zip(sums, p[:3])]
        try:
            native.backward(p, piece, dout, dlse, out, lse, (*parts, dslopes, dbias, None), accumulate=adds)
            if not adds:
                _add_up(sums, parts)
            return dslopes, dbias
        except Unsupported:
            pass
    wanted = (*[total is not None for total in sums], *needs)
    *parts, dslopes, dbias = _by_operations(p, piece, dout, dlse, out, lse, wanted)
    _add_up(sums, parts)
    return dslopes, dbias


def _by_operations(problem: Problem, piece: Piece | None, *given: Any) -> tuple[Tensor | None, ...]:
    """`gradients` by PyTorch operations. given: its arguments from dout on."""
    backend, (*tensors, needs) = _torch(), given
    settings = backend.settings_of(problem.q)
    return backend.torch_backward(problem, *tensors, (*needs, False), piece=piece, **settings)[:5]


def _add_up(sums: Sequence[Tensor | None], parts: Sequence[Tensor | None]) -> None:
    for total, part in zip(sums, parts):
        if total is not None and part is not None:
            total.add_(part)


# -------------------------------------------------------------------------------------------------------------- merging


def rows_of(lse: Tensor) -> Tensor:
    """(batch, heads, seq) or (heads, seq) as factors of rows of out: (..., seq, heads, 1)."""
    return lse.transpose(-1, -2).unsqueeze(-1)


def _merged(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """In PyTorch operations, which have derivatives."""
    exact = torch.promote_types(torch.promote_types(o_a.dtype, o_b.dtype), torch.float32)
    top = torch.maximum(lse_a, lse_b).detach()
    top = top.masked_fill(top == -_INFINITY, 0)
    weights = [(lse - top).exp() for lse in (lse_a, lse_b)]
    total = weights[0] + weights[1]
    shares = [rows_of(weight / total.masked_fill(total == 0, 1)) for weight in weights]
    # What a row that has seen nothing holds is not looked at.
    parts = [o.to(exact).masked_fill(rows_of(lse == -_INFINITY), 0) for o, lse in ((o_a, lse_a), (o_b, lse_b))]
    return parts[0] * shares[0] + parts[1] * shares[1], top + total.log()


def _merge_into(o: Tensor, lse: Tensor, o_part: Tensor, lse_part: Tensor) -> None:
    merged, merged_lse = _merged(o, lse, o_part, lse_part)
    o.copy_(merged)
    lse.copy_(merged_lse)


def merge_states(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """One result of two, each of the same queries among keys of its own: (out, lse) of all the keys.

    Arguments:
        o_a, o_b: (batch, seqlen, heads, dim), or packed (total, heads, dim)
        lse_a, lse_b: (batch, heads, seqlen), or packed (heads, total), float32: the natural logarithms of the sums,
            -inf or +inf (as flash-attn has it) where a row has seen no key; what o holds there is not looked at. Sinks
            may be in one of the two.

    Returns:
        out, of the wider of the two dtypes, and lse, -inf where neither has seen a key. Both have gradients.
    """
    for name, o, lse in (("a", o_a, lse_a), ("b", o_b, lse_b)):
        if o.dim() not in (3, 4) or o.shape != o_a.shape:
            raise InvalidArgument(
                f"o_{name} must be (batch, seqlen, heads, dim) or (total, heads, dim), as o_a, got {tuple(o.shape)}"
            )
        wanted = (*o.shape[:-3], o.shape[-2], o.shape[-3])
        if tuple(lse.shape) != wanted or lse.dtype not in (torch.float32, torch.float64):
            raise InvalidArgument(f"lse_{name} must be {wanted}, float32, got {tuple(lse.shape)}, {lse.dtype}")
        if o.device != o_a.device or lse.device != o_a.device:
            raise InvalidArgument(f"o_{name} and lse_{name} must be on {o_a.device}, as o_a")
    lse_a, lse_b = [lse.masked_fill(lse == _INFINITY, -_INFINITY) for lse in (lse_a, lse_b)]
    dtype = torch.promote_types(o_a.dtype, o_b.dtype)
    inputs = (o_a, lse_a, o_b, lse_b)
    dense = (
        all(o.shape[-1] == 1 or o.stride(-1) == 1 for o in (o_a, o_b)) and lse_a.dtype == lse_b.dtype == torch.float32
    )
    # The library is given addresses: what watches operations, or has a derivative, must see operations.
    watched = is_differentiated(*inputs) or torch.jit.is_tracing() or torch.compiler.is_compiling()
    if dense and not watched and not _by_torch():
        o, lse = o_a.to(dtype, copy=True).resolve_neg(), lse_a.clone()
        try:
            native.merge(o, lse, o_b.resolve_neg(), lse_b.resolve_neg())
            return o, lse
        except Unsupported:
            pass
    o, lse = _merged(*inputs)
    return o.to(dtype), lse

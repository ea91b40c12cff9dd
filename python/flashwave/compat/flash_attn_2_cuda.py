"""The raw module of flash-attn 2.8, which some programs call themselves: the C extension's positional signatures.

No gradients; log-sum-exp as flash-attn has it, +inf in rows that see nothing. `out`, `dq`, `dk` and `dv` are written to
where given. Only generator=None: dropout draws from torch's generator of the device, and rng_state repeats it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashwave.attention import draw_rng_state, make_problem
from flashwave.autograd import gradients
from flashwave.functions import _run, flash_attn_with_kvcache
from flashwave.problem import Problem

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]


@torch.no_grad()
def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    alibi_slopes: Tensor | None,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen=None,
) -> list[Tensor]:
    """[out, softmax_lse (b, h, sq), S_dmask, rng_state]."""
    _refuse_generator(gen)
    rng_state = _rng_state(q, p_dropout)
    problem = make_problem(
        q,
        k,
        v,
        p_dropout,
        softmax_scale,
        is_causal,
        (window_size_left, window_size_right),
        softcap,
        alibi_slopes,
        rng_state=rng_state if p_dropout > 0.0 else None,
    )
    return _forward(problem, out, return_softmax, rng_state)


@torch.no_grad()
def varlen_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqused_k: Tensor | None,
    leftpad_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    return_softmax: bool,
    gen=None,
    num_splits: int = 0,
) -> list[Tensor]:
    """[out, softmax_lse (h, total_q), S_dmask, rng_state]. zero_tensors clears out first: rows of no sequence are 0."""
    _refuse_generator(gen)
    if block_table is not None and num_splits > 1:
        raise RuntimeError("num_splits > 1 is not supported for ragged batches with block_table, as in flash-attn")
    rng_state = _rng_state(q, p_dropout)
    if zero_tensors:
        out = q.new_empty(*q.shape[:-1], v.shape[-1]) if out is None else out
        out.zero_()
    problem = make_problem(
        q,
        k,
        v,
        p_dropout,
        softmax_scale,
        is_causal,
        (window_size_left, window_size_right),
        softcap,
        alibi_slopes,
        rng_state=rng_state if p_dropout > 0.0 else None,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=int(max_seqlen_q),
        max_seqlen_k=int(max_seqlen_k),
        seqused_k=seqused_k,
        leftpad_k=leftpad_k,
        block_table=block_table,
        num_splits=num_splits,
    )
    return _forward(problem, out, return_softmax, rng_state)


@torch.no_grad()
def bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    alibi_slopes: Tensor | None,
    p_dropout: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen=None,
    rng_state: Tensor | None = None,
) -> list[Tensor]:
    """[dq, dk, dv, softmax_d (b, h, sq): the row sums of dout * out]."""
    problem = make_problem(
        q,
        k,
        v,
        p_dropout,
        softmax_scale,
        is_causal,
        (window_size_left, window_size_right),
        softcap,
        alibi_slopes,
        deterministic,
        rng_state=_given_state(gen, p_dropout, rng_state),
    )
    return _backward(problem, dout, out, softmax_lse, (dq, dk, dv))


@torch.no_grad()
def varlen_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    alibi_slopes: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    deterministic: bool,
    gen=None,
    rng_state: Tensor | None = None,
) -> list[Tensor]:
    """[dq, dk, dv, softmax_d (h, total_q)]."""
    problem = make_problem(
        q,
        k,
        v,
        p_dropout,
        softmax_scale,
        is_causal,
        (window_size_left, window_size_right),
        softcap,
        alibi_slopes,
        deterministic,
        rng_state=_given_state(gen, p_dropout, rng_state),
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=int(max_seqlen_q),
        max_seqlen_k=int(max_seqlen_k),
    )
    return _backward(problem, dout, out, softmax_lse, (dq, dk, dv))


def fwd_kvcache(
    q: Tensor,
    kcache: Tensor,
    vcache: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    seqlens_k: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    cache_batch_idx: Tensor | None,
    leftpad_k: Tensor | None,
    block_table: Tensor | None,
    alibi_slopes: Tensor | None,
    out: Tensor | None,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    is_rotary_interleaved: bool,
    num_splits: int,
) -> list[Tensor]:
    """[out, softmax_lse (b, h, sq)]."""
    result = flash_attn_with_kvcache(
        q,
        kcache,
        vcache,
        k,
        v,
        rotary_cos,
        rotary_sin,
        seqlens_k,
        cache_batch_idx,
        leftpad_k,
        block_table,
        softmax_scale,
        is_causal,
        (window_size_left, window_size_right),
        softcap,
        is_rotary_interleaved,
        alibi_slopes,
        num_splits,
        return_softmax_lse=True,
        out=out,
    )
    return list(result)


def _refuse_generator(gen) -> None:
    if gen is not None:
        raise RuntimeError("the `generator` argument is no longer supported: seed torch's generator of the device")


def _rng_state(q: Tensor, p_dropout: float) -> Tensor:
    return draw_rng_state(q) if p_dropout > 0.0 else torch.zeros(2, dtype=torch.int64, device=q.device)


def _given_state(gen, p_dropout: float, rng_state: Tensor | None) -> Tensor | None:
    _refuse_generator(gen)
    if p_dropout == 0.0:
        return None
    if rng_state is None:
        raise RuntimeError("rng_state must be given with dropout: it is the forward's last result")
    return rng_state


def _forward(problem: Problem, out: Tensor | None, return_softmax: bool, rng_state: Tensor) -> list[Tensor]:
    result, lse, *matrix = _run(problem, return_softmax, True, out)
    return [result, lse, matrix[0] if matrix else result.new_empty(0), rng_state]


def _backward(
    problem: Problem, dout: Tensor, out: Tensor, softmax_lse: Tensor, outputs: tuple[Tensor | None, ...]
) -> list[Tensor]:
    # The library's log-sum-exp of a row that sees nothing is -inf, flash-attn's +inf.
    lse = torch.where(softmax_lse == torch.inf, -torch.inf, softmax_lse)
    results = []
    for given, gradient in zip(outputs, gradients(problem, dout, out, lse)):
        results.append(gradient if given is None else given.copy_(gradient))
    softmax_d = (dout.float() * out.float()).sum(-1).movedim(-1, -2).contiguous()
    return [*results, softmax_d]

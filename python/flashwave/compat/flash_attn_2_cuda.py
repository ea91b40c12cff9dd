"""The raw module of flash-attn 2.8, which some programs call themselves: the C extension's positional signatures.

No gradients; log-sum-exp as flash-attn has it, +inf in rows that see nothing. `out`, `dq`, `dk` and `dv` are written to
where given. Only generator=None: dropout draws from torch's generator of the device, and rng_state repeats it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashwave.attention import draw_rng_state, make_problem
from flashwave.autograd import gradients
from flashwave.functions import _run, flash_attn_with_kvcache
from flashwave.problem import Problem

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]


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
    return forward_of(dict(locals()))


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
    return forward_of(dict(locals()))


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
    return backward_of(dict(locals()))


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
    return backward_of(dict(locals()))


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
    tensors = q, kcache, vcache, k, v, rotary_cos, rotary_sin, seqlens_k, cache_batch_idx, leftpad_k, block_table
    mask = softmax_scale, is_causal, (window_size_left, window_size_right), softcap
    rest = is_rotary_interleaved, alibi_slopes, num_splits
    return list(flash_attn_with_kvcache(*tensors, *mask, *rest, return_softmax_lse=True, out=out))


# --------------------------------------------------------------------- of the arguments of any of the functions above

_NAMES = {"p_dropout": "dropout_p", "is_causal": "causal"}  # what the package calls them
_OTHERS = {"dout", "out", "softmax_lse", "dq", "dk", "dv", "zero_tensors", "return_softmax", "gen"}


def _problem(given: dict[str, Any]) -> Problem:
    fields = {name: value for name, value in given.items() if name not in _OTHERS}
    fields["window_size"] = fields.pop("window_size_left"), fields.pop("window_size_right")
    return make_problem(**fields)


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    if given.get("gen") is not None:
        raise RuntimeError("the `generator` argument is no longer supported: seed torch's generator of the device")
    return {_NAMES.get(name, name): value for name, value in given.items()}


@torch.no_grad()
def forward_of(given: dict[str, Any]) -> list[Tensor]:
    """What `fwd` and `varlen_fwd` return."""
    given = _renamed(given)
    if given.get("block_table") is not None and given["num_splits"] > 1:
        raise RuntimeError("num_splits > 1 is not supported for ragged batches with block_table, as in flash-attn")
    q, out, dropped = given["q"], given.get("out"), given["dropout_p"] > 0.0
    if given.get("zero_tensors"):
        out = q.new_zeros(*q.shape[:-1], given["v"].shape[-1]) if out is None else out.zero_()
    state = draw_rng_state(q) if dropped else torch.zeros(2, dtype=torch.int64, device=q.device)
    problem = _problem({**given, "rng_state": state if dropped else None})
    result, lse, *matrix = _run(problem, given["return_softmax"], True, out)
    return [result, lse, matrix[0] if matrix else result.new_empty(0), state]


@torch.no_grad()
def backward_of(given: dict[str, Any]) -> list[Tensor]:
    """What `bwd` and `varlen_bwd` return. out and softmax_lse may be those of more keys than k holds."""
    given = _renamed(given)
    if given["dropout_p"] == 0.0:
        given["rng_state"] = None
    elif given["rng_state"] is None:
        raise RuntimeError("rng_state must be given with dropout: it is the forward's last result")
    dout, out, softmax_lse = given["dout"], given["out"], given["softmax_lse"]
    # The library's log-sum-exp of a row that sees nothing is -inf, flash-attn's +inf.
    lse = torch.where(softmax_lse == torch.inf, -torch.inf, softmax_lse)
    results = []
    for name, gradient in zip(("dq", "dk", "dv"), gradients(_problem(given), dout, out, lse)):
        results.append(gradient if given[name] is None else given[name].copy_(gradient))
    softmax_d = (dout.float() * out.float()).sum(-1).movedim(-1, -2).contiguous()
    return [*results, softmax_d]

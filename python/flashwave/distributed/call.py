"""What the functions of this package have in common: arguments read, agreed upon, and results handed back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..attention import autocast, check_tensors, checked_out, index_tensor, whole_number
from ..errors import InvalidArgument, Unsupported
from ..problem import Problem
from .agreement import agree, collecting_errors
from .layout import Ring, check_rows, ring_of
from .work import Extras, Options, draw_of, read_extras, read_options, refuse_probs, with_draw

Tensor = torch.Tensor


class Request(NamedTuple):
    ring: Ring
    layout: str
    q: Tensor
    k: Tensor
    v: Tensor
    options: Options
    extras: Extras
    sequences: list[int] | None


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, packed: bool) -> None:
    rank, shape = (3, "(tokens, heads, dim)") if packed else (4, "(batch, tokens, heads, dim)")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != rank:
            raise InvalidArgument(f"{name} must be {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise InvalidArgument(
                f"{name} must be {q.dtype} on {q.device}, as q, got {tensor.dtype} on {tensor.device}"
            )
    if tuple(k.shape[:-1]) != tuple(v.shape[:-1]) or k.shape[-1] != q.shape[-1] or k.shape[:-3] != q.shape[:-3]:
        raise InvalidArgument(
            f"k and v must have the batch of q, and each other's tokens and heads, got q {tuple(q.shape)}, "
            f"k {tuple(k.shape)} and v {tuple(v.shape)}"
        )
    if k.shape[-2] < 1 or q.shape[-2] % k.shape[-2]:
        raise InvalidArgument(
            f"the heads of q must be a multiple of the heads of k, got {q.shape[-2]} and {k.shape[-2]}"
        )


def _sequences(cu_seqlens: Any, name: str, tokens: int) -> list[int]:
    offsets = index_tensor(name, cu_seqlens).tolist()  # waits for a GPU: the pieces depend on it
    if len(offsets) < 1 or offsets[0] != 0 or any(a > b for a, b in zip(offsets, offsets[1:])):
        raise InvalidArgument(f"{name} must rise from 0, got {offsets}")
    if offsets[-1] != tokens:
        raise InvalidArgument(
            f"{name} must end with the tokens of all shards together, {tokens}, got {offsets[-1]}: it is of the whole "
            "stream, not of this process' shard"
        )
    return offsets


def read_request(name: str, given: dict[str, Any], packed: bool, whole_heads: bool = False) -> Request:
    """Of the arguments of a function, which raises on every process where one of them has something wrong.

    whole_heads: processes exchange heads, so that keys may be longer or shorter than queries under any mask.
    """
    g = given
    ring = ring_of(g["group"])
    q, k, v = g["q"], g["k"], g["v"]
    options: Any = None
    extras = Extras(None, None, None)
    sequences, draw = None, (0, 0)
    with collecting_errors() as errors:
        check_tensors(q=q, k=k, v=v)
        q, k, v = autocast(q, k, v)
        _check_shapes(q, k, v, packed)
        rows_dim = 0 if packed else 1
        check_rows(g["layout"], ring.size, q.shape[rows_dim], "q")
        check_rows(g["layout"], ring.size, k.shape[rows_dim], "k")
        options = read_options(
            q, g["dropout_p"], g["softmax_scale"], g["causal"], g["window_size"], g["softcap"], g["deterministic"]
        )
        refuse_probs(g["return_attn_probs"], options.dropout_p)
        for cache in ("block_table", "seqused_k"):
            if g.get(cache) is not None:
                raise Unsupported(f"{name} takes no {cache}: shards are not caches")
        extras = read_extras(q, g["alibi_slopes"], g["bias"], g["sinks"], g["s_aux"], g["learnable_sink"])
        if packed:
            sequences = _sequences(g["cu_seqlens_q"], "cu_seqlens_q", q.shape[0] * ring.size)
            keys = _sequences(g["cu_seqlens_k"], "cu_seqlens_k", k.shape[0] * ring.size)
            if keys != sequences:
                raise InvalidArgument(
                    f"{name} takes packed sequences whose queries and keys are the same tokens: "
                    "cu_seqlens_k must be cu_seqlens_q"
                )
            for side in ("max_seqlen_q", "max_seqlen_k"):
                longest = max((b - a for a, b in zip(sequences, sequences[1:])), default=0)
                if whole_number(side, g[side]) < longest:
                    raise InvalidArgument(f"{side} must be at least {longest}, the longest sequence, got {g[side]}")
        elif not whole_heads and q.shape[1] != k.shape[1] and (options.masked or extras.slopes is not None):
            raise InvalidArgument(
                f"{name} with causal, window_size or alibi_slopes takes as many keys as queries, got shards of "
                f"{q.shape[1]} and {k.shape[1]} tokens"
            )
        _check_bias(extras.bias, q, k, ring, sequences)
        checked_out(g["out"], Problem(q, k, v))
        draw = draw_of(options, q, g["rng_state"])
    error = errors[0] if errors else None
    agreed = {"function": name, "layout": g["layout"], "options": None if options is None else options[:-2]}
    agreed["sequences"] = sequences
    tensors = {"q": q, "k": k, "v": v, "alibi_slopes": extras.slopes, "bias": extras.bias, "sinks": extras.sinks}
    draw = agree(ring, agreed, tensors, error, draw)
    return Request(ring, g["layout"], q, k, v, with_draw(options, draw), extras, sequences)


def _check_bias(bias: Tensor | None, q: Tensor, k: Tensor, ring: Ring, sequences: list[int] | None) -> None:
    if bias is None:
        return
    if sequences is None:
        full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1] * ring.size)
        what = "(batch, heads, tokens of this shard, tokens of all shards)"
    else:
        longest = max((b - a for a, b in zip(sequences, sequences[1:])), default=0)
        full, what = (len(sequences) - 1, q.shape[1], longest, longest), "(sequences, heads, longest, longest)"
    if any(extent not in (1, whole) for extent, whole in zip(bias.shape, full)):
        raise InvalidArgument(f"bias must broadcast to {what} = {full}, got {tuple(bias.shape)}")


def give_back(out: Tensor, lse: Tensor, given: dict[str, Any]) -> Any:
    """As `flash_attn_func` does: lse is +inf in rows that see nothing."""
    if given["out"] is not None:
        out = given["out"].copy_(out)
    if not (given["return_attn_probs"] or given["return_lse"]):
        return out
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    return (out, lse, out.new_empty((0,))) if given["return_attn_probs"] else (out, lse)


def exchange(ring: Ring, sent: Tensor, to: int, received: Tensor, source: int) -> list[Any]:
    """Starts to send and to receive; what is to be waited for. Places are counted from this process."""
    operations = [
        dist.P2POp(dist.isend, sent, ring.peer(to), ring.group),
        dist.P2POp(dist.irecv, received, ring.peer(source), ring.group),
    ]
    return dist.batch_isend_irecv(operations)


def wait(pending: list[Any]) -> None:
    for work in pending:
        work.wait()

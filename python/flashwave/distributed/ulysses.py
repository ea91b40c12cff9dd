"""Ulysses attention: an all-to-all turns shards of tokens with all heads into all tokens with a share of the heads.

Each process then computes its heads as a single process would, to the bit; a second all-to-all turns the result back.
The exchanges have gradients of their own, which are exchanges the other way round.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .. import pieces
from ..autograd import no_jvp
from ..errors import InvalidArgument
from .call import Request, give_back, read_request
from .layout import Ring, in_order, spans
from .work import Call, Extras, Given, Work, exact_dtype

Tensor = torch.Tensor


def _all_to_all(ring: Ring, parts: list[Tensor]) -> list[Tensor]:
    """parts[r] goes to process r; what came, by process. All are equally large."""
    sent = torch.stack([part.contiguous() for part in parts])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ring.group)
    return list(received.unbind(0))


def _to_heads(ring: Ring, x: Tensor, axis: int, layout: str, heads: list[Any]) -> Tensor:
    """(.., tokens of the shard, all heads, dim) to (.., all tokens, own heads, dim). heads[r]: those of process r."""
    return in_order(_all_to_all(ring, [x[..., chosen, :] for chosen in heads]), axis, layout)


def _to_tokens(ring: Ring, x: Tensor, axis: int, layout: str) -> list[Tensor]:
    """(.., all tokens, own heads, dim) to the shard's tokens, of the heads of each process."""
    rows = x.shape[axis] // ring.size
    parts = []
    for rank in range(ring.size):
        held = spans(layout, rank, ring.size, rows)
        parts.append(torch.cat([x.narrow(axis, span.start, span.length) for span in held], axis))
    return _all_to_all(ring, parts)


class _ToHeads(torch.autograd.Function):
    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, ring: Ring, layout: str, heads: list[Any]) -> Tensor:  # type: ignore[override]
        ctx.saved = axis, ring, layout, heads, x.shape
        return _to_heads(ring, x, axis, layout, heads)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:  # type: ignore[override]
        axis, ring, layout, heads, shape = ctx.saved
        parts = _to_tokens(ring, gradient, axis, layout)
        total = torch.zeros(shape, dtype=exact_dtype(gradient), device=gradient.device)
        for chosen, part in zip(heads, parts):  # one at a time: several processes may have had the same head of k
            for at, head in enumerate(range(shape[-2])[chosen] if isinstance(chosen, slice) else chosen):
                total[..., head, :] += part[..., at, :]
        return total.to(gradient.dtype), None, None, None, None


class _ToTokens(torch.autograd.Function):
    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, ring: Ring, layout: str) -> Tensor:  # type: ignore[override]
        ctx.saved = axis, ring, layout, x.shape[-2]
        return torch.cat(_to_tokens(ring, x, axis, layout), -2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:  # type: ignore[override]
        axis, ring, layout, each = ctx.saved
        heads = [slice(rank * each, (rank + 1) * each) for rank in range(ring.size)]
        return _to_heads(ring, gradient, axis, layout, heads), None, None, None


class _Whole(torch.autograd.Function):
    """Attention of all tokens with some heads, of which dropout must know which they are."""

    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Any, bias: Any, sinks: Any, work: Work
    ) -> tuple[Tensor, Tensor]:
        work = Work(work.options, Extras(slopes, bias, sinks), work.sequences, work.heads, work.first_head)
        call, heads = _whole_call(work, q, k), slice(0, q.shape[-2])
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=exact_dtype(q))
        problem = work.problem(call, q, k, v, 0, heads)._replace(sinks=sinks)
        pieces.write(problem, work.piece(call, heads), out, lse)
        ctx.work = work
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        if dout is None and dlse is None:
            return (None,) * 7
        work: Work = ctx.work
        dout = torch.zeros_like(out) if dout is None else dout
        call, heads = _whole_call(work, q, k), slice(0, q.shape[-2])
        problem = work.problem(call, q, k, v, 0, heads)
        needs = tuple(ctx.needs_input_grad[:5])
        parts = pieces.gradients(problem, work.piece(call, heads), dout, dlse, out, lse, needs)
        dsinks = None
        if ctx.needs_input_grad[5]:
            given = Given([], q, dout, dlse, out, lse)
            dsinks = work.sink_gradient(given, heads).to(work.extras.sinks.dtype)
        inputs = q, k, v, work.extras.slopes, work.extras.bias
        gradients = [None if part is None else part.to(tensor.dtype) for part, tensor in zip(parts, inputs)]
        return (*gradients, dsinks, None)


def _whole_call(work: Work, q: Tensor, k: Tensor) -> Call:
    axis = 0 if work.packed else 1
    offsets = tuple(work.sequences) if work.packed else None
    return Call(slice(0, q.shape[axis]), slice(0, k.shape[axis]), None, None, 0, offsets)


def _heads_of_keys(ring: Ring, heads: int, heads_k: int) -> list[Any]:
    """Which heads of k and v each process gets, so that local grouping is that of the whole."""
    group, each = heads // heads_k, heads // ring.size
    if heads_k % ring.size == 0:
        return [slice(rank * heads_k // ring.size, (rank + 1) * heads_k // ring.size) for rank in range(ring.size)]
    if group % each == 0:  # all heads of a process read one head of k
        return [[rank * each // group] for rank in range(ring.size)]
    return [[head // group for head in range(rank * each, (rank + 1) * each)] for rank in range(ring.size)]


def _attend(request: Request) -> tuple[Tensor, Tensor]:
    ring, q, k, v = request.ring, request.q, request.k, request.v
    packed = request.sequences is not None
    heads = q.shape[-2]
    if ring.size == 1:
        return _Whole.apply(q, k, v, *request.extras, Work(request.options, request.extras, request.sequences, heads))
    axis, each = (0 if packed else 1), heads // ring.size
    own = slice(ring.rank * each, (ring.rank + 1) * each)
    of_q = [slice(rank * each, (rank + 1) * each) for rank in range(ring.size)]
    of_k = _heads_of_keys(ring, heads, k.shape[-2])
    whole_q = _ToHeads.apply(q, axis, ring, request.layout, of_q)
    whole_k, whole_v = (_ToHeads.apply(x, axis, ring, request.layout, of_k) for x in (k, v))
    slopes, bias, sinks = request.extras
    slopes = None if slopes is None else slopes[..., own].contiguous()
    sinks = None if sinks is None else sinks[own].contiguous()
    if bias is not None:
        bias = _own_bias(request, bias, own, of_q)
    work = Work(request.options, Extras(slopes, bias, sinks), request.sequences, heads, own.start)
    out, lse = _Whole.apply(whole_q, whole_k, whole_v, slopes, bias, sinks, work)
    out = _ToTokens.apply(out, axis, ring, request.layout)
    # (.., heads, tokens) has its heads and tokens the other way round.
    lse = _ToTokens.apply(pieces.rows_of(lse), axis, ring, request.layout).squeeze(-1).transpose(-1, -2)
    return out, lse


def _own_bias(request: Request, bias: Tensor, own: slice, of_q: list[slice]) -> Tensor:
    """All rows of bias, of this process' heads. Packed: it is whole on every process."""
    ring = request.ring
    if request.sequences is not None:
        return bias if bias.shape[1] == 1 else bias[:, own]
    if bias.shape[2] == 1:
        return bias if bias.shape[1] == 1 else bias[:, own]
    rows = bias.transpose(1, 2)  # (batch, tokens, heads, keys)
    chosen = [slice(0, 1)] * ring.size if bias.shape[1] == 1 else of_q
    return _ToHeads.apply(rows, 1, ring, request.layout, chosen).transpose(1, 2)


def _check_heads(request: Request) -> None:
    heads, size = request.q.shape[-2], request.ring.size
    if heads % size:
        raise InvalidArgument(
            f"the heads of q must be a multiple of the processes of the group, got {heads} and {size}: Ulysses gives "
            "each process its share of the heads; ring_attention takes any number"
        )


def _run(name: str, given: dict[str, Any], packed: bool) -> Any:
    request = read_request(name, given, packed, whole_heads=True)
    _check_heads(request)  # the same everywhere: all have agreed on shapes
    return give_back(*_attend(request), given)


@torch.compiler.disable
def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    rng_state: Tensor | None = None,
) -> Any:
    """`ring_attention`, with the same arguments, by exchanging tokens for heads: for groups of few processes.

    The heads of q must be a multiple of the processes; where those of k and v are not, processes share them. Any layout
    has equal work, so that the default is "contiguous". Keys may be more or fewer than queries. The result has the bits
    of a single process'.
    """
    return _run("ulysses_attention", dict(locals()), packed=False)


@torch.compiler.disable
def ulysses_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    s_aux: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    seqused_k: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    layout: str = "contiguous",
    rng_state: Tensor | None = None,
) -> Any:
    """`ring_attention_varlen`, with the same arguments, by exchanging tokens for heads."""
    return _run("ulysses_attention_varlen", dict(locals()), packed=True)

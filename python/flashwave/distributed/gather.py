"""All-gather attention: every process gets all keys and values and attends to those that its queries see.

A few heads at a time: while one group of heads is computed, the keys and values of the next come. A row is computed by
one call, from the tiles of keys it would meet in a single process: on CPUs its bits are the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..autograd import no_jvp
from .call import Request, give_back, read_request
from .layout import Span, in_order, spans
from .ring import _groups
from .work import Given, Sums, Work, exact_dtype

Tensor = torch.Tensor


class _Gathering:
    """Keys and values of some heads on their way here."""

    def __init__(self, request: Request, k: Tensor, v: Tensor) -> None:
        self._request = request
        self._own = torch.cat([k.reshape(-1), v.reshape(-1)])
        self._shapes = k.shape, v.shape
        self._received: list[Tensor] = [self._own]
        self._pending: Any = None
        if request.ring.size > 1:
            self._received = [torch.empty_like(self._own) for _ in range(request.ring.size)]
            self._pending = dist.all_gather(self._received, self._own, group=request.ring.group, async_op=True)

    def finish(self) -> tuple[Tensor, Tensor]:
        """All keys and values, in the order of the sequence."""
        if self._pending is not None:
            self._pending.wait()
        (shape_k, shape_v), axis = self._shapes, 0 if self._request.sequences is not None else 1
        split = shape_k.numel()
        keys = [buffer[:split].view(shape_k) for buffer in self._received]
        values = [buffer[split:].view(shape_v) for buffer in self._received]
        return in_order(keys, axis, self._request.layout), in_order(values, axis, self._request.layout)


def _gathered(request: Request, k: Tensor, v: Tensor, groups: list[tuple[slice, slice]]) -> Any:
    """(heads, heads_k, all keys, all values) of each group of heads; the next one's are under way meanwhile."""
    coming = _Gathering(request, k[..., groups[0][1], :], v[..., groups[0][1], :])
    for at, (heads, heads_k) in enumerate(groups):
        keys, values = coming.finish()
        if at + 1 < len(groups):
            following = groups[at + 1][1]
            coming = _Gathering(request, k[..., following, :], v[..., following, :])
        yield heads, heads_k, keys, values


def _scattered(request: Request, whole: Tensor) -> Tensor:
    """This process' shard of the sum of what all processes have, added in the order of the processes."""
    ring, axis = request.ring, 0 if request.sequences is not None else 1
    if ring.size == 1:
        return whole
    rows = whole.shape[axis] // ring.size
    parts = []
    for rank in range(ring.size):
        held = spans(request.layout, rank, ring.size, rows)
        parts += [whole.narrow(axis, span.start, span.length) for span in held]
    sent = torch.cat([part.reshape(-1) for part in parts])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=ring.group)
    total = received.view(ring.size, -1).sum(0)
    shape = list(whole.shape)
    shape[axis] = rows
    if len(parts) == ring.size:
        return total.view(shape)
    # Each half of a zigzag shard lies by itself.
    shape[axis] = rows // 2
    return torch.cat([half.view(shape) for half in total.chunk(2)], axis)


class _Gather(torch.autograd.Function):
    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Any, bias: Any, sinks: Any, request: Request
    ) -> tuple[Tensor, Tensor]:
        work = Work(request.options, request.extras, request.sequences, q.shape[-2])
        own = _own_queries(request)
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=exact_dtype(q))
        for heads, _, keys, values in _gathered(request, k, v, _groups(q, k, v)):
            everything = _everything(request, keys)
            parts = q[..., heads, :], everything, keys, values, heads, out[..., heads, :], lse[..., heads, :]
            work.write(own, *parts)
        ctx.request = request
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        if dout is None and dlse is None:
            return (None,) * 7
        request: Request = ctx.request
        dout = torch.zeros_like(out) if dout is None else dout
        work = Work(request.options, request.extras, request.sequences, q.shape[-2])
        need_q, need_k, need_v, need_slopes, need_bias, need_sinks = ctx.needs_input_grad[:6]
        exact, extras = exact_dtype(q), request.extras
        dq, dk, dv = (torch.empty_like(t) if need else None for t, need in ((q, need_q), (k, need_k), (v, need_v)))
        dslopes, dbias = (
            torch.zeros(t.shape, dtype=exact, device=t.device) if need else None
            for t, need in ((extras.slopes, need_slopes), (extras.bias, need_bias))
        )
        dsinks = torch.zeros_like(extras.sinks) if need_sinks else None

        def room(like: Tensor, needed: bool) -> Tensor | None:
            return torch.zeros(like.shape, dtype=exact, device=like.device) if needed else None

        own = _own_queries(request)
        for heads, heads_k, keys, values in _gathered(request, k, v, _groups(q, k, v)):
            part = q[..., heads, :]
            dlse_part = None if dlse is None else dlse[..., heads, :]
            given = Given(own, part, dout[..., heads, :], dlse_part, out[..., heads, :], lse[..., heads, :])
            if dsinks is not None:
                dsinks[heads] = work.sink_gradient(given, heads).to(dsinks.dtype)
            rooms = room(part, need_q), room(keys, need_k), room(values, need_v)
            sums = Sums(*rooms, dslopes, dbias)
            work.add_gradients(given, _everything(request, keys), keys, values, heads, sums)
            if need_q:
                dq[..., heads, :] = sums.dq
            for gradient, total in ((dk, sums.dk), (dv, sums.dv)):
                if gradient is not None:
                    gradient[..., heads_k, :] = _scattered(request, total)
        return (
            dq,
            dk,
            dv,
            None if dslopes is None else dslopes.to(extras.slopes.dtype),
            None if dbias is None else dbias.to(extras.bias.dtype),
            dsinks,
            None,
        )


def _own_queries(request: Request) -> list[Span]:
    rows = request.q.shape[0 if request.sequences is not None else 1]
    return spans(request.layout, request.ring.rank, request.ring.size, rows)


def _everything(request: Request, keys: Tensor) -> list[Span]:
    return [Span(0, keys.shape[0 if request.sequences is not None else 1], 0)]


def _attend(request: Request) -> tuple[Tensor, Tensor]:
    return _Gather.apply(request.q, request.k, request.v, *request.extras, request)


@torch.compiler.disable
def allgather_attention(
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
    layout: str = "zigzag",
    rng_state: Tensor | None = None,
) -> Any:
    """`ring_attention`, with the same arguments, by gathering all keys and values: for short or few keys (GQA).

    On CPUs the result has the bits of a single process' if shards, or with "zigzag" their halves, are multiples of 128
    tokens.
    """
    given = dict(locals())
    request = read_request("allgather_attention", given, packed=False)
    return give_back(*_attend(request), given)


@torch.compiler.disable
def allgather_attention_varlen(
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
    layout: str = "zigzag",
    rng_state: Tensor | None = None,
) -> Any:
    """`ring_attention_varlen`, with the same arguments, by gathering all keys and values."""
    given = dict(locals())
    request = read_request("allgather_attention_varlen", given, packed=True)
    return give_back(*_attend(request), given)

"""Ring attention: keys and values go round the group; each process attends to the shard it has while the next comes.

Forward, a step: send the shard at hand on, receive the next, attend, add to the results by their log-sum-exps.
Backward, a step: the same, and the gradients of the shard at hand, to which each process adds, go on with it.
All of it for a few heads at a time, so that what is under way and what is summed in float32 stay small.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..autograd import no_jvp
from .call import Request, exchange, give_back, read_request, wait
from .layout import Ring, Span, spans
from .work import Given, Sums, Work, calls, exact_dtype, head_groups

Tensor = torch.Tensor

_LEAST_MESSAGE = 1 << 20  # bytes: below this latency counts
_LEAST_WORK_ON_GPU = 1 << 16  # rows of all heads of a group: fewer do not fill a GPU


def _groups(q: Tensor, k: Tensor, v: Tensor) -> list[tuple[slice, slice]]:
    rows = k.numel() // (k.shape[-2] * k.shape[-1]) if k.numel() else 0
    least = _LEAST_MESSAGE
    of_a_head = rows * (k.shape[-1] + v.shape[-1]) * k.element_size()
    if q.is_cuda and q.numel():
        per_head = q.numel() // (q.shape[-2] * q.shape[-1]) * (q.shape[-2] // k.shape[-2])
        least = max(least, of_a_head * -(-_LEAST_WORK_ON_GPU // max(per_head, 1)))
    return head_groups(q.shape[-2], k.shape[-2], of_a_head, least)


class _Buffers:
    """What shards travel in, two of them in turn: the same for all heads, as far as they are equally large."""

    def __init__(self) -> None:
        self._pair: list[Tensor] = []

    def packed(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v in one buffer, so that a step is one message, and another one for what comes."""
        size = k.numel() + v.numel()
        if not self._pair or self._pair[0].numel() != size:
            self._pair = [torch.empty(size, dtype=k.dtype, device=k.device) for _ in range(2)]
        for to, tensor in zip(_unpacked(self._pair[0], k, v), (k, v)):
            to.copy_(tensor)
        return self._pair[0], self._pair[1]


def _unpacked(buffer: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """k and v of the shapes of these in a buffer."""
    return buffer[: k.numel()].view(k.shape), buffer[k.numel() :].view(v.shape)


def steps_needed(request: Request) -> int:
    """Steps after which no process finds keys that its queries see."""
    ring, options, sequences = request.ring, request.options, request.sequences
    axis = 0 if sequences is not None else 1
    rows_q, rows_k = request.q.shape[axis], request.k.shape[axis]
    if not options.masked and sequences is None:
        return ring.size

    def meets(rank: int, step: int) -> bool:
        theirs = spans(request.layout, (rank - step) % ring.size, ring.size, rows_k)
        own = spans(request.layout, rank, ring.size, rows_q)
        return any(next(calls(a, b, sequences, options), None) is not None for a in own for b in theirs)

    needed = [step for step in range(ring.size) if any(meets(rank, step) for rank in range(ring.size))]
    return needed[-1] + 1 if needed else 1


class _Ring(torch.autograd.Function):
    jvp = staticmethod(no_jvp)

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Any, bias: Any, sinks: Any, request: Request
    ) -> tuple[Tensor, Tensor]:
        work = Work(request.options, request.extras, request.sequences, q.shape[-2])
        layout = _Shards(request)
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=exact_dtype(q))
        buffers = _Buffers()
        for heads, heads_k in _groups(q, k, v):
            parts = q[..., heads, :], k[..., heads_k, :], v[..., heads_k, :]
            _forward_heads(work, layout, heads, *parts, out, lse, buffers)
        ctx.request, ctx.layout = request, layout
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
        exact = exact_dtype(q)
        dq, dk, dv = (torch.empty_like(t) if need else None for t, need in ((q, need_q), (k, need_k), (v, need_v)))
        dslopes, dbias = (
            torch.zeros(t.shape, dtype=exact, device=t.device) if need else None
            for t, need in ((request.extras.slopes, need_slopes), (request.extras.bias, need_bias))
        )
        dsinks = torch.zeros_like(request.extras.sinks) if need_sinks else None
        buffers = _Buffers()
        for heads, heads_k in _groups(q, k, v):
            given = Given(
                ctx.layout.own_queries,
                q[..., heads, :],
                dout[..., heads, :],
                None if dlse is None else dlse[..., heads, :],
                out[..., heads, :],
                lse[..., heads, :],
            )
            if dsinks is not None:
                dsinks[heads] = work.sink_gradient(given, heads).to(dsinks.dtype)
            parts = k[..., heads_k, :], v[..., heads_k, :]
            own_dq = None if dq is None else dq[..., heads, :]
            needs = need_k, need_v
            sums = _backward_heads(work, ctx.layout, given, *parts, heads, own_dq, needs, dslopes, dbias, buffers)
            for gradient, total in zip((dk, dv), sums):
                if gradient is not None:
                    gradient[..., heads_k, :] = total
            del sums, given, parts  # before those of the next heads are made
        extras = request.extras
        return (
            dq,
            dk,
            dv,
            None if dslopes is None else dslopes.to(extras.slopes.dtype),
            None if dbias is None else dbias.to(extras.bias.dtype),
            dsinks,
            None,
        )


class _Shards:
    """Who holds what, and when it is here."""

    def __init__(self, request: Request) -> None:
        self.ring: Ring = request.ring
        self.steps = steps_needed(request)
        axis = 0 if request.sequences is not None else 1
        self._layout, self._rows_k = request.layout, request.k.shape[axis]
        self.own_queries = spans(request.layout, self.ring.rank, self.ring.size, request.q.shape[axis])

    def keys_at(self, step: int) -> list[Span]:
        return spans(self._layout, (self.ring.rank - step) % self.ring.size, self.ring.size, self._rows_k)


def _forward_heads(
    work: Work,
    layout: _Shards,
    heads: slice,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    buffers: _Buffers,
) -> None:
    """out and lse are of all heads."""
    exact = exact_dtype(q)
    own_out, own_lse = out[..., heads, :], lse[..., heads, :]
    total = own_out if out.dtype == exact else torch.empty(own_out.shape, dtype=exact, device=q.device)
    total.zero_()  # rows that no call meets
    own_lse.fill_(-torch.inf)
    at_hand, coming = buffers.packed(k, v) if layout.steps > 1 else (None, None)
    for step in range(layout.steps):
        pending = exchange(layout.ring, at_hand, 1, coming, -1) if step + 1 < layout.steps else []
        keys, values = (k, v) if step == 0 else _unpacked(at_hand, k, v)
        work.add(layout.own_queries, q, layout.keys_at(step), keys, values, heads, total, own_lse)
        wait(pending)
        at_hand, coming = coming, at_hand
    work.add_sinks(total, own_lse, heads)
    if total is not own_out:
        own_out.copy_(total)


def _backward_heads(
    work: Work,
    layout: _Shards,
    given: Given,
    k: Tensor,
    v: Tensor,
    heads: slice,
    own_dq: Tensor | None,
    needs: tuple[bool, bool],
    dslopes: Tensor | None,
    dbias: Tensor | None,
    buffers: _Buffers,
) -> tuple[Tensor | None, Tensor | None]:
    """Writes own_dq, the gradient of q of these heads; returns those of k and v, in float32."""
    need_k, need_v = needs
    exact, ring, steps = exact_dtype(given.q), layout.ring, layout.steps
    dq = own_dq
    if own_dq is not None:
        dq = own_dq.zero_() if own_dq.dtype == exact else torch.zeros(own_dq.shape, dtype=exact, device=k.device)
    travels = need_k or need_v
    at_hand, coming = buffers.packed(k, v) if steps > 1 else (None, None)
    sent: Tensor | None = None  # gradients on their way to the next process
    arriving: list[Any] = []
    for step in range(steps):
        pending = exchange(ring, at_hand, 1, coming, -1) if step + 1 < steps else []
        keys, values = (k, v) if step == 0 else _unpacked(at_hand, k, v)
        sums = torch.zeros(k.numel() + v.numel(), dtype=exact, device=k.device) if travels else None
        dk, dv = _unpacked(sums, k, v) if sums is not None else (None, None)
        # What others have found for the shard that is here arrives while this process computes its part.
        so_far = None
        if travels and step > 0:
            so_far = torch.empty_like(sums)
            arriving = exchange(ring, sent, 1, so_far, -1)
        parts = Sums(dq, dk if need_k else None, dv if need_v else None, dslopes, dbias)
        work.add_gradients(given, layout.keys_at(step), keys, values, heads, parts)
        wait(pending)
        if so_far is not None:
            wait(arriving)
            sums.add_(so_far)
        sent = sums
        at_hand, coming = coming, at_hand
    if own_dq is not None and dq is not own_dq:
        own_dq.copy_(dq)
    if not travels:
        return None, None
    del dq
    if steps > 1:  # home, from the last process that a shard was at
        back = torch.empty_like(sent)
        wait(exchange(ring, sent, 1 - steps, back, steps - 1))
        sent = back
    dk, dv = _unpacked(sent, k, v)
    return dk if need_k else None, dv if need_v else None


def _attend(request: Request) -> tuple[Tensor, Tensor]:
    return _Ring.apply(request.q, request.k, request.v, *request.extras, request)


@torch.compiler.disable
def ring_attention(
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
    """`flash_attn_func` of a sequence of which this process holds a shard, and gets the result of.

    Every process of the group calls it with shards of the same shape; what is wrong on one of them raises on all.
    The gradients of q, k and v are those of the shards; those of alibi_slopes, sinks and bias are what this process'
    queries add to them, as of any weight.

    Arguments:
        q: (batch, tokens, heads, dim), the shard that `flashwave.distributed.shard` cuts out
        k: (batch, tokens, heads_k, dim)
        v: (batch, tokens, heads_k, dim_v)
        dropout_p ... out: as of `flash_attn_func`, of the whole sequence. bias broadcasts to (batch, heads, tokens of
            this shard, tokens of all shards), its columns in the order of the sequence.
        group: a torch.distributed process group; None is the default one
        layout: "zigzag" or "contiguous", of `shard`
        rng_state: int64 (seed, offset) of the dropout; None draws one. The first process' counts.
    """
    given = dict(locals())
    request = read_request("ring_attention", given, packed=False)
    return give_back(*_attend(request), given)


@torch.compiler.disable
def ring_attention_varlen(
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
    """`ring_attention` of packed sequences: the shard is one of the whole stream, wherever sequences begin and end.

    Arguments:
        q, k, v: (tokens, heads, dim), shards of the stream of all tokens, cut by `shard(x, dim=0)`
        cu_seqlens_q, cu_seqlens_k: of the whole stream, the same on every process and the same for both; they are read
            on the host
        max_seqlen_q, max_seqlen_k: at least the longest sequence
        bias: broadcasts to (sequences, heads, longest, longest), the same on every process
        The other arguments are those of `flash_attn_varlen_func` and of `ring_attention`.
    """
    given = dict(locals())
    request = read_request("ring_attention_varlen", given, packed=True)
    return give_back(*_attend(request), given)

"""Ring attention: keys and values go round the group; each process attends to the shard it has while the next comes.

Forward, a step: send the shard at hand on, receive the next, attend, add to the results by their log-sum-exps.
Backward, a step: the same, and the gradients of the shard at hand, to which each process adds, go on with it, and home.
All of it for a few heads and, on CPUs, a part of the keys at a time, so that what is under way and what is summed in
float32 stay small; and in memory that is used again, which an allocator would not give back in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
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
# Of a shard's keys. More of them take less memory and longer, as each packs the queries again: bf16's backward at 8192
# tokens on two processes is 1.75 times as fast as on one with three, 1.85 with two.
_PARTS_ON_CPU = 2
_LEAST_PART = 1 << 17  # bytes
_ROWS_STEP = 64  # rows of a part are a multiple of it


def _groups(q: Tensor, k: Tensor, v: Tensor) -> list[tuple[slice, slice]]:
    rows = k.numel() // (k.shape[-2] * k.shape[-1]) if k.numel() else 0
    least = _LEAST_MESSAGE
    of_a_head = rows * (k.shape[-1] + v.shape[-1]) * k.element_size()
    if q.is_cuda and q.numel():
        per_head = q.numel() // (q.shape[-2] * q.shape[-1]) * (q.shape[-2] // k.shape[-2])
        least = max(least, of_a_head * -(-_LEAST_WORK_ON_GPU // max(per_head, 1)))
    return head_groups(q.shape[-2], k.shape[-2], of_a_head, least)


class _Buffers:
    """Memory that all heads and parts of shards use in turn."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._turn = 0

    def take(self, name: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        kept, count = self._kept.get(name), size * dtype.itemsize
        if kept is None or kept.numel() < count:
            kept = self._kept[name] = torch.empty(count, dtype=torch.uint8, device=device)
        return kept[:count].view(dtype)

    def in_turns(self, name: str) -> str:
        """The name of one of two, the other of which was asked for before."""
        self._turn = 1 - self._turn
        return f"{name} {self._turn}"

    def packed(self, part: _Part, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The part of k and v in one buffer, so that a step is one message, and another one for what comes."""
        at_hand, coming = (self.take(f"keys {i}", part.size, k.dtype, k.device) for i in range(2))
        return part.pack(k, v, at_hand), coming


class _Part:
    """Rows of k and v, and of what has their shape."""

    def __init__(self, rows: tuple[slice, ...], axis: int, k: Tensor, v: Tensor) -> None:
        self.rows, self.axis = rows, axis
        length = sum(piece.stop - piece.start for piece in rows)
        self._shapes = [torch.Size((*t.shape[:axis], length, *t.shape[axis + 1 :])) for t in (k, v)]
        self._first = self._shapes[0].numel()
        self.size = self._first + self._shapes[1].numel()

    def unpacked(self, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """Those of k and of v in a buffer."""
        return buffer[: self._first].view(self._shapes[0]), buffer[self._first :].view(self._shapes[1])

    def pieces(self, tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The rows, and where each lot of them begins among them."""
        row = 0
        for piece in self.rows:
            length = piece.stop - piece.start
            yield row, tensor.narrow(self.axis, piece.start, length)
            row += length

    def pack(self, k: Tensor, v: Tensor, buffer: Tensor) -> Tensor:
        """Those of k and v into a buffer, so that a step is one message."""
        for to, tensor in zip(self.unpacked(buffer), (k, v)):
            for row, piece in self.pieces(tensor):
                to.narrow(self.axis, row, piece.shape[self.axis]).copy_(piece)
        return buffer

    def own(self, k: Tensor, v: Tensor, at_hand: Tensor | None) -> tuple[Tensor, Tensor]:
        """Those of k and v, where they lie if that is in one piece, else in the buffer."""
        if len(self.rows) > 1:
            assert at_hand is not None
            return self.unpacked(at_hand)
        (_, own_k), (_, own_v) = next(self.pieces(k)), next(self.pieces(v))
        return own_k, own_v


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
            _forward_heads(work, layout, heads, *parts, out[..., heads, :], lse[..., heads, :], buffers)
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
        finish: Callable[[], None] = _nothing
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
            own = [None if t is None else t[..., h, :] for t, h in ((dq, heads), (dk, heads_k), (dv, heads_k))]
            sums = Sums(*own, dslopes, dbias)
            finish = _backward_heads(work, ctx.layout, given, *parts, heads, sums, buffers, finish)
        finish()
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
        self.packed = request.sequences is not None
        self._axis = 0 if self.packed else 1
        self._layout, self._rows_k = request.layout, request.k.shape[self._axis]
        self.own_queries = spans(request.layout, self.ring.rank, self.ring.size, request.q.shape[self._axis])

    def whole(self, k: Tensor, v: Tensor) -> _Part:
        return _Part((slice(0, self._rows_k),), self._axis, k, v)

    def parts(self, k: Tensor, v: Tensor) -> list[_Part]:
        """Rows of these keys that go round together. With a causal mask a part has keys of both ends of a zigzag shard:
        then all processes have as much to do with it, and none waits for another."""
        whole = [self.whole(k, v)]
        if self.packed or not k.is_cpu or k.numel() == 0 or self.steps == 1:
            return whole
        count = min(_PARTS_ON_CPU, (k.numel() + v.numel()) * k.element_size() // _LEAST_PART)
        if count < 2:
            return whole
        lots = []
        for span in spans(self._layout, self.ring.rank, self.ring.size, self._rows_k):
            each = -(-span.length // count)
            each = max(min(-(-each // _ROWS_STEP) * _ROWS_STEP, span.length), 1)
            ends = [*range(span.row, span.row + span.length, each), span.row + span.length]
            lots.append([slice(a, b) for a, b in zip(ends, ends[1:])])
        together = (tuple(piece for piece in pieces if piece is not None) for pieces in zip_longest(*lots))
        return [_Part(rows, self._axis, k, v) for rows in together]

    def keys_at(self, step: int, part: _Part) -> list[Span]:
        """Of the shard that is here at this step, as rows of the part."""
        theirs = spans(self._layout, (self.ring.rank - step) % self.ring.size, self.ring.size, self._rows_k)
        found = [Span(span.start, 0, 0) for span in theirs if span.length == 0]
        for span in theirs:
            row = 0
            for piece in part.rows:
                first, last = max(span.row, piece.start), min(span.row + span.length, piece.stop)
                if first < last:
                    found.append(Span(span.start + first - span.row, last - first, row + first - piece.start))
                row += piece.stop - piece.start
        return found


def _in_turn(layout: _Shards, k: Tensor, v: Tensor, buffers: _Buffers) -> Iterator[tuple[_Part, int, Tensor, Tensor]]:
    """Keys and values in the order in which they are attended to, and the step at which they are here: the own shard,
    as a whole, then parts of the others', each of which comes while the one before is at hand."""
    turns = [(part, step) for part in layout.parts(k, v) for step in range(1, layout.steps)]

    def begin(turn: int, at_hand: str | None) -> tuple[list[Any], str | None]:
        """Sends what is at hand on or, with a new part, that of the own shard; what to wait for, and where it comes."""
        if turn == len(turns):
            return [], None
        part, step = turns[turn]
        one, other = [name for name in ("keys 0", "keys 1", "keys 2") if name != at_hand][:2]
        buffer = {name: buffers.take(name, part.size, k.dtype, k.device) for name in (one, other)}
        sent = part.pack(k, v, buffer[one]) if step == 1 else buffers.take(at_hand, part.size, k.dtype, k.device)
        return exchange(layout.ring, sent, 1, buffer[other], -1), other

    pending, coming = begin(0, None)
    yield layout.whole(k, v), 0, k, v
    for turn, (part, step) in enumerate(turns):
        wait(pending)
        at_hand = coming
        pending, coming = begin(turn + 1, at_hand)
        yield part, step, *part.unpacked(buffers.take(at_hand, part.size, k.dtype, k.device))


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
    """Writes out and lse of these heads."""
    exact = exact_dtype(q)
    total = out if out.dtype == exact else buffers.take("out", out.numel(), exact, q.device).view(out.shape)
    total.zero_()  # rows that no call meets
    lse.fill_(-torch.inf)
    for part, step, keys, values in _in_turn(layout, k, v, buffers):
        work.add(layout.own_queries, q, layout.keys_at(step, part), keys, values, heads, total, lse)
    work.add_sinks(total, lse, heads)
    if total is not out:
        out.copy_(total)


def _backward_heads(
    work: Work,
    layout: _Shards,
    given: Given,
    k: Tensor,
    v: Tensor,
    heads: slice,
    results: Sums,
    buffers: _Buffers,
    finish: Callable[[], None],
) -> Callable[[], None]:
    """Writes dq of these heads and adds to the results of all heads. dk and dv are written by what it returns; finish
    is that of the heads before."""
    exact = exact_dtype(given.q)
    dq = results.dq
    if dq is not None and dq.dtype != exact:
        dq = buffers.take("dq", dq.numel(), exact, dq.device).view(dq.shape)
    if dq is not None:
        dq.zero_()
    for part in layout.parts(k, v):
        finish = _backward_part(work, layout, given, k, v, part, heads, results._replace(dq=dq), buffers, finish)
    if dq is not results.dq:
        results.dq.copy_(dq)
    return finish


def _backward_part(
    work: Work,
    layout: _Shards,
    given: Given,
    k: Tensor,
    v: Tensor,
    part: _Part,
    heads: slice,
    results: Sums,
    buffers: _Buffers,
    finish: Callable[[], None],
) -> Callable[[], None]:
    """Of a part of the shards' keys; k, v, dk and dv are the whole shard's. Gradients of the process' own keys stay;
    those of others' go round with them, beginning with the next process, and home while the next part is computed."""
    exact, ring, steps = exact_dtype(given.q), layout.ring, layout.steps
    need_k, need_v = results.dk is not None, results.dv is not None
    travels = need_k or need_v
    at_hand, coming = buffers.packed(part, k, v) if steps > 1 else (None, None)
    own: Tensor | None = None
    sums: Tensor | None = None
    for step in range(steps):
        pending = exchange(ring, at_hand, 1, coming, -1) if step + 1 < steps else []
        arriving, others = [], None
        if travels and step > 1:
            others = buffers.take("others", part.size, exact, k.device)
            arriving = exchange(ring, sums, 1, others, -1)
        total = None
        if travels:
            name = buffers.in_turns("own") if step == 0 else f"sums {step % 2}"
            total = buffers.take(name, part.size, exact, k.device).zero_()
        keys, values = part.own(k, v, at_hand) if step == 0 else part.unpacked(at_hand)
        dk, dv = part.unpacked(total) if travels else (None, None)
        totals = results._replace(dk=dk if need_k else None, dv=dv if need_v else None)
        work.add_gradients(given, layout.keys_at(step, part), keys, values, heads, totals)
        if step == 0:
            own = total
            finish()  # the part before
        else:
            sums = total
        wait(arriving)
        if others is not None:  # what other processes found for these keys came while this one computed its part
            sums.add_(others)
        wait(pending)
        at_hand, coming = coming, at_hand
    if not travels:
        return _nothing
    home: list[Any] = []
    others = None
    if steps > 1:  # from the last process that a shard was at
        others = buffers.take("others", part.size, exact, k.device)
        home = exchange(ring, sums, 1 - steps, others, steps - 1)

    def write() -> None:
        wait(home)
        if others is not None:
            own.add_(others)
        for gradient, total in zip(results[1:3], part.unpacked(own)):
            for row, piece in part.pieces(gradient) if gradient is not None else ():
                piece.copy_(total.narrow(part.axis, row, piece.shape[part.axis]))

    return write


def _nothing() -> None:
    """Where no gradients are on their way."""


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

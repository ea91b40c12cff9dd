"""The calls that a process makes: for the queries it holds against some keys, cut to what is seen.

A call is a plain problem of `flashwave.pieces`. Two spans of one sequence make a dense call, trimmed on both sides to
the rows and keys that see one another; sequences of a packed stream that lie wholly in both spans make one ragged call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .. import pieces
from ..attention import LEAST_DROPOUT, _bias4d, _checked_state, _float32, draw_rng_state, number, window_sides
from ..errors import InvalidArgument, Unsupported
from ..functions import _one_sink
from ..problem import Piece, Problem
from ..settings import is_deterministic
from .layout import Span

Tensor = torch.Tensor

# Trimmed keys begin at multiples of this, which is one of all kernels' tiles of keys on CPUs: so that a row meets the
# tiles that it meets in a single process.
KEY_STEP = 384


class Options(NamedTuple):
    """What is the same for all calls."""

    softmax_scale: float | None
    left: int | None  # keys seen on either side of the diagonal; None: no limit
    right: int | None
    softcap: float
    dropout_p: float
    rng_state: Tensor | None
    deterministic: bool

    @property
    def masked(self) -> bool:
        return self.left is not None or self.right is not None


class Extras(NamedTuple):
    """Tensors besides q, k and v that scores depend on."""

    slopes: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None


def read_options(
    q: Tensor, dropout_p: Any, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, deterministic: Any
) -> Options:
    """Of the keywords of `flash_attn_func`; the state of dropout is drawn later, when all processes agree."""
    left, right = window_sides("window_size", window_size)
    if causal:
        right = 0
    dropout_p = number("dropout_p", dropout_p)
    return Options(
        None if softmax_scale is None else float(number("softmax_scale", softmax_scale)),
        None if left < 0 else left,
        None if right < 0 else right,
        float(number("softcap", softcap)),
        0.0 if dropout_p < LEAST_DROPOUT else float(dropout_p),
        None,
        bool(deterministic) or is_deterministic(q),
    )


def read_extras(q: Tensor, alibi_slopes: Any, bias: Any, sinks: Any, s_aux: Any, learnable_sink: Any) -> Extras:
    sinks = _one_sink(sinks, s_aux, learnable_sink)
    slopes, sinks = _float32("alibi_slopes", alibi_slopes, q), _float32("sinks", sinks, q)
    heads = q.shape[-2]
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise InvalidArgument(
            f"sinks must have one number for each of the {heads} heads of q, got {tuple(sinks.shape)}"
        )
    if slopes is not None and (slopes.dim() not in (1, 2) or slopes.shape[-1] != heads):
        raise InvalidArgument(
            f"alibi_slopes must be (heads,) or (batch, heads) with {heads} heads, got {tuple(slopes.shape)}"
        )
    return Extras(slopes, None if bias is None else _bias4d(bias, q), sinks)


def refuse_probs(return_attn_probs: bool, dropout_p: float) -> None:
    if return_attn_probs and dropout_p > 0:
        raise Unsupported(
            "return_attn_probs with dropout has no matrix to give: no process has all of it; use return_lse"
        )


def draw_of(options: Options, q: Tensor, rng_state: Any) -> tuple[int, int]:
    """Seed and offset of this process; the first one's count."""
    if options.dropout_p == 0:
        return 0, 0
    state = draw_rng_state(q) if rng_state is None else _checked_state(rng_state)
    seed, offset = state.tolist()
    return seed, offset


def with_draw(options: Options, draw: tuple[int, int]) -> Options:
    if options.dropout_p == 0:
        return options
    return options._replace(rng_state=torch.tensor(draw, dtype=torch.int64))


# ---------------------------------------------------------------------------------------------------------------- calls


class Call(NamedTuple):
    queries: slice  # rows of q
    keys: slice  # rows of k and v
    position_q: int | None  # in the sequence, of the first row; None: all of it is there
    position_k: int | None
    sequence: int  # the first one; 0 in a dense batch
    offsets: tuple[int, ...] | None = None  # of several whole sequences, from 0; None: one piece


def _trimmed(q0: int, q1: int, k0: int, k1: int, options: Options) -> tuple[int, int, int, int] | None:
    """Queries i0 .. i1-1 and keys j0 .. j1-1, counted from q0 and k0, outside of which nothing is seen."""
    apart, queries, keys = q0 - k0, q1 - q0, k1 - k0
    left, right = options.left, options.right
    i0 = 0 if right is None else max(0, -right - apart)
    i1 = queries if left is None else min(queries, keys + left - apart)
    if i0 >= i1:
        return None
    j0 = 0 if left is None else max(0, apart + i0 - left) // KEY_STEP * KEY_STEP
    j1 = keys if right is None else min(keys, apart + i1 + right)
    return (i0, i1, j0, j1) if j0 < j1 else None


def calls(q: Span, k: Span, sequences: list[int] | None, options: Options) -> Iterator[Call]:
    """What queries of one span have to do with keys of another. sequences: offsets of packed ones in the stream."""
    if sequences is None:
        yield from _call(q, k, q.start, q.end, k.start, k.end, 0, 0, options)
        return
    whole: list[int] = []  # consecutive sequences that are all in both spans
    for b in range(len(sequences) - 1):
        first, last = sequences[b], sequences[b + 1]
        q0, q1 = max(first, q.start), min(last, q.end)
        k0, k1 = max(first, k.start), min(last, k.end)
        if q0 >= q1 or k0 >= k1:
            continue
        if (q0, q1, k0, k1) == (first, last, first, last):
            whole.append(b)
        else:
            yield from _call(q, k, q0, q1, k0, k1, first, b, options)
    if whole:
        # An empty one between them is in both spans, too.
        begin, end = whole[0], whole[-1] + 1
        offsets = tuple([sequences[b] - sequences[begin] for b in range(begin, end + 1)])
        rows, start = offsets[-1], sequences[begin]
        in_q, in_k = q.row + start - q.start, k.row + start - k.start
        yield Call(slice(in_q, in_q + rows), slice(in_k, in_k + rows), None, None, begin, offsets)


def _call(
    q: Span, k: Span, q0: int, q1: int, k0: int, k1: int, origin: int, sequence: int, options: Options
) -> Iterator[Call]:
    seen = _trimmed(q0, q1, k0, k1, options)
    if seen is not None:
        i0, i1, j0, j1 = seen
        rows_q, rows_k = q.row + q0 - q.start, k.row + k0 - k.start
        queries, keys = slice(rows_q + i0, rows_q + i1), slice(rows_k + j0, rows_k + j1)
        yield Call(queries, keys, q0 + i0 - origin, k0 + j0 - origin, sequence)


def _joined(queries: list[Span], keys: list[Span], options: Options) -> list[Call] | None:
    """The calls of two shards of several spans each, under no mask or a causal one, as one; None where it takes more.

    Spans lie in a shard in the order of the sequence. So queries see all keys of their own shard up to themselves, and
    of another one's those that come before: the same first rows for some of the spans.
    """
    rows = queries[-1].row + queries[-1].length
    rows_k = keys[-1].row + keys[-1].length
    if options.left is not None or options.right not in (None, 0):
        return None
    if options.right is None:
        return [Call(slice(0, rows), slice(0, rows_k), 0, 0, 0)]
    found: list[Call] = []
    for span in queries:
        seen = sum(key.length for key in keys if key.end <= span.start)
        cut = [key for key in keys if key.start < span.end and key.end > span.start]
        if len(cut) > 1 or any(key.start < span.start or key.end > span.end for key in cut):
            return None
        # Rows behind all the keys they see, then rows on the diagonal. Positions are counted among these keys.
        first = span.row + cut[0].start - span.start if cut else span.row + span.length
        found.append(Call(slice(span.row, first), slice(0, seen), seen, 0, 0))
        if cut:
            rows = slice(first, span.row + span.length)
            found.append(Call(rows, slice(0, seen + cut[0].length), seen, 0, 0))
    calls: list[Call] = []
    for call in found:
        if call.queries.start == call.queries.stop or call.keys.stop == 0:
            continue
        one = _one_call(calls[-1], call) if calls else None
        calls[-1:] = [one] if one is not None else [*calls[-1:], call]
    return calls


def _one_call(a: Call, b: Call) -> Call | None:
    """Two causal calls as one, if its mask is theirs: its row i sees the first position_q + i + 1 of its keys."""
    if a.queries.stop != b.queries.start or a.keys.stop > b.keys.stop:
        return None
    assert a.position_q is not None and b.position_q is not None
    behind = a.position_q + a.queries.stop - a.queries.start  # where the first row of b would be
    same_for_a = a.keys.stop == b.keys.stop or behind <= a.keys.stop
    same_for_b = behind == b.position_q or min(behind, b.position_q) + 1 >= b.keys.stop
    if not (same_for_a and same_for_b):
        return None
    return b._replace(queries=slice(a.queries.start, b.queries.stop), position_q=a.position_q)


class Work:
    """Makes the calls on tensors of some of the heads."""

    def __init__(self, options: Options, extras: Extras, sequences: list[int] | None, heads: int, first_head: int = 0):
        """heads: of q in the whole problem; first_head: the one that the tensors' first is."""
        self.options, self.extras, self.sequences = options, extras, sequences
        self.heads, self.first_head = heads, first_head

    @property
    def packed(self) -> bool:
        return self.sequences is not None

    def calls(self, queries: list[Span], keys: list[Span]) -> list[Call]:
        """What two shards have to do with each other."""
        by_place = self.packed or self.extras.slopes is not None or self.extras.bias is not None
        if not by_place and self.options.dropout_p == 0:
            found = _joined(queries, keys, self.options)
            if found is not None:
                return found
        return [call for q in queries for k in keys for call in calls(q, k, self.sequences, self.options)]

    def rows(self, tensor: Tensor, rows: slice, call: Call) -> Tensor:
        """Rows of q, k or v as a call takes them: with a batch of one for a piece of a packed sequence."""
        if not self.packed:
            return tensor[:, rows]
        return tensor[rows] if call.offsets is not None else tensor[rows].unsqueeze(0)

    def row_lse(self, lse: Tensor, call: Call) -> Tensor:
        part = lse[..., call.queries]
        return part if not self.packed or call.offsets is not None else part.unsqueeze(0)

    def piece(self, call: Call, heads: slice) -> Piece | None:
        options = self.options
        first = call.sequence * self.heads + self.first_head + heads.start
        if call.offsets is None and call.position_q is not None:
            return Piece(call.position_q, call.position_k, first, self.heads)
        return None if options.dropout_p == 0 else Piece(None, None, first, self.heads)  # whole sequences

    def bias_ranges(self, call: Call, key_start: int, heads: slice) -> tuple[slice, ...]:
        """The part of bias that a call reads. key_start: the token that row 0 of k is."""
        if not self.packed:  # rows as those of q, columns as tokens
            keys = slice(call.keys.start + key_start, call.keys.stop + key_start)
            ranges = slice(None), heads, call.queries, keys
        elif call.offsets is None:
            assert call.position_q is not None and call.position_k is not None
            queries, keys = call.queries.stop - call.queries.start, call.keys.stop - call.keys.start
            ranges = (
                slice(call.sequence, call.sequence + 1),
                heads,
                slice(call.position_q, call.position_q + queries),
                slice(call.position_k, call.position_k + keys),
            )
        else:
            longest = self.longest(call)
            sequences = slice(call.sequence, call.sequence + len(call.offsets) - 1)
            ranges = sequences, heads, slice(0, longest), slice(0, longest)
        shape = self.extras.bias.shape
        return tuple([slice(None) if extent == 1 else part for extent, part in zip(shape, ranges)])

    @staticmethod
    def longest(call: Call) -> int:
        return max(b - a for a, b in zip(call.offsets, call.offsets[1:]))

    def slopes_range(self, call: Call, heads: slice) -> tuple:
        if self.extras.slopes.dim() == 1:
            return (heads,)
        if not self.packed:
            return slice(None), heads
        count = 1 if call.offsets is None else len(call.offsets) - 1
        return slice(call.sequence, call.sequence + count), heads

    def problem(self, call: Call, q: Tensor, k: Tensor, v: Tensor, key_start: int, heads: slice) -> Problem:
        """q, k and v have the heads `heads` of the work's and the rows of the call's spans."""
        o, extras = self.options, self.extras
        q, k, v = self.rows(q, call.queries, call), self.rows(k, call.keys, call), self.rows(v, call.keys, call)
        offsets = None
        if call.offsets is None:
            longest_q, longest_k = q.shape[1], k.shape[1]
        else:
            offsets = torch.tensor(call.offsets, dtype=torch.int32, device=q.device)
            longest_q = longest_k = self.longest(call)
        return Problem(
            q,
            k,
            v,
            cu_seqlens_q=offsets,
            cu_seqlens_k=offsets,
            alibi_slopes=None if extras.slopes is None else extras.slopes[self.slopes_range(call, heads)].contiguous(),
            bias=None if extras.bias is None else extras.bias[self.bias_ranges(call, key_start, heads)],
            rng_state=o.rng_state,
            max_seqlen_q=longest_q,
            max_seqlen_k=longest_k,
            softmax_scale=o.softmax_scale,
            window_left=-1 if o.left is None else o.left,
            window_right=-1 if o.right is None else o.right,
            softcap=o.softcap,
            dropout_p=o.dropout_p,
            deterministic=o.deterministic,
        )

    # Forward ----------------------------------------------------------------------------------------------------------

    def add(
        self,
        own: list[Span],
        q: Tensor,
        there: list[Span],
        k: Tensor,
        v: Tensor,
        heads: slice,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        """Adds what the shard's queries find among the keys of another to out, in float32, and lse."""
        for call in self.calls(own, there):
            problem = self.problem(call, q, k, v, self.key_start(call, there), heads)
            o = self.rows(out, call.queries, call)
            pieces.add(problem, self.piece(call, heads), o, self.row_lse(lse, call))

    def write(
        self,
        own: list[Span],
        q: Tensor,
        there: list[Span],
        k: Tensor,
        v: Tensor,
        heads: slice,
        out: Tensor,
        lse: Tensor,
    ) -> None:
        """Writes what all queries find where no other keys follow: rows of no call see nothing. Sinks are included."""
        sinks = None if self.extras.sinks is None else self.extras.sinks[heads].contiguous()
        out.zero_()
        lse.copy_(torch.full_like(lse, -torch.inf) if sinks is None else sinks[:, None].expand_as(lse))
        for call in self.calls(own, there):
            problem = self.problem(call, q, k, v, self.key_start(call, there), heads)._replace(sinks=sinks)
            o = self.rows(out, call.queries, call)
            pieces.write(problem, self.piece(call, heads), o, self.row_lse(lse, call))

    @staticmethod
    def key_start(call: Call, there: list[Span]) -> int:
        """What to add to a row of k to have its token; of use where a call has keys of one span."""
        span = next(span for span in there if span.row + span.length > call.keys.start)
        return span.start - span.row

    def add_sinks(self, out: Tensor, lse: Tensor, heads: slice) -> None:
        """The last merge: one more weight in each row, of no value."""
        if self.extras.sinks is None:
            return
        whole = torch.logaddexp(lse, self.extras.sinks[heads, None].to(lse.dtype).expand_as(lse))
        share = (lse - whole).exp_().masked_fill_(lse == -torch.inf, 0)
        out.mul_(pieces.rows_of(share))
        lse.copy_(whole)

    # Backward ---------------------------------------------------------------------------------------------------------

    def add_gradients(self, given: Given, there: list[Span], k: Tensor, v: Tensor, heads: slice, sums: Sums) -> None:
        """Adds the gradients that the keys of a shard give. dk and dv of the sums are of these keys."""
        for call in self.calls(given.spans, there):
            key_start = self.key_start(call, there)
            problem = self.problem(call, given.q, k, v, key_start, heads)
            if given.q.is_cpu and torch.get_num_threads() == 1:
                problem = problem._replace(num_splits=1)  # parts of keys, each with sums of dq, are for several threads
            dlse = None if given.dlse is None else self.row_lse(given.dlse, call)
            out, dout = self.rows(given.out, call.queries, call), self.rows(given.dout, call.queries, call)
            dq, dk, dv = (
                None if total is None else self.rows(total, rows, call)
                for total, rows in zip(sums, (call.queries, call.keys, call.keys))
            )
            needs = sums.dslopes is not None, sums.dbias is not None
            given_rows = dout, dlse, out, self.row_lse(given.lse, call)
            dslopes, dbias = pieces.add_gradients(problem, self.piece(call, heads), *given_rows, (dq, dk, dv), needs)
            if dslopes is not None:
                sums.dslopes[self.slopes_range(call, heads)] += dslopes.to(sums.dslopes.dtype)
            if dbias is not None:
                sums.dbias[self.bias_ranges(call, key_start, heads)] += dbias.to(sums.dbias.dtype)

    def sink_gradient(self, given: Given, heads: slice) -> Tensor:
        """- sum of exp(sink - lse) * delta over this process' rows."""
        exact = torch.promote_types(given.out.dtype, torch.float32)
        delta = (given.dout.to(exact) * given.out.to(exact)).sum(-1).transpose(-1, -2)
        if given.dlse is not None:
            delta = delta - given.dlse
        share = (self.extras.sinks[heads, None] - given.lse).exp()
        total = -(share * delta)
        return total.sum([axis for axis in range(total.dim()) if axis != total.dim() - 2])


class Given(NamedTuple):
    """What a backward starts from: of the heads at hand, and of all keys."""

    spans: list[Span]
    q: Tensor
    dout: Tensor
    dlse: Tensor | None
    out: Tensor
    lse: Tensor


class Sums(NamedTuple):
    """Gradients that calls add to, in float32 or more; None where not needed."""

    dq: Tensor | None
    dk: Tensor | None
    dv: Tensor | None
    dslopes: Tensor | None  # of all heads
    dbias: Tensor | None


def head_groups(heads: int, heads_k: int, bytes_of_a_head: int, least_bytes: int) -> list[tuple[slice, slice]]:
    """Heads of q and of k that are exchanged and computed together, as few as are worth a message."""
    group = heads // heads_k
    count = heads_k
    while count > 1 and (heads_k % count or bytes_of_a_head * (heads_k // count) < least_bytes):
        count -= 1
    each = heads_k // count
    return [(slice(g * each * group, (g + 1) * each * group), slice(g * each, (g + 1) * each)) for g in range(count)]


def exact_dtype(q: Tensor) -> torch.dtype:
    return torch.promote_types(q.dtype, torch.float32)

"""Random problems over all features. What no sequence owns is NaN, or an index out of bounds: reading it shows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st

from flashwave.problem import TENSOR_FIELDS, Problem

NAN, INF = float("nan"), float("inf")


class Features(NamedTuple):
    seed: int = 0
    batch: int = 2
    heads: tuple = (4, 2)  # of q, of k
    dims: tuple = (8, 4)  # of q and k, of v
    longest_q: int = 7
    longest_k: int = 11
    packed_q: bool = False
    keys: str = "dense"  # "packed", "self" (packed, q's own offsets), "indexed", "paged"
    page_size: int = 3
    seqused: bool = False
    leftpad: bool = False
    new_keys: int = 0
    rotary: str = ""  # "halves", "pairs"
    causal: bool = False
    window: tuple = (-1, -1)
    softcap: float = 0.0
    bias: str = ""  # which of the axes "bhqk" it tells apart; "1" for none
    slopes: str = ""  # "h", "bh"
    sinks: bool = False
    dropout: float = 0.0
    transposed: bool = False  # heads before rows in memory
    wide: bool = False  # bias and rotary tables in fp32 whatever q is
    shared_pages: bool = False  # all sequences read the pages of the first

    @property
    def differentiable(self) -> bool:
        return self.keys not in ("indexed", "paged") and self.new_keys == 0


@st.composite
def features(draw, backward: bool = False):
    def maybe(values, absent):
        return draw(st.sampled_from([absent, absent, *values]))

    keys = draw(st.sampled_from(["dense", "packed", "self"] if backward else ["dense", "packed", "indexed", "paged"]))
    new_keys = 0 if backward or keys == "packed" else maybe([1, 3], 0)
    return Features(
        seed=draw(st.integers(0, 1 << 30)),
        batch=draw(st.integers(1, 4)),
        heads=draw(st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)])),
        dims=draw(st.sampled_from([(8, 4), (4, 8), (2, 1), (6, 6)])),
        longest_q=draw(st.integers(1, 9)),
        longest_k=draw(st.integers(1, 20)),
        packed_q=keys == "self" or draw(st.booleans()),
        keys=keys,
        page_size=draw(st.sampled_from([1, 3, 4, 16])),
        seqused=new_keys > 0 or maybe([True], False),
        leftpad=maybe([True], False),
        new_keys=new_keys,
        rotary=maybe(["halves", "pairs"], "") if new_keys else "",
        causal=draw(st.booleans()),
        window=maybe([(2, 1), (0, -1), (-1, 3), (5, 0)], (-1, -1)),
        softcap=maybe([1.5], 0.0),
        bias=maybe(["1", "bhqk", "hq", "bk", "qk"], ""),
        slopes=maybe(["h", "bh"], ""),
        sinks=maybe([True], False),
        dropout=maybe([0.3], 0.0),
        transposed=maybe([True], False),
        shared_pages=new_keys == 0 and maybe([True], False),
    )


class _Maker:
    def __init__(self, f: Features, dtype: torch.dtype):
        self.f, self.dtype = f, dtype
        self.generator = torch.Generator().manual_seed(f.seed)

    def normal(self, *shape, dtype=None):
        # Drawn in fp32, so that all types get the same numbers but for rounding.
        x = torch.randn(shape, generator=self.generator, dtype=torch.float32).to(dtype or self.dtype)
        if self.f.transposed and len(shape) == 4:
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        return x

    def integers(self, low, high, count):
        """Of low .. high, both in reach."""
        return torch.randint(low, high + 1, (count,), generator=self.generator)

    def offsets(self, longest):
        counts = self.integers(0, longest, self.f.batch)
        return torch.cat((torch.zeros(1, dtype=torch.long), counts.cumsum(0))).int()


def make(f: Features, dtype: torch.dtype = torch.float64) -> Problem:
    m = _Maker(f, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    (h, hk), (d, dv), b = f.heads, f.dims, f.batch
    fields = {"max_seqlen_q": f.longest_q, "max_seqlen_k": f.longest_k}
    if f.packed_q:
        fields["cu_seqlens_q"] = m.offsets(f.longest_q)
        q = m.normal(int(fields["cu_seqlens_q"][-1]) + 2, h, d)
        q[-2:] = NAN
    else:
        q = m.normal(b, f.longest_q, h, d)
    capacity = f.longest_k + f.new_keys
    k, v, room = _storage(m, fields, capacity)
    # The keys of each sequence, and NaN everywhere else.
    stored = m.integers(0, f.longest_k, b).minimum(room - f.new_keys) if f.seqused else room - f.new_keys
    pad = (stored * torch.rand(b, generator=m.generator)).round().long() if f.leftpad else torch.zeros_like(stored)
    if f.seqused:
        fields["seqused_k"] = stored.int()
    if f.leftpad:
        fields["leftpad_k"] = pad.int()
    problem = Problem(q, k, v, **fields)
    _forget_unused(problem, stored, pad)
    if f.new_keys:
        fields["k_new"], fields["v_new"] = m.normal(b, f.new_keys, hk, d), m.normal(b, f.new_keys, hk, dv)
    if f.rotary:
        turned = [max(f.new_keys, n) for n in _query_counts(problem)]
        positions = int((stored + torch.tensor(turned)).max())  # not one more than is read
        angle = torch.rand(positions, d // 2, generator=m.generator, dtype=torch.float32) * 7
        fields["rotary_cos"], fields["rotary_sin"] = (
            x.to(wide if f.wide else dtype) for x in (angle.cos(), angle.sin())
        )
        fields["rotary_interleaved"] = f.rotary == "pairs"
    if f.bias:
        extents = zip("bhqk", (b, h, problem.max_seqlen_q, problem.max_seqlen_k))
        bias = m.normal(*(n if axis in f.bias else 1 for axis, n in extents), dtype=wide if f.wide else dtype)
        bias[torch.rand(bias.shape, generator=m.generator) < 0.1] = -INF
        for n, (row, queries) in enumerate(zip(bias, _query_counts(problem))):
            if "b" in f.bias and "q" in f.bias:
                row[:, queries:] = NAN
            if "b" in f.bias and "k" in f.bias:
                row[:, :, int(stored[n] + f.new_keys - pad[n]) :] = NAN
        fields["bias"] = bias
    if f.slopes:
        fields["alibi_slopes"] = m.normal(*((h,) if f.slopes == "h" else (b, h)), dtype=wide).abs() / 3
    if f.sinks:
        fields["sinks"] = m.normal(h, dtype=wide)
        fields["sinks"][0] = -INF if f.seed % 3 == 0 else 0.5
    if f.dropout:
        fields["rng_state"] = torch.randint(-(1 << 62), 1 << 62, (2,), generator=m.generator)
        fields["dropout_p"] = f.dropout
    return Problem(
        q,
        k,
        v,
        **fields,
        softmax_scale=0.7 / d**0.5,
        causal=f.causal,
        window_left=f.window[0],
        window_right=f.window[1],
        softcap=f.softcap,
    )


def _query_counts(p: Problem):
    return [p.max_seqlen_q] * p.batch if p.cu_seqlens_q is None else p.cu_seqlens_q.diff().tolist()


def _storage(m: _Maker, fields: dict, capacity: int):
    """k, v and the rows that each sequence has room for."""
    f, (_, hk), (d, dv) = m.f, m.f.heads, m.f.dims
    room = torch.full((f.batch,), capacity)
    if f.keys in ("packed", "self"):
        fields["cu_seqlens_k"] = fields["cu_seqlens_q"] if f.keys == "self" else m.offsets(f.longest_k)
        if f.keys == "self":
            fields["max_seqlen_k"] = f.longest_q + 3
        total = int(fields["cu_seqlens_k"][-1]) + 2
        return m.normal(total, hk, d), m.normal(total, hk, dv), fields["cu_seqlens_k"].diff().long()
    fields["max_seqlen_k"] = capacity
    if f.keys == "paged":
        blocks = -(-capacity // f.page_size)
        pages = f.batch * blocks + 2
        fields["max_seqlen_k"] = blocks * f.page_size
        order = torch.randperm(pages, generator=m.generator)[: f.batch * blocks]
        fields["block_table"] = order.view(f.batch, blocks).int()
        if f.shared_pages:
            fields["block_table"][1:] = fields["block_table"][0]
        if not f.seqused:  # only the lengths count
            fields["cu_seqlens_k"] = m.offsets(f.longest_k) if not f.new_keys else None
            room = fields["cu_seqlens_k"].diff().long()
        return m.normal(pages, f.page_size, hk, d), m.normal(pages, f.page_size, hk, dv), room
    rows = f.batch
    if f.keys == "indexed":
        rows += 1
        fields["cache_batch_idx"] = torch.randperm(rows, generator=m.generator)[: f.batch].int()
    return m.normal(rows, capacity, hk, d), m.normal(rows, capacity, hk, dv), room


def _forget_unused(p: Problem, stored, pad) -> None:
    """NaN for rows of k and v that no sequence uses, and pages that do not exist for unused blocks of the table."""
    used = torch.zeros(p.k.shape[:2] if p.cu_seqlens_k is None or p.block_table is not None else p.k.shape[:1])
    named = torch.zeros(p.block_table.shape) if p.block_table is not None else None
    for b in range(p.batch):
        for row in range(int(pad[b]), int(stored[b])):
            if p.block_table is not None:
                page, slot = divmod(row, p.k.shape[1])
                used[int(p.block_table[b, page]), slot] = 1
            elif p.cu_seqlens_k is not None:
                used[int(p.cu_seqlens_k[b]) + row] = 1
            else:
                used[b if p.cache_batch_idx is None else int(p.cache_batch_idx[b]), row] = 1
        if named is not None:
            last = min(p.max_seqlen_k, int(stored[b]) + (p.max_seqlen_k if p.cu_seqlens_k is None else 0))
            named[b, int(pad[b]) // p.k.shape[1] : -(-last // p.k.shape[1])] = 1
    p.k[used == 0] = NAN
    p.v[used == 0] = NAN
    if named is not None:
        p.block_table[named == 0] = 1 << 20


def to(p: Problem, device=None, dtype=None) -> Problem:
    """A copy elsewhere, or with floating-point tensors in another type. Tensors that are one stay one."""
    copies = {}

    def copy(tensor):
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone().to(device, dtype if tensor.is_floating_point() else None)
        return copies[id(tensor)]

    return p._replace(**{name: copy(getattr(p, name)) for name in TENSOR_FIELDS if getattr(p, name) is not None})

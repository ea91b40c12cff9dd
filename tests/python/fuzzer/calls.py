"""Calls of the attention functions on dense, packed and cached tensors, each with its reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import flashwave

from . import reference
from .world import World

INF = float("inf")


@dataclass
class Call:
    """One call that can be made in several modes. Inputs that are one tensor are one object."""

    name: str
    inputs: list[Tensor]  # floating-point tensors, which have gradients
    run: Callable[..., tuple]  # inputs -> (results to be compared, anything the reference needs of this very run)
    reference: Callable[..., tuple]  # (that thing, *inputs in fp64) -> the results
    notes: list[str] = field(default_factory=list)
    cast: int = 0  # so many inputs, the first ones, are cast by autocast
    differentiable: bool = True
    pure: bool = True  # can be repeated: writes nothing, draws nothing
    learnable_scalar: bool = False  # an input is a scalar, whose gradient may be refused
    must_refuse: str = ""
    may_refuse: tuple[type, ...] = ()
    writes: tuple[Tensor, ...] = ()  # what it changes in place
    quiet_rows: Tensor | None = None  # queries (bool) whose gradient is 0, in axis 1 of out and 2 of lse
    dtype: torch.dtype | None = None  # of the first result, where it is not that of the first input

    def __str__(self) -> str:
        aliases = [[id(y) for y in self.inputs].index(id(x)) for x in self.inputs]
        shapes = ", ".join(f"{'-' * x.is_neg()}{tuple(x.shape)}/{x.stride()}" for x in self.inputs)
        return f"{self.name} {self.inputs[0].dtype} aliases={aliases} [{shapes}] {' '.join(self.notes)}"


# ---------------------------------------------------------------------------------------------------------- arguments


class Options:
    """Arguments that all functions share, as the functions take them and as the reference does."""

    def __init__(self, world: World, b: int, sq: int, sk: int, extras: bool = True, scalars: bool = True) -> None:
        self.world, self.notes, self.inputs, self.names = world, [], [], []
        self.given: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        self.quiet: Tensor | None = None
        self.learnable = False
        rng, heads = world.rng, world.sizes.heads
        if world.simple and rng.random() < 0.8:
            if rng.random() < 0.3:
                self._scalar("softmax_scale", "scale", scalars)
            if rng.random() < 0.5:
                self._set("causal", "causal", True)
            return
        if rng.random() < 0.5:
            self._scalar("softmax_scale", "scale", scalars)
        if rng.random() < 0.4:
            self._set("causal", "causal", True)
        if rng.random() < 0.3:
            self._set("window_size", "window", rng.choice(((2, 1), (0, -1), (-1, 3), (5, 0), (0, 0))))
        if rng.random() < 0.3:
            self._scalar("softcap", "softcap", scalars)
        if rng.random() < 0.15:
            shape = (heads,) if rng.random() < 0.5 else (b, heads)
            exact = torch.float64 if world.dtype == torch.float64 else torch.float32
            slopes = world.normal(*shape, dtype=exact).abs() / 3
            if len(shape) == 2 and b == 1 and rng.random() < 0.3:
                slopes = slopes.reshape(heads, 1).t()  # contiguous, with a stride of its own
            if rng.random() < 0.05:
                slopes = torch._neg_view(-slopes)
            self._input("alibi_slopes", "slopes", slopes)
        if extras and rng.random() < 0.3:
            self._bias(b, heads, sq, sk)
        if extras and rng.random() < 0.15:
            self._input("sinks", "sinks", world.normal(heads, dtype=torch.float32))

    def _set(self, name: str, known: str, value: Any) -> None:
        self.given[name] = self.known[known] = value
        self.notes.append(f"{name}={value}")

    def _input(self, name: str, known: str, value: Tensor) -> None:
        self.inputs.append(value)
        self.names.append((name, known))
        self.notes.append(f"{name}={tuple(value.shape)}/{value.dtype}")

    def _scalar(self, name: str, known: str, tensors: bool) -> None:
        rng = self.world.rng
        kind = rng.choice(("float", "float", "numpy", "tensor", "tensor", "learnable")) if tensors else "float"
        if kind in ("float", "numpy"):
            value = rng.choice((0.25, 0.5, 1.0, rng.uniform(0.05, 1.5)))
            self.given[name], self.known[known] = (np.float64(value) if kind == "numpy" else value), value
        else:
            scalar = rng.choice(self.world.scalars)
            if kind == "learnable" and not self.learnable:
                self.learnable = True
                self._input(name, known, scalar)
                return
            self.given[name], self.known[known] = scalar, scalar.item()
        self.notes.append(f"{name}={kind} {self.known[known]:.4f}")

    def _bias(self, b: int, heads: int, sq: int, sk: int) -> None:
        world, rng = self.world, self.world.rng
        shape = rng.choice(((b, heads, sq, sk), (1, heads, sq, sk), (sq, sk), (heads, 1, sk), (b, 1, sq, 1)))
        dtype = rng.choice((world.dtype, torch.float64 if world.dtype == torch.float64 else torch.float32))
        bias = world.normal(*shape, dtype=dtype)
        kind = rng.choice(("", "", "-inf", "least", "-1e30", "transposed"))
        if dtype == torch.float16 and kind in ("least", "-1e30"):
            kind = "-inf"  # its least number, -65504, leaves so much of a score in fp32 that it does not hide it
        if kind == "-inf":
            generator = torch.Generator().manual_seed(rng.getrandbits(32))
            bias = bias.masked_fill(torch.rand(shape, generator=generator, dtype=torch.float32) < 0.2, -INF)
        elif kind == "transposed":
            bias = bias.transpose(-1, -2).contiguous().transpose(-1, -2)
        elif kind and shape[-2] == sq and shape[-1] == sk and sq > 0:  # some rows see masked keys only
            self.quiet = torch.tensor([rng.random() < 0.4 for _ in range(sq)])
            least = torch.finfo(torch.float32 if dtype == torch.float64 else dtype).min
            bias[..., self.quiet, :] = least if kind == "least" else -1e30
        self.notes.append(f"bias:{kind}")
        self._input("bias", "bias", bias)

    def split(self, arguments: tuple) -> tuple[tuple, dict, dict]:
        """Inputs of a call -> (the leading ones, keywords of the function, keywords of the reference)."""
        count = len(arguments) - len(self.names)
        extra = arguments[count:]
        given = {**self.given, **{name: x for (name, _), x in zip(self.names, extra)}}
        known = {**self.known, **{known: x for (_, known), x in zip(self.names, extra)}}
        return arguments[:count], given, known


def indices(world: World, values: list, name: str) -> tuple[Tensor, str]:
    """Lengths, offsets or a table as an index tensor of some kind, and why it must be refused if it must."""
    rng = world.rng
    exact = torch.tensor(values, dtype=torch.int64)
    kind = rng.choices(("int32", "int64", "int16", "strided", "float", "wrapped"), (10, 4, 1, 2, 0.7, 0.7))[0]
    if kind == "float":
        return exact.to(torch.float32) + rng.choice((0.0, 0.5)), f"{name} is a float tensor"
    if kind == "wrapped":
        return exact + (1 << 32), f"{name} is beyond int32"
    if kind == "strided":
        return torch.stack((exact, exact + 1), -1).int()[..., 0], ""
    return world.buffer(f"{name} {kind}", exact.to(getattr(torch, kind))), ""


# -------------------------------------------------------------------------------------------------------------- dense


def as_flash_attn(lse: Tensor) -> Tensor:
    return torch.where(lse == -INF, INF, lse)


def dense(world: World) -> Call:
    rng, n = world.rng, world.sizes
    name = rng.choice(
        ("flash_attn_func",) * 4 + ("attention", "attention", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func")
    )
    queries = n.keys if name == "flash_attn_qkvpacked_func" else n.queries
    heads_k = n.heads if name == "flash_attn_qkvpacked_func" else n.heads_k
    if name == "flash_attn_qkvpacked_func":
        first = [world.tensor(n.batch, n.keys, 3, n.heads, n.dim)]
    elif name == "flash_attn_kvpacked_func":
        first = [world.tensor(n.batch, queries, n.heads, n.dim), world.tensor(n.batch, n.keys, 2, heads_k, n.dim)]
    else:
        first = [
            world.tensor(n.batch, queries, n.heads, n.dim),
            world.tensor(n.batch, n.keys, heads_k, n.dim),
            world.tensor(n.batch, n.keys, heads_k, n.dim_v),
        ]
    options = Options(world, n.batch, queries, n.keys)
    function = getattr(flashwave, name)
    mine = name == "attention"
    wants_lse, dropout = rng.random() < 0.4, rng.choice((0.0, 0.0, 0.0, 0.0, 0.3))
    if world.simple and rng.random() < 0.7:
        wants_lse, dropout = False, 0.0
    out = None
    if not dropout and not wants_lse and rng.random() < 0.15:
        width = n.dim_v if len(first) == 3 else n.dim
        out = world.normal(n.batch, queries, n.heads, width)
    if mine and "window_size" in options.given:
        options.given["window"] = options.given.pop("window_size")
    rng_state = torch.tensor([rng.getrandbits(40), rng.getrandbits(20)])
    seed = rng.getrandbits(30)

    def run(*arguments: Tensor) -> tuple:
        leading, given, _ = options.split(arguments)
        if dropout:
            torch.manual_seed(seed)
            if mine:
                return _three(function(*leading, rng_state=rng_state, dropout_p=dropout, return_lse=True,
                                       return_probs=True, **given))  # fmt: skip
            return _three(function(*leading, dropout, return_attn_probs=True, **given))
        if out is not None:
            given["out"] = out
        result = function(*leading, return_lse=wants_lse, **given)
        return (tuple(result) if wants_lse else (result,)), None

    def expected(probs: Tensor | None, *arguments: Tensor) -> tuple:
        leading, _, known = options.split(arguments)
        q, k, v = unpacked(leading)
        some = probs is not None and probs.numel() > 0
        weights = (~torch.signbit(probs)).to(q.dtype) / (1 - dropout) if some else None
        result = reference.attention(q, k, v, weights=weights, **known)
        lse = result.lse if mine else as_flash_attn(result.lse)
        return (result.out, lse) if wants_lse or dropout else (result.out,)

    call = Call(name, first + options.inputs, run, expected, options.notes, cast=len(first))
    call.learnable_scalar, call.quiet_rows = options.learnable, options.quiet
    if dropout:
        call.notes.append("dropout")
        call.pure = False
    if wants_lse:
        call.notes.append("lse")
    if out is not None:
        call.notes.append("out=")
        call.writes, call.pure, call.differentiable = (out,), False, False
    return call


def _three(results: tuple) -> tuple:
    out, lse, probs = results
    return (out, lse), probs.detach()


def unpacked(leading: tuple) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of (q, k, v), of (q, kv) or of (qkv,): packed along the third last axis."""
    if len(leading) == 3:
        return leading
    if len(leading) == 2:
        return (leading[0], *leading[1].unbind(-3))
    return tuple(leading[0].unbind(-3))


# ------------------------------------------------------------------------------------------------------------- packed


def packed(world: World) -> Call:
    rng, n = world.rng, world.sizes
    name = rng.choice(
        ("flash_attn_varlen_func",) * 3
        + ("attention", "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func")
        + ("flash_attn_unpadded_func", "flash_attn_unpadded_qkvpacked_func")
    )
    batch, legacy, mine = max(1, n.batch), "unpadded" in name, name == "attention"
    lengths_q = [world.pick.randint(0, n.queries + 1) for _ in range(batch)]
    lengths_k = [world.pick.randint(0, n.keys + 1) for _ in range(batch)]
    total = batch * (max(n.queries, n.keys) + 1)  # the same for q, k and v: rows of no sequence are left over
    if "qkvpacked" in name:
        lengths_k = lengths_q
        first = [world.tensor(total, 3, n.heads, n.dim)]
    elif "kvpacked" in name:
        first = [world.tensor(total, n.heads, n.dim), world.tensor(total, 2, n.heads_k, n.dim)]
    else:
        first = [world.tensor(total, h, d) for h, d in ((n.heads, n.dim), (n.heads_k, n.dim), (n.heads_k, n.dim_v))]
    options = Options(world, batch, 0, 0, extras=False, scalars=not legacy)
    if legacy:
        for unknown in ("window_size", "softcap", "alibi_slopes"):
            options.given.pop(unknown, None)
        options.known = {key: options.known[key] for key in ("scale", "causal") if key in options.known}
        options.inputs, options.names, options.notes = [], [], [f"{options.known}"]
    if mine and "window_size" in options.given:
        options.given["window"] = options.given.pop("window_size")
    cu_q, refused = indices(world, _offsets(lengths_q), "cu_seqlens_q")
    same = lengths_q == lengths_k
    cu_k, refused_k = (cu_q, "") if same else indices(world, _offsets(lengths_k), "cu_seqlens_k")
    longest = (max(lengths_q), max(lengths_k))
    wants_lse = not legacy and rng.random() < 0.4
    function = getattr(flashwave, name)

    def run(*arguments: Tensor) -> tuple:
        leading, given, _ = options.split(arguments)
        if legacy:
            lengths = (cu_q, longest[0]) if len(leading) == 1 else (cu_q, cu_k, *longest)
            return (_owned(function(*leading, *lengths, 0.0, **given), lengths_q),), None
        if mine:
            given.update(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=longest[0], max_seqlen_k=longest[1])
            result = function(*leading, return_lse=wants_lse, **given)
        else:
            lengths = (cu_q, longest[0]) if len(leading) == 1 else (cu_q, cu_k, *longest)
            result = function(*leading, *lengths, return_lse=wants_lse, **given)
        if not wants_lse:
            return (_owned(result, lengths_q),), None
        return (_owned(result[0], lengths_q), result[1][:, : sum(lengths_q)]), None

    def expected(_: None, *arguments: Tensor) -> tuple:
        leading, _, known = options.split(arguments)
        q, k, v = unpacked(leading)
        outs, lses, at_q, at_k = [], [], 0, 0
        slopes = known.pop("slopes", None)
        for b, (count_q, count_k) in enumerate(zip(lengths_q, lengths_k)):
            one = slopes[b : b + 1] if slopes is not None and slopes.dim() == 2 else slopes
            rows = (q[None, at_q : at_q + count_q], k[None, at_k : at_k + count_k], v[None, at_k : at_k + count_k])
            if legacy and known.get("causal") and not same:  # flash-attn 1.x: query i sees keys 0 .. i
                hidden = torch.ones(count_q, count_k).triu(1).bool()
                top_left = torch.zeros(count_q, count_k, dtype=q.dtype).masked_fill(hidden, -INF)
                result = reference.attention(*rows, scale=known.get("scale"), bias=top_left)
            else:
                result = reference.attention(*rows, slopes=one, **known)
            outs.append(result.out[0])
            lses.append(result.lse[0])
            at_q, at_k = at_q + count_q, at_k + count_k
        lse = torch.cat(lses, 1)
        lse = lse if mine else as_flash_attn(lse)
        return (torch.cat(outs), lse) if wants_lse else (torch.cat(outs),)

    notes = [*options.notes, f"lengths {lengths_q} {lengths_k} {cu_q.dtype}/{cu_k.dtype}"]
    call = Call(name, first + options.inputs, run, expected, notes, cast=len(first))
    call.learnable_scalar, call.must_refuse = options.learnable, refused or refused_k
    return call


def _offsets(lengths: list[int]) -> list[int]:
    return [sum(lengths[:b]) for b in range(len(lengths) + 1)]


def _owned(rows: Tensor, lengths: list[int]) -> Tensor:
    return rows[: sum(lengths)]


# -------------------------------------------------------------------------------------------------------------- cache


def cached(world: World) -> Call:
    """flash_attn_with_kvcache: dense, by row, or paged; with an append, rotary, left padding."""
    rng, n = world.rng, world.sizes
    batch, queries = max(1, n.batch), max(1, n.queries)
    new = rng.choice((0, 0, 1, 3))
    room = n.keys + 4
    kind = rng.choice(("dense", "dense", "rows", "paged"))
    page = rng.choice((1, 3, 4, 16))
    blocks = math.ceil(room / page)
    rows, length = {"dense": (batch, room), "rows": (batch + 2, room), "paged": (batch * blocks + 1, page)}[kind]
    writable = ("plain", "heads first", "sliced rows", "sliced dim", "offset", "packed")
    layouts = {"layouts": writable} if new else {}
    k_cache = world.tensor(rows, length, n.heads_k, n.dim, **layouts)
    v_cache = world.tensor(rows, length, n.heads_k, n.dim_v, **layouts)
    q = world.tensor(batch, queries, n.heads, n.dim)
    k_new = world.tensor(batch, new, n.heads_k, n.dim) if new else None
    v_new = world.tensor(batch, new, n.heads_k, n.dim_v) if new else None
    if new:  # what is written may share memory with nothing else
        k_cache = _writable(k_cache, (q, k_new, v_new))
        v_cache = _writable(v_cache, (q, k_new, v_new, k_cache))
    stored = [world.pick.randint(0, n.keys) for _ in range(batch)]
    given: dict[str, Any] = {}
    seqlens, refused = indices(world, stored, "cache_seqlens")
    if new == 0 and rng.random() < 0.1:
        stored, seqlens, refused = [room if kind != "paged" else blocks * page] * batch, None, ""
    elif rng.random() < 0.1:
        stored, refused = [stored[0]] * batch, ""
        seqlens = stored[0]
    given["cache_seqlens"] = seqlens
    pads = [0] * batch
    if rng.random() < 0.2:
        pads = [world.pick.randint(0, s) for s in stored]
        given["cache_leftpad"], wrong = indices(world, pads, "cache_leftpad")
        refused = refused or wrong
        if not refused and isinstance(seqlens, Tensor) and rng.random() < 0.3:
            given["cache_leftpad"], pads = seqlens, stored
    places = list(range(rows))
    world.pick.shuffle(places)
    if kind == "rows":
        given["cache_batch_idx"], wrong = indices(world, places[:batch], "cache_batch_idx")
        refused = refused or wrong
    if kind == "paged":
        table = [places[b * blocks : (b + 1) * blocks] for b in range(batch)]
        given["block_table"], wrong = indices(world, table, "block_table")
        refused = refused or wrong
    turned = new > 0 and n.dim >= 2 and rng.random() < 0.4
    if turned:
        pairs = rng.randint(1, n.dim // 2)
        angles = world.normal(room + queries + 8, pairs, dtype=torch.float32)
        cos, sin = angles.cos().to(world.dtype), angles.sin().to(world.dtype)
        if rng.random() < 0.1:
            sin = cos
        given.update(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=rng.random() < 0.5)
    options = Options(world, batch, queries, 0, extras=False)
    if rng.random() < 0.15:
        options._input("sinks", "sinks", world.normal(n.heads, dtype=torch.float32))
    wants_lse = rng.random() < 0.4

    def run(q: Tensor, k_cache: Tensor, v_cache: Tensor, *extra: Tensor) -> tuple:
        appended, (_, arguments, _) = extra[: 2 if new else 0], options.split(extra)
        result = flashwave.flash_attn_with_kvcache(
            q, k_cache, v_cache, *appended, return_softmax_lse=wants_lse, **given, **arguments
        )
        results = tuple(result) if wants_lse else (result,)
        return (*results, k_cache.clone(), v_cache.clone()), None

    def expected(_: None, q: Tensor, k_cache: Tensor, v_cache: Tensor, *extra: Tensor) -> tuple:
        appended, (_, _, known) = extra[: 2 if new else 0], options.split(extra)
        k_all, v_all = k_cache.clone(), v_cache.clone()
        slopes, outs, lses = known.pop("slopes", None), [], []
        moving = known.get("causal", False) or max(known.get("window", (-1, -1))) >= 0
        for b in range(batch):
            if kind == "paged":
                flat_k, flat_v = (torch.cat([x[p] for p in table[b]]) for x in (k_all, v_all))
            else:
                row = b if kind == "dense" else places[b]
                flat_k, flat_v = k_all[row].clone(), v_all[row].clone()
            query = q[b : b + 1]
            if new:
                at = torch.arange(stored[b], stored[b] + new)
                key, value = appended[0][b : b + 1], appended[1][b : b + 1]
                if turned:
                    tables = (given["rotary_cos"].double(), given["rotary_sin"].double())
                    key = reference.rotated(key, *tables, at[None], given["rotary_interleaved"])
                    steps = torch.arange(queries) if moving else torch.zeros(queries, dtype=torch.long)
                    query = reference.rotated(query, *tables, (stored[b] + steps)[None], given["rotary_interleaved"])
                flat_k[at], flat_v[at] = key[0], value[0]
                for where, x in ((k_all, flat_k), (v_all, flat_v)):
                    if kind == "paged":
                        for index, p in enumerate(table[b]):
                            part = x[index * page : (index + 1) * page]
                            where[p, : len(part)] = part
                    else:
                        where[row] = x
            used = slice(pads[b], stored[b] + new)
            one = slopes[b : b + 1] if slopes is not None and slopes.dim() == 2 else slopes
            result = reference.attention(query, flat_k[None, used], flat_v[None, used], slopes=one, **known)
            outs.append(result.out)
            lses.append(result.lse)
        results = (torch.cat(outs), as_flash_attn(torch.cat(lses))) if wants_lse else (torch.cat(outs),)
        return (*results, k_all, v_all)

    inputs = [q, k_cache, v_cache, *([k_new, v_new] if new else []), *options.inputs]
    notes = [kind, f"stored={stored} pads={pads} new={new} page={page} rotary={turned}", *options.notes]
    call = Call("flash_attn_with_kvcache", inputs, run, expected, notes, differentiable=False)
    call.pure, call.must_refuse = new == 0, refused
    call.writes = (k_cache, v_cache) if new else ()
    return call


def _writable(cache: Tensor, others: tuple[Tensor, ...]) -> Tensor:
    """The cache, or a copy where its elements share memory, or where it is one of the others."""
    shared = any(size > 1 and stride == 0 for size, stride in zip(cache.shape, cache.stride()))
    return cache.clone() if shared or cache.is_neg() or any(cache is x for x in others) else cache

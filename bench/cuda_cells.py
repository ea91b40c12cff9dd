"""The problems of cuda_vs_sdpa.py: their tensors, the calls that compute them, and checks of what ours compute."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import torch
from cuda_peers import (
    FLASH2,
    FLASH3,
    Options,
    cudnn_backward,
    flash2_backward,
    flash3_is_here,
    flash_backwards,
    flash_forwards,
    sdpa,
)

import flashwave
from flashwave import dispatch, flash_attn_func, flash_attn_with_kvcache
from flashwave.attention import make_problem
from flashwave.backends.native import calls as native
from flashwave.bench.timing import Call
from flashwave.bench.verify import WrongResult, check
from flashwave.bench.workloads import BACKWARD, FORWARD, Inputs, Shape

Tensor = torch.Tensor

OURS = "flashwave"
_CACHE_BYTES = 600 << 20  # of tensors that take turns: ten times the second-level cache


class Cell(NamedTuple):
    """One comparison. Every call list computes the same numbers; `amount` is what one call does."""

    group: str
    name: str
    amount: float
    unit: str  # of amount per second
    calls: dict[str, Sequence[Call]]
    check: Callable[[], None]
    repeats: int = 1  # of all the calls in a graph


def _under(variable: str, value: str, call: Call) -> Call:
    """The call with a variable of the environment set."""

    def under() -> Tensor:
        os.environ[variable] = value
        try:
            return call()
        finally:
            del os.environ[variable]

    return under


def repeats_of(flops: float) -> int:
    """In a graph: about 2 ms of work at 500 TFLOP/s."""
    return max(1, round(2e-3 / (flops / 500e12)))


def expect_within(name: str, out: Tensor, reference: Tensor, naive: Tensor, floor: float = 0.0) -> None:
    """The rule of docs/numerics.md for O."""
    error, allowed = (out.double() - reference).abs().max(), 2 * (naive - reference).abs().max() + floor
    if not error <= allowed:
        raise WrongResult(f"{name}: off by {float(error):.3g}, {float(allowed):.3g} is allowed")


def half_unit(reference: Tensor, dtype: torch.dtype) -> float:
    """In the last place of the largest number: what the exact result loses when it is stored."""
    return torch.finfo(dtype).eps / 2 * 2.0 ** math.floor(math.log2(float(reference.abs().max())))


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype)


# ------------------------------------------------------------------------------------------------------------- prefill

_HIDDEN, _TOKENS = 2048, 16384


def _drawn(seqlen: int, dim: int, causal: bool, dtype: torch.dtype, tensors: int) -> tuple[Shape, list[Tensor]]:
    shape = Shape(_TOKENS // seqlen, seqlen, _HIDDEN // dim, dim, causal)
    size = (shape.batch, seqlen, shape.heads, dim)
    return shape, [normal(size, dtype, seed) for seed in range(tensors)]


def prefill(seqlen: int, dim: int, causal: bool, dtype: torch.dtype) -> Cell:
    shape, (q, k, v) = _drawn(seqlen, dim, causal, dtype, 3)
    mask = "causal" if causal else "full"
    return Cell(
        f"prefill {mask}",
        f"d={dim} s={seqlen} b={shape.batch} {mask}",
        shape.flops(FORWARD) / 1e12,
        "TFLOP/s",
        {
            OURS: [lambda: flash_attn_func(q, k, v, causal=causal)],
            "cuDNN": [sdpa("cuDNN", q, k, v, causal)],
            FLASH2: [sdpa(FLASH2, q, k, v, causal)],
            **flash_forwards(q, k, v, Options(causal)),
        },
        lambda: check(shape, Inputs(q, k, v, q), gradients=False),
        repeats=repeats_of(shape.flops(FORWARD)),
    )


def growing(causal: bool, dtype: torch.dtype, classic: str | None) -> Cell:
    """Keys that grow sixteenfold along the sequence, so that a row's largest score keeps moving."""
    shape = Shape(2, 8192, 16, 128, causal)
    size = (shape.batch, shape.seqlen, shape.heads, shape.dim)
    q, k, v = (normal(size, dtype, seed) for seed in range(3))
    level = k
    k = (k.float() * torch.linspace(1, 16, shape.seqlen, device="cuda")[None, :, None, None]).to(dtype)

    def ours() -> Tensor:
        return flash_attn_func(q, k, v, causal=causal)

    calls = {
        OURS: [ours],
        "flashwave, keys that do not grow": [lambda: flash_attn_func(q, level, v, causal=causal)],
        "cuDNN": [sdpa("cuDNN", q, k, v, causal)],
        FLASH2: [sdpa(FLASH2, q, k, v, causal)],
    }
    if classic:
        calls[f"flashwave, {classic}"] = [_under("FLASHWAVE_FORCE_KERNEL", classic, ours)]
    mask = "causal" if causal else "full"
    name = f"growing keys d={shape.dim} s={shape.seqlen} b={shape.batch} {mask}"
    inputs = Inputs(q, k, v, q)
    return Cell(
        "growing", name, shape.flops(FORWARD) / 1e12, "TFLOP/s", calls, lambda: check(shape, inputs, gradients=False)
    )


# ----------------------------------------------------------------------------------------------------------- modifiers

_SOFTCAP, _SCORES_OF = 30.0, 4.0  # q is drawn so large that scores come near the cap


def _check_capped(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, call: Callable[[], Tensor]) -> None:
    """The first and the last head of a sequence in fp64, by the rule of docs/numerics.md."""
    out = call()
    for head in (0, q.shape[2] - 1):
        results = []
        for dtype in (torch.float64, q.dtype):
            q_, k_, v_ = (x[-1, :, head].to(dtype) for x in (q, k, v))
            scores = _SOFTCAP * torch.tanh(q_ @ k_.T * _scale(q) / _SOFTCAP)
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
            results.append(
                (torch.softmax(scores if dtype == torch.float64 else scores.float(), -1).to(dtype) @ v_).double()
            )
        expect_within(name, out[-1, :, head], *results)


def softcap(seqlen: int, dim: int, causal: bool, dtype: torch.dtype) -> Cell:
    shape, (q, k, v) = _drawn(seqlen, dim, causal, dtype, 3)
    q = q * _SCORES_OF
    mask = "causal" if causal else "full"
    name = f"d={dim} s={seqlen} b={shape.batch} {mask} softcap"

    def ours() -> Tensor:
        return flash_attn_func(q, k, v, causal=causal, softcap=_SOFTCAP)

    calls: dict[str, Sequence[Call]] = {OURS: [ours]}
    calls["flashwave, no softcap"] = [lambda: flash_attn_func(q, k, v, causal=causal)]
    calls.update(flash_forwards(q, k, v, Options(causal, softcap=_SOFTCAP)))
    right = lambda: _check_capped(name, q, k, v, causal, ours)  # noqa: E731
    flops = shape.flops(FORWARD)
    return Cell("softcap", name, flops / 1e12, "TFLOP/s", calls, right, repeats=repeats_of(flops))


# ------------------------------------------------------------------------------------------------------------ backward


def backward_alone(seqlen: int, dim: int, causal: bool, dtype: torch.dtype, deterministic: bool = False) -> Cell:
    """The backward alone. Deterministic: the same bits in every run, of the peers FlashAttention-3 and 4 offer it."""
    shape, (q, k, v, dout) = _drawn(seqlen, dim, causal, dtype, 4)
    problem = make_problem(q, k, v, causal=causal, deterministic=deterministic)
    out, lse, _ = dispatch.forward(problem)
    arguments = problem, dout, None, out, lse, native.DQ_DK_DV
    calls = {OURS: [lambda: dispatch.backward(*arguments)]}
    if not deterministic:
        calls["cuDNN"] = [cudnn_backward(q, k, v, dout, causal)]
        calls[FLASH2] = [flash2_backward(q, k, v, dout, causal)]
    calls.update(flash_backwards(q, k, v, dout, Options(causal, deterministic=deterministic)))
    mask = "causal" if causal else "full"
    group = "deterministic backward" if deterministic else "backward"

    def right() -> None:
        check(shape, Inputs(q, k, v, dout), gradients=True)

    return Cell(
        f"{group} {mask}",
        f"d={dim} s={seqlen} b={shape.batch} {mask} {group}",
        shape.flops(BACKWARD) / 1e12,
        "TFLOP/s",
        calls,
        _under("FLASH_ATTENTION_INTERNAL_DETERMINISTIC", "1", right) if deterministic else right,  # type: ignore[arg-type]
        repeats=repeats_of(shape.flops(BACKWARD)),
    )


# -------------------------------------------------------------------------------------------------------------- triton


def _on_triton(call: Call) -> Call:
    def on_triton() -> object:
        with flashwave.backend("triton"):
            return call()

    return on_triton


def triton(seqlen: int, dim: int, causal: bool, backward: bool, dtype: torch.dtype) -> Cell:
    """The package's Triton kernels, whatever the rules would choose, and torch's FlashAttention-2."""
    shape, (q, k, v, dout) = _drawn(seqlen, dim, causal, dtype, 4)
    direction, mask = BACKWARD if backward else FORWARD, "causal" if causal else "full"
    if backward:
        problem = make_problem(q, k, v, causal=causal)
        with flashwave.backend("triton"):
            out, lse, _ = dispatch.forward(problem)
        arguments = problem, dout, None, out, lse, native.DQ_DK_DV
        calls = {
            OURS: [_on_triton(lambda: dispatch.backward(*arguments))],
            FLASH2: [flash2_backward(q, k, v, dout, causal)],
        }
    else:
        calls = {
            OURS: [_on_triton(lambda: flash_attn_func(q, k, v, causal=causal))],
            FLASH2: [sdpa(FLASH2, q, k, v, causal)],
        }
    return Cell(
        f"triton {direction} {mask}",
        f"d={dim} s={seqlen} b={shape.batch} {mask} {direction}",
        shape.flops(direction) / 1e12,
        "TFLOP/s",
        calls,
        _on_triton(lambda: check(shape, Inputs(q, k, v, dout), gradients=backward)),  # type: ignore[arg-type]
        repeats=max(1, round(2e-3 / (shape.flops(direction) / 400e12))),
    )


# -------------------------------------------------------------------------------------------------------------- decode

_HEADS, _HEADS_K, _DIM = 32, 8, 128


class _Cache(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    lengths: Optional[Tensor]
    table: Optional[Tensor]

    def keys(self, sequence: int) -> tuple[Tensor, Tensor]:
        """k and v of a sequence, as (keys, heads, dim)."""
        k, v = self.k, self.v
        if self.table is not None:
            pages = self.table[sequence].long()
            k, v = k[pages].flatten(0, 1), v[pages].flatten(0, 1)
        else:
            k, v = k[sequence], v[sequence]
        used = k.shape[0] if self.lengths is None else int(self.lengths[sequence])
        return k[:used], v[:used]


def _check_decode(name: str, cache: _Cache, attend: Callable[[_Cache], Tensor]) -> None:
    """The first and the last sequence in fp64, by the rule of docs/numerics.md; everything must be written."""
    blocks = [torch.full_like(cache.q, torch.nan) for _ in range(4)]
    torch.cuda.synchronize()
    del blocks  # torch hands the same memory out again
    out = attend(cache)
    if not bool(out.isfinite().all()):
        raise WrongResult(f"{name}: elements that are not finite, or not written")
    for sequence in (0, cache.q.shape[0] - 1):
        k, v = cache.keys(sequence)
        results = []
        for dtype in (torch.float64, cache.q.dtype):
            exact = dtype == torch.float64
            q_ = cache.q[sequence].to(dtype).transpose(0, 1)  # heads, queries, dim
            k_, v_ = (x.to(dtype).transpose(0, 1).repeat_interleave(q_.shape[0] // x.shape[1], 0) for x in (k, v))
            scores = q_ @ k_.transpose(1, 2) * _scale(q_)
            probs = torch.softmax(scores if exact else scores.float(), -1).to(dtype)
            results.append((probs @ v_).transpose(0, 1).double())
        reference, naive = results
        expect_within(name, out[sequence], reference, naive, half_unit(reference, cache.q.dtype))


def _scale(q: Tensor) -> float:
    return q.shape[-1] ** -0.5


def _attend(cache: _Cache) -> Tensor:
    return flash_attn_with_kvcache(cache.q, cache.k, cache.v, cache_seqlens=cache.lengths, block_table=cache.table)


def _one_cache(batch: int, keys: int, queries: int, page: int, lengths: list[int] | None, seed: int) -> _Cache:
    dtype = torch.bfloat16
    q = normal((batch, queries, _HEADS, _DIM), dtype, seed)
    table, rows = None, (batch, keys)
    if page:
        blocks = -(-keys // page)
        table = torch.randperm(batch * blocks, device="cuda").reshape(batch, blocks).int()
        rows = (batch * blocks, page)
    k, v = (normal((*rows, _HEADS_K, _DIM), dtype, seed + part) for part in (1, 2))
    if lengths is None and page:
        lengths = [keys] * batch
    used = None if lengths is None else torch.tensor(lengths, dtype=torch.int32, device="cuda")
    return _Cache(q, k, v, used, table)


def _flash3_cached(cache: _Cache) -> Call:
    options = {"seqused_k": cache.lengths, "page_table": cache.table, "num_splits": 0}  # 0: as many as it finds best
    return lambda: torch.ops.flash_attn_3.fwd(cache.q, cache.k, cache.v, **options)


def decode(batch: int, keys: int, queries: int = 1, page: int = 0, lengths: list[int] | None = None) -> Cell:
    """bf16, 32 heads on 8, dim 128. The amount is the keys and values that are read."""
    total = batch * keys if lengths is None else sum(lengths)
    amount = 2.0 * 2 * total * _HEADS_K * _DIM
    copies = max(2, math.ceil(_CACHE_BYTES / amount))
    caches = [_one_cache(batch, keys, queries, page, lengths, 10 * copy) for copy in range(copies)]
    group = "ragged" if lengths else "pages" if page else "decode" if queries == 1 else "few queries"
    if queries > _FEW_QUERIES:
        group = "chunks"
    name = f"b={batch} keys={keys}" + (f" queries={queries}" if queries > 1 else "") + (f" page={page}" if page else "")
    if lengths:
        name = f"b={batch} keys={min(lengths)}..{max(lengths)}"
    calls: dict[str, Sequence[Call]] = {OURS: [lambda cache=cache: _attend(cache) for cache in caches]}
    if page and queries == 1:  # whose lengths are read from memory, as those of the second peer
        dense = [_one_cache(batch, keys, queries, 0, None, 10 * copy) for copy in range(copies)]
        calls["flashwave, dense"] = [lambda cache=cache: _attend(cache) for cache in dense]
        used = caches[0].lengths
        with_lengths = [cache._replace(lengths=used) for cache in dense]
        calls["flashwave, dense, with lengths"] = [lambda cache=cache: _attend(cache) for cache in with_lengths]
    if flash3_is_here():
        calls[FLASH3] = [_flash3_cached(cache) for cache in caches]
    if not page and not lengths:
        for backend in ("cuDNN", FLASH2):
            calls[backend] = [sdpa(backend, cache.q, cache.k, cache.v) for cache in caches]
    return Cell(group, name, amount / 1e9, "GB/s", calls, lambda: _check_decode(name, caches[0], _attend))


# ---------------------------------------------------------------------------------------------------------------- tiny


def tiny(batch: int, heads: int, heads_k: int, keys: int, dim: int) -> Cell:
    """One query on a few keys, fp16: as many bytes as a copy of q, k, v into o moves."""
    dtype = torch.float16
    q = normal((batch, 1, heads, dim), dtype, 0)
    k, v = (normal((batch, keys, heads_k, dim), dtype, seed) for seed in (1, 2))
    amount = 2.0 * (2 * q.numel() + 2 * k.numel())
    cache = _Cache(q, k, v, None, None)
    name = f"b={batch} heads={heads}/{heads_k} keys={keys} d={dim}"

    def attend(cache: _Cache) -> Tensor:
        return flash_attn_func(cache.q, cache.k, cache.v)

    calls = {OURS: [lambda: attend(cache)], "math": [sdpa("math", q, k, v)], "cuDNN": [sdpa("cuDNN", q, k, v)]}
    return Cell("tiny", name, amount / 1e9, "GB/s", calls, lambda: _check_decode(name, cache, attend), repeats=2)


# --------------------------------------------------------------------------------------------------------------- lists

GROUPS = ("prefill", "growing", "backward", "deterministic", "triton", "decode", "chunks", "softcap", "tiny")
_FEW_QUERIES = 8
_RAGGED = [100 + (16284 * n) // 63 for n in range(64)]
_PREFILL = [512, 1024, 2048, 4096, 8192, 16384]


def cells(groups: Sequence[str], quick: bool, dtype: torch.dtype, classic: str | None) -> list[Callable[[], Cell]]:
    """What makes each cell; its tensors exist from then on."""
    todo: dict[str, list[Callable[[], Cell]]] = {group: [] for group in GROUPS}
    for causal in (False, True):
        for dim in (64, 128, 256):
            for seqlen in (2048, 16384) if quick else _PREFILL:
                todo["prefill"].append(lambda s=seqlen, d=dim, c=causal: prefill(s, d, c, dtype))
                todo["backward"].append(lambda s=seqlen, d=dim, c=causal: backward_alone(s, d, c, dtype))
            for seqlen in (16384,) if quick else (2048, 8192):
                todo["softcap"].append(lambda s=seqlen, d=dim, c=causal: softcap(s, d, c, dtype))
            for seqlen in (16384,) if quick else (1024, 4096, 16384):
                todo["deterministic"].append(lambda s=seqlen, d=dim, c=causal: backward_alone(s, d, c, dtype, True))
        todo["growing"].append(lambda c=causal: growing(c, dtype, classic))
    for backward in (False, True):
        for causal in (False, True):
            for dim in (64, 128):
                for seqlen in (2048, 16384) if quick else _PREFILL[1:]:
                    todo["triton"].append(lambda s=seqlen, d=dim, c=causal, b=backward: triton(s, d, c, b, dtype))
    shapes = [(16, 8192)] if quick else [(128, 4096), (16, 8192), (1, 8192)]
    for batch, keys in shapes:
        todo["decode"].append(lambda b=batch, n=keys: decode(b, n))
    for queries in (4,) if quick else (2, 4, 8):
        todo["decode"].append(lambda q=queries: decode(16, 8192, q))
    for batch, keys in shapes:
        for page in (16,) if quick else (1, 16, 64, 256):
            todo["decode"].append(lambda b=batch, n=keys, p=page: decode(b, n, page=p))
    todo["decode"].append(lambda: decode(64, max(_RAGGED), lengths=_RAGGED))
    for queries in (16, 64) if quick else (12, 16, 17, 32, 64, 128, 256, 512, 1024):
        todo["chunks"].append(lambda q=queries: decode(1, 32768, q))
    for queries in (32,) if quick else (16, 32, 128, 512):
        todo["chunks"].append(lambda q=queries: decode(1, 32768, q, page=64))
    for queries in (32,) if quick else (8, 16, 32, 64):
        todo["chunks"].append(lambda q=queries: decode(16, 8192, q, page=64))
    for heads in (16,) if quick else (16, 32):
        for dim in (128, 256):
            todo["tiny"].append(lambda h=heads, d=dim: tiny(30720, h, h, 2, d))
    todo["tiny"].append(lambda: tiny(7680, 16, 4, 16, 128))
    todo["tiny"].append(lambda: tiny(30720, 16, 4, 16, 128))
    return [make for group in groups for make in todo[group]]

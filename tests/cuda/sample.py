"""Problems that run different kernels, as functions of tensors, for tests of how calls are made."""

from __future__ import annotations

from typing import Callable, NamedTuple

import torch

import flashwave


class Sample(NamedTuple):
    """A call and its tensors. What the call computes depends on the values of the tensors alone."""

    call: Callable[..., torch.Tensor]
    tensors: tuple[torch.Tensor, ...]

    def __call__(self) -> torch.Tensor:
        return self.call(*self.tensors)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _int32(values: list, device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def prefill(device: str = "cuda") -> Sample:
    tensors = tuple(normal(2, 333, heads, 128, device=device) for heads in (4, 2, 2))
    return Sample(lambda q, k, v: flashwave.flash_attn_func(q, k, v, causal=True), tensors)


def decode(device: str = "cuda") -> Sample:
    """Few queries, long caches: many CTAs share a sequence, so there is a workspace."""
    q, k, v = (normal(3, rows, heads, 128, device=device) for rows, heads in ((1, 8), (4000, 2), (4000, 2)))
    lengths = _int32([4000, 17, 2500], device)
    return Sample(lambda q, k, v, n: flashwave.flash_attn_with_kvcache(q, k, v, cache_seqlens=n), (q, k, v, lengths))


def pages(device: str = "cuda") -> Sample:
    q, (k, v) = normal(2, 2, 8, 64, device=device), (normal(80, 16, 2, 64, device=device) for _ in range(2))
    table = torch.randperm(80, device=device)[:64].reshape(2, 32).int()
    return Sample(
        lambda q, k, v, n, table: flashwave.flash_attn_with_kvcache(
            q, k, v, cache_seqlens=n, block_table=table, causal=True
        ),
        (q, k, v, _int32([500, 33], device), table),
    )


def append(device: str = "cuda") -> Sample:
    """Appends with rotation; the cache is restored by the next call, which writes the same rows."""
    q, k, v = (normal(2, 1, heads, 64, device=device) for heads in (8, 2, 2))
    caches = tuple(normal(2, 256, 2, 64, device=device) for _ in range(2))
    angles = torch.rand(256, 32, device=device) * 6

    def call(q, k, v, k_cache, v_cache, cos, sin, lengths):
        return flashwave.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, lengths, causal=True)

    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    return Sample(call, (q, k, v, *caches, cos, sin, _int32([100, 7], device)))


def ragged(device: str = "cuda") -> Sample:
    offsets = _int32([0, 5, 205, 205, 300], device)
    tensors = tuple(normal(300, heads, 64, device=device) for heads in (4, 4, 4))
    return Sample(
        lambda q, k, v, at: flashwave.flash_attn_varlen_func(q, k, v, at, at, 200, 200, causal=True),
        (*tensors, offsets),
    )


def single(device: str = "cuda") -> Sample:
    """float32."""
    tensors = tuple(normal(2, 100, 4, 40, dtype=torch.float32, device=device) for _ in range(3))
    return Sample(lambda q, k, v: flashwave.flash_attn_func(q, k, v, window_size=(30, 5)), tensors)


def tiny(device: str = "cuda") -> Sample:
    q, k, v = (normal(500, rows, 4, 128, dtype=torch.float16, device=device) for rows in (1, 2, 2))
    return Sample(flashwave.flash_attn_func, (q, k, v))


SAMPLES = {make.__name__: make for make in (prefill, decode, pages, append, ragged, single, tiny)}

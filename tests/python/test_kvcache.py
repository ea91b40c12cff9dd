"""flash_attn_with_kvcache against the same attention put together by hand."""

from __future__ import annotations

import pytest
import torch

import flashwave
from flashwave import InvalidArgument
from numeric import error
from standard import attention as standard

pytestmark = pytest.mark.usefixtures("backend")


def cache(device, rows=3, room=24, heads=2, dim=16, dtype=torch.float32):
    return tuple(torch.randn(rows, room, heads, dim, device=device).to(dtype) for _ in range(2))


def int32(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


def test_plain_cache_is_attention_over_the_keys_in_use(device):
    k, v = cache(device)
    q = torch.randn(3, 2, 4, 16, device=device)
    used = [5, 24, 1]
    out, lse = flashwave.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=int32(used, device), causal=True, return_softmax_lse=True
    )
    assert out.shape == (3, 2, 4, 16) and lse.shape == (3, 4, 2)
    for b, n in enumerate(used):
        reference, reference_lse = standard(q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n], causal=True)
        assert error(out[b : b + 1], reference) < 1e-5
        assert error(lse[b : b + 1], torch.where(reference_lse == -torch.inf, torch.inf, reference_lse)) < 1e-5
    full = flashwave.flash_attn_with_kvcache(q, k, v, cache_seqlens=24)
    assert torch.equal(full, flashwave.flash_attn_with_kvcache(q, k, v))
    assert error(full, standard(q, k, v)[0]) < 1e-5


def rotate(x, cos, sin, positions, interleaved):
    """x (s, h, d) turned by the angles of `positions` (s)."""
    half = cos.shape[1]
    c, s = (t[positions].double()[:, None, :] for t in (cos, sin))
    x = x.double().clone()
    first, second = (
        (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2])
        if interleaved
        else (x[..., :half], x[..., half : 2 * half])
    )
    turned = first * c - second * s, first * s + second * c
    if interleaved:
        x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2] = turned
    else:
        x[..., :half], x[..., half : 2 * half] = turned
    return x


@pytest.mark.parametrize("rotary", [None, "interleaved", "halves"])
@pytest.mark.parametrize("causal", [False, True])
def test_append_with_rotary(device, rotary, causal):
    k_cache, v_cache = cache(device)
    before = k_cache.clone(), v_cache.clone()
    q, k = torch.randn(3, 2, 4, 16, device=device), torch.randn(3, 2, 2, 16, device=device)
    v, used = torch.randn(3, 2, 2, 16, device=device), [4, 0, 20]
    angles = torch.rand(32, 4, device=device) * 6
    cos, sin = (angles.cos(), angles.sin()) if rotary else (None, None)
    q_given = q.clone()
    out = flashwave.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k,
        v,
        cos,
        sin,
        int32(used, device),
        causal=causal,
        rotary_interleaved=rotary == "interleaved",
    )
    assert torch.equal(q, q_given), "q is not changed"
    for b, n in enumerate(used):
        new_k, new_q = k[b].double(), q[b].double()
        if rotary:
            rows = torch.arange(2, device=device)
            new_k = rotate(k[b], cos, sin, n + rows, rotary == "interleaved")
            new_q = rotate(q[b], cos, sin, n + rows if causal else n + 0 * rows, rotary == "interleaved")
        assert error(k_cache[b, n : n + 2], new_k) < 1e-5 and torch.equal(v_cache[b, n : n + 2], v[b])
        assert torch.equal(k_cache[b, :n], before[0][b, :n]) and torch.equal(k_cache[b, n + 2 :], before[0][b, n + 2 :])
        keys = torch.cat((before[0][b, :n].double(), new_k))[None]
        values = torch.cat((before[1][b, :n], v[b]))[None]
        assert error(out[b : b + 1], standard(new_q[None], keys, values, causal=causal)[0]) < 1e-5


@pytest.mark.parametrize("page_size", [1, 3, 16, 256])
def test_pages_of_any_size(device, page_size):
    used, room = [5, 40, 17], 48
    blocks = -(-room // page_size)
    table = torch.randperm(3 * blocks + 2, device=device)[: 3 * blocks].reshape(3, blocks).int()
    k_pages, v_pages = cache(device, 3 * blocks + 2, page_size)
    q = torch.randn(3, 1, 4, 16, device=device)
    k, v = torch.randn(3, 1, 2, 16, device=device), torch.randn(3, 1, 2, 16, device=device)
    dense = [pages[table.long()].reshape(3, -1, 2, 16).clone() for pages in (k_pages, v_pages)]
    out = flashwave.flash_attn_with_kvcache(
        q, k_pages, v_pages, k, v, cache_seqlens=int32(used, device), block_table=table, causal=True
    )
    expected = flashwave.flash_attn_with_kvcache(q, *dense, k, v, cache_seqlens=int32(used, device), causal=True)
    assert error(out, expected) < 1e-5
    for pages, rows in zip((k_pages, v_pages), dense):
        assert torch.equal(pages[table.long()].reshape(3, -1, 2, 16), rows)


def test_rows_of_the_cache_and_left_padding(device):
    k, v = cache(device, rows=5)
    q = torch.randn(2, 1, 4, 16, device=device)
    rows, pads, used = [4, 1], [3, 0], [9, 24]
    out = flashwave.flash_attn_with_kvcache(
        q,
        k,
        v,
        cache_seqlens=int32(used, device),
        cache_batch_idx=int32(rows, device),
        cache_leftpad=int32(pads, device),
    )
    for b, (row, pad, n) in enumerate(zip(rows, pads, used)):
        assert error(out[b : b + 1], standard(q[b : b + 1], k[row : row + 1, pad:n], v[row : row + 1, pad:n])[0]) < 1e-5


@pytest.mark.parametrize("splits", [0, 1, 3])
def test_splits_change_nothing_but_the_last_bits(device, splits):
    k, v = cache(device, rows=1, room=300)
    q = torch.randn(1, 1, 4, 16, device=device)
    assert error(flashwave.flash_attn_with_kvcache(q, k, v, num_splits=splits), standard(q, k, v)[0]) < 1e-5


def test_score_arguments(device):
    k, v = cache(device)
    q, slopes = torch.randn(3, 2, 4, 16, device=device), torch.rand(4, device=device)
    out = flashwave.flash_attn_with_kvcache(
        q, k, v, softmax_scale=0.4, causal=True, window_size=(6, 0), softcap=1.5, alibi_slopes=slopes
    )
    distance = (torch.arange(2)[:, None] + 22 - torch.arange(24)[None]).abs().to(device)
    bias = -slopes[None, :, None, None] * distance
    reference = standard(q, k, v, causal=True, window=(6, 0), scale=0.4, softcap=1.5, bias=bias)[0]
    assert error(out, reference) < 1e-5


def test_wrong_arguments_are_named_as_the_caller_named_them(device):
    k, v = cache(device)
    q, new = torch.randn(3, 1, 4, 16, device=device), torch.randn(3, 1, 2, 16, device=device)
    with pytest.raises(InvalidArgument, match="cache_seqlens must be given with k"):
        flashwave.flash_attn_with_kvcache(q, k, v, new, new)
    with pytest.raises(InvalidArgument, match="k needs v"):
        flashwave.flash_attn_with_kvcache(q, k, v, new, cache_seqlens=1)
    with pytest.raises(InvalidArgument, match="rotary_cos and rotary_sin must be given together"):
        flashwave.flash_attn_with_kvcache(
            q, k, v, new, new, rotary_cos=torch.ones(30, 4, device=device), cache_seqlens=1
        )
    with pytest.raises(InvalidArgument, match="cache_leftpad must be"):
        flashwave.flash_attn_with_kvcache(q, k, v, cache_leftpad=int32([1], device))
    if device == "cpu":  # values of index tensors are not read back from a GPU
        with pytest.raises(InvalidArgument, match=r"cache_seqlens\[0\] \+ seqlen_new must be at most"):
            flashwave.flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=24)
        with pytest.raises(InvalidArgument, match=r"cache_batch_idx\[1\] must be in"):
            flashwave.flash_attn_with_kvcache(q, k, v, cache_batch_idx=int32([0, 7, 1], device))


def test_has_no_gradient_but_does_not_mind_parameters(device):
    k, v = cache(device)
    q = torch.randn(3, 1, 4, 16, device=device, requires_grad=True)
    assert not flashwave.flash_attn_with_kvcache(q, k, v).requires_grad


def test_decoding_step_by_step_is_the_causal_prefill(device):
    tokens = 12
    q, k, v = (torch.randn(2, tokens, h, 16, device=device) for h in (4, 2, 2))
    k_cache, v_cache = (torch.full((2, 16, 2, 16), torch.nan, device=device) for _ in range(2))
    steps = [
        flashwave.flash_attn_with_kvcache(
            q[:, t : t + 1], k_cache, v_cache, k[:, t : t + 1], v[:, t : t + 1], cache_seqlens=t, causal=True
        )
        for t in range(tokens)
    ]
    assert error(torch.cat(steps, 1), flashwave.flash_attn_func(q, k, v, causal=True)) < 1e-5

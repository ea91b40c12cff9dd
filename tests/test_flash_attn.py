"""The contract of flash-attn on the device that is there: pytest -q -s tests/test_flash_attn.py

The rule is flash-attn's: outputs and gradients are off from attention in fp64 by at most twice what standard attention
in PyTorch on the same 16-bit numbers is (plus the rounding of the result itself, where that happens to be exact).
Uses the installed package, or from a checkout python/ and the library of `make build`; a GPU if torch sees one.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

try:
    import flashwave
except ModuleNotFoundError:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
    import flashwave

import flashwave.compat

# The names a user of flash-attn writes; without the alias afterwards, which other tests want to install themselves.
flashwave.compat.install()
from flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402
from flash_attn.flash_attn_interface import flash_attn_unpadded_func  # noqa: E402
from flash_attn.layers.rotary import apply_rotary_emb  # noqa: E402

flashwave.compat.uninstall()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16]
DIMS = [32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256]
LENGTHS = [(1, 147), (64, 131), (113, 90), (128, 128), (95, 257)]
HALF_UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.fixture(autouse=True, scope="session")
def _said_what_runs():
    q = torch.zeros(1, 256, 8, 64, device=DEVICE, dtype=torch.bfloat16)
    kernel = "PyTorch operations"
    if flashwave.devices():
        kernel = json.loads(flashwave.explain(q, q, q, causal=True, json=True))["kernel"]
    print(f"\nflashwave {flashwave.__version__} on {DEVICE}: {kernel}")


# --------------------------------------------------------------------------------------------------- standard attention


def hidden_pairs(
    queries: int, keys: int, causal: bool = False, window=(-1, -1), used_q=None, used_k=None
) -> torch.Tensor:
    """(batch, 1, queries, keys): True where a query does not see a key. The last query is aligned with the last key."""
    used_q = torch.tensor([queries]) if used_q is None else used_q
    used_k = torch.tensor([keys]) if used_k is None else used_k
    row = torch.arange(queries).view(1, 1, -1, 1)
    column = torch.arange(keys).view(1, 1, 1, -1)
    used_q, used_k = used_q.cpu().view(-1, 1, 1, 1), used_k.cpu().view(-1, 1, 1, 1)
    place = row + used_k - used_q
    hidden = (column >= used_k) | (row >= used_q)
    left, right = window[0], 0 if causal else window[1]
    if left >= 0:
        hidden = hidden | (column < place - left)
    if right >= 0:
        hidden = hidden | (column > place + right)
    return hidden.to(DEVICE)


def standard(q, k, v, hidden=None, *, exact: bool, softcap=0.0, bias=None, kept=None, dropout=0.0):
    """Attention as a program without flash-attn writes it: in fp64, or with every matrix in the tensors' own type."""
    q, k, v = (t.double() for t in (q, k, v)) if exact else (q, k, v)
    k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    if softcap > 0.0:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, dim=-1).to(v.dtype)
    if hidden is not None:
        weights = weights.masked_fill(hidden.all(dim=-1, keepdim=True), 0.0)  # a query that sees nothing
    if kept is not None:
        weights = weights.masked_fill(~kept, 0.0) / (1.0 - dropout)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def new(*shape, dtype, gradient=True, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_(gradient)


def within(name: str, ours: torch.Tensor, exact: torch.Tensor, usual: torch.Tensor) -> None:
    """The rule, for one tensor."""
    ours, exact, usual = ours.detach(), exact.detach(), usual.detach()
    assert ours.shape == exact.shape and bool(torch.isfinite(ours).all()), name
    error, baseline = ((t.double() - exact).abs().max().item() for t in (ours, usual))
    stored = HALF_UNIT[ours.dtype] * exact.abs().max().item() * (1 if name == "out" else 2)
    assert error <= 2.0 * baseline + stored, f"{name}: {error:.3g} > 2 * {baseline:.3g} + {stored:.3g}"


def judge(out, leaves, hidden=None, heads=lambda *tensors: tensors, **options) -> None:
    """Output and gradients of `leaves`, whose q, k and v (batch, seqlen, heads, dim) `heads` names."""
    gradient = new(*out.shape, dtype=out.dtype, gradient=False, seed=9)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    usual = standard(*heads(*leaves), hidden, exact=False, **options)
    exact = standard(*heads(*wide), hidden, exact=True, **options)
    within("out", out, exact, usual)
    ours, theirs = (torch.autograd.grad(result, leaves, gradient) for result in (out, usual))
    reference = torch.autograd.grad(exact, wide, gradient.double())
    for name, *three in zip("qkv", ours, reference, theirs):
        within(f"d{name}", *three)


# -------------------------------------------------------------------------------------------------------- dense batches


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_qkvpacked(dim, causal, dtype):
    qkv = new(2, 100, 3, 2, dim, dtype=dtype)
    out = flash_attn_qkvpacked_func(qkv, causal=causal)
    judge(out, [qkv], hidden_pairs(100, 100, causal), lambda packed: packed.unbind(2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["full", "causal", "local"])
@pytest.mark.parametrize("heads_k", [4, 2, 1])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_output_and_gradients(lengths, heads_k, mask, dtype):
    queries, keys = lengths
    q = new(1, queries, 4, 64, dtype=dtype)
    k, v = (new(1, keys, heads_k, 64, dtype=dtype, seed=seed) for seed in (2, 3))
    options = {"causal": mask == "causal", "window_size": (37, 21) if mask == "local" else (-1, -1)}
    out = flash_attn_func(q, k, v, **options)
    judge(out, [q, k, v], hidden_pairs(queries, keys, options["causal"], options["window_size"]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", DIMS[1::2])
def test_kvpacked(dim, dtype):
    q, kv = new(1, 70, 4, dim, dtype=dtype), new(1, 90, 2, 2, dim, dtype=dtype)
    out = flash_attn_kvpacked_func(q, kv, causal=True)
    judge(out, [q, kv], hidden_pairs(70, 90, True), lambda one, packed: (one, *packed.unbind(2)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.0, 15.0])
def test_alibi_and_softcap(softcap, dtype):
    q, k, v = (new(2, 97, 4, 64, dtype=dtype, seed=seed) for seed in range(3))
    slopes = torch.rand(2, 4, device=DEVICE) * 0.3
    place = torch.arange(97, device=DEVICE)
    bias = -slopes[:, :, None, None] * (place[:, None] - place).abs()
    out = flash_attn_func(q, k, v, causal=True, softcap=softcap, alibi_slopes=slopes)
    judge(out, [q, k, v], hidden_pairs(97, 97, True), softcap=softcap, bias=bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_dropout(dim, causal, dtype):
    """The signs of the matrix say what was dropped: as much as was asked for, and that in output and gradients."""
    p, seqlen = 0.17, 140
    q, k, v = (new(2, seqlen, 4, dim, dtype=dtype, seed=seed) for seed in range(3))
    torch.manual_seed(0)
    out, lse, signed = flash_attn_func(q, k, v, dropout_p=p, causal=causal, return_attn_probs=True)
    hidden = hidden_pairs(seqlen, seqlen, causal)
    kept = ~torch.signbit(signed)
    dropped = 1.0 - kept[~hidden.expand_as(kept)].float().mean().item()
    assert abs(dropped - p) <= 0.01
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double() * dim**-0.5, k.double()).masked_fill(hidden, -torch.inf)
    assert (lse.double() - scores.logsumexp(-1)).abs().max() <= 1e-2
    judge(out, [q, k, v], hidden, kept=kept, dropout=p)


# ------------------------------------------------------------------------------------------------------- ragged batches


def mask_of_lengths(batch: int, longest: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(max(1, longest - 40), longest + 1, (batch, 1), generator=generator)
    return (torch.arange(longest) < lengths).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["full", "causal", "local"])
@pytest.mark.parametrize("lengths", [(73, 123), (96, 96), (117, 57)], ids=str)
@pytest.mark.parametrize("form", ["separate", "kvpacked", "qkvpacked"])
def test_varlen(form, lengths, mask, dtype):
    queries, keys = lengths if form != "qkvpacked" else (lengths[1], lengths[1])
    causal, window = mask == "causal", (31, 17) if mask == "local" else (-1, -1)
    seen_q = mask_of_lengths(3, queries, 5)
    seen_k = mask_of_lengths(3, keys, 5 if form == "qkvpacked" else 6)
    q = new(3, queries, 4, 64, dtype=dtype)
    heads_k = 4 if form == "qkvpacked" else 2
    k, v = (new(3, keys, heads_k, 64, dtype=dtype, seed=seed) for seed in (2, 3))
    rows_q, places, cu_q, longest_q, used_q = unpad_input(q, seen_q)
    rows_k, _, cu_k, longest_k, used_k = unpad_input(k, seen_k)
    rows_v = unpad_input(v, seen_k)[0]
    options = {"causal": causal, "window_size": window}
    if form == "qkvpacked":
        packed = torch.stack([rows_q, rows_k, rows_v], dim=1)
        out = flash_attn_varlen_qkvpacked_func(packed, cu_q, longest_q, **options)
    elif form == "kvpacked":
        packed = torch.stack([rows_k, rows_v], dim=1)
        out = flash_attn_varlen_kvpacked_func(rows_q, packed, cu_q, cu_k, longest_q, longest_k, **options)
    else:
        out = flash_attn_varlen_func(rows_q, rows_k, rows_v, cu_q, cu_k, longest_q, longest_k, **options)
    judge(pad_input(out, places, 3, queries), [q, k, v], hidden_pairs(queries, keys, causal, window, used_q, used_k))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
def test_functions_of_02(dim, causal, dtype):
    """flash_attn_unpadded_func, with the matrix that 0.2 also gives without dropout."""
    q, k, v = (new(2, 80, 2, dim, dtype=dtype, seed=seed) for seed in range(3))
    offsets = torch.arange(0, 3 * 80, 80, dtype=torch.int32, device=DEVICE)
    out, _, matrix = flash_attn_unpadded_func(
        *(t.flatten(0, 1) for t in (q, k, v)), offsets, offsets, 80, 80, 0.0, causal=causal, return_attn_probs=True
    )
    hidden = hidden_pairs(80, 80, causal)
    judge(out.unflatten(0, (2, 80)), [q, k, v], hidden)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double() * dim**-0.5, k.double()).masked_fill(hidden, -torch.inf)
    expected = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    assert (matrix.double() - expected).abs().max() <= 8 * HALF_UNIT[dtype]


# --------------------------------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page", [None, 16, 256])
@pytest.mark.parametrize("rotary", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("queries", [1, 7])
@pytest.mark.parametrize("causal", [False, True])
def test_cache(causal, queries, rotary, page, dtype):
    """New keys are turned, appended behind each sequence's own length, and attended to."""
    batch, most, dim, heads, heads_k = 3, 320, 64, 4, 2
    lengths = torch.tensor([5, 203, 290], dtype=torch.int32, device=DEVICE)
    q = new(batch, queries, heads, dim, dtype=dtype, gradient=False)
    k, v = (new(batch, queries, heads_k, dim, dtype=dtype, gradient=False, seed=seed) for seed in (2, 3))
    dense = [new(batch, most, heads_k, dim, dtype=dtype, gradient=False, seed=seed) for seed in (4, 5)]
    table, caches = None, [cache.clone() for cache in dense]
    if page is not None:
        pages = -(-most // page)
        table = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(0)).view(batch, pages)
        caches = [torch.zeros(batch * pages, page, heads_k, dim, dtype=dtype, device=DEVICE) for _ in dense]
        for cache, source in zip(caches, dense):
            cache[table.flatten().to(DEVICE)] = F.pad(source, (0, 0, 0, 0, 0, pages * page - most)).view(
                -1, page, heads_k, dim
            )
        table = table.to(DEVICE, torch.int32)
    angles = torch.rand(most + 8, int(rotary * dim) // 2, device=DEVICE) * 6.0
    cos, sin = (angles.cos().to(dtype), angles.sin().to(dtype)) if rotary else (None, None)
    out = flash_attn_with_kvcache(
        q, *caches, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=lengths, block_table=table, causal=causal,
        rotary_interleaved=False,
    )  # fmt: skip
    if rotary:
        # Without a mask all queries stand at the first new position.
        at = {"seqlen_offsets": lengths}
        k = apply_rotary_emb(k, cos, sin, **at)
        q = apply_rotary_emb(q, cos, sin, **at) if causal else turned_alike(q, cos, sin, lengths)
    for b, length in enumerate(lengths.tolist()):
        for cache, added in zip(dense, (k, v)):
            cache[b, length : length + queries] = added[b]
    if page is not None:
        caches = [cache[table.long()].flatten(1, 2)[:, :most] for cache in caches]
    for cache, expected, name in zip(caches, dense, "kv"):
        torch.testing.assert_close(cache, expected, rtol=4 * HALF_UNIT[dtype], atol=4 * HALF_UNIT[dtype], msg=name)
    used = torch.full((batch,), queries)
    hidden = hidden_pairs(queries, most, causal, used_q=used, used_k=lengths + queries)
    within("out", out, standard(q, *caches, hidden, exact=True), standard(q, *caches, hidden, exact=False))


def turned_alike(q, cos, sin, lengths):
    rows = q.transpose(1, 2).flatten(1, 2).unsqueeze(1)  # (batch, 1, heads * queries, dim)
    turned = apply_rotary_emb(rows, cos, sin, seqlen_offsets=lengths)
    return turned.squeeze(1).unflatten(1, (q.shape[2], q.shape[1])).transpose(1, 2)


# ----------------------------------------------------------------------------------------------------- same bits, edges


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_deterministic(dim, causal):
    q, k, v = (new(2, 211, 4, dim, dtype=torch.bfloat16, seed=seed) for seed in range(3))
    gradient = new(2, 211, 4, dim, dtype=torch.bfloat16, gradient=False, seed=4)

    def bits():
        out = flash_attn_func(q, k, v, causal=causal, deterministic=True)
        return out, *torch.autograd.grad(out, (q, k, v), gradient)

    first = bits()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, bits()))


@pytest.mark.parametrize("causal", [False, True])
def test_large_scores_do_not_overflow(causal):
    """Scores far beyond what fp16 can hold: gradients stay finite."""
    q, k, v = (new(1, 64, 2, 64, dtype=torch.float16, seed=seed) for seed in range(3))
    out = flash_attn_func(q * 30, k * 30, v, causal=causal)
    gradients = torch.autograd.grad(out, (q, k, v), torch.randn_like(out) * 3)
    assert all(bool(torch.isfinite(t).all()) for t in (out, *gradients))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[1:], ids=str)
def test_any_layout(order):
    """Views of transposed memory, in and out."""
    tensors = [new(2, 70, 3, 48, dtype=torch.float16, gradient=False, seed=seed) for seed in range(4)]
    inverse = [order.index(n) for n in range(3)]
    q, k, v, gradient = (
        t.permute(*order, 3).contiguous().permute(*inverse, 3).requires_grad_(n < 3) for n, t in enumerate(tensors)
    )
    plain = [t.detach().contiguous().requires_grad_() for t in (q, k, v)]
    out, expected = flash_attn_func(q, k, v, causal=True), flash_attn_func(*plain, causal=True)
    assert torch.equal(out, expected)
    ours = torch.autograd.grad(out, (q, k, v), gradient)
    for a, b in zip(ours, torch.autograd.grad(expected, plain, gradient.contiguous())):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)

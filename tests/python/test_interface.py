"""flash-attn's functions: signatures, shapes, conventions, and that no argument is dropped."""

from __future__ import annotations

import inspect

import pytest
import torch

import flashwave
from flashwave import InvalidArgument
from numeric import assert_within_rule, error
from standard import attention as standard

pytestmark = pytest.mark.usefixtures("backend")

# flash-attn 2.8, by name and default; extensions may follow as keyword-only arguments.
TAIL = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False"
)
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {TAIL}",
    "flash_attn_qkvpacked_func": f"qkv, {TAIL}",
    "flash_attn_kvpacked_func": f"q, kv, {TAIL}",
    "flash_attn_varlen_func": (
        f"q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {TAIL}, block_table=None"
    ),
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {TAIL}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, {TAIL}",
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False"
    ),
}


def randn(*shape, device="cpu", dtype=torch.float32, grad=False):
    return torch.randn(shape, device=device).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_flash_attns(name):
    parameters = inspect.signature(getattr(flashwave, name)).parameters.values()
    plain = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    written = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in plain)
    assert written == SIGNATURES[name]
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_three_layouts_agree(device, dtype, causal):
    qkv = randn(2, 37, 3, 4, 32, device=device, dtype=dtype)
    q, k, v = qkv.unbind(2)
    out = flashwave.flash_attn_func(q, k, v, causal=causal)
    assert out.shape == (2, 37, 4, 32) and out.dtype == dtype and out.is_contiguous()
    assert torch.equal(out, flashwave.flash_attn_qkvpacked_func(qkv, causal=causal))
    assert torch.equal(out, flashwave.flash_attn_kvpacked_func(q, qkv[:, :, 1:], causal=causal))
    reference, naive = standard(q, k, v, causal)[0], standard(q, k, v, causal, dtype=dtype)[0]
    assert_within_rule(out, reference, naive, 2)


def test_packed_functions_give_the_packed_gradient(device):
    qkv = randn(2, 20, 3, 4, 16, device=device, grad=True)
    (packed,) = torch.autograd.grad(flashwave.flash_attn_qkvpacked_func(qkv, causal=True).square().sum(), qkv)
    q, k, v = (t.detach().requires_grad_() for t in qkv.unbind(2))
    parts = torch.autograd.grad(flashwave.flash_attn_func(q, k, v, causal=True).square().sum(), (q, k, v))
    assert torch.equal(packed, torch.stack(parts, 2))


def test_varlen_layouts_agree_with_padded(device):
    lengths = [5, 0, 17, 9]
    cu = torch.tensor([0, 5, 5, 22, 31], dtype=torch.int32, device=device)
    qkv = randn(31, 3, 4, 16, device=device)
    q, k, v = qkv.unbind(1)
    out, lse, matrix = flashwave.flash_attn_varlen_func(q, k, v, cu, cu, 17, 17, causal=True, return_attn_probs=True)
    assert out.shape == (31, 4, 16) and lse.shape == (4, 31) and matrix.shape == (0,)
    assert torch.equal(out, flashwave.flash_attn_varlen_qkvpacked_func(qkv, cu, 17, causal=True))
    assert torch.equal(out, flashwave.flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], cu, cu, 17, 17, causal=True))
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        one = [t[rows][None] for t in (q, k, v)]
        if length:
            alone, alone_lse = flashwave.flash_attn_func(*one, causal=True, return_lse=True)
            assert error(out[rows][None], alone) < 1e-5 and error(lse[None, :, rows], alone_lse) < 1e-5
        start += length


@pytest.fixture
def memory_of_nans():
    """What is allocated and not written shows."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.set_deterministic_debug_mode(mode)


@pytest.mark.parametrize("heads_k", [4, 2])
@pytest.mark.parametrize("dim", [8, 17])
@pytest.mark.parametrize("cu_seqlens", [[0, 4], [0, 1, 1, 4], [0, 0], [0]])
def test_rows_of_no_sequence_are_zero(device, memory_of_nans, cu_seqlens, dim, heads_k):
    cu, used = torch.tensor(cu_seqlens, dtype=torch.int32, device=device), cu_seqlens[-1]
    q, k, v = (randn(7, heads, dim, device=device, grad=True) for heads in (4, heads_k, heads_k))
    out, lse = flashwave.flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, return_lse=True)
    assert (out[used:] == 0).all() and (out[:used] != 0).all() and (lse[:, used:] == torch.inf).all()
    for gradient in torch.autograd.grad(out.sum() + lse[:, :used].sum(), (q, k, v)):
        assert (gradient[used:] == 0).all() and gradient.isfinite().all()
        assert used == 0 or (gradient[:used] != 0).any()


def test_lse_of_empty_rows_is_plus_inf_as_in_flash_attn_and_minus_inf_in_attention(device):
    q, k, v = randn(1, 5, 2, 8, device=device), randn(1, 2, 2, 8, device=device), randn(1, 2, 2, 8, device=device)
    out, lse, _ = flashwave.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert lse.dtype == torch.float32 and lse.shape == (1, 2, 5)
    assert (lse[..., :3] == torch.inf).all() and lse[..., 3:].isfinite().all() and (out[:, :3] == 0).all()
    _, natural = flashwave.attention(q, k, v, causal=True, return_lse=True)
    assert (natural[..., :3] == -torch.inf).all() and torch.equal(natural[..., 3:], lse[..., 3:])


def test_attn_probs_encode_the_dropout(device):
    q, k, v = (randn(2, 64, 2, 16, device=device) for _ in range(3))
    out, lse, matrix = flashwave.flash_attn_func(q, k, v, dropout_p=0.25, return_attn_probs=True)
    assert matrix.shape == (2, 2, 64, 64) and matrix.dtype == q.dtype
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 4
    expected = torch.exp(scores - scores.amax(-1, keepdim=True))
    assert error(matrix.abs(), expected) < 1e-5
    assert 0.2 < (matrix < 0).double().mean() < 0.3
    probs = torch.where(matrix > 0, torch.exp(scores - lse.double()[..., None]), 0.0) / 0.75
    assert error(out, torch.einsum("bhqk,bkhd->bqhd", probs, v.double())) < 1e-5


# Each argument changes the result, by itself and against the formula: none is dropped.
ARGUMENTS = {
    "softmax_scale": ({"softmax_scale": 0.3}, {"scale": 0.3}),
    "causal": ({"causal": True}, {"causal": True}),
    "window_size": ({"window_size": (3, 2)}, {"window": (3, 2)}),
    "softcap": ({"softcap": 0.5}, {"softcap": 0.5}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_no_argument_is_dropped(device, name):
    q, k, v = randn(2, 12, 4, 16, device=device), randn(2, 15, 2, 16, device=device), randn(2, 15, 2, 16, device=device)
    ours, formula = ARGUMENTS[name]
    out = flashwave.flash_attn_func(q, k, v, **ours)
    assert error(out, flashwave.flash_attn_func(q, k, v)) > 1e-3
    assert error(out, standard(q, k, v, **formula)[0]) < 1e-5


@pytest.mark.parametrize("per_batch", [False, True])
def test_alibi_slopes(device, per_batch):
    q, k, v = (randn(2, 12, 4, 16, device=device) for _ in range(3))
    slopes = torch.rand(*((2, 4) if per_batch else (4,)), device=device)
    distance = (torch.arange(12)[:, None] - torch.arange(12)[None]).abs().to(device)
    bias = -slopes.reshape(-1, 4, 1, 1) * distance
    out = flashwave.flash_attn_func(q, k, v, alibi_slopes=slopes)
    assert error(out, standard(q, k, v, bias=bias)[0]) < 1e-5
    assert error(out, flashwave.flash_attn_func(q, k, v)) > 1e-3


@pytest.mark.parametrize("shape", [(), (9,), (7, 9), (4, 1, 9), (2, 1, 7, 9), (2, 4, 7, 9), (1, 4, 1, 1)])
def test_bias_broadcasts_and_has_its_gradient(device, shape):
    q, k, v = randn(2, 7, 4, 16, device=device), randn(2, 9, 4, 16, device=device), randn(2, 9, 4, 16, device=device)
    bias = randn(*shape, device=device, grad=True)
    out = flashwave.flash_attn_func(q, k, v, bias=bias)
    reference = standard(q, k, v, bias=bias)[0]
    assert error(out, reference) < 1e-5
    weight = randn(*out.shape, device=device)
    (mine,) = torch.autograd.grad((out * weight).sum(), bias)
    (theirs,) = torch.autograd.grad((reference * weight).sum(), bias)
    assert mine.shape == bias.shape and error(mine, theirs) < 1e-4


def test_an_expanded_bias_has_its_gradient(device):
    q, k, v = (randn(2, 6, 4, 8, device=device) for _ in range(3))
    bias = randn(6, 6, device=device, grad=True)
    mine = torch.autograd.grad(flashwave.flash_attn_func(q, k, v, bias=bias.expand(2, 4, 6, 6)).square().sum(), bias)
    theirs = torch.autograd.grad(standard(q, k, v, bias=bias)[0].square().sum(), bias)
    assert error(mine[0], theirs[0]) < 1e-4


def test_sinks_and_their_gradient(device):
    q, k, v = (randn(2, 8, 4, 16, device=device) for _ in range(3))
    sinks = randn(4, device=device, grad=True)
    out, lse = flashwave.flash_attn_func(q, k, v, sinks=sinks, return_lse=True)
    plain, plain_lse = standard(q, k, v)
    total = torch.logaddexp(plain_lse, sinks.double()[None, :, None])
    reference = plain * torch.exp(plain_lse - total).transpose(1, 2)[..., None]
    assert error(out, reference) < 1e-5 and error(lse, total) < 1e-5
    (mine,) = torch.autograd.grad(out.square().sum() + lse.sum(), sinks)
    (theirs,) = torch.autograd.grad(reference.square().sum() + total.sum(), sinks)
    assert error(mine, theirs) < 1e-4


def test_slopes_have_a_gradient(device):
    q, k, v = (randn(2, 8, 4, 16, device=device) for _ in range(3))
    slopes = torch.rand(2, 4, device=device).requires_grad_()
    distance = (torch.arange(8)[:, None] - torch.arange(8)[None]).abs().to(device)
    mine = torch.autograd.grad(flashwave.flash_attn_func(q, k, v, alibi_slopes=slopes).square().sum(), slopes)
    bias = -slopes[..., None, None] * distance
    theirs = torch.autograd.grad(standard(q, k, v, bias=bias)[0].square().sum(), slopes)
    assert error(mine[0], theirs[0]) < 1e-3


def test_head_dimension_of_v_may_differ(device):
    q, k, v = randn(2, 9, 4, 48, device=device), randn(2, 9, 2, 48, device=device), randn(2, 9, 2, 20, device=device)
    out = flashwave.flash_attn_func(q, k, v)
    assert out.shape == (2, 9, 4, 20) and error(out, standard(q, k, v)[0]) < 1e-5


def test_out_is_filled_in_place(device):
    q, k, v = (randn(2, 9, 4, 16, device=device) for _ in range(3))
    wide = torch.full((2, 9, 4, 24), torch.nan, device=device)
    out = wide[..., 4:20]  # not contiguous
    result = flashwave.flash_attn_func(q, k, v, out=out)
    assert result is out and torch.equal(out, flashwave.flash_attn_func(q, k, v))
    assert wide[..., :4].isnan().all() and wide[..., 20:].isnan().all()
    with pytest.raises(InvalidArgument, match="out must be"):
        flashwave.flash_attn_func(q, k, v, out=out[..., :15])
    with pytest.raises(InvalidArgument, match="out cannot be used when an input requires a gradient"):
        flashwave.flash_attn_func(q.requires_grad_(), k, v, out=out)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "flipped-last", "expanded"])
def test_non_contiguous_inputs(device, layout):
    def make():
        if layout == "transposed":
            return randn(2, 4, 9, 16, device=device).transpose(1, 2)
        if layout == "sliced":
            return randn(2, 18, 8, 33, device=device)[:, ::2, ::2, 3:19]
        if layout == "flipped-last":
            return randn(2, 16, 4, 9, device=device).permute(0, 3, 2, 1)  # the head dimension is not contiguous
        return randn(2, 1, 4, 16, device=device).expand(2, 9, 4, 16)

    inputs = [make().requires_grad_() for _ in range(3)]
    out = flashwave.flash_attn_func(*inputs, causal=True)
    reference = standard(*inputs, causal=True)[0]
    assert error(out, reference) < 1e-5
    weight = randn(*out.shape, device=device)
    for mine, theirs in zip(
        torch.autograd.grad((out * weight).sum(), inputs), torch.autograd.grad((reference * weight).sum(), inputs)
    ):
        assert error(mine, theirs) < 1e-4


REFUSED = [
    ({"q": (2, 8, 4)}, "q must be (batch, seqlen_q, heads, dim)"),
    ({"k": (2, 8, 3, 16), "v": (2, 8, 3, 16)}, "multiple of the heads of k"),
    ({"k": (2, 8, 4, 8)}, "k must have the head dimension of q"),
    ({"k": (3, 8, 4, 16), "v": (3, 8, 4, 16)}, "k must have the batch of q"),
    ({"v": (2, 9, 4, 16)}, "v must be as k"),
    ({"q": (2, 8, 4, 600), "k": (2, 8, 4, 600)}, "dim_qk must be in"),
    ({"dropout_p": 1.0}, "dropout_p must be in"),
    ({"softcap": -1.0}, "softcap must be finite and at least 0"),
    ({"softmax_scale": float("nan")}, "softmax_scale must be finite"),
    ({"alibi_slopes": (3,)}, "alibi_slopes must be"),
    ({"sinks": (3,)}, "sinks must be"),
    ({"bias": (2, 4, 8, 7)}, "bias must broadcast"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_refused_is_named(device, changes, message, dtype):
    arguments = {"q": (2, 8, 4, 16), "k": (2, 8, 4, 16), "v": (2, 8, 4, 16), **changes}
    arguments = {n: randn(*a, device=device, dtype=dtype) if isinstance(a, tuple) else a for n, a in arguments.items()}
    with pytest.raises(InvalidArgument) as raised:
        flashwave.flash_attn_func(**arguments)
    assert message in str(raised.value)
    assert isinstance(raised.value, ValueError) and isinstance(raised.value, RuntimeError)


def test_types_and_devices_are_checked(device):
    q, k, v = (randn(1, 4, 2, 8, device=device) for _ in range(3))
    with pytest.raises(InvalidArgument, match=r"k must have the dtype of q, torch.float32, got torch.float16"):
        flashwave.flash_attn_func(q, k.half(), v)
    with pytest.raises(InvalidArgument, match="q must be float16, bfloat16, float32 or float64"):
        flashwave.flash_attn_func(q.int(), k.int(), v.int())
    for _ in range(2):  # the layout is known by then
        flashwave.flash_attn_func(q, k, v)
        flashwave.flash_attn_func(q, k, v, return_lse=True)
    for arguments in ({}, {"return_lse": True}):
        with pytest.raises(InvalidArgument, match="v must be on the device of q"):
            flashwave.flash_attn_func(q, k, v.to("meta"), **arguments)
    with pytest.raises(InvalidArgument, match="bias must be a floating-point tensor"):
        flashwave.flash_attn_func(q, k, v, bias=torch.ones(4, 4, dtype=torch.bool, device=device))


def test_empty_problems(device):
    for sq, sk in ((0, 5), (5, 0), (0, 0)):
        q = randn(2, sq, 4, 8, device=device, grad=True)
        k, v = (randn(2, sk, 4, 8, device=device, grad=True) for _ in range(2))
        out, lse = flashwave.flash_attn_func(q, k, v, return_lse=True)
        assert out.shape == (2, sq, 4, 8) and (out == 0).all() and (lse == torch.inf).all()
        for gradient, tensor in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v)):
            assert gradient.shape == tensor.shape and (gradient == 0).all()
    empty = randn(0, 5, 4, 8, device=device)
    assert flashwave.flash_attn_func(empty, empty, empty).shape == (0, 5, 4, 8)

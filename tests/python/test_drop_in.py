"""What programs that know flash-attn, or its other versions, rely on; and what they are told when they err."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import math
import pickle

import numpy as np
import pytest
import torch

import flashwave
import flashwave.compat
from flashwave import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

pytestmark = pytest.mark.usefixtures("one_thread")


def _inputs(rows=6, heads=2, dim=16):
    return [torch.randn(1, rows, heads, dim) for _ in range(3)]


# ------------------------------------------------------------------------------------------------- sinks by any name


@pytest.mark.parametrize("name", ["s_aux", "learnable_sink"])
def test_other_names_of_sinks(name):
    """transformers looks for one of these in the signature, and leaves the sinks out if there is none."""
    q, k, v = _inputs()
    sinks = torch.randn(2, requires_grad=True)
    want = flash_attn_func(q, k, v, sinks=sinks)
    assert not torch.allclose(want, flash_attn_func(q, k, v))
    got = flash_attn_func(q, k, v, **{name: sinks})
    assert torch.equal(got, want)
    (found,), (wanted,) = (torch.autograd.grad(x.square().sum(), sinks) for x in (got, want))
    assert torch.equal(found, wanted)
    offsets = torch.tensor([0, 6], dtype=torch.int32)
    ragged = flash_attn_varlen_func(q[0], k[0], v[0], offsets, offsets, 6, 6, **{name: sinks})
    torch.testing.assert_close(ragged, want[0])
    cached = flash_attn_with_kvcache(q, k, v, cache_seqlens=6, **{name: sinks.detach()})
    torch.testing.assert_close(cached, want)
    qkv = torch.stack((q, k, v), 2)
    torch.testing.assert_close(flashwave.flash_attn_qkvpacked_func(qkv, **{name: sinks}), want)
    for function in (flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache):
        assert name in inspect.signature(function).parameters


def test_sinks_under_two_names():
    q, k, v = _inputs()
    with pytest.raises(flashwave.InvalidArgument, match="sinks, s_aux and learnable_sink are names of one argument"):
        flash_attn_func(q, k, v, sinks=torch.zeros(2), s_aux=torch.zeros(2))


def test_sinks_in_the_cache_function():
    """With pages and an append, against the dense function."""
    q, k, v = _inputs(1)
    k_cache, v_cache = torch.randn(4, 4, 2, 16), torch.randn(4, 4, 2, 16)
    table, sinks = torch.tensor([[2, 0]], dtype=torch.int32), torch.randn(2)
    keys, values = (torch.cat((x[2], x[0]))[None, :5].clone() for x in (k_cache, v_cache))
    want = flash_attn_func(q, torch.cat((keys, k), 1), torch.cat((values, v), 1), sinks=sinks)
    lengths = torch.tensor([5], dtype=torch.int32)
    got = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, sinks=sinks)
    torch.testing.assert_close(got, want)


# ------------------------------------------------------------------------------------------------------- the stand-in


@pytest.fixture
def installed():
    flashwave.compat.install()
    yield
    flashwave.compat.uninstall()


def test_version(installed):
    """TransformerEngine takes flash-attn below 2.8.4, diffusers from 2.6.3 on, transformers from 2.3.3 on."""
    assert importlib.metadata.version("flash_attn") == "2.8.3"
    assert importlib.import_module("flash_attn").__version__ == "2.8.3"


def test_vllm_finds_what_it_looks_for(installed):
    assert importlib.util.find_spec("flash_attn.flash_attn_triton_amd") is not None
    module = importlib.import_module("flash_attn.flash_attn_triton_amd")
    assert [name for name in vars(module) if not name.startswith("__")] == []


@pytest.mark.parametrize("p", [1e-30, 2.0**-17, math.nextafter(2.0**-16, 0)])
def test_dropout_below_what_the_mask_can_tell(p):
    """diffusers asks for 1e-30 to be given the log-sum-exp: no random number is drawn."""
    q, k, v = _inputs()
    state = torch.get_rng_state()
    out, lse, probs = flash_attn_func(q, k, v, dropout_p=p, return_attn_probs=True)
    assert torch.equal(torch.get_rng_state(), state)
    want, want_lse = flash_attn_func(q, k, v, return_lse=True)
    assert torch.equal(out, want) and torch.equal(lse, want_lse) and probs.numel() == 0
    flash_attn_func(q, k, v, dropout_p=2.0**-16)
    assert not torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_cross_entropy_with_a_precomputed_lse(smoothing, scale):
    """Its numbers are used where they are those of the scores; the gradient is that of the loss, always."""
    from flashwave.compat.flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    x = torch.randn(5, 11, requires_grad=True)
    labels = torch.tensor([3, 0, -100, 10, 7])
    lse = torch.logsumexp(x.detach(), -1)
    losses, gradients = [], []
    for given in (None, lse):
        loss, _ = cross_entropy_loss(x, labels, given, smoothing, scale, 0.01)
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss.sum(), x)[0])
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(gradients[1], gradients[0])
    if smoothing == 0.0 and scale == 1.0:
        plain, _ = cross_entropy_loss(x, labels, lse)
        want = torch.nn.functional.cross_entropy(x, labels, reduction="none")
        torch.testing.assert_close(plain, want)
        (found,), (wanted,) = (torch.autograd.grad(y.sum(), x) for y in (plain, want))
        torch.testing.assert_close(found, wanted)
        shifted, _ = cross_entropy_loss(x, labels, lse + 1)  # they are taken as they are given
        torch.testing.assert_close(shifted, torch.where(labels == -100, 0.0, plain + 1))


# ------------------------------------------------------------------------------------------------- the least of biases


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 20])  # a kernel for decoding, and another
@pytest.mark.parametrize("value", [None, -1e9, -1e30])
def test_a_row_of_masked_keys(dtype, rows, value, backend):
    """A mask value that is finite, on all keys: the mean of v, as torch's own attention has it; 0 passes back as 0."""
    q, k, v = (torch.randn(2, n, 2, 32).to(dtype).requires_grad_() for n in (rows, 24, 24))
    bias = torch.full((rows, 24), torch.finfo(dtype).min if value is None else value, dtype=dtype)
    bias[1::2] = 0.0
    out, lse = flash_attn_func(q, k, v, bias=bias, return_lse=True)
    assert lse.isfinite().all()
    mean = v.detach().float().mean(1, keepdim=True)
    torch.testing.assert_close(out[:, ::2].float(), mean.expand_as(out[:, ::2]), atol=2e-2, rtol=2e-2)
    with_bias = bias.clone().requires_grad_()  # another kernel of CPUs
    again = flash_attn_func(q, k, v, bias=with_bias)
    for gradient in torch.autograd.grad(again[:, 1::2].float().square().sum(), (q, k, v, with_bias)):
        assert gradient.isfinite().all()
    seen = out[:, 1::2]
    gradients = torch.autograd.grad(seen.float().square().sum(), (q, k, v))
    if rows == 1:
        assert all(not gradient.any() for gradient in gradients)
        return
    alone = torch.autograd.grad(flash_attn_func(q[:, 1::2], k, v, bias=bias[1::2]).float().square().sum(), (q, k, v))
    for got, want in zip(gradients, alone):
        torch.testing.assert_close(got, want, atol=3e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2)


# ------------------------------------------------------------------------------------------------------------ messages

CU = torch.tensor([0, 6], dtype=torch.int32)
COS = torch.ones(9, 4)
WRONG = {
    "q must be a torch tensor, got ndarray": lambda q, k, v: flash_attn_func(q.numpy(), k, v),
    "v must be a torch tensor, got ndarray": lambda q, k, v: flash_attn_func(q, k, v.numpy()),
    "cu_seqlens_q must be a torch tensor, got list": lambda q, k, v: flash_attn_varlen_func(
        q[0], k[0], v[0], [0, 6], CU, 6, 6
    ),
    "cu_seqlens_k must hold integers, got torch.float32": lambda q, k, v: flash_attn_varlen_func(
        q[0], k[0], v[0], CU, CU.float(), 6, 6
    ),
    "max_seqlen_k must be a whole number, got None": lambda q, k, v: flash_attn_varlen_func(
        q[0], k[0], v[0], CU, CU, 6, None
    ),
    "cache_seqlens must be a whole number or a torch tensor, got [3]": lambda q, k, v: flash_attn_with_kvcache(
        q, k, v, cache_seqlens=[3]
    ),
    "cache_seqlens must fit into int32, got 4294967301": lambda q, k, v: flash_attn_with_kvcache(
        q, k, v, cache_seqlens=torch.tensor([2**32 + 5])
    ),
    "k_cache must be a torch tensor, got NoneType": lambda q, k, v: flash_attn_with_kvcache(q, None, v),
    "window_size must be (left, right), got None": lambda q, k, v: flash_attn_func(q, k, v, window_size=None),
    "window_size must be (left, right), got 4": lambda q, k, v: flash_attn_func(q, k, v, window_size=4),
    "softcap must be a number, got None": lambda q, k, v: flash_attn_func(q, k, v, softcap=None),
    "rng_state must be int64, (seed, offset), got torch.float32": lambda q, k, v: flashwave.attention(
        q, k, v, dropout_p=0.1, rng_state=torch.tensor([1.0, 2.0])
    ),
    "alibi_slopes must be a torch tensor, got list": lambda q, k, v: flash_attn_func(q, k, v, alibi_slopes=[1, 2]),
    "bias must be a torch tensor, got ndarray": lambda q, k, v: flash_attn_func(q, k, v, bias=np.zeros((6, 6))),
    "qkv must be a torch tensor, got ndarray": lambda q, k, v: flashwave.flash_attn_qkvpacked_func(q.numpy()),
    "out must be a torch tensor, got ndarray": lambda q, k, v: flash_attn_func(q, k, v, out=q.numpy()),
    "x must be a torch tensor, got ndarray": lambda q, k, v: flashwave.apply_rotary_emb(q.numpy(), COS, COS),
    "cos must be a torch tensor, got NoneType": lambda q, k, v: flashwave.apply_rotary_emb(q, None, COS),
    "seqlen_offsets must be a whole number, got [1]": lambda q, k, v: flashwave.apply_rotary_emb(
        q, COS, COS, seqlen_offsets=[1]
    ),
    "windows is not an argument of attention": lambda q, k, v: flashwave.explain(q, k, v, windows=(4, 0)),
    "k must be a torch tensor, got ndarray": lambda q, k, v: flashwave.explain(q, k.numpy(), v),
}


@pytest.mark.parametrize("message", WRONG)
def test_messages(message):
    """Each names the argument and the rule, and is a ValueError."""
    with pytest.raises(flashwave.InvalidArgument) as caught:
        WRONG[message](*_inputs())
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, ValueError)


def test_a_length_of_numpy():
    q, k, v = _inputs()
    want = flash_attn_with_kvcache(q, k, v, cache_seqlens=3)
    assert torch.equal(flash_attn_with_kvcache(q, k, v, cache_seqlens=np.int64(3)), want)


def test_explain_takes_the_arguments_of_attention():
    q, k, v = _inputs(64)
    text = flashwave.explain(q, k, v, window=(4, 0), causal=True, softcap=2.0, return_lse=True)
    assert "window=4,0" in text.replace(" ", "") and "kernel" in text
    assert flashwave.explain(q, k, v, window_size=(4, 0)) == flashwave.explain(q, k, v, window=(4, 0))
    assert flashwave.explain(q, k, v, device="cpu") == flashwave.explain(q, k, v)
    with pytest.raises(flashwave.NoDevice, match="abacus"):
        flashwave.explain(q, k, v, device="abacus")


def test_errors_can_be_sent_to_another_process():
    """One that cannot be unpickled leaves a multiprocessing.Pool waiting for ever."""
    classes = [value for value in vars(flashwave.errors).values() if isinstance(value, type)]
    assert len(classes) >= 6
    for kind in classes:
        error = kind("triton", "forward", "no GPU") if kind is flashwave.BackendRefused else kind("a message")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind and str(copy) == str(error) and copy.__dict__ == error.__dict__

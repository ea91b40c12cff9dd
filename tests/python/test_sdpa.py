"""flashwave.sdpa, and torch's own operators computed by flashwave, against torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import flashwave
from flashwave import replacement

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "causal_more_keys": {"is_causal": True, "keys": 40},
    "causal_fewer_keys": {"is_causal": True, "keys": 13},
    "scale": {"scale": 0.3},
    "bool_mask": {"attn_mask": "bool"},
    "bool_mask_of_keys": {"attn_mask": "keys"},
    "float_mask": {"attn_mask": "float"},
    "float_mask_of_heads": {"attn_mask": "heads"},
    "gqa": {"enable_gqa": True, "heads_k": 2},
    "gqa_causal": {"enable_gqa": True, "heads_k": 1, "is_causal": True},
    "three_dimensions": {"leading": (3,)},
    "five_dimensions": {"leading": (2, 3), "attn_mask": "bool"},
    "two_dimensions": {"leading": None},
    "other_dim_of_values": {"dim_v": 24},
}


def _inputs(case: dict, dtype: torch.dtype = torch.float32):
    options = dict(case)
    leading, heads = options.pop("leading", (2,)), 4
    keys, heads_k = options.pop("keys", 25), options.pop("heads_k", heads)
    dim_v, kind = options.pop("dim_v", 16), options.pop("attn_mask", None)
    front, front_k = ((), ()) if leading is None else ((*leading, heads), (*leading, heads_k))
    if leading == (3,):
        front = front_k = (3,)
    q = torch.randn(*front, 25, 16, dtype=dtype)
    k, v = torch.randn(*front_k, keys, 16, dtype=dtype), torch.randn(*front_k, keys, dim_v, dtype=dtype)
    if kind == "bool":
        options["attn_mask"] = torch.rand(25, keys) < 0.7
        options["attn_mask"][:, 0] = True
    elif kind == "keys":
        options["attn_mask"] = (torch.arange(keys) < 20).expand(2, 1, 25, keys)
    elif kind == "float":
        options["attn_mask"] = torch.randn(2, 1, 25, keys, dtype=dtype)
    elif kind == "heads":
        options["attn_mask"] = torch.randn(4, 25, keys, dtype=dtype)
    return [q, k, v], options


def _with_gradients(function, inputs, options):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    mask = options.get("attn_mask")
    differentiable = mask is not None and mask.is_floating_point()
    if differentiable:
        options = {**options, "attn_mask": mask.detach().clone().requires_grad_()}
        inputs.append(options["attn_mask"])
    out = function(*inputs[:3], **options)
    (out * torch.linspace(-1, 1, out.shape[-1])).sum().backward()
    return [out, *[x.grad for x in inputs]]


def _torchs(q, k, v, enable_gqa=False, **options):
    """Also of a torch that does not know enable_gqa."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_sdpa_is_torchs(name, dtype):
    inputs, options = _inputs(CASES[name], dtype)
    expected = _with_gradients(_torchs, inputs, options)
    actual = _with_gradients(flashwave.sdpa, inputs, options)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float64: 1e-10}[dtype]
    for ours, theirs in zip(actual, expected):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert torch.allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def test_sdpa_drops_out_what_attention_drops():
    q, k, v = torch.randn(3, 1, 2, 30, 8)
    torch.manual_seed(5)
    out = flashwave.sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(5)
    expected = flashwave.flash_attn_func(*[x.transpose(1, 2) for x in (q, k, v)], dropout_p=0.5)
    assert torch.equal(out, expected.transpose(1, 2))


def test_sdpa_refuses_two_masks():
    q = torch.randn(1, 2, 8, 8)
    with pytest.raises(flashwave.InvalidArgument, match="attn_mask cannot be used with is_causal"):
        flashwave.sdpa(q, q, q, attn_mask=torch.ones(8, 8, dtype=torch.bool), is_causal=True)


# ------------------------------------------------------------------------------------------- torch's operators replaced

needs_kernels = pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="torch gives no kernels away")


@pytest.fixture
def active():
    flashwave.activate()
    yield
    flashwave.restore()


@pytest.fixture
def counted(monkeypatch):
    """How often flashwave computed something."""
    calls = []
    for name in ("_forward", "_backward"):
        function = getattr(replacement, name)

        def counting(*arguments, function=function, name=name):
            calls.append(name)
            return function(*arguments)

        monkeypatch.setattr(replacement, name, counting)
    return calls


@needs_kernels
@pytest.mark.parametrize("name", [name for name in CASES if "dimensions" not in name and name != "other_dim_of_values"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_replaced_operators_are_torchs(name, dtype, counted):
    inputs, options = _inputs(CASES[name], dtype)
    mask = options.get("attn_mask")
    expected = _with_gradients(F.scaled_dot_product_attention, inputs, options)
    flashwave.activate()
    try:
        actual = _with_gradients(F.scaled_dot_product_attention, inputs, options)
    finally:
        flashwave.restore()
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    for ours, theirs in zip(actual, expected):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert torch.allclose(ours, theirs, atol=tolerance, rtol=tolerance)
    # torch computes the gradient of a mask by its formula, and asks no kernel.
    by_formula = mask is not None and mask.is_floating_point()
    assert counted == ([] if by_formula else ["_forward", "_backward"])


@needs_kernels
def test_masks_without_a_gradient_are_ours(active, counted):
    inputs, options = _inputs(CASES["float_mask"])
    F.scaled_dot_product_attention(*inputs, **options)
    assert counted == ["_forward"]


@needs_kernels
@pytest.mark.parametrize("odd", ["float64", "dropout", "empty"])
def test_what_is_not_taken_goes_to_torchs_kernel(active, counted, odd):
    dtype = torch.float64 if odd == "float64" else torch.float32
    q, k, v = torch.randn(3, 1, 2, 0 if odd == "empty" else 9, 8, dtype=dtype)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if odd == "dropout" else 0.0)
    assert out.shape == q.shape and counted == []


@needs_kernels
def test_restore_undoes_it_and_import_does_nothing(counted):
    q = torch.randn(1, 2, 9, 8)
    assert not replacement.is_active()
    F.scaled_dot_product_attention(q, q, q)
    assert counted == []
    flashwave.activate()
    flashwave.activate()
    F.scaled_dot_product_attention(q, q, q)
    assert counted == ["_forward"] and replacement.is_active()
    flashwave.restore()
    F.scaled_dot_product_attention(q, q, q)
    assert counted == ["_forward"] and not replacement.is_active()
    flashwave.restore()  # again: nothing to undo


@needs_kernels
def test_modules_of_torch_take_it(active, counted):
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 10, 32, requires_grad=True)
    layer(x, x, x, need_weights=False)[0].sum().backward()
    assert counted == ["_forward", "_backward"] and x.grad.abs().sum() > 0


@needs_kernels
def test_compiled_programs_take_it(active):
    q = torch.randn(1, 2, 33, 16)
    compiled = torch.compile(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), backend="aot_eager")
    expected = flashwave.sdpa(q, q, q, is_causal=True)
    assert torch.allclose(compiled(q), expected, atol=1e-6)


@pytest.mark.skipif(not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="torch knows no others")
def test_torch_knows_the_name():
    flashwave.register_with_torch()
    assert "flashwave" in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() is None


def test_older_torch_says_what_to_do(monkeypatch):
    monkeypatch.delattr(torch.library, "get_kernel", raising=False)
    with pytest.raises(flashwave.Unsupported, match=r"use flashwave\.sdpa"):
        flashwave.activate()


# --------------------------------------------------------------------- the functions behind the operators of GPUs, here


@pytest.mark.parametrize("keys", [25, 40, 13])
@pytest.mark.parametrize("is_causal", [False, True])
def test_operators_of_gpus(keys, is_causal):
    """They compute on any device; what torch registers them for is a GPU's key."""
    q, k, v = torch.randn(2, 4, 25, 16), *torch.randn(2, 2, 4, keys, 16)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*inputs, is_causal=is_causal)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    out, lse, *rest = replacement.gpu_sdpa_forward(q, k, v, 0.0, is_causal)
    assert len(rest) == 7 and rest[2:4] == [25, keys] and rest[4].dtype == torch.uint64
    assert torch.allclose(out, expected, atol=1e-5)
    gradients = replacement.gpu_sdpa_backward(
        gradient, q, k, v, out, lse, None, None, 25, keys, 0.0, is_causal, *rest[4:6]
    )
    for ours, theirs in zip(gradients, inputs):
        assert torch.allclose(ours, theirs.grad, atol=1e-5)


def test_dropout_of_gpus_is_the_same_backwards():
    q, k, v = torch.randn(3, 1, 2, 30, 8)
    out, lse, *rest = replacement.gpu_sdpa_forward(q, k, v, 0.4, False)
    state = rest[4].view(torch.int64)
    inputs = [x.transpose(1, 2).clone().requires_grad_() for x in (q, k, v)]
    expected = flashwave.attention(*inputs, dropout_p=0.4, rng_state=state)
    assert torch.equal(out, expected.transpose(1, 2))
    gradient = torch.randn_like(out)
    expected.backward(gradient.transpose(1, 2))
    gradients = replacement.gpu_sdpa_backward(gradient, q, k, v, out, lse, None, None, 30, 30, 0.4, False, *rest[4:6])
    for ours, theirs in zip(gradients, inputs):
        assert torch.allclose(ours, theirs.grad.transpose(1, 2), atol=1e-6)


def test_packed_operators_of_gpus():
    offsets = torch.tensor([0, 5, 5, 17], dtype=torch.int32)
    q, k, v = torch.randn(3, 17, 4, 8)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    mask = {"causal": True, "window_size": (4, 0)}
    expected = flashwave.flash_attn_varlen_func(*inputs, offsets, offsets, 12, 12, **mask)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    sides = {"window_size_left": 4, "window_size_right": 0}
    out, lse, *rest = replacement.gpu_rows_forward(q, k, v, offsets, offsets, 12, 12, 0.0, True, False, **sides)
    assert torch.equal(out, expected) and lse.shape == (4, 17) and len(rest) == 3
    saved = out, lse, offsets, offsets, 12, 12, 0.0, True, *rest[:2]
    for ours, theirs in zip(replacement.gpu_rows_backward(gradient, q, k, v, *saved, **sides), inputs):
        assert torch.equal(ours, theirs.grad)


def test_importing_the_package_changes_nothing_of_torch():
    program = (
        "import torch, flashwave; from flashwave import replacement; "
        "assert not replacement.is_active(); "
        "assert 'flashwave' not in getattr(torch.nn.attention, 'list_flash_attention_impls', list)()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

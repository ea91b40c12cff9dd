"""flashwave.activate on a GPU: torch's flash operators are computed by the library until restore."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import flashwave
from flashwave import replacement

pytestmark = pytest.mark.skipif(
    not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="torch takes no other flash attention"
)


@pytest.fixture
def counted(monkeypatch):
    """The operators that flashwave computed."""
    calls: list[str] = []
    for name, function in list(replacement._GPU_OPERATORS.items()):

        def counting(*arguments, function=function, name=name, **options):
            results = function(*arguments, **options)
            if results is not None:
                calls.append(name)
            return results

        monkeypatch.setitem(replacement._GPU_OPERATORS, name, counting)
    yield calls
    flashwave.restore()


def _step(function, inputs, gradient):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    out.backward(gradient)
    return [out.detach(), *[x.grad for x in inputs]]


def _close(actual, expected):
    for ours, theirs in zip(actual, expected):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert (ours - theirs).abs().max() <= 2e-2 * max(1.0, float(theirs.abs().max()))


# torch has no flash attention for a causal mask that is not square.
@pytest.mark.parametrize("keys, is_causal", [(256, False), (384, False), (130, False), (256, True)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sdpa(keys, is_causal, dtype, counted):
    q = torch.randn(2, 4, 256, 64, device="cuda", dtype=dtype)
    k, v = torch.randn(2, 2, 4, keys, 64, device="cuda", dtype=dtype)
    gradient = torch.randn_like(q)

    def attend(q, k, v):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    expected = _step(attend, (q, k, v), gradient)
    assert not counted
    flashwave.activate()
    _close(_step(attend, (q, k, v), gradient), expected)
    names = [name for name in replacement._GPU_OPERATORS if name.startswith("_scaled")]
    assert counted == names
    flashwave.restore()
    assert torch.equal(_step(attend, (q, k, v), gradient)[0], expected[0]) and counted == names


def test_dropout_drops_the_same_backwards(counted):
    q, k = torch.randn(2, 1, 2, 192, 64, device="cuda", dtype=torch.bfloat16)
    flashwave.activate()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        # v is the identity: the result is the matrix of weights; its sum over v's rows is the gradient of v.
        identity = torch.eye(64, device="cuda", dtype=torch.bfloat16).repeat(1, 2, 3, 1).requires_grad_()
        torch.manual_seed(3)
        out = F.scaled_dot_product_attention(q, k, identity, dropout_p=0.4)
        torch.manual_seed(3)
        again = F.scaled_dot_product_attention(q, k, identity, dropout_p=0.4)
    assert torch.equal(out, again)
    dropped = (out == 0).float().mean()
    assert 0.4**3 - 0.02 < dropped < 0.4**3 + 0.02  # a number of out is the sum of three weights
    (gradient,) = torch.autograd.grad(out, identity, torch.ones_like(out))
    total, columns = out.sum(2).float(), gradient.float().view(1, 2, 3, 64, 64).sum(2)[..., 0]
    assert (total - columns).abs().max() < 0.05 * total.abs().max()
    assert len(counted) == 3


def test_packed(counted):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    offsets = torch.tensor([0, 70, 200, 256], dtype=torch.int32, device="cuda")
    q, k, v = torch.randn(3, 256, 4, 64, device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn_like(q)

    def attend(q, k, v):
        return varlen.varlen_attn(q, k, v, offsets, offsets, 130, 130)

    expected = _step(attend, (q, k, v), gradient)
    flashwave.register_with_torch()
    torch.nn.attention.activate_flash_attention_impl("flashwave")
    _close(_step(attend, (q, k, v), gradient), expected)
    assert counted == ["_flash_attention_forward", "_flash_attention_backward"]


def test_what_is_not_taken_goes_to_torchs_kernel(counted):
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
    flashwave.activate()
    results = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.1, False, True)  # the matrix is wanted
    assert results[0].shape == q.shape and not counted

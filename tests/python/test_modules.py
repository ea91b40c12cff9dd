"""flashwave.modules, and the layers that flashwave.compat builds of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import standard
from flashwave.compat.flash_attn.flash_attention import (
    FlashAttention as PackedFlashAttention,
)
from flashwave.compat.flash_attn.modules.mha import (
    MHA,
    CrossAttention,
    FlashCrossAttention,
    FlashSelfAttention,
    SelfAttention,
    get_alibi_slopes,
)
from flashwave.modules import FlashAttention, FlashMHA
from flashwave.rotary import apply_rotary_emb_torch
from numeric import assert_within_rule

RIGHT = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]).bool()
LEFT = RIGHT.flip(1)


pytestmark = pytest.mark.usefixtures("tensors_on_the_device")


def _close(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal, window", [(False, (-1, -1)), (True, (-1, -1)), (False, (2, 1))])
def test_flash_attention(dtype, causal, window, device):
    q = torch.randn(2, 9, 4, 16, device=device, dtype=dtype)
    k, v = torch.randn(2, 2, 11, 2, 16, device=device, dtype=dtype)
    ours = FlashAttention(softmax_scale=0.3)(q, k, v, causal=causal, window_size=window)
    reference, _ = standard.attention(q, k, v, causal, window, 0.3)
    naive, _ = standard.attention(q, k, v, causal, window, 0.3, dtype=dtype)
    assert_within_rule(ours, reference, naive, 2)


def test_dropout_in_training_only(device):
    q, k, v = torch.randn(3, 1, 8, 2, 16, device=device)
    layer = FlashAttention(attention_dropout=0.5)
    dropped = layer(q, k, v)
    layer.eval()
    _close(layer(q, k, v), standard.attention(q, k, v)[0].float())
    assert not torch.allclose(dropped, layer(q, k, v))


def _mha_and_torch(causal=False, bias=True):
    ours = FlashMHA(32, 4, bias=bias, causal=causal)
    theirs = nn.MultiheadAttention(32, 4, bias=bias, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.Wqkv.weight)
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        if bias:
            theirs.in_proj_bias.copy_(ours.Wqkv.bias)
            theirs.out_proj.bias.copy_(ours.out_proj.bias)
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_mha_is_torchs(causal, bias):
    ours, theirs = _mha_and_torch(causal, bias)
    x = torch.randn(3, 7, 32, requires_grad=True)
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    out, weights = ours(x)
    expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    assert weights is None
    _close(out, expected)
    cotangent = torch.randn_like(out)
    _close(torch.autograd.grad(out, x, cotangent)[0], torch.autograd.grad(expected, x, cotangent)[0])


@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
@pytest.mark.parametrize("causal", [False, True])
def test_mha_padding(mask, causal, device):
    mask = mask.to(device)
    ours, theirs = _mha_and_torch(causal)
    x = torch.randn(3, 7, 32)
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=~mask, attn_mask=hidden, need_weights=False)
    out, _ = ours(x, key_padding_mask=mask)
    _close(out[mask], expected[mask])
    _close(out[~mask], ours.out_proj.bias.expand(int((~mask).sum()), -1))
    # What stands in the padding does not matter.
    other = torch.where(mask[..., None], x, torch.randn_like(x))
    _close(ours(other, key_padding_mask=mask)[0], out)


def test_mha_shares_heads_of_keys():
    layer = FlashMHA(32, 4, num_heads_k=2)
    x = torch.randn(2, 5, 32)
    q, k, v = layer.Wqkv(x).unflatten(-1, (8, 8)).split((4, 2, 2), dim=2)
    _close(layer(x)[0], layer.out_proj(standard.attention(q, k, v)[0].float().flatten(-2)))


@pytest.mark.parametrize(
    "arguments, named",
    [
        ({"embed_dim": 30}, "embed_dim"),
        ({"num_heads_k": 3}, "num_heads"),
        ({"batch_first": False}, "batch_first"),
    ],
)
def test_mha_refuses(arguments, named):
    with pytest.raises(ValueError, match=named):
        FlashMHA(**{"embed_dim": 32, "num_heads": 4, **arguments})


def test_weights_are_not_to_be_had():
    with pytest.raises(ValueError, match="need_weights"):
        FlashMHA(32, 4)(torch.randn(1, 3, 32), need_weights=True)
    with pytest.raises(ValueError, match="need_weights"):
        PackedFlashAttention()(torch.randn(1, 3, 3, 2, 8), need_weights=True)


def test_the_other_name():
    import flash_attention_amd
    import flashwave

    for name in flash_attention_amd.__all__:
        assert getattr(flash_attention_amd, name) is getattr(flashwave, name)


# ------------------------------------------------------------------------------------------------------ flash-attn 1.x


@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
def test_packed_flash_attention(mask, device):
    mask = mask.to(device)
    qkv = torch.randn(3, 7, 3, 2, 16)
    layer = PackedFlashAttention(softmax_scale=0.2)
    out, weights = layer(qkv, causal=True)
    assert weights is None
    _close(out, standard.attention(*qkv.unbind(2), causal=True, scale=0.2)[0].float())
    out, _ = layer(qkv, key_padding_mask=mask)
    for row, tokens in enumerate(mask):
        alone = qkv[row, tokens][None]
        _close(out[row, tokens], standard.attention(*alone.unbind(2), scale=0.2)[0][0].float())
        assert not out[row, ~tokens].any()
    cu_seqlens = torch.tensor([0, 7, 14, 21], dtype=torch.int32)
    ragged, _ = layer(qkv.flatten(0, 1), causal=True, cu_seqlens=cu_seqlens, max_s=7)
    _close(ragged.unflatten(0, (3, 7)), layer(qkv, causal=True)[0])


# ------------------------------------------------------------------------------------------------------- modules.mha


def test_self_and_cross_attention(device):
    qkv = torch.randn(3, 7, 3, 2, 16)
    expected = standard.attention(*qkv.unbind(2), causal=True)[0].float()
    _close(FlashSelfAttention(causal=True)(qkv), expected)
    _close(SelfAttention()(qkv, causal=True), expected)
    _close(FlashCrossAttention(causal=True)(qkv[:, :, 0], qkv[:, :, 1:]), expected)
    offsets = torch.tensor([0, 7, 14, 21], dtype=torch.int32)
    flat = qkv.flatten(0, 1)
    _close(FlashSelfAttention(causal=True)(flat, cu_seqlens=offsets, max_seqlen=7), expected.flatten(0, 1))
    # Keys that are padding, queries that are not: the last query stands at the last token.
    q = torch.randn(3, 4, 2, 16)
    out = CrossAttention(causal=True)(q, qkv[:, :, 1:], key_padding_mask=LEFT.to(device))
    for row, tokens in enumerate(LEFT.to(device)):
        k, v = qkv[row, tokens][None, :, 1:].unbind(2)
        _close(out[row], standard.attention(q[row][None], k, v, causal=True)[0][0].float())


@pytest.mark.parametrize("heads_kv", [None, 2])
def test_mha_layer(heads_kv, device):
    layer = MHA(32, 4, num_heads_kv=heads_kv, causal=True, return_residual=True)
    twin = FlashMHA(32, 4, causal=True, num_heads_k=heads_kv)
    twin.load_state_dict({key: value for key, value in layer.state_dict().items() if key.startswith(("Wqkv", "out"))})
    x = torch.randn(3, 7, 32)
    out, residual = layer(x)
    assert residual is x
    _close(out, twin(x)[0])
    mask = RIGHT.to(device)
    _close(layer(x, key_padding_mask=mask)[0], twin(x, key_padding_mask=mask)[0])
    offsets = torch.tensor([0, 7, 14, 21], dtype=torch.int32)
    _close(layer(x.flatten(0, 1), cu_seqlens=offsets, max_seqlen=7)[0], out.flatten(0, 1))
    layer.checkpointing = True
    _close(layer(x)[0], out)


def test_mha_cross_attention_layer():
    layer = MHA(32, 4, cross_attn=True)
    x, other = torch.randn(3, 4, 32), torch.randn(3, 7, 32)
    q = layer.Wq(x).unflatten(-1, (4, 8))
    k, v = layer.Wkv(other).unflatten(-1, (2, 4, 8)).unbind(2)
    expected = layer.out_proj(standard.attention(q, k, v)[0].float().flatten(-2))
    _close(layer(x, x_kv=other), expected)
    _close(layer(x, x_kv=other, mixer_subset=slice(1, 3)), expected[:, 1:3])


def _inference_params(max_seqlen):
    return SimpleNamespace(
        key_value_memory_dict={},
        max_batch_size=2,
        max_seqlen=max_seqlen,
        seqlen_offset=0,
        batch_size_offset=0,
        lengths_per_sample=None,
    )


@pytest.mark.parametrize("alibi", [False, True])
def test_mha_cache(alibi):
    """Tokens one after the other give what they give at once."""
    layer = MHA(32, 4, num_heads_kv=2, causal=True, layer_idx=0, use_alibi=alibi, window_size=(3, 0))
    x = torch.randn(2, 7, 32)
    params = _inference_params(max_seqlen=9)
    with torch.no_grad():
        expected = layer(x)
        parts = []
        for part in x.split((4, 1, 2), dim=1):
            parts.append(layer(part, inference_params=params))
            params.seqlen_offset += part.shape[1]
    _close(torch.cat(parts, dim=1), expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_mha_rotary(interleaved):
    """Rotated at positions counted from the sequence's start, also in a cache that is filled in parts."""
    layer = MHA(32, 2, causal=True, layer_idx=0, rotary_emb_dim=16, rotary_emb_interleaved=interleaved)
    plain = MHA(32, 2, causal=True)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, 6, 32)
    params = _inference_params(max_seqlen=8)
    with torch.no_grad():
        expected = layer(x)
        assert not torch.allclose(expected, plain(x))
        first = layer(x[:, :5], inference_params=params)
        params.seqlen_offset = 5
        last = layer(x[:, 5:], inference_params=params)
    _close(torch.cat([first, last], dim=1), expected)
    cos, sin = layer.rotary_emb._cos_cached[:6], layer.rotary_emb._sin_cached[:6]
    q, k, v = layer.Wqkv(x).unflatten(-1, (3, 2, 16)).unbind(2)
    q, k = (apply_rotary_emb_torch(part, cos, sin, interleaved) for part in (q, k))
    by_hand = layer.out_proj(standard.attention(q, k, v, causal=True)[0].float().flatten(-2))
    _close(expected, by_hand.detach())
    weight, cotangent = layer.Wqkv.weight, torch.randn_like(by_hand)
    ours = torch.autograd.grad(layer(x), weight, cotangent)
    _close(ours, torch.autograd.grad(by_hand, weight, cotangent))
    with pytest.raises(ValueError, match="cu_seqlens"):
        layer(x.flatten(0, 1), cu_seqlens=torch.tensor([0, 6, 12], dtype=torch.int32), max_seqlen=6)


def test_alibi_slopes():
    assert get_alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert get_alibi_slopes(3) == [2.0**-4, 2.0**-8, 2.0**-2]


def test_mha_layer_refuses():
    with pytest.raises(NotImplementedError, match="dwconv"):
        MHA(32, 4, dwconv=True)
    with pytest.raises(ValueError, match="num_heads"):
        MHA(32, 4, num_heads_kv=3)
    with pytest.raises(ValueError, match="layer_idx"):
        MHA(32, 4)(torch.randn(1, 2, 32), inference_params=SimpleNamespace())

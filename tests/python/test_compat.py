"""flashwave.compat: `import flash_attn` as flashwave, and what its modules compute."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import flashwave.compat
import standard
from flashwave.compat import flash_attn_2_cuda as raw
from flashwave.compat.flash_attn import flash_attn_interface as interface

SHIM = Path(__file__).parents[2] / "python" / "shim"


@pytest.fixture
def installed():
    flashwave.compat.install()
    yield
    flashwave.compat.uninstall()


pytestmark = pytest.mark.usefixtures("tensors_on_the_device")


def _close(ours, expected, tolerance=2e-5):
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------------------- imports


def test_one_module_under_two_names(installed):
    flash_attn = importlib.import_module("flash_attn")
    assert flash_attn is importlib.import_module("flashwave.compat.flash_attn")
    names = ("bert_padding", "flash_attn_interface", "layers.rotary", "ops.triton.layer_norm", "modules.mha")
    for name in names:
        module = importlib.import_module(f"flash_attn.{name}")
        assert module is importlib.import_module(f"flashwave.compat.flash_attn.{name}")
        assert module.__spec__.name == f"flashwave.compat.flash_attn.{name}"
    assert importlib.import_module("flash_attn_2_cuda") is raw
    assert flash_attn.flash_attn_func is flashwave.flash_attn_func


# What flash-attn's own tests, transformers, xFormers, gpt-neox, ring attention and models on the hub import.
IMPORTED = {
    "flash_attn": "__version__ bert_padding flash_attn_interface flash_attn_func flash_attn_kvpacked_func "
    "flash_attn_qkvpacked_func flash_attn_varlen_func flash_attn_varlen_kvpacked_func "
    "flash_attn_varlen_qkvpacked_func flash_attn_with_kvcache",
    "flash_attn.bert_padding": "pad_input unpad_input index_first_axis index_put_first_axis "
    "unpad_input_for_concatenated_sequences IndexFirstAxis",
    "flash_attn.flash_attn_interface": "_get_block_size_n USE_TRITON_ROCM flash_attn_gpu maybe_contiguous "
    "_flash_attn_forward _flash_attn_backward _flash_attn_varlen_forward _flash_attn_varlen_backward "
    "_wrapped_flash_attn_forward _wrapped_flash_attn_backward flash_attn_unpadded_func "
    "flash_attn_unpadded_qkvpacked_func flash_attn_unpadded_kvpacked_func flash_attn_unpadded_qkvpacked_split_func",
    "flash_attn.layers.rotary": "apply_rotary_emb RotaryEmbedding apply_rotary_emb_func apply_rotary_emb_qkv_ "
    "apply_rotary_emb_kv_ apply_rotary_emb_torch rotate_half",
    "flash_attn.ops.triton.rotary": "apply_rotary",
    "flash_attn.ops.triton.layer_norm": "RMSNorm layer_norm_fn rms_norm_fn layer_norm_linear_fn",
    "flash_attn.ops.triton.cross_entropy": "cross_entropy_loss",
    "flash_attn.ops.rms_norm": "RMSNorm rms_norm dropout_add_rms_norm",
    "flash_attn.ops.layer_norm": "dropout_add_layer_norm layer_norm DropoutAddLayerNorm",
    "flash_attn.ops.activations": "swiglu bias_gelu_impl sqrelu_fwd",
    "flash_attn.ops.fused_dense": "FusedDense FusedMLP fused_mlp_func fused_dense_func",
    "flash_attn.losses.cross_entropy": "CrossEntropyLoss",
    "flash_attn.modules.mha": "MHA FlashSelfAttention FlashCrossAttention SelfAttention CrossAttention",
    "flash_attn.flash_attention": "FlashAttention FlashMHA",
    "flash_attn_2_cuda": "fwd varlen_fwd bwd varlen_bwd fwd_kvcache",
}


@pytest.mark.parametrize("module", IMPORTED)
def test_names_that_others_import(module, installed):
    for name in IMPORTED[module].split():
        found = importlib.import_module(module)
        if not hasattr(found, name):  # `from a import b` tries a.b next
            importlib.import_module(f"{module}.{name}")


def test_version_and_distribution(installed):
    version = importlib.metadata.version("flash_attn")
    assert version == importlib.metadata.version("flash-attn") == importlib.import_module("flash_attn").__version__
    assert tuple(int(part) for part in version.split(".")) >= (2, 8, 0)
    assert importlib.util.find_spec("flash_attn") is not None
    if hasattr(importlib.metadata, "packages_distributions"):  # from Python 3.10 on
        assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash-attn"]


def test_what_is_not_there(installed):
    with pytest.raises(ImportError, match="block-sparse"):
        importlib.import_module("flash_attn.flash_blocksparse_attention")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("flash_attn.no_such_module")
    assert importlib.util.find_spec("flash_attn.no_such_module") is None
    with pytest.raises(AttributeError, match="flash_attn_func"):
        _ = importlib.import_module("flash_attn").flash_attn_of_tomorrow


def test_install_and_uninstall():
    before = list(sys.meta_path)
    flashwave.compat.install()
    flashwave.compat.install()
    assert flashwave.compat.installed() and len(sys.meta_path) == len(before) + 1
    importlib.import_module("flash_attn.bert_padding")
    flashwave.compat.uninstall()
    flashwave.compat.uninstall()
    assert sys.meta_path == before and not flashwave.compat.installed()
    assert not any(name.partition(".")[0] == "flash_attn" for name in sys.modules)
    with pytest.raises(ImportError):
        importlib.import_module("flash_attn")


def test_another_flash_attn_is_not_replaced_unasked(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    with pytest.raises(ImportError, match="force=True"):
        flashwave.compat.install()
    assert not flashwave.compat.installed()
    flashwave.compat.install(force=True)
    try:
        assert importlib.import_module("flash_attn").flash_attn_func is flashwave.flash_attn_func
    finally:
        flashwave.compat.uninstall()


SHIM_PROGRAM = """
import importlib, sys
import flashwave.compat
for first in ("flash_attn", "flash_attn.bert_padding", "flash_attn_2_cuda", "flash_attn.layers.rotary"):
    importlib.import_module(first)
    import flash_attn, flash_attn_2_cuda, flash_attn.bert_padding
    from flash_attn.bert_padding import unpad_input
    import flashwave.compat.flash_attn.bert_padding as padding
    assert flash_attn is sys.modules["flashwave.compat.flash_attn"]
    assert flash_attn_2_cuda is sys.modules["flashwave.compat.flash_attn_2_cuda"]
    assert sys.modules["flash_attn.bert_padding"] is padding and flash_attn.bert_padding is padding
    flashwave.compat.install()
    flashwave.compat.uninstall()
"""


def test_shim():
    """The distribution, by its sources on the path, whatever is imported first."""
    paths = [str(SHIM), str(Path(flashwave.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, "-c", SHIM_PROGRAM], env=environment, check=True)


def test_shim_says_the_same_version():
    assert f'version = "{importlib.import_module("flashwave.compat.flash_attn").__version__}"' in (
        SHIM / "pyproject.toml"
    ).read_text(encoding="utf-8")


TAIL = [
    "dropout_p",
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "alibi_slopes",
    "deterministic",
    "return_attn_probs",
]
RAGGED = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("flash_attn_func", ["q", "k", "v", *TAIL]),
        ("flash_attn_qkvpacked_func", ["qkv", *TAIL]),
        ("flash_attn_kvpacked_func", ["q", "kv", *TAIL]),
        ("flash_attn_varlen_func", ["q", "k", "v", *RAGGED, *TAIL, "block_table"]),
        ("flash_attn_varlen_qkvpacked_func", ["qkv", "cu_seqlens", "max_seqlen", *TAIL]),
        ("flash_attn_varlen_kvpacked_func", ["q", "kv", *RAGGED, *TAIL]),
        (
            "flash_attn_with_kvcache",
            [
                "q",
                "k_cache",
                "v_cache",
                "k",
                "v",
                "rotary_cos",
                "rotary_sin",
                "cache_seqlens",
                "cache_batch_idx",
                "cache_leftpad",
                "block_table",
                "softmax_scale",
                "causal",
                "window_size",
                "softcap",
                "rotary_interleaved",
                "alibi_slopes",
                "num_splits",
                "return_softmax_lse",
            ],
        ),
    ],
)
def test_signatures(name, expected):
    parameters = inspect.signature(getattr(interface, name)).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == expected


# ------------------------------------------------------------------------------------------------------- raw functions


def _qkv(sq, sk, grad=True):
    q = torch.randn(2, sq, 4, 16, requires_grad=grad)
    k, v = (torch.randn(2, sk, 2, 16, requires_grad=grad) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("p_dropout", [0.0, 0.3])
def test_halves_are_the_whole(p_dropout):
    """_flash_attn_forward and _flash_attn_backward give what flash_attn_func and its gradient give."""
    q, k, v = _qkv(5, 7)
    torch.manual_seed(7)
    expected, lse, _ = interface.flash_attn_func(q, k, v, p_dropout, 0.2, True, (4, 0), return_attn_probs=True)
    torch.manual_seed(7)
    out, got_lse, matrix, rng_state = interface._flash_attn_forward(
        q, k, v, p_dropout, 0.2, True, 4, 0, 0.0, None, p_dropout > 0
    )
    assert torch.equal(out, expected) and torch.equal(got_lse, lse)
    assert not out.requires_grad
    if p_dropout > 0:
        assert matrix.shape == (2, 4, 5, 7) and (matrix < 0).any()
    dout = torch.randn_like(out)
    given = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    softmax_d = interface._flash_attn_backward(
        dout, q, k, v, out, lse, *given, p_dropout, 0.2, True, 4, 0, 0.0, None, False, rng_state
    )
    for ours, theirs in zip(given, torch.autograd.grad(expected, (q, k, v), dout)):
        assert torch.equal(ours, theirs)
    _close(softmax_d, (dout * out).sum(-1).transpose(1, 2))


def test_ragged_halves_are_the_whole():
    q, k, v = (torch.randn(11, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    offsets = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    lengths = (offsets, offsets, 7, 7)
    expected, lse, _ = interface.flash_attn_varlen_func(q, k, v, *lengths, causal=True, return_attn_probs=True)
    out, got_lse, _, rng_state = interface._flash_attn_varlen_forward(q, k, v, *lengths, 0.0, 0.25, causal=True)
    assert torch.equal(out, expected) and torch.equal(got_lse, lse)
    dout = torch.randn_like(out)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    interface._flash_attn_varlen_backward(
        dout, q, k, v, out, lse, dq, dk, dv, *lengths, 0.0, 0.25, True, -1, -1, 0.0, None, False, rng_state
    )
    for ours, theirs in zip((dq, dk, dv), torch.autograd.grad(expected, (q, k, v), dout)):
        assert torch.equal(ours, theirs)


def test_ring_attention():
    """Keys in two parts: outputs combine by log-sum-exp, gradients of the parts by the whole's out and lse."""
    q, k, v = _qkv(6, 10)
    expected = interface.flash_attn_func(q, k, v)
    options = (0.0, 0.25, False, -1, -1, 0.0, None)
    parts = [(k[:, :4], v[:, :4]), (k[:, 4:], v[:, 4:])]
    outs, lses = zip(*(interface._flash_attn_forward(q, a, b, *options, False)[:2] for a, b in parts))
    lse = torch.logaddexp(*lses)
    out = sum(o * (part - lse).exp().transpose(1, 2)[..., None] for o, part in zip(outs, lses))
    _close(out, expected)
    dout = torch.randn_like(out)
    truth = torch.autograd.grad(expected, (q, k, v), dout)
    results = [
        raw.bwd(dout, q, a, b, out, lse, None, None, None, None, *options[:6], False, None, None) for a, b in parts
    ]
    _close(results[0][0] + results[1][0], truth[0])
    for place in (1, 2):
        _close(torch.cat([results[0][place], results[1][place]], dim=1), truth[place])


def test_rows_that_see_nothing():
    """Their log-sum-exp is flash-attn's +inf, and the backward understands it."""
    q, k, v = _qkv(5, 2)
    out, lse, _, _ = interface._flash_attn_forward(q, k, v, 0.0, 0.25, True, -1, -1, 0.0, None, False)
    assert (lse[:, :, :3] == torch.inf).all() and not out[:, :3].any()
    dout = torch.randn_like(out)
    expected = torch.autograd.grad(interface.flash_attn_func(q, k, v, causal=True), (q, k, v), dout)
    results = raw.bwd(dout, q, k, v, out, lse, None, None, None, None, 0.0, 0.25, True, -1, -1, 0.0, False, None, None)
    for ours, theirs in zip(results, expected):
        assert torch.equal(ours, theirs)


def test_scaled_matrix_of_dropout():
    """S_dmask is exp(s - the row's largest), negative where dropped; the helper says that one block holds all keys."""
    q, k, v = _qkv(6, 9, grad=False)
    _, lse, matrix = interface.flash_attn_func(q, k, v, dropout_p=0.3, return_attn_probs=True)
    _, expected_lse = standard.attention(q, k, v)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(2, 2)) * 0.25
    _close(matrix.abs(), (scores - scores.amax(-1, keepdim=True)).exp())
    _close(lse, expected_lse.float())
    assert 0 < (matrix < 0).float().mean() < 0.6
    assert interface._get_block_size_n("cpu", 128, True, False) >= 1 << 20


def test_cache_of_the_raw_module():
    q, k, v = _qkv(1, 8, grad=False)
    lengths = torch.tensor([5, 8], dtype=torch.int32)
    out, lse = raw.fwd_kvcache(
        q, k, v, None, None, lengths, None, None, None, None, None, None, None, 0.25, True, -1, -1, 0.0, False, 0
    )
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        expected, expected_lse = standard.attention(q[one], k[one, :length], v[one, :length])
        _close(out[one], expected.float())
        _close(lse[one], expected_lse.float())


def test_what_the_raw_module_refuses():
    q, k, v = _qkv(3, 3, grad=False)
    head = (q, k, v, None, None)
    with pytest.raises(RuntimeError, match="`generator` argument is no longer supported"):
        raw.fwd(*head, 0.0, 0.25, False, -1, -1, 0.0, False, torch.Generator())
    out, lse, _, _ = raw.fwd(*head, 0.5, 0.25, False, -1, -1, 0.0, False, None)
    with pytest.raises(RuntimeError, match="rng_state"):
        raw.bwd(out, q, k, v, out, lse, None, None, None, None, 0.5, 0.25, False, -1, -1, 0.0, False, None, None)
    pages = torch.randn(4, 8, 2, 16)
    offsets = torch.tensor([0, 3, 6], dtype=torch.int32)
    table = torch.tensor([[0], [1]], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="num_splits > 1 is not supported"):
        interface._flash_attn_varlen_forward(
            q.flatten(0, 1), pages, pages, offsets, offsets, 3, 3, 0.0, 0.25, False, block_table=table, num_splits=2
        )


# ------------------------------------------------------------------------------------------------------- flash-attn 1.x


def _top_left(q, k, v, scale):
    """One sequence: key j is visible to query i iff j <= i."""
    scores = torch.einsum("qhd,khd->hqk", q, k).double() * scale
    hidden = torch.arange(k.shape[0])[None] > torch.arange(q.shape[0])[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v.double())


@pytest.mark.parametrize(
    "lengths_q, lengths_k",
    [((3, 5), (3, 5)), ((3, 2), (5, 7)), ((6, 5), (2, 4)), ((2, 7, 4, 1), (5, 3, 4, 9))],
    ids=["equal", "more keys", "more queries", "mixed"],
)
def test_causal_of_1x_is_top_left(lengths_q, lengths_k):
    q = torch.randn(sum(lengths_q), 2, 16, requires_grad=True)
    k, v = (torch.randn(sum(lengths_k), 2, 16, requires_grad=True) for _ in range(2))
    offsets = [torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32) for n in (lengths_q, lengths_k)]
    out = interface.flash_attn_unpadded_func(q, k, v, *offsets, max(lengths_q), max(lengths_k), 0.0, 0.3, causal=True)
    sequences = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k))
    expected = torch.cat([_top_left(*sequence, 0.3) for sequence in sequences])
    _close(out, expected.float())
    cotangent = torch.randn_like(out)
    for ours, theirs in zip(
        torch.autograd.grad(out, (q, k, v), cotangent), torch.autograd.grad(expected, (q, k, v), cotangent.double())
    ):
        _close(ours, theirs)


def test_packed_functions_of_1x():
    qkv = torch.randn(9, 3, 2, 16)
    offsets = torch.tensor([0, 2, 9], dtype=torch.int32)
    out, lse, _ = interface.flash_attn_unpadded_qkvpacked_func(
        qkv, offsets, 7, 0.0, causal=True, return_attn_probs=True
    )
    q, k, v = qkv.unbind(1)
    _close(interface.flash_attn_unpadded_kvpacked_func(q, qkv[:, 1:], offsets, offsets, 7, 7, 0.0, causal=True), out)
    _close(interface.flash_attn_unpadded_qkvpacked_split_func(qkv, offsets, 2, 7, 1, 0.0, causal=True), out)
    assert lse.shape == (2, 2, 7) and not lse[0, :, 2:].any()
    for row, part in enumerate((slice(0, 2), slice(2, 9))):
        expected, expected_lse = standard.attention(q[part][None], k[part][None], v[part][None], causal=True)
        _close(out[part], expected[0].float())
        _close(lse[row, :, : part.stop - part.start], expected_lse[0].float())
    torch.manual_seed(0)
    results = interface.flash_attn_unpadded_qkvpacked_split_func(qkv, offsets, 2, 7, 1, 0.3, return_attn_probs=True)
    assert [tuple(x.shape) for x in results[1:]] == [(2, 2, 7), (1, 2, 2, 2), (1, 2, 7, 7)]


@pytest.mark.parametrize("causal", [False, True])
def test_matrix_of_1x_without_dropout(causal):
    """Rows of the matrix, normalised, times v are the output: also where sequences have more or fewer keys."""
    lengths_q, lengths_k = (2, 7, 4, 1), (5, 3, 4, 9)
    q, k, v = (torch.randn(sum(n), 2, 16) for n in (lengths_q, lengths_k, lengths_k))
    offsets = [torch.tensor([0, *torch.tensor(n).cumsum(0)], dtype=torch.int32) for n in (lengths_q, lengths_k)]
    function = interface.flash_attn_unpadded_func
    out, lse, matrix = function(q, k, v, *offsets, 7, 9, 0.0, 0.3, causal=causal, return_attn_probs=True)
    assert matrix.shape == (4, 2, 7, 9) and lse.shape == (4, 2, 7)
    for b, (one_q, one_k, one_v) in enumerate(zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k))):
        scores = torch.einsum("qhd,khd->hqk", one_q, one_k) * 0.3
        if causal:
            seen = torch.arange(one_k.shape[0])[None] <= torch.arange(one_q.shape[0])[:, None]
            scores = scores.masked_fill(~seen, -torch.inf)
        expected = (scores - scores.amax(-1, keepdim=True)).exp()
        rows, keys = one_q.shape[0], one_k.shape[0]
        _close(matrix[b, :, :rows, :keys], expected)
        assert not matrix[b, :, rows:].any() and not matrix[b, :, :, keys:].any()
        _close(lse[b, :, :rows], scores.logsumexp(-1))
        weights = expected / expected.sum(-1, keepdim=True)
        start = sum(lengths_q[:b])
        _close(out[start : start + rows], torch.einsum("hqk,khd->qhd", weights, one_v))


# ------------------------------------------------------------------------------------------- norms, losses, activations

LAYER_NORM = importlib.import_module("flashwave.compat.flash_attn.ops.triton.layer_norm")


def _norm(h, weight, bias, rms):
    if not rms:
        return F.layer_norm(h, h.shape[-1:], weight, bias, 1e-5)
    return h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + (0 if bias is None else bias)


@pytest.mark.parametrize("rms", [False, True])
def test_norms(rms):
    x, x1, residual = (torch.randn(3, 5, 16, dtype=torch.float32, requires_grad=True) for _ in range(3))
    weight, bias, weight1, bias1 = (torch.randn(16, requires_grad=True) for _ in range(4))
    scale = torch.rand(3, 5)
    function = LAYER_NORM.rms_norm_fn if rms else LAYER_NORM.layer_norm_fn
    _close(function(x, weight, bias, eps=1e-5), _norm(x, weight, bias, rms))
    y, h = function(x, weight, None, residual, eps=1e-5, rowscale=scale, prenorm=True, zero_centered_weight=True)
    expected = x * scale[..., None] + residual
    _close(h, expected)
    _close(y, _norm(expected, weight + 1, None, rms))
    y, y1, h = function(x, weight, bias, residual, x1, weight1, bias1, eps=1e-5, prenorm=True)
    expected = x + x1 + residual
    _close((y, y1, h), (_norm(expected, weight, bias, rms), _norm(expected, weight1, bias1, rms), expected))
    inputs = (x, residual, weight, bias)
    ours = torch.autograd.grad(function(x, weight, bias, residual, eps=1e-5).square().sum(), inputs)
    theirs = torch.autograd.grad(_norm(x + residual, weight, bias, rms).square().sum(), inputs)
    _close(ours, theirs, 1e-4)


def test_norms_in_half_precision():
    x, weight = torch.randn(4, 32).bfloat16(), torch.rand(32).bfloat16()
    y, h = LAYER_NORM.rms_norm_fn(x, weight, None, x, prenorm=True)
    exact = (2 * x.double()) / (2 * x.double()).square().mean(-1, keepdim=True).sqrt() * weight.double()
    assert y.dtype == h.dtype == torch.bfloat16
    assert (y.double() - exact).abs().max() <= exact.abs().max() * 2.0**-8
    assert LAYER_NORM.rms_norm_fn(x, weight, None, prenorm=True, residual_in_fp32=True)[1].dtype == torch.float32


def test_norms_dropout():
    x, weight = torch.randn(200, 64), torch.ones(64)
    _, h, kept, none = LAYER_NORM.layer_norm_fn(x, weight, None, dropout_p=0.25, prenorm=True, return_dropout_mask=True)
    _close(h, x * kept / 0.75)
    assert abs(kept.float().mean() - 0.75) < 0.02 and none is None
    assert LAYER_NORM.layer_norm_fn(x, weight, None, return_dropout_mask=True)[1:] == (None, None)


def test_norms_of_the_former_extension():
    module = importlib.import_module("flashwave.compat.flash_attn.ops.layer_norm")
    rms = importlib.import_module("flashwave.compat.flash_attn.ops.rms_norm")
    x, residual, weight, scale = torch.randn(3, 16), torch.randn(3, 16), torch.rand(16), torch.rand(16)
    y, h = module.dropout_add_layer_norm(x, residual, weight, weight, 0.0, 1e-5, layerscale=scale, prenorm=True)
    _close((y, h), (_norm(x * scale + residual, weight, weight, False), x * scale + residual))
    _close(rms.dropout_add_rms_norm(x, None, weight, None, 0.0, 1e-5), _norm(x, weight, None, True))
    y0, y1 = rms.dropout_add_rms_norm_parallel_residual(x, x, None, weight, None, None, None, 0.0, 1e-5)
    assert y1 is None
    _close(y0, _norm(2 * x, weight, None, True))
    _close(rms.RMSNorm(16)(x), _norm(x, torch.ones(16), None, True))
    _close(module.DropoutAddLayerNorm(16, p=0.9).eval()(x, residual), F.layer_norm(x + residual, (16,)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing):
    module = importlib.import_module("flashwave.compat.flash_attn.losses.cross_entropy")
    logits = torch.randn(7, 20, requires_grad=True)
    labels = torch.randint(0, 20, (7,))
    labels[2] = -100
    for reduction in ("mean", "sum", "none"):
        ours = module.CrossEntropyLoss(reduction=reduction, label_smoothing=smoothing)(logits, labels)
        expected = F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing)
        _close(ours, expected)
        _close(torch.autograd.grad(ours.sum(), logits), torch.autograd.grad(expected.sum(), logits))
    loss, z_loss = module.cross_entropy_loss(logits, labels, logit_scale=0.5, lse_square_scale=0.01)
    z = 0.01 * (0.5 * logits).logsumexp(-1).square() * (labels != -100)
    _close((loss, z_loss), (F.cross_entropy(0.5 * logits, labels, reduction="none") + z, z))
    assert loss.requires_grad and not z_loss.requires_grad  # that one is for logs


def test_activations():
    module = importlib.import_module("flashwave.compat.flash_attn.ops.activations")
    x, y, g = torch.randn(3, 5, 8, requires_grad=True), torch.randn(3, 5, 8), torch.randn(3, 5, 8)
    bias = torch.randn(8)
    _close(module.swiglu(x, y), F.silu(x) * y)
    _close(module.bias_gelu(x, bias), F.gelu(x + bias, approximate="tanh"))
    _close(module.sqrelu_fwd(x), F.relu(x).square())
    for backward, function in (
        (module.gelu_bwd, lambda t: F.gelu(t, approximate="tanh")),
        (module.sqrelu_bwd, lambda t: F.relu(t).square()),
        (module.relu_bwd, F.relu),
    ):
        _close(backward(g, x.detach()), torch.autograd.grad(function(x), x, g)[0])
    dy, dbias = module.bias_gelu_back(g, y, bias)
    _close(dbias, dy.sum((0, 1)))


def test_fused_dense():
    module = importlib.import_module("flashwave.compat.flash_attn.ops.fused_dense")
    x = torch.randn(4, 8, requires_grad=True)
    layer = module.FusedDense(8, 6, return_residual=True)
    out, residual = layer(x)
    assert residual is x
    _close(out, F.linear(x, layer.weight, layer.bias))
    mlp = module.FusedMLP(8, checkpoint_lvl=1)
    expected = mlp.fc2(F.gelu(mlp.fc1(x), approximate="tanh"))
    _close(mlp(x), expected)
    _close(torch.autograd.grad(mlp(x).sum(), x), torch.autograd.grad(expected.sum(), x))
    with pytest.raises(ValueError, match="activation"):
        module.FusedMLP(8, activation="swish")(x)

"""flashwave.rotary against the formula in float64: numerics, layouts, offsets, gradients, in place, compile."""

from __future__ import annotations

import copy

import pytest
import torch
import torch._dynamo.testing

import flashwave
from flashwave import operators, rotary, rotary_operator
from numeric import assert_within_rule

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def angles(positions, rotary_dim, device, dtype=torch.float32):
    steps = 30.0 ** -(torch.arange(rotary_dim // 2, device=device, dtype=torch.float64) / 16)
    turns = (torch.arange(positions, device=device, dtype=torch.float64) + 1).unsqueeze(1) * steps
    return turns.cos().to(dtype), turns.sin().to(dtype)


def formula(x, cos, sin, positions, interleaved=False, conjugate=False):
    """Row by row, pair by pair in x's dtype. positions: those of x's rows, with x's leading dimensions."""
    rows_cos, rows_sin = cos[positions].to(x.dtype), sin[positions].to(x.dtype)
    if conjugate:
        rows_sin = -rows_sin
    out, pairs = x.clone(), cos.shape[1]
    for pair in range(pairs):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
        c, s = rows_cos[..., pair].unsqueeze(-1), rows_sin[..., pair].unsqueeze(-1)
        out[..., a] = x[..., a] * c - x[..., b] * s
        out[..., b] = x[..., a] * s + x[..., b] * c
    return out


def dense_positions(batch, seqlen, offsets, device):
    offsets = offsets if isinstance(offsets, torch.Tensor) else torch.full((batch,), offsets, device=device)
    return offsets.long().unsqueeze(1) + torch.arange(seqlen, device=device)


def packed_positions(cu_seqlens, offsets=None):
    """Of each row that belongs to a sequence."""
    bounds = cu_seqlens.tolist()
    shift = [0] * (len(bounds) - 1) if offsets is None else offsets.tolist()
    return torch.tensor([shift[b] + i for b in range(len(bounds) - 1) for i in range(bounds[b + 1] - bounds[b])])


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotary_dim,dim", ((64, 64), (24, 40), (2, 3), (640, 700)))
@pytest.mark.parametrize("offsets", (0, 5, "int32", "int64"))
def test_values_and_gradients_obey_the_rule(device, interleaved, dtype, rotary_dim, dim, offsets):
    batch, seqlen, heads = 2, 7, 3
    if isinstance(offsets, str):
        offsets = torch.tensor([4, 0], dtype=getattr(torch, offsets), device=device)
    x = torch.randn(batch, seqlen, heads, dim, device=device).to(dtype).requires_grad_()
    gradient = torch.randn(batch, seqlen, heads, dim, device=device).to(dtype)
    cos, sin = angles(12, rotary_dim, device, dtype)
    positions = dense_positions(batch, seqlen, offsets, device)
    out = rotary.apply_rotary_emb(x, cos, sin, interleaved=interleaved, seqlen_offsets=offsets)
    (dx,) = torch.autograd.grad(out, x, gradient)
    assert out.dtype == dtype and dx.dtype == dtype
    for result, source, conjugate, factor in ((out, x.detach(), False, 2), (dx, gradient, True, 3)):
        reference = formula(source.double(), cos, sin, positions, interleaved, conjugate)
        naive = formula(source, cos, sin, positions, interleaved, conjugate)
        assert_within_rule(result, reference, naive, factor)
        assert torch.equal(result[..., rotary_dim:], source[..., rotary_dim:])


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
def test_library_and_composed_give_the_same_bits(interleaved, dtype, monkeypatch):
    x = torch.randn(2, 33, 5, 48).to(dtype)
    packed, cu_seqlens = torch.randn(40, 5, 48).to(dtype), torch.tensor([0, 3, 3, 21, 37], dtype=torch.int32)
    cos, sin = angles(64, 36, "cpu")

    def results():
        offsets = torch.tensor([20, 3])
        return (
            rotary.apply_rotary(x, cos, sin, offsets, interleaved=interleaved),
            rotary.apply_rotary(x, cos, sin, 31, interleaved=interleaved, conjugate=True),
            rotary.apply_rotary(packed, cos, sin, 2, cu_seqlens, 18, interleaved),
            rotary.apply_rotary(packed, cos, sin, torch.tensor([9, 50, 1, 7]), cu_seqlens, 18, interleaved),
        )

    from_library = results()
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd")  # no rotary kernel: PyTorch operations
    for a, b in zip(from_library, results()):
        assert torch.equal(a, b)


@pytest.mark.skipif(operators.why_no_binding is not None, reason=f"no binding: {operators.why_no_binding}")
def test_usual_layouts_never_come_to_python(device, monkeypatch):
    cos, sin = angles(40, 24, device)
    offsets = torch.tensor([3, 1], dtype=torch.int32, device=device)
    cu_seqlens = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    qkv = torch.randn(2, 6, 3, 4, 32, device=device).bfloat16()
    cache = torch.randn(2, 2, 30, 4, 32, device=device).bfloat16()

    def results():
        packed = qkv.clone()
        step = *cache.clone(), qkv[:, :1, 1], qkv[:, :1, 2], cos[:, :8], sin[:, :8], offsets
        return (
            rotary.apply_rotary(qkv[:, :, 0], cos, sin, offsets),
            rotary.apply_rotary(qkv.flatten(2, 3), cos, sin, 2, interleaved=True, conjugate=True),
            rotary.apply_rotary(qkv[0, :, 0].repeat(2, 1, 1), cos, sin, cu_seqlens=cu_seqlens, max_seqlen=5),
            rotary.apply_rotary_emb_qkv_(packed, cos, sin),
            rotary.apply_rotary_emb_qkv_(packed, cos, sin, cos * 2, sin * 2),
            rotary.apply_rotary_emb_kv_(packed[:, :, 1:], cos, sin, seqlen_offsets=offsets),
            flashwave.flash_attn_with_kvcache(qkv[:, :1, 0], *step),
        )

    def refuse(*_):
        raise AssertionError("Python was asked")

    expected = results()
    monkeypatch.setattr(rotary_operator, "_turn_all", refuse)
    monkeypatch.setattr(operators.dispatch, "forward", refuse)
    for ours, theirs in zip(results(), expected):
        assert torch.equal(ours, theirs)
    with pytest.raises(AssertionError, match="Python was asked"):  # it would be noticed
        rotary.apply_rotary(qkv[:, :, 0].double(), cos, sin)


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("dtype", (*DTYPES, torch.float64))
@pytest.mark.parametrize("with_offsets", (False, True))
@pytest.mark.parametrize("max_seqlen", (9, None))
def test_packed_sequences(device, interleaved, dtype, with_offsets, max_seqlen):
    cu_seqlens = torch.tensor([0, 4, 4, 13, 14], dtype=torch.int32, device=device)
    offsets = torch.tensor([3, 50, 0, 8], device=device) if with_offsets else None
    x = torch.randn(17, 2, 24, device=device).to(dtype).requires_grad_()  # three rows of no sequence
    gradient = torch.randn_like(x)
    cos, sin = angles(60, 20, device, dtype)
    out = rotary.apply_rotary_emb(
        x, cos, sin, interleaved, False, 0 if offsets is None else offsets, cu_seqlens, max_seqlen
    )
    (dx,) = torch.autograd.grad(out, x, gradient)
    positions = packed_positions(cu_seqlens, offsets).to(device)
    for result, source, conjugate, factor in ((out, x.detach(), False, 2), (dx, gradient, True, 3)):
        reference = formula(source[:14].double(), cos, sin, positions, interleaved, conjugate)
        naive = formula(source[:14], cos, sin, positions, interleaved, conjugate)
        assert_within_rule(result[:14], reference, naive, factor)
        assert torch.equal(result[14:], source[14:])


def test_no_sequence_and_no_rows(device):
    cos, sin = angles(4, 8, device)
    x = torch.randn(3, 2, 8, device=device)
    none = torch.tensor([0], dtype=torch.int32, device=device)
    assert torch.equal(rotary.apply_rotary(x, cos, sin, cu_seqlens=none, max_seqlen=0), x)
    empty = torch.randn(2, 0, 3, 8, device=device, requires_grad=True)
    out = rotary.apply_rotary_emb(empty, cos, sin)
    out.sum().backward()
    assert out.shape == empty.grad.shape == (2, 0, 3, 8)


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("packed", (False, True))
def test_gradcheck(device, interleaved, packed):
    cos, sin = angles(9, 4, device, torch.float64)
    x = torch.randn((5, 2, 6) if packed else (2, 3, 2, 6), dtype=torch.float64, device=device, requires_grad=True)
    cu_seqlens = torch.tensor([0, 2, 4], dtype=torch.int32, device=device) if packed else None
    offsets = torch.tensor([1, 4], device=device)

    def turned(x):
        return rotary.apply_rotary_emb(x, cos, sin, interleaved, False, offsets, cu_seqlens, 2 if packed else None)

    assert torch.autograd.gradcheck(turned, x)
    assert torch.autograd.gradgradcheck(turned, x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_in_place_is_seen_by_autograd(device, dtype):
    cos, sin = angles(5, 8, device, dtype)
    x = torch.randn(2, 5, 3, 8, device=device, dtype=dtype, requires_grad=True)
    expected = rotary.apply_rotary_emb(x * 2, cos, sin)
    doubled = x * 2
    out = rotary.apply_rotary_emb(doubled, cos, sin, inplace=True)
    assert out is doubled and torch.equal(out, expected)
    wanted = torch.autograd.grad(expected.square().sum(), x)
    assert torch.allclose(torch.autograd.grad(out.square().sum(), x)[0], wanted[0])

    weight = torch.randn(8, device=device, dtype=dtype, requires_grad=True)
    for changed in (torch.randn_like(x), x * 1):  # without and with a gradient of its own
        product = changed * weight  # keeps `changed`
        rotary.apply_rotary_emb(changed, cos, sin, inplace=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


def test_in_place_of_a_leaf_as_in_flash_attn(device):
    cos, sin = angles(5, 8, device)
    x = torch.randn(2, 5, 3, 8, device=device, requires_grad=True)
    before = x.detach().clone().requires_grad_()
    gradient = torch.randn_like(x)
    out = rotary.apply_rotary_emb(x, cos, sin, inplace=True)
    out.backward(gradient)
    expected = rotary.apply_rotary_emb(before, cos, sin)
    expected.backward(gradient)
    assert torch.equal(out, expected) and torch.equal(x.detach(), expected) and torch.equal(x.grad, before.grad)


def test_incoming_gradient_is_left_alone(device):
    cos, sin = angles(5, 8, device)
    qkv = torch.randn(2, 5, 3, 2, 8, device=device, requires_grad=True)
    gradient = torch.randn_like(qkv)
    kept = gradient.clone()
    rotary.apply_rotary_emb_qkv_(qkv * 1, cos, sin).backward(gradient)
    assert torch.equal(gradient, kept)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64))
@pytest.mark.parametrize("inplace", (False, True))
def test_layouts_that_are_not_contiguous(device, dtype, inplace):
    cos, sin = angles(16, 12, device, dtype)
    base = torch.randn(2, 3, 7, 16, device=device).to(dtype)
    layouts = {
        "head major": base.transpose(1, 2),
        "slice of rows": torch.randn(2, 7, 3, 40, device=device).to(dtype)[..., 3:19],
        "every other head": torch.randn(2, 7, 6, 16, device=device).to(dtype)[:, :, ::2],
        "dim not last": torch.randn(2, 7, 16, 3, device=device).to(dtype).transpose(2, 3),
    }
    table = cos.t().contiguous().t(), torch.stack((sin, sin), 2)[..., 0]  # neither has its columns side by side
    for name, x in layouts.items():
        before = x.clone()
        expected = rotary.apply_rotary_emb(before.contiguous(), cos, sin, seqlen_offsets=3)
        out = rotary.apply_rotary_emb(x, *table, seqlen_offsets=3, inplace=inplace)
        assert torch.equal(out, expected), name
        assert torch.equal(x, expected if inplace else before), name


def test_rows_that_share_memory_cannot_be_turned_in_place():
    cos, sin = angles(5, 8, "cpu")
    shared = torch.randn(1, 5, 3, 8).expand(2, 5, 3, 8)
    assert torch.equal(rotary.apply_rotary_emb(shared, cos, sin)[0], rotary.apply_rotary_emb(shared, cos, sin)[1])
    with pytest.raises(flashwave.InvalidArgument, match="no two elements that are written overlap"):
        rotary.apply_rotary_emb(shared, cos, sin, inplace=True)


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.float64))
@pytest.mark.parametrize("contiguous", (True, False))
@pytest.mark.parametrize("scaled", (False, True))
@pytest.mark.parametrize("heads", (None, (4, 4), (6, 2), (4, 1)))
def test_packed_qkv(device, dtype, contiguous, scaled, heads):
    shape = (2, 6, 3, 4, 16) if heads is None else (2, 6, heads[0] + 2 * heads[1], 16)
    qkv = torch.randn(shape, device=device).to(dtype)
    if not contiguous:
        qkv = qkv.movedim(2, 0).contiguous().movedim(0, 2)
    gradient = torch.randn(shape, device=device).to(dtype)
    cos, sin = angles(9, 12, device, dtype)
    cos_k, sin_k = (cos * 0.5, sin * 0.5) if scaled else (None, None)
    leaf = qkv.clone().requires_grad_()
    argument = leaf * 1
    num_heads_q = None if heads is None else heads[0]
    out = rotary.apply_rotary_emb_qkv_(argument, cos, sin, cos_k, sin_k, True, 3, num_heads_q)
    assert out is argument
    (dqkv,) = torch.autograd.grad(out, leaf, gradient)

    def parts(t):
        if heads is None:
            return t.unbind(2)
        return t.split((heads[0], heads[1], heads[1]), dim=2)

    for result, source, conjugate in ((out, qkv, False), (dqkv, gradient, True)):
        q, k, v = parts(result)
        source_q, source_k, source_v = parts(source)
        turn = {"seqlen_offsets": 3, "interleaved": True, "conjugate": conjugate}
        assert torch.equal(q, rotary.apply_rotary(source_q, cos, sin, **turn))
        table = (cos_k, sin_k) if scaled else (cos, sin)
        assert torch.equal(k, rotary.apply_rotary(source_k, *table, **turn))
        assert torch.equal(v, source_v)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64))
def test_packed_kv(device, dtype):
    kv = torch.randn(2, 6, 2, 4, 16, device=device).to(dtype)
    cos, sin = angles(9, 16, device, dtype)
    offsets = torch.tensor([3, 1], device=device)
    leaf, gradient = kv.clone().requires_grad_(), torch.randn_like(kv)
    out = rotary.apply_rotary_emb_kv_(leaf * 1, cos, sin, seqlen_offsets=offsets)
    (dkv,) = torch.autograd.grad(out, leaf, gradient)
    assert torch.equal(out[:, :, 0], rotary.apply_rotary(kv[:, :, 0], cos, sin, offsets))
    assert torch.equal(dkv[:, :, 0], rotary.apply_rotary(gradient[:, :, 0], cos, sin, offsets, conjugate=True))
    assert torch.equal(out[:, :, 1], kv[:, :, 1]) and torch.equal(dkv[:, :, 1], gradient[:, :, 1])


@pytest.mark.parametrize("interleaved", (False, True))
def test_formula_in_torch(device, interleaved):
    x = torch.randn(2, 5, 3, 20, device=device, dtype=torch.float64)
    cos, sin = angles(5, 16, device, torch.float64)
    expected = formula(x, cos, sin, dense_positions(2, 5, 0, device), interleaved)
    assert torch.allclose(rotary.apply_rotary_emb_torch(x, cos, sin, interleaved), expected, rtol=0, atol=1e-14)
    per_sequence = cos.expand(2, 5, 8), sin.expand(2, 5, 8)
    assert torch.allclose(rotary.apply_rotary_emb_torch(x, *per_sequence, interleaved), expected, rtol=0, atol=1e-14)
    assert torch.equal(rotary.rotate_half(rotary.rotate_half(x, interleaved), interleaved), -x)


def test_autocast_changes_nothing(device):
    x = torch.randn(2, 5, 3, 16, device=device, requires_grad=True)
    cos, sin = angles(5, 16, device)
    expected = rotary.apply_rotary_emb(x, cos, sin)
    module = rotary.RotaryEmbedding(16, device=device)
    plain = module(torch.ones(1, 5, 3, 2, 16, device=device))
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        out = rotary.apply_rotary_emb(x, cos, sin)
        fresh = rotary.RotaryEmbedding(16, device=device)(torch.ones(1, 5, 3, 2, 16, device=device))
    assert out.dtype == torch.float32 and torch.equal(out, expected) and torch.equal(fresh, plain)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "message,arguments",
    (
        ("x must be .batch, seqlen, heads, head_dim", {"x": torch.randn(5, 16)}),
        ("x must be .total, heads, head_dim. with cu_seqlens", {"cu_seqlens": torch.tensor([0, 5], dtype=torch.int32)}),
        ("x must hold floating point numbers", {"x": torch.ones(2, 5, 3, 16, dtype=torch.int32)}),
        ("cos must be .positions, rotary_dim / 2.", {"cos": torch.randn(8)}),
        ("sin must have the shape of cos", {"sin": torch.randn(9, 7)}),
        ("cos must have at most head_dim / 2 columns", {"cos": torch.randn(9, 9), "sin": torch.randn(9, 9)}),
        ("cos must hold floating point numbers", {"cos": torch.ones(9, 8, dtype=torch.int64)}),
        ("cos must be on the device of x", {"cos": torch.randn(9, 8, device="meta")}),
        ("cos must have a row for each position.* = 5 \\+ 5, got 9", {"seqlen_offsets": 5}),
        ("seqlen_offsets must be at least 0, got -1", {"seqlen_offsets": -1}),
        ("seqlen_offsets must be an int or .batch. int32 or int64", {"seqlen_offsets": torch.tensor([1, 2, 3])}),
        ("seqlen_offsets must hold integers, got torch.float32", {"seqlen_offsets": torch.tensor([1.0, 2.0])}),
    ),
)
def test_refusals_name_the_argument(message, arguments):
    cos, sin = angles(9, 16, "cpu")
    call = {"x": torch.randn(2, 5, 3, 16), "cos": cos, "sin": sin, **arguments}
    with pytest.raises(flashwave.InvalidArgument, match=message):
        rotary.apply_rotary_emb(**call)


def test_refusals_of_values_and_packed_tensors():
    cos, sin = angles(9, 16, "cpu")
    x, packed = torch.randn(2, 5, 3, 16), torch.randn(7, 3, 16)
    for offsets, message in (([5, 0], "rotary_seqlen must be at least 10"), ([0, -1], "seqlen_offsets.1. must be")):
        with pytest.raises(flashwave.InvalidArgument, match=message):
            rotary.apply_rotary_emb(x, cos, sin, seqlen_offsets=torch.tensor(offsets))
        with pytest.raises(IndexError):  # composed
            rotary.apply_rotary_emb(x.double(), cos, sin, seqlen_offsets=torch.tensor(offsets))
    for bounds, message in (([0, 8], "at most"), ([1, 7], "must be 0"), ([0, 5, 3], "must not decrease")):
        with pytest.raises(flashwave.InvalidArgument, match=message):
            rotary.apply_rotary_emb(packed, cos, sin, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    for cu_seqlens in (torch.tensor([0, 7]), torch.zeros(1, 2, dtype=torch.int32)):
        with pytest.raises(flashwave.InvalidArgument, match="cu_seqlens must be .batch . 1. int32"):
            rotary.apply_rotary_emb(packed, cos, sin, cu_seqlens=cu_seqlens)
    with pytest.raises(flashwave.InvalidArgument, match="qkv must be"):
        rotary.apply_rotary_emb_qkv_(torch.randn(2, 5, 2, 3, 16), cos, sin)
    with pytest.raises(flashwave.InvalidArgument, match="num_heads_q"):
        rotary.apply_rotary_emb_qkv_(torch.randn(2, 5, 6, 16), cos, sin)
    with pytest.raises(flashwave.InvalidArgument, match="num_heads_q must leave an even number"):
        rotary.apply_rotary_emb_qkv_(torch.randn(2, 5, 6, 16), cos, sin, num_heads_q=3)
    with pytest.raises(flashwave.InvalidArgument, match="kv must be"):
        rotary.apply_rotary_emb_kv_(torch.randn(2, 5, 3, 3, 16), cos, sin)
    with pytest.raises(flashwave.InvalidArgument, match="cos_k must have the columns"):
        rotary.apply_rotary_emb_qkv_(torch.randn(2, 5, 3, 3, 16), cos, sin, cos[:, :4], sin[:, :4])


# ---------------------------------------------------------------------------------------------------------- the module


def test_module_turns_by_the_published_frequencies(device):
    module = rotary.RotaryEmbedding(12, base=500.0, interleaved=True, device=device)
    qkv = torch.randn(2, 6, 3, 4, 16, device=device)
    frequencies = 500.0 ** -(torch.arange(0, 12, 2, device=device, dtype=torch.float64) / 12)
    turns = torch.arange(8, device=device).unsqueeze(1) * frequencies
    q = formula(qkv[:, :, 0].double(), turns.cos(), turns.sin(), dense_positions(2, 6, 2, device), True)
    out = module(qkv.clone(), seqlen_offset=2)
    assert torch.allclose(out[:, :, 0].double(), q, atol=5e-6)
    assert torch.equal(out[:, :, 2], qkv[:, :, 2])
    split_q, kv = module(qkv[:, :, 0].clone(), qkv[:, :, 1:].clone(), seqlen_offset=2)
    assert torch.equal(split_q, out[:, :, 0]) and torch.equal(kv, out[:, :, 1:])
    assert dict(module.state_dict()) == {}


def test_module_scales_keys_against_queries(device):
    module = rotary.RotaryEmbedding(8, scale_base=512.0, device=device)
    qkv = torch.randn(1, 10, 3, 2, 8, device=device)
    out = module(qkv.clone())
    plain = rotary.RotaryEmbedding(8, device=device)(qkv.clone())
    scale = ((torch.arange(0, 8, 2, device=device) + 3.2) / 11.2) ** (
        (torch.arange(10, device=device) - 5) / 512.0
    ).unsqueeze(1)
    scale = torch.cat((scale, scale), 1).view(1, 10, 1, 8)
    assert torch.allclose(out[:, :, 0], plain[:, :, 0] * scale, atol=1e-5)
    assert torch.allclose(out[:, :, 1], plain[:, :, 1] / scale, atol=1e-5)
    q, kv = module(qkv[:, :, 0].clone(), qkv[:, :, 1:].clone())
    assert torch.equal(q, out[:, :, 0]) and torch.equal(kv, out[:, :, 1:])


def test_module_table_follows_length_type_and_mode(device):
    module = rotary.RotaryEmbedding(8, device=device)
    with torch.inference_mode():
        module(torch.randn(1, 4, 3, 2, 8, device=device))
    assert module._seq_len_cached == 4 and module._cos_cached.is_inference()
    qkv = torch.randn(1, 4, 3, 2, 8, device=device, requires_grad=True)
    module(qkv * 1).sum().backward()  # autograd cannot keep a table of inference mode
    assert not module._cos_cached.is_inference()
    table = module._cos_cached
    module(torch.randn(1, 3, 3, 2, 8, device=device))
    assert module._cos_cached is table
    module(torch.randn(1, 3, 3, 2, 8, device=device), seqlen_offset=2)
    assert module._seq_len_cached == 5
    module(torch.randn(1, 3, 3, 2, 8, device=device), seqlen_offset=torch.tensor([9], device=device), max_seqlen=12)
    assert module._seq_len_cached == 12
    module(torch.randn(1, 3, 3, 2, 8, device=device).half())
    assert module._cos_cached.dtype == torch.float16
    with pytest.raises(flashwave.InvalidArgument, match="max_seqlen must be given"):
        rotary.RotaryEmbedding(8)(torch.randn(1, 3, 3, 2, 8), seqlen_offset=torch.tensor([9]))


def test_module_converted_to_16_bits_keeps_its_frequencies(device):
    module = rotary.RotaryEmbedding(64, scale_base=512.0, device=device)
    converted = copy.deepcopy(module).bfloat16()
    qkv = torch.randn(1, 300, 3, 1, 64, device=device).bfloat16()
    assert torch.equal(converted(qkv.clone()), module(qkv.clone()))
    coarse = rotary.RotaryEmbedding(64, pos_idx_in_fp32=False, device=device).bfloat16()
    assert not torch.equal(coarse(qkv.clone()), rotary.RotaryEmbedding(64, device=device)(qkv.clone()))


# ------------------------------------------------------------------------------------------------------------- tracing


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("inplace", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_compiled_is_the_eager_one(device, inplace, dtype):
    cos, sin = angles(12, 12, device)
    x = torch.randn(2, 5, 3, 16, device=device).to(dtype).requires_grad_()
    offsets = torch.tensor([7, 0], device=device)

    def step(x):
        turned = rotary.apply_rotary_emb(x * 2, cos, sin, inplace=inplace, seqlen_offsets=offsets)
        return turned.float().sin().sum()

    eager, traced = torch.autograd.grad(step(x), x), torch.autograd.grad(compiled(step)(x), x)
    assert torch.equal(eager[0], traced[0])


def test_compiled_packed_and_ragged(device):
    cos, sin = angles(12, 12, device)
    qkv = torch.randn(2, 5, 8, 16, device=device, requires_grad=True)
    rows, cu_seqlens = torch.randn(7, 3, 16, device=device), torch.tensor([0, 2, 7], dtype=torch.int32, device=device)

    def step(qkv, rows):
        turned = rotary.apply_rotary_emb_qkv_(qkv * 1, cos, sin, num_heads_q=4)
        return turned, rotary.apply_rotary_emb(rows, cos, sin, True, False, 1, cu_seqlens, 5)

    for a, b in zip(step(qkv, rows), compiled(step)(qkv, rows)):
        assert torch.equal(a, b)


def test_compiled_changes_its_argument_in_place(device):
    cos, sin = angles(12, 16, device)
    kv = torch.randn(2, 5, 2, 3, 16, device=device)
    expected = rotary.apply_rotary_emb_kv_(kv.clone(), cos, sin)
    out = compiled(lambda kv: rotary.apply_rotary_emb_kv_(kv, cos, sin))(kv)
    assert torch.equal(out, expected) and torch.equal(kv, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("offset", [0, 3, "each its own"])
@pytest.mark.parametrize("grouped", [False, True])
def test_compiled_changes_a_leaf_that_wants_a_gradient(device, interleaved, offset, grouped):
    """As the eager one does, and flash-attn's: its numbers change, and its gradient is that of what it was."""
    shape = (2, 9, 3, 4, 16) if not grouped else (2, 9, 8, 16)
    eager = torch.randn(shape, device=device, requires_grad=True)
    traced = eager.detach().clone().requires_grad_()
    cos, sin = torch.rand(2, 20, 8, device=device).unbind(0)
    offsets = torch.tensor([1, 5], dtype=torch.int32, device=device) if isinstance(offset, str) else offset

    def step(qkv):
        heads = 4 if grouped else None
        return rotary.apply_rotary_emb_qkv_(
            qkv, cos, sin, interleaved=interleaved, seqlen_offsets=offsets, num_heads_q=heads
        )

    results = [step(eager), compiled(step)(traced)]
    gradient = torch.randn(shape, device=device)
    for result in results:
        result.backward(gradient)
    assert torch.equal(*results) and torch.equal(eager, traced) and torch.equal(eager.grad, traced.grad)


def test_compiled_module(device):
    module = rotary.RotaryEmbedding(16, device=device)
    expected = copy.deepcopy(module)
    function = compiled(module)
    for length in (5, 9):
        qkv = torch.randn(2, length, 3, 2, 16, device=device)
        assert torch.allclose(function(qkv.clone()), expected(qkv.clone()), atol=1e-6)


def test_compiled_with_changing_lengths_compiles_once(device):
    count = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    cos, sin = angles(40, 16, device)
    function = torch.compile(
        lambda x: rotary.apply_rotary_emb(x, cos, sin), fullgraph=True, backend=count, dynamic=True
    )
    for length in (7, 12, 33):
        x = torch.randn(2, length, 3, 16, device=device)
        assert torch.equal(function(x), rotary.apply_rotary_emb(x, cos, sin))
    assert count.frame_count == 1


@pytest.mark.parametrize("packed", (False, True))
def test_opcheck(device, packed):
    cos, sin = angles(12, 12, device)
    offsets = torch.tensor([1, 3], dtype=torch.int32, device=device)
    if packed:
        x = torch.randn(7, 3, 16, device=device, requires_grad=True)
        rest = (torch.tensor([0, 2, 7], dtype=torch.int32, device=device), 0, 5, True, False, 0, 3)
    else:
        x = torch.randn(2, 5, 6, 16, device=device, requires_grad=True)
        rest = (None, 2, None, False, True, 0, 2, 2, 2)
    angles_k = (None, None) if packed else (cos * 2, sin * 2)
    torch.library.opcheck(torch.ops.flashwave.rotary.default, (x, cos, sin, *angles_k, offsets, *rest))
    for private in (torch.ops.flashwave._rotary, torch.ops.flashwave._rotary_):
        for layout in (x.detach().clone(), x.detach().transpose(0, 1).contiguous().transpose(0, 1)):
            torch.library.opcheck(private.default, (layout, cos, sin, *angles_k, offsets, *rest))


def test_fake_and_meta_tensors():
    cos, sin = angles(12, 12, "cpu")
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        fake = rotary.apply_rotary_emb(torch.empty(2, 5, 3, 16), torch.empty(12, 6), torch.empty(12, 6))
    assert tuple(fake.shape) == (2, 5, 3, 16)
    x = torch.empty(2, 5, 3, 16, device="meta")
    assert rotary.apply_rotary_emb(x, cos.to("meta"), sin.to("meta"), inplace=True) is x


def test_threads_change_no_bit(device):
    long = torch.randn(2, 900, 8, 64, device=device)
    cos, sin = angles(900, 64, device)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = rotary.apply_rotary_emb(long, cos, sin)
        torch.set_num_threads(4)
        assert torch.equal(rotary.apply_rotary_emb(long, cos, sin), one)
    finally:
        torch.set_num_threads(threads)

"""What torch, and a program, can do around a call: all of it works or raises, and no call depends on an earlier one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import flashwave
from flashwave import InvalidArgument, flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache, operators
from flashwave.attention import make_problem
from flashwave.problem import FORWARD_FIELDS


def inputs(count=3, shape=(1, 16, 2, 32), device="cpu", dtype=torch.float32):
    return [torch.randn(shape, device=device).to(dtype) for _ in range(count)]


def reference(q, k, v, scale=None, causal=False):
    heads = [t.double().transpose(1, 2) for t in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, scale=scale, is_causal=causal).transpose(1, 2)


def close(ours, theirs, atol=2e-5):
    torch.testing.assert_close(ours.double(), theirs.double(), atol=atol, rtol=1e-4)


def forward_operator(q, k, v):
    return torch.ops.flashwave.forward.default(*make_problem(q, k, v)[: len(FORWARD_FIELDS)], False)[0]


def compiled(q, k, v):
    return torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")(q, k, v)


ROUTES = pytest.mark.parametrize("attend", [flash_attn_func, forward_operator, flashwave.attention])


# ------------------------------------------------------------------------------------- nothing is remembered of a call


def test_aliased_arguments_then_distinct_ones(device):
    x = torch.randn(1, 16, 2, 32, device=device)
    close(flash_attn_func(x, x, x), reference(x, x, x))
    q, k, v = inputs(device=device)
    close(flash_attn_func(q, k, v), reference(q, k, v))
    close(flash_attn_func(q, v, v), reference(q, v, v))
    close(flash_attn_func(q, k, v), reference(q, k, v))


def test_aliased_keys_then_distinct_ones_in_a_cache(device):
    q, kc, vc = torch.randn(1, 1, 2, 32, device=device), *inputs(2, device=device)
    kn, vn = inputs(2, (1, 1, 2, 32), device)
    n = torch.tensor([3], dtype=torch.int32, device=device)
    flash_attn_with_kvcache(q, kc.clone(), vc.clone(), kn, kn, cache_seqlens=n)
    same = kc.clone()
    flash_attn_with_kvcache(q, same, same, cache_seqlens=n)
    a, b = kc.clone(), vc.clone()
    out = flash_attn_with_kvcache(q, a, b, kn, vn, cache_seqlens=n)
    assert torch.equal(a[:, 3:4], kn) and torch.equal(b[:, 3:4], vn)
    close(out, reference(q, a[:, :4], b[:, :4]))


def test_a_tensor_as_a_number_is_read_at_every_call(device):
    q, k, v = inputs(device=device)
    scale = torch.tensor(0.5)
    close(flash_attn_func(q, k, v, softmax_scale=scale), reference(q, k, v, 0.5))
    scale.fill_(0.05)
    close(flash_attn_func(q, k, v, softmax_scale=scale), reference(q, k, v, 0.05))
    cap = torch.tensor(5.0)
    first = flash_attn_func(q, k, v, softcap=cap)
    cap.fill_(0.1)
    assert not torch.equal(first, flash_attn_func(q, k, v, softcap=cap))
    for name in ("softmax_scale", "softcap"):
        with pytest.raises(InvalidArgument, match=f"{name} must be a number: it has no gradient"):
            flash_attn_func(q, k, v, **{name: torch.tensor(0.5, requires_grad=True)})
        with pytest.raises(InvalidArgument, match=f"{name} must be a number"):
            flash_attn_func(q, k, v, **{name: "much"})


def test_other_addresses_strides_and_contents(device):
    """One layout, then views of it: whatever a call was before, it reads its own tensors."""
    storage = torch.randn(3, 1, 17, 2, 33, device=device)
    for offset in (0, 1, 0):
        views = [storage[i][:, offset : offset + 16, :, offset : offset + 32] for i in range(3)]
        close(flash_attn_func(*views), reference(*views))
        storage.normal_()
        close(flash_attn_func(*views), reference(*views))


def test_negated_views_keep_their_sign(device):
    q, k, v = inputs(device=device)
    close(flash_attn_func(torch._neg_view(q), k, v), reference(-q, k, v))
    slopes = torch.rand(2, device=device)
    close(
        flash_attn_func(q, k, v, alibi_slopes=torch._neg_view(slopes)), flash_attn_func(q, k, v, alibi_slopes=-slopes)
    )


def test_a_default_dtype_or_device_changes_nothing():
    tensors = inputs()
    expected = flashwave.attention(*tensors, return_lse=True, return_probs=True)
    staged = flashwave.attention(*tensors, return_lse=True, return_probs=True, device="cpu")
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            again = flashwave.attention(*tensors, return_lse=True, return_probs=True, device="cpu")
            direct = flashwave.attention(*tensors, return_lse=True, return_probs=True)
        finally:
            torch.set_default_dtype(torch.float32)
        for results in (again, direct, staged):
            for mine, theirs in zip(results, expected):
                assert mine.dtype == theirs.dtype and torch.allclose(mine, theirs, atol=1e-6)
    with torch.device("meta"):
        assert torch.allclose(flashwave.attention(*tensors, device="cpu"), staged[0], atol=1e-6)
        assert torch.allclose(flash_attn_func(*tensors), expected[0], atol=1e-6)


# ------------------------------------------------------------------------------------------------------------- tracing


def traced(function, *tensors):
    return torch.jit.trace(function, tensors, check_trace=False)


def test_torch_jit_trace_records_the_call(device):
    q, k, v = inputs(device=device)
    trace = traced(lambda q, k, v: flash_attn_func(q, k, v, causal=True), q, k, v)
    fresh = inputs(device=device)
    assert torch.equal(trace(*fresh), flash_attn_func(*fresh, causal=True))
    cu = torch.tensor([0, 5, 16], dtype=torch.int32, device=device)
    trace = traced(lambda q, k, v: flash_attn_varlen_func(q, k, v, cu, cu, 11, 11), *(t[0] for t in (q, k, v)))
    packed = [t[0] for t in fresh]
    assert torch.equal(trace(*packed), flash_attn_varlen_func(*packed, cu, cu, 11, 11))
    n = torch.tensor([9], dtype=torch.int32, device=device)
    trace = traced(lambda q, k, v: flash_attn_with_kvcache(q, k, v, cache_seqlens=n), q, k, v)
    assert torch.equal(trace(*fresh), flash_attn_with_kvcache(*fresh, cache_seqlens=n))
    trace = traced(lambda q, k, v: flashwave.attention(q, k, v, return_lse=True)[1], q, k, v)
    assert torch.equal(trace(*fresh), flashwave.attention(*fresh, return_lse=True)[1])
    cos, sin = torch.randn(16, 16, device=device).cos(), torch.randn(16, 16, device=device).sin()
    trace = traced(lambda q: flashwave.apply_rotary_emb(q, cos, sin), q)
    assert torch.equal(trace(fresh[0]), flashwave.apply_rotary_emb(fresh[0], cos, sin))


def test_torch_export(device):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return flash_attn_func(q, k, v, causal=True) * 2

    tensors = inputs(device=device)
    program = torch.export.export(Model(), tuple(tensors))
    assert torch.equal(program.module()(*tensors), flash_attn_func(*tensors, causal=True) * 2)


def test_meta_and_fake_tensors(device):
    meta = [t.to("meta") for t in inputs()]
    assert flash_attn_func(*meta).shape == (1, 16, 2, 32)
    cu = torch.zeros(3, dtype=torch.int32, device="meta")
    assert flash_attn_varlen_func(*(t[0] for t in meta), cu, cu, 9, 9).device.type == "meta"
    mode = torch._subclasses.FakeTensorMode()
    q, k, v = inputs(device=device)
    with mode:
        fake = mode.from_tensor(k)
        assert isinstance(flash_attn_func(mode.from_tensor(q), fake, fake), torch._subclasses.FakeTensor)
    if hasattr(torch._C, "_disabled_torch_function_impl"):
        with pytest.raises(Exception, match=r"[Ff]ake"):  # torch says what is wrong with mixing them
            flash_attn_func(q, fake, v)


def test_the_flops_are_counted(device):
    from torch.utils.flop_counter import FlopCounterMode

    tensors = [t.requires_grad_() for t in inputs(device=device)]
    with FlopCounterMode(display=False) as counter:
        out = flash_attn_func(*tensors)
    assert counter.get_total_flops() == 4 * 16 * 16 * 32 * 2
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 10 * 16 * 16 * 32 * 2
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        flashwave.attention(*tensors, bias=torch.zeros(16, 16, device=device))
    assert counter.get_total_flops() == 4 * 16 * 16 * 32 * 2


# --------------------------------------------------------------------------------------------------------- derivatives


@ROUTES
def test_forward_mode_raises(attend, device):
    q, k, v = inputs(device=device)
    for tensor in ((q, k, v), (q.requires_grad_(), k, v)):
        with pytest.raises(flashwave.Unsupported, match="no forward-mode derivative"), forward_ad.dual_level():
            attend(forward_ad.make_dual(tensor[0].detach(), torch.ones_like(q)), k, v)
    with pytest.raises(flashwave.Unsupported, match="no forward-mode derivative"):
        torch.func.jvp(lambda a: attend(a, k, v), (q.detach(),), (torch.ones_like(q),))
    with pytest.raises(flashwave.Unsupported, match="no forward-mode derivative"):
        torch.func.jacfwd(lambda a: attend(a, k, v).sum())(q.detach())
    with forward_ad.dual_level():  # nothing here has a tangent
        close(attend(q, k, v), reference(q, k, v))


def test_forward_mode_of_a_cache_raises(device):
    q, k, v = inputs(device=device)
    with pytest.raises(flashwave.Unsupported, match="flash_attn_with_kvcache has no derivative"):
        torch.func.jvp(lambda a: flash_attn_with_kvcache(a, k, v), (q,), (torch.ones_like(q),))
    with pytest.raises(flashwave.Unsupported, match="flash_attn_with_kvcache has no derivative"):
        torch.func.grad(lambda a: flash_attn_with_kvcache(a, k, v).sum())(q)


@pytest.mark.parametrize("attend", [flash_attn_func, forward_operator, flashwave.attention, compiled])
def test_second_derivatives_raise(attend, device):
    q, k, v = inputs(device=device)
    a = q.clone().requires_grad_()
    out = attend(a, k, v)
    refused = pytest.raises(RuntimeError, match=r"second derivative|does not currently support double backward")
    with refused:
        (g,) = torch.autograd.grad(out.square().sum(), a, create_graph=True)
        torch.autograd.grad(out.sum() + g.square().sum(), a)
    a = q.clone().requires_grad_()
    with refused:
        (g,) = torch.autograd.grad(attend(a, k, v).square().sum(), a, create_graph=True)
        g.sum().backward()


def test_second_derivatives_through_another_device_raise():
    q, k, v = inputs()
    a = q.requires_grad_()
    (g,) = torch.autograd.grad(flashwave.attention(a, k, v, device="cpu").square().sum(), a, create_graph=True)
    with pytest.raises(flashwave.Unsupported, match="no second derivative"):
        torch.autograd.grad(g.sum() + a.sum(), a)


@ROUTES
def test_torch_func(attend, device):
    q, k, v = inputs(device=device)

    def loss(q, k, v):
        return attend(q, k, v).square().sum()

    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    expected = torch.autograd.grad(reference(*leaves).square().sum(), leaves)
    for mine, theirs in zip(torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v), expected):
        close(mine, theirs, 1e-3)
    small = [t[:, :2, :1, :4].contiguous() for t in (q, k, v)]
    jacobian = torch.func.jacrev(attend)(*small)
    close(jacobian, torch.autograd.functional.jacobian(lambda a: reference(a, *small[1:]), small[0].double()), 1e-4)
    batch = [torch.stack([t, 2 * t, 0 * t]) for t in (q, k, v)]
    close(torch.func.vmap(attend)(*batch), torch.stack([reference(*(t[i] for t in batch)) for i in range(3)]))
    close(torch.func.vmap(attend, in_dims=(0, None, None))(batch[0], k, v), torch.stack(
        [reference(batch[0][i], k, v) for i in range(3)]
    ))  # fmt: skip
    each = torch.func.vmap(torch.func.grad(loss))(*batch)
    for i in range(3):
        close(each[i], torch.func.grad(loss)(*(t[i] for t in batch)), 1e-3)


@ROUTES
def test_saved_tensors_are_torchs_to_keep(attend, device):
    """What autograd keeps for the backward can be packed, moved to the CPU, and is freed after it."""
    leaves = [t.requires_grad_() for t in inputs(device=device)]
    weight = torch.randn(1, 16, 2, 32, device=device)
    expected = torch.autograd.grad(attend(*leaves), leaves, weight)
    packed = []

    def pack(tensor):
        packed.append(tensor.data_ptr())
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = attend(*leaves)
    assert {t.data_ptr() for t in leaves} <= set(packed) and out.data_ptr() in packed
    with torch.autograd.graph.save_on_cpu():
        moved = attend(*leaves)
    for result in (out, moved):
        for retain in (True, False):
            found = torch.autograd.grad(result, leaves, weight, retain_graph=retain)
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected))
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(result, leaves, weight)


@ROUTES
def test_hooks_see_and_change_the_gradients(attend, device):
    leaves = [t.requires_grad_() for t in inputs(device=device)]
    weight = torch.randn(1, 16, 2, 32, device=device)
    expected = torch.autograd.grad(attend(*leaves), leaves, weight)
    seen = []
    inner = [leaf * 1 for leaf in leaves]
    inner[0].retain_grad()
    with torch.autograd.detect_anomaly(check_nan=True):
        out = attend(*inner)
        out.register_hook(lambda gradient: seen.append("result") or 2 * gradient)
        out.grad_fn.register_prehook(lambda given: seen.append("before"))
        out.grad_fn.register_hook(lambda results, given: seen.append("after"))
        inner[1].register_hook(lambda gradient: seen.append("key") or gradient / 2)
        out.backward(weight)
    assert seen == ["result", "before", "after", "key"]
    close(inner[0].grad, 2 * expected[0])
    close(leaves[0].grad, 2 * expected[0])
    close(leaves[1].grad, expected[1])
    close(leaves[2].grad, 2 * expected[2])


def test_tensors_that_have_left_a_transform(device):
    """Outside of torch.func a tensor of its inside is what it wraps."""
    q, k, v = inputs(device=device)
    left = []

    def leaves_it(x):
        left.append(x)
        return x.sum()

    for key in (k, k.clone().requires_grad_()):
        torch.func.grad(leaves_it)(key)
        close(flash_attn_func(q, left[-1], v), reference(q, key, v))
    close(
        torch.autograd.grad(flash_attn_func(q, left[-1], v).square().sum(), key)[0],
        torch.autograd.grad(reference(q, key, v).square().sum(), key)[0],
        1e-3,
    )


def test_rotations_have_every_derivative(device):
    cos, sin = torch.randn(16, 8, device=device).cos(), torch.randn(16, 8, device=device).sin()
    x, t = inputs(2, device=device)

    def turn(x):
        return flashwave.apply_rotary_emb(x, cos, sin)

    close(torch.func.jvp(turn, (x,), (t,))[1], turn(t))
    close(torch.func.grad(lambda x: (turn(x) * t).sum())(x), torch.func.vjp(turn, x)[1](t)[0])
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(turn(leaf).pow(3).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert second.abs().max() > 0


def test_checkpointing_repeats_the_dropout(device):
    from torch.utils.checkpoint import checkpoint

    for reentrant in (True, False):
        results = []
        for use in (False, True):
            torch.manual_seed(3)
            leaves = [t.requires_grad_() for t in inputs(device=device)]

            def attend(q, k, v):
                return flash_attn_func(q, k, v, dropout_p=0.5)

            out = checkpoint(attend, *leaves, use_reentrant=reentrant) if use else attend(*leaves)
            results.append([out, *torch.autograd.grad(out.sum(), leaves)] if not (use and reentrant) else [out])
        for mine, theirs in zip(*results):
            assert torch.equal(mine, theirs)


def test_writes_are_seen_by_autograd(device):
    q, k, v, buffer, weight = inputs(5, device=device)
    weight.requires_grad_()
    product = (weight * buffer).sum()
    assert flash_attn_func(q, k, v, out=buffer) is buffer
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    with pytest.raises(InvalidArgument, match="out must not require a gradient"):
        flash_attn_func(q, k, v, out=buffer.detach().requires_grad_())
    new, n = torch.randn(1, 1, 2, 32, device=device), torch.tensor([3], dtype=torch.int32, device=device)
    for options in ({}, {"return_softmax_lse": True}):
        for written in (k, v):
            product = (weight * written).sum()
            flash_attn_with_kvcache(q[:, :1], k, v, new, new, cache_seqlens=n, **options)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()
        product = (weight * k).sum()
        flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=n, **options)  # which writes nothing
        product.backward()


def test_deterministic_algorithms_and_autocast(device):
    tensors = [t.requires_grad_() for t in inputs(device=device)]
    torch.use_deterministic_algorithms(True)
    try:
        assert make_problem(*tensors).deterministic
        gradients = [torch.autograd.grad(flash_attn_func(*tensors).square().sum(), tensors) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*gradients))
    with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
        out = flash_attn_func(*tensors)
        assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert tensors[0].grad.dtype == torch.float32


# ---------------------------------------------------------------------------------------------------- arguments refused


def test_index_tensors_are_never_cut(device):
    q, k, v = inputs(device=device)
    one = q[:, :1]
    for wrong in (torch.tensor([4.9]), torch.tensor([True]), torch.tensor([4j])):
        with pytest.raises(InvalidArgument, match="cache_seqlens must hold integers"):
            flash_attn_with_kvcache(one, k, v, cache_seqlens=wrong.to(device))
    if device == "cpu":
        with pytest.raises(InvalidArgument, match=r"cache_seqlens must fit into int32, got 4294967301"):
            flash_attn_with_kvcache(one, k, v, cache_seqlens=torch.tensor([2**32 + 5]))
        cu = torch.tensor([0, 2**32 + 16])
        with pytest.raises(InvalidArgument, match=r"cu_seqlens_q must fit into int32"):
            flash_attn_varlen_func(q[0], k[0], v[0], cu, cu, 16, 16)
    for dtype in (torch.int64, torch.int16, torch.uint8):
        close(
            flash_attn_with_kvcache(one, k, v, cache_seqlens=torch.tensor([5], dtype=dtype, device=device)),
            reference(one, k[:, :5], v[:, :5]),
        )
    with pytest.raises(InvalidArgument, match="alibi_slopes must hold floating-point numbers"):
        flash_attn_func(q, k, v, alibi_slopes=torch.tensor([1j, 2j], device=device))


def test_wrong_kinds_of_arguments_are_named():
    q, k, v = inputs()
    for call, match in (
        (lambda: flash_attn_func(q.numpy(), k, v), "q must be a torch tensor, got ndarray"),
        (lambda: flash_attn_func(q, None, v), "k must be a torch tensor, got NoneType"),
        (lambda: flash_attn_func(q, k, v, window_size=4), r"window_size must be \(left, right\), got 4"),
        (lambda: flash_attn_func(q, k, v, window_size=None), r"window_size must be \(left, right\), got None"),
        (lambda: flash_attn_func(q, k, v, window_size=(2**63, 0)), "window_size must be .*at most 2"),
        (lambda: flash_attn_func(q, k, v, window_size=(1.5, 0)), r"window_size\[0\] must be a whole number"),
        (lambda: flash_attn_varlen_func(q[0], k[0], v[0], [0, 16], [0, 16], 16, 16), "cu_seqlens_q must be a torch t"),
        (lambda: flash_attn_varlen_func(q[0], k[0], v[0], *[torch.tensor([0, 16])] * 2, None, 16), "max_seqlen_q"),
        (
            lambda: flash_attn_with_kvcache(q, k, v, cache_seqlens=[3]),
            "cache_seqlens must be a whole number or a torch t",
        ),
        (lambda: flashwave.attention(q, k, v, dropout_p=0.5, rng_state=torch.rand(2)), "rng_state must be int64"),
        (lambda: flashwave.attention(q, k, v, dropout_p=0.5, rng_state=[1, 2]), "rng_state must be a torch tensor"),
        (lambda: flash_attn_func(q.to_mkldnn(), k, v), "dense tensor|device|layout|mkldnn|Mkldnn"),
        (lambda: flash_attn_func(q.to_sparse(), k, v), "dense tensor|layout|[Ss]parse"),
    ):
        with pytest.raises(RuntimeError, match=match):
            call()


def test_empty_tensors_with_strides():
    out = flash_attn_func(torch.randn(2, 0, 2, 32)[..., ::2], torch.randn(2, 4, 2, 16), torch.randn(2, 4, 2, 16))
    assert out.shape == (2, 0, 2, 16)
    assert flash_attn_func(*[torch.randn(0, 4, 16, 2).transpose(2, 3)] * 3).shape == (0, 4, 2, 16)


def test_slopes_of_a_batch_of_one_may_have_any_stride():
    q, k, v = inputs()
    slopes = torch.rand(2, 1).t().requires_grad_()
    assert slopes.stride(0) == 1
    flash_attn_func(q, k, v, alibi_slopes=slopes).sum().backward()
    plain = slopes.detach().clone(memory_format=torch.contiguous_format)[0].requires_grad_()
    flash_attn_func(q, k, v, alibi_slopes=plain).sum().backward()
    assert torch.allclose(slopes.grad[0], plain.grad)


# -------------------------------------------------------------------------------------------------- errors and imports


def _refused(_):
    raise flashwave.BackendRefused("triton", "forward", "it is not here")


def test_errors_travel_between_processes():
    for error in (
        flashwave.BackendRefused("triton", "forward", "x"),
        *[kind("said") for kind in (InvalidArgument, flashwave.Unsupported, flashwave.NoDevice, flashwave.OutOfMemory)],
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
    refused = pytest.raises(flashwave.BackendRefused, match="it is not here")
    with multiprocessing.get_context("fork").Pool(1) as pool, refused:
        pool.map_async(_refused, [0]).get(timeout=60)


def run(code, **changes):
    environment = {**os.environ, **changes}
    for name in [name for name, value in changes.items() if value is None]:
        environment.pop(name, None)
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran


def test_import_without_the_library_leaves_pytorch_operations(tmp_path):
    package = Path(flashwave.__file__).parents[1]
    (tmp_path / "somewhere").mkdir()
    for name in ("flashwave", "flash_attention_amd"):
        os.symlink(package / name, tmp_path / "somewhere" / name)
    code = """
import pathlib, sys, warnings
real = pathlib.Path.exists
pathlib.Path.exists = lambda self: self.name != "libflashwave.so" and real(self)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import flashwave, flash_attention_amd, torch
    q = torch.randn(1, 5, 2, 8, requires_grad=True)
    flashwave.flash_attn_func(q, q, q, causal=True).sum().backward()
    assert q.grad.isfinite().all()
    flashwave.flash_attn_with_kvcache(q, q.detach(), q.detach(), cache_seqlens=3)
    flashwave.apply_rotary_emb(q, torch.ones(5, 4), torch.zeros(5, 4))
    try:
        with flashwave.backend("native"):
            flashwave.flash_attn_func(q, q, q)
    except flashwave.BackendRefused as error:
        print(error)
assert len([w for w in caught if "PyTorch operations" in str(w.message)]) == 1, [str(w.message) for w in caught]
assert flashwave.devices() == []
"""
    assert "no libflashwave.so" in run(code, FLASHWAVE_LIBRARY=None, PYTHONPATH=str(tmp_path / "somewhere")).stdout


@pytest.mark.skipif(operators.why_no_binding is not None, reason="no binding here")
def test_the_binding_and_python_give_the_same_bits():
    code = """
import torch, flashwave
from flashwave import operators
print(operators.why_no_binding, file=__import__("sys").stderr)
torch.manual_seed(0)
q, k, v = (torch.randn(2, 9, 4, 16, requires_grad=True) for _ in range(3))
slopes, bias, sinks = torch.rand(2, 4).requires_grad_(), torch.randn(4, 9, 9, requires_grad=True), torch.randn(4)
out, lse = flashwave.attention(q, k, v, causal=True, alibi_slopes=slopes, bias=bias, sinks=sinks, return_lse=True,
                               dropout_p=0.2)
g = torch.autograd.grad(out.square().sum() + lse.sum(), (q, k, v, slopes, bias))
n = torch.tensor([3, 4], dtype=torch.int32)
kc, vc, new = torch.randn(2, 16, 4, 16), torch.randn(2, 16, 4, 16), torch.randn(2, 1, 4, 16)
cos, sin = torch.randn(16, 8).cos(), torch.randn(16, 8).sin()
more = flashwave.flash_attn_with_kvcache(q.detach()[:, :1], kc, vc, new, new, cos, sin, cache_seqlens=n)
cu = torch.tensor([0, 4, 7], dtype=torch.int32)
packed = flashwave.flash_attn_varlen_func(*(t.detach()[0] for t in (q, k, v)), cu, cu, 4, 4)
for t in (out, lse, *g, more, kc, vc, packed):
    print(t.double().sum().item().hex(), t.double().square().sum().item().hex())
"""
    with_binding, without = run(code), run(code, FLASHWAVE_BINDING="0")
    assert with_binding.stderr.splitlines()[0] == "None" and "FLASHWAVE_BINDING=0" in without.stderr
    assert with_binding.stdout == without.stdout


def test_no_warning_is_given_by_calls(device):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q, k, v = (t.requires_grad_() for t in inputs(device=device))
        flash_attn_func(q, k, v).sum().backward()
        with torch.no_grad():
            flash_attn_with_kvcache(q, k, v, cache_seqlens=3)

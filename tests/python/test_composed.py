"""The composed backend against the oracle: every feature, both directions, in every type."""

from __future__ import annotations

import math
import os
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import flashwave
from cases import INF, NAN, Features, features, make, to
from flashwave import dispatch
from flashwave.backends import torch as composed
from flashwave.backends.torch import blocks
from flashwave.backends.torch import philox as composed_philox
from flashwave.backends.torch.products import Products
from flashwave.problem import Problem
from oracle import attention, dropout_bits, philox

pytestmark = pytest.mark.usefixtures("one_thread")
DEVICE = os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")
INPUTS = ("q", "k", "v", "alibi_slopes", "bias", "sinks")
many = settings(max_examples=int(os.environ.get("FLASHWAVE_TEST_EXAMPLES", "120")), deadline=None)
budgets = st.sampled_from([1, 60, 500, 1 << 20])


def with_budget(elements):
    return mock.patch.object(blocks, "score_budget", lambda q: elements)


def assert_close(got, want, tolerance, what):
    """NaN, infinities and their signs alike, and numbers within the tolerance of the largest."""
    got, want = got.detach().cpu().double(), want.detach().double()
    assert got.shape == want.shape, what
    assert torch.equal(got.isnan(), want.isnan()), what
    strange = ~want.isfinite() & ~want.isnan()
    assert torch.equal(got[strange], want[strange]), what
    fine = want.isfinite()
    assert got[fine].isfinite().all(), what
    error = (got[fine] - want[fine]).abs().max().item() if fine.any() else 0.0
    size = max(1.0, want[fine].abs().max().item()) if fine.any() else 1.0
    assert error <= tolerance * size, f"{what}: {error}"


def present(p):
    return tuple(getattr(p, name) is not None for name in INPUTS)


def results(p, f, dtype=torch.float64):
    """Oracle's forward and its gradients, for dout and dlse that are NaN in rows of no sequence."""
    leaves = {name: getattr(p, name).clone().to(dtype).requires_grad_() for name, has in zip(INPUTS, present(p)) if has}
    result = attention(p._replace(**leaves), dtype)
    generator = torch.Generator().manual_seed(f.seed + 1)
    dout = torch.randn(result.out.shape, generator=generator, dtype=torch.float32).to(p.q.dtype)
    dlse = torch.randn(result.lse.shape, generator=generator, dtype=torch.float32)
    if p.cu_seqlens_q is not None:
        dout[int(p.cu_seqlens_q[-1]) :] = NAN
        dlse[..., int(p.cu_seqlens_q[-1]) :] = NAN
    rows = result.lse.isfinite()
    total = (result.out * dout).nansum() + (result.lse[rows] * dlse[rows]).sum()
    total = total + sum(leaf.flatten()[:0].sum() for leaf in leaves.values())  # 0, for what no row depends on
    found = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values()))))
    gradients = [found.get(name) for name in INPUTS]
    return result, dout, dlse, gradients


# Forward ----------------------------------------------------------------------------------------------------------


# Keys of a block that start inside a call of Philox; each corner of a window in blocks of several queries.
WINDOW = Features(window=(3, 1), dropout=0.3, longest_q=20, longest_k=27, heads=(2, 1), slopes="h", bias="bhqk")
RAGGED = Features(packed_q=True, keys="self", window=(2, 0), dropout=0.3, slopes="bh", bias="bhqk", batch=4, seed=9)


@many
@given(features(), budgets)
@example(WINDOW, 200)
@example(RAGGED, 60)
def test_forward_is_the_definition(f, budget):
    p = make(f)
    want = attention(p)
    on_device = to(p, DEVICE)
    with with_budget(budget):
        out, lse, probs = composed.forward(on_device, probs=True)
    assert out.dtype == p.q.dtype and out.is_contiguous() and lse.is_contiguous()
    assert lse.dtype == torch.float64 and probs.dtype == torch.float32
    assert_close(out, want.out, 1e-12, "out")
    assert_close(lse, want.lse, 1e-12, "lse")
    assert_close(probs, want.probs, 1e-6, "probs")
    assert torch.equal(probs.cpu().signbit() & (want.probs != 0), want.probs.signbit() & (want.probs != 0))
    assert_close(on_device.k, want.k, 1e-12, "k after the append")
    assert_close(on_device.v, want.v, 0, "v after the append")
    assert_close(on_device.q, p.q, 0, "q is not changed")


def test_hidden_elements_of_probs_are_positive_zeros():
    p = to(make(Features(causal=True, dropout=0.3, packed_q=True, keys="packed", seed=4)), DEVICE)
    _, _, probs = composed.forward(p, probs=True)
    want = attention(to(p, "cpu")).probs
    assert (want == 0).any() and (want < 0).any()
    assert torch.equal(probs.cpu().signbit(), want.signbit())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_append_rounds_rotated_keys_as_the_tensors_do(dtype):
    for rotary, wide in (("halves", False), ("pairs", True)):
        f = Features(keys="paged", seqused=True, new_keys=3, rotary=rotary, causal=True, wide=wide)
        p = make(f, dtype)
        want = attention(p, torch.float64)
        on_device = to(p, DEVICE)
        out, _, _ = composed.forward(on_device)
        # Products may be fused with the sum on the device: one unit.
        assert_close(on_device.k, want.k, torch.finfo(dtype).eps, "k")
        assert_close(on_device.v, want.v, 0, "v")
        assert_close(out, want.out, 4 * torch.finfo(dtype).eps, "out")


@pytest.mark.parametrize(
    "name, at, bad", [("q", (1, 4, 2, 0), NAN), ("bias", (1, 2, 4, 3), NAN), ("bias", (1, 2, 4, 3), INF)]
)
def test_what_is_not_finite_stays_in_its_row(name, at, bad):
    p = to(make(Features(bias="bhqk", causal=True, longest_q=9, longest_k=9)), DEVICE)
    out, lse, _ = composed.forward(p)
    changed = getattr(p, name).clone()
    changed[at] = bad
    other, other_lse, _ = composed.forward(p._replace(**{name: changed}))
    assert other[1, 4, 2].isnan().all() and other_lse[1, 2, 4].isnan()
    other[1, 4, 2], other_lse[1, 2, 4] = out[1, 4, 2], lse[1, 2, 4]
    assert torch.equal(other, out) and torch.equal(other_lse, lse)


def test_a_value_that_is_not_finite_reaches_who_sees_it():
    p = to(make(Features(causal=True, longest_q=9, longest_k=9)), DEVICE)
    p.v[1, 8, 1, 0] = NAN
    out, lse, _ = composed.forward(p)
    assert out[1, 8, 2:, 0].isnan().all() and lse.isfinite().all()
    assert out[0].isfinite().all() and out[1, :, :2].isfinite().all() and out[..., 1:].isfinite().all()


@pytest.mark.parametrize("sink", [None, 0.25, -INF])
@pytest.mark.parametrize("keys", [0, 3])
def test_rows_that_see_nothing(sink, keys):
    sinks = None if sink is None else torch.full((2,), sink, device=DEVICE)
    k = torch.randn(1, keys, 1, 4, device=DEVICE)
    bias = torch.full((1, 1, 1, 1), -INF, device=DEVICE) if keys else None
    p = Problem(torch.randn(1, 5, 2, 4, device=DEVICE), k, k, max_seqlen_q=5, max_seqlen_k=keys, sinks=sinks, bias=bias)
    out, lse, probs = composed.forward(p, probs=True)
    assert (out == 0).all() and (probs == 0).all()
    assert (lse == (-INF if sink is None else sink)).all()
    dlse = torch.ones_like(lse)
    needs = (True, True, True, False, bias is not None, sinks is not None)
    gradients = composed.backward(p, torch.ones_like(out), dlse, out, lse, needs)
    for gradient in gradients[:5]:
        assert gradient is None or (gradient == 0).all()
    if sinks is not None:
        assert (gradients[5] == (5 if sink > -INF else 0)).all()
    if sink is None:  # nothing depends on an lse of -inf, whatever its gradient
        gradients = composed.backward(p, torch.ones_like(out), dlse * NAN, out, lse, needs)
        assert all(gradient is None or (gradient == 0).all() for gradient in gradients)


def test_no_scale_is_the_usual_one():
    p = to(make(Features(causal=True)), DEVICE)
    said, left_out = p._replace(softmax_scale=8**-0.5), p._replace(softmax_scale=None)
    out, lse, _ = composed.forward(said)
    assert torch.equal(composed.forward(left_out)[0], out)
    needs = (True, True, True, False, False, False)
    for ours, theirs in zip(*(composed.backward(x, out, None, out, lse, needs)[:3] for x in (said, left_out))):
        assert torch.equal(ours, theirs)


def test_a_sink_far_above_the_scores():
    q, k = torch.zeros(1, 2, 1, 4, device=DEVICE), torch.zeros(1, 3, 1, 4, device=DEVICE)
    p = Problem(q, k, k + 1, max_seqlen_q=2, max_seqlen_k=3, sinks=torch.full((1,), 500.0, device=DEVICE))
    out, lse, _ = composed.forward(p)
    assert (lse == 500).all() and (out == 0).all()
    dsinks = composed.backward(p, out, torch.ones_like(lse), out, lse, (False,) * 5 + (True,))[5]
    assert dsinks.tolist() == [2.0]


@pytest.mark.parametrize("batch, queries, total", [(0, 3, 0), (2, 0, 0), (2, 4, 0)])
def test_nothing_to_do(batch, queries, total):
    q, k = torch.zeros(batch, queries, 2, 4, device=DEVICE), torch.zeros(batch, 3, 1, 4, device=DEVICE)
    p = Problem(q, k, k, max_seqlen_q=queries, max_seqlen_k=3, causal=True)
    if queries and batch:
        q = torch.zeros(total, 2, 4, device=DEVICE)
        p = p._replace(q=q, cu_seqlens_q=torch.zeros(batch + 1, dtype=torch.int32, device=DEVICE))
    out, lse, _ = composed.forward(p)
    assert out.shape == q.shape and lse.numel() == 0
    dq, dk, dv, *_ = composed.backward(p, out, lse, out, lse, (True, True, True, False, False, False))
    assert dq.shape == q.shape and (dk == 0).all() and (dv == 0).all() and dk.shape == dv.shape == k.shape


# Dropout ----------------------------------------------------------------------------------------------------------


def test_philox_gives_the_documented_words():
    def tensor(*numbers):
        return tuple(torch.tensor(n, device=DEVICE) for n in numbers)

    rows = {0: "ad6b0469 734d9591 fe228be8 44208cca", 1: "c57e0fb2 ccdb8272 9f419e04 1f6f1a53"}
    for block, words in rows.items():
        want = [int(word, 16) for word in words.split()]
        assert philox((block, 3, 6, 7), (42, 0)) == want
        assert [int(w) for w in composed_philox.philox(tensor(block, 3, 6, 7), tensor(42, 0))] == want
    published = (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)
    assert [int(w) for w in composed_philox.philox(tensor(0, 0, 0, 0), tensor(0, 0))] == list(published)
    ones = (0xFFFFFFFF,) * 4
    published = (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)
    assert [int(w) for w in composed_philox.philox(tensor(*ones), tensor(*ones[:2]))] == list(published)


def test_dropout_drops_the_documented_elements():
    q, k = torch.zeros(2, 5, 4, 8, device=DEVICE), torch.zeros(2, 10, 1, 8, device=DEVICE)
    state = torch.tensor([42, 7], device=DEVICE)
    p = Problem(q, k, k, max_seqlen_q=5, max_seqlen_k=10, dropout_p=0.25, rng_state=state)
    _, _, probs = composed.forward(p, probs=True)
    row = probs[1, 2, 3].tolist()
    assert [j for j, x in enumerate(row) if x < 0] == [0, 8]
    assert all(abs(x) == pytest.approx(0.1) for x in row)
    assert dropout_bits(42, 7, 6, 3, 10) == [1129, 44395, 38289, 29517, 35816, 65058, 36042, 17440, 4018, 50558]


# Backward ---------------------------------------------------------------------------------------------------------


@many
@given(features(backward=True), budgets)
@example(WINDOW, 200)
@example(RAGGED, 60)
def test_gradients_are_those_of_the_definition(f, budget):
    p = make(f)
    result, dout, dlse, want = results(p, f)
    on_device = to(p, DEVICE)
    args = [t.detach().to(DEVICE) for t in (dout, dlse, result.out, result.lse)]
    with with_budget(budget):
        got = composed.backward(on_device, *args, present(p))
        again = composed.backward(on_device, *args, present(p))
    for name, ours, theirs, repeated in zip(INPUTS, got, want, again):
        assert (ours is None) == (theirs is None), name
        if ours is not None:
            assert ours.dtype == getattr(p, name).dtype and ours.is_contiguous(), name
            assert_close(ours, theirs, 1e-9, f"gradient of {name}")
            assert torch.equal(ours, repeated), name


def test_a_backward_computes_what_is_needed_alone():
    f = Features(bias="hq", slopes="h", sinks=True, softcap=1.5, dropout=0.3, causal=True)
    p = make(f)
    result, dout, _, _ = results(p, f)
    args = [t.detach().to(DEVICE) for t in (result.out, result.lse)]
    on_device, dout = to(p, DEVICE), dout.to(DEVICE)
    everything = composed.backward(on_device, dout, None, *args, (True,) * 6)
    for wanted in range(6):
        needs = tuple(n == wanted for n in range(6))
        got = composed.backward(on_device, dout, None, *args, needs)
        assert [g is not None for g in got] == list(needs)
        assert torch.equal(got[wanted], everything[wanted])


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, *inputs):
        ctx.p = p._replace(**dict(zip(INPUTS, inputs)))
        out, lse, _ = composed.forward(ctx.p)
        ctx.save_for_backward(out, lse)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        return (None, *composed.backward(ctx.p, dout, dlse, *ctx.saved_tensors, ctx.needs_input_grad[1:]))


@pytest.mark.parametrize(
    "f",
    [
        Features(bias="bhqk", slopes="bh", sinks=True, softcap=1.5, dropout=0.3, window=(5, 1), seed=1),
        Features(keys="self", packed_q=True, causal=True, bias="hq", slopes="h", seed=2, batch=3),
        Features(leftpad=True, seqused=True, sinks=True, heads=(3, 3), seed=5),
    ],
)
def test_gradcheck(f):
    p = to(make(f._replace(longest_q=3, longest_k=5, dims=(2, 2))), DEVICE)
    # Perturbing a NaN or an infinity says nothing.
    clean = {n: torch.nan_to_num(getattr(p, n), 0.5, 0.5, 0.5) for n, has in zip(INPUTS, present(p)) if has}
    leaves = [clean[name].requires_grad_() if name in clean else None for name in INPUTS]
    assert torch.autograd.gradcheck(lambda *x: _finite(Attention.apply(p, *x)), leaves, atol=1e-6)


def _finite(outputs):
    out, lse = outputs
    return out, torch.where(lse == -INF, torch.zeros_like(lse), lse)


# Low precision ----------------------------------------------------------------------------------------------------


def unit(dtype, size):
    """One unit in the last place of numbers of a size."""
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(size)) if size > 0 else 0.0


def assert_rule(got, naive, want, factor, atol, what):
    got, naive, want = (t.detach().cpu().double() for t in (got, naive, want))
    fine = want.isfinite()
    assert torch.equal(got.isfinite(), fine), what
    error, allowance = ((t[fine] - want[fine]).abs().max().item() for t in (got, naive))
    assert error <= factor * allowance + atol, f"{what}: {error} against {allowance}"


RULE_CASES = {
    "causal": Features(causal=True),
    "all": Features(window=(30, 2), softcap=1.5, bias="bhqk", slopes="bh", sinks=True, dropout=0.3, heads=(4, 2)),
    "wide": Features(bias="bhqk", wide=True, seqused=True, leftpad=True, sinks=True, seed=5),
    "ragged": Features(packed_q=True, keys="packed", causal=True, bias="hq", slopes="h", batch=3, seed=3),
}


@pytest.mark.parametrize("name", list(RULE_CASES))
@pytest.mark.parametrize(
    "dtype, products",
    [(torch.float32, None), (torch.float16, None), (torch.bfloat16, None), (torch.bfloat16, torch.bfloat16)],
)
def test_the_numeric_rule(name, dtype, products):
    f = RULE_CASES[name]._replace(longest_q=40, longest_k=57, dims=(16, 16))
    p = make(f, dtype)
    exact, dout, dlse, want = results(to(p, dtype=torch.float64), f)
    rough, _, _, naive = results(p, f, dtype)
    on_device = to(p, DEVICE)
    out, lse, _ = composed.forward(on_device, products=products)
    assert out.dtype == dtype and lse.dtype == torch.float32

    def allowance(size, units):
        return 1e-6 * (1 + size) if dtype == torch.float32 else units * unit(dtype, size)

    def largest(tensor):
        return tensor[tensor.isfinite()].abs().max().item()

    assert_rule(out, rough.out, exact.out, 2, allowance(largest(exact.out), 0.5), "out")
    assert_rule(lse, rough.lse, exact.lse, 2, allowance(largest(exact.lse), 0.5), "lse")

    args = (dout.to(dtype), dlse, exact.out.detach().to(dtype), exact.lse.detach().float())
    got = composed.backward(on_device, *(t.to(DEVICE) for t in args), present(p), products=products)
    common = max(largest(g) for g in want[:3])
    rows = exact.lse.numel() * (1 if dtype == torch.float32 else f.dims[1])
    for argument, ours, low, best in zip(INPUTS, got, naive, want):
        if ours is None:
            continue
        assert ours.dtype == getattr(p, argument).dtype, argument
        if argument in ("q", "k", "v"):
            atol = allowance(largest(best), 1)
        else:
            atol = allowance(max(largest(best), common), 0.25) * math.sqrt(rows)
        assert_rule(ours, low, best, 3, atol, f"gradient of {argument}")


# Narrow products --------------------------------------------------------------------------------------------------


def test_narrowing_to_nearest_and_toward_zero():
    x = torch.tensor([1.0, 1 + 2**-7 - 2**-20, -1 - 2**-7 + 2**-20, 1 + 2**-8, 0.0, -3e-39, INF, NAN], device=DEVICE)
    nearest = Products(torch.float32, torch.bfloat16, False, 1.0).narrow(x)
    cut = Products(torch.float32, torch.bfloat16, True, 1.0).narrow(x)
    assert torch.equal(nearest, x.bfloat16()) or torch.equal(nearest[:-1], x.bfloat16()[:-1])
    assert cut[:5].tolist() == [1.0, 1.0, -1.0, 1.0, 0.0]
    assert cut[6] == INF and cut[7].isnan() and (cut[:6].float().abs() <= x[:6].abs()).all()


def test_products_toward_zero_lose_at_most_a_unit():
    torch.manual_seed(0)
    q, k = torch.randn(2, 50, 2, 16, device=DEVICE).bfloat16(), torch.randn(2, 60, 2, 16, device=DEVICE).bfloat16()
    v = torch.ones_like(k)
    p = Problem(q, k, v, max_seqlen_q=50, max_seqlen_k=60, softmax_scale=0.25)
    wide = p._replace(q=q.float(), k=k.float(), v=v.float())
    exact = composed.forward(wide)[0]
    assert torch.allclose(exact, torch.ones_like(exact), atol=1e-5)
    cut = composed.forward(wide, products=torch.bfloat16, round_toward_zero=True)[0]
    # Every probability loses less than 2^-7 of itself, and none gains.
    assert (cut <= 1 + 1e-6).all() and (cut >= 1 - 2**-7 - 1e-6).all() and (cut < 1 - 2**-12).any()
    nearest = composed.forward(wide, products=torch.bfloat16)[0]
    assert (nearest - 1).abs().max() <= 2**-8 + 1e-6 and (nearest > 1).any()


def test_autocast_does_not_narrow_products():
    p = to(make(Features(longest_q=30, longest_k=40), torch.float32), DEVICE)
    plain = composed.forward(p)
    dout = torch.ones_like(plain[0])
    needs = (True, True, True, False, False, False)
    gradients = composed.backward(p, dout, None, *plain[:2], needs)
    with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        cast = composed.forward(p)
        cast_gradients = composed.backward(p, dout, None, *plain[:2], needs)
    for ours, theirs in zip((*plain[:2], *gradients[:3]), (*cast[:2], *cast_gradients[:3])):
        assert torch.equal(ours, theirs)


# Memory and the device --------------------------------------------------------------------------------------------


class Watch(TorchDispatchMode):
    """The largest tensor that is made, and no operation that waits for the device."""

    WAITING = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "item", "unique")

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        assert name not in self.WAITING and not name.startswith("_unique"), name
        if name in ("index", "index_put_", "index_put"):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), name
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and func._schema.returns[0].alias_info is None:
                self.largest = max(self.largest, tensor.numel())
        return result


@settings(max_examples=25, deadline=None)
@given(features(), budgets)
def test_nothing_waits_for_the_device(f, budget):
    p = to(make(f, torch.float32), DEVICE)
    with with_budget(budget), Watch():
        out, lse, _ = composed.forward(p, probs=True)
        if f.differentiable:
            composed.backward(p, out, lse, out, lse, present(p))


@pytest.mark.parametrize("ragged", [False, True])
def test_memory_is_linear_in_the_length(ragged):
    s, heads, d = 8192, 2, 16
    shape = (s, heads, d) if ragged else (1, s, heads, d)
    q, k, v = (torch.randn(shape, device=DEVICE) for _ in range(3))
    offsets = torch.tensor([0, s], dtype=torch.int32, device=DEVICE) if ragged else None
    p = Problem(q, k, v, offsets, offsets, max_seqlen_q=s, max_seqlen_k=s, causal=True, window_left=4000)
    budget = blocks.score_budget(q.cpu())  # an accelerator's would hold all of a problem this small
    watch = Watch()
    with with_budget(budget), watch:
        out, lse, _ = composed.forward(p)
        composed.backward(p, out, None, out, lse, (True, True, True, False, False, False))
    assert watch.largest <= max(budget, q.numel() + heads * d)
    assert watch.largest < heads * s * s // 16


def test_a_query_alone_is_the_smallest_block():
    f = Features(causal=True, heads=(4, 2), longest_q=7, longest_k=11)
    p = to(make(f), DEVICE)
    watch = Watch()
    with with_budget(1), watch:
        composed.forward(p)
    assert watch.largest <= max(p.q.numel(), p.k.numel(), 4 * 11)


@pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="graphs are CUDA's")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_graph_replays_with_new_lengths_and_seeds(dtype):
    f = Features(packed_q=True, keys="packed", causal=True, dropout=0.3, bias="hq", slopes="h", sinks=True, batch=3)
    first, second = (to(make(f._replace(seed=seed), dtype), DEVICE) for seed in (3, 3))
    second.cu_seqlens_q.copy_(torch.tensor([0, 1, 1, int(first.cu_seqlens_q[-1])]).clamp(max=7))
    second.rng_state.add_(5)
    dout = torch.randn(*first.q.shape[:-1], first.v.shape[-1], dtype=dtype, device=DEVICE)

    def call(p):
        out, lse, _ = composed.forward(p)
        return (out, lse, *composed.backward(p, dout, None, out, lse, (True,) * 6))

    want = call(second)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(first)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(first)
    first.cu_seqlens_q.copy_(second.cu_seqlens_q)
    first.rng_state.copy_(second.rng_state)
    graph.replay()
    torch.cuda.synchronize()
    for ours, theirs in zip(got, want):
        assert torch.equal(ours, theirs)


# Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, keys, new_keys", [("block_table", "paged", 0), ("cache_batch_idx", "indexed", 0)])
def test_a_backward_refuses_caches(name, keys, new_keys):
    p = to(make(Features(keys=keys, new_keys=new_keys)), DEVICE)
    out, lse, _ = composed.forward(p)
    with flashwave.backend("torch"), pytest.raises(ValueError, match=name):
        dispatch.backward(p, out, None, out, lse, (True, True, True, False, False, False))


def test_a_backward_refuses_an_append():
    p = to(make(Features(seqused=True, new_keys=1)), DEVICE)
    out, lse, _ = composed.forward(p)
    with flashwave.backend("torch"), pytest.raises(ValueError, match="seqlen_new"):
        dispatch.backward(p, out, None, out, lse, (True, True, True, False, False, False))


@pytest.mark.parametrize(
    "match, change",
    [
        ("rng_state", {"dropout_p": 0.5}),
        ("dropout_p", {"dropout_p": 1.0}),
        ("rotary_cos", {"rotary_cos": torch.zeros(9, 2), "rotary_sin": torch.zeros(9, 2)}),
        ("rotary_sin", {"rotary_cos": torch.zeros(9, 2)}),
        ("v_new", {"k_new": torch.zeros(2, 1, 2, 8).double()}),
        ("seqused_k", {"k_new": torch.zeros(2, 1, 2, 8).double(), "v_new": torch.zeros(2, 1, 2, 4).double()}),
        ("bias", {"bias": torch.zeros(2, 3, 7, 11)}),
        ("alibi_slopes", {"alibi_slopes": torch.zeros(2)}),
        ("sinks", {"sinks": torch.zeros(2)}),
        ("max_seqlen_q", {"max_seqlen_q": 6}),
        ("max_seqlen_k", {"max_seqlen_k": 12}),
        ("window_left", {"window_left": -2}),
        ("dtype", {"v": torch.zeros(2, 11, 2, 4)}),
    ],
)
def test_a_forward_names_the_argument_it_refuses(match, change):
    """By the rules of the library, whoever computes."""
    with flashwave.backend("torch"), pytest.raises(ValueError, match=match):
        dispatch.forward(make(Features())._replace(**change))


def test_settings_of_the_products_are_checked():
    p = make(Features())
    with pytest.raises(ValueError, match="products"):
        composed.forward(p, products=torch.float16)
    with pytest.raises(ValueError, match="round_toward_zero"):
        composed.forward(p, round_toward_zero=True)
    with pytest.raises(ValueError, match="sinks"):
        composed.backward(p, p.q, None, p.q, p.q, (False,) * 5 + (True,))

"""The Triton backend: the numeric rule for every feature, repeatable bits, graphs and the compiler.

Needs a GPU (--device cuda), or Triton's interpreter: TRITON_INTERPRET=1 runs the kernels in Python on the CPU, where a
test of test_triton_refusals.py runs part of this file.
"""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch

import cases
import flashwave
import gradients
import refusals
from cases import Features
from flashwave import autograd as operators
from flashwave.backends import torch as composed
from flashwave.backends.triton import backend as triton_backend
from flashwave.backends.triton import support as triton_support
from flashwave.problem import Problem
from numeric import assert_within_rule

DEVICE = os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")
INTERPRETED = DEVICE == "cpu" and triton_support.interprets()
_REASON = refusals.why_no_triton() or triton_support.why_no_device(torch.empty(0, device=DEVICE))
pytestmark = [
    pytest.mark.skipif(_REASON is not None, reason=str(_REASON)),
    pytest.mark.usefixtures("one_thread"),
]
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no streams, graphs or compiler")

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LONG = {"longest_q": 150, "longest_k": 275}
# Several blocks of queries and keys, the last ones not full; every feature, and dims that need padding.
FEATURES = {
    "plain": Features(**LONG, dims=(64, 64)),
    "causal": Features(**LONG, dims=(128, 128), causal=True),
    "causal, rows that see nothing": Features(longest_q=275, longest_k=150, dims=(64, 64), causal=True),
    "window and padded dims": Features(**LONG, dims=(24, 40), causal=True, window=(9, 0)),
    "window on both sides": Features(**LONG, dims=(96, 64), window=(90, 60)),
    "packed": Features(**LONG, dims=(64, 64), packed_q=True, keys="packed", causal=True),
    "packed, dropout": Features(**LONG, dims=(64, 32), packed_q=True, keys="self", causal=True, dropout=0.3),
    "dropout": Features(**LONG, dims=(128, 128), dropout=0.3),
    "window to the left, head dim 128": Features(**LONG, dims=(128, 128), window=(40, -1)),
    "window to the right, head dim 256": Features(**LONG, dims=(256, 256), window=(-1, 20)),
    "window behind the diagonal, full blocks": Features(
        longest_q=512, longest_k=512, batch=1, dims=(128, 128), causal=True, window=(100, 0)
    ),
    "dropout, head dim 160": Features(**LONG, dims=(160, 160), dropout=0.3, causal=True),
    "dropout and window, head dim 256": Features(**LONG, dims=(256, 256), dropout=0.3, window=(90, 60)),
    "softcap, bias, slopes, sinks": Features(**LONG, dims=(32, 32), softcap=1.5, slopes="bh", bias="bhqk", sinks=True),
    "shared bias and slopes": Features(**LONG, dims=(64, 64), bias="hq", slopes="h", causal=True),
    "seqused, leftpad, sinks": Features(**LONG, dims=(64, 64), seqused=True, leftpad=True, causal=True, sinks=True),
    "one key head, transposed": Features(**LONG, heads=(4, 1), dims=(256, 256), causal=True, transposed=True),
    "dim 1": Features(**LONG, dims=(1, 1)),
}
SMALL = {
    "small": Features(longest_q=40, longest_k=75, dims=(16, 8), causal=True, window=(30, -1), sinks=True),
    "small, packed": Features(longest_q=40, longest_k=75, packed_q=True, keys="packed", causal=True, dropout=0.3),
    "small, all terms": Features(longest_q=40, longest_k=75, softcap=1.5, bias="hq", slopes="bh", leftpad=True),
}
TYPES = [(name, dtype) for name in FEATURES for dtype in (BF16, FP16)]
TYPES += [(name, FP32) for name in ("plain", "packed, dropout", "softcap, bias, slopes, sinks")]


@pytest.fixture(autouse=True)
def first_configuration(monkeypatch):
    monkeypatch.setenv("FLASHWAVE_TRITON_AUTOTUNE", "0")


def _problem(features: Features, dtype: torch.dtype) -> tuple[Problem, Problem]:
    """The same on the CPU and on the device."""
    problem = cases.make(features, dtype)
    return problem, cases.to(problem, device=DEVICE)


def _both(p: Problem):
    """Forward and backward by the backend, and what went into the backward."""
    assert triton_backend.refusal(p, "forward") is None
    out, lse, nothing = triton_backend.forward(p)
    assert nothing is None
    needs = gradients.all_needed(p)
    assert triton_backend.refusal(p, "backward", needs) is None
    dout, dlse = gradients.incoming(p, out, lse)
    return out, lse, triton_backend.backward(p, dout, dlse, out, lse, needs), dout, dlse


def _check_rule(features: Features, dtype: torch.dtype) -> None:
    given, p = _problem(features, dtype)
    out, lse, results, dout, dlse = _both(p)
    exact, wanted = gradients.of_oracle(cases.to(given, dtype=torch.float64), dout, dlse, torch.float64)
    naive, rough = gradients.of_oracle(given, dout, dlse, dtype)
    assert out.dtype == dtype and lse.dtype == FP32
    assert_within_rule(out.cpu(), exact.out, naive.out, 2, "out")
    assert_within_rule(lse.cpu(), exact.lse, naive.lse, 2, "lse")
    gradients.assert_within_rule(given, results, wanted, rough)


@on_gpu
@pytest.mark.parametrize("name, dtype", TYPES)
def test_the_rule(name, dtype):
    _check_rule(FEATURES[name], dtype)


@pytest.mark.parametrize("name, dtype", [("small", FP32), ("small, packed", FP16), ("small, all terms", FP32)])
def test_the_rule_on_small_problems(name, dtype):
    _check_rule(SMALL[name], dtype)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_scales_that_are_not_positive(scale):
    _, p = _problem(Features(longest_q=9, longest_k=20, causal=True), FP32)
    p = p._replace(softmax_scale=scale)
    expected = composed.forward(p)
    for result, reference in zip(triton_backend.forward(p), expected[:2]):
        torch.testing.assert_close(result, reference, rtol=1e-5, atol=1e-6)


def test_dropout_keeps_the_elements_that_other_backends_keep():
    """With the unit matrix for v the output is the matrix of weights itself."""
    _, p = _problem(Features(longest_q=33, longest_k=64, dims=(16, 64), heads=(2, 2), dropout=0.4), FP16)
    p = p._replace(v=torch.eye(64, dtype=FP16, device=DEVICE)[None, :, None].expand(2, 64, 2, 64).contiguous())
    out, _, _ = triton_backend.forward(p)
    _, _, probs = composed.forward(p, probs=True)
    assert torch.equal(out.transpose(1, 2) != 0, probs > 0)


def test_the_seed_may_lie_on_the_cpu_and_out_is_written_to():
    _, p = _problem(Features(longest_q=20, longest_k=30, dropout=0.3), FP16)
    expected = triton_backend.forward(p)[0]
    out = torch.full_like(expected, float("nan"))
    result, no_lse, _ = triton_backend.forward(p._replace(rng_state=p.rng_state.cpu()), out, lse=False)
    assert result is out and no_lse is None and torch.equal(out, expected)
    strided = torch.full((*expected.shape, 2), float("nan"), dtype=FP16, device=DEVICE)[..., 0]
    assert triton_backend.forward(p, strided)[0] is strided and torch.equal(strided, expected)


def test_only_what_is_needed():
    _, p = _problem(Features(longest_q=20, longest_k=30), FP16)
    out, lse, results, dout, dlse = _both(p)
    for place in range(3):
        needs = tuple(place == at for at in range(6))
        part = triton_backend.backward(p, dout, dlse, out, lse, needs)
        assert [gradient is not None for gradient in part] == list(needs)
        assert torch.equal(part[place], results[place])


@pytest.mark.parametrize("batch, queries, keys", [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_do(batch, queries, keys):
    q, k = torch.zeros(batch, queries, 2, 16, device=DEVICE), torch.zeros(batch, keys, 1, 16, device=DEVICE)
    p = Problem(q, k, k, max_seqlen_q=queries, max_seqlen_k=keys, causal=True)
    out, lse, results, _, _ = _both(p)
    assert out.shape == q.shape and (out == 0).all() and (lse == -torch.inf).all()
    assert all(gradient is None or (gradient == 0).all() for gradient in results)


@on_gpu
@pytest.mark.parametrize("name", ["causal", "packed, dropout", "shared bias and slopes"])
def test_the_same_bits_every_time(name):
    _, p = _problem(FEATURES[name], BF16)
    first, again = _both(p), _both(p)
    for one, other in zip((*first[:2], *first[2]), (*again[:2], *again[2])):
        assert one is None or torch.equal(one, other)


@on_gpu
def test_a_graph_draws_with_the_seed_of_its_replay():
    _, p = _problem(FEATURES["dropout"], BF16)
    state = p.rng_state.clone()
    p = p._replace(rng_state=state)
    _both(p)  # compiles
    dout = torch.randn_like(p.q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse, _ = triton_backend.forward(p)
        dq = triton_backend.backward(p, dout, None, out, lse, (True, True, True, False, False, False))[0]
    for seed in (3, 4):
        state.copy_(torch.tensor([seed, 0]))
        graph.replay()
        expected, expected_lse, _ = triton_backend.forward(p)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
        assert torch.equal(
            dq,
            triton_backend.backward(p, dout, None, out, lse, (True, True, True, False, False, False))[0],
        )


@on_gpu
def test_configurations_are_tried_once_and_never_inside_a_graph(monkeypatch):
    from flashwave.backends.triton import launch as triton_launch

    monkeypatch.setenv("FLASHWAVE_TRITON_AUTOTUNE", "1")
    monkeypatch.setattr(triton_launch, "_WORTH_TUNING", 0)
    monkeypatch.setattr(triton_launch, "_chosen", {})
    _, p = _problem(FEATURES["causal"], BF16)
    with mock.patch.object(triton_launch, "_seconds", side_effect=AssertionError("tried")):
        triton_backend.forward(p._replace(deterministic=True))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            triton_backend.forward(p)
        with pytest.raises(AssertionError, match="tried"):
            triton_backend.forward(p)
    tried = triton_backend.forward(p)
    with mock.patch.object(triton_launch, "_seconds", side_effect=AssertionError("tried again")):
        again = triton_backend.forward(p)
    assert torch.equal(tried[0], again[0]) and len(triton_launch._chosen) == 1


@on_gpu
def test_under_torch_compile():
    _, p = _problem(Features(**LONG, dims=(64, 64), causal=True), BF16)

    def loss(q, k, v):
        return operators.attend(p._replace(q=q, k=k, v=v))[0].float().square().sum()

    with flashwave.backend("triton"):
        leaves = [x.clone().requires_grad_() for x in p[:3]]
        eager = torch.autograd.grad(loss(*leaves), leaves)
        compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*leaves), leaves)
    for one, other in zip(eager, compiled):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)

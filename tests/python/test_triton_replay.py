"""Triton launches that are repeated: as if they were made anew, and only where nothing else is to be done."""

from __future__ import annotations

import os

import pytest
import torch

import flashwave
from flashwave import dispatch
from flashwave.attention import make_problem
from flashwave.backends.triton import replay as triton_replay
from flashwave.backends.triton import support as triton_support
from numeric import error

DEVICE = os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")
on_a_gpu = pytest.mark.skipif(
    not DEVICE.startswith("cuda") or triton_support.why_no_triton() is not None, reason="no Triton on a GPU"
)


class Kernel:
    """Stands for a kernel: out = scale * x, what a compiled one computes of its arguments in order."""

    arg_names = ("x", "scale", "out")

    def __init__(self):
        self.launches, self.starts = 0, 0

    def __getitem__(self, grid):
        def launch(x, scale, out, **options):
            self.launches += 1
            out.copy_(x * scale)
            return self.Compiled(self)

        return launch

    class Compiled:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            def run(x, scale, out):
                self.kernel.starts += 1
                out.copy_(x * scale)

            return run


@pytest.fixture
def pretend(monkeypatch):
    """Calls on CPU tensors are taken for calls on a GPU."""
    monkeypatch.setattr(triton_replay, "_known", {})
    monkeypatch.setattr(triton_replay, "_is_plain", lambda problem, others: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def attend(kernel, q, scale=2.0, view=False):
    def make(problem):
        out = torch.empty_like(problem.q)
        triton_replay.start(kernel, 1, {"x": problem.q, "scale": scale, "out": out}, {"num_warps": 4})
        return (out.clone() if view else out, None)

    return triton_replay.repeated(make_problem(q, q, q), (), ("forward", scale), make)


def test_a_call_is_launched_twice_and_then_repeated(pretend):
    kernel = Kernel()
    for n in range(5):
        q = torch.full((1, 3, 1, 4), float(n))
        out, nothing = attend(kernel, q)
        assert torch.equal(out, 2 * q) and nothing is None
    assert (kernel.launches, kernel.starts) == (2, 3)
    out, _ = attend(kernel, torch.ones(1, 3, 1, 4), scale=3.0)  # other numbers, another call
    assert kernel.launches == 3 and torch.equal(out, torch.full_like(out, 3.0))
    attend(kernel, torch.ones(1, 4, 1, 4))
    assert kernel.launches == 4


def test_results_of_several_calls_are_apart(pretend):
    kernel = Kernel()
    outs = [attend(kernel, torch.full((1, 3, 1, 4), float(n)))[0] for n in range(6)]
    assert [out[0, 0, 0, 0].item() for out in outs] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_a_result_that_no_kernel_wrote_is_not_repeated(pretend):
    kernel = Kernel()
    for n in range(4):
        q = torch.full((1, 3, 1, 4), float(n))
        assert torch.equal(attend(kernel, q, view=True)[0], 2 * q)
    assert (kernel.launches, kernel.starts) == (4, 0)


def test_a_seed_of_the_cpu_goes_to_the_device():
    q = torch.zeros(1, 1, 1, 4, device="meta")
    state = torch.tensor([-5, 1 << 40])
    problem = make_problem(q, q, q, dropout_p=0.5, rng_state=state)
    assert triton_support.seed_on_device(problem).rng_state.device.type == "meta"
    same = make_problem(*(torch.zeros(1, 1, 1, 4),) * 3, dropout_p=0.5, rng_state=state)
    assert triton_support.seed_on_device(same) is same


@on_a_gpu
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"dropout_p": 0.3}, {"window_size": (20, 5), "softcap": 5.0}]
)
def test_repeated_calls_compute_their_own_tensors(options):
    triton_replay._known.clear()
    for n in range(5):
        torch.manual_seed(n)
        q, k, v = (torch.randn(2, 77, heads, 64, device=DEVICE).bfloat16().requires_grad_() for heads in (4, 2, 2))
        weight = torch.randn_like(q)
        results = []
        for name in ("triton", "torch"):
            torch.cuda.manual_seed(n)  # one seed of the dropout
            with flashwave.backend(name):
                out = flashwave.flash_attn_func(q, k, v, **options)
            results.append((out, *torch.autograd.grad(out, (q, k, v), weight)))
        for mine, theirs in zip(*results):
            assert error(mine, theirs) <= 0.03 * max(1.0, theirs.abs().max().item())
    kinds = [call for call in triton_replay._known.values() if isinstance(call, triton_replay._Call)]
    assert len(kinds) == 2 and sorted(len(call.starts) for call in kinds) == [1, 3]


@on_a_gpu
def test_repeated_calls_give_the_same_bits():
    q, k, v, dout = (torch.randn(2, 200, 4, 64, device=DEVICE).half() for _ in range(4))
    problem = make_problem(q, k, v, causal=True)
    needs = (True, True, True, False, False, False)
    results = []
    for _ in range(4):
        with flashwave.backend("triton"):
            out, lse, _ = dispatch.forward(problem)
        results.append((out, lse, *dispatch.backward(problem, dout, None, out, lse, needs, "triton")[:3]))
    for other in results[1:]:
        for first, again in zip(results[0], other):
            assert torch.equal(first, again)


@on_a_gpu
def test_a_repeated_call_is_captured():
    q, k, v = (torch.randn(1, 130, 4, 64, device=DEVICE).bfloat16() for _ in range(3))
    with flashwave.backend("triton"), torch.no_grad():
        for _ in range(3):
            flashwave.flash_attn_func(q, k, v)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = flashwave.flash_attn_func(q, k, v)
        q.copy_(torch.randn_like(q))
        graph.replay()
        assert torch.equal(out, flashwave.flash_attn_func(q, k, v))

"""What each backend computes on the device under test, against the oracle: every feature, both directions, every type.

The same problems and the same rule for all of them. Of Triton's kernels those problems are asked that they take.
"""

from __future__ import annotations

import collections
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import NAN, Features, features, make, to
from flashwave import autograd as operators
from flashwave import dispatch
from flashwave.backends.triton import backend as triton_backend
from flashwave.problem import Problem
from numeric import assert_within_rule
from oracle import attention as oracle

pytestmark = pytest.mark.usefixtures("backend")
DEVICE = os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu")
EXAMPLES = int(os.environ.get("FLASHWAVE_TEST_EXAMPLES", "60"))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NAMES = ("q", "k", "v", "alibi_slopes", "bias", "sinks")


def for_library(problem: Problem) -> Problem:
    """Slopes and sinks are float32 in every problem, as the library wants them."""
    wide = torch.promote_types(problem.q.dtype, torch.float32)
    return problem._replace(
        **{n: getattr(problem, n).to(wide) for n in ("alibi_slopes", "sinks") if getattr(problem, n) is not None}
    )


def reference(problem: Problem, weights: tuple, dtype: torch.dtype) -> tuple:
    """(out, lse, gradients by name, caches) of the oracle computing in `dtype`."""
    names = [name for name in NAMES if getattr(problem, name) is not None]
    leaves = {name: getattr(problem, name).detach().to(dtype).requires_grad_() for name in names}
    result = oracle(problem._replace(**leaves), dtype)
    gradients = {}
    if weights:
        rows = result.lse.isfinite()
        total = (result.out * weights[0]).nansum() + (result.lse[rows] * weights[1][rows]).sum()
        total = total + sum(leaf.flatten()[:0].sum() for leaf in leaves.values())  # 0, for what no row depends on
        gradients = dict(zip(names, torch.autograd.grad(total, list(leaves.values()))))
    return result.out.detach(), result.lse.detach(), gradients, (result.k, result.v)


# Triton compiles a kernel for nearly each of these problems, in seconds.
TRITON_EXAMPLES = int(os.environ.get("FLASHWAVE_TEST_TRITON_EXAMPLES", "5"))
compiled: collections.Counter = collections.Counter()


def taken(problem: Problem, backward: bool) -> bool:
    """Whether the backend under test is to compute the problem. Triton's alone need not take it."""
    may_compile = dispatch.chosen() == "triton" or (dispatch.chosen() is None and problem.q.is_cuda)
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if may_compile and compiled[test] >= TRITON_EXAMPLES:
        return False
    compiled[test] += may_compile
    if dispatch.chosen() != "triton":
        return True
    ops = ("forward", "backward") if backward else ("forward",)
    needs = tuple(getattr(problem, name) is not None for name in NAMES)
    return all(triton_backend.refusal(problem, op, needs if op == "backward" else None) is None for op in ops)


def check(f: Features, dtype: torch.dtype, backward: bool) -> None:
    problem = for_library(make(f, dtype))
    device_problem = to(problem, DEVICE)
    if not taken(device_problem, backward):
        return
    exact, naive = (
        reference(to(problem, dtype=torch.float64) if d == torch.float64 else problem, (), d)
        for d in (torch.float64, dtype)
    )
    if backward:
        leaves = {
            n: getattr(device_problem, n).requires_grad_() for n in NAMES if getattr(device_problem, n) is not None
        }
        device_problem = device_problem._replace(**leaves)
    out, lse, _ = operators.attend(device_problem)
    assert_within_rule(out, exact[0], naive[0], 2, "out")
    assert_within_rule(lse, exact[1], naive[1], 2, "lse", units=4.0)
    if problem.k_new is not None:
        for name, mine, theirs in zip("kv", (device_problem.k, device_problem.v), naive[3]):
            assert torch.equal(mine.cpu().nan_to_num(9.0), theirs.nan_to_num(9.0)), f"cache of {name}"
    if not backward:
        return
    generator = torch.Generator().manual_seed(f.seed + 1)
    weights = (
        torch.randn(exact[0].shape, generator=generator).to(dtype),
        torch.randn(exact[1].shape, generator=generator),
    )
    if problem.cu_seqlens_q is not None:  # rows of no sequence are not read
        weights[0][int(problem.cu_seqlens_q[-1]) :] = NAN
    mine = torch.autograd.grad((out, lse), list(leaves.values()), [w.to(DEVICE) for w in weights], allow_unused=True)
    exact = reference(to(problem, dtype=torch.float64), tuple(w.double() for w in weights), torch.float64)[2]
    naive = reference(problem, weights, dtype)[2]
    # A row with one visible key has ds = 0 exactly, but dP - delta carries the rounding of out: judged by the largest.
    size = max(exact[name].abs().nan_to_num(0.0).max().item() for name in "qkv" if exact[name].numel())
    unit = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    rows = problem.q.shape[0] * (problem.q.shape[1] if problem.q.dim() == 4 else 1) * problem.v.shape[-1]
    for name, gradient in zip(leaves, mine):
        room = unit * max(size, 1.0) * (4 if name in "qkv" else rows**0.5)
        error = (
            (gradient.cpu().double() - exact[name].double()).abs().nan_to_num(0.0).max().item()
            if exact[name].numel()
            else 0
        )
        allowed = (
            3 * (naive[name].double() - exact[name].double()).abs().nan_to_num(0.0).max().item()
            if naive[name].numel()
            else 0
        )
        assert torch.equal(gradient.cpu().isfinite(), exact[name].isfinite()), f"d{name}: finite elsewhere"
        assert error <= allowed + room, f"d{name}: error {error:.3e}, allowed {allowed:.3e} + {room:.3e}"


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=EXAMPLES)
@given(f=features())
def test_forward(f, dtype):
    check(f, dtype, backward=False)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=EXAMPLES)
@given(f=features(backward=True))
def test_backward(f, dtype):
    check(f, dtype, backward=True)


@settings(max_examples=max(EXAMPLES // 4, 10))
@given(f=features(backward=True), seed=st.integers(0, 100))
def test_same_bits_again(f, seed):
    problem = to(for_library(make(f._replace(seed=seed), torch.float32)), DEVICE)
    if not taken(problem, False):
        return
    first, second = operators.attend(problem), operators.attend(problem)
    assert torch.equal(first[0].nan_to_num(), second[0].nan_to_num())
    assert torch.equal(first[1].nan_to_num(), second[1].nan_to_num())


def test_triton_takes_most_problems(backend):
    """Else the tests above would say little."""
    if backend != "triton":
        pytest.skip("of Triton's backend")
    for f in (Features(), Features(keys="self", packed_q=True, causal=True, window=(5, 0), softcap=1.5, dropout=0.3)):
        f = f._replace(bias="hq", slopes="bh", sinks=True)
        assert taken(to(for_library(make(f, torch.float32)), DEVICE), True)

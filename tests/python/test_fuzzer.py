"""A bounded run of the fuzzer, and proof that it can find what it is for: faults that are planted are found."""

from __future__ import annotations

import collections
import functools
import os

import pytest
import torch

import cases
import flashwave
import oracle
from fuzzer import calls, engine, more_calls, reference
from fuzzer.world import Finding

pytestmark = pytest.mark.skipif(
    os.environ.get("FLASHWAVE_TEST_DEVICE", "cpu") != "cpu", reason="the fuzzer's tensors are on the CPU"
)
# Planted faults have to be found in so many, and so many find nothing else: the same ones every time, however slow the
# machine. A hunt is scripts/fuzz-python.
SEQUENCES = 2000


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_finds_nothing():
    seed = int(os.environ.get("FLASHWAVE_FUZZ_PYTHON_SEED", "2026"))
    tally = engine.Tally()

    def report(number: int, finding: Finding) -> bool:
        pytest.fail(f"{finding}\nsee it again, from tests/python: python -m fuzzer --replay {seed}/{number}")

    engine.run(seed, count=SEQUENCES, on_finding=report, tally=tally)
    print("\n".join(tally.lines()))
    tally.check()
    assert tally.sequences == SEQUENCES
    computed = {maker for maker, _ in tally.right}
    assert computed == set(engine.MAKERS), f"never computed: {set(engine.MAKERS) - computed}"


def test_every_public_function_is_called():
    """A function that the package gains must be given to the fuzzer."""
    with open(calls.__file__) as one, open(more_calls.__file__) as other:
        text = one.read() + other.read()
    elsewhere = {  # tested by themselves
        *("explain", "backend", "Problem", "devices", "FlashAttention"),
        *("activate", "register_with_torch", "restore"),  # switches of the whole process
        *("flash_attn_unpadded_kvpacked_func", "flash_attn_unpadded_qkvpacked_split_func"),
        *(name for name in flashwave.__all__ if isinstance(getattr(flashwave, name), type)),
    }
    missing = [name for name in flashwave.__all__ if name not in elsewhere and name not in text]
    assert not missing


@pytest.mark.parametrize("f", [
    cases.Features(causal=True, softcap=1.5, slopes="bh", sinks=True),
    cases.Features(window=(2, 1), bias="bhqk", slopes="h"),
    cases.Features(longest_q=9, longest_k=3, causal=True, bias="qk"),
])  # fmt: skip
def test_the_reference_is_the_oracle(f):
    """Two implementations of docs/semantics.md, written apart."""
    p = cases.make(f)
    scale = p.q.shape[-1] ** -0.5 if p.softmax_scale is None else p.softmax_scale
    want = oracle.attention(p._replace(softmax_scale=scale))
    bias = None if p.bias is None else p.bias.nan_to_num(nan=0.0, neginf=-torch.inf)
    got = reference.attention(
        p.q, p.k, p.v, scale, p.causal, (p.window_left, p.window_right), p.softcap, p.alibi_slopes, bias, p.sinks
    )
    torch.testing.assert_close(got.out, want.out)
    torch.testing.assert_close(got.lse, want.lse)
    torch.testing.assert_close(got.probs, want.probs)


# ------------------------------------------------------------------------------------------------------ planted faults


def _found(monkeypatch, name: str, fault) -> str:
    """What the fuzzer says of flashwave with a function replaced by fault(function)."""
    monkeypatch.setattr(flashwave, name, fault(getattr(flashwave, name)))
    with pytest.raises(Finding) as caught:
        engine.run(7, count=SEQUENCES, seconds=300)  # sequences are the limit; a busy machine takes 100 s for some
    return caught.value.kind


def _remembers_by_identity(function):
    """Keeps which argument is which by the identity of the first call's tensors, as a cache by layout would."""
    known: dict = {}

    @functools.wraps(function)
    def wrapped(q, k, v, *args, **kwargs):
        key = (q.shape, k.shape, v.shape, q.dtype)
        places = known.setdefault(key, [[id(x) for x in (q, k, v)].index(id(y)) for y in (q, k, v)])
        tensors = (q, k, v)
        return function(*(tensors[place] for place in places), *args, **kwargs)

    return wrapped


def _keeps_the_first_scale(function):
    """A scale that is a tensor keeps the value of its first call."""
    known: dict = {}

    @functools.wraps(function)
    def wrapped(*args, softmax_scale=None, **kwargs):
        if isinstance(softmax_scale, torch.Tensor):
            softmax_scale = known.setdefault(id(softmax_scale), (softmax_scale, softmax_scale.item()))[1]
        return function(*args, softmax_scale=softmax_scale, **kwargs)

    return wrapped


def _ignores(argument):
    def fault(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            kwargs.pop(argument, None)
            return function(*args, **kwargs)

        return wrapped

    return fault


def _detaches(function):
    @functools.wraps(function)
    def wrapped(q, *args, **kwargs):
        return function(q.detach(), *args, **kwargs)

    return wrapped


def _shares_a_result(function):
    """The same memory for every result of a layout, as a workspace that is kept would be."""
    known: dict = {}

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        result = function(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or result.requires_grad:
            return result
        kept = known.setdefault((result.shape, result.dtype), torch.empty_like(result))
        with torch.inference_mode(kept.is_inference()):
            return kept.copy_(result)

    return wrapped


PLANTED = {
    "identity": ("flash_attn_func", _remembers_by_identity),
    "scale": ("flash_attn_func", _keeps_the_first_scale),
    "window": ("flash_attn_varlen_func", _ignores("window_size")),
    "left padding": ("flash_attn_with_kvcache", _ignores("cache_leftpad")),
    "no gradient": ("flash_attn_func", _detaches),
    "one buffer for all threads": ("flash_attn_func", _shares_a_result),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_is_found(monkeypatch, planted):
    assert _found(monkeypatch, *PLANTED[planted])


def test_a_run_that_refuses_everything_fails():
    tally = engine.Tally(refused=collections.Counter({("dense", "plain"): 30}))
    with pytest.raises(Finding, match="mostly refused"):
        tally.check()


def test_a_sequence_is_a_function_of_its_seed():
    tallies = []
    for _ in range(2):
        tally = engine.Tally()
        for number in range(20):
            try:
                engine.run_sequence(5, number, tally)
            except Finding as finding:
                tally.right[finding.kind] += 1
        tallies.append((tally.steps, tally.right, tally.refused))
    assert tallies[0] == tallies[1]

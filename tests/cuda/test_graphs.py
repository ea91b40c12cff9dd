"""Streams, CUDA graphs and torch.compile on a GPU."""

from __future__ import annotations

import pytest
import torch

import flashwave
from numeric import error
from sample import SAMPLES, normal


def captured(sample, warm=True):
    if warm:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            sample()
        torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sample()
    return graph, out


def redraw(sample):
    """Other numbers in the same tensors; lengths, offsets and tables are shuffled where that keeps them valid."""
    for tensor in sample.tensors:
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, device=tensor.device))
        elif tensor.dim() == 2:
            tensor.copy_(tensor.flip(1))
        elif int(tensor[0]) > 0:
            tensor.copy_(tensor.flip(0))


# ------------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("name", SAMPLES)
def test_a_call_runs_on_the_current_stream(name):
    """The tensors get their numbers on a stream that is busy: a kernel on another stream would read the old ones."""
    sample, new = SAMPLES[name](), SAMPLES[name]()
    for there, tensor in zip(sample.tensors, new.tensors):
        if not tensor.is_floating_point():
            tensor.copy_(there)
    expected = new()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # cycles
        for there, tensor in zip(new.tensors, sample.tensors):
            tensor.copy_(there)
        out = sample()
        done = torch.cuda.Event()
        done.record()
    assert not done.query(), "the call did not wait on the stream"
    stream.synchronize()
    assert torch.equal(out, expected)


def test_many_streams_at_once():
    """Each call has a workspace of its own."""
    makes = [SAMPLES["decode"], SAMPLES["pages"], SAMPLES["prefill"], SAMPLES["append"]]
    samples = [make() for make in makes * 2]
    expected = [sample() for sample in samples]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in samples]
    results = []
    for _ in range(20):
        for sample, stream in zip(samples, streams):
            with torch.cuda.stream(stream):
                results.append(sample())
    torch.cuda.synchronize()
    for number, out in enumerate(results):
        assert torch.equal(out, expected[number % len(samples)])


@pytest.mark.parametrize("dim", [64, 128])
def test_a_kernel_that_starts_early_waits_for_what_is_before_it(dim):
    """Behind a copy, a clearing of memory and its own kind, on a stream and in a graph: kernels that are started before
    the last one has ended read what that has written."""
    q, k, v = (normal(4, 300, 8, dim) for _ in range(3))
    x, filled = torch.empty_like(q), torch.empty(1 << 20, device="cuda")

    def chain():
        filled.zero_()
        x.copy_(q)
        first = flashwave.flash_attn_func(x, k, v)
        filled.zero_()
        out = flashwave.flash_attn_func(flashwave.flash_attn_func(first, k, v), k, v)
        x.zero_()
        return out

    expected = q
    for _ in range(3):
        expected = flashwave.flash_attn_func(expected, k, v)
        torch.cuda.synchronize()
    assert torch.equal(chain(), expected)
    graph, out = captured(chain)
    for _ in range(20):
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)


# -------------------------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("name", SAMPLES)
def test_a_graph_replays_with_new_numbers(name):
    sample = SAMPLES[name]()
    graph, out = captured(sample)
    for _ in range(3):
        redraw(sample)
        graph.replay()
        torch.cuda.synchronize()
        replayed = out.clone()
        assert torch.equal(replayed, sample())


@pytest.mark.parametrize("name", SAMPLES)
def test_a_graph_of_a_call_that_was_never_made(name):
    """Nothing has to be warm: a kernel may be loaded for the first time while a graph is captured."""
    q, k, v = (normal(3, rows, heads, 96) for rows, heads in ((5, 6), (77, 3), (77, 3)))  # a layout of this test alone
    graph, out = captured(lambda: flashwave.flash_attn_func(q, k, v, softcap=7.0), warm=False)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, flashwave.flash_attn_func(q, k, v, softcap=7.0))
    sample = SAMPLES[name]()
    graph, out = captured(sample, warm=False)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, sample())


def test_a_graph_takes_no_memory_when_it_runs():
    sample = SAMPLES["decode"]()
    graph, _ = captured(sample)
    graph.replay()
    torch.cuda.synchronize()
    allocated, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= allocated and torch.cuda.mem_get_info()[0] >= free


def test_a_graph_of_several_streams():
    """The two calls of a graph that may run at the same time."""
    first, second = SAMPLES["decode"](), SAMPLES["decode"]()
    expected = first(), second()
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        one = first()
        with torch.cuda.stream(side):
            two = second()
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(one, expected[0]) and torch.equal(two, expected[1])


def test_a_graph_with_dropout_draws_at_every_replay():
    q, k, v = (normal(2, 60, 4, 64).requires_grad_() for _ in range(3))
    weight = normal(2, 60, 4, 64)

    def step():
        out = flashwave.flash_attn_func(q, k, v, dropout_p=0.5)
        return out, torch.autograd.grad(out, (q, k, v), weight)

    graph, (out, gradients) = captured(step)
    results = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        results.append([tensor.clone() for tensor in (out.detach(), *gradients)])
    for first, second in zip(results, results[1:]):
        assert not any(torch.equal(a, b) for a, b in zip(first, second))
    # With a state that is given the mask is the one of that state, in a graph too.
    state = torch.tensor([3, 4])
    with torch.no_grad():
        graph, out = captured(lambda: flashwave.attention(q, k, v, dropout_p=0.5, rng_state=state))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, flashwave.attention(q, k, v, dropout_p=0.5, rng_state=state.cuda()))


@pytest.mark.parametrize("queries", [60, 1])
def test_a_graph_reads_the_state_of_its_dropout_when_it_runs(queries):
    """By the library's own kernels: the bits are those of a call that is given the state by value."""
    q, k, v = normal(2, queries, 4, 64), normal(2, 300, 4, 64), normal(2, 300, 4, 64)
    state = torch.tensor([3, 4], device="cuda")
    with flashwave.backend("native"):
        graph, out = captured(lambda: flashwave.attention(q, k, v, dropout_p=0.5, rng_state=state))
        for numbers in ([3, 4], [-5, 4], [3, 1 << 40]):
            state.copy_(torch.tensor(numbers))
            graph.replay()
            torch.cuda.synchronize()
            given = flashwave.attention(q, k, v, dropout_p=0.5, rng_state=torch.tensor(numbers))
            assert torch.equal(out, given)


# ------------------------------------------------------------------------------------------------------------- compile


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor(mode):
    """reduce-overhead captures graphs of its own."""
    q, k, v = (normal(2, 100, 4, 64).requires_grad_() for _ in range(3))

    def step(q, k, v):
        return flashwave.flash_attn_func(q * 1.5, k, v, causal=True).float().square().sum()

    eager = torch.autograd.grad(step(q, k, v), (q, k, v))
    compiled = torch.compile(step, fullgraph=True, mode=mode)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        traced = [gradient.clone() for gradient in torch.autograd.grad(compiled(q, k, v), (q, k, v))]
    for a, b in zip(eager, traced):
        assert error(a, b) <= 2.0**-7 * a.abs().max()
    torch.compiler.reset()


def test_inductor_of_a_decoding_step():
    sample = SAMPLES["append"]()
    expected = sample().clone()
    caches = [tensor.clone() for tensor in sample.tensors[3:5]]
    compiled = torch.compile(sample.call, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(*sample.tensors).clone()
    assert torch.equal(out, expected)
    assert all(torch.equal(a, b) for a, b in zip(caches, sample.tensors[3:5]))
    torch.compiler.reset()

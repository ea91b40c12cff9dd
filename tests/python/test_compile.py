"""torch.compile, torch.export, opcheck, fake tensors, CUDA graphs."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.autograd import forward_ad

import flashwave
from flashwave.attention import make_problem
from flashwave.problem import FORWARD_FIELDS
from numeric import error


def inputs(device, dtype=torch.float32, grad=True, sq=19, sk=23):
    shapes = ((2, sq, 4, 16), (2, sk, 2, 16), (2, sk, 2, 8))
    return [torch.randn(shape, device=device).to(dtype).requires_grad_(grad) for shape in shapes]


def compiled(function, **options):
    # aot_eager goes through the same tracing and partitioning as inductor, without a C++ or Triton compiler.
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def test_compiled_forward_and_backward_are_the_eager_ones(device):
    tensors = inputs(device)

    def step(q, k, v):
        out, lse = flashwave.flash_attn_func(q * 1.5, k, v, causal=True, return_lse=True)
        return out.square().sum() + lse.sin().sum()

    eager = torch.autograd.grad(step(*tensors), tensors)
    traced = torch.autograd.grad(compiled(step)(*tensors), tensors)
    for a, b in zip(eager, traced):
        assert torch.equal(a, b)


def test_compiled_with_every_score_term(device):
    q, k, v = inputs(device)
    terms = {
        "bias": torch.randn(4, 19, 23, device=device, requires_grad=True),
        "sinks": torch.randn(4, device=device, requires_grad=True),
        "alibi_slopes": torch.rand(2, 4, device=device, requires_grad=True),
    }

    def step(q, k, v, terms):
        return flashwave.flash_attn_func(q, k, v, softcap=3.0, window_size=(7, 3), **terms).square().sum()

    leaves = (q, k, v, *terms.values())
    eager = torch.autograd.grad(step(q, k, v, terms), leaves)
    traced = torch.autograd.grad(compiled(step)(q, k, v, terms), leaves)
    for a, b in zip(eager, traced):
        assert error(a, b) < 1e-5


def test_compiled_with_changing_shapes_compiles_once(device):
    from torch._dynamo.testing import CompileCounterWithBackend

    count = CompileCounterWithBackend("aot_eager")
    function = torch.compile(
        lambda q, k, v: flashwave.flash_attn_func(q, k, v, causal=True), fullgraph=True, backend=count, dynamic=True
    )
    counts = set()
    for length in (7, 12, 33):
        q, k, v = inputs(device, grad=False, sq=length, sk=length + 2)
        assert torch.equal(function(q, k, v), flashwave.flash_attn_func(q, k, v, causal=True))
        counts.add(count.frame_count)
    assert len(counts) == 1, "compiled again for another length"


def test_compiled_dropout_draws_anew_and_repeats_with_the_seed(device):
    q, k, v = inputs(device)
    function = compiled(lambda q, k, v: flashwave.flash_attn_func(q, k, v, dropout_p=0.5))
    torch.manual_seed(11)
    first, second = function(q, k, v), function(q, k, v)
    torch.manual_seed(11)
    assert torch.equal(first, function(q, k, v)) and not torch.equal(first, second)
    first.sum().backward()
    assert q.grad.isfinite().all()


def test_compiled_autocast(device):
    q, k, v = inputs(device, grad=False)

    def step(q, k, v):
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            return flashwave.flash_attn_func(q, k, v)

    out = compiled(step)(q, k, v)
    assert out.dtype == torch.bfloat16 and torch.equal(out, step(q, k, v))


def test_compiled_varlen(device):
    cu = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    q, k, v = (torch.randn(12, 2, 8, device=device, requires_grad=True) for _ in range(3))

    def step(q, k, v, cu):
        return flashwave.flash_attn_varlen_func(q, k, v, cu, cu, 7, 7, causal=True).square().sum()

    eager = torch.autograd.grad(step(q, k, v, cu), (q, k, v))
    traced = torch.autograd.grad(compiled(step)(q, k, v, cu), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(eager, traced))


def test_compiled_kvcache_appends_in_place(device):
    def run(step):
        torch.manual_seed(4)
        q, k_cache, v_cache = (torch.randn(2, n, 2, 8, device=device) for n in (1, 16, 16))
        k, v = torch.randn(2, 1, 2, 8, device=device), torch.randn(2, 1, 2, 8, device=device)
        lengths = torch.tensor([3, 9], dtype=torch.int32, device=device)
        return step(q, k_cache, v_cache, k, v, lengths), k_cache, v_cache

    def step(q, k_cache, v_cache, k, v, lengths):
        return flashwave.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)

    for a, b in zip(run(step), run(compiled(step))):
        assert torch.equal(a, b)


def test_compiled_out(device):
    q, k, v = inputs(device, grad=False)
    out = torch.full((2, 19, 4, 8), torch.nan, device=device)
    compiled(lambda q, k, v, out: flashwave.flash_attn_func(q, k, v, out=out))(q, k, v, out)
    assert torch.equal(out, flashwave.flash_attn_func(q, k, v))


def test_inductor(device):
    """The default backend of torch.compile, where it can build code."""
    q, k, v = inputs(device)

    def step(q, k, v):
        return flashwave.flash_attn_func(q + 1.0, k, v, causal=True).square().sum()

    eager = torch.autograd.grad(step(q, k, v), (q, k, v))
    try:
        traced = torch.autograd.grad(torch.compile(step, fullgraph=True)(q, k, v), (q, k, v))
    except torch._dynamo.exc.BackendCompilerFailed as failure:
        pytest.skip(f"inductor cannot build code here: {str(failure).splitlines()[0]}")
    for a, b in zip(eager, traced):
        assert error(a, b) < 1e-4


def test_export(device):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return flashwave.flash_attn_func(q, k, v, causal=True, softcap=2.0) * 2

    q, k, v = inputs(device, grad=False)
    program = torch.export.export(Model(), (q, k, v))
    assert any("flashwave.forward" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(q, k, v), Model()(q, k, v))


def test_fake_tensors_and_meta_shapes(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = inputs("cpu")
        out, lse = flashwave.flash_attn_func(q, k, v, return_lse=True)
        assert out.shape == (2, 19, 4, 8) and lse.shape == (2, 4, 19) and lse.dtype == torch.float32
        with pytest.raises(RuntimeError, match="k must have the head dimension of q"):
            flashwave.flash_attn_func(q, k[..., :4], v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("what", ["plain", "terms", "varlen", "probs"])
def test_opcheck_forward(device, dtype, what):
    if what == "varlen":
        cu = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
        q, k, v = (torch.randn(12, 2, 8, device=device).to(dtype).requires_grad_() for _ in range(3))
        problem = make_problem(q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=7, max_seqlen_k=7)
    else:
        q, k, v = inputs(device, dtype, sq=5, sk=7)
        terms = {}
        if what == "terms":
            terms["bias"] = torch.randn(1, 4, 1, 7, device=device, requires_grad=True)
            terms["sinks"] = torch.randn(4, device=device, requires_grad=True)
            terms["alibi_slopes"] = torch.rand(4, device=device, requires_grad=True)
        if what == "probs":
            terms = {"dropout_p": 0.5, "rng_state": torch.tensor([1, 2], device=device)}
        problem = make_problem(q, k, v, **terms)
    torch.library.opcheck(torch.ops.flashwave.forward.default, (*problem[: len(FORWARD_FIELDS)], what == "probs"))


@pytest.mark.parametrize("packed", [False, True])
def test_opcheck_without_the_lse(device, packed):
    q, k, v = inputs(device, torch.bfloat16, grad=False, sq=5, sk=7)
    problem = make_problem(q, k, v, causal=True)
    if packed:
        cu = torch.tensor([0, 5, 10], dtype=torch.int32, device=device)
        q, k, v = (torch.randn(10, 2, 8, device=device) for _ in range(3))
        problem = make_problem(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=5, max_seqlen_k=5)
    arguments = (*problem[: len(FORWARD_FIELDS)], False, False)
    torch.library.opcheck(torch.ops.flashwave.forward.default, arguments)
    out, lse, _ = torch.ops.flashwave.forward.default(*arguments)
    assert lse.shape == (0,) and torch.equal(out, flashwave.autograd.attend(problem, lse=False)[0])
    leaf = problem.q.detach().requires_grad_()
    torch.ops.flashwave.forward.default(leaf, *arguments[1:])[0].sum().backward()
    assert leaf.grad.isfinite().all()


def test_opcheck_backward_and_append(device):
    q, k, v = inputs(device, grad=False, sq=5, sk=7)
    problem = make_problem(q, k, v, causal=True)[: len(FORWARD_FIELDS)]
    out, lse, _ = torch.ops.flashwave.forward.default(*problem, False)
    needs = 0b000111  # q, k and v
    torch.library.opcheck(
        torch.ops.flashwave.backward.default, (torch.randn_like(out), None, out, lse, needs, *problem)
    )
    lengths = torch.tensor([1, 2], dtype=torch.int32, device=device)
    new = torch.randn(2, 3, 2, 16, device=device), torch.randn(2, 3, 2, 8, device=device)
    append = make_problem(q, k, v, causal=True, seqused_k=lengths)._replace(k_new=new[0], v_new=new[1])
    torch.library.opcheck(torch.ops.flashwave.forward_append.default, tuple(append))
    torch.library.opcheck(torch.ops.flashwave.forward_append.default, (*append, False))


def test_opcheck_of_every_operator(device):
    """Also those that only `autograd` calls; they have no gradient of their own."""
    q, k, v = inputs(device, grad=False, sq=5, sk=7)
    mask = (None, True, -1, -1, 0.0)
    cu_q, cu_k = (torch.tensor([0, 3, n], dtype=torch.int32, device=device) for n in (5, 7))
    lengths = torch.tensor([1, 2], dtype=torch.int32, device=device)
    new = torch.randn(2, 3, 2, 16, device=device), torch.randn(2, 3, 2, 8, device=device)
    problem = make_problem(q, k, v, causal=True)[: len(FORWARD_FIELDS)]
    append = make_problem(q, k, v, causal=True, seqused_k=lengths)._replace(k_new=new[0], v_new=new[1])
    ops = torch.ops.flashwave
    plain = (None, flashwave.operators.packed_mask(True, -1, -1, False))
    packed = (*plain, 0.0, torch.tensor([7, 11]), 0.25)
    out, lse = ops._dense_lse(q, k, v, *packed)
    cases = {
        "_dense": (q, k, v, *mask),
        "_plain_lse": (q, k, v, *plain),
        "_plain_backward": (torch.randn_like(out), out, lse, q, k, v, *plain),
        "_dense_lse": (q, k, v, *packed),
        "_dense_backward": (torch.randn_like(out), out, lse, q, k, v, *packed),
        "_varlen": (q[0], k[0], v[0], cu_q, cu_k, 3, 4, *mask),
        "_cached": (q, k, v, lengths, None, None, None, *mask, 0),
        "_append_step": (q, k, v, *new, lengths, *mask[:4]),
        "_cached_append": (q, k, v, *new, None, None, lengths, None, None, None, *mask, 0, False),
        "_forward": (*problem, True, True),
        "_forward_given": (torch.empty_like(out), *problem, True, False),
        "_append": (*append, True),
        "_backward": (torch.randn_like(out), None, out, lse, 7, *problem),
    }
    assert set(cases) == {name for name in flashwave.operators.SCHEMAS if not name.endswith("_elsewhere")}
    for name, arguments in cases.items():
        torch.library.opcheck(getattr(ops, name).default, arguments)


def test_dispatch_modes_see_the_operator(device):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    q, k, v = inputs(device, grad=False)
    with Log() as log:
        flashwave.flash_attn_func(q, k, v)
    assert "flashwave._dense.default" in log.seen


def test_cuda_graph(device):
    if not device.startswith("cuda"):
        pytest.skip("graphs are captured on GPUs")
    q, k, v = inputs(device, torch.bfloat16, grad=False)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        flashwave.flash_attn_func(q, k, v, causal=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flashwave.flash_attn_func(q, k, v, causal=True)
        dropped = flashwave.flash_attn_func(q, k, v, dropout_p=0.5)
    results = []
    for _ in range(2):
        q.copy_(torch.randn_like(q))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, flashwave.flash_attn_func(q, k, v, causal=True))
        results.append((q.clone(), dropped.clone()))
    q.copy_(results[0][0])
    graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(dropped, results[0][1]), "each replay draws a new mask"


def test_cuda_graph_of_training(device):
    if not device.startswith("cuda"):
        pytest.skip("graphs are captured on GPUs")
    q, k, v = inputs(device)
    out_grad = torch.randn(2, 19, 4, 8, device=device)

    def step():
        return torch.autograd.grad(flashwave.flash_attn_func(q, k, v, causal=True), (q, k, v), out_grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradients = step()
    with torch.no_grad():
        q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    for mine, theirs in zip(gradients, step()):
        assert torch.equal(mine, theirs)


def test_a_number_of_numpy_is_a_float_to_the_operators():
    """To torch.compile one that is left as it is, a float by inheritance, may be a tensor."""
    q, k, v = inputs("cpu", grad=False)
    scale = numpy.float64(0.3)
    problem = make_problem(q, k, v, softmax_scale=scale, softcap=numpy.float64(2.0), dropout_p=numpy.float64(0.0))
    assert [type(value) for value in (problem.softmax_scale, problem.softcap, problem.dropout_p)] == [float] * 3

    def attend(q):
        torch._dynamo.graph_break()
        return flashwave.attention(q, k, v, softmax_scale=scale)

    function = torch.compile(attend, backend="aot_eager")
    assert torch.equal(function(q), flashwave.attention(q, k, v, softmax_scale=0.3))


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("function", [flashwave.flash_attn_func, flashwave.flash_attn_with_kvcache])
def test_forward_mode_raises_on_the_compiled_routes(function, fullgraph):
    """Tangents that are lost without a word would be derivatives of 0."""
    q, k, v = inputs("cpu", grad=False)
    tangent = torch.ones_like(q)

    def attend(q):
        return function(q, k, v, causal=True)

    def jvp(q):
        return torch.func.jvp(attend, (q,), (tangent,))[1]

    def tangent_of(function, q):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(q, tangent))).tangent

    def compiled(traced):
        torch.compiler.reset()
        return torch.compile(traced, backend="aot_eager", fullgraph=fullgraph)

    for route in (
        lambda: torch.func.jvp(compiled(attend), (q,), (tangent,)),
        lambda: compiled(jvp)(q),
        lambda: tangent_of(compiled(attend), q),
        lambda: compiled(lambda q: tangent_of(attend, q))(q),
    ):
        with pytest.raises(Exception, match=r"forward-mode|no derivative|functorch|torch\.func"):
            route()
    torch.compiler.reset()

"""Autograd, autocast, random numbers, determinism, threads."""

from __future__ import annotations

import threading

import pytest
import torch

import flashwave
from numeric import assert_within_rule, error
from standard import attention as standard


def inputs(device, dtype=torch.float32, sq=19, sk=23, heads=4, heads_k=2, dim=16, grad=True):
    shapes = ((2, sq, heads, dim), (2, sk, heads_k, dim), (2, sk, heads_k, dim))
    return [torch.randn(shape, device=device).to(dtype).requires_grad_(grad) for shape in shapes]


def test_gradcheck_in_float64(device):
    q, k, v = inputs(device, torch.float64, 5, 7, dim=4)
    sinks, bias = torch.randn(4, device=device).double(), torch.randn(1, 4, 5, 7, device=device).double()
    slopes = torch.rand(2, 4, device=device).double()
    extra = [t.requires_grad_() for t in (sinks, bias, slopes)]

    def call(q, k, v, sinks, bias, slopes):
        return flashwave.attention(
            q, k, v, causal=True, softcap=2.0, sinks=sinks, bias=bias, alibi_slopes=slopes, return_lse=True
        )

    assert torch.autograd.gradcheck(call, (q, k, v, *extra))
    state = torch.tensor([5, 7], device=device)
    assert torch.autograd.gradcheck(
        lambda q, k, v: flashwave.attention(q, k, v, window=(2, 1), dropout_p=0.3, rng_state=state), (q, k, v)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_within_the_rule(device, dtype, causal):
    tensors = inputs(device, dtype, 130, 150, dim=32)
    out, lse = flashwave.flash_attn_func(*tensors, causal=causal, return_lse=True)
    weight, weight_lse = torch.randn(out.shape, device=device).to(dtype), torch.randn(lse.shape, device=device)
    mine = torch.autograd.grad((out, lse), tensors, (weight, weight_lse))

    def through(dtype):
        leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
        results = standard(*leaves, causal=causal, dtype=dtype)
        weights = weight.to(results[0].dtype), weight_lse.to(results[1].dtype)
        return results[0], torch.autograd.grad(results, leaves, weights)

    (reference, reference_gradients), (naive, naive_gradients) = through(torch.float64), through(dtype)
    assert_within_rule(out, reference, naive, 2, "out")
    for name, ours, exact, plain in zip("qkv", mine, reference_gradients, naive_gradients):
        assert_within_rule(ours, exact, plain, 3, f"d{name}", units=2.0)


def test_output_used_twice_and_graph_used_twice(device):
    q, k, v = inputs(device)
    out, lse = flashwave.flash_attn_func(q, k, v, return_lse=True)
    loss = (out * out).sum() + (out.sin() * lse.transpose(1, 2)[..., None]).sum()
    first = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
    second = torch.autograd.grad(loss, (q, k, v))
    reference, reference_lse = standard(q, k, v)
    theirs = torch.autograd.grad(
        (reference * reference).sum() + (reference.sin() * reference_lse.transpose(1, 2)[..., None]).sum(), (q, k, v)
    )
    for a, b, c in zip(first, second, theirs):
        assert torch.equal(a, b) and error(a, c) < 1e-3


def test_one_tensor_as_q_k_and_v(device):
    x = torch.randn(2, 9, 4, 8, device=device, requires_grad=True)
    (mine,) = torch.autograd.grad(flashwave.flash_attn_func(x, x, x).square().sum(), x)
    (theirs,) = torch.autograd.grad(standard(x, x, x)[0].square().sum(), x)
    assert error(mine, theirs) < 1e-4


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_wanted_gradients(device, which):
    tensors = inputs(device, grad=False)
    for place in which:
        tensors[place].requires_grad_()
    wanted = [tensors[place] for place in which]
    mine = torch.autograd.grad(flashwave.flash_attn_func(*tensors).square().sum(), wanted)
    theirs = torch.autograd.grad(standard(*tensors)[0].square().sum(), wanted)
    for a, b in zip(mine, theirs):
        assert error(a, b) < 1e-4


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, True), (False, True, False)])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"causal": True}, {"causal": 1}, {"softmax_scale": 0.3}, {"window_size": (3, 1)}, {"softcap": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("rows", [16, 19])
def test_the_short_ways_and_the_long_one_agree(device, rows, arguments, wanted):
    """Calls without options, with a mask and with softcap have operators of their own: on a CPU the same bits."""
    within = {"rtol": 0.0, "atol": 0.0} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-5}
    tensors = [t.requires_grad_(want) for t, want in zip(inputs(device, sq=rows, sk=rows, grad=False), wanted)]
    leaves = [t for t in tensors if t.requires_grad]
    names = {"window_size": "window"}
    long = flashwave.attention(*tensors, **{names.get(name, name): value for name, value in arguments.items()})
    short = flashwave.flash_attn_func(*tensors, **arguments)
    weight = torch.randn_like(long)
    torch.testing.assert_close(short, long, **within)
    for one, other in zip(torch.autograd.grad(short, leaves, weight), torch.autograd.grad(long, leaves, weight)):
        torch.testing.assert_close(one, other, **within)


def test_nothing_is_left_of_the_call_before(device):
    """What a node keeps of its call is its own, also where that is the usual and it keeps nothing."""
    q, k, v = inputs(device, sq=16, sk=16)
    weight = torch.randn_like(q)

    def gradient(out):
        return torch.autograd.grad(out, q, weight)[0]

    alone = [gradient(flashwave.flash_attn_func(q, k, v, softmax_scale=scale)) for scale in (None, 0.7, None)]
    pending = [flashwave.flash_attn_func(q, k, v, softmax_scale=scale) for scale in (None, 0.7, None)]
    for expected, out in zip(reversed(alone), reversed(pending)):
        torch.testing.assert_close(gradient(out), expected)
    assert (alone[0] - alone[1]).abs().max() > 0.01


def test_the_short_way_in_torch_func(device):
    q, k, v = inputs(device, sq=16, sk=16, heads_k=4, grad=False)

    def loss(q):
        return flashwave.flash_attn_func(q, k, v).square().sum()

    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(q), expected)
    torch.testing.assert_close(torch.func.grad(loss)(leaf), expected)  # of a tensor that autograd follows outside, too
    with torch.autograd.forward_ad.dual_level(), pytest.raises(flashwave.Unsupported, match="forward-mode"):
        flashwave.flash_attn_func(torch.autograd.forward_ad.make_dual(leaf, torch.ones_like(leaf)), k, v)


@pytest.mark.parametrize("name", ["softcap", "softmax_scale"])
def test_a_number_with_a_gradient_is_refused(device, name):
    number = torch.zeros((), requires_grad=True)
    with pytest.raises(flashwave.InvalidArgument, match=name):
        flashwave.flash_attn_func(*inputs(device), **{name: number})


def test_gradient_of_the_lse_alone(device):
    q, k, v = inputs(device)
    _, lse = flashwave.flash_attn_func(q, k, v, return_lse=True)
    mine = torch.autograd.grad(lse.square().sum(), (q, k, v), allow_unused=True)
    theirs = torch.autograd.grad(standard(q, k, v)[1].square().sum(), (q, k))
    assert error(mine[0], theirs[0]) < 1e-4 and error(mine[1], theirs[1]) < 1e-4
    assert mine[2] is None or (mine[2] == 0).all()


def test_a_second_derivative_is_refused(device):
    q, k, v = inputs(device)
    (gradient,) = torch.autograd.grad(flashwave.flash_attn_func(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


def test_changing_an_input_before_the_backward_is_noticed(device):
    q, k, v = inputs(device)
    copy = q * 1.0
    out = flashwave.flash_attn_func(copy, k, v)
    copy.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_cached_layout_reads_the_new_tensors(device):
    for _ in range(3):
        q, k, v = inputs(device, grad=False)
        assert error(flashwave.flash_attn_func(q, k, v, causal=True), standard(q, k, v, causal=True)[0]) < 1e-5


def test_autocast(device):
    q, k, v = inputs(device)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        out = flashwave.flash_attn_func(q, k, v)
        doubles = flashwave.flash_attn_func(q.double(), k.double(), v.double())
    assert out.dtype == torch.bfloat16 and doubles.dtype == torch.float64
    assert torch.equal(out, flashwave.flash_attn_func(q.bfloat16(), k.bfloat16(), v.bfloat16()))
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32


# ------------------------------------------------------------------------------------------------------ random numbers


def test_dropout_repeats_with_the_seed(device):
    q, k, v = inputs(device, grad=False)

    def run():
        return flashwave.flash_attn_func(q, k, v, dropout_p=0.5)

    torch.manual_seed(3)
    first, second = run(), run()
    torch.manual_seed(3)
    assert torch.equal(first, run()) and torch.equal(second, run())
    assert not torch.equal(first, second)


def test_dropout_mask_of_the_backward_is_that_of_the_forward(device):
    q, k, v = inputs(device, torch.float64 if device == "cpu" else torch.float32, 6, 8)
    torch.manual_seed(1)
    out, _, matrix = flashwave.flash_attn_func(q, k, v, dropout_p=0.4, return_attn_probs=True)
    kept = (matrix > 0) / 0.6
    group = q.shape[2] // k.shape[2]
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(group, 2)) / 4
    reference = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1) * kept, v.repeat_interleave(group, 2))
    assert error(out, reference) < 1e-5
    weight = torch.randn_like(out)
    for mine, theirs in zip(
        torch.autograd.grad((out * weight).sum(), (q, k, v)), torch.autograd.grad((reference * weight).sum(), (q, k, v))
    ):
        assert error(mine, theirs) < 1e-4


def test_activation_checkpointing_repeats_the_dropout(device):
    from torch.utils.checkpoint import checkpoint

    q, k, v = inputs(device)

    def run(q, k, v):
        return flashwave.flash_attn_func(q, k, v, dropout_p=0.3)

    torch.manual_seed(5)
    plain = torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v))
    torch.manual_seed(5)
    again = torch.autograd.grad(checkpoint(run, q, k, v, use_reentrant=False).square().sum(), (q, k, v))
    for a, b in zip(plain, again):
        assert torch.equal(a, b)


def test_the_mask_is_the_librarys_on_every_backend(device):
    """One Philox stream: composed operations (float64) and kernels (float32) drop the same elements."""
    tensors = inputs(device, grad=False)
    state = torch.tensor([-42, 1 << 40], device=device)
    single = flashwave.attention(*tensors, dropout_p=0.5, rng_state=state, return_probs=True)[1]
    double = flashwave.attention(*[t.double() for t in tensors], dropout_p=0.5, rng_state=state, return_probs=True)[1]
    assert torch.equal(single < 0, double < 0) and error(single, double) < 1e-5
    assert 0.4 < (single < 0).double().mean() < 0.6


# -------------------------------------------------------------------------------------------------------- determinism


def test_deterministic_algorithms_are_honoured(device, monkeypatch):
    from flashwave.attention import make_problem

    q, k, v = inputs(device, grad=False)
    assert not make_problem(q, k, v).deterministic
    assert make_problem(q, k, v, deterministic=True).deterministic
    torch.use_deterministic_algorithms(True)
    try:
        assert make_problem(q, k, v).deterministic
        tensors = inputs(device)
        results = [
            torch.autograd.grad(flashwave.flash_attn_func(*tensors, causal=True).square().sum(), tensors)
            for _ in range(3)
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_threads_of_python_share_the_library(device):
    q, k, v = inputs(device, grad=False)
    expected = flashwave.flash_attn_func(q, k, v, causal=True)
    wrong = []

    def work():
        for _ in range(50):
            if not torch.equal(flashwave.flash_attn_func(q, k, v, causal=True), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_torchs_threads_are_lent_to_the_library(device):
    if device != "cpu":
        pytest.skip("threads are the CPU's")
    from flashwave.backends.native import threads

    if "OpenMP" not in torch.__config__.parallel_info().split("ATen parallel backend:")[1]:
        pytest.skip("this torch has other threads")
    assert threads.executor() is not None
    first, second = (
        "7f00-7f10 r-xp 0 08:01 5 /usr/lib/libgomp.so.1\n",
        "7f20-7f30 r-xp 0 08:01 6 /x/torch/lib/libgomp-a34b.so.1\n",
    )
    assert threads.openmp_library(first + "7f40-7f50 rw-p 0 00:00 0\n") == "/usr/lib/libgomp.so.1"
    assert threads.openmp_library(first + second) == "/x/torch/lib/libgomp-a34b.so.1"
    assert threads.openmp_library("7f00-7f10 r-xp 0 08:01 5 /usr/lib/libgompose.so.1\n") is None


def test_torchs_number_of_threads_is_used(device, capfd, monkeypatch):
    if device != "cpu":
        pytest.skip("threads are the CPU's")
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    before = torch.get_num_threads()
    q, k, v = (torch.randn(2, 256, 4, 64) for _ in range(3))
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            flashwave.flash_attn_func(q, k, v)
            assert f"threads={threads} " in capfd.readouterr().err
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("wide", [(1 << 30) - 2, (1 << 30) - 1, 1 << 61])
def test_windows_wider_than_any_sequence(wide):
    """Sides that the operators take packed, and those that they do not."""

    def gradients(window):
        torch.manual_seed(0)
        q, k, v = (torch.randn(1, 9, 2, 8, requires_grad=True) for _ in range(3))
        out = flashwave.flash_attn_func(q, k, v, window_size=window)
        return torch.autograd.grad(out, (q, k, v), torch.randn_like(out))

    for given, same in (((wide, 2), (-1, 2)), ((3, wide), (3, -1))):
        assert all(torch.equal(a, b) for a, b in zip(gradients(given), gradients(same)))
    assert not torch.equal(gradients((3, 2))[0], gradients((3, 3))[0])

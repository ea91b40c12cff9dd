"""flashwave.arrays: NumPy arrays and DLPack objects, against the oracle and against the same call on torch tensors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import flashwave
from cases import features, make
from flashwave import InvalidArgument, NoDevice, Unsupported, arrays
from flashwave.arrays import views
from flashwave.problem import TENSOR_FIELDS, Problem
from numeric import assert_within_rule
from oracle import attention as oracle

WANTABLE = ("q", "k", "v", "alibi_slopes", "bias", "sinks")
few = settings(max_examples=60, deadline=None)


class OnlyDlpack:
    """A tensor of some library that nobody has heard of."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def arguments(p: Problem, wrap):
    """The arguments of arrays.attention for a problem of torch tensors."""
    tensors = {name: wrap(getattr(p, name)) for name in TENSOR_FIELDS if getattr(p, name) is not None}
    rng_state = tensors.pop("rng_state", None)
    if rng_state is not None:
        tensors["seed"], tensors["offset"] = (n % (1 << 64) for n in p.rng_state.tolist())
    scalars = {name: getattr(p, name) for name in ("max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal")}
    scalars.update({name: getattr(p, name) for name in ("softcap", "dropout_p", "rotary_interleaved")})
    return {**tensors, **scalars, "window": (p.window_left, p.window_right)}


def numpy_of(tensor):
    return tensor.numpy()


def as_torch(array):
    if isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.asarray(array))


def staged(monkeypatch):
    """As if the CPU were a device with memory of its own."""
    monkeypatch.setattr("flashwave.arrays.functions._is_cpu", lambda handle: False)


def check_forward(p, wrap, **options):
    want, naive = oracle(p), oracle(p, p.q.dtype)
    before = p.q.clone()
    out, lse, probs = arrays.attention(**arguments(p, wrap), return_lse=True, return_probs=True, **options)
    assert_within_rule(as_torch(out), want.out, naive.out, 2, "out")
    assert_within_rule(as_torch(lse), want.lse, naive.lse, 2, "lse")
    assert_within_rule(as_torch(probs).abs(), want.probs.abs(), naive.probs.abs(), 2, "probs", units=2)
    assert torch.equal(as_torch(probs) < 0, want.probs < 0)
    assert torch.equal(p.v.nan_to_num(7), want.v.to(p.v.dtype).nan_to_num(7)), "v after the append"
    assert_within_rule(p.k.nan_to_num(7), want.k.double().nan_to_num(7), naive.k.nan_to_num(7), 2, "k after the append")
    assert torch.equal(before.nan_to_num(7), p.q.nan_to_num(7))


@pytest.mark.parametrize("wrap", [numpy_of, OnlyDlpack])
@few
@given(f=features())
def test_forward_is_the_definition(wrap, f):
    check_forward(make(f, torch.float32), wrap)


@few
@given(f=features())
def test_forward_through_the_memory_of_a_device_is_the_same(f):
    with pytest.MonkeyPatch.context() as patch:
        staged(patch)
        check_forward(make(f, torch.float32), numpy_of)


def check_backward(f):
    p = make(f, torch.float32)
    names = [name for name in WANTABLE if getattr(p, name) is not None]
    generator = torch.Generator().manual_seed(f.seed + 1)
    dout = torch.randn((*p.q.shape[:-1], p.v.shape[-1]), generator=generator)
    results = {}
    for dtype in (torch.float64, torch.float32):
        leaves = {name: getattr(p, name).clone().to(dtype).requires_grad_() for name in names}
        forward = oracle(p._replace(**leaves), dtype)
        dlse = torch.randn(forward.lse.shape, generator=torch.Generator().manual_seed(f.seed + 2))
        rows = forward.lse.isfinite()
        total = (forward.out * dout).sum() + (forward.lse[rows] * dlse[rows]).sum()
        total = total + sum(leaf.flatten()[:0].sum() for leaf in leaves.values())
        results[dtype] = torch.autograd.grad(total, list(leaves.values()))
    given_ = arguments(p, numpy_of)
    out, lse = arrays.attention(**given_, return_lse=True)
    mine = arrays.attention_backward(dout.numpy(), out=out, lse=lse, dlse=dlse.numpy(), wanted=tuple(names), **given_)
    for name, exact, naive in zip(names, results[torch.float64], results[torch.float32]):
        gradient = getattr(mine, "d" + name)
        assert_within_rule(torch.from_numpy(gradient), exact, naive, 3, "d" + name, units=4)
    assert [name for name in WANTABLE if getattr(mine, "d" + name) is not None] == names


@few
@given(f=features(backward=True))
def test_backward_is_the_gradient(f):
    check_backward(f)


@few
@given(f=features(backward=True))
def test_backward_through_the_memory_of_a_device_is_the_same(f):
    with pytest.MonkeyPatch.context() as patch:
        staged(patch)
        check_backward(f)


def qkv(dtype=np.float32, shape=(2, 5, 2, 8)):
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_any_strides_give_the_same_result(dtype):
    q, k, v = qkv(dtype)
    want = arrays.attention(q, k, v, causal=True)
    assert want.dtype == dtype and want.shape == q.shape
    wide = np.zeros((2, 5, 2, 16), dtype)
    wide[..., ::2] = q  # dim not contiguous
    transposed = np.ascontiguousarray(k.transpose(2, 1, 0, 3)).transpose(2, 1, 0, 3)
    reversed_rows = np.ascontiguousarray(v[:, ::-1])[:, ::-1]
    np.testing.assert_array_equal(arrays.attention(wide[..., ::2], transposed, reversed_rows, causal=True), want)


def test_elements_that_straddle_are_copied():
    q, k, v = qkv()
    packed = np.zeros(q.shape, np.dtype([("x", np.float32), ("y", np.uint8)]))
    packed["x"] = q
    np.testing.assert_array_equal(arrays.attention(packed["x"], k, v), arrays.attention(q, k, v))


def test_out_is_written_and_returned():
    q, k, v = qkv()
    room = np.zeros((2, 2, 5, 8), np.float32)
    out = room.transpose(0, 2, 1, 3)
    assert arrays.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out, arrays.attention(q, k, v))
    frozen = np.zeros_like(q)
    frozen.flags.writeable = False
    for wrong, rule in (
        (room, "out must be"),
        (out.astype(np.float16), "out must be"),
        (frozen, "writeable"),
        (out[:, ::-1], "negative strides"),
    ):
        with pytest.raises(InvalidArgument, match=rule):
            arrays.attention(q, k, v, out=wrong)


def test_gradients_can_be_given_a_place():
    q, k, v = qkv()
    out, lse = arrays.attention(q, k, v, return_lse=True)
    want = arrays.attention_backward(q, q, k, v, out, lse)
    dq = np.zeros((2, 2, 5, 8), np.float32).transpose(0, 2, 1, 3)
    got = arrays.attention_backward(q, q, k, v, out, lse, dq=dq, wanted=("q",))
    np.testing.assert_array_equal(dq, want.dq)
    assert got.dk is None and got.dv is None


def test_longest_sequences_are_found():
    q, k, v = (x.reshape(10, 2, 8) for x in qkv())
    offsets = {"cu_seqlens_q": [0, 3, 10], "cu_seqlens_k": np.array([0, 8, 10])}
    want = arrays.attention(q, k, v, **offsets, max_seqlen_q=7, max_seqlen_k=8)
    np.testing.assert_array_equal(arrays.attention(q, k, v, **offsets), want)


def test_caches_that_cannot_be_written_are_not_appended_to():
    q, k, v = qkv()
    k.flags.writeable = False
    with pytest.raises(InvalidArgument, match="k must be writeable"):
        arrays.attention(q, k, v, seqused_k=[2, 2], k_new=q[:, :1], v_new=q[:, :1])
    with pytest.raises(InvalidArgument, match="v, which is written to, must have no negative strides"):
        arrays.attention(q, k.copy(), v[:, ::-1], seqused_k=[2, 2], k_new=q[:, :1], v_new=q[:, :1])


def test_kernel_can_be_chosen():
    q, k, v = qkv()
    reference = arrays.attention(q, k, v, kernel="reference_fwd")
    np.testing.assert_allclose(arrays.attention(q, k, v), reference, rtol=1e-5, atol=1e-6)
    with pytest.raises((Unsupported, InvalidArgument), match="no_such_kernel"):
        arrays.attention(q, k, v, kernel="no_such_kernel")


# bfloat16 -----------------------------------------------------------------------------------------------------------


def test_bfloat16_through_dlpack_needs_a_place_where_numpy_does_not_know_it(monkeypatch):
    monkeypatch.setattr(views, "bfloat16", None)
    q, k, v = (torch.from_numpy(x).bfloat16() for x in qkv())
    with pytest.raises(InvalidArgument, match=r"out would be bfloat16.*ml_dtypes"):
        arrays.attention(q, k, v)
    out = torch.empty_like(q)
    _, lse = arrays.attention(q, k, v, bias=k[:1, :, :1, :5].reshape(1, 1, 5, 5), out=out, return_lse=True)
    p = Problem(
        q, k, v, bias=k[:1, :, :1, :5].reshape(1, 1, 5, 5), max_seqlen_q=5, max_seqlen_k=5, softmax_scale=8**-0.5
    )
    want, naive = oracle(p), oracle(p, torch.bfloat16)
    assert_within_rule(out, want.out, naive.out, 2, "out")
    assert_within_rule(torch.from_numpy(lse), want.lse, naive.lse, 2, "lse")
    places = {name: torch.empty_like(q) for name in ("dq", "dk", "dv")}
    arrays.attention_backward(q, q, k, v, out, lse, bias=p.bias, **places)
    assert all(place.isfinite().all() and place.abs().max() > 0 for place in places.values())


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = qkv(ml_dtypes.bfloat16)
    out = arrays.attention(q, k, v)
    assert out.dtype == ml_dtypes.bfloat16
    room = torch.empty(q.shape, dtype=torch.bfloat16)
    arrays.attention(*(as_torch(x) for x in (q, k, v)), out=room)
    assert torch.equal(as_torch(out), room)


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((2, 5, 2, 8))}, "q must be float16, bfloat16 or float32, got float64"),
        ({"k": np.zeros((2, 5, 2, 8), np.float16)}, "k must have the dtype of q"),
        ({"q": np.zeros((2, 5, 2, 8), ">f4")}, "q must be in the byte order"),
        ({"q": np.zeros(3, np.float32)}, "q must be \\(batch"),
        ({"seqused_k": [1.5, 2]}, "seqused_k must hold integers"),
        ({"seqused_k": [1 << 40, 2]}, "seqused_k must fit into int32"),
        ({"seqused_k": [6, 2]}, "seqused_k"),
        ({"bias": np.ones((5, 5), bool)}, "bias must hold floating-point numbers"),
        ({"sinks": [1, 2]}, "sinks must hold floating-point numbers"),
        ({"window": (-2, 0)}, "window_left"),
        ({"softcap": -1.0}, "softcap"),
        ({"dropout_p": 0.5, "seed": -1}, "seed must be in"),
        ({"dropout_p": 1.0}, "dropout_p"),
    ],
)
def test_refusals_name_the_argument(change, message):
    q, k, v = qkv()
    with pytest.raises(InvalidArgument, match=message):
        arrays.attention(**{"q": q, "k": k, "v": v, **change})


def test_refusals_of_the_backward():
    q, k, v = qkv()
    out, lse = arrays.attention(q, k, v, return_lse=True)
    with pytest.raises(InvalidArgument, match="wanted names bias, which is not given"):
        arrays.attention_backward(q, q, k, v, out, lse, wanted=("bias",))
    with pytest.raises(InvalidArgument, match="wanted must be names among"):
        arrays.attention_backward(q, q, k, v, out, lse, wanted=("lse",))
    with pytest.raises(InvalidArgument, match="lse must be \\(2, 2, 5\\), float32"):
        arrays.attention_backward(q, q, k, v, out, lse[:1])


def test_devices_that_are_not_there():
    with pytest.raises(NoDevice):
        arrays.attention(*qkv(), device="cuda:77")


def test_memory_of_other_devices_is_refused():
    class OnGpu(OnlyDlpack):
        def __dlpack_device__(self):
            return (2, 0)

    q, k, v = qkv()
    with pytest.raises(InvalidArgument, match="k must be in the memory of the CPU"):
        arrays.attention(q, OnGpu(k), v)


def test_memory_lives_as_long_as_the_call_needs_it():
    """The capsule is the only owner once the exporter's temporary array is gone."""

    class Temporary:
        def __dlpack__(self, **_):
            return np.full((2, 5, 2, 8), 3.0, np.float32).__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    out = arrays.attention(Temporary(), Temporary(), Temporary())
    np.testing.assert_allclose(out, 3.0, rtol=1e-6)


def test_flashwave_attention_takes_arrays():
    q = np.random.default_rng(0).standard_normal((2, 9, 4, 16)).astype(np.float32)
    options = {"causal": True, "dropout_p": 0.25, "return_lse": True, "return_probs": True}
    mine = flashwave.attention(q, q, q, rng_state=(3, 5), **options)
    theirs = arrays.attention(q, q, q, seed=3, offset=5, **options)
    assert all(isinstance(a, np.ndarray) and np.array_equal(a, b) for a, b in zip(mine, theirs))


# Without torch ------------------------------------------------------------------------------------------------------


def test_torch_is_not_needed():
    code = """
import sys
sys.modules["torch"] = None  # an import of it fails
import numpy as np, flashwave
from flashwave import arrays
q = np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype(np.float32)
out, lse = arrays.attention(q, q, q, causal=True, alibi_slopes=[0.5, 0.25], return_lse=True)
np.testing.assert_allclose(out[:, 0], q[:, 0], rtol=1e-6)
assert np.array_equal(flashwave.attention(q, q, q, causal=True, alibi_slopes=[0.5, 0.25]), out)
gradients = arrays.attention_backward(q, q, q, q, out, lse, causal=True, alibi_slopes=[0.5, 0.25])
assert np.isfinite(gradients.dq).all() and gradients.dv.any()
try:
    flashwave.flash_attn_func
except ImportError as error:
    print("torch" in str(error))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True"]

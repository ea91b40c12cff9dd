"""The choice between backends: the rules, asking for one by name, what is said, and a Triton that fails.

Rules for GPUs are tested without one: the device, what the library refuses and Triton's backend are stand-ins there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import types

import pytest
import torch

import flashwave
from flashwave import BackendRefused, InvalidArgument, dispatch, flash_attn_func
from flashwave.attention import make_problem
from flashwave.backends import torch as composed
from flashwave.backends.native import calls as native
from flashwave.problem import FORWARD_FIELDS


def inputs(dtype=torch.float32, grad=False, device="cpu"):
    return [torch.randn(2, 9, 4, 16, device=device).to(dtype).requires_grad_(grad) for _ in range(3)]


def backends_of(said: str) -> list[str]:
    return re.findall(r" backend=(\w+) ", said)


@pytest.fixture
def said(monkeypatch, capfd):
    """A function: the backends that the calls since the last time took."""
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    return lambda: backends_of(capfd.readouterr().err)


# ---------------------------------------------------------------------------------------------------------- the rules


class Triton(types.ModuleType):
    """Stands for Triton's backend: takes what `reason` does not forbid and computes it with PyTorch operations."""

    def __init__(self, reason=None, fails=None):
        super().__init__("flashwave.backends.triton.backend")
        self.reason, self.fails, self.calls = reason, fails, []

    def refusal(self, problem, op, needs=None, probs=False):
        return self.reason

    def forward(self, problem, out=None, lse=True):
        self.calls.append("forward")
        if self.fails:
            raise self.fails
        return composed.forward(problem)

    def backward(self, *arguments):
        self.calls.append("backward")
        if self.fails:
            raise self.fails
        return composed.backward(*arguments)


FAST, SLOW, NONE = "a fast kernel", "the slow path", "no kernel"


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A function that makes calls on CPU tensors go by the rules of a GPU, with a library and a Triton as given."""
    native_forward, native_backward = native.forward, native.backward

    def pretend(library, triton, amd=False):
        facts = dispatch.Facts

        def refusing(function):
            def call(*arguments):
                if library == NONE or (library == SLOW and not arguments[-1]):
                    raise flashwave.Unsupported("dim_qk of 600 is too large")
                return function(*arguments)

            return call

        monkeypatch.setattr(dispatch, "_triton_refusal", lambda call, _: triton.refusal(*call[:2]))
        monkeypatch.setattr(dispatch, "_triton", lambda: triton)
        monkeypatch.setattr(dispatch, "Facts", lambda a, b, *rest: facts(amd, True, *rest))
        monkeypatch.setattr(native, "forward", refusing(native_forward))
        monkeypatch.setattr(native, "backward", refusing(native_backward))
        monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")

    return pretend


@pytest.mark.parametrize(
    "plan, refusal, expected",
    [
        (FAST, None, "native"),
        (FAST, "no Triton", "native"),
        (SLOW, None, "triton"),
        (SLOW, "no Triton", "native"),
        (NONE, None, "triton"),
        (NONE, "no Triton", "torch"),
    ],
)
def test_the_rules_of_a_gpu(plan, refusal, expected, on_a_gpu, said):
    tensors = inputs(grad=True)
    want = torch.autograd.grad(flash_attn_func(*tensors).square().sum(), tensors)
    said()
    on_a_gpu(plan, Triton(refusal))
    got = torch.autograd.grad(flash_attn_func(*tensors).square().sum(), tensors)
    assert said() == [expected, expected]
    for mine, theirs in zip(got, want):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(
    "value, amd, expected", [("TRUE", True, "triton"), ("TRUE", False, "native"), ("0", True, "native")]
)
def test_flash_attns_variable_puts_triton_first_on_amd_gpus(value, amd, expected, on_a_gpu, said, monkeypatch):
    monkeypatch.setenv("FLASH_ATTENTION_TRITON_AMD_ENABLE", value)
    on_a_gpu(FAST, Triton(), amd)
    flash_attn_func(*inputs())
    assert said() == [expected]
    on_a_gpu(FAST, Triton("not with this head dim"), amd)
    flash_attn_func(*inputs())
    assert said() == ["native"]


def test_the_variable_means_nothing_on_a_cpu(said, monkeypatch):
    monkeypatch.setenv("FLASH_ATTENTION_TRITON_AMD_ENABLE", "TRUE")
    flash_attn_func(*inputs())
    assert said() == ["native"]


def test_a_slow_kernel_of_a_cpu_does_not_yield(said, monkeypatch):
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd")  # nothing but this makes a CPU use it
    flashwave.attention(*inputs(), return_probs=True, dropout_p=0.1)
    assert said() == ["native"]


def test_the_line_says_why_the_others_were_passed_over(on_a_gpu, capfd):
    on_a_gpu(NONE, Triton("head dim 600 is more than 256"))
    flash_attn_func(*inputs())
    line = capfd.readouterr().err
    assert "passed over native: dim_qk of 600 is too large" in line
    assert "passed over triton: head dim 600 is more than 256" in line


def test_every_call_is_decided_anew(on_a_gpu, said):
    """What refused once is asked again: an address, a setting or another program may have changed."""
    tensors = inputs()
    on_a_gpu(SLOW, Triton())
    flash_attn_func(*tensors)
    on_a_gpu(FAST, Triton())
    flash_attn_func(*tensors)
    assert said() == ["triton", "native"]


def test_a_cpu_does_without_the_slow_path(monkeypatch):
    problem = make_problem(*inputs())
    for probs in (False, True):
        assert native.forward(problem, probs=probs, slow_path=False)[1] != "reference_fwd"
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd")  # who names it wants it
    assert native.forward(problem, slow_path=False)[1] == "reference_fwd"


# ------------------------------------------------------------------------------------------------ a Triton that fails


def test_a_triton_that_fails_in_a_call_is_passed_over_with_a_warning(on_a_gpu, said):
    triton = Triton(fails=RuntimeError("Failed to find C compiler\nat length"))
    on_a_gpu(SLOW, triton)
    tensors = inputs(grad=True)
    with pytest.warns(
        RuntimeWarning, match="passes over Triton for a forward: it failed: RuntimeError: Failed to find C"
    ):
        out = flash_attn_func(*tensors)
    assert said() == ["native"]
    with pytest.warns(RuntimeWarning, match="for a backward"):
        out.sum().backward()
    assert said() == ["native"] and triton.calls == ["forward", "backward"]


def test_out_of_memory_is_no_reason_to_try_another(on_a_gpu):
    on_a_gpu(SLOW, Triton(fails=torch.cuda.OutOfMemoryError("all gone")))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        flash_attn_func(*inputs())


def test_asked_for_a_triton_that_fails_the_call_fails(on_a_gpu):
    on_a_gpu(SLOW, Triton(fails=RuntimeError("no C compiler")))
    with flashwave.backend("triton"), pytest.raises(BackendRefused, match="no C compiler") as caught:
        flash_attn_func(*inputs())
    assert isinstance(caught.value.__cause__, RuntimeError)


_BROKEN = {
    "raises": ("raise OSError('libcuda.so: wrong ELF class')", "wrong ELF class"),
    "absent": ("raise ModuleNotFoundError('No module named triton')", "not installed"),
    "old": ("__version__ = '2.1.0'", "Triton 2.1.0 is older than 3.2"),
    "empty": ("", "Triton"),
}


@pytest.mark.parametrize("kind", list(_BROKEN))
def test_a_broken_triton_breaks_neither_import_nor_call(kind, device, tmp_path):
    content, reason = _BROKEN[kind]
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(content)
    (tmp_path / "triton" / "language.py").write_text("")
    code = f"""
import torch, flashwave
q, k, v = (torch.randn(1, 5, 2, 8, device="{device}", requires_grad=True) for _ in range(3))
for dtype in (torch.float32, torch.float64):
    flashwave.flash_attn_func(q.to(dtype), k.to(dtype), v.to(dtype)).sum().backward()
assert q.grad.isfinite().all()
try:
    with flashwave.backend("triton"):
        flashwave.flash_attn_func(q, k, v)
except flashwave.BackendRefused as error:
    print(error)
"""
    paths = os.pathsep.join([str(tmp_path), *[path for path in sys.path if path]])
    environment = {**os.environ, "PYTHONPATH": paths}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "backend 'triton' was asked for and cannot compute this forward: " in ran.stdout
    assert reason in ran.stdout


# -------------------------------------------------------------------------------------------------- asking for a name


def test_a_backend_by_name(device, said):
    tensors = inputs(device=device)
    out = flash_attn_func(*tensors)
    with flashwave.backend("torch"):
        composed_out = flash_attn_func(*tensors)
    with flashwave.backend("native"):
        native_out = flash_attn_func(*tensors)
    assert said()[1:] == ["torch", "native"]
    assert torch.allclose(composed_out, out, atol=1e-5) and torch.allclose(native_out, out, atol=1e-5)


def test_the_environment_names_a_backend_at_any_time(said, monkeypatch):
    tensors = inputs()
    for name in ("torch", "native", "torch"):
        monkeypatch.setenv("FLASHWAVE_BACKEND", name)
        flash_attn_func(*tensors)
        assert said() == [name]
    with flashwave.backend("native"):
        flash_attn_func(*tensors)
    assert said() == ["native"]
    monkeypatch.setenv("FLASHWAVE_BACKEND", "")
    flash_attn_func(*tensors)
    assert said() == ["native"]


def test_a_call_that_was_made_before_is_not_repeated_on_another_backend(said):
    tensors = inputs()
    for _ in range(3):
        flash_attn_func(*tensors)
    with flashwave.backend("torch"):
        flash_attn_func(*tensors)
    assert said() == ["native", "native", "native", "torch"]


def test_the_innermost_counts(said):
    tensors = inputs()
    with flashwave.backend("torch"):
        with flashwave.backend("native"):
            flash_attn_func(*tensors)
            with flashwave.backend("torch"):
                flash_attn_func(*tensors)
        flash_attn_func(*tensors)
    flash_attn_func(*tensors)
    assert said() == ["native", "torch", "torch", "native"]


def test_an_error_leaves_the_choice_as_it_was(said):
    with pytest.raises(ZeroDivisionError), flashwave.backend("torch"):
        _ = 1 / 0
    flash_attn_func(*inputs())
    assert said() == ["native"]


def test_a_choice_is_of_one_thread(said):
    tensors, inside, done = inputs(), threading.Event(), threading.Event()

    def other():
        inside.wait()
        flash_attn_func(*tensors)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with flashwave.backend("torch"):
        inside.set()
        done.wait()
        assert said() == ["native"]
        flash_attn_func(*tensors)
    thread.join()
    assert said() == ["torch"]


def test_a_backward_takes_the_backend_of_its_forward(device, said):
    tensors = inputs(grad=True, device=device)
    with flashwave.backend("torch"):
        out = flash_attn_func(*tensors)
    with flashwave.backend("native"):
        native_out = flash_attn_func(*tensors)
        out.sum().backward()
    with flashwave.backend("torch"):
        native_out.sum().backward()
    assert said() == ["torch", "native", "torch", "native"]


def test_a_backward_in_another_thread_remembers(said):
    tensors = inputs(grad=True)
    with flashwave.backend("torch"):
        out = flash_attn_func(*tensors).sum()
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    assert said() == ["torch", "torch"]


def test_an_operator_remembers(said):
    problem = make_problem(*inputs(grad=True))
    with flashwave.backend("torch"):
        out, _, _ = torch.ops.flashwave.forward.default(*problem[: len(FORWARD_FIELDS)], False)
    out.sum().backward()
    assert said() == ["torch", "torch"]


def test_a_compiled_program_takes_what_is_asked_for_when_it_runs(said):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def program(q, k, v):
        return flash_attn_func(q, k, v, causal=True) * 2

    tensors = inputs()
    program(*tensors)
    said()
    with flashwave.backend("torch"):
        program(*tensors)
    program(*tensors)
    assert said() == ["torch", "native"]


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ["cuda", "Torch", "composed", "", "auto"])
def test_an_unknown_name_is_an_error_that_lists_the_known(name, monkeypatch):
    with pytest.raises(InvalidArgument, match=r"one of native, triton, torch, got '"), flashwave.backend(name):
        pass
    if name:
        monkeypatch.setenv("FLASHWAVE_BACKEND", name)
        with pytest.raises(InvalidArgument, match=f"FLASHWAVE_BACKEND must be one of .*'{name}'"):
            flash_attn_func(*inputs())


def test_a_backend_that_cannot_says_why():
    with flashwave.backend("triton"), pytest.raises(BackendRefused) as caught:
        flash_attn_func(*inputs())
    assert caught.value.backend == "triton" and "Triton" in caught.value.reason
    assert str(caught.value).startswith("backend 'triton' was asked for and cannot compute this forward: ")
    assert isinstance(caught.value, flashwave.Unsupported)
    with flashwave.backend("native"), pytest.raises(BackendRefused, match=r"no kernels for torch\.float64"):
        flash_attn_func(*inputs(torch.float64))


def test_a_wrong_argument_is_that_on_every_backend():
    q, k, v = inputs()
    for name in ("native", "torch"):
        with flashwave.backend(name), pytest.raises(InvalidArgument, match="heads of q"):
            flash_attn_func(q, k[:, :, :3], v[:, :, :3])


def test_a_kernel_asked_for_by_name_is_native(monkeypatch, said):
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd")
    flash_attn_func(*inputs())
    assert said() == ["native"]
    with flashwave.backend("torch"), pytest.raises(BackendRefused, match="FLASHWAVE_FORCE_KERNEL"):
        flash_attn_func(*inputs())

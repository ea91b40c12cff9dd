"""Which code runs where: devices of the library, staging, what is said about it, environment variables."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import flashwave
from flashwave import InvalidArgument, NoDevice
from flashwave.attention import make_problem
from flashwave.backends.native import calls as native
from flashwave.backends.torch import backend as torch_backend
from numeric import error


def inputs(device="cpu", dtype=torch.float32, grad=False):
    return [torch.randn(2, 9, 4, 16, device=device).to(dtype).requires_grad_(grad) for _ in range(3)]


def test_devices_are_listed():
    assert flashwave.devices()[0]["name"] == "cpu"


def test_cpu_tensors_run_the_librarys_kernels(monkeypatch, capfd):
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    tensors = inputs(grad=True)
    flashwave.flash_attn_func(*tensors).sum().backward()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 4  # of each call the library's plan, then the choice of the package
    assert all("fwd " in line for line in lines[:2]) and all("bwd " in line for line in lines[2:])
    assert all("device=cpu " in line and " kernel=" in line and "reference" not in line for line in lines)
    for planned, said in (lines[:2], lines[2:]):
        assert (
            " backend=native " in said and re.search("kernel=(\\w+)", said)[0] == re.search("kernel=(\\w+)", planned)[0]
        )


def test_a_forced_kernel_runs_or_the_call_fails(monkeypatch):
    tensors = inputs()
    expected = flashwave.flash_attn_func(*tensors)
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", "reference_fwd")
    assert error(flashwave.flash_attn_func(*tensors), expected) < 1e-5
    with pytest.raises(flashwave.Unsupported, match="names no"):
        flashwave.flash_attn_func(*inputs(grad=True)).sum().backward()
    monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", "no_such_kernel")
    with pytest.raises(flashwave.FlashwaveError, match="no_such_kernel"):
        flashwave.flash_attn_func(*tensors)


def test_other_tensors_run_composed_operations_and_say_so(device, monkeypatch, capfd):
    tensors = inputs(device, torch.float64, grad=True)
    flashwave.flash_attn_func(*tensors).sum().backward()
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    flashwave.flash_attn_func(*tensors).sum().backward()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2 and all("backend=torch kernel=torch_" in line for line in lines)
    assert all("passed over native: the library has no kernels for torch.float64" in line for line in lines)


def test_a_kernel_that_refuses_falls_to_composed_operations(monkeypatch, capfd):
    def refuse(*arguments):
        raise flashwave.Unsupported("no kernel of the device takes it")

    monkeypatch.setattr(native, "forward", refuse)
    monkeypatch.setattr(native, "backward", refuse)
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    tensors = inputs(grad=True)
    out = flashwave.flash_attn_func(*tensors)
    gradients = torch.autograd.grad(out.square().sum(), tensors)
    assert capfd.readouterr().err.count("no kernel of the device takes it") == 2
    monkeypatch.undo()
    expected = flashwave.flash_attn_func(*tensors)
    assert error(out, expected) < 1e-5
    for mine, theirs in zip(gradients, torch.autograd.grad(expected.square().sum(), tensors)):
        assert error(mine, theirs) < 1e-4


def test_explain_names_the_kernel_and_the_reasons():
    q, k, v = inputs()
    text = flashwave.explain(q, k, v, causal=True)
    assert "kernel " in text and "reference_fwd" not in text
    long = [torch.randn(1, 64, 2, 16) for _ in range(3)]  # too many queries for the kernels of decoding
    assert "decode" in flashwave.explain(*long).split("refused")[1]
    assert "reference_bwd" not in flashwave.explain(q, k, v, backward=True).split("refused")[0]
    with pytest.raises(NoDevice, match=r"no kernels for torch\.float64"):
        flashwave.explain(*inputs(dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_staging_is_the_same_attention(dtype):
    tensors = inputs(dtype=dtype, grad=True)
    bias = torch.randn(4, 1, 9, requires_grad=True)
    sinks, slopes = torch.randn(4, requires_grad=True), torch.rand(2, 4, requires_grad=True)
    terms = {"bias": bias, "sinks": sinks, "alibi_slopes": slopes, "return_lse": True, "causal": True}
    out, lse = flashwave.attention(*tensors, **terms)
    there, lse_there = flashwave.attention(*tensors, **terms, device="cpu")
    assert torch.equal(out, there) and torch.equal(lse, lse_there)
    weight, leaves = torch.randn_like(out), (*tensors, bias, sinks, slopes)
    for a, b in zip(
        torch.autograd.grad((out * weight).sum() + lse.sum(), leaves),
        torch.autograd.grad((there * weight).sum() + lse_there.sum(), leaves),
    ):
        assert torch.equal(a, b)


def test_staging_of_packed_and_paged_problems():
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    q, k, v = (torch.randn(9, 2, 8) for _ in range(3))
    arguments = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 5, "max_seqlen_k": 5, "causal": True}
    assert torch.equal(
        flashwave.attention(q, k, v, **arguments), flashwave.attention(q, k, v, **arguments, device="cpu")
    )
    longer = [torch.randn(12, 2, 8, requires_grad=True) for _ in range(3)]  # three rows of no sequence
    out, lse = flashwave.attention(*longer, **arguments, return_lse=True, device="cpu")
    assert (out[9:] == 0).all() and (lse[:, 9:] == -torch.inf).all()
    assert all((gradient[9:] == 0).all() for gradient in torch.autograd.grad(out.sum(), longer))
    q, pages = torch.randn(2, 3, 2, 8), torch.randn(6, 4, 2, 8)
    arguments = {
        "block_table": torch.tensor([[5, 0], [2, 3]]),
        "seqused_k": torch.tensor([7, 4]),
        "dropout_p": 0.3,
        "rng_state": torch.tensor([1, 2]),
    }
    here = flashwave.attention(q, pages, pages, **arguments, return_probs=True)
    there = flashwave.attention(q, pages, pages, **arguments, return_probs=True, device="cpu")
    assert torch.equal(here[0], there[0]) and torch.equal(here[1], there[1])


def test_staging_through_an_absent_device_says_why():
    with pytest.raises(NoDevice, match=r"emu:gfx942|nonsense"):
        flashwave.attention(*inputs(), device="nonsense")


def test_attention_checks_its_own_arguments():
    q, k, v = inputs()
    with pytest.raises(InvalidArgument, match="window must be"):
        flashwave.attention(q, k, v, window=(-2, 0))
    with pytest.raises(InvalidArgument, match="max_seqlen_q must be given with cu_seqlens_q"):
        flashwave.attention(q[0], k[0], v[0], cu_seqlens_q=torch.tensor([0, 9]))


def test_environment_of_performance_mode_is_amds_alone(monkeypatch):
    """It changes the operands of products on AMD GPUs; everywhere else results stay bit for bit the same."""
    tensors = inputs(dtype=torch.float64)
    half = inputs(dtype=torch.bfloat16)
    expected, expected_half = flashwave.flash_attn_func(*tensors), flashwave.flash_attn_func(*half)
    monkeypatch.setenv("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE", "1")
    monkeypatch.setenv("FLASH_ATTENTION_INTERNAL_USE_RTZ", "1")
    assert torch.equal(flashwave.flash_attn_func(*tensors), expected)
    assert torch.equal(flashwave.flash_attn_func(*half), expected_half)
    assert torch_backend.settings_of(half[0]) == {}

    class Amd:
        """Stands for a bf16 tensor on an AMD GPU."""

        is_cuda, dtype = True, torch.bfloat16

    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert torch_backend.settings_of(Amd()) == {"products": torch.bfloat16, "round_toward_zero": True}
    monkeypatch.setenv("FLASH_ATTENTION_INTERNAL_USE_RTZ", "0")
    assert torch_backend.settings_of(Amd())["round_toward_zero"] is False
    monkeypatch.setenv("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE", "0")
    assert torch_backend.settings_of(Amd()) == {}


def test_environment_of_determinism(device, monkeypatch):
    q, k, v = inputs("meta" if device == "cpu" else device)
    monkeypatch.setenv("FLASH_ATTENTION_INTERNAL_DETERMINISTIC", "1")
    assert make_problem(q, k, v).deterministic
    monkeypatch.setenv("FLASH_ATTENTION_INTERNAL_DETERMINISTIC", "0")
    assert not make_problem(q, k, v).deterministic


def test_import_needs_no_torch():
    code = "import sys, flashwave; flashwave.devices(); assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_resolves():
    for name in flashwave.__all__:
        assert getattr(flashwave, name) is not None
    assert set(flashwave.__all__) <= set(dir(flashwave))
    with pytest.raises(AttributeError, match="no_such_name"):
        flashwave.no_such_name  # noqa: B018

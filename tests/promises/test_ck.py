"""The guide of the CK and Triton package: its installer, snippets, rules and tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import flashwave

promise = pytest.mark.promise
LAYER = """
import torch
import torch.nn as nn
from flash_attention_amd import FlashAttention

class FlashAttentionLayer(nn.Module):
    def __init__(self, hidden_size, num_heads, dropout=0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)
        self.flash_attn = FlashAttention(attention_dropout=dropout)

    def forward(self, x, causal=True):
        shape = (*x.shape[:2], self.num_heads, self.head_dim)
        q, k, v = (proj(x).reshape(shape) for proj in (self.q_proj, self.k_proj, self.v_proj))
        attn_output = self.flash_attn(q, k, v, causal=causal)
        return self.out_proj(attn_output.reshape(*x.shape[:2], self.hidden_size))

torch.manual_seed(0)
layer = FlashAttentionLayer(64, 4)
optimizer = torch.optim.SGD(layer.parameters(), 0.5)
x, target = torch.randn(2, 32, 64), torch.randn(2, 32, 64)
losses = []
for _ in range(5):
    loss = (layer(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses == sorted(losses, reverse=True), losses
"""


@promise("1.13", "./scripts/install_flash_attention_ck.sh")
def test_installer(run, without_torch, wheel):
    done = run("./scripts/install_flash_attention_ck.sh", "--python", without_torch, "--wheel", wheel, PYTHONPATH=None)
    assert "PyTorch   is not installed" in done.stdout and "to do:\n- PyTorch: pip install torch" in done.stdout
    assert "installed; try:" in done.stdout
    if not Path("/dev/kfd").exists() and not Path("/dev/nvidiactl").exists():
        assert "neither ROCm nor CUDA is found" in done.stdout
    there = run(
        without_torch, "-c", "import flashwave; print(flashwave.__file__, len(flashwave.devices()))", cwd=Path("/")
    )
    assert "site-packages" in there.stdout


@promise("1.13", "the installer with ROCm and an MI250 said to be there; what it would do")
def test_installer_with_a_gpu(run, tmp_path):
    (tmp_path / "bin").mkdir()
    for name, text in {
        "bin/rocminfo": "echo '  Name:                    gfx90a'; echo '  Name: AMD EPYC'",
        "bin/nvidia-smi": "exit 9",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("6.4.0-43482\n")
    done = run(
        "scripts/install_flash_attention_ck.sh",
        "--python",
        sys.executable,
        "--build",
        "--dry-run",
        ROCM_PATH=str(tmp_path),
    )
    assert "GPU       AMD gfx90a, ROCm 6.4.0-43482" in done.stdout
    assert "is built for gfx90a" in done.stdout and "would run: scripts/wheel" in done.stdout
    wrong = run(
        "scripts/install_flash_attention_ck.sh", "--wheel", "/no/such.whl", "--python", sys.executable, status=1
    )
    assert "there is no /no/such.whl" in wrong.stderr
    assert "no option '--nonsense'" in run("scripts/install_flash_attention_ck.sh", "--nonsense", status=2).stderr


@promise("1.13", "the installer and a Python that belongs to the system, as Debian's does")
def test_installer_and_the_systems_python(run, tmp_path):
    """A prefix of its own with the mark in its library, as pip looks for it."""
    script = tmp_path / "python3"
    code = (
        "import sys, sysconfig; sys.prefix = sys.base_prefix; at = sysconfig.get_path\n"
        f"sysconfig.get_path = lambda name, *rest: {str(tmp_path)!r} if name == 'stdlib' else at(name, *rest)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    command = ("scripts/install_flash_attention_ck.sh", "--python", script, "--dry-run", "--build")
    run(*command, PIP_BREAK_SYSTEM_PACKAGES=None)
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    refused = run(*command, PIP_BREAK_SYSTEM_PACKAGES=None, status=1).stderr
    assert "is the system's own" in refused and "-m venv" in refused and len(refused.splitlines()) == 2
    run(*command, PIP_BREAK_SYSTEM_PACKAGES="1")


@promise("1.15 1.21", "basic usage: FlashAttention(softmax_scale=None, attention_dropout=0.0), fp16")
def test_basic_usage(snippet):
    snippet("""
import torch
from flash_attention_amd import FlashAttention

flash_attn = FlashAttention(softmax_scale=None, attention_dropout=0.0)
q = torch.randn(2, 1024, 8, 64, device='cuda', dtype=torch.float16)
k = torch.randn(2, 1024, 8, 64, device='cuda', dtype=torch.float16)
v = torch.randn(2, 1024, 8, 64, device='cuda', dtype=torch.float16)
output = flash_attn(q, k, v, causal=True)
exact = torch.nn.functional.scaled_dot_product_attention(
    *(t[:1, :, :2].double().transpose(1, 2) for t in (q, k, v)), is_causal=True)
assert (output[:1, :, :2].double() - exact.transpose(1, 2)).abs().max() < 3e-3
""")


@promise("1.16 1.9", "FlashAttentionLayer trains")
def test_layer(snippet):
    snippet(LAYER)


@promise("1.7 1.2", 'os.environ["FLASH_ATTENTION_DEBUG"] = "1" at run time names the backend')
def test_debug(snippet):
    said = snippet("""
import os, torch
from flash_attention_amd import flash_attn_func
q = torch.randn(1, 64, 2, 32)
flash_attn_func(q, q, q)
os.environ["FLASH_ATTENTION_DEBUG"] = "1"
flash_attn_func(q, q, q)
flash_attn_func(q.double(), q.double(), q.double())
""").stderr
    assert said.count("backend=native") == 1 and said.count("backend=torch") == 1


@promise("1.3 1.5 1.22 3.22", "head dims to 128, and beyond, by native matrix kernels, one for each (emulated MI300)")
def test_head_dims():
    kernels = set()
    for dim in (32, 64, 128, 256):
        plan = _plan(b=1, seqlen=1024, dim=dim)
        assert plan["kernel"].startswith("cdna_fwd") and not plan["slow_path"], plan["kernel"]
        kernels.add(plan["kernel"])
    assert len(kernels) >= 3  # 32 has that of 64


@promise("1.29", "lengths beyond 8192, by the same native kernel (emulated MI300)")
def test_long_sequences():
    kernels = {_plan(b=1, seqlen=seqlen, dim=128)["kernel"] for seqlen in (2048, 8193, 65536)}
    assert len(kernels) == 1 and kernels.pop().startswith("cdna_fwd")


def _plan(b: int, seqlen: int, dim: int) -> dict:
    q = torch.empty(b, seqlen, 2, dim, dtype=torch.float16)
    try:
        return json.loads(flashwave.explain(q, q, q, device="emu:gfx942", json=True))
    except (flashwave.NoDevice, flashwave.Unsupported) as error:
        pytest.skip(str(error))


@promise("1.24 1.25 1.26 1.27", "the tables: by length, by head dim, memory by batch, BERT samples/s; without holes")
def test_tables(run, tmp_path):
    tables = "seqlen,headdim,memory,bert"
    run(
        sys.executable, "-m", "flashwave.bench", "--quick", "--device=cpu", f"--tables={tables}", f"--out={tmp_path}",
        "--budget=0.05", cwd=tmp_path,
    )  # fmt: skip
    page = (tmp_path / "benchmarks.md").read_text()
    for name in tables.split(","):
        assert f"({name}.svg)" in page and (tmp_path / f"{name}.svg").stat().st_size > 500
    assert "samples/s" in page and "| - |" not in page


@promise("1.26", "memory by batch goes to 64")
def test_batches():
    from flashwave.bench import tables

    assert tables._SIZES.batches == (1, 2, 4, 8, 16, 32, 64) and tables._SIZES.head_dims[::5] == (32, 256)


@promise("1.31", "wrong shapes and types: a message that names the argument")
def test_wrong_shapes():
    from flash_attention_amd import flash_attn_func

    q = torch.randn(1, 8, 4, 64)
    with pytest.raises(ValueError, match="heads of q must be a multiple"):
        flash_attn_func(q, q[:, :, :3], q[:, :, :3])
    with pytest.raises(ValueError, match="dtype"):
        flash_attn_func(q, q.half(), q)


@promise("1.33", "gradient checkpointing with dropout: the same mask again")
def test_checkpointing():
    from torch.utils.checkpoint import checkpoint

    from flash_attention_amd import FlashAttention

    module, gradients = FlashAttention(attention_dropout=0.3), []
    q = torch.randn(1, 32, 2, 16, dtype=torch.bfloat16, requires_grad=True)
    for call in (module, lambda *a: checkpoint(module, *a, use_reentrant=False)):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(call(q, q, q).float().sum(), q)[0])
    assert torch.equal(*gradients)


@promise("1.30 1.32", "troubleshooting: backend, rocm-smi, versions, a missing module, out of memory")
def test_troubleshooting(root, run):
    page = (root / "docs" / "troubleshooting.md").read_text()
    for word in ("FLASH_ATTENTION_DEBUG", "rocm-smi", "nvidia-smi", "flash_attention_amd_cuda", "torch.version.hip",
                 "Out of memory", "NaNs", "no kernel image", "ONEDNN_MAX_CPU_ISA"):  # fmt: skip
        assert word in page, word
    said = run(sys.executable, "-m", "flashwave.doctor", "--help", cwd=root / "docs").stdout
    assert "--json" in said


@promise("", "the rule of 8192 keys: why it does not hold here, with numbers")
def test_the_rule_is_answered(root):
    section = (
        (root / "docs" / "dispatch.md").read_text().split("## From the rules of the CK guide")[1].split("\n## ")[0]
    )
    cells = json.loads((root / "bench/results/h200/cuda_vs_sdpa.json").read_text())["cells"]
    for dim in (64, 128, 256):
        for mask in ("full", "causal"):
            rates = [
                round(cell["rate"]["flashwave"])
                for seqlen in (8192, 16384)
                for cell in cells
                if cell["group"] == f"prefill {mask}" and cell["name"].startswith(f"d={dim} s={seqlen} ")
            ]
            assert f"| dim {dim}, {mask} | {rates[0]} | {rates[1]} |" in section

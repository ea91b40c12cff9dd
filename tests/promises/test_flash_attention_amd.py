"""flash_attention_amd: its commands and its snippets."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

promise = pytest.mark.promise
INSTALLED = Path(torch.__file__).parents[1]  # where the packages of this environment lie
USAGE = """
import torch
from flash_attention_amd import flash_attn_func

batch_size, seq_len, num_heads, head_dim = 2, 1024, 8, 64
q = torch.randn(batch_size, seq_len, num_heads, head_dim, device="cuda")
k = torch.randn(batch_size, seq_len, num_heads, head_dim, device="cuda")
v = torch.randn(batch_size, seq_len, num_heads, head_dim, device="cuda")
output = flash_attn_func(q, k, v, causal=True)

expected = torch.nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
torch.testing.assert_close(output, expected.transpose(1, 2), atol=1e-4, rtol=1e-4)
"""


@promise("0.9", "pip install -e .")
def test_editable_install(root, run, without_torch, tmp_path):
    """Into a new environment, with what scripts/test-python has just compiled; build tools and torch are lent."""
    if os.environ.get("FLASHWAVE_TEST_WHEEL") != "1":
        pytest.skip("compiles everything unless scripts/test-python has done so before")
    tools = next((root / "out" / "venv-tools").glob("lib/python3*/site-packages"))
    options = ["--disable-pip-version-check", "--no-build-isolation", "--no-deps", "--no-index"]
    options.append("-Cbuild-dir=build-wheel")
    path = f"{tools.parents[2] / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {"PYTHONPATH": str(tools), "PATH": path, "CMAKE_GENERATOR": "Ninja"}
    run(without_torch, "-m", "pip", "install", *options, "-e", ".", **environment)
    here = next((tmp_path / "venv").glob("lib/python3*/site-packages"))
    (here / "zz_torch.pth").write_text(str(INSTALLED))
    code = "import flash_attention_amd, flashwave; print(flashwave.__file__, flashwave._library.path)\n"
    said = run(without_torch, "-c", code + USAGE.replace('"cuda"', '"cpu"'), cwd=tmp_path, PYTHONPATH=None)
    package, library = said.stdout.split()
    assert Path(package) == root / "python" / "flashwave" / "__init__.py"
    assert Path(library).name == "libflashwave.so" and "PyTorch operations" not in said.stderr


@promise("0.2 1.6", "import and attend without the native library: PyTorch operations")
def test_without_the_library(run, tmp_path):
    import flashwave

    source = Path(flashwave.__file__).parents[1]
    for name in ("flashwave", "flash_attention_amd"):
        shutil.copytree(source / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # Also installed copies have one: from a folder without them, torch and no other package is found.
    (tmp_path / "site").mkdir()
    for entry in INSTALLED.iterdir():
        if not entry.name.startswith(("flashwave", "flash_att", "__")):
            (tmp_path / "site" / entry.name).symlink_to(entry)
    code = f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]{USAGE}"
    said = run(
        sys.executable, "-S", "-c", code.replace('"cuda"', '"cpu"'), cwd=tmp_path, FLASHWAVE_LIBRARY=None,
        PYTHONPATH=f"{tmp_path}:{tmp_path / 'site'}",
    )  # fmt: skip
    assert "PyTorch operations compute every attention" in said.stderr


@promise("0.10 0.11 0.14 0.16", "from flash_attention_amd import flash_attn_func, the usage snippet, in fp32")
def test_usage(snippet):
    snippet(USAGE)


@promise("0.12 0.13", "flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size), in this order")
def test_signature():
    from flash_attention_amd import flash_attn_func

    parameters = list(inspect.signature(flash_attn_func).parameters.values())[:7]
    assert [p.name for p in parameters] == [
        "q", "k", "v", "dropout_p", "softmax_scale", "causal", "window_size"
    ]  # fmt: skip
    assert [p.default for p in parameters[3:]] == [0.0, None, False, (-1, -1)]
    q, k, v = (torch.randn(1, 20, 2, 16) for _ in range(3))
    torch.testing.assert_close(flash_attn_func(q, k, v, 0.0, 16**-0.5), flash_attn_func(q, k, v))


@promise("0.15", "FlashAttention(softmax_scale, attention_dropout)(q, k, v, causal, window_size), an nn.Module")
def test_module():
    from flash_attention_amd import FlashAttention

    q, k, v = (torch.randn(1, 33, 2, 16) for _ in range(3))
    module = FlashAttention(0.3, 0.5)
    assert isinstance(module, torch.nn.Module) and list(inspect.signature(module.forward).parameters) == [
        "q", "k", "v", "causal", "window_size"
    ]  # fmt: skip
    seen = torch.arange(33)[None] - torch.arange(33)[:, None]
    seen = (seen <= 2) & (seen >= -5)
    expected = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=seen, scale=0.3)
    torch.testing.assert_close(module.eval()(q, k, v, False, (5, 2)), expected.transpose(1, 2))


@promise("0.6", "dropout: as much as asked for, off in eval()")
def test_dropout():
    from flash_attention_amd import FlashAttention

    q, v = torch.zeros(2, 256, 4, 32), torch.ones(2, 256, 4, 32)
    module = FlashAttention(attention_dropout=0.3)
    out = module(q, q, v)
    assert abs(out.mean() - 1.0) < 0.01 and 0.02 < out.std() < 0.1
    torch.testing.assert_close(module.eval()(q, q, v), v)


@promise("0.17", "the table: seqlen, standard, flash, speed-up")
def test_table(run):
    said = run(
        sys.executable, "-m", "flashwave.bench", "--quick", "--device=cpu", "--tables=seqlen", cwd=Path("/")
    ).stdout
    assert "standard PyTorch, ms | speed-up" in said and " | - | " not in said


@promise("0.3", "on an AMD GPU, with PyTorch for ROCm")
def test_amd_gpu():
    if not torch.version.hip:
        pytest.skip("no PyTorch for ROCm, no AMD GPU; the kernels run on the emulator (0.4)")
    from flash_attention_amd import flash_attn_func

    q = torch.randn(2, 512, 8, 64, device="cuda", dtype=torch.float16)
    expected = F.scaled_dot_product_attention(*[q.transpose(1, 2).float()] * 3)
    torch.testing.assert_close(flash_attn_func(q, q, q).float(), expected.transpose(1, 2), atol=5e-3, rtol=5e-3)


@promise("0.4 0.5 1.8", "causal and window on an AMD GPU, emulated")
def test_emulated():
    import flashwave

    q, k, v = (torch.randn(1, 40, 2, 64, dtype=torch.float16) for _ in range(3))
    try:
        out = flashwave.attention(q, k, v, causal=True, window=(9, 0), device="emu:gfx942")
    except (flashwave.NoDevice, flashwave.Unsupported) as error:
        pytest.skip(str(error))
    assert "cdna" in flashwave.explain(q, k, v, causal=True, window=(9, 0), device="emu:gfx942")
    torch.testing.assert_close(out, flashwave.attention(q, k, v, causal=True, window=(9, 0)), atol=2e-3, rtol=2e-3)


@promise("0.7 1.10 2.30", "memory in proportion to the length")
def test_memory():
    from flashwave.bench import memory
    from flashwave.bench.workloads import BOTH, OURS, Shape, draw

    per_token = {}
    for seqlen in (512, 8192):  # the workspace grows in steps: over a factor of 16 they do not matter
        shape = Shape(1, seqlen, 2, 64, causal=True)
        per_token[seqlen] = memory.peak(OURS, draw(shape, torch.float32, torch.device("cpu")), shape, BOTH) / seqlen
    assert per_token[8192] <= per_token[512]  # the matrix of standard attention: 16 times as much


@promise("0.19", "variable lengths, which it did not have")
def test_variable_lengths():
    from flash_attention_amd import flash_attn_func, flash_attn_varlen_func

    q = torch.randn(9, 2, 16)
    offsets = torch.tensor([0, 4, 9], dtype=torch.int32)
    out = flash_attn_varlen_func(q, q, q, offsets, offsets, 5, 5, causal=True)
    one = flash_attn_func(*[q[None, 4:]] * 3, causal=True)
    torch.testing.assert_close(out[4:], one[0])


@promise("0.20 0.21 1.35 4.30", "licence, acknowledgement, references, citation")
def test_papers(root):
    assert "MIT License" in (root / "LICENSE").read_text()
    for page in ("README.md", "docs/coming-from.md", "CITATION.cff"):
        text = (root / page).read_text()
        assert "2205.14135" in text and "2307.08691" in text and "Tri" in text and "Dao" in text, page
    assert "Composable Kernel" in (root / "docs/coming-from.md").read_text()

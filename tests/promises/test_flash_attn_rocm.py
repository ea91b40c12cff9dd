"""FlashAttention 0.2 and its ROCm fork: commands, modules, switches, files."""

from __future__ import annotations

import os
import re
import sys

import pytest
import torch
import torch.nn.functional as F

import flashwave.compat

promise = pytest.mark.promise


@pytest.fixture
def flash_attn_02():
    flashwave.compat.install(version="0.2.1")
    yield
    flashwave.compat.uninstall()


@promise("4.20 4.19", "pytest -q -s tests/test_flash_attn.py (a few of its tests; the python stage runs them all)")
def test_contract(run):
    some = "test_deterministic or (test_qkvpacked and 64) or (test_functions_of_02 and 32)"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "tests/test_flash_attn.py",
        "-k",
        some,
        "-p",
        "no:cacheprovider",
    ]
    done = run(*command, FLASHWAVE_CURRENT_TEST=None)
    assert re.search(r"^flashwave \S+ on (cpu|cuda): \w+", done.stdout, re.M)
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 10 and "failed" not in done.stdout


@promise("4.6", "PYTHONPATH=$PWD python benchmarks/benchmark_flash_attention.py, in the words of 0.2")
def test_benchmark(run, root):
    said = run(
        sys.executable, "benchmarks/benchmark_flash_attention.py", "--blocks", "--quick", PYTHONPATH=str(root)
    ).stdout
    for name in ("FlashAttention", "PyTorch Standard Attention"):
        for what in ("Forward", "Backward", "Forward + Backward"):
            assert re.search(
                rf"^{name} - {re.escape(what)} pass\n  [\d.]+ ms\n  1 measurement, \d+ runs , \d+ threads", said, re.M
            )


@promise("4.7", "flash_attn.utils.benchmark, which the document's own script imports")
def test_utils_benchmark(snippet):
    said = snippet("""
import flashwave.compat; flashwave.compat.install()
import torch
from flash_attn.utils.benchmark import benchmark_all, benchmark_forward
from flash_attn.flash_attn_interface import flash_attn_unpadded_qkvpacked_func
qkv = torch.randn(2 * 64, 3, 2, 32, requires_grad=True)
cu_seqlens = torch.arange(0, 3 * 64, 64, dtype=torch.int32)
fn = lambda qkv: flash_attn_unpadded_qkvpacked_func(qkv, cu_seqlens, 64, 0.1, causal=False)
benchmark_all(fn, qkv, repeats=3, desc="FlashAttention")
""").stdout
    assert "FlashAttention - Forward + Backward pass" in said and "3 runs" in said


@promise(
    "4.15 4.16 4.17", "curves with dropout and padding, forward+backward against standard, memory by length; plotted"
)
def test_curves(run, tmp_path):
    run(
        sys.executable, "-m", "flashwave.bench", "--quick", "--device=cpu", "--budget=1", f"--out={tmp_path}",
        "--tables=masking,backward,memory-seqlen", cwd=tmp_path,
    )  # fmt: skip
    page = (tmp_path / "benchmarks.md").read_text()
    for masking in ("plain", "dropout", "padding", "dropout and padding"):
        assert f"| {masking} |" in page
    assert "| - |" not in page and len(list(tmp_path.glob("*.svg"))) == 3


@promise("4.2 2.20", "python setup.py install, with GPU_ARCHS=gfx942")
def test_setup(run, root, tmp_path):
    """Down to pip, which a stand-in plays here: what pip does is 0.9."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()  # else another pip on the path would be taken
    code = "import os, sys; print(sys.argv[1:], os.environ['GPU_ARCHS'], os.getcwd())"
    (tmp_path / "pip" / "__main__.py").write_text(code)
    options = {"cwd": tmp_path, "PYTHONPATH": str(tmp_path), "GPU_ARCHS": "gfx942"}
    said = run(sys.executable, root / "setup.py", "install", **options).stdout
    assert said.split() == ["['install',", "'.']", "gfx942", str(root)]
    assert "usage" in run(sys.executable, "setup.py", "nonsense", status=1).stderr


@promise("4.3 1.20", "flash_attn.flash_attention: FlashMHA(**kwargs).inner_attn, causal, with padding")
def test_modules(flash_attn_02):
    from flash_attn.flash_attention import FlashAttention, FlashMHA

    mha = FlashMHA(64, 4, attention_dropout=0.0, causal=True, device="cpu", dtype=torch.float32, name="ignored")
    assert isinstance(mha.inner_attn, FlashAttention)
    x, mask = torch.randn(2, 7, 64), torch.arange(7) < torch.tensor([[7], [4]])
    out, weights = mha(x, key_padding_mask=mask)
    q, k, v = mha.Wqkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
    seen = mask[:, None, None] & torch.ones(7, 7, dtype=torch.bool).tril()
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(out[mask], mha.out_proj(expected)[mask])
    assert weights is None


@promise("4.4", "flash_attn_unpadded_func(return_attn_probs=True) without dropout: the matrix")
def test_matrix(flash_attn_02):
    from flash_attn.flash_attn_interface import flash_attn_unpadded_func

    q, k, v = torch.randn(9, 2, 16), torch.randn(7, 2, 16), torch.randn(7, 2, 16)
    offsets = [torch.tensor([0, n], dtype=torch.int32) for n in (9, 7)]
    for causal in (False, True):
        out, _, matrix = flash_attn_unpadded_func(q, k, v, *offsets, 9, 7, 0.0, causal=causal, return_attn_probs=True)
        weights = matrix[0] / matrix[0].sum(-1, keepdim=True)
        torch.testing.assert_close(torch.einsum("hqk,khd->qhd", weights, v), out)
        assert bool(matrix[0, :, 0, 1:].any()) != causal  # 0.x: query 0 sees key 0 alone


@promise("4.5", "x, indices, cu_seqlens, max_s = unpad_input(x, mask)")
def test_unpad_input(flash_attn_02):
    from flash_attn.bert_padding import pad_input, unpad_input

    x, mask = torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    rows, indices, cu_seqlens, max_s = unpad_input(x, mask)
    assert cu_seqlens.tolist() == [0, 3, 8] and max_s == 5
    torch.testing.assert_close(pad_input(rows, indices, 2, 5), x * mask[..., None])


@promise("4.1", "a distribution called flash-attn; import flash_attn")
def test_distribution(run, without_torch, root):
    shim = next(iter(sorted(root.glob("out/wheel/flash_attn-*.whl"))), None)
    if shim is None:
        pytest.skip("needs the wheels: make wheel")
    quiet = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    run(without_torch, *quiet, shim)
    said = run(without_torch, "-c", "import importlib.metadata as m; print(m.version('flash-attn'))").stdout
    assert said.split() == ["2.8.3"]


@promise("4.10 4.9 1.11", "head dims that are multiples of 8 up to 128, fp16 and bf16")
def test_head_dims():
    """By the document's rule: at most twice the error of standard attention in the same type, and its own rounding."""
    from flashwave import flash_attn_func

    torch.manual_seed(0)
    for dim in range(8, 129, 8):
        for dtype in (torch.float16, torch.bfloat16):
            q, k, v = (torch.randn(1, 40, 2, dim, dtype=dtype) for _ in range(3))
            exact, usual = (_standard(*(t.to(wide) for t in (q, k, v))) for wide in (torch.float64, dtype))
            error, baseline = ((t.double() - exact).abs().max() for t in (flash_attn_func(q, k, v), usual))
            assert error <= 2 * baseline + torch.finfo(dtype).eps / 2 * exact.abs().max(), (dim, dtype)


def _standard(q, k, v):
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5, dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


@promise("4.24", "export FLASH_ATTENTION_INTERNAL_DETERMINISTIC=1")
def test_deterministic(snippet):
    said = snippet(
        """
import torch
from flashwave import flash_attn_func
q = torch.randn(1, 64, 2, 32, requires_grad=True)
bits = [torch.autograd.grad(flash_attn_func(q, q, q).sum(), q)[0] for _ in range(3)]
assert all(torch.equal(bits[0], other) for other in bits)
from flashwave import settings
print(settings.deterministic())  # on GPUs; CPUs are so in any case
""",
        FLASH_ATTENTION_INTERNAL_DETERMINISTIC="1",
    ).stdout
    assert said.split() == ["True"]


@promise("4.22 4.21", "docker build . -f Dockerfile.rocm: what it copies and calls is there")
def test_dockerfiles(root):
    for name in ("Dockerfile.rocm", "Dockerfile.cuda"):
        text = (root / name).read_text()
        assert f"docker build . -f {name}" in text
        for line in text.splitlines():
            if line.startswith("COPY ") and "--from" not in line:
                source = line.split()[1]
                assert (root / source).exists(), f"{name}: {line}"
        assert re.search(r"^wheel:", (root / "Makefile").read_text(), re.M) and "RUN make wheel" in text
    page = (root / "docs" / "docker.md").read_text()
    assert "--device /dev/kfd" in page and "MI250" in page and "rocm/pytorch" in page


@promise("4.22", "docker build . -f Dockerfile.rocm, itself")
def test_docker_build(run):
    if os.environ.get("FLASHWAVE_TEST_DOCKER") != "1":
        pytest.skip("fetches an image of rocm/pytorch, some 20 GB: FLASHWAVE_TEST_DOCKER=1 does it")
    run("docker", "build", ".", "-f", "Dockerfile.rocm", "-t", "flashwave-rocm", "--build-arg", "GPU_ARCHS=gfx90a")


@promise("4.26", "MI200: causal attention on an emulated gfx90a")
def test_mi200():
    import flashwave

    q = torch.randn(1, 33, 2, 64, dtype=torch.bfloat16)
    try:
        out = flashwave.attention(q, q, q, causal=True, device="emu:gfx90a")
    except (flashwave.NoDevice, flashwave.Unsupported) as error:
        pytest.skip(str(error))
    torch.testing.assert_close(out, flashwave.attention(q, q, q, causal=True), atol=2e-2, rtol=2e-2)


@promise("4.28", "FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE: Triton first on AMD GPUs, no effect elsewhere")
def test_triton_switch(snippet):
    said = snippet(
        "import torch; from flashwave import flash_attn_func; q = torch.randn(1, 8, 1, 16); flash_attn_func(q, q, q)",
        FLASH_ATTENTION_TRITON_AMD_ENABLE="TRUE",
        FLASH_ATTENTION_DEBUG="1",
    ).stderr
    assert "backend=native" in said

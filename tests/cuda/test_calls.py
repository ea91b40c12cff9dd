"""What a call does and does not do on a GPU: kernels, memory, waiting, layouts, devices, refusals."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest
import torch

import flashwave
from flashwave import InvalidArgument
from flashwave import _library as fw
from numeric import assert_within_rule, error
from sample import SAMPLES, normal
from standard import attention as standard


def within_rule(out, q, k, v, **options):
    naive = standard(q, k, v, dtype=q.dtype, **options)[0]
    assert_within_rule(out, standard(q, k, v, **options)[0], naive, 2)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_librarys_kernels_run(name, monkeypatch, capfd):
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    with flashwave.backend("native"):
        SAMPLES[name]()()
    said = capfd.readouterr().err
    assert "backend=native kernel=" in said and "device=cuda:0 kernel=" in said


def forward_kernels() -> list[str]:
    if not torch.cuda.is_available():
        return []
    others = ("bwd", "append", "rotary", "combine", "merge", "fill")
    return [name for name in fw.kernels(fw.device("cuda:0")) if not any(word in name for word in others)]


@pytest.mark.parametrize("kernel", forward_kernels())
def test_a_kernel_computes_what_it_takes(kernel, monkeypatch):
    """By name: also those that the library would not choose here."""
    found = re.search(r"_(bf16|f16|f32)(?:_d(\d+)(?:v(\d+))?)?", kernel)
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[found[1]]
    dim = int(found[2] or 64)
    softcap = 5.0 if kernel.endswith("_softcap") else 0.0
    ran = 0
    for dim_v in {int(found[3] or dim), min(dim, 128)}:
        for batch, queries, heads, keys, heads_k in ((2, 200, 4, 260, 2), (3, 1, 8, 900, 2), (64, 1, 4, 2, 4)):
            q, k = normal(batch, queries, heads, dim, dtype=dtype), normal(batch, keys, heads_k, dim, dtype=dtype)
            v = normal(batch, keys, heads_k, dim_v, dtype=dtype)
            distances = (
                torch.arange(queries, device="cuda")[:, None] + keys - queries - torch.arange(keys, device="cuda")
            )
            given, bias = {}, None
            if "_alibi" in kernel:
                given["alibi_slopes"] = torch.rand(heads, device="cuda")
                bias = -given["alibi_slopes"][:, None, None] * distances.abs()
            if kernel.endswith("_bias"):
                padded = normal(batch, heads, queries, keys + 7 & ~7, dtype=dtype)  # rows at multiples of 16 bytes
                given["bias"] = bias = padded[..., :keys]
            for causal in (False, True):
                options = {"causal": causal, "softcap": softcap}
                monkeypatch.setenv("FLASHWAVE_FORCE_KERNEL", kernel)
                try:
                    out = flashwave.attention(q, k, v, **options, **given)
                except flashwave.Unsupported:
                    continue  # not for this problem
                finally:
                    monkeypatch.delenv("FLASHWAVE_FORCE_KERNEL")
                within_rule(out, q, k, v, **options, bias=bias)
                ran += 1
    assert ran, "the kernel took none of the problems"


@pytest.mark.parametrize("name", SAMPLES)
def test_no_call_waits_for_the_gpu(name):
    sample = SAMPLES[name]()
    expected = sample()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(400_000_000)  # cycles: a fifth of a second
        start = time.perf_counter()
        out = sample()
        assert time.perf_counter() - start < 0.1, "the call waited for the work before it"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out, expected)


def test_dropout_does_not_wait_for_the_gpu():
    q, k, v = (normal(2, 100, 4, 64).requires_grad_() for _ in range(3))
    flashwave.flash_attn_func(q, k, v, dropout_p=0.2).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        flashwave.flash_attn_func(q, k, v, dropout_p=0.2).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", SAMPLES)
def test_memory_does_not_grow(name):
    sample = SAMPLES[name]()
    for _ in range(3):
        sample()
    torch.cuda.synchronize()
    allocated, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    for _ in range(100):
        sample()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= allocated
    assert torch.cuda.mem_get_info()[0] >= free, "memory that torch did not allocate"


def test_memory_is_linear_in_the_length():
    def peak(seqlen):
        q, k, v = (normal(1, seqlen, 8, 128) for _ in range(3))
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        flashwave.flash_attn_func(q, k, v)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    assert peak(16384) <= 4.5 * peak(4096)
    assert peak(16384) <= 1.5 * 16384 * 8 * 128 * 2  # the result, and little beside it


@pytest.mark.parametrize("layout", ["heads first", "gaps", "not aligned", "last dimension", "one for all"])
def test_layouts(layout):
    q, k, v = (normal(2, 150, 4, 64) for _ in range(3))

    def laid_out(x):
        if layout == "heads first":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "gaps":
            return torch.cat((x, x * torch.nan), 2)[:, :, :4]
        if layout == "not aligned":
            flat = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
            flat[1:] = x.flatten()
            return flat[1:].view(x.shape)
        if layout == "last dimension":
            return x.transpose(2, 3).contiguous().transpose(2, 3)
        return x[:1, :, :1].expand(x.shape)

    given = [laid_out(x) for x in (q, k, v)]
    out = flashwave.flash_attn_func(*given, causal=True)
    within_rule(out, *given, causal=True)
    assert torch.equal(out, flashwave.flash_attn_func(*given, causal=True))


@pytest.mark.parametrize("where", ["batch", "head", "row"])
def test_offsets_past_four_billion_elements(where):
    strides = {"batch": (5 << 30, 4 * 64, 64), "head": (64, 128, 5 << 30), "row": (32 << 20, 33 << 20, 64)}[where]
    batch, rows, heads = 2, 160, 2
    last = (batch - 1) * strides[0] + (rows - 1) * strides[1] + (heads - 1) * strides[2] + 64
    if torch.cuda.mem_get_info()[0] < 3 * 2 * last:
        pytest.skip("the GPU has too little memory")
    q, k, v = (normal(batch, rows, heads, 64) for _ in range(3))
    far = []
    for x in (q, k, v):
        view = torch.empty(last, dtype=x.dtype, device="cuda").as_strided(x.shape, (*strides, 1))
        far.append(view.copy_(x))
    out = flashwave.flash_attn_func(*far, causal=True)
    assert error(out, flashwave.flash_attn_func(q, k, v, causal=True)) <= 2.0**-8
    within_rule(out, q, k, v, causal=True)
    del far
    torch.cuda.empty_cache()


def test_repeated_calls_read_their_own_tensors():
    """The quick way of a call that was made before: other addresses, other alignment, another number of queries."""
    for _ in range(3):
        for rows in (1, 70):
            q, k, v = normal(2, rows, 4, 64), normal(2, 90, 4, 64), normal(2, 90, 4, 64)
            within_rule(flashwave.flash_attn_func(q, k, v), q, k, v)
            flat = torch.empty(k.numel() + 1, dtype=k.dtype, device="cuda")
            flat[1:] = k.flatten()
            within_rule(flashwave.flash_attn_func(q, flat[1:].view(k.shape), v), q, k, v)


def test_inference_mode_and_no_grad():
    q, k, v = (normal(1, 64, 2, 64).requires_grad_() for _ in range(3))
    assert flashwave.flash_attn_func(q, k, v).requires_grad
    with torch.no_grad():
        expected = flashwave.flash_attn_func(q, k, v)
        assert not expected.requires_grad
        within_rule(expected, q, k, v)
    with torch.inference_mode():
        out = flashwave.flash_attn_func(q, k, v)
        assert out.is_inference() and torch.equal(out, expected)
        assert torch.equal(flashwave.flash_attn_func(out, k, v), flashwave.flash_attn_func(out.clone(), k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype):
    q, k, v = (normal(2, 60, 4, 64, dtype=torch.float32).requires_grad_() for _ in range(3))
    with torch.autocast("cuda", dtype=dtype):
        out = flashwave.flash_attn_func(q, k, v, causal=True)
        cached = flashwave.flash_attn_with_kvcache(q[:, :1], k.to(dtype), v.to(dtype))
    assert out.dtype == cached.dtype == dtype
    assert torch.equal(out, flashwave.flash_attn_func(q.to(dtype), k.to(dtype), v.to(dtype), causal=True))
    out.float().square().sum().backward()
    assert q.grad.dtype == torch.float32 and q.grad.isfinite().all()


def test_bits_do_not_change():
    for name, make in SAMPLES.items():
        sample = make()
        first = sample().clone()
        for _ in range(20):
            assert torch.equal(sample(), first), name


def test_threads_with_streams_of_their_own():
    samples = [make() for make in SAMPLES.values()]
    expected = [sample() for sample in samples]
    torch.cuda.synchronize()
    wrong = []

    def work(sample, result):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(30):
                if not torch.equal(sample(), result):
                    wrong.append(sample)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(samples, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tensors_on_different_devices_are_refused():
    q, k, v = (normal(2, 8, 2, 64) for _ in range(3))
    with pytest.raises(InvalidArgument, match="k must be on the device of q, cuda:0, got cpu"):
        flashwave.flash_attn_func(q, k.cpu(), v)
    with pytest.raises(InvalidArgument, match="seqused_k|cache_seqlens must be on the device of q"):
        flashwave.flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor([3, 4], dtype=torch.int32))
    with pytest.raises(InvalidArgument, match="out must be"):
        flashwave.flash_attn_func(q, k, v, out=torch.empty(q.shape, dtype=q.dtype))
    with pytest.raises(InvalidArgument, match="takes CPU tensors"):
        flashwave.attention(q, k, v, device="cuda:0")
    # After a good call of the same layout, too: it is kept.
    flashwave.flash_attn_func(q, k, v)
    with pytest.raises(InvalidArgument, match="v must be on the device of q"):
        flashwave.flash_attn_func(q, k, v.cpu())


def test_cpu_tensors_through_the_gpu():
    q, k, v = (torch.randn(2, 50, 4, 64) for _ in range(3))
    there = flashwave.attention(q, k, v, causal=True, device="cuda:0")
    assert error(there, standard(q, k, v, causal=True)[0]) < 1e-5
    from flashwave import arrays

    out, lse = arrays.attention(*[x.numpy() for x in (q, k, v)], causal=True, return_lse=True, device="cuda:0")
    assert error(torch.from_numpy(out), there) == 0.0
    assert error(torch.from_numpy(lse), standard(q, k, v, causal=True)[1]) < 1e-4


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
@pytest.mark.parametrize("name", SAMPLES)
def test_a_device_that_is_not_the_current_one(name):
    assert torch.cuda.current_device() == 0
    sample = SAMPLES[name]("cuda:1")
    here = SAMPLES[name]("cuda:0")
    for there, tensor in zip(sample.tensors, here.tensors):
        tensor.copy_(there)
    assert torch.equal(sample().cpu(), here().cpu())
    assert torch.cuda.current_device() == 0


def test_explain_names_a_kernel_of_the_gpu():
    q, k, v = (normal(2, 512, 16, 128) for _ in range(3))
    plan = json.loads(flashwave.explain(q, k, v, causal=True, json=True))
    assert plan["kernel"] in fw.kernels(fw.device("cuda:0"))

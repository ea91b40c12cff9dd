"""A small model trained on emulated AMD GPUs, end to end: by their own kernels, forwards and backwards."""

from __future__ import annotations

import re

import pytest
import torch

import flashwave

HEADS, DIM, WORDS, STEPS = 2, 32, 16, 4


class Model(torch.nn.Module):
    """Embedding, one layer of causal attention, and the next word."""

    def __init__(self, attend, key_heads):
        super().__init__()
        self.parts = HEADS, key_heads, key_heads
        self.embedding = torch.nn.Embedding(WORDS, HEADS * DIM)
        self.qkv = torch.nn.Linear(HEADS * DIM, sum(self.parts) * DIM)
        self.out = torch.nn.Linear(HEADS * DIM, WORDS)
        self.attend = attend

    def forward(self, words):
        x = self.embedding(words)
        q, k, v = self.qkv(x).view(*words.shape, -1, DIM).split(self.parts, 2)
        return self.out(x + self.attend(q, k, v).flatten(2))


def losses_of(attend, key_heads):
    torch.manual_seed(1)
    model = Model(attend, key_heads)
    words = (torch.arange(41) * torch.tensor([[1], [3]])) % WORDS
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def exact(q, k, v):
    transposed = (t.transpose(1, 2) for t in (q, k, v))
    q, k, v = transposed
    k, v = (t.expand(-1, HEADS, -1, -1) for t in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


# One key head for all: not taken by the kernels for short sequences.
@pytest.mark.parametrize("key_heads", [HEADS, 1])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("gpu, family", [("gfx942", "cdna"), ("gfx1100", "rdna3"), ("gfx1201", "rdna4")])
def test_trains_by_the_kernels_of_the_gpu(gpu, family, deterministic, key_heads, monkeypatch, capfd):
    device = f"emu:{gpu}"

    def emulated(q, k, v):
        halves = (t.bfloat16() for t in (q, k, v))
        return flashwave.attention(*halves, causal=True, deterministic=deterministic, device=device).float()

    try:
        flashwave.attention(*[torch.zeros(1, 8, 1, 8, dtype=torch.bfloat16)] * 3, device=device)
    except (flashwave.NoDevice, flashwave.Unsupported) as error:
        pytest.skip(f"{device}: {error}"[:80])
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    losses = losses_of(emulated, key_heads)
    kernels = re.findall(r"(fwd|bwd) .*device=emu:\S+ .*kernel=(\w+)", capfd.readouterr().err)
    assert [direction for direction, _ in kernels] == ["fwd", "bwd"] * STEPS
    assert all(kernel.startswith(f"{family}_{direction}_") for direction, kernel in kernels), kernels
    # There is one kernel for short sequences, of which the bits never change.
    short = [("_bwd_head_" in kernel, "_bwd_dkdv_" in kernel) for direction, kernel in kernels if direction == "bwd"]
    assert set(short) == {(True, False) if key_heads == HEADS else (False, deterministic)}, kernels
    torch.testing.assert_close(losses, losses_of(exact, key_heads), rtol=0.02, atol=0.02)
    assert losses[-1] < 0.8 * losses[0]


def test_fp16_is_multiplied_as_bf16_in_performance_mode(monkeypatch):
    """FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE=1: products of bf16, results in fp16, forwards and backwards."""
    torch.manual_seed(2)
    tensors = [torch.randn(1, 70, 2, 64, dtype=torch.float16) for _ in range(4)]

    def results(device):
        q, k, v = (t.clone().requires_grad_() for t in tensors[:3])
        out = flashwave.attention(q, k, v, causal=True, device=device)
        out.backward(tensors[3])
        return [out.detach(), q.grad, k.grad, v.grad]

    exact = results("cpu")
    try:
        plain = results("emu:gfx90a")
    except (flashwave.NoDevice, flashwave.Unsupported) as error:
        pytest.skip(f"emu:gfx90a: {error}"[:80])
    monkeypatch.setenv("FLASH_ATTENTION_INTERNAL_PERFORMANCE_MODE", "1")
    fast, on_the_cpu = results("emu:gfx90a"), results("cpu")
    for right, near, rounded, same in zip(exact, plain, fast, on_the_cpu):
        assert rounded.dtype == torch.float16 and torch.equal(right, same)
        largest = right.float().abs().max()
        errors = [(right.float() - t.float()).abs().max() / largest for t in (near, rounded)]
        assert errors[0] < 2e-3 and 1e-3 < errors[1] < 2e-2, errors

"""flashwave under other projects, as PyPI has them: docs/integrations.md is the table of what is proven here.

Run by scripts/test-integrations, in an environment with the wheel, the stand-in for flash-attn, and those projects.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, os.path.dirname(__file__))

import processes
import pytest
import torch
import torch.nn.functional as F
from programs import tiny_llama

import flashwave

flash_attn = pytest.importorskip("flash_attn", reason="the stand-in for flash-attn is not installed")


def test_torchs_context_parallel(tmp_path):
    processes.run("context_parallel", 2, tmp_path)


def test_ring_flash_attention(tmp_path):
    processes.run("ring_flash_attention", 2, tmp_path)


@pytest.mark.slow
def test_yunchang(tmp_path):
    processes.run("yunchang", 2, tmp_path)


@pytest.mark.slow
def test_deepspeed_ulysses(tmp_path):
    processes.run("deepspeed_ulysses", 2, tmp_path)


def _examples(count: int = 4):
    torch.manual_seed(1)
    return [{"input_ids": row, "labels": row} for row in torch.randint(50, (count, 24))]


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["flashwave", "sdpa", "flash_attention_2"])
def test_a_step_of_transformers_trainer(implementation, tmp_path):
    """By name, through torch's operators, and as flash-attn; the loss is that of plain attention."""
    import transformers
    from programs import Counted

    import flashwave.integrations.transformers

    flashwave.integrations.transformers.register()
    losses = {}
    for kind in ("eager", implementation):
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=4, use_cpu=True, report_to=[], logging_steps=1
        )
        model = tiny_llama(kind)
        if kind == "sdpa":
            flashwave.activate()
        try:
            with Counted() as calls:
                trainer = transformers.Trainer(model, arguments, train_dataset=_examples())
                losses[kind] = trainer.train().training_loss
        finally:
            flashwave.restore()
        assert kind != "sdpa" or {"_forward", "_backward"} <= set(calls)
    assert abs(losses["eager"] - losses[implementation]) < 1e-4


def test_a_step_of_accelerate():
    import accelerate
    from programs import Counted

    accelerator = accelerate.Accelerator(cpu=True)
    model, batch = tiny_llama("sdpa"), torch.stack([e["input_ids"] for e in _examples()])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    expected = model(batch, labels=batch).loss.item()
    flashwave.activate()
    try:
        with Counted() as calls:
            loss = model(batch, labels=batch).loss
            accelerator.backward(loss)
            optimizer.step()
    finally:
        flashwave.restore()
    assert abs(loss.item() - expected) < 1e-4
    assert calls.count("_forward") == 2 and calls.count("_backward") == 2


def test_diffusers_takes_the_stand_in():
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    q, k, v = torch.randn(3, 1, 20, 4, 16, dtype=torch.bfloat16)
    out = dispatch_attention_fn(q, k, v, backend=AttentionBackendName.FLASH)
    expected = F.scaled_dot_product_attention(*[x.transpose(1, 2).float() for x in (q, k, v)]).transpose(1, 2)
    assert torch.allclose(out.float(), expected, atol=2e-2)


def test_a_dropout_that_only_asks_for_the_log_sum_exp_is_none():
    """Some programs call with dropout_p=1e-30 to be given the log-sum-exp."""
    q = torch.randn(1, 16, 2, 8)
    out, lse, _ = flash_attn.flash_attn_func(q, q, q, dropout_p=1e-30, return_attn_probs=True)
    expected = flash_attn.flash_attn_func(q, q, q)
    assert torch.equal(out, expected) and lse.shape == (1, 2, 16)


def test_transformer_engines_gate():
    """It takes 2.1.1 <= version < 2.8.4 of flash-attn, and imports these."""
    import importlib.metadata

    from packaging.version import Version

    version = Version(importlib.metadata.version("flash-attn"))
    assert Version("2.1.1") <= version < Version("2.8.4")
    from flash_attn.flash_attn_interface import (  # noqa: F401
        _flash_attn_backward,
        _flash_attn_forward,
        _flash_attn_varlen_backward,
        _flash_attn_varlen_forward,
        flash_attn_func,
        flash_attn_varlen_func,
    )
    from flash_attn_2_cuda import varlen_bwd  # noqa: F401

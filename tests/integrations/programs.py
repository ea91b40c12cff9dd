"""What the processes of test_integrations.py do: other projects' code around flashwave's attention."""

from __future__ import annotations

import os
import sys
import types
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F

warnings.filterwarnings("ignore")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import flashwave  # noqa: E402


def _close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-5) -> None:
    error = (actual.float() - expected.float()).abs().max().item()
    largest = max(1.0, expected.abs().max().item())
    assert actual.shape == expected.shape and error <= tolerance * largest, f"off by {error:.3g} of {largest:.3g}"


def _whole(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(*shape) for _ in range(3)]


def _zigzag(x: torch.Tensor, dim: int) -> torch.Tensor:
    return flashwave.distributed.shard(x, dim, layout="zigzag")


class Counted:
    """How often flashwave computed something for torch."""

    def __enter__(self) -> list[str]:
        from flashwave import replacement

        self.calls, self.before = [], {name: getattr(replacement, name) for name in ("_forward", "_backward")}
        for name, function in self.before.items():
            setattr(replacement, name, lambda *a, f=function, n=name: (self.calls.append(n), f(*a))[1])
        return self.calls

    def __exit__(self, *_: object) -> None:
        from flashwave import replacement

        for name, function in self.before.items():
            setattr(replacement, name, function)


def context_parallel() -> None:
    """torch.distributed.tensor.experimental.context_parallel around F.scaled_dot_product_attention."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel as cp
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    from flashwave.integrations import context_parallel as ours

    flashwave.activate()
    ours.enable_on_cpu()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    whole = [x.requires_grad_() for x in _whole(1, 4, 16 * dist.get_world_size(), 8)]
    expected = F.scaled_dot_product_attention(*whole, is_causal=True)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * weight).sum().backward()
    buffers = [x.detach().clone() for x in whole] + [weight.clone()]
    with Counted() as calls, cp(mesh, buffers=buffers, buffer_seq_dims=[2] * 4):
        local = [x.detach().clone().requires_grad_() for x in buffers[:3]]
        out = F.scaled_dot_product_attention(*local, is_causal=True)
        (out * buffers[3]).sum().backward()
        results = [out.detach(), *[x.grad for x in local]]
    assert calls.count("_forward") == calls.count("_backward") == dist.get_world_size(), calls
    for ours_, theirs in zip(
        context_parallel_unshard(mesh, results, [2] * 4), [expected.detach(), *[x.grad for x in whole]]
    ):
        _close(ours_, theirs)
    flashwave.restore()


def tiny_llama(implementation: str):
    """A model of transformers with this attention, and always the same weights."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=implementation,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def deepspeed_ulysses() -> None:
    """DeepSpeed's Ulysses around transformers' attention by name."""
    from deepspeed import comm
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    import flashwave.integrations.transformers

    comm.init_distributed(dist_backend="gloo", verbose=False)
    flashwave.integrations.transformers.register()
    model = tiny_llama("flashwave")
    world, rank = dist.get_world_size(), dist.get_rank()
    tokens = torch.randint(50, (1, 8 * world))
    positions = torch.arange(8 * world)[None]
    expected = model(tokens, position_ids=positions).logits
    UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation="flashwave",
        sequence_parallel_size=world,
        micro_batch_size=1,
    )
    own = slice(8 * rank, 8 * (rank + 1))
    logits = model(tokens[:, own], position_ids=positions[:, own]).logits
    _close(logits, expected[:, own], 1e-4)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def _ring_flash_attn() -> types.ModuleType:
    """Without its adapter for transformers, which imports names that transformers 5 no longer has."""
    adapters = types.ModuleType("ring_flash_attn.adapters")
    adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None
    sys.modules.setdefault("ring_flash_attn.adapters", adapters)
    import ring_flash_attn

    return ring_flash_attn


def ring_flash_attention() -> None:
    """In bf16: its backward takes float32 gradients for copies, which they are only of 16-bit ones."""
    module = _ring_flash_attn()
    whole = [x.bfloat16().requires_grad_() for x in _whole(1, 16 * dist.get_world_size(), 4, 8)]
    expected = flashwave.flash_attn_func(*whole, causal=True)
    expected.square().sum().backward()
    local = [_zigzag(x.detach(), 1).requires_grad_() for x in whole]
    out = module.zigzag_ring_flash_attn_func(*local, causal=True)
    _close(out, _zigzag(expected, 1), 2e-2)
    out.square().sum().backward()
    for part, total in zip(local, whole):
        _close(part.grad, _zigzag(total.grad, 1), 2e-2)


def yunchang() -> None:
    from yunchang import LongContextAttention, set_seq_parallel_pg
    from yunchang.kernels import AttnType

    world = dist.get_world_size()
    set_seq_parallel_pg(1, world, dist.get_rank(), world)
    whole = [x.bfloat16().requires_grad_() for x in _whole(1, 16 * world, 4, 8)]
    expected = flashwave.flash_attn_func(*whole, causal=True)
    expected.square().sum().backward()
    local = [_zigzag(x.detach(), 1).requires_grad_() for x in whole]
    out = LongContextAttention(ring_impl_type="zigzag", attn_type=AttnType.FA)(*local, causal=True)
    _close(out, _zigzag(expected, 1), 2e-2)
    out.square().sum().backward()
    for part, total in zip(local, whole):
        _close(part.grad, _zigzag(total.grad, 1), 2e-2)

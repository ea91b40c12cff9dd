"""torch's context parallelism on CPUs: the operators of CPUs beside those of GPUs that it knows.

`torch.distributed.tensor.experimental.context_parallel` goes round a ring with whatever computes torch's flash
operators, so that on GPUs `flashwave.activate()` is all it takes. It knows no operator of CPUs; this adds them, with
torch's own ring around them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import Unsupported

_SEQUENCE = 2  # dimension of (batch, heads, tokens, dim)


def _ring(operator: Any, arguments: tuple, options: dict) -> Any:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring

    aten = torch.ops.aten
    first = arguments[0]
    mesh, placements = first.device_mesh, first.placements
    local = [argument.to_local() if isinstance(argument, DTensor) else argument for argument in arguments]
    if options.get("attn_mask") is not None:
        raise Unsupported("torch's context parallelism knows no attn_mask")
    forward, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )
    if operator is forward.default:
        names = ("query", "key", "value", "dropout_p", "is_causal")
        results = torch_ring._templated_ring_attention(
            mesh.get_group(), _SEQUENCE, forward, **dict(zip(names, local)), scale=options.get("scale")
        )
    else:
        names = ("grad_out", "query", "key", "value", "out", "logsumexp", "dropout_p", "is_causal")
        results = torch_ring._templated_ring_attention_backward(
            mesh.get_group(),
            _SEQUENCE,
            backward.default,
            grad_out_name="grad_out",
            **dict(zip(names, local)),
            scale=options.get("scale"),
        )
    return tuple([DTensor.from_local(result, mesh, placements, run_check=False) for result in results])


def _handler(operator: Any, arguments: tuple, options: dict) -> Any:
    return _ring(operator, arguments, options)


def enable_on_cpu() -> None:
    """Context parallelism takes scaled_dot_product_attention of CPU tensors from here on. Needs torch 2.10 or newer."""
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring

        table = torch_ring.custom_ops
    except (ImportError, AttributeError):
        raise Unsupported(f"torch {torch.__version__} has another context parallelism than this is made for") from None
    aten = torch.ops.aten
    table[aten._scaled_dot_product_flash_attention_for_cpu.default] = _handler
    table[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _handler

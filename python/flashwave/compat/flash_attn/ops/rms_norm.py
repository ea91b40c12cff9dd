"""flash_attn.ops.rms_norm: the interface of the former CUDA extension, on `ops.triton.layer_norm`."""

from __future__ import annotations

from functools import partial

from flashwave.compat.flash_attn.ops.layer_norm import (
    DropoutAddLayerNorm,
    dropout_add_layer_norm,
    dropout_add_layer_norm_parallel_residual,
    dropout_add_layer_norm_subset,
)
from flashwave.compat.flash_attn.ops.triton import layer_norm

__all__ = [
    "DropoutAddRMSNorm",
    "RMSNorm",
    "dropout_add_rms_norm",
    "dropout_add_rms_norm_parallel_residual",
    "dropout_add_rms_norm_subset",
    "rms_norm",
]


def rms_norm(x, weight, epsilon):
    return layer_norm.rms_norm_fn(x, weight, None, eps=epsilon)


dropout_add_rms_norm = partial(dropout_add_layer_norm, is_rms_norm=True)
dropout_add_rms_norm_subset = partial(dropout_add_layer_norm_subset, is_rms_norm=True)
dropout_add_rms_norm_parallel_residual = partial(dropout_add_layer_norm_parallel_residual, is_rms_norm=True)


class RMSNorm(layer_norm.RMSNorm):
    def __init__(self, hidden_size, eps=1e-5, device=None, dtype=None):
        super().__init__(hidden_size, eps, device=device, dtype=dtype)


class DropoutAddRMSNorm(DropoutAddLayerNorm):
    is_rms_norm = True

"""flash_attn.ops.layer_norm: the interface of the former CUDA extension, on `ops.triton.layer_norm`."""

from __future__ import annotations

import torch
from torch import nn

from flashwave.compat.flash_attn.ops.triton.layer_norm import layer_norm_fn


def layer_norm(x, weight, bias, epsilon):
    return layer_norm_fn(x, weight, bias, eps=epsilon)


def dropout_add_layer_norm(
    x0,
    residual,
    weight,
    bias,
    dropout_p,
    epsilon,
    rowscale=None,
    layerscale=None,
    prenorm=False,
    residual_in_fp32=False,
    return_dropout_mask=False,
    *,
    is_rms_norm=False,
):
    """residual may be None. layerscale scales the columns of x0, rowscale its rows."""
    return layer_norm_fn(
        x0 if layerscale is None else (x0.float() * layerscale.float()).to(x0.dtype),
        weight,
        bias,
        residual,
        eps=epsilon,
        dropout_p=dropout_p,
        rowscale=rowscale,
        prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
        return_dropout_mask=return_dropout_mask,
    )


def dropout_add_layer_norm_parallel_residual(
    x0,
    x1,
    residual,
    weight0,
    bias0,
    weight1,
    bias1,
    dropout_p,
    epsilon,
    prenorm=False,
    residual_in_fp32=False,
    return_dropout_mask=False,
    *,
    is_rms_norm=False,
):
    """Two inputs and, with weight1, two norms of their sum. Without weight1 the second output is None."""
    results = layer_norm_fn(
        x0,
        weight0,
        bias0,
        residual,
        x1,
        weight1,
        bias1,
        eps=epsilon,
        dropout_p=dropout_p,
        prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
        return_dropout_mask=return_dropout_mask,
    )
    results = results if isinstance(results, tuple) else (results,)
    return results if weight1 is not None else (results[0], None, *results[1:])


class DropoutAddLayerNorm(nn.Module):
    is_rms_norm = False

    def __init__(
        self, hidden_size, prenorm=False, p=0.0, eps=1e-5, residual_in_fp32=False, device=None, dtype=None
    ) -> None:
        super().__init__()
        self.prenorm = prenorm
        self.p = p
        self.eps = eps
        self.residual_in_fp32 = residual_in_fp32
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        if self.is_rms_norm:
            self.register_parameter("bias", None)
        else:
            self.bias = nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x0, residual=None):
        return dropout_add_layer_norm(
            x0,
            residual,
            self.weight,
            self.bias,
            self.p if self.training else 0.0,
            self.eps,
            prenorm=self.prenorm,
            residual_in_fp32=self.residual_in_fp32,
            is_rms_norm=self.is_rms_norm,
        )

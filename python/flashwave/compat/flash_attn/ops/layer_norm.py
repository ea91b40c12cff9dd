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
    """residual may be None. layerscale scales the columns of x0, rowscale its rows.

    With return_dropout_mask, the kept elements of x0 come last, as uint8.
    """
    results = layer_norm_fn(
        _scaled(x0, layerscale),
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
    return (*results[:-2], _mask(results[-2], x0)) if return_dropout_mask else results


def dropout_add_layer_norm_subset(
    x0,
    residual,
    weight,
    bias,
    dropout_p,
    epsilon,
    layerscale=None,
    x0_subset=None,
    out_subset=None,
    rowscale_const=1.0,
    out_numrows=0,
    prenorm=False,
    residual_in_fp32=False,
    return_dropout_mask=False,
    *,
    is_rms_norm=False,
):
    """`dropout_add_layer_norm` where x0 and the output hold some rows of the residual's only.

    x0_subset, out_subset: for each row of the residual, its row in x0 or in the output, counted from 1, or 0 if it is
    not there. rowscale_const scales x0; out_numrows is the number of rows of the output.
    """
    hidden = x0.shape[-1]
    added, mask = _scaled(x0, layerscale).reshape(-1, hidden), None
    if dropout_p > 0.0:
        mask = torch.rand(added.shape, device=x0.device) >= dropout_p
        added = added.float() * mask / (1.0 - dropout_p)
    added = added.float() * rowscale_const
    if x0_subset is not None:
        places = x0_subset.reshape(-1).long()
        added = torch.where((places > 0).unsqueeze(-1), added[(places - 1).clamp(min=0)], 0.0)
    y, h = layer_norm_fn(
        added,
        weight,
        bias,
        None if residual is None else residual.reshape(-1, hidden),
        eps=epsilon,
        prenorm=True,
        is_rms_norm=is_rms_norm,
        out_dtype=x0.dtype,
    )
    if residual is None and not residual_in_fp32:
        h = h.to(x0.dtype)
    if out_subset is not None:
        places = out_subset.reshape(-1).long()
        y = y.new_zeros(out_numrows, hidden).index_copy(0, places[places > 0] - 1, y[places > 0])
    shape = (-1, *x0.shape[1:])
    results = [y.view(shape), *([h.view(shape)] if prenorm else [])]
    if return_dropout_mask:
        results.append(_mask(None if mask is None else mask.view(x0.shape), x0))
    return results[0] if len(results) == 1 else tuple(results)


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
    if return_dropout_mask:
        results = (*results[:-2], *(_mask(mask, x0) for mask in results[-2:]))
    return results if weight1 is not None else (results[0], None, *results[1:])


def _scaled(x0, layerscale):
    return x0 if layerscale is None else (x0.float() * layerscale.float()).to(x0.dtype)


def _mask(kept, x0):
    """A mask as the former extension gave it: uint8, of ones where nothing is dropped."""
    return torch.ones_like(x0, dtype=torch.uint8) if kept is None else kept.to(torch.uint8)


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
